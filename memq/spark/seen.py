"""Which Messages appear under a name that was seen before: the hint that there may be a repeat.

Theory of operation
-------------------
Each notification lists its Messages as runs of consecutive sequences per producer and epoch. A
`Seen` merges the runs of each sender (write partition, producer id, epoch) into disjoint
intervals; a sender that sends on and on costs one interval, whatever it has sent. A run that meets
an interval names Messages that were seen before. Those names are noted, and the few Batches that
hold one of them are then compared by their indexes, CRC32C by CRC32C (`memq.spark.repeats`): the
name alone is not enough, for a producer id that starts over sends new Messages under old names.

So without repeats, which is how it should be, a plan reads notifications and nothing else.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memq.core.notification.notification import Notification

Sender = tuple[int, str, int]
"""Write partition, producer id, epoch."""

MAX_INTERVALS = 1_000_000  # about 150 MB at the worst; with no gaps one for each sender


class Intervals:
    """Disjoint intervals of whole numbers, both ends included, merged where they touch."""

    __slots__ = ("firsts", "lasts")

    def __init__(self) -> None:
        self.firsts: list[int] = []
        self.lasts: list[int] = []

    def __len__(self) -> int:
        return len(self.firsts)

    def meets(self, first: int, last: int) -> bool:
        """Whether some number of [first, last] is in an interval."""
        at = bisect_right(self.firsts, last) - 1
        return at >= 0 and self.lasts[at] >= first

    def common(self, first: int, last: int) -> list[tuple[int, int]]:
        """The parts of [first, last] that are in intervals."""
        start = bisect_right(self.lasts, first - 1)
        stop = bisect_right(self.firsts, last)
        return [
            (max(first, self.firsts[at]), min(last, self.lasts[at])) for at in range(start, stop)
        ]

    def add(self, first: int, last: int) -> None:
        """Merge [first, last] in."""
        firsts, lasts = self.firsts, self.lasts
        if not lasts or first > lasts[-1] + 1:  # as most are
            firsts.append(first)
            lasts.append(last)
            return
        if first == lasts[-1] + 1:
            lasts[-1] = last
            return
        start = bisect_right(lasts, first - 2)  # the first that ends at first - 1 or later
        stop = bisect_right(firsts, last + 1)  # one past the last that begins by last + 1
        if start < stop:
            first = min(first, firsts[start])
            last = max(last, lasts[stop - 1])
        firsts[start:stop] = [first]
        lasts[start:stop] = [last]


class Seen:
    """The Messages that some notifications name.

    Args:
        max_intervals: most intervals to hold; then the senders not seen for longest are forgotten.

    Attributes:
        forgotten: senders that had to be forgotten; a repeat of theirs is not seen.
    """

    def __init__(self, max_intervals: int = MAX_INTERVALS) -> None:
        self.forgotten = 0
        self._max_intervals = max_intervals
        self._count = 0
        self._senders: OrderedDict[Sender, Intervals] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Seen [{len(self._senders)} senders, {self._count} intervals]>"

    def __bool__(self) -> bool:
        return bool(self._senders)

    def compare(self, notification: Notification, names: Names) -> None:
        """Note in `names` which Messages of a Batch are known by their names."""
        for run in notification.producers:
            sender = (notification.write_partition, run.producer_id, run.epoch)
            known = self._senders.get(sender)
            if known is not None and run.first <= known.lasts[-1]:
                for first, last in known.common(run.first, run.last):
                    names.add(sender, first, last)

    def add(self, notification: Notification) -> None:
        """Take in the Messages of a Batch."""
        senders = self._senders
        for run in notification.producers:
            sender = (notification.write_partition, run.producer_id, run.epoch)
            known = senders.get(sender)
            if known is None:
                known = senders[sender] = Intervals()
            before = len(known.firsts)
            known.add(run.first, run.last)
            self._count += len(known.firsts) - before
            senders.move_to_end(sender)
        while self._count > self._max_intervals and len(senders) > 1:
            _, dropped = senders.popitem(last=False)
            self._count -= len(dropped)
            self.forgotten += 1


class History:
    """The Messages named lately, for a reader that goes on without end.

    What was named within the window is known; what is older is forgotten after twice the window at
    the latest.

    Args:
        window_ms: how long a name is to be known.
    """

    def __init__(self, window_ms: int) -> None:
        self._window_ms = window_ms
        self._old = Seen()
        self._young = Seen()
        self._since_ms: int | None = None  # when the young one began

    def __repr__(self) -> str:
        return f"<History {self._old!r} {self._young!r}>"

    @property
    def forgotten(self) -> int:
        """Senders that had to be forgotten for want of memory."""
        return self._old.forgotten + self._young.forgotten

    def add(self, notification: Notification, timestamp_ms: int, names: Names) -> None:
        """Take in a Batch published at a time; names that are known go to `names`."""
        if self._since_ms is None:
            self._since_ms = timestamp_ms
        elif timestamp_ms - self._since_ms > self._window_ms:
            self._old, self._young, self._since_ms = self._young, Seen(), timestamp_ms
        if self._old:
            self._old.compare(notification, names)
        self._young.compare(notification, names)
        self._young.add(notification)


class Names:
    """Names of Messages: sequences by sender."""

    def __init__(self) -> None:
        self._senders: dict[Sender, Intervals] = {}

    def __bool__(self) -> bool:
        return bool(self._senders)

    def add(self, sender: Sender, first: int, last: int) -> None:
        """Note the sequences [first, last] of a sender."""
        self._senders.setdefault(sender, Intervals()).add(first, last)

    def name_some_of(self, notification: Notification) -> bool:
        """Whether a Batch holds a Message of one of these names."""
        return any(
            (known := self._senders.get((notification.write_partition, run.producer_id, run.epoch)))
            is not None
            and known.meets(run.first, run.last)
            for run in notification.producers
        )
