"""What is committed, as whose member, and when."""

from __future__ import annotations

import asyncio

import pytest

from memq.client.consumer.commits import Commits
from memq.client.consumer.membership import GroupMembership
from memq.core.wire.messages import GroupHeartbeatAnswer
from memq.errors import (
    NotOwnerError,
    OffsetOutOfRangeError,
    UnavailableError,
)
from memq.runtime.system import SYSTEM
from tests.unit.zookeeper.conftest import virtual_time  # noqa: F401 - a fixture


class Broker:
    """Stands for the queue of a topic: it stores every commit."""

    runtime = SYSTEM

    def __init__(self):
        self.cluster = self
        self.positions = {}
        self.stored = []
        self.heartbeats = []
        self.named = []  # who committed, and its how manyth: of each attempt
        self.failing = None
        self.ends = {}
        self.answers = asyncio.Event()
        self.answers.set()

    async def commit(self, group, member_id, offsets, *, committer, sequence, heartbeat):
        self.named.append((group, member_id, committer, sequence))
        await self.answers.wait()
        if self.failing:
            raise self.failing
        if any(offset > self.ends.get(partition, offset) for partition, offset in offsets.items()):
            raise OffsetOutOfRangeError("there is no such offset")
        self.stored.append(dict(offsets))
        self.heartbeats.append(heartbeat)


def join(member):
    """The member is in its group, and is given partition 0."""
    answer = GroupHeartbeatAnswer(assigned=[0], members=1, settled=True)
    member.answered(member.heartbeat(0), answer, 0)
    member.started({0})


@pytest.fixture
def member():
    found = GroupMembership(
        group="g", topic="t", member_id="m", client="", session_timeout_ms=10_000
    )
    join(found)
    return found


def commits_of(broker, member, auto_interval_s=None, **options):
    """Commits of the member, for its group; it stands where `broker.positions` says."""
    options = {"membership": lambda: member, "positions": lambda: broker.positions} | options
    return Commits(broker, "g", auto_interval_s=auto_interval_s, **options)


async def test_what_was_handed_out_in_a_session_that_is_over_is_not_committed(member):
    """Others may have come further: so it is refused, also when the member is back in its group."""
    broker = Broker()
    commits = commits_of(broker, member)
    broker.positions = {0: 2}
    member.lose()
    with pytest.raises(NotOwnerError, match="does not hold partition 0"):
        await commits.commit(commits.pending())
    with pytest.raises(NotOwnerError, match="does not hold partition 0"):
        await commits.commit({0: 2, 1: 5})
    join(member)
    with pytest.raises(NotOwnerError, match="its session ended"):
        await commits.commit(commits.pending())
    await commits.commit_if_owner(commits.pending())
    assert broker.stored == []
    member.lost.clear()
    commits.forget({0})
    broker.positions = {0: 11}
    await commits.commit(commits.pending())
    assert broker.stored == [{0: 11}], "the consumer has given up what was lost"


async def test_a_commit_that_waits_for_its_turn_is_of_the_holding_in_which_it_was_asked_for(member):
    """The partition may be lost and granted again meanwhile: the broker must be able to tell."""
    broker = Broker()
    commits = commits_of(broker, member)
    broker.answers.clear()
    asked_at = member.sequence
    waiting = [asyncio.create_task(commits.commit({0: offset})) for offset in (2, 5)]
    await asyncio.sleep(0)
    member.lose()
    join(member)
    member.lost.clear()  # the consumer has given up what was lost
    broker.answers.set()
    await asyncio.gather(*waiting)
    assert broker.heartbeats == [asked_at, asked_at]
    assert member.sequence > asked_at


async def test_where_a_group_begins_is_stored_though_nothing_is_read(member):
    """At once, or with the next commit where that fails; nothing that is committed is replaced."""
    broker = Broker()
    broker.positions = {0: 7, 1: 3}
    commits = commits_of(broker, member)
    await commits.begin([0])
    assert broker.stored == [{0: 7}]
    broker.positions[0] = 9
    commits.begin_at({2: 4})
    broker.failing = UnavailableError("no broker")
    with pytest.raises(UnavailableError):
        await commits.begin([0, 1, 2])
    broker.failing = None
    assert commits.pending() == {0: 9, 1: 3}
    await commits.begin([0, 1, 2])
    assert broker.stored == [{0: 7}, {1: 3}], "what is committed stays"


async def test_begin_beyond_the_end_is_not_stored(member):
    """A start that does not exist is for reading to refuse."""
    broker = Broker()
    broker.ends, broker.positions = {1: 5}, {1: 8}
    await commits_of(broker, member).begin([1])
    assert broker.stored == []


async def test_auto_commit_is_of_what_was_handed_out_before_it_was_due(member):
    """What the same poll or a later one hands out is not done yet, however long the commit takes:
    the next one stores it.
    """
    broker = Broker()
    commits = commits_of(broker, member, 0.0)
    broker.answers.clear()
    for offset in (2, 3, 4):
        broker.positions = {0: offset}
        commits.auto_commit()
        broker.positions = {0: offset + 1}
        await asyncio.sleep(0)
    broker.answers.set()
    await commits.settle()
    assert broker.stored == [{0: 2}]
    commits.auto_commit()
    await commits.settle()
    assert broker.stored == [{0: 2}, {0: 5}]


async def test_auto_commit_that_failed_is_told_and_tried_again(member):
    """Nobody waits for it, so the poll after it raises its error."""
    broker = Broker()
    commits = commits_of(broker, member, 0.0)
    broker.positions = {0: 2}
    broker.failing = UnavailableError("no broker")
    commits.auto_commit()
    await asyncio.wait([commits._running])
    broker.failing = None
    with pytest.raises(UnavailableError, match="no broker"):
        commits.auto_commit()
    commits.auto_commit()
    await commits.settle()
    assert broker.stored == [{0: 2}]


async def test_each_attempt_has_a_number_of_its_own(member):
    """One that was given up may be stored late: a later one is told from it. No two consumers share
    a name, and who is no member names none.
    """
    broker = Broker()
    now = member
    commits = commits_of(broker, None, membership=lambda: now)
    broker.failing = UnavailableError("no broker")
    with pytest.raises(UnavailableError):
        await commits.commit({0: 1})
    broker.failing = None
    await commits.commit({})
    await commits.commit({0: 2})
    now = None
    await commits.commit({0: 3})
    other = commits_of(broker, member)
    await other.commit({0: 1})
    *ours, (_, _, name, sequence) = broker.named
    assert [(group, who, number) for group, who, _, number in ours] == [
        ("g", "m", 1),
        ("g", "m", 2),
        ("g", "", 3),
    ]
    assert broker.heartbeats == [member.sequence, 0, member.sequence]
    assert len({committer for _, _, committer, _ in ours} | {name}) == 2
    assert sequence == 1
