"""The plan of `memq group reset-offsets`: where a group is to go on reading."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from memq.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from memq.core.wire.messages import PartitionOffsets

How = Literal["earliest", "latest", "offset", "datetime", "shift"]


class Target(NamedTuple):
    """Where to go.

    Attributes:
        how: the rule.
        number: the offset, or by how much to shift; it has no meaning for the other rules.
    """

    how: How
    number: int = 0


class Move(NamedTuple):
    """What becomes of one partition.

    Attributes:
        partition: the read partition.
        current: stored offset of the group; None when it has none.
        new: offset to store.
        end: one past the last notification.
    """

    partition: int
    current: int | None
    new: int
    end: int


def plan_moves(
    target: Target, offsets: Iterable[PartitionOffsets], committed: Mapping[int, int]
) -> list[Move]:
    """One move per partition; an offset that is not held becomes the nearest one that is.

    Args:
        target: where to go.
        offsets: of the topic's partitions that move; with `at` for the rule "datetime".
        committed: stored offsets of the group by partition.

    Raises:
        InvalidRequestError: a partition without a stored offset is to be shifted.
    """
    return [_move(target, partition, committed.get(partition.partition)) for partition in offsets]


def _move(target: Target, offsets: PartitionOffsets, current: int | None) -> Move:
    wanted = _wanted(target, offsets, current)
    new = max(offsets.start, min(wanted, offsets.end))
    return Move(offsets.partition, current, new, offsets.end)


def _wanted(target: Target, offsets: PartitionOffsets, current: int | None) -> int:
    match target.how:
        case "earliest":
            return offsets.start
        case "latest":
            return offsets.end
        case "offset":
            return target.number
        case "datetime":
            assert offsets.at is not None  # noqa: S101 - asked for with the time
            return offsets.at
        case "shift":
            if current is None:
                raise InvalidRequestError(
                    f"partition {offsets.partition} has no stored offset to shift; "
                    "use --to-offset, --to-earliest or --to-latest"
                )
            return current + target.number
