"""The proxy between S3 clients and servers, with clients and a server of the standard library."""

from __future__ import annotations

import errno
import http.client
import threading
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from xml.etree import ElementTree as ET

import pytest

from tests.harness.services.http_faults import (
    SLOW_DOWN,
    Hang,
    HttpFaultProxy,
    LoseAnswer,
    Rule,
)

TIMEOUT_S = 30.0  # of what comes; a backstop
SILENCE_S = 0.2  # without a byte, when none may come
BODY = bytes(range(256)) * 16


class Handler(BaseHTTPRequestHandler):
    """Keeps objects."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self):
        super().setup()
        self.server.accepted += 1

    def do_PUT(self):
        self.server.objects[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        return self.answer(200, headers={"ETag": '"1"'})

    def do_GET(self):
        body = self.server.objects.get(self.path, b"")
        self.answer(200 if body else 404, body)

    def answer(self, code, body=b"", headers=()):
        self.send_response(code)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = False  # so that closing waits for them

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects = {"/a": BODY}
        self.accepted = 0

    def handle_error(self, *_):
        """Connections break here: that is no news."""


@pytest.fixture
def server():
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def proxy(server):
    with HttpFaultProxy("127.0.0.1", server.server_port, seed=7) as proxy:
        yield proxy


@pytest.fixture
def client(proxy):
    with closing(client_of(proxy)) as client:
        yield client


def client_of(proxy, timeout_s=TIMEOUT_S):
    return http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=timeout_s)


def call(client, method, path, body=None):
    client.request(method, path, body)
    with client.getresponse() as answer:
        return answer.status, answer.read()


def call_once(proxy, method, path, body=None):
    with closing(client_of(proxy)) as client:
        return call(client, method, path, body)


@contextmanager
def is_reset():
    """The connection ends with a RST, not merely by closing."""
    with pytest.raises(ConnectionError) as raised:
        yield
    assert raised.value.errno in (errno.ECONNRESET, errno.EPIPE)


# -- faults ------------------------------------------------------------------------------------


def test_a_status_is_answered_without_the_server(server, proxy, client):
    """The client gets the planned answer as often as planned; the server hears nothing of it."""
    rule = proxy.add(Rule(SLOW_DOWN, method="PUT", times=2))
    for _ in range(2):
        client.request("PUT", "/s", BODY)
        with client.getresponse() as answer:
            assert (answer.status, answer.reason) == (503, "Service Unavailable")
            assert answer.headers["Content-Type"] == "application/xml"
            assert ET.fromstring(answer.read()).findtext("Code") == "SlowDown"  # noqa: S314 - ours
    assert server.accepted == 0
    assert call(client, "PUT", "/s", BODY)[0] == 200
    assert server.objects["/s"] == BODY
    assert proxy.struck[rule] == 2


def test_a_request_that_hangs_goes_on_when_it_is_released(server, proxy, client):
    """All of it is read, nothing answered and nothing stored, until it is released."""
    rule = proxy.add(Rule(Hang()))
    client.request("PUT", "/h", bytes(3 << 20))
    proxy.wait_struck(rule)
    client.sock.settimeout(SILENCE_S)
    with pytest.raises(TimeoutError):
        client.sock.recv(1)
    client.sock.settimeout(TIMEOUT_S)
    assert "/h" not in server.objects
    proxy.release()
    with client.getresponse() as answer:
        assert answer.status == 200
    assert server.objects["/h"] == bytes(3 << 20)


def test_a_lost_answer_is_that_of_an_object_that_was_stored(server, proxy):
    """The server has stored the object and answered; the client sees a reset."""
    rule = proxy.add(Rule(LoseAnswer(), method="PUT"))
    with is_reset():
        call_once(proxy, "PUT", "/l", BODY)
    assert proxy.struck[rule] == 1
    assert server.objects["/l"] == BODY
    assert call_once(proxy, "GET", "/l") == (200, BODY)


# -- rules -------------------------------------------------------------------------------------


def test_chance_comes_from_the_seed(server):
    """The same seed strikes the same requests, and another one others."""

    def struck(seed):
        with (
            HttpFaultProxy("127.0.0.1", server.server_port, seed=seed) as proxy,
            closing(client_of(proxy)) as client,
        ):
            proxy.add(Rule(SLOW_DOWN, times=None, probability=0.5))
            return [call(client, "GET", "/a")[0] for _ in range(40)]

    assert struck(1) == struck(1) != struck(2)
    assert set(struck(1)) == {200, 503}
