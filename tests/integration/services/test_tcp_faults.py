"""The proxy between clients and a service of bytes, with an echo server of the standard library."""

from __future__ import annotations

import errno
import hashlib
import random
import socket
import socketserver
import threading
import time
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


def test_bytes_pass_both_ways(proxy, client):
    """What one side sends reaches the other, on every connection for itself."""
    assert echo(client, b"one") == b"one"
    with connected(proxy) as other:
        assert echo(other, b"two") == b"two"
        assert echo(client, b"three") == b"three"
        assert proxy.connections == 2


def test_a_half_closed_connection_passes_the_rest(client):
    """A client that sends no more still receives everything, and then the end."""
    client.sendall(b"all")
    client.shutdown(socket.SHUT_WR)
    assert receive(client, 100) == b"all"


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


def test_a_sender_waits_for_a_receiver_that_does_not_read(proxy, client):
    """While nothing is passed on, the sender is stopped before the proxy holds much."""
    proxy.freeze("to_upstream")
    client.settimeout(SILENCE_S)
    sent_bytes = 0
    with pytest.raises(TimeoutError):
        while sent_bytes < 64 << 20:
            sent_bytes += client.send(bytes(1 << 20))


def test_the_port_is_known_before_the_service_exists():
    """Without a service connections are reset; once it is named they are served, at that port."""
    with TcpFaultProxy() as proxy:
        address = proxy.address
        with is_reset(), connected(proxy) as early:
            early.sendall(b"?")
            early.recv(1)
        with Server() as server:
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            proxy.upstream = server.server_address
            with connected(proxy) as client:
                assert echo(client, b"now") == b"now"
            server.shutdown()
            thread.join()
        with is_reset(), connected(proxy) as late:  # the service is gone
            late.sendall(b"?")
            late.recv(1)
        assert proxy.address == address


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


def test_a_reset_breaks_present_connections_only(server, proxy, client):
    """Both ends of each connection see a reset; new connections are served."""
    assert echo(client, b"one") == b"one"
    with connected(proxy) as other:
        assert echo(other, b"one") == b"one"
        proxy.reset()
        for broken in (client, other):
            with is_reset():
                broken.recv(1)
    for _ in range(2):
        assert server.resets.acquire(timeout=TIMEOUT_S)
    with connected(proxy) as new:
        assert echo(new, b"two") == b"two"


def test_a_reset_of_one_side_reaches_the_other(server, client):
    """A client that resets its connection has the service see a reset."""
    assert echo(client, b"one") == b"one"
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.close()
    assert server.resets.acquire(timeout=TIMEOUT_S)


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


def test_a_freeze_of_the_answers_lets_requests_through(server, proxy, client):
    """In one direction bytes arrive, in the other they wait."""
    proxy.freeze("to_client")
    client.sendall(b"one")
    assert server.came.acquire(timeout=TIMEOUT_S)
    assert_silent(client)
    proxy.thaw()
    assert receive(client, 3) == b"one"


def test_a_freeze_of_the_requests_lets_answers_through(server, proxy, client):
    """What the service sent before still arrives; what the client sends waits."""
    proxy.freeze("to_client")
    client.sendall(b"one")
    assert server.came.acquire(timeout=TIMEOUT_S)
    proxy.freeze("to_upstream")
    proxy.thaw("to_client")
    assert receive(client, 3) == b"one"
    client.sendall(b"two")
    assert_silent(client)
    assert server.received == 3


@pytest.mark.parametrize("linger_s", [None, 0])
def test_the_end_of_a_connection_waits_for_the_thaw(server, proxy, linger_s):
    """While bytes are frozen, the service does not notice that a client has gone."""
    with connected(proxy) as client:
        assert echo(client, b"one") == b"one"
        assert server.came.acquire(timeout=TIMEOUT_S)
        proxy.freeze()
        client.sendall(b"last words")
        if linger_s is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    assert not server.came.acquire(timeout=SILENCE_S)
    assert proxy.connections == 1
    assert not server.resets.acquire(blocking=False)
    proxy.thaw()
    if linger_s is None:  # a reset drops what was sent before
        assert server.came.acquire(timeout=TIMEOUT_S)
    else:
        assert server.resets.acquire(timeout=TIMEOUT_S)


def test_a_reset_does_not_wait_for_the_thaw(proxy, client):
    """Connections through which nothing passes can be reset."""
    assert echo(client, b"one") == b"one"
    proxy.freeze()
    proxy.reset()
    with is_reset():
        client.recv(1)


def test_a_delay_holds_for_each_direction(proxy, client):
    """There and back take twice the delay, or once when only one direction has it."""
    for directions, at_least_s in ((None, 0.2), ("to_upstream", 0.1), ("to_client", 0.1)):
        proxy.delay(0.1, directions)
        started_s = time.monotonic()
        assert echo(client, b"one") == b"one"
        assert time.monotonic() - started_s >= at_least_s
        proxy.restore()
    with pytest.raises(ValueError, match="before they are sent"):
        proxy.delay(-1)


def test_delayed_bytes_follow_each_other_closely(proxy, client):
    """A delay is that of a long way: what is sent later arrives as much later, and no more."""
    proxy.delay(0.5, "to_upstream")
    started_s = time.monotonic()
    assert echo(client, bytes(2 << 20)) == bytes(2 << 20)
    assert time.monotonic() - started_s < 8  # one piece after the other would take 16 s or more


def test_restore_ends_everything(proxy):
    """After it, connections are accepted, bytes pass, and at once."""
    proxy.delay(3_600)
    proxy.freeze()
    proxy.refuse()
    proxy.restore()
    with connected(proxy) as client:
        assert echo(client, b"one") == b"one"


def test_nothing_is_left_at_the_end(server):
    """Whatever is under way is reset, the thread ends, and nobody listens on the port."""
    with TcpFaultProxy(server.server_address) as proxy:
        idle = connected(proxy)
        frozen = connected(proxy)
        assert echo(frozen, b"one") == b"one"
        proxy.freeze()
        frozen.sendall(b"two")
        delayed = connected(proxy)
        proxy.delay(3_600)
        delayed.sendall(b"three")
    for client in (idle, frozen, delayed):
        with closing(client), is_reset():
            client.recv(1)
    with pytest.raises(ConnectionRefusedError):
        connected(proxy)
    assert "tcp-fault-proxy" not in {thread.name for thread in threading.enumerate()}
    assert proxy.connections == 0


def test_the_proxy_shows_its_state(proxy, client):
    """Its repr tells where it stands, and each switch that is on."""
    assert echo(client, b"one") == b"one"
    assert repr(proxy).startswith(f"<TcpFaultProxy {proxy.address} for 127.0.0.1:")
    assert repr(proxy).endswith("[1 open]>")
    proxy.freeze("to_client")
    proxy.delay(0.5, "to_upstream")
    assert repr(proxy).endswith("[1 open, to_upstream 0.5 s later, frozen to_client]>")
    proxy.refuse()
    assert "[0 open, refuses, " in repr(proxy)
    proxy.restore()
    assert repr(proxy).endswith("[0 open]>")
    assert "nowhere yet" in repr(TcpFaultProxy())
