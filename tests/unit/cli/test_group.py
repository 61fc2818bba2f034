"""What commands say of groups, and where a reset goes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.cli.group import lag_row, notes
from memq.client.lag import GroupLag, GroupPartition, Lag
from memq.client.resets import new_offset
from memq.core.wire.messages import GroupMember, PartitionOffsets
from memq.errors import InvalidRequestError

MEMBER = GroupMember(member_id="c-0123456789abcdef", client="reader", partitions=[])


def part(number, *, committed=5, start=0, end=9, lag=None, error="", member=None):
    """Where a group stands in a read partition."""
    return GroupPartition(number, committed, start, end, lag, error, member)


def group(*partitions, name="g", members=()):
    """A group of topic t."""
    return GroupLag(name, "t", list(members), list(partitions))


@pytest.mark.parametrize(
    ("committed", "start", "removed"),
    [(None, 3, False), (2, 3, True), (3, 3, False), (0, 0, False), (0, 1, True), (4, 3, False)],
)
def test_what_retention_has_removed(committed, start, removed):
    """Before the group read it: not what it had read, nor where it has committed nothing."""
    found = group(part(0), part(1, committed=committed, start=start))
    assert lag_row(found)["removed"] == removed
    assert bool(notes([found])) == removed


def test_all_read_partitions_together():
    """Sums of what is known, and the greatest age; null where nothing is known, and 0 is known."""
    found = group(
        part(0, lag=Lag(1, 10, 100, 3.0)),
        part(1, committed=None),
        part(2, lag=Lag(2, 20, 200, 1.5)),
        members=[MEMBER, MEMBER],
    )
    row = lag_row(found)
    lags = [row[each] for each in ("lag", "lag_records", "lag_bytes", "lag_seconds")]
    assert lags == [3, 30, 300, 3.0]
    assert (row["group"], row["topic"], row["members"]) == ("g", "t", 2)
    assert [each["partition"] for each in row["partitions"]] == [0, 1, 2]
    assert lag_row(group(part(0, committed=None), part(1, error="x")))["lag"] is None
    assert lag_row(group(part(0, lag=Lag())))["lag"] == 0


# -- where a reset goes ---------------------------------------------------------------------

OFFSETS = PartitionOffsets(partition=1, start=10, end=50, at=20)


def test_a_place_that_is_not_known_cannot_be_shifted():
    """The partition is named."""
    assert new_offset(("shift", -1), OFFSETS, 30) == 29
    with pytest.raises(InvalidRequestError, match="partition 1 has no stored offset"):
        new_offset(("shift", 5), OFFSETS, None)


@given(
    st.sampled_from(["earliest", "latest", "offset", "datetime", "shift"]),
    st.integers(-100, 100),
    st.integers(0, 50),
    st.integers(0, 50),
    st.integers(0, 100),
)
def test_never_outside_what_is_held(how, number, start, count, current):
    """Whatever is asked for, the group can go on reading where it is put."""
    offsets = PartitionOffsets(partition=0, start=start, end=start + count, at=start)
    assert start <= new_offset((how, number), offsets, current) <= start + count
