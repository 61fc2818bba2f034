"""What is committed, as whose member, and when."""

from __future__ import annotations

import asyncio

import pytest

from memq.client.consumer.commits import BEGIN_RETRY_S, Commits
from memq.client.consumer.membership import Membership
from memq.core.wire.messages import GroupHeartbeatAnswer
from memq.errors import (
    InvalidRequestError,
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
    found = Membership(group="g", topic="t", member_id="m", client="", session_timeout_ms=10_000)
    join(found)
    return found


def commits_of(broker, member, auto_interval_s=None, **options):
    """Commits of the member, for its group."""
    options = {"membership": lambda: member} | options
    return Commits(broker, "g", auto_interval_s=auto_interval_s, **options)


async def test_what_was_handed_out_in_a_session_that_is_over_is_not_committed(member):
    """Others may have come further: so it is refused, also when the member is back in its group."""
    broker = Broker()
    commits = commits_of(broker, member)
    commits.moved(0, 2)
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
    commits.moved(0, 11)
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
    """At once, or with the next commit where that fails; what was read since then counts."""
    broker = Broker()
    commits = commits_of(broker, member)
    await commits.begin({0: 7})
    assert broker.stored == [{0: 7}]
    await commits.begin({0: 9})
    assert broker.stored == [{0: 7}], "what is committed stays"
    commits.forget([0])

    broker.failing = UnavailableError("no broker")
    with pytest.raises(UnavailableError):
        await commits.begin({0: 7, 1: 3, 2: 4})
    broker.failing = None
    await commits.commit({0: 8})
    assert broker.stored[1:] == [{0: 8}], "it is nobody else's business"
    commits.forget([1])
    commits._last_auto_s = -1000.0
    commits.auto_commit()
    await commits.settle()
    assert broker.stored[2:] == [{2: 4}]


async def test_begin_beyond_the_end_is_not_stored(member):
    """A start that does not exist is for reading to refuse; the others are stored."""
    broker = Broker()
    broker.ends = {1: 5}
    commits = commits_of(broker, member)
    await commits.begin({0: 7, 1: 8, 2: 9})
    assert broker.stored == [{0: 7}, {2: 9}]
    await commits.begin({})
    assert broker.stored == [{0: 7}, {2: 9}]


async def test_auto_commit_is_of_what_was_handed_out_before_it_was_due(member):
    """What the same poll or a later one hands out is not done yet, however long the commit takes:
    the next one stores it.
    """
    broker = Broker()
    commits = commits_of(broker, member, 0.0)
    broker.answers.clear()
    for offset in (2, 3, 4):
        commits.moved(0, offset)
        commits.auto_commit()
        commits.moved(0, offset + 1)
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
    commits.moved(0, 2)
    broker.failing = UnavailableError("no broker")
    commits.auto_commit()
    await asyncio.wait([commits._running])
    broker.failing = None
    with pytest.raises(UnavailableError, match="no broker"):
        commits.auto_commit()
    commits.auto_commit()
    await commits.settle()
    assert broker.stored == [{0: 2}]


async def test_what_was_committed_is_forgotten_with_the_partition(member):
    """Another member may have moved the group meanwhile: the same offset is committed again, and
    what was handed out before the partition was given up is not.
    """
    broker = Broker()
    commits = commits_of(broker, member)
    for partition in (0, 1):
        commits.moved(partition, 5)
    await commits.commit(commits.pending())
    assert commits.pending() == {}
    commits.moved(0, 6)
    commits.forget([0])
    assert commits.pending() == {}, "it is the other member's business how far partition 0 is"
    commits.moved(0, 5)
    assert commits.pending() == {0: 5}
    await commits.commit(commits.pending())
    commits.forget([0])
    await commits.begin({0: 5, 1: 3})
    assert broker.stored == [{0: 5, 1: 5}, {0: 5}, {0: 5}], "partition 1 was never given up"


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


async def test_only_what_is_stored_is_told(member):
    """A commit that failed or was refused is not counted, and is still to be made."""
    broker, told = Broker(), []
    commits = commits_of(broker, member, on_stored=lambda offsets: told.append(dict(offsets)))
    for error in (UnavailableError("no broker"), NotOwnerError("another does")):
        broker.failing = error
        commits.moved(0, 2)
        with pytest.raises(type(error)):
            await commits.commit(commits.pending())
        assert (told, commits.pending()) == ([], {0: 2})
    broker.failing = None
    await commits.commit({0: 2, 1: 4})
    await commits.begin({2: 7})
    assert told == [{0: 2, 1: 4}, {2: 7}]


async def test_no_group_has_nowhere_to_commit():
    """The error says what is missing, also where there is nothing to commit."""
    commits = Commits(Broker(), None, membership=lambda: None, auto_interval_s=None)
    with pytest.raises(InvalidRequestError, match="give the consumer one"):
        await commits.commit({})
    assert not commits.auto


@pytest.mark.usefixtures("virtual_time")
async def test_a_group_that_commits_by_hand_stores_by_itself_only_where_it_begins(member):
    """Now and then it is tried again; what was handed out is for the application to commit."""
    broker = Broker()
    commits = commits_of(broker, member)
    commits.moved(1, 6)
    broker.failing = UnavailableError("no broker")
    with pytest.raises(UnavailableError):
        await commits.begin({0: 7})
    broker.failing = None
    await asyncio.sleep(BEGIN_RETRY_S - 0.1)
    commits.auto_commit()
    await commits.settle()
    assert broker.stored == []
    await asyncio.sleep(0.1)
    commits.auto_commit()
    await commits.settle()
    assert broker.stored == [{0: 7}]
    await asyncio.sleep(2 * BEGIN_RETRY_S)
    commits.auto_commit()
    await commits.settle()
    assert (broker.stored, len(broker.named)) == ([{0: 7}], 2)


@pytest.mark.usefixtures("virtual_time")
async def test_auto_commit_of_what_another_holds_is_only_logged(member, caplog):
    """Ordinary in a group; so is a beginning there. It is still stored where else it begins."""
    broker = Broker()
    commits = commits_of(broker, member, 1.0)
    commits.moved(0, 2)
    broker.failing = UnavailableError("no broker")
    with pytest.raises(UnavailableError):
        await commits.begin({1: 3})
    member.lose()
    broker.failing = None
    await asyncio.sleep(1)
    commits.auto_commit()
    await commits.settle()
    assert broker.stored == [{1: 3}]
    assert "auto-commit: this consumer does not hold partition 0" in caplog.text
    await commits.begin({0: 1})
    assert broker.stored == [{1: 3}]
    assert "where the group begins is not stored" in caplog.text
