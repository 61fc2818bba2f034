"""The model of ZooKeeper among the processes of a simulation, which crash and freeze."""

from __future__ import annotations

import random

import pytest

from memq.errors import SessionLostError
from tests.fakes.loop import ProcessLoop, Timeline, Trace
from tests.fakes.zookeeper import InMemoryZooKeeper

TIMEOUT_S = 6


class World:
    """Servers and two processes, each with an event loop and a clock of its own."""

    def __init__(self, seed=1) -> None:
        self.trace = Trace()
        self.timeline = Timeline(random.Random(seed), self.trace)
        servers = ProcessLoop(self.timeline, "zookeeper", uptime_us=7_000_000)
        self.service = InMemoryZooKeeper(servers)
        self.owner = ProcessLoop(self.timeline, "owner", uptime_us=5_000_000_000, rate=1.0002)
        self.other = ProcessLoop(self.timeline, "other", rate=0.9998)
        self.session = self.owner.run(self.service.open(session_timeout_s=TIMEOUT_S), timeout_s=1)
        self.owner.run(self.session.create("/mine", ephemeral=True), timeout_s=1)
        watching = self.other.run(self.service.open(session_timeout_s=TIMEOUT_S), timeout_s=1)
        self.watch = watching.watch("/mine")
        assert self.next().owner == self.session.session_id

    def next(self):
        """What is seen next of the ephemeral."""
        return self.other.run(self._next(), timeout_s=60)

    async def _next(self):
        return await anext(self.watch)


def test_the_ephemeral_of_a_process_that_crashed_goes():
    """When it has not been heard of for the session timeout, and not before."""
    world = World()
    world.timeline.sleep(20)
    world.owner.crash()
    crashed_us = world.timeline.now_us
    assert world.next() is None
    # What it had sent last was a probe, up to an eighth of the timeout ago.
    assert TIMEOUT_S * 0.87e6 <= world.timeline.now_us - crashed_us <= TIMEOUT_S * 1.01e6


def test_a_process_that_was_frozen_finds_its_lease_run_out():
    """Its first look at the lease says no, before it can have heard of anything."""
    world = World()
    world.timeline.sleep(20)
    assert world.session.lease.valid(world.owner.time())
    world.owner.freeze()
    assert world.next() is None
    assert not world.session.lease.valid(world.owner.time())
    world.owner.thaw()

    async def late():
        with pytest.raises(SessionLostError):
            await anext(world.session.watch("/mine"))

    world.owner.run(late(), timeout_s=5)


def test_the_same_seed_does_the_same():
    """Callback by callback."""

    def digest():
        world = World(seed=3)
        world.timeline.sleep(5)
        world.service.reset(world.session)
        world.timeline.sleep(5)
        world.owner.crash()
        assert world.next() is None
        return world.trace.digest()

    assert digest() == digest()
