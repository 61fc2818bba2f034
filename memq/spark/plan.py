"""Planning a read, on the driver: from options to offsets, from offsets to what each task reads.

Batch reads and streams plan alike, from notifications alone.

All Batches of the ranges are laid end to end, by topic, read partition and offset, and the whole is
cut at equal distances. A cut that falls into a Batch goes between two of its Messages, which are
taken to be equally large; so one task reads many small Batches, and one large Batch feeds many
tasks.
"""

from __future__ import annotations

import logging
import os
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.datasource import InputPartition

from memq.core.ranges import OffsetRange, offsets_in_words, retained_in_words
from memq.core.units import counted
from memq.errors import ConfigError, OffsetOutOfRangeError
from memq.reading.start import At, offset_of
from memq.spark.topic import without_runs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from memq.core.notification import PublishedBatch
    from memq.core.wire.messages import PartitionOffsets
    from memq.reading.start import Place
    from memq.spark.bounds import Bound
    from memq.spark.options import ReadOptions
    from memq.spark.topic import SparkTopic

log = logging.getLogger("memq.spark")

MIN_TASK_BYTES = 8 << 20
"""A task costs about 27 ms, in which this much is read; without need none is made smaller."""


class MessageRange(NamedTuple):
    """Messages of a Batch, by their positions in it.

    Attributes:
        batch: without the names of its Messages where nobody asks for them.
        start: first position.
        end: one past the last position.
    """

    batch: PublishedBatch
    start: int
    end: int


class TaskInput(InputPartition):
    """What one task reads, in the order of partitions and offsets.

    Attributes:
        ranges: none in the one input of an empty read.
    """

    def __init__(self, ranges: Sequence[MessageRange]) -> None:
        self.ranges = tuple(ranges)

    def __repr__(self) -> str:
        return f"<TaskInput [{len(self.ranges)} ranges]>"


# -- offsets --------------------------------------------------------------------------------


def retained_offsets(topic: SparkTopic) -> dict[int, PartitionOffsets]:
    """Look up what is retained now, by read partition.

    Raises:
        MemqError: the brokers failed.
    """
    return {each.partition: each for each in topic.offsets()}


def resolve(topic: SparkTopic, options: ReadOptions) -> list[OffsetRange]:
    """Resolve the ranges of a read, of which every offset is retained.

    Raises:
        ConfigError: there is no such read partition, or a range ends before it starts.
        OffsetOutOfRangeError: some of it is not retained, and that must not be passed over.
        MemqError: the brokers failed.
    """
    retained = retained_offsets(topic)
    starts = bound_offsets(topic, options.starting_offsets, retained, "startingOffsets")
    ends = bound_offsets(topic, options.ending_offsets, retained, "endingOffsets")
    ranges = []
    for partition in sorted(set(starts) & set(ends)):
        wanted = OffsetRange(partition, starts[partition], ends[partition])
        check_published(options.topic, wanted, retained[partition])
        if wanted.size < 0:  # such as a start after an end that is a time
            wanted = wanted._replace(end=wanted.start)
        ranges.append(retained_part(options, wanted, retained[partition].start))
    return ranges


def bound_offsets(
    topic: SparkTopic, bound: Bound, retained: Mapping[int, PartitionOffsets], option: str
) -> dict[int, int]:
    """Return where a bound falls in each read partition that it speaks of.

    Args:
        topic: asked for the offsets at a time.
        bound: an option's value.
        retained: what is retained. A time is looked up later than this was asked for, and more may
            be published by then; what is not in here does not count.
        option: its name.

    Raises:
        ConfigError: it names a read partition that does not exist.
        MemqError: the brokers failed.
    """
    places = bound.places(retained)
    unknown = sorted(set(places) - set(retained))
    if unknown:
        raise ConfigError(
            f"option '{option}' names read partition {unknown[0]}; the topic has "
            f"{', '.join(map(str, sorted(retained)))}"
        )
    times = {each for each in places.values() if isinstance(each, At)}
    at: dict[Place, dict[int, int | None]] = {
        time: {each.partition: each.at for each in topic.offsets(time.ms)} for time in times
    }
    return {
        partition: offset_of(place, retained[partition], at.get(place, {}).get(partition))
        for partition, place in places.items()
    }


def check_published(topic: str, wanted: OffsetRange, retained: PartitionOffsets) -> None:
    """Refuse offsets that do not exist yet.

    Raises:
        OffsetOutOfRangeError: the range begins or ends after what is published.
    """
    last = max(wanted.start, wanted.end)
    if last > retained.end:
        raise OffsetOutOfRangeError(
            f"{topic}/{wanted.partition} is to be read up to offset {last}, "
            f"which is not published yet; {retained_in_words(retained.start, retained.end)}"
        )


def retained_part(options: ReadOptions, wanted: OffsetRange, first_retained: int) -> OffsetRange:
    """Return what of a range is still there: all of it, or what the user wants to go on with.

    Raises:
        OffsetOutOfRangeError: retention has cut the range, and the user does not want to go on.
    """
    start = min(first_retained, wanted.end)
    if start <= wanted.start:
        return wanted
    message = (
        f"{offsets_in_words(wanted.start, start)} of {options.topic}/{wanted.partition}: removed "
        f"by retention; {first_retained} is the first that is left"
    )
    if options.fail_on_data_loss:
        raise OffsetOutOfRangeError(
            f"{message}. Start there, or set failOnDataLoss to false to read on without them"
        )
    log.warning("MemQ: %s: reading on without them, as failOnDataLoss is false", message)
    return wanted._replace(start=start)


# -- tasks ----------------------------------------------------------------------------------


def find(
    topic: SparkTopic, options: ReadOptions, ranges: Sequence[OffsetRange]
) -> list[MessageRange]:
    """Find the Batches of some ranges of a topic: all Messages of each, in no order.

    Args:
        topic: the topic.
        options: of the read of this topic.
        ranges: what to read.

    Raises:
        OffsetOutOfRangeError: retention has removed some of it.
        CorruptDataError: a notification is damaged.
        MemqError: the brokers failed.
    """
    parts = []
    for batch in topic.batches(ranges):
        kept = batch if options.view == "messages" else without_runs(batch)
        parts.append(MessageRange(kept, 0, batch.notification.messages))
    return parts


def inputs_of(options: ReadOptions, parts: Iterable[MessageRange]) -> list[TaskInput]:
    """Make the tasks' inputs of a read: at least one.

    Args:
        options: of the read.
        parts: whole Batches, of one topic or of several.
    """
    ordered = sorted(parts, key=_place)
    tasks = task_count(
        sum(part.batch.notification.size_bytes for part in ordered),
        options.max_bytes_per_partition,
        options.min_partitions,
        os.cpu_count() or 1,
    )
    inputs = cut(ordered, tasks)
    log.info(
        "MemQ %s: %s in %s",
        options.subject,
        counted(len(ordered), "Batch"),
        counted(len(inputs), "task"),
    )
    return inputs


def _place(part: MessageRange) -> tuple[str, int, int]:
    return part.batch.notification.topic, part.batch.partition, part.batch.offset


def task_count(total_bytes: int, max_bytes: int, min_tasks: int | None, slots: int) -> int:
    """Return how many tasks to cut a read into.

    Args:
        total_bytes: stored bytes of it.
        max_bytes: most of them that a task should read.
        min_tasks: least number of tasks, when somebody asked for it.
        slots: tasks that run at a time, as far as is known.
    """
    needed = -(-total_bytes // max_bytes)
    if min_tasks is not None:
        return max(needed, min_tasks)
    worthwhile = max(1, min(slots, total_bytes // MIN_TASK_BYTES))
    if needed <= worthwhile:
        return worthwhile
    return -(-needed // slots) * slots  # else the last round leaves slots idle


def cut(parts: Sequence[MessageRange], tasks: int) -> list[TaskInput]:
    """Cut the Batches into inputs of about equal bytes; fewer when there are not as many Messages.

    Args:
        parts: whole Batches, in the order in which they are to be read.
        tasks: how many inputs to make, 1 or more.

    Returns:
        At least one input: an empty list Spark takes for a plan of its own.
    """
    total = sum(part.batch.notification.size_bytes for part in parts)
    inputs: list[TaskInput] = []
    ranges: list[MessageRange] = []
    done = 0
    for part in parts:
        for number, (start, end) in enumerate(pairwise(_bounds(part.batch, done, total, tasks))):
            if number:
                inputs.append(TaskInput(ranges))
                ranges = []
            if start < end:
                ranges.append(part._replace(start=start, end=end))
        done += part.batch.notification.size_bytes
    inputs.append(TaskInput(ranges))
    return [each for each in inputs if each.ranges] or [TaskInput(())]


def _bounds(batch: PublishedBatch, done: int, total: int, tasks: int) -> Iterator[int]:
    """Positions of Messages at which a Batch is cut, with 0 and its end."""
    yield 0
    messages, size = batch.notification.messages, max(1, batch.notification.size_bytes)
    number = max(1, -(-done * tasks // max(1, total)))  # the first cut at `done` or after it
    while (at := total * number // tasks) < done + size and number < tasks:
        yield round((at - done) * messages / size)
        number += 1
    yield messages
