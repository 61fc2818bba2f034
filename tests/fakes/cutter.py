"""A network that breaks connections: a TCP proxy in front of the broker.

A broker that is killed takes its memory along. One whose clients lose their connections does not:
it goes on with what it has received, while the clients send the same again, for they cannot know.
So before a cut nothing is passed on to the client any more for a while: acks are made, and lost.
"""

import asyncio
import random
from contextlib import suppress
from typing import Self

CHUNK_BYTES = 64 << 10
DEAF_S = 0.1  # longest time for which answers are lost before a cut


class Cutter:
    """Passes bytes on to a broker, for a time.

    Args:
        target: `host:port` of the broker.
        rng: decides when to cut.
        mean_s: that a connection lasts.
    """

    def __init__(self, target: str, rng: random.Random, mean_s: float) -> None:
        self._target = target.split(":")
        self._rng = rng
        self._mean_s = mean_s
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task] = set()
        self.address = ""
        self.cuts = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = "{}:{}".format(*self._server.sockets[0].getsockname())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._serving.add(asyncio.current_task())
        try:
            # The broker may be dead; and asyncio logs a cancelled task of this kind as a bug.
            with suppress(OSError, asyncio.CancelledError):
                await self._pass_on(reader, writer)
        finally:
            writer.transport.abort()
            self._serving.discard(asyncio.current_task())

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        broker_reader, broker_writer = await asyncio.open_connection(*self._target)
        deaf = asyncio.Event()
        pumps = [
            asyncio.create_task(_pump(reader, broker_writer, asyncio.Event())),
            asyncio.create_task(_pump(broker_reader, writer, deaf)),
        ]
        try:
            ended, _ = await asyncio.wait(
                pumps,
                timeout=self._rng.expovariate(1 / self._mean_s),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if not ended:
                self.cuts += 1
                deaf.set()
                await asyncio.sleep(self._rng.uniform(0, DEAF_S))
        finally:
            broker_writer.transport.abort()
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, deaf: asyncio.Event
) -> None:
    """Pass bytes on, or drop them once `deaf` is set, until one side ends."""
    with suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            if not deaf.is_set():
                writer.write(data)
                await writer.drain()
