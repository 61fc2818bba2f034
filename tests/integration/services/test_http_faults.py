"""The proxy between S3 clients and servers, with clients and a server of the standard library."""

from __future__ import annotations

import asyncio
import errno
import http.client
import random
import socket
import threading
import time
import tracemalloc
import warnings
import zlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from xml.etree import ElementTree as ET

import pytest

from tests.harness.services.http_faults import (
    SLOW_DOWN,
    Corrupt,
    CutBody,
    Hang,
    HttpFaultProxy,
    Latency,
    LoseAnswer,
    Reset,
    Rule,
    Status,
)

TIMEOUT_S = 30.0  # of what comes; a backstop
SILENCE_S = 0.2  # without a byte, when none may come
PIECE_BYTES = 64 << 10
LARGE_BYTES = 32 << 20
BODY = bytes(range(256)) * 16


class Handler(BaseHTTPRequestHandler):
    """Keeps objects; some paths answer in a way of their own."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self):
        super().setup()
        self.server.accepted += 1

    def handle_expect_100(self):
        return self.path == "/early" or super().handle_expect_100()

    def do_PUT(self):
        if self.path == "/early":
            return self.answer(403)
        self.server.heads.append((self.requestline, self.headers.items()))
        if self.path == "/large":
            length, crc = 0, 0
            while length < LARGE_BYTES and (piece := self.rfile.read(PIECE_BYTES)):
                length, crc = length + len(piece), zlib.crc32(piece, crc)
            return self.answer(200, str(crc).encode())
        if self.headers["Transfer-Encoding"] == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            while self.rfile.readline() != b"\r\n":
                pass
        else:
            body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.objects[self.path] = body
        return self.answer(200, headers={"ETag": '"1"'})

    def do_GET(self):
        if self.path.startswith("/waits"):
            self.server.waits.set()
            self.server.goes_on.wait(TIMEOUT_S)
        if self.path == "/chunked":
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for size in (1, 100, 5_000):
                self.wfile.write(b"%x\r\n%b\r\n" % (size, b"x" * size))
            self.wfile.write(b"0\r\nTrailer: 1\r\n\r\n")
        elif self.path == "/until-close":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(BODY)
            self.close_connection = True
        elif self.path.endswith("goes"):
            self.close_connection = True  # without an answer
        elif self.path == "/large":
            self.send_response(200)
            self.send_header("Content-Length", str(LARGE_BYTES))
            self.end_headers()
            for _ in range(LARGE_BYTES // PIECE_BYTES):
                self.wfile.write(bytes(PIECE_BYTES))
        elif self.path == "/closes-afterwards":
            self.answer(200, BODY)
            self.close_connection = True
        else:
            body = self.server.objects.get(self.path, b"")
            self.answer(200 if body else 404, body)

    def do_HEAD(self):
        self.do_GET()

    def answer(self, code, body=b"", headers=()):
        self.send_response(code)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = False  # so that closing waits for them

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects = {"/a": BODY}
        self.heads = []
        self.accepted = 0
        self.waits = threading.Event()
        self.goes_on = threading.Event()

    def handle_error(self, *_):
        """Connections break here: that is no news."""


@pytest.fixture
def server():
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.goes_on.set()
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


@pytest.fixture
def workers():
    with ThreadPoolExecutor() as workers:
        yield workers


def client_of(proxy, timeout_s=TIMEOUT_S):
    return http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=timeout_s)


def call(client, method, path, body=None, **options):
    client.request(method, path, body, **options)
    with client.getresponse() as answer:
        return answer.status, answer.read()


def call_once(proxy, method, path, body=None):
    with closing(client_of(proxy)) as client:
        return call(client, method, path, body)


@contextmanager
def raw(proxy):
    """A connection, and a file of what comes in."""
    with (
        socket.create_connection(("127.0.0.1", proxy.port), TIMEOUT_S) as connection,
        connection.makefile("rb") as incoming,
    ):
        yield connection, incoming


@contextmanager
def is_reset():
    """The connection ends with a RST, not merely by closing."""
    with pytest.raises(ConnectionError) as raised:
        yield
    assert raised.value.errno in (errno.ECONNRESET, errno.EPIPE)


def until(condition):
    deadline_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


# -- what passes -------------------------------------------------------------------------------


def test_a_plain_request_passes_byte_for_byte_and_its_connection_is_kept(server, proxy, client):
    """Head and body arrive as they were sent, Host included, on one connection kept for all."""
    head = (
        f"PUT /b%20c?x=%2F HTTP/1.1\r\nhOsT:   {proxy.address}\r\nX-Odd:\ttab \r\n"
        "Authorization: AWS4-HMAC-SHA256 SignedHeaders=host\r\nContent-Length: 3\r\n\r\n"
    )
    with raw(proxy) as (connection, incoming):
        for _ in range(3):
            connection.sendall(head.encode() + b"\0\r\n")
            assert incoming.readline() == b"HTTP/1.1 200 OK\r\n"
            while incoming.readline() != b"\r\n":
                pass
    assert server.objects["/b%20c?x=%2F"] == b"\0\r\n"
    assert ("hOsT", proxy.address) in server.heads[0][1]
    assert dict(server.heads[0][1])["Authorization"] == "AWS4-HMAC-SHA256 SignedHeaders=host"
    assert server.accepted == 1
    assert call(client, "GET", "/a") == call(client, "GET", "/a") == (200, BODY)
    assert call(client, "HEAD", "/a") == (200, b"")
    assert call(client, "GET", "/none") == (404, b"")
    assert server.accepted == 2


def test_pipelined_requests_are_served_in_turn(proxy):
    """A client that sends requests ahead of the answers gets all of them, in order."""
    with raw(proxy) as (connection, incoming):
        connection.sendall(b"GET /a HTTP/1.1\r\n\r\n" * 2 + b"GET /none HTTP/1.0\r\n\r\n")
        answers = incoming.read()
    assert answers.count(BODY) == 2
    assert answers.index(b" 404 ") > answers.rindex(BODY)


def test_chunked_bodies_pass_both_ways(server, proxy, client):
    """Bodies in chunks pass, with their trailers, and the connection goes on."""
    assert call(client, "PUT", "/c", iter([b"ab", b"c" * 100_000]), encode_chunked=True)[0] == 200
    assert server.objects["/c"] == b"ab" + b"c" * 100_000
    assert call(client, "GET", "/chunked") == (200, b"x" * 5_101)
    with raw(proxy) as (connection, incoming):
        connection.sendall(b"GET /chunked HTTP/1.1\r\nConnection: close\r\n\r\n")
        assert incoming.read().endswith(b"\r\n0\r\nTrailer: 1\r\n\r\n")
    assert server.accepted == 2


def test_an_answer_may_end_with_its_connection(proxy):
    """An answer that tells no length passes, and ends where the server ends it."""
    assert call_once(proxy, "GET", "/until-close") == (200, BODY)


def test_large_bodies_stream_in_bounded_memory(server, proxy):
    """Of 32 MiB, either way, hardly anything is in memory at any time."""
    pieces = random.Random(1)
    crc = 0

    def body():
        nonlocal crc
        for _ in range(LARGE_BYTES // PIECE_BYTES):
            piece = pieces.randbytes(PIECE_BYTES)
            crc = zlib.crc32(piece, crc)
            yield piece

    tracemalloc.start()
    try:
        with closing(client_of(proxy)) as client:
            headers = {"Content-Length": str(LARGE_BYTES)}
            _, answer = call(client, "PUT", "/large", body(), headers=headers)
            assert int(answer) == crc
            client.request("GET", "/large")
            with client.getresponse() as answer:
                length = 0
                while piece := answer.read(PIECE_BYTES):
                    length += len(piece)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert length == LARGE_BYTES
    assert peak_bytes < 4 << 20
    assert proxy.counts.received_bytes["PUT"] == proxy.counts.sent_bytes["GET"] == LARGE_BYTES


def test_a_client_that_waits_to_be_asked_for_its_body_is_asked(server, proxy):
    """`Expect: 100-continue` passes, and so do the 100 of the server and then the body."""
    with raw(proxy) as (connection, incoming):
        for _ in range(2):
            connection.sendall(
                b"PUT /e HTTP/1.1\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
            )
            assert incoming.readline() == b"HTTP/1.1 100 Continue\r\n"
            assert incoming.readline() == b"\r\n"
            connection.sendall(b"ok")
            assert incoming.readline() == b"HTTP/1.1 200 OK\r\n"
            while incoming.readline() != b"\r\n":
                pass
    assert server.objects["/e"] == b"ok"
    assert server.accepted == 1


def test_a_refusal_passes_before_the_body_was_sent(proxy):
    """A server that does not want a body says so at once; the connection ends after that."""
    with raw(proxy) as (connection, incoming):
        connection.sendall(
            b"PUT /early HTTP/1.1\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
        )
        assert incoming.read().startswith(b"HTTP/1.1 403 Forbidden\r\n")


def test_a_refusal_is_not_lost_to_a_client_that_sends_on(proxy):
    """A client that sends a large body regardless still finds the answer that came before."""
    with raw(proxy) as (connection, incoming):
        connection.sendall(b"PUT /early HTTP/1.1\r\nContent-Length: 4194304\r\n\r\n")
        assert incoming.readline() == b"HTTP/1.1 403 Forbidden\r\n"
        connection.sendall(bytes(4 << 20))
        assert b"Content-Length: 0\r\n" in incoming.read()


def test_concurrent_requests_do_not_wait_for_each_other(server, proxy, workers):
    """While the server takes its time for one request, others are served."""
    slow = workers.submit(call_once, proxy, "GET", "/waits")
    assert server.waits.wait(TIMEOUT_S)
    assert call_once(proxy, "GET", "/a") == (200, BODY)
    assert not slow.done()
    server.goes_on.set()
    assert slow.result() == (404, b"")


def test_a_server_that_closes_an_idle_connection_has_the_clients_closed(proxy):
    """The client sees the end of the server's connection on its own."""
    with raw(proxy) as (connection, incoming):
        connection.sendall(b"GET /closes-afterwards HTTP/1.1\r\n\r\n")
        assert incoming.read().endswith(BODY)


def test_a_server_that_goes_without_an_answer_has_the_client_left_without_one(proxy):
    """The connection of the client closes, as that of the server did."""
    with pytest.raises(http.client.RemoteDisconnected):
        call_once(proxy, "GET", "/goes")


def test_without_a_server_connections_are_reset(server):
    """Where nobody listens, requests meet a reset; a planned status does without a server."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        with HttpFaultProxy(*nobody.getsockname()) as proxy:
            with is_reset():
                call_once(proxy, "GET", "/a")
            proxy.add(Rule(SLOW_DOWN))
            assert call_once(proxy, "GET", "/a")[0] == 503


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


def test_a_status_may_be_any_with_any_body_and_headers(proxy):
    """Code, body and headers come as planned; a HEAD gets the headers only."""
    proxy.add(Rule(Status(418, b"tea", (("Retry-After", "3"),)), times=None))
    head = b"HTTP/1.1 418 I'm a Teapot\r\nRetry-After: 3\r\nContent-Length: 3\r\nConnection: "
    with raw(proxy) as (connection, incoming):
        connection.sendall(b"HEAD /a HTTP/1.1\r\n\r\nGET /a HTTP/1.1\r\nConnection: close\r\n\r\n")
        answers = incoming.read()
    assert answers == head + b"keep-alive\r\n\r\n" + head + b"close\r\n\r\ntea"


def test_a_status_is_not_kept_from_a_client_that_waits_to_be_asked(proxy):
    """One that expects a 100 gets the planned status in its place, and the connection ends."""
    proxy.add(Rule(SLOW_DOWN))
    with raw(proxy) as (connection, incoming):
        connection.sendall(b"PUT /e HTTP/1.1\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
        assert incoming.read().startswith(b"HTTP/1.1 503 ")


@pytest.mark.parametrize("after_body", [False, True])
def test_a_reset_strikes_before_the_server_hears_of_it(server, proxy, after_body):
    """The client's connection is reset, before or after its body is read; the next one works."""
    rule = proxy.add(Rule(Reset(after_body=after_body)))
    with is_reset():
        call_once(proxy, "PUT", "/r", BODY)
    assert proxy.counts.received_bytes["PUT"] == (len(BODY) if after_body else 0)
    assert "/r" not in server.objects
    assert proxy.struck[rule] == 1
    assert call_once(proxy, "PUT", "/r", BODY)[0] == 200


@pytest.mark.parametrize("expects", [False, True])
def test_a_request_that_hangs_goes_on_when_it_is_released(server, proxy, expects):
    """All of it is read, nothing answered and nothing stored, until it is released."""
    rule = proxy.add(Rule(Hang()))
    head = f"PUT /h HTTP/1.1\r\nContent-Length: {3 << 20}\r\n"
    with raw(proxy) as (connection, incoming):
        if expects:
            connection.sendall(f"{head}Expect: 100-continue\r\n\r\n".encode())
            assert incoming.readline() + incoming.readline() == b"HTTP/1.1 100 Continue\r\n\r\n"
            connection.sendall(bytes(3 << 20))
        else:
            connection.sendall(f"{head}\r\n".encode() + bytes(3 << 20))
        proxy.wait_struck(rule)
        connection.settimeout(SILENCE_S)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(TIMEOUT_S)
        assert server.heads == []
        proxy.release()
        assert incoming.readline() == b"HTTP/1.1 200 OK\r\n"
    assert server.objects["/h"] == bytes(3 << 20)


def test_a_client_that_leaves_takes_back_what_hangs(server, proxy):
    """The request of a client that has given up is never made, released or not."""
    rule = proxy.add(Rule(Hang()))
    with closing(client_of(proxy)) as client:
        client.request("PUT", "/h", BODY)
        proxy.wait_struck(rule)
    until(lambda: proxy.connections == 0)
    proxy.release()
    assert call_once(proxy, "GET", "/h") == (404, b"")


def test_a_lost_answer_is_that_of_an_object_that_was_stored(server, proxy):
    """The server has stored the object and answered; the client sees a reset."""
    rule = proxy.add(Rule(LoseAnswer(), method="PUT"))
    with is_reset():
        call_once(proxy, "PUT", "/l", BODY)
    assert proxy.struck[rule] == 1
    assert server.objects["/l"] == BODY
    assert call_once(proxy, "GET", "/l") == (200, BODY)


def test_a_body_is_cut_short_of_what_its_head_promises(proxy, client):
    """So many bytes come and then the end, though the head promises all; shorter ones pass."""
    rule = proxy.add(Rule(CutBody(1_000), method="GET"))
    client.request("GET", "/a")
    with client.getresponse() as answer:
        assert answer.headers["Content-Length"] == str(len(BODY))
        with pytest.raises(http.client.IncompleteRead) as raised:
            answer.read()
    assert raised.value.partial == BODY[:1_000]
    assert proxy.struck[rule] == 1
    client.close()
    whole = proxy.add(Rule(CutBody(len(BODY)), method="GET"))
    assert call(client, "GET", "/a") == call(client, "GET", "/a") == (200, BODY)
    assert proxy.struck[whole] == 0


def test_a_latency_comes_before_the_answer(proxy, client):
    """Each latency is added, a constant one as well as one drawn from the seed."""
    drawn = []

    def delay_s(chance):
        drawn.append(chance.uniform(0.05, 0.1))
        return drawn[-1]

    proxy.add(Rule(Latency(0.1), times=None))
    rule = proxy.add(Rule(Latency(delay_s), times=None))
    started_s = time.monotonic()
    assert call(client, "GET", "/a") == (200, BODY)
    assert time.monotonic() - started_s >= 0.1 + drawn[0]
    assert call(client, "GET", "/a") == (200, BODY)
    assert drawn[0] != drawn[1]
    assert proxy.struck[rule] == 2


@pytest.mark.parametrize(("path", "body"), [("/a", BODY), ("/chunked", b"x" * 5_101)])
def test_a_corrupt_body_differs_in_one_bit(proxy, client, path, body):
    """One bit of the contents is flipped, never the framing; the next answer is sound."""
    rule = proxy.add(Rule(Corrupt(), method="GET"))
    status, damaged = call(client, "GET", path)
    assert (status, len(damaged)) == (200, len(body))
    differences = [a ^ b for a, b in zip(damaged, body, strict=True) if a != b]
    assert [difference.bit_count() for difference in differences] == [1]
    assert call(client, "GET", path) == (200, body)
    assert proxy.struck[rule] == 1


def test_an_answer_without_a_body_is_not_corrupt(proxy, client):
    """Where there is nothing to flip, no strike is counted."""
    rule = proxy.add(Rule(Corrupt(), times=None))
    assert call(client, "HEAD", "/a") == (200, b"")
    assert call(client, "GET", "/none") == (404, b"")
    assert proxy.struck[rule] == 0


# -- outages -----------------------------------------------------------------------------------


def test_in_an_outage_connections_are_refused(proxy, client):
    """Open connections are reset and new ones refused, until it ends; the port stays the same."""
    assert call(client, "GET", "/a")[0] == 200
    port = proxy.port
    for _ in range(2):
        proxy.outage("refuse")
        proxy.outage("refuse")
        with is_reset():
            call(client, "GET", "/a")
        client.close()
        with pytest.raises(ConnectionRefusedError):
            call(client, "GET", "/a")
        client.close()
        proxy.restore()
        assert call(client, "GET", "/a") == (200, BODY)
    assert proxy.port == port


def test_in_an_outage_nobody_else_gets_the_port(proxy):
    """While connections are refused, the port is not to be had."""
    proxy.outage("refuse")
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", proxy.port))


def test_in_an_outage_connections_are_reset(proxy, client):
    """Open connections are reset, and so are new ones as soon as they are open."""
    assert call(client, "GET", "/a")[0] == 200
    proxy.outage("reset")
    for _ in range(2):
        with is_reset():
            call(client, "GET", "/a")
        client.close()
    proxy.restore()
    assert call(client, "GET", "/a") == (200, BODY)


def test_in_a_silent_outage_connections_are_open_and_nothing_comes(server, proxy, client):
    """Nothing is answered, on old connections and new ones; what waits is served afterwards."""
    assert call(client, "GET", "/a")[0] == 200
    proxy.outage("silent")
    with closing(client_of(proxy, SILENCE_S)) as impatient, pytest.raises(TimeoutError):
        call(impatient, "GET", "/a")
    client.request("PUT", "/late", BODY)
    client.sock.settimeout(SILENCE_S)
    with pytest.raises(TimeoutError):
        client.sock.recv(1)
    client.sock.settimeout(TIMEOUT_S)
    assert "/late" not in server.objects
    proxy.restore()
    with client.getresponse() as answer:
        assert answer.status == 200
    assert server.objects["/late"] == BODY


def test_a_silent_outage_holds_an_answer_that_is_on_its_way(server, proxy):
    """An answer that the server gives during the outage arrives when it ends."""
    with closing(client_of(proxy)) as client:
        client.request("GET", "/waits")
        assert server.waits.wait(TIMEOUT_S)
        proxy.outage("silent")
        server.goes_on.set()
        client.sock.settimeout(SILENCE_S)
        with pytest.raises(TimeoutError):
            client.sock.recv(1)
        client.sock.settimeout(TIMEOUT_S)
        proxy.restore()
        with client.getresponse() as answer:
            assert answer.status == 404


def test_a_silent_outage_hides_the_end_of_the_server(server, proxy):
    """A server that goes during the outage is not noticed before it ends."""
    with closing(client_of(proxy)) as client:
        client.request("GET", "/waits-and-goes")
        assert server.waits.wait(TIMEOUT_S)
        proxy.outage("silent")
        server.goes_on.set()
        client.sock.settimeout(SILENCE_S)
        with pytest.raises(TimeoutError):
            client.sock.recv(1)
        client.sock.settimeout(TIMEOUT_S)
        proxy.restore()
        with pytest.raises(http.client.RemoteDisconnected):
            client.getresponse()


def test_outages_follow_each_other(proxy, client):
    """One kind of outage may take the place of another."""
    for kind in ("refuse", "silent", "reset", "refuse", "reset", "silent"):
        proxy.outage(kind)
    proxy.restore()
    assert call(client, "GET", "/a") == (200, BODY)
    with pytest.raises(ValueError, match="refuse, reset, silent"):
        proxy.outage("total")


# -- rules -------------------------------------------------------------------------------------


def test_a_rule_strikes_only_what_it_names(proxy, client):
    """Method and key decide; the key is searched for without percent-encoding, query included."""
    rule = proxy.add(Rule(SLOW_DOWN, method="GET", key=r"^/x y\?part=1$", times=None))
    assert call(client, "GET", "/x%20y?part=1")[0] == 503
    assert call(client, "GET", "/x%20y?part=12")[0] == 404
    assert call(client, "HEAD", "/x%20y?part=1")[0] == 404
    assert proxy.struck == Counter({rule: 1})


def test_a_rule_lets_some_requests_pass_first(proxy, client):
    """It strikes after so many matching requests, and so often."""
    proxy.add(Rule(SLOW_DOWN, key="/a", after=2, times=2))
    statuses = [call(client, "GET", path)[0] for path in ("/a", "/none", "/a", "/a", "/a", "/a")]
    assert statuses == [200, 404, 200, 503, 503, 200]


def test_the_first_rule_that_strikes_decides(proxy, client):
    """Rules are looked at in the order in which they were added; one that is spent lets pass."""
    first = proxy.add(Rule(Status(500)))
    second = proxy.add(Rule(Status(501), times=None))
    assert [call(client, "GET", "/a")[0] for _ in range(3)] == [500, 501, 501]
    assert proxy.struck == Counter({first: 1, second: 2})


def test_rules_go_while_requests_are_served(proxy, client):
    """One that is removed strikes no more; its strikes are still known."""
    rule = proxy.add(Rule(SLOW_DOWN, times=None))
    with pytest.raises(ValueError, match="already"):
        proxy.add(rule)
    assert call(client, "GET", "/a")[0] == 503
    proxy.remove(rule)
    assert call(client, "GET", "/a")[0] == 200
    assert proxy.struck[rule] == 1


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


@pytest.mark.parametrize(
    "wrong", [{"times": -1}, {"after": -1}, {"probability": 1.1}, {"probability": -0.1}]
)
def test_a_rule_that_makes_no_sense_is_refused(wrong):
    """Numbers that cannot be are an error when the rule is made."""
    with pytest.raises(ValueError, match="0 or more"):
        Rule(SLOW_DOWN, **wrong)


def test_waiting_for_a_strike_has_an_end(proxy):
    """A rule that does not strike in time raises, and says how often it did."""
    with pytest.raises(TimeoutError, match="0 times in place of 1"):
        proxy.wait_struck(Rule(Hang()), timeout_s=0.01)


def test_requests_and_bytes_are_counted_by_method(proxy, client):
    """Requests, and the bytes of bodies each way, also of what the server never saw."""
    proxy.add(Rule(Status(503, b"12345"), method="PUT"))
    for _ in range(2):
        call(client, "PUT", "/a", b"123")
        call(client, "GET", "/a")
    assert proxy.counts.requests == Counter(PUT=2, GET=2)
    assert proxy.counts.received_bytes["PUT"] == 6
    assert proxy.counts.sent_bytes["PUT"] == 5
    assert proxy.counts.sent_bytes["GET"] == len(BODY) + 3
    assert proxy.counts.requests["DELETE"] == 0


# -- the end -----------------------------------------------------------------------------------


def test_nothing_is_left_at_the_end(server):
    """Whatever is under way is reset, the thread ends, and nobody listens on the port."""
    before = set(threading.enumerate())
    with warnings.catch_warnings(), ExitStack() as sockets:
        warnings.simplefilter("error")
        late = sockets.enter_context(socket.socket())
        with HttpFaultProxy("127.0.0.1", server.server_port) as proxy:
            hang = proxy.add(Rule(Hang(), method="PUT"))
            slow = proxy.add(Rule(Latency(3_600), method="HEAD"))
            clients = [sockets.enter_context(closing(client_of(proxy))) for _ in range(4)]
            clients[0].request("PUT", "/h", BODY)
            clients[1].request("GET", "/waits")
            clients[2].request("HEAD", "/a")
            clients[3].connect()
            proxy.wait_struck(hang)
            proxy.wait_struck(slow)
            assert server.waits.wait(TIMEOUT_S)
        for client in clients:
            with is_reset():
                client.sock.recv(1)
        with pytest.raises(ConnectionRefusedError):
            late.connect(("127.0.0.1", proxy.port))
    assert "http-fault-proxy" not in {thread.name for thread in threading.enumerate()}
    assert proxy.connections == 0
    assert before <= set(threading.enumerate())


@pytest.mark.parametrize("turns", range(8))
def test_a_connection_is_reset_as_soon_as_it_is_open(server, turns):
    """It makes no difference how far the proxy had got with accepting it."""
    with HttpFaultProxy("127.0.0.1", server.server_port) as proxy:
        held, let_go = threading.Event(), threading.Event()

        async def refuse(loop):
            held.set()
            let_go.wait(TIMEOUT_S)  # the loop stands still: nothing is accepted yet
            for _ in range(turns):
                await asyncio.sleep(0)
            await loop.refuse()

        with ThreadPoolExecutor(1) as worker:
            refused = worker.submit(proxy._loop.call, refuse(proxy._loop))
            assert held.wait(TIMEOUT_S)
            with closing(client_of(proxy)) as client:
                client.connect()
                let_go.set()
                refused.result(TIMEOUT_S)
                with is_reset():
                    client.sock.recv(1)


def test_one_who_does_not_speak_http_is_told_of_at_the_end(server):
    """What the proxy cannot read is no fault that was planned: it raises when the proxy ends."""
    with (
        pytest.raises(RuntimeError, match="could not serve"),
        HttpFaultProxy("127.0.0.1", server.server_port) as proxy,
        raw(proxy) as (connection, incoming),
    ):
        connection.sendall(b"hello\r\n\r\n")
        assert incoming.read() == b""


def test_the_proxy_shows_its_state(proxy, client):
    """Its repr tells where it stands, an outage, and what has happened."""
    proxy.add(Rule(SLOW_DOWN))
    call(client, "GET", "/a")
    assert repr(proxy).startswith(f"<HttpFaultProxy {proxy.address} for 127.0.0.1:")
    assert repr(proxy).endswith("[1 open, requests 1, rules 1, struck 1]>")
    proxy.outage("silent")
    assert "[outage: silent, " in repr(proxy)
