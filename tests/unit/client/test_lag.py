"""How far a group is from the end, from what brokers tell."""

from memq.client.lag import Lag, group_lag, lag_between
from memq.core.wire.messages import (
    FetchLagAnswer,
    GroupInfo,
    GroupMember,
    PartitionLag,
    PartitionOffset,
    PartitionOffsets,
)

NOW_US = 10_000_000
A = GroupMember(member_id="a", client="", partitions=[0, 3])
B = GroupMember(member_id="b", client="", partitions=[1])


def told(partition, offset, start=0, end=9, **fields):
    """What a broker says of an offset."""
    return PartitionLag(partition=partition, offset=offset, start=start, end=end, **fields)


def test_each_partition_is_shown_as_it_stands():
    """With a commit or without, behind or damaged, passed by retention, held by somebody or not."""
    info = GroupInfo(
        group="g", topic="t", members=[A, B], offsets=[PartitionOffset(0, 4), PartitionOffset(2, 1)]
    )
    answer = FetchLagAnswer(
        now_us=NOW_US,
        lags=[
            told(0, 4, batches=5, records=50, size_bytes=500, oldest_us=7_000_000),
            told(2, 1, start=3, batches=6, records=60, size_bytes=600, oldest_us=9_000_000),
            told(3, 9, error="t/3 is damaged"),
            told(4, 3, start=3),
        ],
    )
    retained = [PartitionOffsets(partition=p, start=p, end=20) for p in range(5)]
    found = group_lag(info, retained, answer)
    assert (found.group, found.topic, found.members) == ("g", "t", [A, B])
    shown = [
        (p.partition, p.committed, p.start, p.end, p.error, p.member, p.removed)
        for p in found.partitions
    ]
    assert shown == [
        (0, 4, 0, 9, "", A, False),
        (1, None, 1, 20, "", B, False),
        (2, 1, 3, 9, "", None, True),
        (3, 9, 0, 9, "t/3 is damaged", A, False),
        (4, 3, 3, 9, "", None, False),
    ]
    assert [p.lag for p in found.partitions] == [
        Lag(5, 50, 500, 3.0),
        None,
        Lag(6, 60, 600, 1.0),
        None,
        Lag(),
    ]
    assert found.total == Lag(11, 110, 1_100, 3.0)
    assert found.removed
    assert not found._replace(partitions=found.partitions[3:]).removed


def test_what_lies_between_two_offsets():
    """As old as what stands at the first; where there is nothing, of no age."""
    assert lag_between(Lag(5, 50, 500, 7.0), Lag(2, 20, 200, 3.0)) == Lag(3, 30, 300, 7.0)
    assert lag_between(Lag(5, 50, 500, 7.0), Lag(5, 50, 500, 7.0)) == Lag(0, 0, 0, 0.0)
