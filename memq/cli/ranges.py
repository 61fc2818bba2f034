"""Ranges of offsets on the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from memq.errors import InvalidRequestError, OffsetOutOfRangeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memq.core.wire.messages import PartitionOffsets


class Range(NamedTuple):
    """Offsets of a read partition from `start` up to, not including, `end`."""

    partition: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.partition}:{self.start}-{self.end}"


def check_held(topic: str, wanted: Range, held: Sequence[PartitionOffsets]) -> None:
    """Refuse a range that is not there in full.

    Raises:
        InvalidRequestError: the topic has no such partition.
        OffsetOutOfRangeError: some of the offsets are not held.
    """
    if wanted.partition >= len(held):
        raise InvalidRequestError(
            f"topic {topic!r} has no partition {wanted.partition}; it has 0 to {len(held) - 1}"
        )
    offsets = held[wanted.partition]
    if wanted.start < offsets.start or wanted.end > offsets.end:
        have = Range(wanted.partition, offsets.start, offsets.end)
        raise OffsetOutOfRangeError(f"{wanted} of {topic!r} is not held in full; {have} is")
