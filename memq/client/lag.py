"""Lag: how much consumer groups have not read, in Batches, records, bytes and seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from memq.core.wire.messages import (
        FetchLagAnswer,
        GroupInfo,
        GroupMember,
        PartitionLag,
        PartitionOffsets,
    )


class Lag(NamedTuple):
    """So much is published and not read.

    Attributes:
        batches: Batches, counted: offsets may have gaps.
        records: LogMessages in them.
        size_bytes: of their objects.
        seconds: age of the oldest LogMessage in them, by its timestamp and the broker's clock; 0.0
            when there are none.
    """

    batches: int = 0
    records: int = 0
    size_bytes: int = 0
    seconds: float = 0.0


class GroupPartition(NamedTuple):
    """Where a group stands in one read partition.

    Attributes:
        partition: the read partition.
        committed: next offset of the group; None when it has committed none.
        start: first offset retained.
        end: one past the last offset.
        lag: what the group has not committed; None when it has committed nothing, or when that
            could not be counted.
        error: why it could not be counted; empty otherwise.
        member: who holds the partition; None when nobody does.
    """

    partition: int
    committed: int | None
    start: int
    end: int
    lag: Lag | None
    error: str
    member: GroupMember | None

    @property
    def removed(self) -> bool:
        """Whether retention has removed what the group would have read next, before it did."""
        return self.committed is not None and self.committed < self.start


class GroupLag(NamedTuple):
    """How far a group is from the end of a topic.

    Attributes:
        group: the group.
        topic: the topic.
        members: its live members.
        partitions: every read partition of the topic, in order.
    """

    group: str
    topic: str
    members: list[GroupMember]
    partitions: list[GroupPartition]

    @property
    def total(self) -> Lag:
        """The lag over all read partitions, as far as it is known; seconds are the greatest."""
        return total_lag(each.lag for each in self.partitions if each.lag is not None)

    @property
    def removed(self) -> bool:
        """Whether retention has removed something that the group had not read."""
        return any(each.removed for each in self.partitions)


def total_lag(lags: Iterable[Lag]) -> Lag:
    """Some lags together: the seconds are those of the oldest LogMessage of all."""
    total = Lag()
    for each in lags:
        total = Lag(
            total.batches + each.batches,
            total.records + each.records,
            total.size_bytes + each.size_bytes,
            max(total.seconds, each.seconds),
        )
    return total


def lag_between(start: Lag, end: Lag) -> Lag:
    """Return the lag between two offsets, from the lag at each; seconds are the first's."""
    batches = start.batches - end.batches
    return Lag(
        batches,
        start.records - end.records,
        start.size_bytes - end.size_bytes,
        start.seconds if batches else 0.0,
    )


def lag_of(found: PartitionLag, now_us: int) -> Lag:
    """Return a lag as a broker tells it, at its own time."""
    return Lag(found.batches, found.records, found.size_bytes, found.age_s(now_us))


def group_lag(
    info: GroupInfo, retained: Sequence[PartitionOffsets], answer: FetchLagAnswer
) -> GroupLag:
    """Return the lag of a group.

    Args:
        info: the group.
        retained: offsets of every read partition of its topic.
        answer: the lag at each of the group's committed offsets, in their order.
    """
    found = {each.partition: each for each in answer.lags}
    holders = {number: member for member in info.members for number in member.partitions}
    partitions = []
    for there in retained:
        lag = found.get(there.partition)
        counted = lag is not None and not lag.error
        partitions.append(
            GroupPartition(
                there.partition,
                lag.offset if lag else None,
                lag.start if lag else there.start,
                lag.end if lag else there.end,
                lag_of(lag, answer.now_us) if lag and counted else None,
                lag.error if lag else "",
                holders.get(there.partition),
            )
        )
    return GroupLag(info.group, info.topic, info.members, partitions)
