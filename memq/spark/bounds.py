"""Where a read begins and ends, as users say it: a word, a time, or JSON of offsets.

JSON is by read partition, `{"0": 5, "1": 7}`, where one topic is read, and by topic and read
partition, `{"clicks": {"0": 5}}`, where several are, as in Spark's Kafka source. It limits a read
to what it names.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from memq.errors import ConfigError
from memq.reading.start import EARLIEST, LATEST, At, Place, time_ms

if TYPE_CHECKING:
    import re
    from collections.abc import Collection, Iterable, Mapping

_WORDS = {"earliest": EARLIEST, "latest": LATEST}


@dataclass(frozen=True)
class Bound:
    """Where a read begins or ends: everywhere at the same place, or by read partition.

    Attributes:
        place: the place in all read partitions.
        partitions: an offset by read partition; others are not read. None where it is about all.
        by_topic: a bound of its own for each topic; others are not read.
    """

    place: Place | None = None
    partitions: Mapping[int, int] | None = None
    by_topic: Mapping[str, Bound] | None = None

    def places(self, partitions: Iterable[int]) -> dict[int, Place]:
        """Return the place in each read partition that it is about.

        Args:
            partitions: of the topic.
        """
        if self.partitions is not None:
            return {**self.partitions}
        return dict.fromkeys(partitions, LATEST if self.place is None else self.place)

    @property
    def latest_ms(self) -> int:
        """The time in it, milliseconds since 1970 UTC; 0 where there is none."""
        return self.place.ms if isinstance(self.place, At) else 0

    def of_topic(self, name: str) -> Bound | None:
        """Return what it says of one topic; None where it is about others."""
        return self if self.by_topic is None else self.by_topic.get(name)


def parse_offsets(text: str) -> Bound:
    """Parse a bound from `earliest`, `latest`, or JSON of offsets.

    Raises:
        ValueError: it is none of these.
    """
    word = _WORDS.get(text.strip().lower())
    if word is not None:
        return Bound(word)
    try:
        found = json.loads(text)
        if found and all(isinstance(each, dict) for each in found.values()):
            return Bound(by_topic={topic: _by_partition(each) for topic, each in found.items()})
        return _by_partition(found)
    except (ValueError, AttributeError, TypeError, RecursionError) as exc:
        raise ValueError(
            'must be earliest, latest, or JSON of read partition to offset such as {"0": 5, '
            '"1": 7}, by topic where several are read such as {"clicks": {"0": 5}}; -2 is '
            "earliest, -1 latest"
        ) from exc


def parse_timestamp(text: str) -> Bound:
    """Parse a bound from a time: milliseconds since 1970, or ISO 8601 with a time zone.

    Raises:
        ValueError: it is no such time.
    """
    found = text.strip()
    return Bound(At(int(found) if found.isdigit() else _iso_ms(found)))


def _by_partition(found: Mapping[str, Any]) -> Bound:
    offsets = {int(partition): _offset(each) for partition, each in found.items()}
    if not offsets or min(offsets) < 0:
        raise ValueError(found)
    return Bound(partitions=offsets)


def _offset(found: Any) -> int:
    if type(found) is not int or found < EARLIEST:
        raise ValueError(found)
    return found


def _iso_ms(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as exc:
        raise ValueError(
            "must be milliseconds since 1970 UTC, or a time such as 2025-06-30T12:00:00Z"
        ) from exc
    if moment.tzinfo is None:
        raise ValueError(f"has no time zone; write {text}Z for UTC")
    return time_ms(moment)


def check_bounds(starting: Bound, ending: Bound) -> None:
    """Refuse bounds that contradict each other.

    Raises:
        ConfigError: the end is before the start, or they name different topics or read partitions.
    """
    named = [set(each.by_topic) for each in (starting, ending) if each.by_topic is not None]
    if named and named[0] != named[-1]:
        raise ConfigError(
            "options 'startingOffsets' and 'endingOffsets' name different topics: "
            f"{', '.join(sorted(named[0]))} and {', '.join(sorted(named[-1]))}"
        )
    for name in sorted(named[0]) if named else [""]:
        first, last = starting.of_topic(name), ending.of_topic(name)
        if first is not None and last is not None:
            _check_topic_bounds(first, last)


def _check_topic_bounds(starting: Bound, ending: Bound) -> None:
    if starting.place == LATEST and ending.place == EARLIEST:
        raise ConfigError("option 'endingOffsets' = 'earliest' ends before the read starts")
    if starting.partitions is None or ending.partitions is None:
        return
    if set(starting.partitions) != set(ending.partitions):
        raise ConfigError(
            "options 'startingOffsets' and 'endingOffsets' name different read partitions: "
            f"{sorted(starting.partitions)} and {sorted(ending.partitions)}"
        )
    for partition, start in starting.partitions.items():
        end = ending.partitions[partition]
        if 0 <= end < start:
            raise ConfigError(
                f"option 'endingOffsets' = {end} for read partition {partition}: it is before "
                f"'startingOffsets' = {start}"
            )


def check_topics(
    read: Collection[str], pattern: re.Pattern[str] | None, bound: Bound, option: str
) -> None:
    """Refuse a bound that does not say which topic it is about, or names one that is not read.

    Args:
        read: names of the topics that are read; none where there is a pattern.
        pattern: of such names.
        bound: where the read begins or ends.
        option: that says so.

    Raises:
        ConfigError: it does.
    """
    if len(read) != 1 and bound.partitions is not None:
        raise ConfigError(
            f"the JSON of option '{option}' does not say of which topic its read partitions are; "
            'where several are read, write {"clicks": {"0": 5}}'
        )
    named = sorted(bound.by_topic or ())
    if pattern is None and named and set(named) != set(read):
        raise ConfigError(
            f"option '{option}' names the topics {', '.join(named)}, and the read is of "
            f"{', '.join(sorted(read))}"
        )
    strange = [name for name in named if pattern is not None and not pattern.fullmatch(name)]
    if strange:
        raise ConfigError(
            f"option '{option}' names topic {strange[0]!r}, which 'subscribePattern' does not match"
        )
