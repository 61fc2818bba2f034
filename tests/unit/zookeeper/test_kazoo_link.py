"""What is made of kazoo's answers, errors and states, without a server."""

import asyncio
import socket
import struct
from types import SimpleNamespace

import pytest

pytest.importorskip("kazoo")
from kazoo import exceptions
from kazoo.handlers.threading import SequentialThreadingHandler

from memq.errors import (
    InvalidRequestError,
    LimitReachedError,
    SessionLostError,
    UnauthorizedError,
    UnavailableError,
)
from memq.zookeeper.kazoo_link import _Connection, _Handler, _settle

# Those that the contract meets at a real server are left out.
ERRORS = [
    (exceptions.NoChildrenForEphemeralsError, InvalidRequestError),
    (exceptions.AuthFailedError, UnauthorizedError),
    (exceptions.QuotaExceededError, LimitReachedError),
    (exceptions.SessionExpiredError, SessionLostError),
    (exceptions.SessionMovedError, UnavailableError),
    (exceptions.ThrottledOpError, UnavailableError),
    (exceptions.ConnectionClosedError, ConnectionResetError),
    (exceptions.ConnectionLoss, ConnectionResetError),
    (ConnectionAbortedError, ConnectionAbortedError),
    (ValueError, ConnectionResetError),
]


@pytest.mark.parametrize(("error", "expected"), ERRORS)
async def test_each_error_says_whether_anything_has_happened(error, expected):
    """One that is not known, or a connection that is gone, leaves open what became of it."""
    asking, cause = asyncio.get_running_loop().create_future(), error("why")

    def fail():
        raise cause

    _settle(asking, SimpleNamespace(get_nowait=fail), lambda answer: answer, "/a")
    with pytest.raises(expected) as found:
        await asking
    assert type(found.value) is expected
    assert cause in (found.value, found.value.__cause__)


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
