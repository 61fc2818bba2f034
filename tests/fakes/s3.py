"""A server that speaks as much of S3 as objects take, and refuses on demand."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

from botocore.loaders import JSONFileLoader

PAGE = 10  # keys that a list has at a time
_read_model = JSONFileLoader.load_file
_ERROR = "<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message></Error>"


class S3:
    """Objects by path (`/bucket/key`), and what is refused: HTTP status and code by path.

    Attributes:
        url: of the endpoint.
        objects: what is stored.
        refused: what is not answered with an object.
        closing: what is refused likewise once it was written.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.refused: dict[str, tuple[int, str]] = {}
        self.closing: dict[str, tuple[int, str]] = {}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                outer.answer(self)

            do_GET = answer  # noqa: N815 - http.server calls them so
            do_PUT = answer  # noqa: N815 - likewise
            do_DELETE = answer  # noqa: N815 - likewise

            def log_message(self, *_: object) -> None:
                """Be quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        address = urlsplit(request.path)
        path = unquote(address.path)
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        asked = {name: values[0] for name, values in parse_qs(address.query).items()}
        status, payload = self._do(request.command, path, body, asked)
        _, _, last = (request.headers.get("Range") or "").partition("=-")
        if status == 200 and last:
            status, payload = 206, payload[-int(last) :]
        request.send_response(status)
        request.send_header("Content-Length", str(len(payload)))
        request.end_headers()
        request.wfile.write(payload)

    def _do(self, command: str, path: str, body: bytes, asked: dict[str, str]) -> tuple[int, bytes]:
        if path in self.refused:
            status, code = self.refused[path]
            return status, _ERROR.format(code=code).encode()
        if command == "PUT":
            self.objects[path] = body
            self.refused |= {path: self.closing[path]} if path in self.closing else {}
            return 200, b""
        if command == "DELETE":
            self.objects.pop(path, None)
            return 204, b""
        if "list-type" in asked:
            return 200, self._list(f"{path}/", asked)
        if path not in self.objects:
            return 404, _ERROR.format(code="NoSuchKey").encode()
        return 200, self.objects[path]

    def _list(self, bucket: str, asked: dict[str, str]) -> bytes:
        prefix = asked["prefix"]
        begin = asked.get("continuation-token") or asked.get("start-after", "")
        keys = sorted(path.removeprefix(bucket) for path in self.objects)
        keys = [key for key in keys if key.startswith(prefix) and key > begin]
        keys = [key for key in keys if "/" not in key.removeprefix(prefix)]
        found = "".join(f"<Contents><Key>{key}</Key></Contents>" for key in keys[:PAGE])
        more = len(keys) > PAGE
        token = f"<NextContinuationToken>{keys[PAGE - 1]}</NextContinuationToken>" if more else ""
        return (
            f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{token}{found}"
            "</ListBucketResult>"
        ).encode()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@cache
def _kept_model(path):
    return _read_model(JSONFileLoader(), path)


@contextmanager
def s3_for(monkeypatch):
    """A server, and an environment in which boto3 finds it and tries once.

    Each task makes a client of its own; what boto3 reads from its files for one is kept.
    """
    server = S3()
    monkeypatch.setattr(JSONFileLoader, "load_file", lambda _, path: _kept_model(path))
    for name in ("AWS_PROFILE", "AIRFLOW_CONN_AWS_DEFAULT"):
        monkeypatch.delenv(name, raising=False)
    settings = {
        "AWS_ENDPOINT_URL": server.url,
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "eu-west-1",
        "AWS_MAX_ATTEMPTS": "1",
        "NO_PROXY": "127.0.0.1",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    try:
        yield server
    finally:
        server.close()
