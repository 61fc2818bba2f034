"""How far a partition was read, for those who wait until it was read further."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from memq.errors import DataLossError, OffsetOutOfRangeError, QueueError
from memq.queue.kafka.client import Reader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from memq.errors import MemqError
    from memq.queue.kafka.client import Bounds, KafkaClient, Place, Record

SEEN_S = 30.0  # for what was written to be seen; an open transaction of the dead takes up to 20
AT_ONCE = 1_000  # records that are read at a time, to see what was written
AT_ONCE_BYTES = 4 << 20


class Reached:
    """How far a partition was read, and who waits for more.

    Attributes:
        offset: everything before it was read.
        error: why it is read no further.
    """

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.error: MemqError | None = None
        self._waiting: dict[asyncio.Future[None], int] = {}

    def __repr__(self) -> str:
        return f"<Reached {self.offset} [{len(self._waiting)} waiting]>"

    def advance(self, offset: int) -> None:
        """Everything before the offset was read."""
        self.offset = max(self.offset, offset)
        for future, wanted in list(self._waiting.items()):
            if wanted <= self.offset and not future.done():
                future.set_result(None)

    def fail(self, error: MemqError) -> None:
        """It is read no further."""
        self.error = error
        for future in self._waiting:
            if not future.done():
                future.set_exception(error)

    async def wait_for(self, offset: int, timeout_s: float, name: object) -> None:
        """Wait until everything before an offset was read.

        Raises:
            QueueError: it was not, in that time.
            MemqError: it is read no further.
        """
        if self.error is not None:
            raise self.error
        if offset <= self.offset:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = offset
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError as exc:
            raise QueueError(
                f"{name} was read up to offset {self.offset} and not to {offset} within "
                f"{timeout_s:g} s: Kafka is slow or away, or a broker that has died has left a "
                "transaction open, which Kafka ends after some seconds. Try again. If the first "
                "offset stays the same for minutes, see in Kafka whether a transaction hangs there"
            ) from exc
        finally:
            del self._waiting[future]


def lost(place: Place, end: int, bounds: Bounds) -> DataLossError:
    """The error for a partition of which Kafka has less than was written to it."""
    return DataLossError(
        f"Kafka has lost data of {place}: it was written up to offset {end}, and is there up to "
        f"{bounds.written} only. See in Kafka's log whether an election was not clean, or a disk "
        "was replaced"
    )


class Followed(Reader, Protocol):
    """A reader that knows how far it has come. It takes nothing twice that comes twice."""

    reached: Reached


async def see(
    client: KafkaClient, place: Place, followed: Followed, bounds: Bounds, timeout_s: float = SEEN_S
) -> None:
    """Let a reader see all that was written to a partition, as its bounds say.

    What is stable is read at once: who follows is told of a marker, after which nothing comes, only
    with the next answer that is empty. For the rest is waited.

    Raises:
        QueueError: it is not all stable within the timeout.
        MemqError: it cannot be read.
    """
    reached = followed.reached
    if reached.error is None and reached.offset < bounds.stable:
        start = max(reached.offset, bounds.start)
        async for records in pages(client, place, start, bounds.stable):
            followed.read(records, records[-1].offset + 1)
        followed.read((), bounds.stable)
    await reached.wait_for(bounds.written, timeout_s, place)


async def pages(
    client: KafkaClient, place: Place, start: int, end: int
) -> AsyncIterator[list[Record]]:
    """What is committed between two offsets, page by page: any may end early, but the empty one.

    Raises:
        QueueError: it was truncated meanwhile.
        MemqError: it cannot be read.
    """
    while start < end:
        try:
            records = await client.read(
                place, start, end, max_records=AT_ONCE, max_bytes=AT_ONCE_BYTES
            )
        except OffsetOutOfRangeError as exc:
            raise QueueError(f"{place} was truncated while it was read; try again") from exc
        if not records:
            return
        start = records[-1].offset + 1
        yield records
