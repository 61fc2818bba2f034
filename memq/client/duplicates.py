"""Duplicates that a reader can see: Messages that were handed out before, at another offset.

The write side publishes each Message once, so there should be none; a reader that sees one drops it
and counts it. A duplicate has the name of the earlier Message (write partition, producer id, epoch,
sequence) and the same CRC32C. The name alone is not enough: a stable producer id that starts over
with other content, long after the broker has forgotten it, publishes new Messages under old names.
Reading the same offset again makes no duplicates.

The window holds, for each sender, runs of consecutive sequences with their CRC32Cs, 4 bytes each.

Who plans what to read needs no window for all of it. Each notification lists its Messages as runs
of consecutive sequences per producer and epoch. `MessageNames` merges the runs of each sender into
intervals; a sender that sends on and on costs one interval, whatever it has sent. A run that
overlaps an interval has Messages whose names are known: only Batches with one of them need to be
compared, CRC32C by CRC32C.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from memq.core.ranges import IntervalSet

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from memq.core.format.index import IndexEntry
    from memq.core.notification.notification import Notification
    from memq.core.ranges import Interval

MAX_RUNS = 100_000  # about 20 MB; with ten producers in each Batch the last 10,000 Batches
MAX_INTERVALS = 1_000_000  # about 150 MB at the worst; with no gaps one for each sender

Sender = tuple[int, str, int]
"""Write partition, producer id, epoch."""

Duplicates = dict[tuple[int, int], frozenset[int]]
"""Positions of Messages that are duplicates, by read partition and offset of their Batch."""

_BatchOffset = tuple[int, int]
"""Read partition and offset."""


class _Run(NamedTuple):
    """Consecutive sequences of one sender, from `first` on, in one Batch."""

    first: int
    crcs: array[int]


class DuplicateWindow:
    """The Messages of the Batches handed out lately.

    Args:
        max_runs: runs that are remembered; the Batches that were handed out first are forgotten.
    """

    def __init__(self, max_runs: int = MAX_RUNS) -> None:
        self._max_runs = max_runs
        self._runs: dict[Sender, list[_Run]] = {}  # sorted, no sequence twice
        self._batches: OrderedDict[_BatchOffset, list[tuple[Sender, _Run]]] = OrderedDict()
        self._count = 0

    def __repr__(self) -> str:
        return f"<DuplicateWindow [{self._count} runs of {len(self._batches)} Batches]>"

    def find(
        self, at_offset: tuple[int, int], write_partition: int, entries: Sequence[IndexEntry]
    ) -> list[int]:
        """Remember a Batch that is handed out now; which of its Messages are duplicates?

        Args:
            at_offset: read partition and offset of the Batch.
            write_partition: of the Batch.
            entries: of its Messages.

        Returns:
            Positions in `entries`, sorted.
        """
        self._forget(at_offset)
        self._batches[at_offset] = []
        duplicates: list[int] = []
        for sender, positions in _by_sender(write_partition, entries).items():
            known = self._runs.setdefault(sender, [])
            fresh: dict[int, int] = {}
            started_over = False
            for position in positions:
                sequence, crc = entries[position].sequence, entries[position].crc32c
                earlier = fresh.get(sequence, _crc_of(known, sequence))
                if earlier == crc:
                    duplicates.append(position)
                else:
                    fresh[sequence] = crc
                    started_over |= earlier is not None
            if started_over:
                self._count -= len(known)
                known.clear()
            self._remember(at_offset, sender, known, fresh)
        while self._count > self._max_runs:
            self._forget(next(iter(self._batches)))
        return sorted(duplicates)

    def _remember(
        self, at_offset: _BatchOffset, sender: Sender, known: list[_Run], fresh: dict[int, int]
    ) -> None:
        for run in _runs_of(fresh):
            known.insert(bisect_right(known, run.first, key=_first), run)
            self._batches[at_offset].append((sender, run))
            self._count += 1
        if not known:
            del self._runs[sender]

    def _forget(self, at_offset: _BatchOffset) -> None:
        for sender, run in self._batches.pop(at_offset, []):
            known = self._runs.get(sender, [])
            at = bisect_right(known, run.first, key=_first) - 1
            if at >= 0 and known[at] is run:  # else the sender has started over since
                del known[at]
                self._count -= 1
                if not known:
                    del self._runs[sender]


class MessageNames:
    """Names of Messages: sequences by sender.

    Args:
        max_intervals: most intervals to keep; beyond, the senders not seen for longest are
            forgotten.

    Attributes:
        forgotten: senders that had to be forgotten; duplicates of their Messages are not found.
    """

    def __init__(self, max_intervals: float = math.inf) -> None:
        self.forgotten = 0
        self._max_intervals = max_intervals
        self._intervals = 0
        self._senders: OrderedDict[Sender, IntervalSet] = OrderedDict()

    def __repr__(self) -> str:
        return f"<MessageNames [{len(self._senders)} senders, {self._intervals} intervals]>"

    def __bool__(self) -> bool:
        return bool(self._senders)

    def add(self, sender: Sender, start: int, end: int) -> None:
        """Add the sequences [start, end) of a sender."""
        intervals = self._senders.setdefault(sender, IntervalSet())
        before = len(intervals)
        intervals.add(start, end)
        self._intervals += len(intervals) - before

    def add_batch(self, notification: Notification, known: MessageNames) -> None:
        """Add the Messages of a Batch; names that were in here before go to `known`."""
        senders = self._senders
        for run in notification.producers:
            sender = (notification.write_partition, run.producer_id, run.epoch)
            intervals = senders.get(sender)
            if intervals is None:
                intervals = senders[sender] = IntervalSet()
            elif run.first < intervals.ends[-1]:  # most runs come after what is known
                for start, end in intervals.intersection(run.first, run.last + 1):
                    known.add(sender, start, end)
            before = len(intervals.starts)
            intervals.add(run.first, run.last + 1)
            self._intervals += len(intervals.starts) - before
            senders.move_to_end(sender)
        while self._intervals > self._max_intervals and len(senders) > 1:
            _, dropped = senders.popitem(last=False)
            self._intervals -= len(dropped)
            self.forgotten += 1

    def intersection(self, notification: Notification) -> Iterator[tuple[Sender, Interval]]:
        """The names of the Messages of a Batch that are in here."""
        for run in notification.producers:
            sender = (notification.write_partition, run.producer_id, run.epoch)
            if (intervals := self._senders.get(sender)) is not None:
                for interval in intervals.intersection(run.first, run.last + 1):
                    yield sender, interval


def _first(run: _Run) -> int:
    return run.first


def _by_sender(write_partition: int, entries: Sequence[IndexEntry]) -> dict[Sender, list[int]]:
    """Positions of the Messages of each sender."""
    found: dict[Sender, list[int]] = {}
    for position, entry in enumerate(entries):
        sender = (write_partition, entry.producer_id, entry.epoch)
        found.setdefault(sender, []).append(position)
    return found


def _crc_of(known: list[_Run], sequence: int) -> int | None:
    """CRC32C of a sequence, if it is known."""
    at = bisect_right(known, sequence, key=_first) - 1
    if at < 0 or sequence - known[at].first >= len(known[at].crcs):
        return None
    return known[at].crcs[sequence - known[at].first]


def _runs_of(fresh: dict[int, int]) -> Iterator[_Run]:
    """CRC32Cs by sequence as runs of consecutive sequences."""
    run: _Run | None = None
    for sequence, crc in sorted(fresh.items()):
        if run is not None and sequence == run.first + len(run.crcs):
            run.crcs.append(crc)
        else:
            if run is not None:
                yield run
            run = _Run(sequence, array("I", [crc]))
    if run is not None:
        yield run
