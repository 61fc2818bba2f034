"""`spark.readStream`: options, columns and rows of a batch read, micro-batch by micro-batch.

Theory of operation
-------------------
Spark keeps in its checkpoint where each micro-batch begins and ends, and a range of offsets names
the same Batches for ever. So a micro-batch that is run again after a crash reads the same rows, and
a sink that takes each micro-batch once gets every row once.

A repeat may stand in a later micro-batch than its original. So each plan compares with what the
stream has read before, back to the topic's deduplication window before the oldest Batch of the
micro-batch: the write side knows every name that long, and producers give up sooner. It looks no
further back than where the stream began. A new process of the driver learns these names from the
notifications once, and then keeps them.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)

from memq.core.ranges import OffsetRange
from memq.errors import ConfigError, OffsetOutOfRangeError
from memq.spark.admission import (
    Checkpoint,
    Position,
    Positions,
    admit,
    decode_checkpoint,
    encode_checkpoint,
)
from memq.spark.driver import Driver
from memq.spark.options import LATEST
from memq.spark.plan import Split
from memq.spark.planner import Range, plan
from memq.spark.ranges import after_loss, bound_offsets, check_published
from memq.spark.seen import History, Names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition

    from memq.core.wire.messages import PartitionOffsets
    from memq.spark.options import ReadOptions
    from memq.spark.worker import Task

log = logging.getLogger("memq.spark")


class MemqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches on the driver; the workers read.

    Args:
        options: of the read.
        task: what the workers do.
    """

    def __init__(self, options: ReadOptions, task: Task) -> None:
        self._options = options
        self._task = task
        self._driver = Driver(options)
        self._target: dict[int, int] | None = None  # of Trigger.AvailableNow
        self._known: dict[int, int] = {}  # where `_history` ends
        self._history: History | None = None
        self._planned: tuple[Any, list[Split]] | None = None  # Spark may ask again

    def __repr__(self) -> str:
        return f"<MemqStreamReader {self._options.topic} at {self._known}>"

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where a stream without a checkpoint begins.

        Raises:
            ConfigError: there is no such read partition, or the start is a time to come.
            OffsetOutOfRangeError: the start is an offset that is not published yet.
            MemqError: the brokers failed.
        """
        self._check_start_time(time.time() * 1000)
        held = self._held()
        start = bound_offsets(self._driver, self._options.starting, held, "startingOffsets")
        positions = {
            partition: Position(offset, offset)
            for partition, offset in start.items()
            if self._reads(partition)
        }
        for partition, position in positions.items():
            stretch = OffsetRange(partition, position.next, position.next)
            check_published(self._options.topic, stretch, held[partition])
        return self._checkpoint(positions)

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
        found = self._positions(start)
        held = self._held()
        positions = self._on_held(found, held)
        ends = self._ends(held)
        unlimited = isinstance(limit, ReadAllAvailable)
        positions = admit(
            positions,
            {partition: end for partition, end in ends.items() if partition in positions},
            self._driver.notifications,
            max_offsets=None if unlimited else self._options.max_offsets_per_trigger,
            max_bytes=None if unlimited else self._options.max_bytes_per_trigger,
        )
        return self._checkpoint(positions)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the end at what is published now."""
        self._target = self._ends(self._held())

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """The end of each read partition, for the progress of the query."""
        held = self._held()
        return self._checkpoint(
            {
                partition: Position(held[partition].start, end)
                for partition, end in self._ends(held).items()
            }
        )

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The splits of a micro-batch.

        Raises:
            TopicRecreatedError: it is of a topic that was deleted.
            OffsetOutOfRangeError: retention has removed some of it.
            MemqError: see `memq.spark.planner.plan`.
        """
        if self._planned is None or self._planned[0] != (start, end):
            self._planned = (
                (start, end),
                self._plan(self._positions(start), self._positions(end)),
            )
        return self._planned[1]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a split."""
        assert isinstance(partition, Split)  # noqa: S101 - ours, from `partitions`
        return self._task.read(partition)

    def stop(self) -> None:
        """Close the connections."""
        self._driver.close()

    def _check_start_time(self, now_ms: float) -> None:
        """Refuse a start in the future: its offsets are not known, and a checkpoint keeps them."""
        at_ms = self._options.starting.at_ms
        if at_ms is not None and at_ms > now_ms:
            raise ConfigError(
                f"option 'startingTimestamp' is {(at_ms - now_ms) / 1000:.0f} s in the future; a "
                "stream can begin at now, at the latest: leave the option out and set "
                "startingOffsets to latest"
            )

    def _positions(self, offset: Mapping[str, Any]) -> Positions:
        """Positions from the checkpoint, if they are positions in this topic.

        Raises:
            TopicRecreatedError: the topic was made again since.
        """
        found = decode_checkpoint(offset)
        self._driver.expect(found.incarnation)
        return found.positions

    def _checkpoint(self, positions: Positions) -> dict[str, Any]:
        return encode_checkpoint(Checkpoint(self._driver.incarnation(), positions))

    def _reads(self, partition: int) -> bool:
        """Whether the stream reads this read partition: endingOffsets may name those it reads."""
        chosen = self._options.ending.offsets
        return chosen is None or partition in chosen

    def _held(self) -> dict[int, PartitionOffsets]:
        return {each.partition: each for each in self._driver.offsets()}

    def _ends(self, held: Mapping[int, PartitionOffsets]) -> dict[int, int]:
        """How far each read partition may be read now."""
        ends = {partition: each.end for partition, each in held.items()}
        ending = self._options.ending
        if ending.word != LATEST:
            caps = bound_offsets(self._driver, ending, held, "endingOffsets")
            ends = {partition: min(ends[partition], cap) for partition, cap in caps.items()}
        if self._target is not None:
            ends = {
                partition: min(end, self._target[partition])
                for partition, end in ends.items()
                if partition in self._target
            }
        return ends

    def _on_held(self, start: Positions, held: Mapping[int, PartitionOffsets]) -> Positions:
        """Positions that can be read on from, with those of read partitions that are new."""
        positions: Positions = {}
        for partition, position in start.items():
            if partition not in held or position.next > held[partition].end:
                end = held[partition].end if partition in held else 0
                raise OffsetOutOfRangeError(
                    f"the checkpoint stands at offset {position.next} of "
                    f"{self._options.topic}/{partition}, which ends at {end}: its queue lost "
                    "notifications. Begin with a new checkpoint"
                )
            first = held[partition].start
            if position.next < first:
                lost = after_loss(
                    self._options, OffsetRange(partition, position.next, first), first
                )
                position = position._replace(next=lost.start)  # noqa: PLW2901
            positions[partition] = position
        if self._options.starting.offsets is None:
            for partition in filter(self._reads, set(held) - set(positions)):
                first = held[partition].start
                log.info("MemQ topic %s: new read partition %d", self._options.topic, partition)
                positions[partition] = Position(first, first)
        return positions

    def _plan(self, start: Positions, end: Positions) -> list[Split]:
        held = self._held()
        stretches = []
        for partition, (began, following) in sorted(end.items()):
            first = start[partition].next if partition in start else began
            stretch = OffsetRange(partition, first, following)
            if first < min(following, held[partition].start):
                stretch = after_loss(self._options, stretch, held[partition].start)
            if stretch.size:
                stretches.append(stretch)
        if not stretches:
            return []
        firsts = {
            partition: start[partition].next if partition in start else began
            for partition, (began, _) in end.items()
        }
        before = self._before(stretches, firsts, end, held)
        if self._history is None or any(
            self._known.get(partition, first) != first for partition, first in firsts.items()
        ):
            self._history = self._learn(before)
        splits = plan(self._driver, self._options, Range(stretches, before, self._history))
        self._known = {partition: position.next for partition, position in end.items()}
        return splits

    def _before(
        self,
        stretches: Sequence[OffsetRange],
        firsts: Mapping[int, int],
        end: Positions,
        held: Mapping[int, PartitionOffsets],
    ) -> list[OffsetRange]:
        """What the stream has read within the deduplication window before these stretches."""
        oldest_ms = min(
            entry.timestamp_ms
            for each in stretches
            for entry, _ in self._driver.notifications(each.partition, each.start, each.start + 1)
        )
        since = self._driver.offsets(max(0, oldest_ms - self._driver.dedup_window_ms()))
        before = []
        for partition, at in ((each.partition, each.at) for each in since):
            if partition in firsts:
                start = max(at or 0, end[partition].began, held[partition].start)
                before.append(OffsetRange(partition, start, firsts[partition]))
        return [stretch for stretch in before if stretch.size > 0]

    def _learn(self, before: Sequence[OffsetRange]) -> History:
        """The names of what was read before, from the notifications."""
        history = History(self._driver.dedup_window_ms())
        unused = Names()  # repeats among these were dropped when they were read
        entries = sum(stretch.size for stretch in before)
        log.info("MemQ topic %s: learning %d notifications", self._options.topic, entries)
        for partition, start, end, _ in before:
            for entry, notification in self._driver.notifications(partition, start, end):
                history.add(notification, entry.timestamp_ms, unused)
        return history
