"""The topics of a stream: which there are, and whether a checkpoint goes on in them.

Rule 1. Which topics a pattern matches is asked once for each micro-batch, when its end is chosen. A
    topic that the stream has not read before is read from its earliest offset on, as new read
    partitions are: what was published to it before the stream came to know it is read as well.
Rule 2. A topic goes on only as the topic id that the checkpoint names. One that was deleted and
    recreated stops the stream, also between two micro-batches.
Rule 3. A topic that is in the checkpoint and is gone stops the stream, for what it still had can
    never be read. With failOnDataLoss=false it is left out from then on. A broker may not know yet
    of a topic that another one told of, so it is asked for by name before that.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from memq.client.lag import Lag, lag_between, total_lag
from memq.core.format.schema import deserialize_schema
from memq.core.manifest import Totals
from memq.core.ranges import OffsetRange
from memq.errors import DataLossError, OffsetOutOfRangeError, TopicRecreatedError, UnknownTopicError
from memq.reading.start import LATEST
from memq.spark.plan import bound_offsets, check_published, find, retained_offsets, retained_part
from memq.spark.positions import (
    StreamPosition,
    StreamPositions,
    TopicPosition,
    decode_topics,
    encode_topics,
)
from memq.spark.topic import GO_ON, SparkTopics, check_agrees

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memq.core.wire.messages import PartitionOffsets
    from memq.spark.options import ReadOptions
    from memq.spark.plan import MessageRange
    from memq.spark.topic import SparkTopic

log = logging.getLogger("memq.spark")

Positions = dict[str, StreamPositions]
"""By topic and read partition."""


class StreamTopics:
    """The topics of a stream.

    Args:
        options: of the read.
        first: name of a topic, and its schema serialized; that of others must agree.
        columns: that are read of them.

    Attributes:
        streams: the topics by name, as they were looked up last.
    """

    def __init__(
        self, options: ReadOptions, first: tuple[str, bytes], columns: Sequence[str]
    ) -> None:
        self.streams: dict[str, TopicStream] = {}
        self._options = options
        self._first = first
        self._columns = columns

    def __repr__(self) -> str:
        return f"<StreamTopics {list(self.streams.values())}>"

    @cached_property
    def _topics(self) -> SparkTopics:
        return SparkTopics(self._options)

    def close(self) -> None:
        """Close the connections."""
        if "_topics" in self.__dict__:
            self._topics.close()

    def look_up(self, *, again: bool = True) -> None:
        """Find the topics that are to be read now; those that are named are found once for all.

        Args:
            again: also when they were looked up before.

        Raises:
            SchemaMismatchError: one that is new has other columns than the others.
            MemqError: there is no such topic, or the brokers failed.
        """
        if self.streams and not (again and self._options.subscribe_pattern):
            return
        streams: dict[str, TopicStream] = {}
        for name, info in self._topics.look_up().items():
            known = self.streams.get(name)
            if known is None or known.topic_id != info.topic_id:
                self._check_columns(name, info.schemas[info.schema_id])
                known = self._stream(name, info.topic_id)
            streams[name] = known
        self.streams = streams

    def decode(self, offset: Mapping[str, Any]) -> Positions:
        """Positions from the checkpoint, if they are positions in the topics that there are.

        Raises:
            TopicRecreatedError: a topic was recreated since.
            DataLossError: a topic is gone, and must not be passed over.
            CorruptDataError: they are of another source.
            MemqError: the brokers failed.
        """
        names = {each.topic_id: name for name, each in self.streams.items()}
        found: Positions = {}
        for name, position in decode_topics(offset, names, self._options.topic).items():
            if not name:
                raise TopicRecreatedError(
                    f"the checkpoint is of one topic, in topic id {position.topic_id}, and "
                    f"none of the {self._options.subject} has that now. {GO_ON}"
                )
            if name not in self.streams and not self._recover(name, position):
                continue
            present = self.streams[name].topic_id
            if position.topic_id != present:
                raise TopicRecreatedError(
                    f"topic {name!r} was deleted and recreated: "
                    f"{present} and {position.topic_id} are two topics of that name. "
                    f"{GO_ON}"
                )
            found[name] = position.partitions
        return found

    def encode(self, positions: Mapping[str, StreamPositions]) -> dict[str, Any]:
        """Positions as a checkpoint has them."""
        topics = {
            name: TopicPosition(self.streams[name].topic_id, each)
            for name, each in positions.items()
        }
        return encode_topics(topics, self._options.topic)

    def _stream(self, name: str, topic_id: str) -> TopicStream:
        options = self._options.of_topic(name, topic_id)
        return TopicStream(self._topics.topic(options), options)

    def _check_columns(self, name: str, schema: bytes) -> None:
        first, known = self._first
        if name != first and self._options.view == "records":
            mine, other = deserialize_schema(known), deserialize_schema(schema)
            check_agrees(first, mine, name, other, self._columns)

    def _recover(self, name: str, position: TopicPosition) -> bool:
        """Return whether to read a topic that the stream has read, and that was not found now.

        Raises:
            DataLossError: it is gone, and must not be passed over.
            MemqError: the brokers failed.
        """
        if self._options.covers(name):
            stream = self._stream(name, position.topic_id)
            with suppress(UnknownTopicError):
                stream.retained()
                self.streams[name] = stream
                return True
        message = (
            f"the checkpoint is of topic {name!r} (topic id {position.topic_id}) as well, "
            f"which is not among the {self._options.subject} of this stream any more: it was "
            "deleted, or the options name other topics"
        )
        if self._options.fail_on_data_loss:
            raise DataLossError(
                f"{message}. Begin with a new checkpoint, or set failOnDataLoss to false to read "
                "on without it"
            )
        log.warning("MemQ: %s: reading on without it, as failOnDataLoss is false", message)
        return False


class TopicStream:
    """A topic of a stream.

    Args:
        topic: the topic.
        options: of the read of this topic; they name its topic id.

    Attributes:
        topic: the same.
        name: of the topic.
        topic_id: of the topic.
    """

    def __init__(self, topic: SparkTopic, options: ReadOptions) -> None:
        self.topic = topic
        self.name = options.topic
        self.topic_id = options.topic_id or ""
        self._options = options

    def __repr__(self) -> str:
        return f"<TopicStream {self.name}>"

    def retained(self) -> dict[int, PartitionOffsets]:
        """Look up what is retained now, by read partition."""
        return retained_offsets(self.topic)

    def began(self) -> StreamPositions:
        """Return where a stream without a checkpoint begins.

        Raises:
            ConfigError: there is no such read partition.
            OffsetOutOfRangeError: the start is an offset that is not published yet.
            MemqError: the brokers failed.
        """
        retained = self.retained()
        start = bound_offsets(
            self.topic, self._options.starting_offsets, retained, "startingOffsets"
        )
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
        """Return how far each read partition may be read now.

        Args:
            retained: what is retained.
            target: where the stream is to end; None for what is published.
        """
        ends = {partition: each.end for partition, each in retained.items()}
        ending = self._options.ending_offsets
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
            start = {} if self._options.starting_offsets.partitions is None else self.began()
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
            positions[partition] = replace(position, next=rest.start)
        if self._options.starting_offsets.partitions is None:
            for partition in filter(self._reads, set(retained) - set(positions)):
                first = retained[partition].start
                log.info("MemQ topic %s: new read partition %d", self.name, partition)
                positions[partition] = StreamPosition(first, first)
        return positions

    def lag(self, taken: StreamPositions, ends: Mapping[int, int]) -> Lag:
        """Return what lies between the end of the latest micro-batch and the ends."""
        nexts = {partition: each.next for partition, each in taken.items() if partition in ends}
        if all(ends[partition] == following for partition, following in nexts.items()):
            return Lag()
        before = self.topic.lag(nexts)
        after = self.topic.lag({partition: ends[partition] for partition in nexts})
        return total_lag(lag_between(before[partition], after[partition]) for partition in nexts)

    def find(self, start: StreamPositions, end: StreamPositions) -> list[MessageRange]:
        """Find what a micro-batch reads of this topic.

        Args:
            start: positions before it; those of new read partitions are in `end`.
            end: positions after it.

        Raises:
            OffsetOutOfRangeError: retention has removed some of it.
            MemqError: see `memq.spark.plan.find`.
        """
        wanted = [
            OffsetRange(
                partition,
                start[partition].next if partition in start else position.began,
                position.next,
            )
            for partition, position in sorted(end.items())
        ]
        ranges = self._retained_parts(wanted)
        return find(self.topic, self._options, ranges) if ranges else []

    def totals(self, ranges: Sequence[OffsetRange]) -> dict[int, Totals]:
        """Count what ranges contain, one of each read partition.

        Raises:
            OffsetOutOfRangeError: retention has removed some of it.
            MemqError: the brokers failed.
        """
        totals = {each.partition: Totals() for each in ranges}
        for batch in self.topic.batches(self._retained_parts(ranges)):
            totals[batch.partition] = totals[batch.partition].plus(batch.notification)
        return totals

    def _retained_parts(self, wanted: Sequence[OffsetRange]) -> list[OffsetRange]:
        retained = self.retained()
        return [
            rest
            for each in wanted
            if (rest := retained_part(self._options, each, retained[each.partition].start)).size
        ]

    def _reads(self, partition: int) -> bool:
        """Return whether the stream reads this read partition: endingOffsets may name those it
        reads.
        """
        chosen = self._options.ending_offsets.partitions
        return chosen is None or partition in chosen
