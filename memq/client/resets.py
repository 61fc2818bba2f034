"""Where a group goes on when it is moved: what people ask for, as next offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from memq.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from memq.core.wire.messages import PartitionOffsets

How = Literal["earliest", "latest", "datetime", "offset", "shift"]
Target = tuple[How, int]
"""Where a group goes; the number is for the last two."""


def new_offset(target: Target, offsets: PartitionOffsets, current: int | None) -> int:
    """Return where a group goes on in a partition: the nearest offset that is retained.

    Args:
        target: where it is to go.
        offsets: of the partition; with `at` for a time.
        current: stored offset of the group; None when it has none.

    Raises:
        InvalidRequestError: a partition without a stored offset is to be shifted.
    """
    how, number = target
    if how == "shift" and current is None:
        raise InvalidRequestError(
            f"partition {offsets.partition} has no stored offset to shift; "
            "use --to-offset, --to-earliest or --to-latest"
        )
    wanted = {
        "earliest": offsets.start,
        "latest": offsets.end,
        "datetime": offsets.at or 0,
        "offset": number,
        "shift": (current or 0) + number,
    }[how]
    return max(offsets.start, min(wanted, offsets.end))


class PlannedReset(NamedTuple):
    """Where a group would go on in a read partition.

    Attributes:
        partition: the read partition.
        current_offset: next offset of the group now; None when it has none.
        new_offset: next offset then.
        log_end_offset: one past the last offset.
    """

    partition: int
    current_offset: int | None
    new_offset: int
    log_end_offset: int


def plan_reset(
    topic: str,
    target: Target,
    retained: Sequence[PartitionOffsets],
    committed: Mapping[int, int],
    partitions: Collection[int],
) -> list[PlannedReset]:
    """Return where a group goes on in some partitions; in all when none is named.

    Raises:
        InvalidRequestError: there is no such partition, or what has no offset is to be shifted.
    """
    unknown = set(partitions) - {each.partition for each in retained}
    if unknown:
        raise InvalidRequestError(
            f"topic {topic!r} has no partition {min(unknown)}; it has 0 to {len(retained) - 1}"
        )
    return [
        PlannedReset(
            each.partition,
            committed.get(each.partition),
            new_offset(target, each, committed.get(each.partition)),
            each.end,
        )
        for each in retained
        if not partitions or each.partition in partitions
    ]
