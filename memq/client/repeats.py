"""Repeats that a reader can see: a Message that was handed out before, at another offset.

The write side publishes each Message once, so there should be none; a reader that sees one drops it
and counts it. The window remembers which sequences stand at which offsets, in runs: a Batch of a
thousand Messages of one producer is one run. Reading an offset again is no repeat.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import OrderedDict
from typing import TYPE_CHECKING

from memq.core.format.batch import producer_runs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memq.core.format.batch import ProducerRun
    from memq.core.format.index import IndexEntry
    from memq.core.notification.notification import Notification

MAX_RUNS = 100_000  # about 20 MB; with ten producers in each Batch the last 10,000 Batches

_BEYOND = 1 << 63  # more than any sequence
_Place = tuple[int, int]
"""Read partition and offset."""
_Sender = tuple[int, str, int]
"""Write partition, producer id, epoch."""


class RepeatWindow:
    """The sequences of the Batches handed out lately.

    Args:
        max_runs: runs that are remembered; the Batches that were handed out first are forgotten.
    """

    def __init__(self, max_runs: int = MAX_RUNS) -> None:
        self._max_runs = max_runs
        self._runs: dict[_Sender, list[tuple[int, int]]] = {}  # sorted (first, last), disjoint
        self._places: OrderedDict[_Place, list[tuple[_Sender, tuple[int, int]]]] = OrderedDict()
        self._count = 0

    def __repr__(self) -> str:
        return f"<RepeatWindow [{self._count} runs of {len(self._places)} Batches]>"

    def find(
        self, place: tuple[int, int], notification: Notification, entries: Sequence[IndexEntry]
    ) -> list[int]:
        """Remember a Batch that is handed out now; which of its Messages are repeats?

        Args:
            place: read partition and offset of the Batch.
            notification: of the Batch.
            entries: of its Messages.

        Returns:
            Positions in `entries`.
        """
        self._forget(place)
        runs = notification.producers
        write_partition = notification.write_partition
        repeats = []
        if not self._remember(place, write_partition, runs):
            self._forget(place)
            repeats = self._repeats(write_partition, entries)
            dropped = set(repeats)
            kept = [entry for position, entry in enumerate(entries) if position not in dropped]
            self._remember(place, write_partition, producer_runs(kept))
        while self._count > self._max_runs:
            self._forget(next(iter(self._places)))
        return repeats

    def _remember(self, place: _Place, write_partition: int, runs: Sequence[ProducerRun]) -> bool:
        """Add the runs of a Batch; stops with False at the first that overlaps another."""
        added = self._places.setdefault(place, [])
        for run in runs:
            sender = (write_partition, run.producer_id, run.epoch)
            known = self._runs.setdefault(sender, [])
            span = (run.first, run.last)
            if _overlaps(known, *span):
                return False
            insort(known, span)
            added.append((sender, span))
            self._count += 1
        return True

    def _forget(self, place: _Place) -> None:
        for sender, span in self._places.pop(place, []):
            known = self._runs[sender]
            del known[bisect_right(known, span) - 1]
            self._count -= 1
            if not known:
                del self._runs[sender]

    def _repeats(self, write_partition: int, entries: Sequence[IndexEntry]) -> list[int]:
        repeats = []
        here: set[tuple[str, int, int]] = set()
        for position, entry in enumerate(entries):
            name = (entry.producer_id, entry.epoch, entry.sequence)
            known = self._runs.get((write_partition, entry.producer_id, entry.epoch), [])
            if name in here or _overlaps(known, entry.sequence, entry.sequence):
                repeats.append(position)
            here.add(name)
        return repeats


def _overlaps(known: list[tuple[int, int]], first: int, last: int) -> bool:
    """Whether some run of a sorted, disjoint list has a sequence from `first` to `last`."""
    after = bisect_right(known, (last, _BEYOND))  # the first run that begins after `last`
    return after > 0 and known[after - 1][1] >= first
