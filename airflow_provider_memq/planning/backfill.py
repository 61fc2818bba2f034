"""Which ranges a backfill runs.

Theory of operation
-------------------
A job writes the rows of a range to a folder that is named by the range. Two ranges that share an
offset would be two folders with the same rows. So what was cut once is never cut otherwise:

- what is planned is taken in whole ranges, as it was planned;
- what lies before the first plan is cut by the first backfill that needs it, and how is stored in
  an asset event (`Cuts`), in one transaction with the success of its task. Every later backfill,
  of whatever window, takes those ranges as they are;
- what lies after the last plan is left to the planner;
- what was planned in a range that Airflow has forgotten is refused: nobody knows where it began.

A range whose manifest says that it is written is left out. That is the whole state of a backfill:
one that was killed is begun again and goes on where it was, as its ranges are the same.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec

from memq.core.ranges import Interval, OffsetRange, difference, union
from memq.errors import CorruptDataError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
CUTS_KEY = "memq_backfill"  # in the extra of an event of the plan's asset


class Cuts(msgspec.Struct, frozen=True, kw_only=True):
    """Ranges that a backfill has cut: the extra of an event.

    Attributes:
        topic_id: of the topic.
        stretches: where ranges that meet begin and end, by read partition.
    """

    topic_id: str
    stretches: dict[int, list[list[int]]]

    @classmethod
    def of(cls, ranges: Iterable[OffsetRange], topic_id: str) -> Cuts:
        """Return the cuts of some ranges."""
        stretches: dict[int, list[list[int]]] = {}
        for each in sorted(ranges):
            mine = stretches.setdefault(each.partition, [])
            if mine and mine[-1][-1] == each.start:
                mine[-1].append(each.end)
            else:
                mine.append([each.start, each.end])
        return cls(topic_id=topic_id, stretches=stretches)

    @property
    def ranges(self) -> list[OffsetRange]:
        """The ranges."""
        return [
            OffsetRange(partition, *bounds, self.topic_id)
            for partition, stretches in self.stretches.items()
            for stretch in stretches
            for bounds in pairwise(stretch)
        ]

    def to_extra(self) -> dict[str, Any]:
        """Return the cuts as plain JSON."""
        plain: dict[str, Any] = msgspec.to_builtins(self, str_keys=True)
        return {CUTS_KEY: plain}


def cuts_of(extra: object) -> Cuts | None:
    """Return what an event's extra says that a backfill has cut; None in another event.

    Raises:
        CorruptDataError: it is damaged.
    """
    if not isinstance(extra, dict) or CUTS_KEY not in extra:
        return None
    try:
        return msgspec.convert(extra[CUTS_KEY], Cuts, strict=True, str_keys=True)
    except msgspec.ValidationError as exc:
        raise CorruptDataError(f"an asset event of a backfill is damaged: {exc}") from exc


def uncut(
    wanted: Iterable[OffsetRange], known: Collection[OffsetRange], origins: Mapping[int, int]
) -> list[OffsetRange]:
    """Return what is wanted, lies before the first plan, and was never cut.

    Args:
        wanted: offsets.
        known: ranges that were cut: planned, or by a backfill.
        origins: where the first plan began, by read partition.
    """
    return _without(_within(wanted, {}, origins), known)


def forgotten(
    wanted: Iterable[OffsetRange],
    known: Collection[OffsetRange],
    origins: Mapping[int, int],
    ends: Mapping[int, int],
) -> list[OffsetRange]:
    """Return what is wanted and was planned, in ranges of which Airflow remembers nothing.

    Args:
        wanted: offsets.
        known: ranges that were cut, and what plans have left out.
        origins: where the first plan began, by read partition.
        ends: where the last one ended.
    """
    return _without(_within(wanted, origins, ends), known)


def _within(
    wanted: Iterable[OffsetRange], starts: Mapping[int, int], ends: Mapping[int, int]
) -> list[OffsetRange]:
    found = [
        each._replace(
            start=max(each.start, starts.get(each.partition, each.start)),
            end=min(each.end, ends.get(each.partition, each.end)),
        )
        for each in wanted
    ]
    return [each for each in found if each.start < each.end]


def _without(wanted: Iterable[OffsetRange], known: Iterable[OffsetRange]) -> list[OffsetRange]:
    held: defaultdict[int, list[Interval]] = defaultdict(list)
    for each in sorted(known):
        held[each.partition].append(Interval(each.start, each.end))
    joined = {partition: union(intervals) for partition, intervals in held.items()}
    return [
        each._replace(start=start, end=end)
        for each in wanted
        for start, end in difference(
            [Interval(each.start, each.end)], joined.get(each.partition, [])
        )
    ]
