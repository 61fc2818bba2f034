"""`spark.readStream`: exact positions, limits for each micro-batch, and each row once.

Theory of operation
-------------------
Spark keeps in its checkpoint where each micro-batch begins and ends, and a range of offsets names
the same Batches for ever. So a micro-batch that is run again after a crash reads the same rows, and
a sink that takes each micro-batch once gets every row once.

The position of a stream is JSON: `{"incarnation": I, "partitions": {"0": {"from": F, "next": N}}}`.
In read partition 0 it began at F and reads on at N; F is part of it because a duplicate is
something that *this stream* has read before. The offsets are those of incarnation I of the topic,
and mean nothing in another one.

A duplicate may stand in a later micro-batch than its original. So each plan compares with what the
stream has read before, back to the topic's deduplication window before the oldest Batch of the
micro-batch: the write side knows every name that long, and producers give up sooner. It looks no
further back than where the stream began. A new process of the driver learns these names from the
notifications once, and then keeps them.
"""

from __future__ import annotations

import logging
import time
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)

from memq.client.duplicates import MessageNames
from memq.client.lag import lag_between, total_lag
from memq.core.ranges import OffsetRange
from memq.core.topic import check_incarnation
from memq.core.units import counted
from memq.errors import (
    ConfigError,
    CorruptDataError,
    InvalidRequestError,
    MemqError,
    OffsetOutOfRangeError,
    TopicRecreatedError,
)
from memq.spark.bounds import LATEST
from memq.spark.duplicates import NameHistory
from memq.spark.plan import (
    TaskInput,
    bound_offsets,
    check_published,
    plan,
    retained_offsets,
    retained_part,
)
from memq.spark.topic import GO_ON, SparkTopic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition

    from memq.core.notification.notification import PublishedBatch
    from memq.core.wire.messages import PartitionOffsets
    from memq.spark.worker import TaskReader

log = logging.getLogger("memq.spark")


class StreamPosition(NamedTuple):
    """Where a stream stands in a read partition: it began at `began` and reads on at `next`."""

    began: int
    next: int


StreamPositions = dict[int, StreamPosition]


class MemqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches on the driver; the workers read. It can be pickled until it plans.

    Args:
        task_reader: what the workers do; its options name the incarnation of the topic.
    """

    def __init__(self, task_reader: TaskReader) -> None:
        self._options = task_reader.options
        self._incarnation = task_reader.options.incarnation or ""
        self._task_reader = task_reader
        self._target: dict[int, int] | None = None  # of Trigger.AvailableNow
        self._known: dict[int, int] = {}  # where `_history` ends
        self._history: NameHistory | None = None
        self._planned: tuple[Any, list[TaskInput]] | None = None  # Spark may ask again
        self._taken: StreamPositions = {}  # where the latest micro-batch ends

    def __repr__(self) -> str:
        return f"<MemqStreamReader {self._options.topic} at {self._known}>"

    @cached_property
    def _topic(self) -> SparkTopic:
        return SparkTopic(self._options)

    @cached_property
    def _dedup_window_ms(self) -> int:
        """How long the write side of the topic knows what was published."""
        return self._topic.info().config.dedup_window_ms

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where a stream without a checkpoint begins.

        Raises:
            ConfigError: there is no such read partition, or the start is a time to come.
            OffsetOutOfRangeError: the start is an offset that is not published yet.
            MemqError: the brokers failed.
        """
        self._check_start_time(time.time() * 1000)
        retained = retained_offsets(self._topic)
        start = bound_offsets(self._topic, self._options.starting, retained, "startingOffsets")
        positions = {
            partition: StreamPosition(offset, offset)
            for partition, offset in start.items()
            if self._reads(partition)
        }
        for partition, (_, offset) in positions.items():
            empty = OffsetRange(partition, offset, offset)
            check_published(self._options.topic, empty, retained[partition])
        return encode_checkpoint(self._incarnation, positions)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """That there is a limit; `latestOffset` takes both of them from the options."""
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxFiles(self._options.max_offsets_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the micro-batch that begins at `start` ends.

        Raises:
            TopicRecreatedError: the checkpoint is of a topic that was deleted.
            OffsetOutOfRangeError: retention has removed what comes next.
            MemqError: the brokers failed.
        """
        before = self._decode(start)
        retained = retained_offsets(self._topic)
        positions = self._positions_retained(before, retained)
        ends = self._ends(retained)
        unlimited = isinstance(limit, ReadAllAvailable)
        positions = admit(
            positions,
            {partition: end for partition, end in ends.items() if partition in positions},
            self._topic.batches_in_order,
            max_offsets=None if unlimited else self._options.max_offsets_per_trigger,
            max_bytes=None if unlimited else self._options.max_bytes_per_trigger,
        )
        self._taken = positions
        return encode_checkpoint(self._incarnation, positions)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the end at what is published now."""
        self._target = self._ends(retained_offsets(self._topic))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """The end of each read partition, for the progress of the query, and its lag.

        The lag is what this stream is to read and no micro-batch has taken yet.
        """
        retained = retained_offsets(self._topic)
        ends = self._ends(retained)
        positions = {
            partition: StreamPosition(retained[partition].start, end)
            for partition, end in ends.items()
        }
        report = encode_checkpoint(self._incarnation, positions)
        try:
            return report | {"lag": self._lag(ends)}
        except MemqError as exc:  # it is a figure to look at: whoever reads on is told
            log.warning("MemQ topic %s: lag is not known: %s", self._options.topic, exc)
            return report

    def _lag(self, ends: Mapping[int, int]) -> dict[str, Any]:
        """What lies between the end of the latest micro-batch and the ends."""
        taken = {p: position.next for p, position in self._taken.items() if p in ends}
        before = self._topic.lag(taken)
        after = self._topic.lag({p: ends[p] for p in taken})
        total = total_lag(lag_between(before[p], after[p]) for p in taken)
        return {
            "batches": total.batches,
            "records": total.records,
            "bytes": total.size_bytes,
            "seconds": round(total.seconds, 3),
        }

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The inputs of the tasks of a micro-batch.

        Raises:
            TopicRecreatedError: it is of a topic that was deleted.
            OffsetOutOfRangeError: retention has removed some of it.
            MemqError: see `memq.spark.plan.plan`.
        """
        if self._planned is None or self._planned[0] != (start, end):
            self._planned = (start, end), self._plan(self._decode(start), self._decode(end))
        return self._planned[1]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        assert isinstance(partition, TaskInput)  # noqa: S101 - ours, from `partitions`
        return self._task_reader.read(partition)

    def stop(self) -> None:
        """Close the connections."""
        if "_topic" in self.__dict__:
            self._topic.close()

    def _check_start_time(self, now_ms: float) -> None:
        """Refuse a start in the future: its offsets are not known, and a checkpoint keeps them."""
        late_ms = self._options.starting.latest_ms - now_ms
        if late_ms > 0:
            by_partition = self._options.starting_offsets_by_timestamp
            name = "startingOffsetsByTimestamp" if by_partition else "startingTimestamp"
            raise ConfigError(
                f"option {name!r} is {late_ms / 1000:.0f} s in the future; a stream can "
                "begin now at the latest: leave the option out and set startingOffsets to latest"
            )

    def _decode(self, offset: Mapping[str, Any]) -> StreamPositions:
        """Positions from the checkpoint, if they are positions in this topic.

        Raises:
            TopicRecreatedError: the topic was recreated since.
        """
        incarnation, positions = decode_checkpoint(offset)
        if incarnation != self._incarnation:
            raise TopicRecreatedError(
                f"topic {self._options.topic!r} was deleted and recreated: "
                f"{self._incarnation} and {incarnation} are two topics of that name. "
                f"{GO_ON}"
            )
        return positions

    def _reads(self, partition: int) -> bool:
        """Whether the stream reads this read partition: endingOffsets may name those it reads."""
        chosen = self._options.ending.partitions
        return chosen is None or partition in chosen

    def _ends(self, retained: Mapping[int, PartitionOffsets]) -> dict[int, int]:
        """How far each read partition may be read now."""
        ends = {partition: each.end for partition, each in retained.items()}
        ending = self._options.ending
        if ending.word != LATEST:
            caps = bound_offsets(self._topic, ending, retained, "endingOffsets")
            ends = {partition: min(ends[partition], cap) for partition, cap in caps.items()}
        if self._target is not None:
            ends = {
                partition: min(end, self._target[partition])
                for partition, end in ends.items()
                if partition in self._target
            }
        return ends

    def _positions_retained(
        self, start: StreamPositions, retained: Mapping[int, PartitionOffsets]
    ) -> StreamPositions:
        """Positions that can be read on from, with those of read partitions that are new."""
        positions: StreamPositions = {}
        for partition, (began, offset) in start.items():
            if partition not in retained or offset > retained[partition].end:
                end = retained[partition].end if partition in retained else 0
                raise OffsetOutOfRangeError(
                    f"the checkpoint stands at offset {offset} of "
                    f"{self._options.topic}/{partition}, which ends at {end}: its queue lost "
                    "notifications. Begin with a new checkpoint"
                )
            first = retained[partition].start
            rest = retained_part(self._options, OffsetRange(partition, offset, first), first)
            positions[partition] = StreamPosition(began, rest.start)
        if self._options.starting.partitions is None:
            for partition in filter(self._reads, set(retained) - set(positions)):
                first = retained[partition].start
                log.info("MemQ topic %s: new read partition %d", self._options.topic, partition)
                positions[partition] = StreamPosition(first, first)
        return positions

    def _plan(self, start: StreamPositions, end: StreamPositions) -> list[TaskInput]:
        retained = retained_offsets(self._topic)
        firsts = {
            partition: start[partition].next if partition in start else began
            for partition, (began, _) in end.items()
        }
        wanted = [
            OffsetRange(partition, firsts[partition], following)
            for partition, (_, following) in sorted(end.items())
        ]
        ranges = [
            rest
            for each in wanted
            if (rest := retained_part(self._options, each, retained[each.partition].start)).size
        ]
        if not ranges:
            return []
        before = self._before(ranges, firsts, end, retained)
        if self._history is None or any(
            self._known.get(partition, first) != first for partition, first in firsts.items()
        ):
            self._history = self._learn(before)
        inputs = plan(self._topic, self._options, ranges, self._history, before)
        self._known = {partition: position.next for partition, position in end.items()}
        return inputs

    def _before(
        self,
        ranges: Sequence[OffsetRange],
        firsts: Mapping[int, int],
        end: StreamPositions,
        retained: Mapping[int, PartitionOffsets],
    ) -> list[OffsetRange]:
        """What the stream has read within the deduplication window before these ranges."""
        heads = [each._replace(end=each.start + 1) for each in ranges]
        # Where Kafka's offsets have gaps there may be none of them.
        oldest_ms = min((batch.timestamp_ms for batch in self._topic.batches(heads)), default=0)
        since = self._topic.offsets(max(0, oldest_ms - self._dedup_window_ms))
        before = [
            OffsetRange(
                each.partition,
                max(each.at or 0, end[each.partition].began, retained[each.partition].start),
                firsts[each.partition],
            )
            for each in since
            if each.partition in firsts
        ]
        return [each for each in before if each.size > 0]

    def _learn(self, before: Sequence[OffsetRange]) -> NameHistory:
        """The names of what was read before, from the notifications."""
        history = NameHistory(self._dedup_window_ms)
        unused = MessageNames()  # duplicates among these were dropped when they were read
        offsets = sum(each.size for each in before)
        log.info(
            "MemQ topic %s: learning %s", self._options.topic, counted(offsets, "notification")
        )
        for batch in self._topic.batches(before):
            history.add(batch, unused)
        return history


# -- where a stream stands, and how far it goes ---------------------------------------------


def decode_checkpoint(offset: Mapping[str, Any]) -> tuple[str, StreamPositions]:
    """What a checkpoint says: the incarnation of the topic, and positions in it.

    Raises:
        CorruptDataError: it was written by something else.
    """
    try:
        check_incarnation(offset["incarnation"])
        positions = {
            int(partition): StreamPosition(int(each["from"]), int(each["next"]))
            for partition, each in offset["partitions"].items()
        }
        return offset["incarnation"], positions
    except (TypeError, KeyError, ValueError, AttributeError, InvalidRequestError) as exc:
        raise CorruptDataError(
            f"the checkpoint says {offset!r}, which is not a position of a memq stream; it may "
            "belong to another source"
        ) from exc


def encode_checkpoint(incarnation: str, positions: StreamPositions) -> dict[str, Any]:
    """What to write into a checkpoint; Spark compares it as text, so it is sorted."""
    return {
        "incarnation": incarnation,
        "partitions": {
            str(partition): {"from": began, "next": following}
            for partition, (began, following) in sorted(positions.items())
        },
    }


def admit(
    start: StreamPositions,
    ends: Mapping[int, int],
    batches_in_order: Callable[[Iterable[OffsetRange]], Iterator[PublishedBatch]],
    *,
    max_offsets: int | None,
    max_bytes: int | None,
) -> StreamPositions:
    """The positions after the next micro-batch: the oldest Batches first, up to the limits.

    Args:
        start: positions before it.
        ends: how far each read partition may be read.
        batches_in_order: the Batches of some ranges in the order of publication.
        max_offsets: most Batches; None for no limit.
        max_bytes: most stored bytes, but always one Batch; None for no limit.
    """
    ranges = [OffsetRange(partition, start[partition].next, end) for partition, end in ends.items()]
    ranges = [each for each in ranges if each.size > 0]
    all_of_it = {each.partition: start[each.partition]._replace(next=each.end) for each in ranges}
    if max_offsets is None and max_bytes is None:
        return start | all_of_it
    taken = dict(start)
    size = 0
    for count, batch in enumerate(batches_in_order(ranges), 1):
        size += batch.notification.size_bytes
        over = count > (max_offsets or count) or size > (max_bytes or size)
        if over and count > 1:
            return taken
        taken[batch.partition] = taken[batch.partition]._replace(next=batch.offset + 1)
    return start | all_of_it  # offsets of Kafka may end in a gap, which is read through here
