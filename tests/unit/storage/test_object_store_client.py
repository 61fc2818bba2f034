"""What the client of an object store is opened with, and with which credentials of AWS."""

import os
import re
from types import SimpleNamespace

import pytest
from obstore.exceptions import GenericError

from memq.errors import ConfigError
from memq.storage import object_store_client
from memq.storage.object_store_client import (
    CLIENT_DEFAULTS,
    MAX_WORDS,
    explain,
    is_refusal,
    open_store,
)

KEYS = {"access_key_id": "given", "secret_access_key": "given"}
TEMPORARY = KEYS | {"session_token": "given"}


@pytest.fixture(autouse=True)
def _environment(monkeypatch, tmp_path):
    """A machine with a profile `logs`, and nothing else."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    files = tmp_path / "credentials"
    files.write_text("[logs]\naws_access_key_id = of logs\naws_secret_access_key = of logs\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(files))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def opened(monkeypatch):
    """What each client was opened with."""
    found = []

    def from_url(url, **options):
        found.append(SimpleNamespace(url=url, **options))
        return object()

    monkeypatch.setattr(object_store_client, "from_url", from_url)
    return found


def test_each_option_goes_where_it_belongs(opened):
    """In whatever case, but for tags; each request is made once, and has more time than ours."""
    options = {
        "REGION": "eu",
        "Connect_Timeout": "9s",
        "Storage_Class": "IA",
        "tag.Team A": "x",
        "tag.b": "",
        "Proxy_URL": "http://proxy",
    }
    store = open_store("s3://bucket", options | KEYS)
    (client,) = opened
    assert client.config == {"region": "eu"} | KEYS
    assert client.client_options == CLIENT_DEFAULTS | {
        "connect_timeout": "9s",
        "proxy_url": "http://proxy",
    }
    assert store.attributes == {"Storage-Class": "IA"}
    assert store.tags == {"Team A": "x", "b": ""}
    assert client.retry_config == {"max_retries": 0}
    assert open_store("s3://bucket", {})[1:] == ({}, {})


@pytest.mark.parametrize(
    ("container", "option", "variable", "trusted"),
    [
        ("s3://b", None, None, None),
        ("s3://b", "one", None, "one"),
        ("s3://b", None, "two", "two"),
        ("s3://b", "one", "two", "one"),
        ("gs://b", "one", "two", "one"),
        ("gs://b", None, "two", None),
    ],
)
def test_a_private_authority_is_trusted_where_it_is_named(
    *, opened, monkeypatch, tmp_path, container, option, variable, trusted
):
    """An option comes before the variable, which is that of one cloud."""
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
    if variable:
        monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / variable))
    open_store(container, {"ca_certificate": str(tmp_path / option)} if option else {})
    assert opened[0].client_options.get("root_certificate") == trusted
    assert "ca_certificate" not in opened[0].config


def keys_of(options):
    """Key and session token that requests are signed with."""
    store = open_store("s3://bucket", options).store
    if store.credential_provider is None:
        return store.config["access_key_id"], store.config.get("session_token")
    found = store.credential_provider()
    return found["access_key_id"], found["token"]


@pytest.mark.parametrize("options", [KEYS, TEMPORARY])
def test_keys_that_are_given_are_used(monkeypatch, options):
    """They win over the keys, the token and the profile of the environment."""
    expected = ("given", options.get("session_token"))
    assert keys_of(options) == expected
    monkeypatch.setenv("AWS_PROFILE", "logs")
    assert keys_of(options) == expected
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of the machine")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of the machine")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of the machine")
    assert keys_of(options) == expected
    assert keys_of({f"AWS_{name.upper()}": value for name, value in options.items()}) == expected


def test_a_profile_that_is_given_is_used(monkeypatch):
    """The option `profile` counts before keys in the environment, as `--profile` of AWS does."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of the machine")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of the machine")
    assert keys_of({"profile": "logs"}) == ("of logs", None)
    assert keys_of({"Profile": "logs"}) == ("of logs", None)


def test_the_profile_of_the_environment(monkeypatch):
    """`AWS_PROFILE` counts after keys in the environment, and before the role of a container."""
    monkeypatch.setenv("AWS_PROFILE", "logs")
    assert keys_of({}) == ("of logs", None)
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/of-the-container")
    assert keys_of({}) == ("of logs", None)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of the machine")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of the machine")
    assert open_store("s3://bucket", {}).store.credential_provider is None  # obstore finds the keys


@pytest.mark.parametrize("name", ["endpoint", "AWS_ENDPOINT_URL"])
def test_an_endpoint_that_the_environment_would_override_is_refused(opened, monkeypatch, name):
    """Objects never go to another store than the one that is configured."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://other")

    with pytest.raises(
        ConfigError, match=r"'http://s3', and AWS_ENDPOINT_URL_S3 is 'http://other'"
    ):
        open_store("s3://bucket", {name: "http://s3"})
    open_store("s3://bucket", {name: "http://other"})
    open_store("s3://bucket", {})
    open_store("gs://bucket", {})
    assert len(opened) == 3


PEM = "-----BEGIN CERTIFICATE-----\nbm9uZQ==\n-----END CERTIFICATE-----\n"


@pytest.mark.parametrize("text", [None, "no certificate", PEM], ids=["no file", "no PEM", "no DER"])
def test_a_certificate_that_cannot_be_read_is_named(tmp_path, text):
    """A file that is not there, or has no certificate, is an error of the configuration."""
    path = tmp_path / "ca.pem"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(f"ca_certificate = {str(path)!r}")):
        open_store("s3://bucket", {"ca_certificate": str(path)})


# -- what a store says when it refuses -----------------------------------------------------------


def said(status, code="", message="", kind=GenericError):
    """An answer with a status, as the client library shows it."""
    body = f"<Error><Code>{code}</Code>" * bool(code) + f"<Message>{message}</Message>" * bool(
        message
    )
    return kind(f"Generic S3 error: Server returned non-2xx status code: {status}: {body}")


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        (said(400), True),
        (said(400, "RequestTimeout"), False),
        (said(403, "AccessDenied"), True),
        (said(404, "NoSuchKey", kind=FileNotFoundError), True),
        (said(404, "NoSuchBucket"), True),
        (said(408), False),
        (said(301, "PermanentRedirect"), True),
        (GenericError("Received redirect without LOCATION, from another region"), True),
        (said(500, "NoSuchBucket"), True),
        (said(503, "SlowDown"), False),
        (GenericError("error sending request"), False),
        (TimeoutError(), False),
    ],
    ids=str,
)
def test_a_refusal_is_an_answer_that_does_not_pass(error, refused):
    """What the store will say again the next time, and not that it is busy, late or away."""
    assert is_refusal(error) is refused


DEBUG = (
    "Generic S3 error: error sending request\n\nDebug source: HttpError { url: https://s3:9000/b/k"
)
"""How an error begins that has no answer of the store."""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (str(said(503, "SlowDown", "Reduce\nyour rate.")), "503 SlowDown: Reduce your rate."),
        (
            f"Get https://s3:9000/b/k{DEBUG}, inner: InvalidCertificate( UnknownIssuer)",
            "its certificate is not trusted (UnknownIssuer)",
        ),
        (
            f"Get http://s3:9000/b/k{DEBUG}, inner: hyper::Error( Parse(Version))",
            "http://s3:9000 does not answer with HTTP, as a port that wants https://",
        ),
        (
            f'Get http://s3:9000/b{DEBUG}, inner: ConnectError("tcp", "refused")',
            "tcp: refused (http://s3:9000)",
        ),
        ("x" * 999, "x" * MAX_WORDS),
    ],
)
def test_errors_are_told_in_the_words_of_the_store(text, words):
    """In one line; or why there was no answer, and of whom."""
    assert explain(GenericError(text)) == words
