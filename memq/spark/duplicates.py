"""Which Messages of a plan are duplicates: exact, across read partitions and across tasks.

Theory of operation
-------------------
The rule is that of every reader (`memq.client.duplicates`): a Message is a duplicate when it has
the name and the CRC32C of one that came before. "Before" is the order of publication, by time, and
then by read partition and offset, so that every plan of a range drops the same ones. A stream also
looks at what came before its micro-batch, see `memq.spark.stream`.

The names of all Messages are in the notifications. Those that come up again are noted
(`MessageNames`), and the few Batches that hold one of them are then compared by their indexes,
CRC32C by CRC32C.

So without duplicates, which is how it should be, a plan reads notifications and nothing else.
"""

from __future__ import annotations

import logging
import math
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from memq.client.duplicates import MAX_INTERVALS, Duplicates, DuplicateWindow, MessageNames
from memq.core.units import counted
from memq.errors import MemqError
from memq.spark.topic import open_objects, read_index, without_runs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from memq.core.format.index import IndexEntry
    from memq.core.notification.notification import PublishedBatch
    from memq.core.ranges import OffsetRange
    from memq.spark.options import ReadOptions
    from memq.spark.topic import SparkTopic

log = logging.getLogger("memq.spark")

INDEX_READS = 8  # at a time: each takes one round trip to the storage
MAX_BATCHES_LOGGED = 10


class NameHistory:
    """The names of the Messages published lately, for a reader that goes on without end.

    What was named within the window is known; what is older is forgotten after twice the window at
    the latest.

    Args:
        window_ms: how long a name is to be known; by default for ever.
    """

    def __init__(self, window_ms: float = math.inf) -> None:
        self._window_ms = window_ms
        self._old = MessageNames(MAX_INTERVALS)
        self._young = MessageNames(MAX_INTERVALS)
        self._young_since_ms: int | None = None

    def __repr__(self) -> str:
        return f"<NameHistory {self._old!r} {self._young!r}>"

    @property
    def forgotten(self) -> int:
        """Senders that had to be forgotten for want of memory."""
        return self._old.forgotten + self._young.forgotten

    def add(self, batch: PublishedBatch, known: MessageNames) -> None:
        """Add the names of a Batch; those that are known already go to `known`."""
        it, timestamp_ms = batch.notification, batch.timestamp_ms
        if self._young_since_ms is None:
            self._young_since_ms = timestamp_ms
        elif timestamp_ms - self._young_since_ms > self._window_ms:
            self._old, self._young = self._young, MessageNames(MAX_INTERVALS)
            self._young_since_ms = timestamp_ms
        if self._old:
            for sender, (start, end) in self._old.intersection(it):
                known.add(sender, start, end)
        self._young.add_batch(it, known)


def find_duplicates(
    topic: SparkTopic,
    options: ReadOptions,
    ranges: Sequence[OffsetRange],
    before: Sequence[OffsetRange],
    names: MessageNames,
) -> Duplicates:
    """The duplicates in some ranges, found and reported.

    Args:
        topic: the topic.
        options: of the read. A Batch that it passes over when it fails is passed over here as well:
            then nothing is a duplicate of its Messages.
        ranges: what is to be read.
        before: what was read before.
        names: that appear more than once.

    Raises:
        CorruptDataError: an index is damaged.
        DataLossError: an object is gone.
        MemqError: brokers or storage failed.
    """
    earlier = _suspects(topic, before, names)
    current = _suspects(topic, ranges, names)
    suspects = [*earlier, *current]
    wanted = {(batch.partition, batch.offset) for batch in current}
    window = DuplicateWindow(sum(batch.notification.messages for batch in suspects))  # forget none
    duplicates: Duplicates = {}
    for batch, entries in _indexes(suspects, options):
        place = (batch.partition, batch.offset)
        found = window.find(place, batch.notification.write_partition, entries)
        if found and place in wanted:
            duplicates[place] = frozenset(found)
    if duplicates:
        listed = ", ".join(
            f"{len(positions)} at {partition}/{offset}"
            for (partition, offset), positions in sorted(duplicates.items())[:MAX_BATCHES_LOGGED]
        )
        log.warning(
            "MemQ topic %s: dropped %s of %s (read partition/offset: %s%s)",
            options.topic,
            counted(sum(map(len, duplicates.values())), "duplicate Message"),
            counted(len(duplicates), "Batch"),
            listed,
            ", ..." if len(duplicates) > MAX_BATCHES_LOGGED else "",
        )
    return duplicates


def _suspects(
    topic: SparkTopic, ranges: Iterable[OffsetRange], names: MessageNames
) -> list[PublishedBatch]:
    """The Batches that hold a Message of these names, in the order of publication."""
    suspects = [
        without_runs(batch)
        for batch in topic.batches_in_order(ranges)
        if any(True for _ in names.intersection(batch.notification))
    ]
    return sorted(suspects, key=lambda each: (each.timestamp_ms, each.partition, each.offset))


def _indexes(
    batches: Sequence[PublishedBatch], options: ReadOptions
) -> Iterator[tuple[PublishedBatch, list[IndexEntry]]]:
    """Each Batch with its Messages, a few read at a time."""
    with (
        open_objects(options) as get_range,
        ThreadPoolExecutor(INDEX_READS, "memq-index") as executor,
    ):
        for start in range(0, len(batches), INDEX_READS):
            some = batches[start : start + INDEX_READS]
            reads = [executor.submit(read_index, get_range, batch) for batch in some]
            for batch, read in zip(some, reads, strict=True):
                try:
                    yield batch, read.result().entries
                except MemqError as exc:
                    if not options.passes(exc):
                        raise
                    log.warning("MemQ did not look for duplicates in a Batch: %s", exc)
