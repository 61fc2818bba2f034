"""Where reading begins: words, times and offsets become offsets of each partition."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal, NamedTuple

from memq.errors import ConfigError, InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memq.core.wire.messages import PartitionOffsets
    from memq.reading.log import TopicLog

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

EARLIEST, LATEST = -2, -1  # in place of an offset, as in the JSON of Spark's Kafka source


class At(NamedTuple):
    """The first Batch published at a time or later.

    Attributes:
        ms: the time, milliseconds since 1970 UTC.
    """

    ms: int


Place = int | At
"""A place in a read partition: an offset, `EARLIEST`, `LATEST`, or a time."""

Start = Literal["earliest", "latest"] | datetime | Mapping[int, int]
"""`earliest`: the oldest Batch retained; `latest`: only what is published from then on; a time: the
first Batch published at that time or later, so that no LogMessage written since is missed; or
offsets by partition, `earliest` for partitions that are not named."""


def check_start(start: Start) -> None:
    """Refuse what is no start.

    Raises:
        ConfigError: naming the value and what there is.
    """
    if isinstance(start, datetime):
        time_ms(start)
    elif isinstance(start, Mapping):
        check_offsets(start)
    elif start not in ("earliest", "latest"):
        raise ConfigError(
            f"start = {start!r}: must be 'earliest', 'latest', a datetime with a time zone, or a "
            "mapping of partition to offset"
        )


def check_offsets(offsets: Mapping[int, int]) -> None:
    """Refuse offsets by partition that cannot be.

    Raises:
        InvalidRequestError: a partition or an offset is no whole number from 0 on.
    """
    for partition, offset in offsets.items():
        if type(partition) is not int or type(offset) is not int or min(partition, offset) < 0:
            raise InvalidRequestError(
                f"offset {offset!r} of partition {partition!r}: both must be whole numbers, 0 or "
                "more"
            )


def time_ms(at: datetime) -> int:
    """Milliseconds since 1970 UTC, rounded down.

    Raises:
        ConfigError: the time has no time zone.
    """
    return time_us(at) // 1_000


def time_us(at: datetime) -> int:
    """Microseconds since 1970 UTC, rounded down.

    Raises:
        ConfigError: it is no time, or has no time zone.
    """
    if not isinstance(at, datetime):
        raise ConfigError(f"{at!r} is no time; give a datetime with a time zone")
    if at.tzinfo is None:
        raise ConfigError(
            f"time {at.isoformat()} has no time zone; give it one, such as "
            "time.replace(tzinfo=datetime.UTC)"
        )
    return (at - _EPOCH) // timedelta(microseconds=1)


async def resolve(topic: TopicLog, start: Start, partitions: Iterable[int]) -> dict[int, int]:
    """Return the offset at which each partition begins.

    Raises:
        InvalidRequestError: the topic has no such partition.
        MemqError: the broker failed until the deadline.
    """
    at = At(time_ms(start)) if isinstance(start, datetime) else None
    retained = await topic.offsets(at and at.ms)
    given = start if isinstance(start, Mapping) else {}
    everywhere = at or (LATEST if start == "latest" else EARLIEST)
    resolved: dict[int, int] = {}
    for partition in partitions:
        if partition not in range(len(retained)):
            raise InvalidRequestError(
                f"topic {topic.topic!r} has no partition {partition}; it has 0 to "
                f"{len(retained) - 1}"
            )
        there = retained[partition]
        resolved[partition] = offset_of(given.get(partition, everywhere), there, there.at)
    return resolved


def offset_of(place: Place, there: PartitionOffsets, at: int | None) -> int:
    """Return the offset of a place in a read partition.

    Args:
        place: the place.
        there: what is retained. What is published later does not count.
        at: the first offset published at the time that the place is, or later; None for no place
            that is a time.
    """
    if isinstance(place, At):
        return there.end if at is None else min(at, there.end)
    return {EARLIEST: there.start, LATEST: there.end}.get(place, place)
