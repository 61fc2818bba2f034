"""What is made of kazoo's answers, errors and states, without a server."""

from __future__ import annotations

import asyncio
import socket
import struct
from types import SimpleNamespace

import pytest

pytest.importorskip("kazoo")
from kazoo import exceptions
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import KazooState

from memq.core.governor.coordination import Check, Create, Set
from memq.core.governor.options import ZooKeeperOptions
from memq.core.governor.session import GetNode, Sync, Transaction
from memq.core.governor.zookeeper import _Connection, _Handler, _KazooLink
from memq.errors import (
    InvalidRequestError,
    LimitReachedError,
    NodeExistsError,
    NodeNotEmptyError,
    NoNodeError,
    SessionLostError,
    UnauthorizedError,
    UnavailableError,
    VersionConflictError,
)


class Result:
    """What kazoo gives to who asks; it is settled by the test."""

    def __init__(self):
        self.value, self.told = None, []

    def rawlink(self, tell):
        self.told.append(tell)

    def get_nowait(self):
        if isinstance(self.value, BaseException):
            raise self.value
        return self.value

    def settle(self, value):
        self.value = value
        for tell in self.told:
            tell(self)


class Client:
    """kazoo's client, as far as a link calls it; each request waits for the test.

    Attributes:
        asked: name, arguments and result of each request.
        answers: what requests are answered with at once, in their order.
        connected, client_state: as kazoo has them.
        ended: that it was stopped, and closed.
        error: what a stop ends with, if anything.
    """

    def __init__(self):
        self.asked, self.answers = [], []
        self.connected, self.client_state = True, "EXPIRED_SESSION"
        self.ended, self.error = [], None

    def __getattr__(self, name):
        if not name.endswith("_async"):
            raise AttributeError(name)

        def ask(*args):
            result = Result()
            self.asked.append((name.removesuffix("_async"), args, result))
            if self.answers:
                result.value = self.answers.pop(0)
                result.rawlink = lambda tell: tell(result)
            return result

        return ask

    def transaction(self):
        parts = []

        def part(name):
            return lambda *args: parts.append((name, *args))

        def commit_async():
            result = Result()
            self.asked.append(("commit", tuple(parts), result))
            return result

        names = ("create", "set_data", "delete", "check")
        return SimpleNamespace(commit_async=commit_async, **{name: part(name) for name in names})

    def stop(self):
        self.ended.append("stop")
        if self.error is not None:
            raise self.error

    def close(self):
        self.ended.append("close")


class Told:
    """A session that takes note of what it is told."""

    def __init__(self):
        self.told = []

    def __getattr__(self, name):
        return lambda *args: self.told.append((name, *args))


@pytest.fixture
async def link():
    """One whose client the test answers for, below `/memq/c`."""
    made = _KazooLink(ZooKeeperOptions.read("one:1,two:2/memq/c", {}), None, lambda: 5.0)
    made._client, made._session = Client(), Told()
    return made


async def turn():
    """Let what was told from another thread arrive."""
    for _ in range(3):
        await asyncio.sleep(0)


ERRORS = [
    (exceptions.NoNodeError, NoNodeError),
    (exceptions.NodeExistsError, NodeExistsError),
    (exceptions.NotEmptyError, NodeNotEmptyError),
    (exceptions.BadVersionError, VersionConflictError),
    (exceptions.NoChildrenForEphemeralsError, InvalidRequestError),
    (exceptions.NoAuthError, UnauthorizedError),
    (exceptions.AuthFailedError, UnauthorizedError),
    (exceptions.QuotaExceededError, LimitReachedError),
    (exceptions.SessionExpiredError, SessionLostError),
    (exceptions.SessionMovedError, UnavailableError),
    (exceptions.ThrottledOpError, UnavailableError),
    (exceptions.ConnectionClosedError, ConnectionResetError),
    (exceptions.ConnectionLoss, ConnectionResetError),
    (exceptions.OperationTimeoutError, ConnectionResetError),
    (ConnectionAbortedError, ConnectionAbortedError),
    (NoNodeError, NoNodeError),
    (ValueError, ConnectionResetError),
]


@pytest.mark.parametrize(("error", "expected"), ERRORS)
async def test_each_error_says_whether_anything_has_happened(link, error, expected):
    """One that is not known, or a connection that is gone, leaves open what became of it."""
    asking = link.ask(GetNode("/a"))
    (_, args, result), cause = link._client.asked[0], error("why")
    assert args == ("/memq/c/a",)
    result.settle(cause)
    with pytest.raises(expected) as found:
        await asking
    assert type(found.value) is expected
    assert found.value is cause or found.value.__cause__ is cause
    if issubclass(expected, NoNodeError) and error is not expected:
        assert "'/a'" in str(found.value)
    assert link._asked == {}


@pytest.mark.parametrize(("error", "expected"), ERRORS[:-3])
@pytest.mark.parametrize("at", [0, 1, 2])
async def test_a_transaction_fails_with_the_change_that_failed(link, error, expected, at):
    """Those before it were rolled back, and those after it not tried."""
    changes = Create("/a", b"x", True), Set("/b", b"y", 3), Check("/c", 7)
    asking = link.ask(Transaction(changes))
    name, parts, result = link._client.asked[0]
    assert name == "commit"
    assert parts == (
        ("create", "/memq/c/a", b"x", link._acl, True),
        ("set_data", "/memq/c/b", b"y", 3),
        ("check", "/memq/c/c", 7),
    )
    results = [exceptions.RolledBackError("before")] * at + [error("why")]
    results += [exceptions.RuntimeInconsistency("after")] * (2 - at)
    result.settle(results)
    with pytest.raises(expected) as found:
        await asking
    if expected in (NoNodeError, NodeExistsError, VersionConflictError):
        assert repr(changes[at].path) in str(found.value)


async def test_states_of_kazoo_are_told_to_the_session(link):
    """A loss says what ZooKeeper said, ends the threads, and nothing is told after it."""
    pending = link.ask(Sync())
    for state in (KazooState.CONNECTED, KazooState.SUSPENDED, KazooState.LOST):
        link._state_changed(state)
    assert link._handler.over, "at once, in kazoo's own thread"
    await turn()
    assert link._session.told == [
        ("connected",),
        ("disconnected",),
        ("lost", "ZooKeeper says EXPIRED_SESSION"),
    ]
    for state in (KazooState.SUSPENDED, KazooState.LOST):
        link._state_changed(state)
    await turn()
    assert len(link._session.told) == 3
    with pytest.raises(ConnectionResetError, match="the session was closed"):
        await pending
    with pytest.raises(ConnectionResetError, match="the session is over"):
        await link.ask(Sync())
    await link.close()
    assert link._client.ended == ["stop", "close"]


HANDSHAKE = struct.Struct(">iiiq")


class Socket:
    """Gives what a server sends in pieces of some bytes."""

    def __init__(self, data, piece):
        self.data, self.piece, self.sent = data, piece, []

    def send(self, data):
        self.sent.append(data)
        return len(data)

    def recv(self, _):
        data, self.data = self.data[: self.piece], self.data[self.piece :]
        return data


@pytest.mark.parametrize("piece", [1, 7, HANDSHAKE.size, 1_000])
@pytest.mark.parametrize("timeout_ms", [4_000, 0, -1])
def test_what_was_agreed_is_read_along_once(piece, timeout_ms):
    """It counts from when the handshake was sent; a session that has expired agreed to nothing."""
    now, agreed = iter((3.0, 4.0, 5.0)), []
    data = HANDSHAKE.pack(36, 0, timeout_ms, 0x1234) + bytes(range(200))
    connection = _Connection(
        Socket(data, piece), lambda: next(now), lambda *args: agreed.append(args)
    )
    connection.send(b"hand")
    connection.send(b"shake")
    read = b""
    while more := connection.recv(8):
        read += more
    assert read == data
    assert connection.sent == [b"hand", b"shake"]
    assert agreed == ([(0x1234, 3.0, 4.0)] if timeout_ms > 0 else [])


@pytest.fixture
def handler():
    """One that has no session yet."""
    return _Handler(None, lambda: 0.0, lambda *_: None, 20.0)


def test_a_server_that_takes_no_connection_is_named_until_one_does(handler):
    """Nothing is left open of an attempt that failed; who is over makes none at all."""
    assert isinstance(handler, SequentialThreadingHandler)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        connection = handler.create_connection(address, hostname="one", timeout=10)
        assert handler.trouble == ""
        assert connection.gettimeout() == 10
        handler.abort()
        assert connection.recv(1) == b"", "whoever waits for it is woken"
        connection.close()
        handler.abort()
    with pytest.raises(OSError, match="refused"):
        handler.create_connection(address, hostname="one", timeout=10)
    assert handler.trouble.startswith("one: ")
    assert handler._socket.fileno() == -1
    with socket.create_server(("127.0.0.1", 0)) as server:
        handler.over = True
        with pytest.raises(ConnectionAbortedError):
            handler.create_connection(server.getsockname(), hostname="one", timeout=10)
        handler.over = False
        handler.create_connection(server.getsockname(), hostname="one", timeout=10).close()
    assert handler.trouble == ""


def test_no_answer_is_waited_for_as_long_as_a_session_lasts():
    """A server that just starts may take a connection and never answer; another one is made."""
    patience_s = 0.01
    handler = _Handler(None, lambda: 0.0, lambda *_: None, patience_s)
    with socket.create_server(("127.0.0.1", 0)) as server:
        connection = handler.create_connection(server.getsockname(), hostname="one", timeout=60)
        assert connection.gettimeout() == patience_s
        assert handler.select([connection], [], [], 60) == ([], [], [])
        assert handler.select([], [connection], [], 60) == ([], [connection], [])
        connection.close()


@pytest.mark.parametrize(("timeout_ms", "patience_s"), [(600, 1), (6_000, 2), (30_000, 10)])
async def test_a_handshake_may_take_a_third_of_a_session(timeout_ms, patience_s):
    """So that there is time for another one before the session is over; short ones are longer."""
    options = ZooKeeperOptions(servers="one:1", session_timeout_ms=timeout_ms)
    link = _KazooLink(options, None, lambda: 0.0)
    assert link._handler._patience_s == patience_s
    assert link._client._session_timeout == timeout_ms
