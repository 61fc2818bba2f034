"""A partition that is followed: how far it was read, who waits for more, and its last entries."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

from memq.core.queue import QueueEntry, within_bytes
from memq.errors import DataLossError, OffsetOutOfRangeError, QueueError
from memq.queue.waiters import Waiters

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

    from memq.errors import MemqError
    from memq.queue.kafka.client import Bounds, KafkaClient, KafkaRecord, Place

SEEN_S = 30.0  # for what was written to be seen; an open transaction of the dead takes up to 20
AT_ONCE = 1_000  # records that are read at a time, to see what was written
AT_ONCE_BYTES = 4 << 20
KEPT_BYTES = 256 << 10  # of one partition; readers that keep up are served from it


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

    def read(self, records: Sequence[KafkaRecord], reached: int) -> None:  # noqa: ARG002 - for subclasses
        """Take the next records; everything before the offset `reached` was read."""
        self.reached = max(self.reached, reached)
        self._readers.wake_all()

    def failed(self, error: MemqError) -> None:
        """Tell those who wait why nothing is read any more."""
        self.error = error
        self._readers.wake_all()

    def unread(self, records: Sequence[KafkaRecord]) -> list[KafkaRecord]:
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

        What is stable is read at once: followers are told of a marker, after which nothing comes,
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


class PartitionTail(Followed):
    """A partition from some offset on, and its last entries.

    Args:
        client: of Kafka.
        place: the partition.
        bounds: what it has; all that is stable was read.
        entries: its last entries before that, in order; none only where there are none.
        on_entries: called when there are more, or an end.

    Attributes:
        start: first offset that is retained.
        end: one past the last entry; the start, when there is none.
        last: the last entry that was read.
        looked_s: when it was seen last what is retained.
    """

    def __init__(
        self,
        client: KafkaClient,
        place: Place,
        bounds: Bounds,
        entries: Sequence[QueueEntry],
        on_entries: Callable[[], None],
    ) -> None:
        super().__init__(client, place, bounds.stable)
        self.start = self.end = bounds.start
        self.last: QueueEntry | None = None
        self.looked_s = 0.0
        self._entries: deque[QueueEntry] = deque()
        self._size_bytes = 0
        self._kept_from = entries[0].offset if entries else bounds.start  # all since then is kept
        self._on_entries = on_entries
        self._add(entries)

    def read(self, records: Sequence[KafkaRecord], reached: int) -> None:
        """Take the next records, and wake those who wait for entries."""
        before = self.end
        self._add(entries_of(self.unread(records)))
        super().read(records, reached)
        if self.end > before:
            self._on_entries()

    def failed(self, error: MemqError) -> None:
        """Tell those who wait that there is nothing to follow any more."""
        if isinstance(error, OffsetOutOfRangeError):  # ours, and nobody's who asks
            error = QueueError(f"the partition was truncated faster than it was followed: {error}")
        super().failed(error)
        self._on_entries()

    def forget_before(self, offset: int) -> None:
        """Drop the entries that retention has removed."""
        self.start = max(self.start, offset)
        self.end = max(self.end, self.start)
        while self._entries and self._entries[0].offset < self.start:
            self._size_bytes -= len(self._entries.popleft().payload)

    def fetch(self, offset: int, max_entries: int, max_bytes: int) -> list[QueueEntry] | None:
        """Return entries from an offset on, at least one; None when they are not kept."""
        if offset < self._kept_from:
            return None
        first = bisect_left(self._entries, offset, key=lambda entry: entry.offset)
        return within_bytes(islice(self._entries, first, first + max_entries), max_bytes)

    def _add(self, entries: Sequence[QueueEntry]) -> None:
        for entry in entries:
            self._entries.append(entry)
            self._size_bytes += len(entry.payload)
            self.end, self.last = entry.offset + 1, entry
        while self._size_bytes > KEPT_BYTES:
            gone = self._entries.popleft()
            self._size_bytes -= len(gone.payload)
            self._kept_from = gone.offset + 1


def lost(place: Place, end: int, bounds: Bounds) -> DataLossError:
    """Return the error for a partition of which Kafka has less than was written to it."""
    return DataLossError(
        f"Kafka has lost data of {place}: it was written up to offset {end}, and is there up to "
        f"{bounds.written} only. See in Kafka's log whether an election was not clean, or a disk "
        "was replaced"
    )


async def pages(
    client: KafkaClient, place: Place, start: int, end: int
) -> AsyncIterator[list[KafkaRecord]]:
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


def entries_of(records: Iterable[KafkaRecord]) -> list[QueueEntry]:
    """Return the entries of records that have a value."""
    return [
        QueueEntry(each.offset, each.timestamp_ms, each.value, each.running_ms)
        for each in records
        if each.value is not None
    ]
