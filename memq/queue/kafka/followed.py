"""A partition that is followed: how far it was read, and who waits until it was read further."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memq.errors import DataLossError, OffsetOutOfRangeError, QueueError
from memq.queue.waiters import Waiters

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from memq.errors import MemqError
    from memq.queue.kafka.client import Bounds, KafkaClient, Place, Record

SEEN_S = 30.0  # for what was written to be seen; an open transaction of the dead takes up to 20
AT_ONCE = 1_000  # records that are read at a time, to see what was written
AT_ONCE_BYTES = 4 << 20


class Followed:
    """A `Reader` of one partition, for those who wait. Records may come to it twice.

    Args:
        client: of Kafka.
        place: the partition.
        reached: everything before this offset was read.

    Attributes:
        place: as given.
        reached: as given, and later ones.
        error: why it is read no further.
    """

    def __init__(self, client: KafkaClient, place: Place, reached: int) -> None:
        self.place = place
        self.reached = reached
        self.error: MemqError | None = None
        self._client = client
        self._readers = Waiters()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.place} to {self.reached}>"

    def read(self, records: Sequence[Record], reached: int) -> None:  # noqa: ARG002 - for subclasses
        """Take the next records; everything before the offset `reached` was read."""
        self.reached = max(self.reached, reached)
        self._readers.wake_all()

    def failed(self, error: MemqError) -> None:
        """Tell those who wait why nothing is read any more."""
        self.error = error
        self._readers.wake_all()

    def unread(self, records: Sequence[Record]) -> list[Record]:
        """Leave out the records that were read before."""
        return [each for each in records if each.offset >= self.reached]

    async def wait_for(self, offset: int, timeout_s: float) -> None:
        """Wait until everything before an offset was read.

        Raises:
            QueueError: it was not, in that time.
            MemqError: it is read no further.
        """

        def ready() -> bool:
            if self.error is not None:
                raise self.error
            return offset <= self.reached

        if not await self._readers.wait(str(self.place), ready, timeout_s):
            raise QueueError(
                f"{self.place} was read up to offset {self.reached} and not to {offset} within "
                f"{timeout_s:g} s: Kafka is slow or away, or a broker that has died has left a "
                "transaction open, which Kafka ends after some seconds. Try again. If the first "
                "offset stays the same for minutes, see in Kafka whether a transaction hangs there"
            )

    async def see(self, bounds: Bounds, timeout_s: float) -> None:
        """Read all that was written to the partition, as its bounds say.

        What is stable is read at once: who follows is told of a marker, after which nothing comes,
        only with the next answer that is empty. For the rest is waited.

        Raises:
            QueueError: it is not all stable within the timeout.
            MemqError: it cannot be read.
        """
        if self.error is None and self.reached < bounds.stable:
            start = max(self.reached, bounds.start)
            async for records in pages(self._client, self.place, start, bounds.stable):
                self.read(records, records[-1].offset + 1)
            self.read((), bounds.stable)
        await self.wait_for(bounds.written, timeout_s)


def lost(place: Place, end: int, bounds: Bounds) -> DataLossError:
    """Return the error for a partition of which Kafka has less than was written to it."""
    return DataLossError(
        f"Kafka has lost data of {place}: it was written up to offset {end}, and is there up to "
        f"{bounds.written} only. See in Kafka's log whether an election was not clean, or a disk "
        "was replaced"
    )


async def pages(
    client: KafkaClient, place: Place, start: int, end: int
) -> AsyncIterator[list[Record]]:
    """Read what is committed between two offsets: any page may end early, but the empty one.

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
