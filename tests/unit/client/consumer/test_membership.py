"""A member of a group in the background: its heartbeats, its errors, and how it leaves."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from types import SimpleNamespace

import pytest

from memq.client.consumer.membership import (
    HEARTBEAT_S,
    LEAVE_TIMEOUT_S,
    MOVING_HEARTBEAT_S,
    GroupMembership,
    GroupSession,
)
from memq.core.wire.messages import GroupHeartbeat, GroupHeartbeatAnswer, LeaveGroup
from memq.errors import UnavailableError
from tests.unit.zookeeper.conftest import virtual_time  # noqa: F401 - a fixture

REQUEST_TIMEOUT_S = 30.0
MAX_POLL_S = 5.0

pytestmark = pytest.mark.usefixtures("virtual_time")


class Broker:
    """Answers heartbeats as it is told to, and remembers when what came.

    Attributes:
        asked: of each request when it came, itself, and its timeout.
        failing: raised in place of an answer, while there is one.
        silent: whether it lets each request wait until its timeout.
    """

    def __init__(self):
        self.cluster = SimpleNamespace(request_timeout_s=REQUEST_TIMEOUT_S)
        self.answer = GroupHeartbeatAnswer(assigned=[0], members=1, settled=True)
        self.asked, self.failing, self.silent = [], None, False

    async def ask(self, request, *, timeout_s=REQUEST_TIMEOUT_S):
        self.asked.append((asyncio.get_running_loop().time(), request, timeout_s))
        if self.silent:
            await asyncio.sleep(timeout_s)
            raise UnavailableError("no answer")
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
async def test_closing_leaves_and_a_broker_that_is_away_does_not_keep_it(failing, caplog):
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
    assert ("could not leave" in caplog.text) is (failing is not None)
    await running.close()
    assert len(broker.farewells()) == 1, "who is out has nothing to leave"
    sent = len(broker.asked)
    await asyncio.sleep(10)
    assert len(broker.asked) == sent
