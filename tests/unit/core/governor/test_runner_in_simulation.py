"""Governors among the processes of a simulation, which crash and freeze."""

from __future__ import annotations

import gc
import random
import sys

import pytest

from memq.core.governor.nodes import make_persistent
from memq.core.runtime import Runtime
from memq.errors import SessionLostError
from tests.fakes.loop import ProcessLoop, Timeline, Trace
from tests.fakes.zookeeper import InMemoryZooKeeper
from tests.unit.core.governor.brokers import Broker, create_topic, owners, topic_of, until_owned

LONG_S = 100
SESSION_S = 6


class World:
    """Servers, brokers and a person, each with an event loop and a clock of its own."""

    def __init__(self, seed) -> None:
        self.trace = Trace()
        self.timeline = Timeline(random.Random(seed), self.trace)
        self.service = InMemoryZooKeeper(ProcessLoop(self.timeline, "zookeeper"))
        self.person = ProcessLoop(self.timeline, "person")
        self.session = self.person.run(self.service.open(), timeout_s=1)
        self.person.run(make_persistent(self.session), timeout_s=1)
        self.loops, self.brokers = {}, {}
        for number, name in enumerate("abc"):
            loop = self.loops[name] = ProcessLoop(
                self.timeline, name, uptime_us=number * 10**9, rate=1 + number / 10_000
            )
            self.brokers[name] = loop.run(self.started(loop, name), timeout_s=10)

    async def started(self, loop, name):
        runtime = Runtime(mono_s=loop.time, random=random.Random(name).random)
        session = await self.service.open(session_timeout_s=SESSION_S)
        return await Broker.start(session, name, runtime)

    def ask(self, coroutine):
        """What the person gets."""
        return self.person.run(coroutine, timeout_s=LONG_S)

    def begin(self):
        """A topic with owners."""
        self.ask(create_topic(self.session, topic_of()))
        self.ask(until_owned(self.session, 6, by="abc"))
        self.timeline.sleep(20)

    def bury(self):
        """Take down all processes."""
        for loop in self.timeline.loops:
            loop.bury()


@pytest.fixture
def world(monkeypatch):
    """Makes worlds, and takes them down."""
    worlds = []

    def make(seed):
        worlds.append(World(seed))
        return worlds[-1]

    yield make
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # whatever their ends do
    for each in worlds:
        each.bury()
    worlds.clear()
    gc.collect()


def test_a_governor_that_crashes_is_replaced_when_its_session_ends(world):
    """Not before; what it had has other owners moments later."""
    world = world(1)
    world.begin()
    world.loops["a"].crash()
    crashed_us = world.timeline.now_us
    assert "a" in world.ask(owners(world.session)).values()
    world.ask(until_owned(world.session, 6, by="bc"))
    assert 0.87 * SESSION_S <= (world.timeline.now_us - crashed_us) / 1e6 <= SESSION_S + 0.5
    assert [world.brokers[name].runner.elected for name in "bc"].count(True) == 1


def test_a_governor_that_was_frozen_finds_itself_replaced(world):
    """It writes nothing more, and its runner ends with the session."""
    world = world(2)
    world.begin()
    first = world.brokers["a"]
    world.loops["a"].freeze()
    stored = world.ask(until_owned(world.session, 6, by="bc"))
    assert first.runner.elected  # it has heard of nothing
    world.loops["a"].thaw()
    world.timeline.sleep(5)
    assert isinstance(first.task.exception(), SessionLostError)
    assert not first.runner.elected
    assert world.ask(owners(world.session)) == stored


def test_the_same_seed_does_the_same(world):
    """Callback by callback."""

    def digest(seed):
        each = world(seed)
        each.begin()
        each.service.reset(each.brokers["b"].session)
        each.loops["a"].crash()
        each.timeline.sleep(10)
        each.service.expire(each.brokers["b"].session)
        each.timeline.sleep(10)
        return each.trace.digest()

    assert digest(3) == digest(3) != digest(4)
