"""The proxy between clients and a service of bytes, with an echo server of the standard library."""

from __future__ import annotations

import errno
import hashlib
import random
import socket
import socketserver
import threading
from contextlib import closing, contextmanager

import pytest

from tests.harness.services.tcp_faults import TcpFaultProxy

TIMEOUT_S = 30.0  # of what comes; a backstop
SILENCE_S = 0.2  # without a byte, when none may come
LARGE_BYTES = 16 << 20


class Handler(socketserver.BaseRequestHandler):
    """Sends back what comes, and tells the test of it."""

    def handle(self):
        self.request.settimeout(TIMEOUT_S)
        try:
            while data := self.request.recv(64 << 10):
                self.server.received += len(data)
                self.server.came.release()
                self.request.sendall(data)
        except ConnectionError:
            self.server.resets.release()


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.received = 0
        self.came = threading.Semaphore(0)
        self.resets = threading.Semaphore(0)


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
    with TcpFaultProxy(server.server_address) as proxy:
        yield proxy


@pytest.fixture
def client(proxy):
    with connected(proxy) as client:
        yield client


def connected(proxy):
    return socket.create_connection(("127.0.0.1", proxy.port), TIMEOUT_S)


def receive(client, length):
    data = b""
    while len(data) < length and (more := client.recv(length - len(data))):
        data += more
    return data


def echo(client, data):
    client.sendall(data)
    return receive(client, len(data))


@contextmanager
def is_reset():
    """The connection ends with a RST, not merely by closing."""
    with pytest.raises(ConnectionError) as raised:
        yield
    assert raised.value.errno in (errno.ECONNRESET, errno.EPIPE)


def assert_silent(client):
    client.settimeout(SILENCE_S)
    with pytest.raises(TimeoutError):
        client.recv(1)
    client.settimeout(TIMEOUT_S)


def test_much_passes_in_order(proxy, server):
    """16 MiB come back as they were sent, also with a delay and a freeze on the way."""
    data = random.Random(1).randbytes(LARGE_BYTES)
    with connected(proxy) as client:
        sender = threading.Thread(target=client.sendall, args=(data,))
        sender.start()
        assert server.came.acquire(timeout=TIMEOUT_S)
        proxy.delay(0.02)
        proxy.freeze()
        proxy.thaw()
        back = hashlib.sha256()
        left_bytes = LARGE_BYTES
        while left_bytes:
            piece = client.recv(1 << 20)
            assert piece
            left_bytes -= len(piece)
            back.update(piece)
        sender.join()
    assert back.digest() == hashlib.sha256(data).digest()


def test_refused_connections_are_served_again_after_restore(proxy, client):
    """Open connections are reset, new ones refused, at a port that stays the proxy's own."""
    assert echo(client, b"one") == b"one"
    port = proxy.port
    proxy.refuse()
    with is_reset():
        client.recv(1)
    with pytest.raises(ConnectionRefusedError):
        connected(proxy)
    with closing(socket.socket()) as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    proxy.restore()
    assert proxy.port == port
    with connected(proxy) as again:
        assert echo(again, b"two") == b"two"


def test_a_freeze_stops_everything_and_loses_nothing(server, proxy, client):
    """Bytes stop on old connections and new ones; after the thaw all of them arrive, in order."""
    assert echo(client, b"one") == b"one"
    assert server.came.acquire(timeout=TIMEOUT_S)
    proxy.freeze()
    with connected(proxy) as new:
        new.sendall(b"new")
        client.sendall(b"two")
        assert_silent(client)
        client.sendall(b"three")
        assert_silent(new)
        assert server.received == 3
        proxy.thaw()
        assert receive(client, 8) == b"twothree"
        assert receive(new, 3) == b"new"
