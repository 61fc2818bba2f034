"""Cutting a range into tasks of about equal bytes, from what notifications say.

All Batches of the range are laid end to end, by read partition and offset, and the whole is cut at
equal distances. A cut that falls into a Batch goes between two of its Messages, which are taken to
be equally large; so one task reads many small Batches, and one large Batch feeds many tasks.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.datasource import InputPartition

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from memq.core.format.batch import ProducerRun

MIN_TASK_BYTES = 8 << 20
"""A task costs about 27 ms, in which this much is read; without need none is made smaller."""


class StoredBatch(NamedTuple):
    """What tasks need to know of a Batch, from its notification.

    Attributes:
        partition: read partition.
        offset: in it.
        timestamp_ms: when it was published.
        batch_id: unique name of the Batch.
        uri: of the object.
        size_bytes: of the object.
        index_offset: where its index begins.
        messages: Messages in it.
        write_partition: that sealed it.
        producers: its Messages as runs; only kept where each Message is to be named.
    """

    partition: int
    offset: int
    timestamp_ms: int
    batch_id: str
    uri: str
    size_bytes: int
    index_offset: int
    messages: int
    write_partition: int
    producers: tuple[ProducerRun, ...] = ()


class Piece(NamedTuple):
    """Messages `first` up to, not including, `last` of a Batch; `repeats` of them are dropped."""

    batch: StoredBatch
    first: int
    last: int
    repeats: frozenset[int] = frozenset()


class Split(InputPartition):
    """What one task reads: pieces of Batches in the order of partitions and offsets.

    Attributes:
        pieces: none in the one split of an empty range.
    """

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.pieces = tuple(pieces)

    def __repr__(self) -> str:
        return f"<Split [{len(self.pieces)} pieces]>"


def task_count(total_bytes: int, max_bytes: int, min_tasks: int | None, slots: int) -> int:
    """How many tasks to cut a range into.

    Args:
        total_bytes: stored bytes of the range.
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


def cut(
    batches: Sequence[StoredBatch], repeats: dict[tuple[int, int], frozenset[int]], tasks: int
) -> list[Split]:
    """The Batches as splits of about equal bytes; fewer when there are not as many Messages.

    Args:
        batches: in the order of partitions and offsets.
        repeats: positions of Messages to drop, by partition and offset.
        tasks: how many splits to make, 1 or more.

    Returns:
        At least one split: Spark takes an empty list for something else.
    """
    total = sum(batch.size_bytes for batch in batches)
    splits: list[Split] = []
    pieces: list[Piece] = []
    done = 0
    for batch in batches:
        dropped = repeats.get((batch.partition, batch.offset), frozenset())
        bounds = list(_bounds(batch, done, total, tasks))
        for number, (first, last) in enumerate(pairwise(bounds)):
            if number:
                splits.append(Split(pieces))
                pieces = []
            if first < last:
                pieces.append(Piece(batch, first, last, dropped))
        done += batch.size_bytes
    splits.append(Split(pieces))
    return [split for split in splits if split.pieces] or [Split(())]


def _bounds(batch: StoredBatch, done: int, total: int, tasks: int) -> Iterator[int]:
    """Positions of Messages at which a Batch is cut, with 0 and its end."""
    yield 0
    size = max(1, batch.size_bytes)
    number = max(1, -(-done * tasks // max(1, total)))  # the first cut at `done` or behind it
    while (at := total * number // tasks) < done + size and number < tasks:
        yield round((at - done) * batch.messages / size)
        number += 1
    yield batch.messages
