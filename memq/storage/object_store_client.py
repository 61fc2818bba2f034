"""The client of an object store: its options, its credentials, and what its refusals mean.

An option is one of obstore's own, as its documentation names them for each cloud (`region`,
`endpoint`, `server_side_encryption`, `sse_kms_key_id`, `unsigned_payload`, …) and for the HTTP
client (`proxy_url`, …), or one of these:

- `storage_class`: of each object that is written, such as INTELLIGENT_TIERING;
- `tag.NAME`: a tag of each object that is written;
- `ca_certificate`: a file with the certificates of a private authority;
- `profile`: of the AWS configuration files.

Names may have any case, as for obstore, so that those of variables serve as well.

What is not given comes from the environment, as the cloud's own tools have it (`AWS_REGION`,
`AWS_ENDPOINT_URL`, `GOOGLE_APPLICATION_CREDENTIALS`, `AZURE_STORAGE_ACCOUNT_NAME`, …); so readers
on other machines need no option of ours.

Credentials of AWS are looked for in the order that its tools have: options, keys or a web identity
in the environment, profiles, and what a container or an instance is given. Whatever a profile may
lead to (single sign-on, a role to assume, a process) is known to boto3 alone, which is loaded for
that.

obstore has one type for most errors, so status and code of a refusal are found in its text.
"""

from __future__ import annotations

import os
import re
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from obstore.exceptions import BaseError, NotSupportedError, UnknownConfigurationKeyError
from obstore.store import from_url

from memq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from obstore.store import ObjectStore, S3Credential

TAG_PREFIX = "tag."
_OWN_OPTIONS = ("storage_class", "ca_certificate", "profile")
CLIENT_DEFAULTS = {
    "connect_timeout": "3s",
    "timeout": "1h",  # above any of ours: obstore's own is 30 s, whatever the size
    "pool_idle_timeout": "15s",  # a firewall may forget what is idle, and answers nothing then
}

_CLIENT_OPTIONS = frozenset(
    ("allow_http", "allow_invalid_certificates", "connect_timeout", "http1_only", "http2_only",
     "pool_idle_timeout", "pool_max_idle_per_host", "proxy_ca_certificate", "proxy_excludes",
     "proxy_url", "randomize_addresses", "user_agent")
)  # fmt: skip
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_ENDPOINT_OPTIONS = ("endpoint", "aws_endpoint", "aws_endpoint_url", "aws_endpoint_url_s3")
_KEY_OPTIONS = ("access_key_id", "aws_access_key_id", "skip_signature", "aws_skip_signature")
_SECRET_OPTIONS = ("secret_access_key", "aws_secret_access_key")
_TOKEN_OPTIONS = ("session_token", "aws_session_token", "token", "aws_token")
_BEFORE_PROFILES = ("AWS_ACCESS_KEY_ID", "AWS_SKIP_SIGNATURE", "AWS_WEB_IDENTITY_TOKEN_FILE")
_OF_CONTAINERS = (
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_CREDENTIALS_TTL = timedelta(minutes=5)  # boto3 renews, when asked, what ends within ten


class OpenedStore(NamedTuple):
    """A store, and what each object is written with.

    Attributes:
        store: of obstore.
        attributes: of each object that is put.
        tags: of each object that is put.
    """

    store: ObjectStore
    attributes: dict[str, str]
    tags: dict[str, str]


def is_directory_bucket(container: str) -> bool:
    """Return whether a bucket is one of S3 Express One Zone."""
    return container.startswith("s3://") and container.endswith("--x-s3")


def open_store(
    container: str, options: Mapping[str, str], *, silence_s: float | None = None
) -> OpenedStore:
    """Open a bucket or container; no request is made.

    Args:
        container: its URI, such as `s3://logs`.
        options: see above.
        silence_s: a request that nothing comes of for so long fails; None for no such limit.

    Raises:
        ConfigError: an option is unknown or malformed.
    """
    options = {_folded(name): value for name, value in options.items()}
    attributes: dict[str, str] = {}
    if "storage_class" in options:
        attributes["Storage-Class"] = options["storage_class"]
    tags = {
        name.removeprefix(TAG_PREFIX): value
        for name, value in options.items()
        if name.startswith(TAG_PREFIX)
    }
    client = {name: value for name, value in options.items() if name in _CLIENT_OPTIONS}
    config = {
        name: value
        for name, value in options.items()
        if name not in client and name not in _OWN_OPTIONS and not name.startswith(TAG_PREFIX)
    }
    certificate = options.get("ca_certificate", "")
    credentials: dict[str, Any] = {}
    if container.startswith("s3://"):
        certificate = certificate or os.environ.get("AWS_CA_BUNDLE", "")
        credentials = _aws_credentials(options)
        if is_directory_bucket(container):
            config.setdefault("s3_express", "true")
        _check_endpoint(options)
        if _is_plain_http(options):
            client.setdefault("allow_http", "true")
    if certificate:
        client["root_certificate"] = _text_of(certificate)
    if silence_s is not None:
        client["read_timeout"] = f"{int(silence_s * 1000)}ms"
    try:
        store: Any = from_url(
            container,
            config=cast("Any", config),
            client_options=cast("Any", CLIENT_DEFAULTS | client),
            retry_config={"max_retries": 0},
            **credentials,
        )
    except UnknownConfigurationKeyError as exc:
        raise ConfigError(
            f"storage_options: {explain(exc)} Known are the options of obstore, "
            f"{', '.join(_OWN_OPTIONS)} and {TAG_PREFIX}NAME"
        ) from exc
    except (BaseError, ValueError) as exc:
        problem = explain(exc)
        if certificate and "certificate" in problem:
            problem = f"ca_certificate = {certificate!r}: {problem}"
        raise ConfigError(f"cannot open {container}: {problem}") from exc
    return OpenedStore(store, attributes, tags)


def _folded(name: str) -> str:
    """Fold the name of an option to its form here; that of a tag stays as the user writes it."""
    return name if name.startswith(TAG_PREFIX) else name.lower()


def _check_endpoint(options: Mapping[str, str]) -> None:
    """Refuse an endpoint that would lose: obstore prefers this variable to any option.

    Raises:
        ConfigError: the environment names another one.
    """
    found = os.environ.get(_ENDPOINTS[0], "")
    given = next((options[name] for name in _ENDPOINT_OPTIONS if name in options), found)
    if found and given != found:
        raise ConfigError(
            f"storage_options: endpoint = {given!r}, and {_ENDPOINTS[0]} is {found!r}, which would "
            "be taken: unset the variable, or leave the option out"
        )


def _is_plain_http(options: Mapping[str, str]) -> bool:
    """Return whether the endpoint is written with http://, which nobody does by mistake."""
    given = [options.get(name, "") for name in _ENDPOINT_OPTIONS]
    found = [os.environ.get(name, "") for name in _ENDPOINTS]
    return any(endpoint.startswith("http://") for endpoint in given + found)


def _text_of(path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"ca_certificate = {path!r} cannot be read: {exc}") from exc


def _aws_credentials(options: Mapping[str, str]) -> dict[str, Any]:
    """Make a provider of credentials, where obstore would not find them by itself."""
    permanent = _permanent_keys(options)
    if permanent is not None:
        return {"credential_provider": lambda: permanent}
    profile = options.get("profile")
    if not {*_KEY_OPTIONS}.isdisjoint(options):
        return {}
    if not profile and not {*_BEFORE_PROFILES}.isdisjoint(os.environ):
        return {}
    profile = profile or os.environ.get("AWS_PROFILE")
    if not profile and (not {*_OF_CONTAINERS}.isdisjoint(os.environ) or not _have_files()):
        return {}
    try:
        import boto3  # noqa: PLC0415 - it takes a while, and only profiles need it
        from botocore.exceptions import BotoCoreError  # noqa: PLC0415
        from obstore.auth.boto3 import Boto3CredentialProvider  # noqa: PLC0415
    except ImportError as exc:
        raise ConfigError(f"AWS profiles need boto3: pip install 'memq[s3]' ({exc})") from exc
    try:
        session = boto3.Session(profile_name=profile)
        if not profile and session.get_credentials() is None:
            return {}
        return {"credential_provider": Boto3CredentialProvider(session, ttl=_CREDENTIALS_TTL)}
    except (BotoCoreError, ValueError) as exc:
        raise ConfigError(f"no AWS credentials by profile {profile!r}: {exc}") from exc


def _permanent_keys(options: Mapping[str, str]) -> S3Credential | None:
    """Return the keys among the options, if they have no token; obstore takes that of the
    environment.
    """
    key = next((options[name] for name in _KEY_OPTIONS[:2] if name in options), None)
    secret = next((options[name] for name in _SECRET_OPTIONS if name in options), None)
    if key is None or secret is None or not {*_TOKEN_OPTIONS}.isdisjoint(options):
        return None
    return {
        "access_key_id": key,
        "secret_access_key": secret,
        "token": None,
        "expires_at": None,
    }


def _have_files() -> bool:
    """Return whether there are AWS configuration files, which obstore does not read."""
    files = (
        os.environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
        os.environ.get("AWS_CONFIG_FILE", "~/.aws/config"),
    )
    return any(Path(file).expanduser().exists() for file in files)


# -- what a store says when it refuses -----------------------------------------------------------

MAX_WORDS = 300  # characters of what a store says, in one of our messages

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([^<]+)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]+)</Message>")
_NO_CONTAINER = re.compile(
    "<Code>(NoSuchBucket|ContainerNotFound)</Code>|>The specified bucket does not exist"
)
_HOST = re.compile(r"https?://[^/ ]+")
_PASSING = frozenset(
    ("RequestTimeout", "RequestTimeTooSkewed", "ExpiredToken", "OperationAborted", "SlowDown")
)
_CERTIFICATE = re.compile(r"InvalidCertificate\(\s*(\w+)")
_CAUSE = re.compile(r'"([^"\n]+)"')
_NO_HTTP = re.compile(r"hyper::Error\(\s*Parse\(")
_DEBUG = "\n\nDebug source"


def status_of(exc: BaseException) -> int:
    """HTTP status of the store's answer; 0 when there was none."""
    found = _STATUS.search(str(exc))
    return int(found[1]) if found else 0


def is_past_the_end(exc: BaseException) -> bool:
    """Return whether an object ends before the range that was asked for."""
    return status_of(exc) == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE


def is_not_implemented(exc: BaseException) -> bool:
    """Return whether the store does not know what was asked of it, such as a conditional put."""
    return (
        isinstance(exc, NotSupportedError | NotImplementedError)
        or status_of(exc) == HTTPStatus.NOT_IMPLEMENTED
    )


def is_no_container(exc: BaseException) -> bool:
    """Return whether there is no such bucket: then nothing is known of its objects."""
    return _NO_CONTAINER.search(str(exc)) is not None


def is_refusal(exc: BaseException) -> bool:
    """Return whether the store answered with an error that does not pass by itself."""
    text, status = str(exc), status_of(exc)
    if is_no_container(exc) or "Received redirect" in text:  # as for a bucket of another region
        return True
    code = _CODE.search(text)
    passing = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.CONFLICT, HTTPStatus.TOO_MANY_REQUESTS)
    return (
        HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.INTERNAL_SERVER_ERROR
        and status not in passing
        and (code is None or code[1] not in _PASSING)
    )


def explain(exc: BaseException) -> str:
    """Return the store's own words in one line, without what the libraries add."""
    text, _, debug = str(exc).partition(_DEBUG)
    code, message = _CODE.search(text), _MESSAGE.search(text)
    certificate, causes = _CERTIFICATE.search(debug), _CAUSE.findall(debug.partition("inner:")[2])
    if code is not None:
        words = f"{status_of(exc)} {code[1]}" + (f": {message[1]}" if message else "")
    elif certificate is not None:
        words = f"its certificate is not trusted ({certificate[1]})"
    elif _NO_HTTP.search(debug):
        words = f"{_host(text)} does not answer with HTTP, as a port that wants https://"
    elif "TimedOut" in debug:
        words = f"{_host(text)} did not answer in time"
    elif causes and not status_of(exc):  # "error sending request" says less than why
        words = f"{': '.join(causes)} ({_host(text)})"
    else:
        words = text.rpartition(" - ")[2]
    return " ".join(words.split())[:MAX_WORDS] or type(exc).__name__


def _host(text: str) -> str:
    """Whom the request was made to: the store, or who gives credentials for it."""
    found = _HOST.search(text)
    return found[0] if found else "the store"
