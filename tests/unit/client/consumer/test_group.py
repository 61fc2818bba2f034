"""A member of a group: its heartbeats, its errors, how it leaves, and what it commits and when."""

import asyncio
from itertools import pairwise
from types import SimpleNamespace

import pytest

from memq.client.consumer.group import (
    HEARTBEAT_S,
    LEAVE_TIMEOUT_S,
    MOVING_HEARTBEAT_S,
    Commits,
    GroupMembership,
    GroupSession,
)
from memq.core.wire.messages import GroupHeartbeat, GroupHeartbeatAnswer, LeaveGroup
from memq.errors import NotOwnerError, OffsetOutOfRangeError, UnavailableError
from memq.runtime.system import SYSTEM
from tests.unit.zookeeper.conftest import virtual_time  # noqa: F401 - a fixture

REQUEST_TIMEOUT_S = 30.0
MAX_POLL_S = 5.0

pytestmark = pytest.mark.usefixtures("virtual_time")


class Broker:
    """Answers heartbeats as it is told to, and remembers when what came.

    Attributes:
        asked: of each request when it came, itself, and its timeout.
        failing: raised in place of an answer, while there is one.
    """

    def __init__(self):
        self.cluster = SimpleNamespace(request_timeout_s=REQUEST_TIMEOUT_S)
        self.answer = GroupHeartbeatAnswer(assigned=[0], members=1, settled=True)
        self.asked, self.failing = [], None

    async def ask(self, request, *, timeout_s=REQUEST_TIMEOUT_S):
        self.asked.append((asyncio.get_running_loop().time(), request, timeout_s))
        if self.failing is not None:
            raise self.failing
        return self.answer, b""

    def beats(self):
        """When heartbeats came."""
        return [at for at, request, _ in self.asked if isinstance(request, GroupHeartbeat)]

    def farewells(self):
        """Timeouts of the requests to leave."""
        return [timeout_s for _, each, timeout_s in self.asked if isinstance(each, LeaveGroup)]


def member(session_ms=9_000):
    """Not in its group yet."""
    return GroupMembership(
        group="g", topic="t", member_id="m", client="c", session_timeout_ms=session_ms
    )


def session(broker, membership, wake=lambda: None):
    """Its background half."""
    return GroupSession(broker, membership, max_poll_interval_s=MAX_POLL_S, wake=wake)


def between(times):
    """How long it took from each to the next."""
    return [round(after - before, 3) for before, after in pairwise(times)]


def test_what_was_lost_stays_lost_until_the_consumer_has_seen_to_it():
    """A session that ends again meanwhile, before anything was taken up, does not hide it."""
    a = member()
    a.answered(a.heartbeat(0), GroupHeartbeatAnswer(assigned=[0, 1], members=1, settled=True), 0)
    a.started({0})
    a.lose()
    a.answered(a.heartbeat(1), GroupHeartbeatAnswer(assigned=[2], members=1, settled=True), 1)
    assert (a.lost, a.held, a.to_start, a.must_move) == ({0}, set(), {2}, True)
    a.lose()
    assert (a.lost, a.must_move, a.joined, a.settled) == ({0}, True, False, False)


def test_a_heartbeat_says_what_is_held_until_it_is_released():
    """What is to be given up is owned as before, and what was let go of is not any more."""
    a = member()
    a.answered(a.heartbeat(0), GroupHeartbeatAnswer(assigned=[0, 1], members=1, settled=True), 0)
    a.started({0, 1})
    a.answered(a.heartbeat(1), GroupHeartbeatAnswer(assigned=[1, 2], members=2, settled=False), 1)
    assert (a.to_release, a.to_start) == ({0}, {2})
    assert a.heartbeat(2).owned == [0, 1, 2]
    a.released({0})
    beat = a.heartbeat(3)
    assert (beat.owned, beat.client, beat.session_timeout_ms) == ([1, 2], "c", 9_000)


@pytest.mark.parametrize(
    ("session_ms", "settled", "pause_s"),
    [
        (9_000, True, HEARTBEAT_S),
        (1_500, True, 0.5),
        (9_000, False, MOVING_HEARTBEAT_S),
    ],
)
async def test_heartbeats_come_in_time(session_ms, settled, pause_s):
    """Often while partitions move, and else so that three of them fit into the session."""
    broker = Broker()
    broker.answer = GroupHeartbeatAnswer(assigned=[0], members=1, settled=settled)
    running = session(broker, member(session_ms))
    await asyncio.sleep(4 * pause_s)
    assert set(between(broker.beats())) == {pause_s}
    assert {timeout_s for _, _, timeout_s in broker.asked} == {session_ms / 3_000}
    await running.close()


async def test_an_error_is_told_once_it_has_lasted():
    """Not before the request timeout, counted from its first; then once, and anew after it."""
    broker, woken = Broker(), []
    running = session(broker, member(), wake=lambda: woken.append(1))
    await asyncio.sleep(0.5)
    broker.failing = UnavailableError("away")
    await asyncio.sleep(REQUEST_TIMEOUT_S - 1)
    running.poll_begins()
    running.check()
    broker.failing = None
    await asyncio.sleep(2)
    assert repr(running).startswith("<GroupSession [running]")
    broker.failing = UnavailableError("away again")
    await asyncio.sleep(REQUEST_TIMEOUT_S - 1)
    running.check()
    assert repr(running).startswith("<GroupSession [failing]")
    count = len(woken)
    await asyncio.sleep(3)
    assert len(woken) > count, "who waits must hear of it"
    with pytest.raises(UnavailableError, match="away again"):
        running.check()
    running.check()
    await asyncio.sleep(REQUEST_TIMEOUT_S - 2)
    running.check()
    await asyncio.sleep(4)
    with pytest.raises(UnavailableError):
        running.check()
    await running.close()


async def test_who_does_not_poll_leaves_and_comes_back_with_the_next_poll():
    """While it waits in a poll, however long, it is not stuck; it is from the end of the poll on.

    It sends nothing while it is out.
    """
    broker, a, woken = Broker(), member(), []
    running = session(broker, a, wake=lambda: woken.append(a.joined))
    running.poll_begins()
    await asyncio.sleep(3 * MAX_POLL_S)
    assert a.joined
    a.started(a.to_start)
    running.poll_ends()
    await asyncio.sleep(MAX_POLL_S - 0.5)
    assert a.joined
    assert broker.farewells() == []
    await asyncio.sleep(2 * HEARTBEAT_S)
    assert (a.joined, a.lost) == (False, {0})
    assert broker.farewells() == [LEAVE_TIMEOUT_S]
    assert woken[-1] is False, "the consumer has to hear of what it lost"
    sent = len(broker.asked)
    await asyncio.sleep(10 * MAX_POLL_S)
    assert len(broker.asked) == sent
    running.poll_begins()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert a.joined, "at once"
    await running.close()


@pytest.mark.parametrize("failing", [None, UnavailableError("away")])
async def test_closing_leaves_and_a_broker_that_is_away_does_not_keep_it(failing):
    """It ends its session here first; whether the broker hears of it or not, it is out."""
    broker, a = Broker(), member()
    running = session(broker, a)
    await asyncio.sleep(0.5)
    a.started({0})
    broker.failing = failing
    await running.close()
    assert (a.joined, a.held) == (False, set())
    assert broker.farewells() == [LEAVE_TIMEOUT_S]
    (request,) = [each for _, each, _ in broker.asked if isinstance(each, LeaveGroup)]
    assert (request.group, request.topic, request.member_id) == ("g", "t", "m")
    await running.close()
    assert len(broker.farewells()) == 1, "who is out has nothing to leave"
    sent = len(broker.asked)
    await asyncio.sleep(10)
    assert len(broker.asked) == sent


# -- commits --------------------------------------------------------------------------------


class Coordinator:
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
def joined():
    found = member()
    join(found)
    return found


def commits_of(broker, member, auto_interval_s=None, **options):
    """Commits of the member, for its group; it stands where `broker.positions` says."""
    options = {"membership": lambda: member, "positions": lambda: broker.positions} | options
    return Commits(broker, "g", auto_interval_s=auto_interval_s, **options)


async def test_what_was_handed_out_in_a_session_that_is_over_is_not_committed(joined):
    """Others may have come further: so it is refused, also when the member is back in its group."""
    broker = Coordinator()
    commits = commits_of(broker, joined)
    broker.positions = {0: 2}
    joined.lose()
    with pytest.raises(NotOwnerError, match="does not hold partition 0"):
        await commits.commit(commits.pending())
    with pytest.raises(NotOwnerError, match="does not hold partition 0"):
        await commits.commit({0: 2, 1: 5})
    join(joined)
    with pytest.raises(NotOwnerError, match="its session ended"):
        await commits.commit(commits.pending())
    await commits.commit_if_owner(commits.pending())
    assert broker.stored == []
    joined.lost.clear()
    commits.forget({0})
    broker.positions = {0: 11}
    await commits.commit(commits.pending())
    assert broker.stored == [{0: 11}], "the consumer has given up what was lost"


async def test_a_commit_that_waits_for_its_turn_is_of_the_holding_in_which_it_was_asked_for(joined):
    """The partition may be lost and granted again meanwhile: the broker must be able to tell."""
    broker = Coordinator()
    commits = commits_of(broker, joined)
    broker.answers.clear()
    asked_at = joined.sequence
    waiting = [asyncio.create_task(commits.commit({0: offset})) for offset in (2, 5)]
    await asyncio.sleep(0)
    joined.lose()
    join(joined)
    joined.lost.clear()  # the consumer has given up what was lost
    broker.answers.set()
    await asyncio.gather(*waiting)
    assert broker.heartbeats == [asked_at, asked_at]
    assert joined.sequence > asked_at


async def test_where_a_group_begins_is_stored_though_nothing_is_read(joined):
    """At once, or with the next commit where that fails; nothing that is committed is replaced."""
    broker = Coordinator()
    broker.positions = {0: 7, 1: 3}
    commits = commits_of(broker, joined)
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
    broker.ends, broker.positions = {3: 5}, {3: 8}
    await commits.begin([3])
    assert len(broker.stored) == 2, "a start that does not exist is for reading to refuse"


async def test_auto_commit_is_of_what_was_handed_out_before_it_was_due(joined):
    """What the same poll or a later one hands out is not done yet, however long the commit takes:
    the next one stores it.
    """
    broker = Coordinator()
    commits = commits_of(broker, joined, 0.0)
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


async def test_auto_commit_that_failed_is_told_and_tried_again(joined):
    """Nobody waits for it, so the poll after it raises its error."""
    broker = Coordinator()
    commits = commits_of(broker, joined, 0.0)
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


async def test_each_attempt_has_a_number_of_its_own(joined):
    """One that was given up may be stored late: a later one is told from it. No two consumers share
    a name, and who is no member names none.
    """
    broker = Coordinator()
    now = joined
    commits = commits_of(broker, None, membership=lambda: now)
    broker.failing = UnavailableError("no broker")
    with pytest.raises(UnavailableError):
        await commits.commit({0: 1})
    broker.failing = None
    await commits.commit({})
    await commits.commit({0: 2})
    now = None
    await commits.commit({0: 3})
    other = commits_of(broker, joined)
    await other.commit({0: 1})
    *ours, (_, _, name, sequence) = broker.named
    assert [(group, who, number) for group, who, _, number in ours] == [
        ("g", "m", 1),
        ("g", "m", 2),
        ("g", "", 3),
    ]
    assert broker.heartbeats == [joined.sequence, 0, joined.sequence]
    assert len({committer for _, _, committer, _ in ours} | {name}) == 2
    assert sequence == 1
