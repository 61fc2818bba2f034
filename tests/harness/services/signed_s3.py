"""An S3-compatible server that is as strict as AWS about who asks: signatures, sessions, policies.

S3Proxy knows one key, which may do everything. This one speaks AssumeRole as well: what a session
may do is what both its role and its own policy allow, until it ends. Objects are files below a
folder, `bucket/key`. Of S3 it has what brokers and readers use.

What is not plainly allowed is refused, and what it does not know of IAM is an error:

- no or a wrong signature, an unknown key, a session without its token, or one that has ended;
- an object that is not there, for who may not list: 403, as for one that may not be read.
"""

import hashlib
import hmac
import json
import os
import re
import secrets
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qsl, quote, unquote, urlsplit
from xml.sax.saxutils import escape

REGION = "eu-test-1"
ROLE = "arn:aws:iam::123456789012:role/memq-readers"
MAX_POLICY_CHARACTERS = 2048
DURATIONS_S = (900, 43_200)
CLOCKS_S = 900.0  # by how much a request's clock may differ
PAGE = 1000

_SIGNED = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<key>[^/]+)/(?P<scope>(?P<day>\d{8})/(?P<region>[^/]+)/"
    r"(?P<service>[^/]+)/aws4_request), ?SignedHeaders=(?P<headers>[^,]+), ?"
    r"Signature=(?P<signature>[0-9a-f]{64})"
)


class Refused(Exception):  # noqa: N818 - an answer, not a fault
    """An answer with an error."""

    def __init__(self, status: int, code: str, message: str = "") -> None:
        super().__init__(code)
        self.status, self.code, self.message = status, code, message or code


class Identity(NamedTuple):
    """A key that the server knows.

    Attributes:
        secret: to sign with.
        token: that a session must send.
        policies: all of which must allow; none for the owner.
        ends_s: of a session, since 1970 UTC.
        name: of a session.
    """

    secret: str
    token: str = ""
    policies: tuple[Mapping[str, Any], ...] = ()
    ends_s: float = float("inf")
    name: str = ""


class SignedS3:
    """The server, on a free port of the loopback. Use it with `with`.

    Args:
        folder: of the objects.
        session_s: how long sessions last, whatever is asked for; None for what is asked for.

    Attributes:
        access_key, secret_key: of the owner, who may do everything.
        role_policy: what `ROLE` may do.
        sessions: made so far, by the name of the session.
        refusals: so far, by code.
        sts_fails: nobody is given a session.
    """

    def __init__(self, folder: Path, *, session_s: float | None = None) -> None:
        self.folder = folder
        self.session_s = session_s
        self.access_key, self.secret_key = "AKIAOWNER", secrets.token_urlsafe(24)
        self.role_policy: dict[str, Any] = {
            "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]
        }
        self.sessions: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.sts_fails = False
        self._identities = {self.access_key: Identity(self.secret_key)}
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _handler_of(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def endpoint(self) -> str:
        """URL of S3 and of STS."""
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def place(self) -> dict[str, str]:
        """Options of a storage that say where it is, and not who asks."""
        return {"endpoint": self.endpoint, "region": REGION}

    @property
    def owner(self) -> dict[str, str]:
        """Options of a storage for who may do everything."""
        return self.place | {
            "access_key_id": self.access_key,
            "secret_access_key": self.secret_key,
        }

    def make_bucket(self, name: str) -> None:
        """Make an empty bucket."""
        (self.folder / name).mkdir(parents=True)

    # -- who asks -----------------------------------------------------------------------

    def identity(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes
    ) -> Identity:
        """Return who has signed a request.

        Raises:
            Refused: nobody that it knows.
        """
        signed = _SIGNED.fullmatch(headers.get("authorization", ""))
        if signed is None:
            raise Refused(403, "AccessDenied", "Anonymous access is forbidden")
        identity = self._identities.get(signed["key"])
        if identity is None:
            raise Refused(403, "InvalidAccessKeyId")
        self._check_payload(signed, headers, body)
        names = signed["headers"].split(";")
        if "host" not in names or (identity.token and "x-amz-security-token" not in names):
            raise Refused(403, "AccessDenied", "headers are not signed")
        parts = urlsplit(target)
        pairs = parse_qsl(parts.query, keep_blank_values=True)
        query = "&".join(sorted(f"{_quoted(name)}={_quoted(value)}" for name, value in pairs))
        payload = headers.get("x-amz-content-sha256", hashlib.sha256(body).hexdigest())
        lines = [f"{name}:{' '.join(headers.get(name, '').split())}" for name in names]
        canonical = [method, parts.path, query, *lines, "", signed["headers"], payload]
        digest = hashlib.sha256("\n".join(canonical).encode()).hexdigest()
        text = f"AWS4-HMAC-SHA256\n{headers['x-amz-date']}\n{signed['scope']}\n{digest}"
        key = f"AWS4{identity.secret}".encode()
        for part in (*signed["scope"].split("/"), text):
            key = hmac.digest(key, part.encode(), "sha256")
        if not hmac.compare_digest(key.hex(), signed["signature"]):
            raise Refused(403, "SignatureDoesNotMatch")
        if headers.get("x-amz-security-token", "") != identity.token:
            raise Refused(403, "InvalidClientTokenId", "the token is missing, or another's")
        if time.time() >= identity.ends_s:
            raise Refused(400, "ExpiredToken", "The provided token has expired.")
        return identity

    def _check_payload(
        self, signed: re.Match[str], headers: Mapping[str, str], body: bytes
    ) -> None:
        sent = headers.get("x-amz-content-sha256")
        if sent not in (None, "UNSIGNED-PAYLOAD", hashlib.sha256(body).hexdigest()):
            raise Refused(400, "XAmzContentSHA256Mismatch")
        when = datetime.strptime(headers["x-amz-date"], "%Y%m%dT%H%M%S%z").timestamp()
        if abs(when - time.time()) > CLOCKS_S or not headers["x-amz-date"].startswith(
            signed["day"]
        ):
            raise Refused(403, "RequestTimeTooSkewed")
        if signed["region"] != REGION:
            raise Refused(400, "AuthorizationHeaderMalformed", f"expecting {REGION!r}")

    def assume_role(self, asking: Identity, form: Mapping[str, str]) -> bytes:
        """Make a session, as STS does."""
        if self.sts_fails:
            raise Refused(503, "ServiceUnavailable")
        policy, duration_s = form.get("Policy", ""), float(form.get("DurationSeconds", "3600"))
        if form.get("Action") != "AssumeRole" or asking.policies or form.get("RoleArn") != ROLE:
            raise Refused(403, "AccessDenied", "is not authorized to perform: sts:AssumeRole")
        if not re.fullmatch(r"[\w+=,.@-]{2,64}", form["RoleSessionName"], re.ASCII):
            raise Refused(400, "ValidationError", "roleSessionName")
        if len(policy) > MAX_POLICY_CHARACTERS:
            raise Refused(400, "PackedPolicyTooLarge")
        if not DURATIONS_S[0] <= duration_s <= DURATIONS_S[1]:
            raise Refused(400, "ValidationError", "durationSeconds")
        ends_s = time.time() + (duration_s if self.session_s is None else self.session_s)
        policies = (self.role_policy, *([json.loads(policy)] if policy else []))
        key, name = f"ASIA{secrets.token_hex(8).upper()}", form["RoleSessionName"]
        made = Identity(
            secrets.token_urlsafe(30), secrets.token_urlsafe(90), policies, ends_s, name
        )
        with self._lock:
            self._identities[key] = made
            self.sessions[name] += 1
        ends = datetime.fromtimestamp(ends_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return (
            '<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">'
            f"<AssumeRoleResult><Credentials><AccessKeyId>{key}</AccessKeyId>"
            f"<SecretAccessKey>{made.secret}</SecretAccessKey>"
            f"<SessionToken>{made.token}</SessionToken><Expiration>{ends}</Expiration>"
            "</Credentials></AssumeRoleResult></AssumeRoleResponse>"
        ).encode()

    def refused(self, error: Refused) -> None:
        """Count it."""
        with self._lock:
            self.refusals[error.code] += 1


def allows(policy: Mapping[str, Any], action: str, resource: str, prefix: str | None) -> bool:
    """Whether a policy allows something: an allowance is needed, and a denial wins."""
    found = set()
    for statement in policy["Statement"]:
        conditions = statement.get("Condition", {})
        if statement.keys() - {"Effect", "Action", "Resource", "Condition", "Sid"}:
            raise Refused(400, "MalformedPolicy", str(sorted(statement)))
        if not _any_matches(statement["Action"], action, re.IGNORECASE):
            continue
        if not _any_matches(statement["Resource"], resource):
            continue
        if conditions:
            if {**conditions}.keys() != {"StringLike"} or {*conditions["StringLike"]} != {
                "s3:prefix"
            }:
                raise Refused(400, "MalformedPolicy", str(conditions))
            if prefix is None or not _any_matches(conditions["StringLike"]["s3:prefix"], prefix):
                continue
        found.add(statement["Effect"])
    return found == {"Allow"}


def _any_matches(patterns: str | list[str], text: str, flags: int = 0) -> bool:
    listed = [patterns] if isinstance(patterns, str) else patterns
    return any(
        re.fullmatch(re.escape(each).replace(r"\*", ".*").replace(r"\?", "."), text, flags)
        for each in listed
    )


def _quoted(text: str) -> str:
    return quote(text, safe="-_.~")


# -- HTTP ---------------------------------------------------------------------------------


class _Server(ThreadingHTTPServer):
    request_queue_size = 128  # a broker lists by many connections at once

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that has hung up."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def _handler_of(store: SignedS3) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, *_: object) -> None:
            """Say nothing."""

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", "0")))
            headers = {name.lower(): value for name, value in self.headers.items()}
            try:
                identity = store.identity(self.command, self.path, headers, body)
                answer = self._answer(identity, headers, body)
            except Refused as exc:
                store.refused(exc)
                said = f"<Code>{exc.code}</Code><Message>{escape(exc.message)}</Message>"
                wrapped = f"<Error>{said}</Error>"
                if headers.get("content-type", "").startswith("application/x-www-form"):
                    wrapped = f"<ErrorResponse><Error>{said}</Error></ErrorResponse>"
                answer = (exc.status, {"content-type": "application/xml"}, wrapped.encode())
            status, more, content = answer
            self.send_response(status)
            for name, value in ({"content-length": str(len(content))} | more).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve  # noqa: N815 - as it is called

        def _answer(
            self, identity: Identity, headers: Mapping[str, str], body: bytes
        ) -> tuple[int, dict[str, str], bytes]:
            parts = urlsplit(self.path)
            bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
            query = dict(parse_qsl(parts.query, keep_blank_values=True))
            xml = {"content-type": "application/xml"}
            if not bucket:
                form = dict(parse_qsl(body.decode()))
                return 200, {"content-type": "text/xml"}, store.assume_role(identity, form)
            if not (store.folder / bucket).is_dir():
                raise Refused(404, "NoSuchBucket", "The specified bucket does not exist")

            def may(action: str, name: str = "", prefix: str | None = None) -> bool:
                resource = f"arn:aws:s3:::{bucket}" + (f"/{name}" if name else "")
                return all(allows(each, action, resource, prefix) for each in identity.policies)

            def check(action: str, name: str = "", prefix: str | None = None) -> None:
                if not may(action, name, prefix):
                    raise Refused(403, "AccessDenied", f"not authorized to perform: {action}")

            if not key and self.command == "GET":
                check("s3:ListBucket", prefix=query.get("prefix", ""))
                return 200, xml, _listing(store.folder / bucket, query)
            if not key and self.command == "POST" and "delete" in query:
                names = [unquote(each) for each in re.findall("<Key>([^<]+)</Key>", body.decode())]
                for name in names:
                    check("s3:DeleteObject", name)
                    (store.folder / bucket / name).unlink(missing_ok=True)
                return 200, xml, b"<DeleteResult></DeleteResult>"
            path = store.folder / bucket / key
            match self.command:
                case "PUT":
                    check("s3:PutObject", key)
                    return _put(path, body, once=headers.get("if-none-match") == "*")
                case "DELETE":
                    check("s3:DeleteObject", key)
                    path.unlink(missing_ok=True)
                    return 204, {}, b""
                case "GET" | "HEAD":
                    check("s3:GetObject", key)
                    if not path.is_file():
                        check("s3:ListBucket")  # or it does not say
                        raise Refused(404, "NoSuchKey", "The specified key does not exist.")
                    return _get(path, headers.get("range", ""), head=self.command == "HEAD")
            raise Refused(405, "MethodNotAllowed")

    return Handler


def _etag(content: bytes) -> str:
    return f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'


def _put(path: Path, body: bytes, *, once: bool) -> tuple[int, dict[str, str], bytes]:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{secrets.token_hex(8)}.unfinished")
    unfinished.write_bytes(body)
    try:
        if once:
            os.link(unfinished, path)
            unfinished.unlink()
        else:
            unfinished.replace(path)
    except FileExistsError as exc:
        unfinished.unlink()
        raise Refused(412, "PreconditionFailed") from exc
    return 200, {"etag": _etag(body)}, b""


def _get(path: Path, wanted: str, *, head: bool) -> tuple[int, dict[str, str], bytes]:
    content = path.read_bytes()
    modified = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    more = {
        "etag": _etag(content),
        "last-modified": modified.strftime("%a, %d %b %Y %H:%M:%S GMT"),
        "accept-ranges": "bytes",
    }
    if head:
        return 200, more | {"content-length": str(len(content))}, b""
    if not (found := re.fullmatch(r"bytes=(\d+)-(\d*)", wanted)):
        return 200, more, content
    first, last = int(found[1]), min(int(found[2] or len(content) - 1), len(content) - 1)
    if first > last:
        raise Refused(416, "InvalidRange")
    more["content-range"] = f"bytes {first}-{last}/{len(content)}"
    return 206, more, content[first : last + 1]


def _listing(folder: Path, query: Mapping[str, str]) -> bytes:
    prefix, after = query.get("prefix", ""), query.get("start-after", "")
    after = query.get("continuation-token", after)
    start = folder / prefix.rpartition("/")[0]
    names = sorted(
        str(path.relative_to(folder))
        for path in (start.rglob("*") if start.is_dir() else ())
        if path.is_file() and not path.name.endswith(".unfinished")
    )
    names = [name for name in names if name.startswith(prefix) and name > after]
    page, more = names[: int(query.get("max-keys", PAGE))], len(names) > PAGE
    rows = ""
    for name in page:
        stat = (folder / name).stat()
        modified = datetime.fromtimestamp(stat.st_mtime, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
        rows += (
            f"<Contents><Key>{escape(name)}</Key><LastModified>{modified}</LastModified>"
            f"<Size>{stat.st_size}</Size></Contents>"
        )
    token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
    return (
        f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{token}{rows}"
        "</ListBucketResult>"
    ).encode()
