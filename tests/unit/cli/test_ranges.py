"""A range must be there in full."""

from __future__ import annotations

import pytest

from memq.cli.ranges import Range, check_held
from memq.core.wire.messages import PartitionOffsets
from memq.errors import InvalidRequestError, OffsetOutOfRangeError

HELD = [
    PartitionOffsets(partition=0, start=0, end=4),
    PartitionOffsets(partition=1, start=5, end=9),
]


@pytest.mark.parametrize("wanted", [Range(1, 5, 9), Range(1, 6, 6), Range(0, 0, 0)])
def test_held(wanted):
    """A range that is held passes, also an empty one."""
    check_held("clicks", wanted, HELD)


@pytest.mark.parametrize("wanted", [Range(1, 4, 9), Range(1, 5, 10), Range(0, 5, 9)])
def test_not_held(wanted):
    """The error says what there is."""
    with pytest.raises(OffsetOutOfRangeError, match=r"not held in full; [01]:[05]-[49] is"):
        check_held("clicks", wanted, HELD)


def test_no_such_partition():
    """The error says which partitions there are."""
    with pytest.raises(InvalidRequestError, match="no partition 2; it has 0 to 1"):
        check_held("clicks", Range(2, 0, 1), HELD)
