"""The end of a partition that is followed: its entries, as far as they are kept in memory."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

from memq.core.queue import QueueEntry
from memq.errors import OffsetOutOfRangeError, QueueError
from memq.queue.kafka.followed import Followed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from memq.errors import MemqError
    from memq.queue.kafka.client import Bounds, KafkaClient, Place, Record

KEPT_BYTES = 256 << 10  # of one partition; readers that keep up are served from it


class Tail(Followed):
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

    def read(self, records: Sequence[Record], reached: int) -> None:
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


def entries_of(records: Iterable[Record]) -> list[QueueEntry]:
    """Return the entries of records that have a value."""
    return [
        QueueEntry(each.offset, each.timestamp_ms, each.value, each.running_ms)
        for each in records
        if each.value is not None
    ]


def within_bytes(entries: Iterable[QueueEntry], max_bytes: int) -> list[QueueEntry]:
    """Return the first of some entries, at least one, of which the payloads fit."""
    taken: list[QueueEntry] = []
    for entry in entries:
        max_bytes -= len(entry.payload)
        if taken and max_bytes < 0:
            break
        taken.append(entry)
    return taken
