"""A proxy that breaks, stops and delays TCP connections, between a client and a real service.

It knows nothing of what it passes on; Kafka and ZooKeeper are what it is for. A Kafka client opens
connections to the addresses that the brokers advertise. So the proxy starts first, the broker is
told to advertise `proxy.port`, and then the proxy is told where the broker is:

    with TcpFaultProxy() as proxy:
        start_broker(advertised_port=proxy.port, port=19092)
        proxy.upstream = ("127.0.0.1", 19092)
        proxy.freeze()                # the client sees a broker that does not answer
        proxy.thaw()                  # everything arrives, only later
        proxy.freeze("to_client")     # requests arrive, answers do not
        proxy.reset()                 # the connections are gone, with what was on its way
        proxy.restore()

A switch is in effect when its method returns. What was handed to the kernel before that arrives.
While bytes are frozen, new connections are opened, by the kernel: a frozen service does the same.
Ends of connections, and resets, wait like bytes do.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal, Self

from tests.harness.services.proxy_loop import CHUNK_BYTES, HOST, ProxyLoop, connected

if TYPE_CHECKING:
    from typing import TypeAlias

    from tests.harness.services.proxy_loop import Peer

    _Held: TypeAlias = asyncio.Queue[tuple[float, bytes | OSError]]

Direction = Literal["to_upstream", "to_client"]
DIRECTIONS: tuple[Direction, Direction] = ("to_upstream", "to_client")

MAX_CHUNKS = 64
"""Held of each direction of a connection: 4 MiB. With a delay, no more than that is on its way at a
time; a sender that is faster waits."""


class TcpFaultProxy:
    """Passes bytes on, or does not. Thread-safe.

    Args:
        upstream: host and port of the service; None if it is not known yet.

    Attributes:
        upstream: where connections that are opened from now on lead to. Without it, or when nobody
            listens there, they are reset.
    """

    def __init__(self, upstream: tuple[str, int] | None = None) -> None:
        self._loop = ProxyLoop(self._serve, "tcp-fault-proxy")
        self.upstream = upstream
        self._flows = {direction: asyncio.Event() for direction in DIRECTIONS}
        self._delays_s = dict.fromkeys(DIRECTIONS, 0.0)
        self._refuses = False
        for flow in self._flows.values():
            flow.set()

    def __repr__(self) -> str:
        target = "{}:{}".format(*self.upstream) if self.upstream else "nowhere yet"
        states = [f"{self.connections} open"]
        if self._refuses:
            states.append("refuses")
        for direction in DIRECTIONS:
            if not self._flows[direction].is_set():
                states.append(f"frozen {direction}")
            if self._delays_s[direction]:
                states.append(f"{direction} {self._delays_s[direction]:g} s later")
        return f"<TcpFaultProxy {self.address} for {target} [{', '.join(states)}]>"

    def __enter__(self) -> Self:
        self._loop.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.stop()

    @property
    def port(self) -> int:
        """Where clients connect to; the same until the proxy ends."""
        return self._loop.port

    @property
    def address(self) -> str:
        """`host:port`, for clients."""
        return f"{HOST}:{self.port}"

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return self._loop.connections

    def refuse(self) -> None:
        """Reset the connections, and refuse new ones until `restore`."""
        self._refuses = True
        self._loop.call(self._loop.refuse())

    def reset(self) -> None:
        """Reset the connections; new ones are served."""
        self._loop.call(self._loop.reset_connections())

    def freeze(self, direction: Direction | None = None) -> None:
        """Pass no bytes on, in one direction or in both, until `thaw`."""
        self._loop.call(self._freeze((direction,) if direction else DIRECTIONS))

    def thaw(self, direction: Direction | None = None) -> None:
        """Pass bytes on again, in one direction or in both, first those that were held."""
        self._loop.call(self._thaw((direction,) if direction else DIRECTIONS))

    def delay(self, delay_s: float, direction: Direction | None = None) -> None:
        """Pass bytes on so much later than they come, in one direction or in each of both.

        Those that came before keep their time.
        """
        if delay_s < 0:
            raise ValueError(f"delay_s is {delay_s}; bytes cannot arrive before they are sent")
        self._delays_s |= dict.fromkeys((direction,) if direction else DIRECTIONS, delay_s)

    def restore(self) -> None:
        """End everything that was switched on: accept, pass on, without delay."""
        self.delay(0)
        self.thaw()
        self._loop.call(self._loop.listen())
        self._refuses = False

    async def _freeze(self, directions: tuple[Direction, ...]) -> None:
        for direction in directions:
            self._flows[direction].clear()

    async def _thaw(self, directions: tuple[Direction, ...]) -> None:
        for direction in directions:
            self._flows[direction].set()

    async def _serve(self, client: Peer) -> None:
        if self.upstream is None:
            raise ConnectionRefusedError("there is no upstream yet")
        async with connected(*self.upstream) as upstream:
            try:
                async with asyncio.TaskGroup() as group:
                    self._pass(group, client, upstream, "to_upstream")
                    self._pass(group, upstream, client, "to_client")
            except* OSError as errors:
                raise ConnectionResetError("one side was reset: so is the other") from errors

    def _pass(
        self, group: asyncio.TaskGroup, source: Peer, sink: Peer, direction: Direction
    ) -> None:
        held: _Held = asyncio.Queue(MAX_CHUNKS)
        group.create_task(self._take(source, held, direction))
        group.create_task(self._hand_on(held, sink, direction))

    async def _take(self, source: Peer, held: _Held, direction: Direction) -> None:
        """Read until the end or a reset, which are held like bytes are."""
        clock = asyncio.get_running_loop()
        read: bytes | OSError = b"to be read"
        while read and not isinstance(read, OSError):
            try:
                read = await source.reader.read(CHUNK_BYTES)
            except OSError as error:
                read = error
            await held.put((clock.time() + self._delays_s[direction], read))

    async def _hand_on(self, held: _Held, sink: Peer, direction: Direction) -> None:
        clock = asyncio.get_running_loop()
        while True:
            due_s, read = await held.get()
            if due_s > clock.time():
                await asyncio.sleep(due_s - clock.time())
            await self._flows[direction].wait()
            if isinstance(read, OSError):
                raise read
            if not read:
                sink.writer.write_eof()
                return
            await sink.send(read)
