"""One topic of a stream: what may be read of it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from memq.client.lag import Lag, lag_between, total_lag
from memq.core.ranges import OffsetRange
from memq.errors import OffsetOutOfRangeError, UnknownTopicError
from memq.reading.start import LATEST
from memq.spark.checkpoint import StreamPosition, StreamPositions
from memq.spark.plan import (
    Found,
    bound_offsets,
    check_published,
    find,
    retained_offsets,
    retained_part,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memq.core.wire.messages import PartitionOffsets
    from memq.spark.options import ReadOptions
    from memq.spark.topic import SparkTopic

log = logging.getLogger("memq.spark")

NOTHING = Found([], {})


class TopicStream:
    """A topic of a stream.

    Args:
        topic: the topic.
        options: of the read of this topic; they name its incarnation.

    Attributes:
        topic: the same.
        name: of the topic.
        incarnation: of the topic.
    """

    def __init__(self, topic: SparkTopic, options: ReadOptions) -> None:
        self.topic = topic
        self.name = options.topic
        self.incarnation = options.incarnation or ""
        self._options = options

    def __repr__(self) -> str:
        return f"<TopicStream {self.name}>"

    def retained(self) -> dict[int, PartitionOffsets]:
        """What is retained now, by read partition."""
        return retained_offsets(self.topic)

    def exists(self) -> bool:
        """Whether the topic is there, in this incarnation.

        Raises:
            TopicRecreatedError: it was deleted and recreated.
            MemqError: the brokers failed.
        """
        try:
            self.topic.offsets()
        except UnknownTopicError:
            return False
        return True

    def began(self) -> StreamPositions:
        """Where a stream without a checkpoint begins.

        Raises:
            ConfigError: there is no such read partition.
            OffsetOutOfRangeError: the start is an offset that is not published yet.
            MemqError: the brokers failed.
        """
        retained = self.retained()
        start = bound_offsets(self.topic, self._options.starting, retained, "startingOffsets")
        positions = {
            partition: StreamPosition(offset, offset)
            for partition, offset in start.items()
            if self._reads(partition)
        }
        for partition, position in positions.items():
            empty = OffsetRange(partition, position.next, position.next)
            check_published(self.name, empty, retained[partition])
        return positions

    def ends(
        self, retained: Mapping[int, PartitionOffsets], target: Mapping[int, int] | None = None
    ) -> dict[int, int]:
        """How far each read partition may be read now.

        Args:
            retained: what is retained.
            target: where the stream is to end; None for what is published.
        """
        ends = {partition: each.end for partition, each in retained.items()}
        ending = self._options.ending
        if ending.place != LATEST:
            caps = bound_offsets(self.topic, ending, retained, "endingOffsets")
            ends = {partition: min(ends[partition], cap) for partition, cap in caps.items()}
        if target is not None:
            ends = {
                partition: min(end, target[partition])
                for partition, end in ends.items()
                if partition in target
            }
        return ends

    def go_on(
        self, start: StreamPositions | None, retained: Mapping[int, PartitionOffsets]
    ) -> StreamPositions:
        """Positions that can be read on from, with those of read partitions that are new.

        Args:
            start: positions before; None for a topic that is new in the stream.
            retained: what is retained.

        Raises:
            OffsetOutOfRangeError: retention has removed what comes next, or the queue has lost it.
        """
        if start is None:
            start = {} if self._options.starting.partitions is None else self.began()
        positions: StreamPositions = {}
        for partition, position in start.items():
            offset = position.next
            if partition not in retained or offset > retained[partition].end:
                end = retained[partition].end if partition in retained else 0
                raise OffsetOutOfRangeError(
                    f"the checkpoint stands at offset {offset} of "
                    f"{self.name}/{partition}, which ends at {end}: its queue lost "
                    "notifications. Begin with a new checkpoint"
                )
            first = retained[partition].start
            rest = retained_part(self._options, OffsetRange(partition, offset, first), first)
            positions[partition] = position._replace(next=rest.start)
        if self._options.starting.partitions is None:
            for partition in filter(self._reads, set(retained) - set(positions)):
                first = retained[partition].start
                log.info("MemQ topic %s: new read partition %d", self.name, partition)
                positions[partition] = StreamPosition(first, first)
        return positions

    def lag(self, taken: StreamPositions, ends: Mapping[int, int]) -> Lag:
        """What lies between the end of the latest micro-batch and the ends."""
        nexts = {partition: each.next for partition, each in taken.items() if partition in ends}
        if all(ends[partition] == following for partition, following in nexts.items()):
            return Lag()
        before = self.topic.lag(nexts)
        after = self.topic.lag({partition: ends[partition] for partition in nexts})
        return total_lag(lag_between(before[partition], after[partition]) for partition in nexts)

    def find(self, start: StreamPositions, end: StreamPositions) -> Found:
        """What a micro-batch reads of this topic.

        Args:
            start: positions before it; those of new read partitions are in `end`.
            end: positions after it.

        Raises:
            OffsetOutOfRangeError: retention has removed some of it.
            MemqError: see `memq.spark.plan.find`.
        """
        retained = self.retained()
        wanted = [
            OffsetRange(
                partition,
                start[partition].next if partition in start else position.began,
                position.next,
            )
            for partition, position in sorted(end.items())
        ]
        ranges = [
            rest
            for each in wanted
            if (rest := retained_part(self._options, each, retained[each.partition].start)).size
        ]
        if not ranges:
            return NOTHING
        return find(self.topic, self._options, ranges)

    def _reads(self, partition: int) -> bool:
        """Whether the stream reads this read partition: endingOffsets may name those it reads."""
        chosen = self._options.ending.partitions
        return chosen is None or partition in chosen
