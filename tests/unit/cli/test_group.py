"""A reset is planned before it is done."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.cli.group import Move, Target, plan_moves
from memq.core.wire.messages import PartitionOffsets
from memq.errors import InvalidRequestError

OFFSETS = [
    PartitionOffsets(partition=0, start=10, end=50, at=20),
    PartitionOffsets(partition=1, start=0, end=5, at=5),
]


@pytest.mark.parametrize(
    ("target", "new"),
    [
        (Target("earliest"), [10, 0]),
        (Target("latest"), [50, 5]),
        (Target("datetime"), [20, 5]),
        (Target("offset", 30), [30, 5]),
        (Target("offset", 3), [10, 3]),
        (Target("shift", 5), [35, 5]),
        (Target("shift", -1), [29, 2]),
        (Target("shift", -1_000), [10, 0]),
    ],
)
def test_where_it_goes(target, new):
    """Each rule leads somewhere that is held."""
    moves = plan_moves(target, OFFSETS, {0: 30, 1: 3})

    assert moves == [Move(0, 30, new[0], 50), Move(1, 3, new[1], 5)]


def test_partition_without_a_stored_offset():
    """What has no offset yet gets one, but cannot be shifted."""
    assert plan_moves(Target("latest"), OFFSETS, {0: 30})[1] == Move(1, None, 5, 5)
    with pytest.raises(InvalidRequestError, match="partition 1 has no stored offset"):
        plan_moves(Target("shift", 1), OFFSETS, {0: 30})


@given(
    st.sampled_from(["earliest", "latest", "offset", "datetime", "shift"]),
    st.integers(-100, 100),
    st.integers(0, 50),
    st.integers(0, 50),
    st.integers(0, 100),
)
def test_never_outside_what_is_held(how, number, start, count, current):
    """Whatever is asked for, the group can go on reading where it is put."""
    offsets = [PartitionOffsets(partition=0, start=start, end=start + count, at=start)]

    [move] = plan_moves(Target(how, number), offsets, {0: current})

    assert start <= move.new <= start + count
