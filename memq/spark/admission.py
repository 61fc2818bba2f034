"""How far the next micro-batch goes: positions, limits, and the end that a stream may have.

Where a stream stands is JSON: `{"incarnation": I, "partitions": {"0": {"from": F, "next": N}}}`. In
read partition 0 it began at F and reads on at N; F goes along because a repeat is something that
*this stream* has read before. The offsets are those of incarnation I of the topic, and mean nothing
in another one.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, NamedTuple

from memq.core.topic import check_incarnation
from memq.errors import CorruptDataError, InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from memq.core.notification.notification import Notification
    from memq.core.wire.messages import NotificationEntry


class Position(NamedTuple):
    """Where a stream stands in a read partition: it began at `began` and reads on at `next`."""

    began: int
    next: int


Positions = dict[int, Position]


class Checkpoint(NamedTuple):
    """Where a stream stands: positions in one incarnation of the topic."""

    incarnation: str
    positions: Positions


def decode_checkpoint(offset: Mapping[str, Any]) -> Checkpoint:
    """What a checkpoint says.

    Raises:
        CorruptDataError: it was written by something else.
    """
    try:
        check_incarnation(offset["incarnation"])
        positions = {
            int(partition): Position(int(each["from"]), int(each["next"]))
            for partition, each in offset["partitions"].items()
        }
        return Checkpoint(offset["incarnation"], positions)
    except (TypeError, KeyError, ValueError, AttributeError, InvalidRequestError) as exc:
        raise CorruptDataError(
            f"the checkpoint says {offset!r}, which is no position of a memq stream; it may belong "
            "to another source"
        ) from exc


def encode_checkpoint(checkpoint: Checkpoint) -> dict[str, Any]:
    """What to write into a checkpoint; Spark compares it as text, so it is sorted."""
    return {
        "incarnation": checkpoint.incarnation,
        "partitions": {
            str(partition): {"from": began, "next": following}
            for partition, (began, following) in sorted(checkpoint.positions.items())
        },
    }


def admit(
    start: Positions,
    ends: Mapping[int, int],
    entries: Callable[[int, int, int], Iterator[tuple[NotificationEntry, Notification]]],
    *,
    max_offsets: int | None,
    max_bytes: int | None,
) -> Positions:
    """The positions after the next micro-batch: the oldest Batches first, up to the limits.

    Args:
        start: positions before it.
        ends: how far each read partition may be read.
        entries: the notifications of a read partition between two offsets.
        max_offsets: most Batches; None for no limit.
        max_bytes: most stored bytes, but always one Batch; None for no limit.
    """
    ahead = {partition: end for partition, end in ends.items() if end > start[partition].next}
    if max_offsets is None and max_bytes is None:
        return start | {
            partition: start[partition]._replace(next=end) for partition, end in ahead.items()
        }
    taken = dict(start)
    size = 0
    streams = [
        _by_time(entries(partition, start[partition].next, end)) for partition, end in ahead.items()
    ]
    for count, (_, partition, offset, size_bytes) in enumerate(heapq.merge(*streams), 1):
        size += size_bytes
        over = count > (max_offsets or count) or size > (max_bytes or size)
        if over and count > 1:
            return taken
        taken[partition] = taken[partition]._replace(next=offset + 1)
    # Offsets of Kafka may end in a gap, which is read through here.
    return taken | {
        partition: taken[partition]._replace(next=end) for partition, end in ahead.items()
    }


def _by_time(
    entries: Iterator[tuple[NotificationEntry, Notification]],
) -> Iterator[tuple[int, int, int, int]]:
    for entry, notification in entries:
        yield entry.timestamp_ms, entry.partition, entry.offset, notification.size_bytes
