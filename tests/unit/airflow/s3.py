"""A server that speaks as much of S3 as objects take, and refuses on demand."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

_ERROR = "<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message></Error>"


class S3:
    """Objects by path (`/bucket/key`), and what is refused: HTTP status and code by path.

    Attributes:
        url: of the endpoint.
        objects: what is stored.
        refused: what is not answered with an object.
        closing: what is refused likewise once it was written.
        requests: what was asked, such as `GET /bucket/key`.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.refused: dict[str, tuple[int, str]] = {}
        self.closing: dict[str, tuple[int, str]] = {}
        self.requests: list[str] = []
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
        path = unquote(request.path.partition("?")[0])
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        self.requests.append(f"{request.command} {path}")
        status, payload = self._do(request.command, path, body)
        request.send_response(status)
        request.send_header("Content-Length", str(len(payload)))
        request.end_headers()
        request.wfile.write(payload)

    def _do(self, command: str, path: str, body: bytes) -> tuple[int, bytes]:
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
        if path not in self.objects:
            return 404, _ERROR.format(code="NoSuchKey").encode()
        return 200, self.objects[path]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def s3_for(monkeypatch):
    """A server, and an environment in which boto3 finds it and tries once."""
    server = S3()
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
