"""`spark.readStream`: exact positions, limits for each micro-batch, and each row once.

Theory of operation
-------------------
Spark keeps in its checkpoint where each micro-batch begins and ends (`memq.spark.checkpoint`), and
a range of offsets names the same Batches for ever. So a micro-batch that is run again after a crash
reads the same rows, and a sink that takes each micro-batch once gets every row once.

Rule 1. Which topics a pattern matches is asked once for each micro-batch, when its end is chosen. A
    topic that the stream has not read before is read from its earliest offset on, as new read
    partitions are: what was published to it before the stream came to know it is read as well.
Rule 2. A topic goes on only as the incarnation that the checkpoint names. One that was deleted and
    recreated stops the stream, also between two micro-batches.
Rule 3. A topic that is in the checkpoint and is gone stops the stream, for what it still had can
    never be read. With failOnDataLoss=false it is left out from then on.
"""

from __future__ import annotations

import logging
import time
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)

from memq.client.lag import Lag, total_lag
from memq.core.format.schema import deserialize_schema
from memq.errors import ConfigError, DataLossError, MemqError, TopicRecreatedError
from memq.spark.admission import admit
from memq.spark.checkpoint import (
    StreamPosition,
    StreamPositions,
    TopicPosition,
    decode_topics,
    encode_topics,
)
from memq.spark.plan import TaskInput, inputs_of
from memq.spark.topic import GO_ON
from memq.spark.topic_stream import TopicStream
from memq.spark.topics import SparkTopics, check_agrees, check_named

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition

    from memq.spark.plan import MessageRange
    from memq.spark.worker import TaskReader

log = logging.getLogger("memq.spark")

Positions = dict[str, StreamPositions]
"""By topic and read partition."""


class MemqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches on the driver; the workers read. It can be pickled until it plans.

    Args:
        task_reader: what the workers do; its options name the incarnation of a single topic.
        first: name of a topic, and its schema serialized; that of others must agree.
    """

    def __init__(self, task_reader: TaskReader, first: tuple[str, bytes]) -> None:
        self._options = task_reader.options
        self._task_reader = task_reader
        self._first = first
        self._streams: dict[str, TopicStream] = {}  # the topics, as they were looked up last
        self._target: dict[str, dict[int, int]] | None = None  # of Trigger.AvailableNow
        self._planned: tuple[Any, list[TaskInput]] | None = None  # Spark may ask again
        self._taken: Positions = {}  # where the latest micro-batch ends

    def __repr__(self) -> str:
        return f"<MemqStreamReader {self._options.subject} {list(self._streams.values())}>"

    @cached_property
    def _topics(self) -> SparkTopics:
        return SparkTopics(self._options)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where a stream without a checkpoint begins.

        Raises:
            ConfigError: there is no such topic or read partition, or the start is a time to come.
            OffsetOutOfRangeError: the start is an offset that is not published yet.
            MemqError: the brokers failed.
        """
        self._check_start_time(time.time() * 1000)
        self._look_up()
        check_named(self._options, self._streams)
        return self._encode({name: each.began() for name, each in self._streams.items()})

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
            DataLossError: a topic is gone.
            SchemaMismatchError: a topic is new, and has other columns.
            MemqError: the brokers failed.
        """
        self._look_up()
        before = self._decode(start)
        positions, ends = self._reach(before)
        unlimited = isinstance(limit, ReadAllAvailable)
        positions = admit(
            positions,
            {
                name: {partition: end for partition, end in some.items() if partition in there}
                for name, some in ends.items()
                if (there := positions.get(name))
            },
            {name: each.topic.batches_in_order for name, each in self._streams.items()},
            max_offsets=None if unlimited else self._options.max_offsets_per_trigger,
            max_bytes=None if unlimited else self._options.max_bytes_per_trigger,
        )
        self._taken = positions
        return self._encode(positions)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the end at what is published now, in the topics that there are now."""
        self._look_up()
        self._target = {name: each.ends(each.retained()) for name, each in self._streams.items()}

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """The end of each read partition, for the progress of the query, and its lag.

        The lag is what this stream is to read and no micro-batch has taken yet.
        """
        if not self._streams:
            self._look_up()
        positions: Positions = {}
        ends: dict[str, dict[int, int]] = {}
        for name, each in self._streams.items():
            retained = each.retained()
            ends[name] = each.ends(retained, self._target_of(name))
            positions[name] = {
                partition: StreamPosition(retained[partition].start, end)
                for partition, end in ends[name].items()
            }
        report = self._encode(positions)
        try:
            lags = {
                name: each.lag(self._taken.get(name, {}), ends[name])
                for name, each in self._streams.items()
            }
        except MemqError as exc:  # it is a figure to look at: whoever reads on is told
            log.warning("MemQ %s: lag is not known: %s", self._options.subject, exc)
            return report
        for name, entry in report.get("topics", {}).items():
            entry["lag"] = _figures(lags[name])
        return report | {"lag": _figures(total_lag(lags.values()))}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The inputs of the tasks of a micro-batch.

        Raises:
            TopicRecreatedError: it is of a topic that was deleted.
            OffsetOutOfRangeError: retention has removed some of it.
            DataLossError: a topic is gone.
            MemqError: see `memq.spark.plan.find`.
        """
        if self._planned is None or self._planned[0] != (start, end):
            self._planned = (start, end), self._plan(start, end)
        return self._planned[1]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        assert isinstance(partition, TaskInput)  # noqa: S101 - ours, from `partitions`
        return self._task_reader.read(partition)

    def stop(self) -> None:
        """Close the connections."""
        if "_topics" in self.__dict__:
            self._topics.close()

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

    def _look_up(self) -> None:
        """Find the topics that are to be read now; those that are named are found once for all.

        Raises:
            SchemaMismatchError: one that is new has other columns than the others.
            MemqError: there is no such topic, or the brokers failed.
        """
        if self._streams and self._options.subscribe_pattern is None:
            return
        found = self._topics.look_up()
        streams: dict[str, TopicStream] = {}
        for name, info in found.items():
            known = self._streams.get(name)
            if known is None or known.incarnation != info.incarnation:
                options = self._options.of_topic(name, info.incarnation)
                self._check_columns(name, info.schemas[info.schema_id])
                known = TopicStream(self._topics.topic(options), options)
            streams[name] = known
        self._streams = streams

    def _check_columns(self, name: str, schema: bytes) -> None:
        first, known = self._first
        if name != first and self._options.view == "records":
            mine, other = deserialize_schema(known), deserialize_schema(schema)
            check_agrees(first, mine, name, other, self._task_reader.shape.spark.names)

    def _decode(self, offset: Mapping[str, Any]) -> Positions:
        """Positions from the checkpoint, if they are positions in the topics that there are.

        Raises:
            TopicRecreatedError: a topic was recreated since.
            DataLossError: a topic is gone, and must not be passed over.
        """
        names = {each.incarnation: name for name, each in self._streams.items()}
        one = self._options.topic or next(iter(self._streams), "")
        found: Positions = {}
        for name, position in decode_topics(offset, names, one).items():
            if name not in self._streams and not self._recover(name, position):
                continue
            present = self._streams[name].incarnation
            if position.incarnation != present:
                raise TopicRecreatedError(
                    f"topic {name!r} was deleted and recreated: "
                    f"{present} and {position.incarnation} are two topics of that name. "
                    f"{GO_ON}"
                )
            found[name] = position.partitions
        return found

    def _recover(self, name: str, position: TopicPosition) -> bool:
        """Whether a topic is to be read that the stream has read, and that was not found now.

        Raises:
            DataLossError: it is gone, and must not be passed over.
            MemqError: the brokers failed.
        """
        if self._options.covers(name):
            options = self._options.of_topic(name, position.incarnation)
            if self._topics.exists(options):
                self._streams[name] = TopicStream(self._topics.topic(options), options)
                return True
        message = (
            f"the checkpoint is of topic {name!r} (incarnation {position.incarnation}) as well, "
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

    def _encode(self, positions: Mapping[str, StreamPositions]) -> dict[str, Any]:
        topics = {
            name: TopicPosition(self._streams[name].incarnation, each)
            for name, each in positions.items()
        }
        return encode_topics(topics, self._options.topic)

    def _target_of(self, name: str) -> dict[int, int] | None:
        return None if self._target is None else self._target.get(name, {})

    def _reach(self, before: Positions) -> tuple[Positions, dict[str, dict[int, int]]]:
        """Where the stream can go on, and how far, in all topics."""
        positions: Positions = {}
        ends: dict[str, dict[int, int]] = {}
        for name, each in self._streams.items():
            if name not in before:
                if self._target is not None and name not in self._target:
                    continue  # it was not there when this run began
                log.info("MemQ topic %s: new in the stream", name)
            retained = each.retained()
            positions[name] = each.go_on(before.get(name), retained)
            ends[name] = each.ends(retained, self._target_of(name))
        return positions, ends

    def _plan(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[TaskInput]:
        if not self._streams:
            self._look_up()
        before, after = self._decode(start), self._decode(end)
        parts: list[MessageRange] = []
        for name, positions in after.items():
            found = self._streams[name].find(before.get(name, {}), positions, totals=False)
            parts += found.parts
        return inputs_of(self._options, parts) if parts else []


def _figures(lag: Lag) -> dict[str, Any]:
    """A lag as the progress of a query has it."""
    return {
        "batches": lag.batches,
        "records": lag.records,
        "bytes": lag.size_bytes,
        "seconds": round(lag.seconds, 3),
    }
