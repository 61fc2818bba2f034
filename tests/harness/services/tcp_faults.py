"""A proxy that breaks and stops TCP connections, between a client and a real service.

It knows nothing of what it passes on; ZooKeeper is what it is for:

    with TcpFaultProxy(("127.0.0.1", 2181)) as proxy:
        connect(proxy.address)
        proxy.freeze()                # the client sees a service that does not answer
        proxy.thaw()                  # everything arrives, only later
        proxy.freeze("to_client")     # requests arrive, answers do not
        proxy.reset()                 # the connections are gone, with what was on its way
        proxy.refuse()                # so are new ones
        proxy.restore()

A switch is in effect when its method returns. What was handed to the kernel before that arrives.
While bytes are frozen, new connections are opened, by the kernel: a frozen service does the same.
Ends of connections, and resets, wait like bytes do.

The port belongs to the proxy also while it refuses connections: a socket that is bound but does not
listen keeps it. So a client that tries again meets the proxy or nobody.
"""

import asyncio
import socket
import struct
from asyncio import StreamReader, StreamWriter
from contextlib import suppress
from typing import Any, Literal, Self

from memq.client.sync import EventLoopThread

Direction = Literal["to_upstream", "to_client"]
DIRECTIONS: tuple[Direction, Direction] = ("to_upstream", "to_client")
HOST = "127.0.0.1"
CHUNK_BYTES = 64 << 10  # passed on at a time


class TcpFaultProxy:
    """Passes bytes on, or does not. Thread-safe.

    Args:
        upstream: host and port of the service. Where nobody listens there, connections are reset.
    """

    def __init__(self, upstream: tuple[str, int]) -> None:
        self._upstream = upstream
        self._flows = {direction: asyncio.Event() for direction in DIRECTIONS}
        for flow in self._flows.values():
            flow.set()
        self._connections: set[asyncio.Task[Any]] = set()
        self._server: asyncio.Server | None = None

    def __repr__(self) -> str:
        return f"<TcpFaultProxy {self.address} for {self._upstream}>"

    def __enter__(self) -> Self:
        self._keeper = _bound(0)
        self._loop = EventLoopThread("tcp-fault-proxy")
        self._loop.run(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run(self._refuse())
        self._loop.close()
        self._keeper.close()

    @property
    def port(self) -> int:
        """Where clients connect to; the same until the proxy ends."""
        return int(self._keeper.getsockname()[1])

    @property
    def address(self) -> str:
        """`host:port`, for clients."""
        return f"{HOST}:{self.port}"

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._connections)

    def refuse(self) -> None:
        """Reset the connections, and refuse new ones until `restore`."""
        self._loop.run(self._refuse())

    def reset(self) -> None:
        """Reset the connections; new ones are served."""
        self._loop.run(self._reset())

    def freeze(self, direction: Direction | None = None) -> None:
        """Pass no bytes on, in one direction or in both, until `thaw`."""
        self._loop.run(self._switch(direction, passes=False))

    def thaw(self) -> None:
        """Pass bytes on again, first those that were held."""
        self._loop.run(self._switch(None, passes=True))

    def restore(self) -> None:
        """End everything that was switched on: accept, and pass on."""
        self.thaw()
        self._loop.run(self._listen())

    # -- in its thread ----------------------------------------------------------------------

    async def _listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, sock=_bound(self.port))

    async def _refuse(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._reset()

    async def _reset(self) -> None:
        connections = [*self._connections]
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    async def _switch(self, direction: Direction | None, *, passes: bool) -> None:
        for each in (direction,) if direction else DIRECTIONS:
            if passes:
                self._flows[each].set()
            else:
                self._flows[each].clear()

    async def _serve(self, client: StreamReader, to_client: StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        writers = [to_client]
        try:
            await self._flows["to_upstream"].wait()
            upstream, to_upstream = await asyncio.open_connection(*self._upstream)
            writers.append(to_upstream)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass(client, to_upstream, "to_upstream"))
                group.create_task(self._pass(upstream, to_client, "to_client"))
        except (OSError, ExceptionGroup, asyncio.CancelledError):
            for writer in writers:
                _reset_when_closed(writer)
        finally:
            self._connections.discard(task)
            for writer in writers:
                writer.close()

    async def _pass(self, source: StreamReader, sink: StreamWriter, direction: Direction) -> None:
        sink.transport.set_write_buffer_limits(0)  # `drain` waits for everything
        flow = self._flows[direction]
        while True:
            try:
                read = await source.read(CHUNK_BYTES)
            except OSError:
                await flow.wait()
                raise
            await flow.wait()
            if not read:
                sink.write_eof()
                return
            sink.write(read)
            await sink.drain()


def _bound(port: int) -> socket.socket:
    """A socket at a port of the loopback, or at a free one for 0. It does not listen yet."""
    # Named, so that asyncio knows its connections for TCP and sends without delay.
    bound = socket.socket(proto=socket.IPPROTO_TCP)
    # Lets the one that listens share the port with the one that keeps it.
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind((HOST, port))
    return bound


def _reset_when_closed(writer: StreamWriter) -> None:
    """Drop what was not sent, and send a RST: the kernel does, of a socket that does not linger."""
    connection = writer.get_extra_info("socket")
    with suppress(OSError):  # closed already
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
