"""Planning a read: which Batches of a topic have what is wanted, fixed once.

Theory of operation
-------------------
A plan is made from notifications alone. It looks at all that are retained, or at those of the
offsets asked for: a record may be published long after its time, so no notification can be passed
over for *when* it was published. A notification says between which times its LogMessages are, and a
Batch that cannot have one of the times wanted is not read. A row is then taken or left by its own
time.

The plan remembers, for each read partition, where the first and the last Batch stand that are to be
read. It takes no memory for the Batches between them, whose notifications are fetched once more as
the read goes on. So it is small whatever the topic holds, what is published later does not change
it, and retention that passes its first Batch ends the read with an error.

The time of a record is in the topic's `time_column`. Rows that have none, and rows of Batches
from before a typed topic got the column, have no time and are in no range of times.
"""

from __future__ import annotations

import logging
import math
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from memq.core.format.message import TICKS_PER_SECOND, TIMESTAMP_COLUMN, time_position
from memq.core.format.schema import deserialize_schema
from memq.core.manifest import Totals
from memq.core.ranges import OffsetRange
from memq.core.units import iso_ms
from memq.errors import InvalidRequestError, OffsetOutOfRangeError
from memq.reading.log import check_retained
from memq.reading.start import time_us

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from memq.core.notification import Notification, PublishedBatch
    from memq.core.wire.messages import PartitionOffsets, TopicInfo
    from memq.reading.log import TopicLog

log = logging.getLogger("memq.client.read")

ATTEMPTS = 5  # plans that retention may overtake; each takes a moment, retention has pauses

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


class EventTimes(NamedTuple):
    """Times of records from `start_us` up to, not including, `end_us`.

    Attributes:
        start_us: microseconds since 1970 UTC; None for no beginning.
        end_us: microseconds since 1970 UTC; None for no end.
        column: that has the time of a row.
    """

    start_us: int | None
    end_us: int | None
    column: str = TIMESTAMP_COLUMN

    @classmethod
    def between(cls, start: datetime | None, end: datetime | None) -> EventTimes | None:
        """Return the times between two; None where neither is given.

        Raises:
            ConfigError: one has no time zone.
            InvalidRequestError: the end is before the start.
        """
        if start is None and end is None:
            return None
        start_us, end_us = (None if each is None else time_us(each) for each in (start, end))
        times = cls(start_us, end_us)
        if start is not None and end is not None and end < start:
            raise InvalidRequestError(
                f"the times end at {end.isoformat()}, before they start at {start.isoformat()}"
            )
        return times

    def of_topic(self, info: TopicInfo) -> EventTimes:
        """Return these times with the column of a topic.

        Raises:
            InvalidRequestError: its rows have no time.
        """
        name, column = info.config.name, info.config.time_column
        if time_position(deserialize_schema(info.schemas[info.schema_id]), column) < 0:
            raise InvalidRequestError(
                f"records of topic {name!r} have no time: it has no column {column!r} of an Arrow "
                "timestamp type. Read it by offsets; those of what was published at a time are in "
                f"AdminClient.offsets(topic, at=time), and `memq offsets {name} --at 1h`"
            )
        return self._replace(column=column)

    def may_be_in(self, notification: Notification) -> bool:
        """Return whether a record of the Batch may have one of the times.

        A Message whose times are not known, or all 0, is not in the range of its Batch. So a Batch
        of any times may have a record of 1970.
        """
        first = -math.inf if self.start_us is None else self.start_us
        end = math.inf if self.end_us is None else self.end_us
        meets = notification.max_timestamp_us >= first and notification.min_timestamp_us < end
        return meets or first <= 0 < end

    def select(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that have one of the times; nothing is copied where all have."""
        wanted = self.wanted(rows)
        return rows if wanted.true_count == len(rows) else rows.filter(wanted)

    def wanted(self, rows: pa.RecordBatch) -> pa.BooleanArray:
        """Return which rows have one of the times."""
        position = time_position(rows.schema, self.column)
        if position < 0:
            return pa.repeat(pa.scalar(False), len(rows))
        column = rows.column(position)
        ticks, per_second = column.view(pa.int64()), TICKS_PER_SECOND[column.type.unit]
        wanted = pc.is_valid(ticks)
        if self.start_us is not None:
            wanted = pc.and_(wanted, _not_before(ticks, self.start_us, per_second))
        if self.end_us is not None:
            wanted = pc.and_not(wanted, _not_before(ticks, self.end_us, per_second))
        return wanted.fill_null(False)


def _not_before(ticks: pa.Int64Array, time_us: int, per_second: int) -> pa.BooleanArray:
    """Return which ticks are at a time or later; nulls stay null."""
    first = -(-time_us * per_second // 10**6)  # rounded up, so that the comparison is exact
    if first > _INT64_MAX:
        return pa.repeat(pa.scalar(False), len(ticks))
    return pc.greater_equal(ticks, pa.scalar(max(first, _INT64_MIN), pa.int64()))


class Piece(NamedTuple):
    """Batches of a read partition that are to be read; others may lie between them.

    Attributes:
        range: from the first of them to the last.
        contents: of the Batches that are to be read, with records of whatever time.
    """

    range: OffsetRange
    contents: Totals = Totals()

    def plus(self, batch: PublishedBatch) -> Piece:
        """Return it with another Batch, after all that are in it."""
        return Piece(
            self.range._replace(end=batch.offset + 1), self.contents.plus(batch.notification)
        )


@dataclass(frozen=True, kw_only=True)
class ReadPlan:
    """What a read reads, whatever is published after it was planned.

    Attributes:
        times: of the records wanted; None for all.
        pieces: in the order of partitions and offsets; none without a Batch.
        incomplete_before_ms: records of the times wanted that were published before this time,
            milliseconds since 1970 UTC, may have been removed by retention; None where none can.
    """

    times: EventTimes | None
    pieces: list[Piece] = field(default_factory=list)
    incomplete_before_ms: float | None = None

    @property
    def size_bytes(self) -> int:
        """Of all objects that are to be read."""
        return sum(each.contents.bytes for each in self.pieces)

    def reads(self, batch: PublishedBatch) -> bool:
        """Return whether a Batch within the pieces is to be read."""
        return self.times is None or self.times.may_be_in(batch.notification)


class Selection(NamedTuple):
    """What is to be read: all that is retained, but for what is given.

    Attributes:
        partition: read partition; None for all.
        start: first offset, which needs a partition; None for the first that is retained.
        end: one past the last, which needs a partition; None for where the partition ends now.
        start_time: first time of the records, with a time zone; None for no beginning.
        end_time: time that they are before, with a time zone; None for no end.
    """

    partition: int | None = None
    start: int | None = None
    end: int | None = None
    start_time: datetime | None = None
    end_time: datetime | None = None

    @property
    def times(self) -> EventTimes | None:
        """Of the records wanted; None for all.

        Raises:
            ConfigError: one has no time zone.
            InvalidRequestError: the end is before the start.
        """
        return EventTimes.between(self.start_time, self.end_time)

    def check(self, topic: str) -> None:
        """Refuse what no topic can have.

        Raises:
            ConfigError: a time has no time zone.
            InvalidRequestError: it is no range, or offsets are given without a partition.
        """
        partition, start, end = self[:3]
        given = [number for number in (partition, start, end) if number is not None]
        if any(type(number) is not int or number < 0 for number in given) or (
            start is not None and end is not None and end < start
        ):
            raise InvalidRequestError(
                f"{topic} partition {partition!r} [{start!r}, {end!r}): all must be whole numbers, "
                "0 or more, and the end no less than the start"
            )
        if partition is None and given:
            raise InvalidRequestError(
                f"offsets of {topic} are those of one partition; give it as well"
            )
        _ = self.times

    def ranges(
        self, topic: str, retained: Sequence[PartitionOffsets], topic_id: str
    ) -> list[OffsetRange]:
        """Return the offsets of a topic that are selected.

        Raises:
            InvalidRequestError: there is no such partition, or this is no range.
            OffsetOutOfRangeError: some of them are not retained, or not published yet.
        """
        if self.partition is None:
            return [OffsetRange(p.partition, p.start, p.end, topic_id) for p in retained]
        start, end = self.start, self.end
        if self.partition in range(len(retained)):
            there = retained[self.partition]
            start = there.start if start is None else start
            end = there.end if end is None else end
        wanted = OffsetRange(self.partition, start or 0, end or 0, topic_id)
        check_retained(topic, wanted, retained)
        return [wanted]


async def plan_read(
    topic: TopicLog, selection: Selection, *, piece_bytes: float = math.inf
) -> ReadPlan:
    """Settle what a read reads.

    Args:
        topic: the topic.
        selection: what is to be read.
        piece_bytes: stored bytes after which a piece ends.

    Raises:
        ConfigError: a time has no time zone.
        InvalidRequestError: there is no such partition, the offsets or times are no range, or
            records of the topic have no time.
        OffsetOutOfRangeError: some of the offsets asked for are not retained, or not published.
        CorruptDataError: a notification is damaged.
        MemqError: the brokers failed.
    """
    selection.check(topic.topic)
    for _ in range(ATTEMPTS - 1):
        try:
            return await _plan(topic, selection, piece_bytes)
        except OffsetOutOfRangeError:  # unless asked for, retention has just removed it: plan again
            if selection.start is not None:
                raise
    return await _plan(topic, selection, piece_bytes)


async def _plan(topic: TopicLog, selection: Selection, piece_bytes: float) -> ReadPlan:
    ranges = selection.ranges(topic.topic, await topic.offsets(), topic.topic_id)
    times = selection.times and selection.times.of_topic(await topic.info())
    plan, pieces = ReadPlan(times=times), list[Piece]()
    async with aclosing(topic.batches(ranges)) as batches:
        async for batch in batches:
            if plan.reads(batch):
                place = OffsetRange(batch.partition, batch.offset, batch.offset, topic.topic_id)
                if not pieces or _ends(pieces[-1], batch, piece_bytes):
                    pieces.append(Piece(place))
                pieces[-1] = pieces[-1].plus(batch)
    incomplete_before_ms = await _incomplete_before_ms(topic, ranges, times)
    return ReadPlan(times=times, pieces=pieces, incomplete_before_ms=incomplete_before_ms)


def _ends(piece: Piece, batch: PublishedBatch, piece_bytes: float) -> bool:
    """Return whether a piece ends before a Batch."""
    return piece.range.partition != batch.partition or piece.contents.bytes >= piece_bytes


async def _incomplete_before_ms(
    topic: TopicLog, ranges: Sequence[OffsetRange], times: EventTimes | None
) -> float | None:
    """Until when what was published is removed, where that may have been wanted."""
    if times is None or times.start_us is None or all(each.start == 0 for each in ranges):
        return None
    partitions = {each.partition for each in ranges}
    since_ms = max(
        each.since_ms for each in await topic.retained_since() if each.partition in partitions
    )
    if since_ms <= times.start_us / 1_000:
        return None
    log.warning(
        "topic %s: retention has removed what was published before %s; records of the wanted times "
        "may have been among it",
        topic.topic,
        iso_ms(round(since_ms)),
    )
    return since_ms
