"""Ranges: of the offsets of a topic, and sets of intervals of any whole numbers.

Wherever one is written as `start` and `end`, the end is not part of it. Runs of sequences, which
producers and notifications name by their `first` and `last`, include both.

An offset names a Batch of one topic id. When the topic is deleted and recreated,
offsets begin again at 0 and name other data.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_start = attrgetter("start")


class OffsetRange(NamedTuple):
    """The Batches of one read partition from offset `start` up to, not including, `end`.

    Attributes:
        partition: read partition.
        start: first offset.
        end: one past the last offset.
        topic_id: of the topic; empty for whichever there is.
    """

    partition: int
    start: int
    end: int
    topic_id: str = ""

    @property
    def size(self) -> int:
        """Offsets in it; no fewer than it has Batches, for Kafka's offsets have gaps."""
        return self.end - self.start

    def __str__(self) -> str:
        if self.size <= 0:
            return f"partition {self.partition}, no offsets from {self.start}"
        return f"partition {self.partition}, {offsets_in_words(self.start, self.end)}"


def offsets_in_words(start: int, end: int) -> str:
    """Describe the offsets from `start` up to, not including, `end`: "offsets 1 to 5"."""
    return f"offset {start}" if end - start == 1 else f"offsets {start} to {end - 1}"


def retained_in_words(start: int, end: int) -> str:
    """Describe what a read partition retains, for the end of a sentence."""
    match end - start:
        case 0:
            return f"nothing is retained, and offset {end} comes next"
        case 1:
            return f"retained is only offset {start}"
        case _:
            return f"retained are {offsets_in_words(start, end)}"


def ranges_without(
    ranges: Iterable[OffsetRange], others: Iterable[OffsetRange]
) -> list[OffsetRange]:
    """Return what lies before or after the range of the same partition in `others`."""
    inner = {each.partition: each for each in others}
    parts: list[OffsetRange] = []
    for each in ranges:
        hole = inner[each.partition]
        parts.append(each._replace(end=min(hole.start, each.end)))
        parts.append(each._replace(start=max(hole.end, each.start)))
    return [part for part in parts if part.size > 0]


class Interval(NamedTuple):
    """Whole numbers from `start` up to, not including, `end`."""

    start: int
    end: int


# In what follows a list of intervals is sorted, and its intervals do not meet.


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Intervals that meet or overlap, merged; they come sorted by their start."""
    result: list[Interval] = []
    for start, end in intervals:
        if result and start <= result[-1].end:
            result[-1] = Interval(result[-1].start, max(end, result[-1].end))
        else:
            result.append(Interval(start, end))
    return result


def contains(intervals: Sequence[Interval], number: int) -> bool:
    """Return whether one of the intervals has a number."""
    at = bisect_right(intervals, number, key=_start) - 1
    return at >= 0 and number < intervals[at].end


def intersection(intervals: Sequence[Interval], part: Interval) -> list[Interval]:
    """Return what the intervals have of a part."""
    at = max(0, bisect_right(intervals, part.start, key=_start) - 1)
    result = []
    while at < len(intervals) and intervals[at].start < part.end:
        start, end = max(intervals[at].start, part.start), min(intervals[at].end, part.end)
        if start < end:
            result.append(Interval(start, end))
        at += 1
    return result


def difference(intervals: Iterable[Interval], others: Sequence[Interval]) -> list[Interval]:
    """Return what the intervals have and the others have not."""
    result = []
    for start, end in intervals:
        reach = start
        for other in intersection(others, Interval(start, end)):
            if reach < other.start:
                result.append(Interval(reach, other.start))
            reach = other.end
        if reach < end:
            result.append(Interval(reach, end))
    return result


class IntervalSet:
    """A set of whole numbers, kept as intervals that do not meet. Quick where they come in order.

    Attributes:
        starts: of the intervals, sorted.
        ends: of the intervals, not included.
    """

    __slots__ = ("ends", "starts")

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []

    def __repr__(self) -> str:
        return f"<IntervalSet [{len(self.starts)} intervals]>"

    def __len__(self) -> int:
        """Count the intervals."""
        return len(self.starts)

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self.starts, number) - 1
        return at >= 0 and number < self.ends[at]

    def add(self, start: int, end: int) -> None:
        """Add the numbers of [start, end), at least one."""
        starts, ends = self.starts, self.ends
        if not ends or start > ends[-1]:  # as most are
            starts.append(start)
            ends.append(end)
            return
        if start == ends[-1]:
            ends[-1] = end
            return
        begin = bisect_left(ends, start)  # the first interval that ends at `start` or later
        stop = bisect_right(starts, end)  # one past the last that begins by `end`
        if begin < stop:
            start = min(start, starts[begin])
            end = max(end, ends[stop - 1])
        starts[begin:stop] = [start]
        ends[begin:stop] = [end]

    def intervals(self) -> list[Interval]:
        """Return the intervals, sorted."""
        return list(map(Interval, self.starts, self.ends))

    def pop_first(self) -> Interval:
        """Take the first interval out."""
        return Interval(self.starts.pop(0), self.ends.pop(0))
