"""A port of the loopback for a proxy, served by an asyncio loop in a thread of its own.

The port belongs to the proxy from `start` to `stop`, also while it refuses connections: a socket
that is bound but does not listen keeps it. So a client that tries again meets the proxy or nobody.

A connection is one task. It ends in one of three ways: the task returns, and what was written still
reaches the client; it raises `OSError`, and the client gets a reset; or it is cancelled, by
`reset_connections` or by `stop`, and both sides get a reset. Anything else that a task raises is a
bug, of the proxy or of who speaks to it, and `stop` raises it.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
    from typing import Any

T = TypeVar("T")

HOST = "127.0.0.1"
BACKLOG = 256  # connections that the kernel accepts ahead of the loop; tests open fewer at a time
BUFFER_BYTES = 128 << 10  # of a reader, which stops at twice as much
CHUNK_BYTES = 64 << 10  # passed on at a time


class Peer(NamedTuple):
    """One end of the proxy: a client, or the server."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        """Write, and wait until the kernel has all of it: the proxy keeps nothing behind."""
        self.writer.write(data)
        await self.writer.drain()

    def reset(self) -> None:
        """Break the connection off with a RST; what was not sent yet is dropped."""
        _reset_when_closed(self.writer.get_extra_info("socket"))
        self.writer.transport.abort()

    async def close(self) -> None:
        """Close, after what was written has left, and wait until the socket is closed."""
        try:
            self.writer.close()
            with suppress(OSError):
                await self.writer.wait_closed()
        finally:
            self.writer.transport.abort()


async def cancel(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks and wait for their ends; what they raise is of no interest any more."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def connected(host: str, port: int) -> AsyncIterator[Peer]:
    """A connection to the server; reset when the context ends with an exception."""
    peer = _peer(*await asyncio.open_connection(host, port, limit=BUFFER_BYTES))
    try:
        yield peer
    except BaseException:
        peer.reset()
        raise
    finally:
        await peer.close()


class ProxyLoop:
    """Serves connections to one port of the loopback. All but `start`, `stop` and `call` is async.

    Args:
        serve: serves one connection.
        name: of the thread.

    Attributes:
        port: the port, from `start` on.
    """

    def __init__(self, serve: Callable[[Peer], Awaitable[None]], name: str) -> None:
        self.port = 0
        self._serve = serve
        self._name = name
        self._connections: dict[asyncio.Task[None], socket.socket] = {}
        self._listener: socket.socket | None = None
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread
        self._keeper: socket.socket

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._connections)

    def start(self) -> None:
        """Take a port and serve it."""
        self._keeper = _bound(0)
        self.port = self._keeper.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True)
        self._thread.start()
        self.call(self.listen())

    def stop(self) -> None:
        """Reset all connections, close all sockets and end the thread.

        Raises:
            RuntimeError: a connection was not served for another reason than a broken one; the
                cause says which.
        """
        self.call(self.refuse())
        self.call(self._loop.shutdown_default_executor())  # it has looked up names
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._keeper.close()
        if self._failure is not None:
            raise RuntimeError(f"{self._name} could not serve a connection") from self._failure

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something in the loop, from another thread, and wait for its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def listen(self) -> None:
        """Accept connections, again or still."""
        if self._listener is None:
            self._listener = _bound(self.port)
            self._listener.setblocking(False)
            self._listener.listen(BACKLOG)
            self._loop.add_reader(self._listener, self._accept, self._listener)

    async def refuse(self) -> None:
        """Refuse new connections, and reset those that are open."""
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        await self.reset_connections()

    async def reset_connections(self) -> None:
        """Reset those that are open."""
        await cancel(*self._connections)

    def _accept(self, listener: socket.socket) -> None:
        with suppress(BlockingIOError, ConnectionAbortedError):  # it left before it was accepted
            connection, _ = listener.accept()
            connection.setblocking(False)
            task = self._loop.create_task(self._serve_one(connection))
            self._connections[task] = connection
            task.add_done_callback(self._ended)

    async def _serve_one(self, connection: socket.socket) -> None:
        try:
            peer = _peer(*await asyncio.open_connection(sock=connection, limit=BUFFER_BYTES))
        except asyncio.CancelledError:
            _reset_when_closed(connection)  # asyncio closes it in its next turn
            raise
        try:
            await self._serve(peer)
        except (OSError, asyncio.CancelledError):
            peer.reset()
        finally:
            await peer.close()

    def _ended(self, task: asyncio.Task[None]) -> None:
        connection = self._connections.pop(task)
        if connection.fileno() >= 0:  # cancelled before its first step
            _reset_when_closed(connection)
            connection.close()
        if not task.cancelled() and self._failure is None:
            self._failure = task.exception()


def _peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Peer:
    writer.transport.set_write_buffer_limits(0)  # `drain` waits for everything
    return Peer(reader, writer)


def _bound(port: int) -> socket.socket:
    """A socket at a port of the loopback, or at a free one for 0. It does not listen yet."""
    # Named, so that asyncio knows its connections for TCP and sends without delay.
    bound = socket.socket(proto=socket.IPPROTO_TCP)
    try:
        # Lets the one that listens share the port with the one that keeps it.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((HOST, port))
    except OSError:
        bound.close()
        raise
    return bound


def _reset_when_closed(connection: socket.socket) -> None:
    """Have `close` send a RST: the kernel does, of a socket that lingers for no time."""
    with suppress(OSError):  # closed already
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
