"""Spans of offsets of one read partition, in lists that are sorted and whose spans are apart."""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_start = attrgetter("start")


class Offsets(NamedTuple):
    """Offsets of one read partition from `start` up to, not including, `end`."""

    start: int
    end: int


def joined(spans: Iterable[Offsets]) -> list[Offsets]:
    """Spans that touch or overlap, joined; they come sorted by their start."""
    result: list[Offsets] = []
    for start, end in spans:
        if result and start <= result[-1].end:
            result[-1] = Offsets(result[-1].start, max(end, result[-1].end))
        else:
            result.append(Offsets(start, end))
    return result


def holds(spans: Sequence[Offsets], offset: int) -> bool:
    """Whether one of the spans holds an offset."""
    at = bisect_right(spans, offset, key=_start) - 1
    return at >= 0 and offset < spans[at].end


def common(spans: Sequence[Offsets], part: Offsets) -> list[Offsets]:
    """What the spans have of a part."""
    at = max(0, bisect_right(spans, part.start, key=_start) - 1)
    result = []
    while at < len(spans) and spans[at].start < part.end:
        start, end = max(spans[at].start, part.start), min(spans[at].end, part.end)
        if start < end:
            result.append(Offsets(start, end))
        at += 1
    return result


def without(spans: Iterable[Offsets], others: Sequence[Offsets]) -> list[Offsets]:
    """What the spans have and the others have not."""
    result = []
    for start, end in spans:
        reach = start
        for other in common(others, Offsets(start, end)):
            if reach < other.start:
                result.append(Offsets(reach, other.start))
            reach = other.end
        if reach < end:
            result.append(Offsets(reach, end))
    return result
