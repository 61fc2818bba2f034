"""From ranges of offsets to splits: what batch reads and streams plan alike.

One pass over the notifications notes each Batch, and whether a Message appears under a name that
was seen before. Only if one does, a second pass finds the Batches that share such names, and their
indexes tell which Messages are repeats.
"""

from __future__ import annotations

import heapq
import logging
import os
from typing import TYPE_CHECKING, NamedTuple

from memq.spark.objects import Objects
from memq.spark.plan import Split, StoredBatch, cut, task_count
from memq.spark.repeats import find_repeats
from memq.spark.seen import Names

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from memq.core.notification.notification import Notification
    from memq.core.ranges import OffsetRange
    from memq.core.wire.messages import NotificationEntry
    from memq.spark.driver import Driver
    from memq.spark.options import ReadOptions
    from memq.spark.repeats import Repeats
    from memq.spark.seen import History

log = logging.getLogger("memq.spark")

MAX_PLACES_LOGGED = 10


class Range(NamedTuple):
    """What to plan.

    Attributes:
        stretches: offsets to read.
        before: offsets that were read earlier; what repeats one of theirs is dropped.
        history: of `before`; it takes in the stretches as well.
    """

    stretches: Sequence[OffsetRange]
    before: Sequence[OffsetRange]
    history: History


def plan(driver: Driver, options: ReadOptions, wanted: Range) -> list[Split]:
    """The splits of a range: at least one.

    Raises:
        OffsetOutOfRangeError: retention has removed some of it.
        CorruptDataError: a notification, or an index that must be compared, is damaged.
        DataLossError: an object that must be compared is gone.
        MemqError: brokers or storage failed.
    """
    seen = Names()
    batches = []
    for entry, notification in _entries(driver, wanted.stretches):
        wanted.history.add(notification, entry.timestamp_ms, seen)
        batches.append(_stored(entry, notification, keep_runs=options.view == "messages"))
    if wanted.history.forgotten:
        log.warning(
            "MemQ topic %s: too many producers with gaps to know all of their Messages; repeats "
            "of %d of them may have been missed",
            options.topic,
            wanted.history.forgotten,
        )
    repeats = _repeats(driver, options, wanted, seen) if seen else {}
    total_bytes = sum(batch.size_bytes for batch in batches)
    tasks = task_count(
        total_bytes, options.max_bytes_per_partition, options.min_partitions, os.cpu_count() or 1
    )
    batches.sort(key=_place)
    splits = cut(batches, repeats, tasks)
    log.info("MemQ topic %s: %d Batches in %d splits", options.topic, len(batches), len(splits))
    return splits


def _repeats(driver: Driver, options: ReadOptions, wanted: Range, seen: Names) -> Repeats:
    """Positions of repeats in the Batches of the stretches, found and reported."""
    earlier = _suspects(driver, wanted.before, seen)
    current = _suspects(driver, wanted.stretches, seen)
    with Objects(options) as objects:
        found = find_repeats([*earlier, *current], objects, options.passes)
    places = {(batch.partition, batch.offset) for batch in current}
    repeats = {place: positions for place, positions in found.items() if place in places}
    if repeats:
        listed = ", ".join(
            f"{len(positions)} at {partition}/{offset}"
            for (partition, offset), positions in sorted(repeats.items())[:MAX_PLACES_LOGGED]
        )
        log.warning(
            "MemQ topic %s: dropped %d repeated Messages of %d Batches "
            "(read partition/offset: %s%s)",
            options.topic,
            sum(map(len, repeats.values())),
            len(repeats),
            listed,
            ", ..." if len(repeats) > MAX_PLACES_LOGGED else "",
        )
    return repeats


def _suspects(driver: Driver, stretches: Sequence[OffsetRange], seen: Names) -> list[StoredBatch]:
    """The Batches that hold a Message of these names, in the order of publication."""
    suspects = [
        _stored(entry, notification, keep_runs=False)
        for entry, notification in _entries(driver, stretches)
        if seen.name_some_of(notification)
    ]
    return sorted(suspects, key=lambda each: (each.timestamp_ms, each.partition, each.offset))


def _entries(
    driver: Driver, stretches: Iterable[OffsetRange]
) -> Iterable[tuple[NotificationEntry, Notification]]:
    """In the order of publication, as far as clocks tell it.

    The producers' sequences then come nearly in order, which is what `Seen` is quick at.
    """
    partitions = [driver.notifications(*stretch[:3]) for stretch in stretches]
    return heapq.merge(*partitions, key=_published)


def _published(found: tuple[NotificationEntry, Notification]) -> int:
    return found[0].timestamp_ms


def _place(batch: StoredBatch) -> tuple[int, int]:
    return batch.partition, batch.offset


def _stored(
    entry: NotificationEntry, notification: Notification, *, keep_runs: bool
) -> StoredBatch:
    return StoredBatch(
        entry.partition,
        entry.offset,
        entry.timestamp_ms,
        notification.batch_id,
        notification.uri,
        notification.size_bytes,
        notification.index_offset,
        notification.messages,
        notification.write_partition,
        tuple(notification.producers) if keep_runs else (),
    )
