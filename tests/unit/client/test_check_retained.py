"""A range must be there in full."""

from __future__ import annotations

import pytest

from memq.client.topic import check_retained
from memq.core.ranges import OffsetRange
from memq.core.wire.messages import PartitionOffsets
from memq.errors import InvalidRequestError, OffsetOutOfRangeError

RETAINED = [
    PartitionOffsets(partition=0, start=0, end=4),
    PartitionOffsets(partition=1, start=5, end=9),
]


@pytest.mark.parametrize(
    "wanted", [OffsetRange(1, 5, 9), OffsetRange(1, 6, 6), OffsetRange(0, 0, 0)]
)
def test_retained(wanted):
    """A range that is retained passes, also an empty one."""
    check_retained("clicks", OffsetRange(*wanted), RETAINED)


@pytest.mark.parametrize(
    "wanted", [OffsetRange(1, 4, 9), OffsetRange(1, 5, 10), OffsetRange(0, 5, 9)]
)
def test_not_retained(wanted):
    """The error says what there is."""
    with pytest.raises(OffsetOutOfRangeError, match=r"not retained in full; (retained|nothing)"):
        check_retained("clicks", OffsetRange(*wanted), RETAINED)


def test_no_such_partition():
    """The error says which partitions there are."""
    with pytest.raises(InvalidRequestError, match="no partition 2; it has 0 to 1"):
        check_retained("clicks", OffsetRange(2, 0, 1), RETAINED)


@pytest.mark.parametrize("at", [0, 3, 99])
def test_no_offsets_are_retained_wherever_they_are(at):
    """Nothing of an empty range can be missing."""
    check_retained("t", OffsetRange(0, at, at), [PartitionOffsets(partition=0, start=2, end=5)])


def test_a_partition_is_counted_from_the_first():
    """One before it is none, as is one past the last."""
    for partition in (-1, 1):
        with pytest.raises(InvalidRequestError, match=f"no partition {partition}; it has 0 to 0"):
            check_retained(
                "t", OffsetRange(partition, 2, 5), [PartitionOffsets(partition=0, start=2, end=5)]
            )
