"""A drain that is waited for, and what a table of brokers says, without a cluster."""

import pytest

from memq.cli.cluster import wait_until_drained
from memq.core.wire.messages import ClusterBroker, DescribeClusterAnswer, MovingPartition
from memq.errors import CorruptDataError, RequestTimeoutError, UnavailableError


def seen(owned=(), *, draining=True, moving=(), alive=True, **fields):
    """A cluster in which broker b owns these write partitions of t; a has some of its own."""
    brokers = [ClusterBroker(id="a", address="a:1", write_partitions={"t": [9]}, draining=False)]
    if alive:
        own = {"t": list(owned)} if owned else {}
        brokers.append(
            ClusterBroker(id="b", address="b:1", write_partitions=own, draining=draining)
        )
    moves = [MovingPartition(topic="t", write_partition=each, to="a") for each in moving]
    return DescribeClusterAnswer(
        cluster_id="c", governor="a", brokers=brokers, moving=moves, **fields
    )


class Admin:
    """Sees one after the other; an error is raised. The last is seen again and again."""

    def __init__(self, *looks):
        self.looks = list(looks)
        self.count = 0

    def describe_cluster(self):
        self.count += 1
        look = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        if isinstance(look, Exception):
            raise look
        return look


def test_a_drain_is_over_when_somebody_has_taken_over_all(clock):
    """What it has given away counts until it is nobody's on the way; what others move does not."""
    admin = Admin(
        seen([1, 2, 3], draining=False),  # the Governor has not heard of it
        seen([1, 2], moving=[3, 9]),
        seen([], moving=[1, 2]),
        seen([], moving=[2]),
        seen([], moving=[9]),
    )
    wait_until_drained(admin, "b", 60)
    assert admin.count == 5
    assert clock.now_s == 104


def test_a_drain_that_takes_too_long(clock):
    """It ends before its time is over, and says how much is left; the drain goes on."""
    with pytest.raises(
        RequestTimeoutError, match="2 write partitions of broker 'b' left after 3 s"
    ):
        wait_until_drained(Admin(seen([1, 2])), "b", 3)
    assert clock.now_s == 103
    with pytest.raises(RequestTimeoutError, match="1 write partition of"):
        wait_until_drained(Admin(seen([1, 2]), seen([], moving=[2])), "b", 2.5)
    assert clock.now_s == 105


def test_a_cluster_that_does_not_answer_for_a_moment(clock, said):
    """It is told and looked at again; what was left before still is. At first it is an error."""
    away = UnavailableError("away")
    wait_until_drained(Admin(seen([1]), away, away, seen([])), "b", 60)
    assert said == ["no answer, looking again: away"] * 2
    with pytest.raises(RequestTimeoutError, match="1 write partition"):
        wait_until_drained(Admin(seen([1]), away), "b", 5)
    with pytest.raises(UnavailableError):
        wait_until_drained(Admin(away, seen([])), "b", 60)
    with pytest.raises(CorruptDataError):
        wait_until_drained(Admin(seen([1]), CorruptDataError("bad")), "b", 60)


def test_a_broker_that_goes_while_it_drains(clock):
    """One that died owns nothing; what it had given away is waited for still."""
    wait_until_drained(Admin(seen([1]), seen(alive=False)), "b", 60)
    admin = Admin(seen([1]), seen(alive=False, moving=[1]), seen([]))
    wait_until_drained(admin, "b", 60)
    assert admin.count == 3
