"""The end of a partition that is followed: its entries, as far as they are kept in memory."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

from memq.core.queue import QueueEntry
from memq.errors import OffsetOutOfRangeError, QueueError
from memq.queue.kafka.reached import Reached

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from memq.errors import MemqError
    from memq.queue.kafka.client import Record

KEPT_BYTES = 1 << 20  # of one partition; readers that keep up are served from it


class Tail:
    """A partition from some offset on, as it is followed; a `Reader`.

    Args:
        start: first offset that is retained.
        reached: everything before it was read.
        entries: its last entries before that, in order; none only where there are none.
        on_entries: called when there are more, or an end.

    Attributes:
        start: as given, and later ones.
        end: one past the last entry; the start, when there is none.
        reached: how far it was read.
        last: the last entry that was read.
        used_s: when somebody asked about it last.
        looked_s: when it was seen last what is retained.
    """

    def __init__(
        self,
        start: int,
        reached: int,
        entries: Sequence[QueueEntry],
        on_entries: Callable[[], None],
    ) -> None:
        self.start = self.end = start
        self.reached = Reached(reached)
        self.last: QueueEntry | None = None
        self.used_s = self.looked_s = 0.0
        self._entries: deque[QueueEntry] = deque()
        self._size_bytes = 0
        self._kept_from = entries[0].offset if entries else start  # all since then is kept
        self._on_entries = on_entries
        self._add(entries)

    def __repr__(self) -> str:
        return f"<Tail {self.start} to {self.end} [{len(self._entries)} kept]>"

    def read(self, records: Sequence[Record], reached: int) -> None:
        """These records are the next."""
        before = self.end
        self._add(entries_of(each for each in records if each.offset >= self.reached.offset))
        self.reached.advance(reached)
        if self.end > before:
            self._on_entries()

    def failed(self, error: MemqError) -> None:
        """There is nothing to follow any more."""
        if isinstance(error, OffsetOutOfRangeError):  # ours, and nobody's who asks
            error = QueueError(f"the partition was truncated faster than it was followed: {error}")
        self.reached.fail(error)
        self._on_entries()

    def forget_before(self, offset: int) -> None:
        """Retention has come so far."""
        self.start = max(self.start, offset)
        self.end = max(self.end, self.start)
        while self._entries and self._entries[0].offset < self.start:
            self._size_bytes -= len(self._entries.popleft().payload)

    def fetch(self, offset: int, max_entries: int, max_bytes: int) -> list[QueueEntry] | None:
        """Entries from an offset on, at least one; None when they are not kept."""
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
    """The entries of records that have a value."""
    return [
        QueueEntry(each.offset, each.timestamp_ms, each.value, each.running_ms)
        for each in records
        if each.value is not None
    ]


def within_bytes(entries: Iterable[QueueEntry], max_bytes: int) -> list[QueueEntry]:
    """The first of some entries, at least one, of which the payloads fit."""
    taken: list[QueueEntry] = []
    for entry in entries:
        max_bytes -= len(entry.payload)
        if taken and max_bytes < 0:
            break
        taken.append(entry)
    return taken
