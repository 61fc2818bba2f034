"""`spark.readStream`: exact positions, limits for each micro-batch, and each row once.

Theory of operation
-------------------
Spark keeps in its checkpoint where each micro-batch begins and ends (`memq.spark.positions`), and
a range of offsets names the same Batches for ever. So a micro-batch that is run again after a crash
reads the same rows, and a sink that takes each micro-batch once gets every row once. Which topics a
stream reads, and whether it goes on in them, is the matter of `memq.spark.stream_topics`.

Where a micro-batch ends is asked when the one before is committed. Then the limits are applied
(`memq.spark.positions`), and what was committed is told to the audit (`memq.spark.stream_reports`).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)

from memq.client.lag import Lag, total_lag
from memq.errors import ConfigError, MemqError
from memq.runtime.system import SYSTEM
from memq.spark.plan import TaskInput, inputs_of
from memq.spark.positions import Gate, StreamPosition, admit, available
from memq.spark.stream_reports import StreamReports
from memq.spark.stream_topics import StreamTopics
from memq.spark.topic import check_named

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition

    from memq.runtime.system import Runtime
    from memq.spark.stream_topics import Positions
    from memq.spark.worker import TaskReader

log = logging.getLogger("memq.spark")


class MemqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches on the driver; the workers read, in copies that know nothing of plans.

    Args:
        task_reader: what the workers do; its options name the topic id of a single topic.
        first: name of a topic, and its schema serialized; that of others must agree.
        runtime: clocks.
    """

    def __init__(
        self, task_reader: TaskReader, first: tuple[str, bytes], runtime: Runtime = SYSTEM
    ) -> None:
        options = task_reader.options
        self._options = options
        self._first = first
        self._runtime = runtime
        self._task_reader = task_reader
        self._topics = StreamTopics(options, first, task_reader.shape.spark.names)
        max_delay_s = options.max_trigger_delay_ms / 1000
        self._gate = Gate(options.min_offsets_per_trigger, max_delay_s, runtime.mono_s)
        self._reports = StreamReports(options, runtime)
        self._target: dict[str, dict[int, int]] | None = None  # of Trigger.AvailableNow
        self._planned: tuple[Any, list[TaskInput]] | None = None  # Spark may ask again
        self._taken: Positions = {}  # where the latest micro-batch ends

    def __reduce__(self) -> tuple[Any, ...]:
        return MemqStreamReader, (self._task_reader, self._first)

    def __repr__(self) -> str:
        return f"<MemqStreamReader {self._options.subject} {self._topics!r}>"

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a stream without a checkpoint begins.

        Raises:
            ConfigError: there is no such topic or read partition, or the start is a time to come.
            OffsetOutOfRangeError: the start is an offset that is not published yet.
            MemqError: the brokers failed.
        """
        self._check_start_time(self._runtime.wall_ms())
        self._topics.look_up()
        streams = self._topics.streams
        check_named(self._options, streams)
        return self._encode({name: each.began() for name, each in streams.items()})

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Say that there is a limit; `latestOffset` takes all of them from the options."""
        it = self._options
        limits = (it.max_offsets_per_trigger, it.max_bytes_per_trigger, it.min_offsets_per_trigger)
        return next((ReadMaxFiles(each) for each in limits if each), ReadAllAvailable())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return where the micro-batch that begins at `start` ends.

        Raises:
            TopicRecreatedError: the checkpoint is of a topic that was deleted.
            OffsetOutOfRangeError: retention has removed what comes next.
            DataLossError: a topic is gone.
            SchemaMismatchError: a topic is new, and has other columns.
            MemqError: the brokers failed.
        """
        self._topics.look_up()
        before = self._topics.decode(start)
        positions, ends = self._reach(before)
        limited = not isinstance(limit, ReadAllAvailable)
        waits = limited and self._target is None and self._gate.holds(available(positions, ends))
        after = (
            before
            if waits
            else admit(
                positions,
                ends,
                {name: each.topic.batches_by_time for name, each in self._topics.streams.items()},
                max_offsets=self._options.max_offsets_per_trigger if limited else None,
                max_bytes=self._options.max_bytes_per_trigger if limited else None,
            )
        )
        self._taken = after
        self._reports.send(before, self._topics.streams, now=after == before)
        return start if after == before else self._encode(after)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the end at what is published now, in the topics that there are now."""
        self._topics.look_up()
        streams = self._topics.streams
        self._target = {name: each.ends(each.retained()) for name, each in streams.items()}

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return the end of each read partition, for the progress of the query, and its lag.

        The lag is what this stream is to read and no micro-batch has taken yet.
        """
        self._topics.look_up(again=False)
        streams = self._topics.streams
        positions: Positions = {}
        ends: dict[str, dict[int, int]] = {}
        for name, each in streams.items():
            retained = each.retained()
            ends[name] = each.ends(retained, self._target_of(name))
            positions[name] = {
                partition: StreamPosition(retained[partition].start, end)
                for partition, end in ends[name].items()
            }
        report = self._topics.encode(positions)
        try:
            lags = {
                name: each.lag(self._taken.get(name, {}), ends[name])
                for name, each in streams.items()
            }
        except MemqError as exc:  # a mere figure: reading on shows the error
            log.warning("MemQ %s: lag is not known: %s", self._options.subject, exc)
            return report
        for name, entry in report.get("topics", {}).items():
            entry["lag"] = _figures(lags[name])
        return report | {"lag": _figures(total_lag(lags.values()))}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the inputs of the tasks of a micro-batch.

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
        """Read the rows of one task."""
        assert isinstance(partition, TaskInput)  # noqa: S101 - ours, from `partitions`
        return self._task_reader.read(partition)

    def stop(self) -> None:
        """Close the connections."""
        self._topics.close()

    def _check_start_time(self, now_ms: float) -> None:
        """Refuse a start in the future: its offsets are not known, and a checkpoint keeps them."""
        late_ms = self._options.starting_offsets.latest_ms - now_ms
        if late_ms > 0:
            raise ConfigError(
                f"the stream is to start {late_ms / 1000:.0f} s in the future; it can begin now at "
                "the latest: set startingOffsets to latest in place of a time"
            )

    def _target_of(self, name: str) -> dict[int, int] | None:
        return None if self._target is None else self._target.get(name, {})

    def _encode(self, positions: Positions) -> dict[str, Any]:
        told = {name: self._reports.told(name, each) for name, each in positions.items()}
        return self._topics.encode(told)

    def _reach(self, before: Positions) -> tuple[Positions, dict[str, dict[int, int]]]:
        """Return where the stream can go on, and how far, in all topics."""
        positions: Positions = {}
        ends: dict[str, dict[int, int]] = {}
        for name, each in self._topics.streams.items():
            if name not in before:
                if self._target is not None and name not in self._target:
                    continue  # it was not there when this run began
                log.info("MemQ topic %s: new in the stream", name)
            retained = each.retained()
            there = positions[name] = each.go_on(before.get(name), retained)
            reach = each.ends(retained, self._target_of(name))
            if any(end > there[number].next for number, end in reach.items() if number in there):
                reach = each.topic.lasting(reach)  # a checkpoint keeps it
            ends[name] = {partition: end for partition, end in reach.items() if partition in there}
        return positions, ends

    def _plan(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[TaskInput]:
        self._topics.look_up(again=False)
        before, after = self._topics.decode(start), self._topics.decode(end)
        parts = [
            part
            for name, positions in after.items()
            for part in self._topics.streams[name].find(before.get(name, {}), positions)
        ]
        return inputs_of(self._options, parts) if parts else []


def _figures(lag: Lag) -> dict[str, Any]:
    """Return a lag as the progress of a query has it."""
    return {
        "batches": lag.batches,
        "records": lag.records,
        "bytes": lag.size_bytes,
        "seconds": round(lag.seconds, 3),
    }
