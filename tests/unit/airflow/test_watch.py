"""A watcher in its triggerer, by a clock that only its waits move: bursts, outages, restarts."""

import asyncio
from itertools import pairwise
from types import SimpleNamespace

import pytest

from airflow_provider_memq.triggers import watch
from airflow_provider_memq.triggers.watch import MemqWatchTrigger, _from_json
from memq.errors import UnavailableError
from tests.unit.airflow.fakes import FakeHook, FakeTopic

A, B = "a" * 16, "b" * 16
POLL_S, LINGER_S, MAX_LINGER_S = 5.0, 1.0, 10.0


class Store(dict):
    """The state store of an asset; it may fail for a while, or for good."""

    error = None
    asked = 0
    writes = ()

    async def aget(self, key):
        self.asked += 1
        if self.error:
            raise self.error
        return self.get(key)

    async def aset(self, key, value):
        if self.error:
            raise self.error
        self.writes += ((key, value),)
        self[key] = value


class World(FakeHook):
    """A topic, a state store, and what happens to them at which second."""

    def __init__(self):
        super().__init__()
        self.now_s = 0.0
        self.topic = FakeTopic({0: 0}, topic_id=A)
        self.store = Store()
        self.down = None
        self.changes = []
        self.looked_s = []
        self.events = []

    def at(self, second, change):
        self.changes.append((second, change))

    def publish(self, second, batches=1):
        self.at(second, lambda: self.topic.ends.update({0: self.topic.ends[0] + batches}))

    def make_again(self, end):
        self.topic = FakeTopic({0: end}, topic_id=B)

    async def atopic(self, topic, topic_id=""):
        self.looked_s.append(self.now_s)
        self.looks = [self.down or FakeTopic(self.topic.ends, topic_id=self.topic.topic_id)]
        return await super().atopic(topic, topic_id)

    async def sleep(self, seconds):
        assert self.open == 0, "a connection is held while it waits"
        assert seconds > 0
        self.now_s += seconds
        due = [each for each in self.changes if each[0] <= self.now_s]
        self.changes = [each for each in self.changes if each not in due]
        for _, change in sorted(due, key=lambda each: each[0]):
            change()
        if self.now_s >= self.until_s:
            raise asyncio.CancelledError

    def gaps(self, since_s=0.0, until_s=float("inf")):
        """Seconds between two looks."""
        looks = [at for at in self.looked_s if since_s <= at < until_s]
        return [later - at for at, later in pairwise(looks)]

    async def watch(self, seconds, poll_interval=POLL_S):
        """Run a watcher for so long; returns the events of it."""
        self.until_s = self.now_s + seconds
        trigger = MemqWatchTrigger(
            topic="t", poll_interval=poll_interval, linger=LINGER_S, max_linger=MAX_LINGER_S
        )
        trigger.asset_state_store = self.store
        began = len(self.events)
        try:
            async for event in trigger.run():
                self.events.append((self.now_s, event.payload))
        except asyncio.CancelledError:
            return [payload for _, payload in self.events[began:]]
        raise AssertionError("a watcher never ends by itself")


@pytest.fixture
def world(monkeypatch):
    made = World()
    monkeypatch.setattr(watch, "MemqHook", lambda _: made)
    monkeypatch.setattr(watch, "asyncio", SimpleNamespace(sleep=made.sleep))
    monkeypatch.setattr(watch, "time", SimpleNamespace(monotonic=lambda: 9e5 + made.now_s))
    return made


async def test_a_burst_is_one_event(world):
    """It fires once the topic rests, with all that is there by then."""
    for tenth in range(60):
        world.publish(20 + tenth / 10)

    events = await world.watch(200)

    assert events == [{"topic": "t", "topic_id": A, "offsets": {"0": 60}, "new": 60}]
    fired_s = world.events[0][0]
    assert 26 <= fired_s <= 26 + 2 * LINGER_S
    assert world.looked_s.count(fired_s) == 1
    positions = [value for key, value in world.store.writes if key == "position"]
    assert positions == [{}, {"0": 60}]


async def test_a_topic_that_never_rests_is_announced_all_the_same(world):
    """Every `max_linger` or so, and each event counts only what came after the one before."""
    for second in range(300):
        world.publish(second + 0.5)

    events = await world.watch(300)

    fired_s = [0.0, *(at for at, _ in world.events)]
    gaps = [later - at for at, later in pairwise(fired_s)]
    assert max(gaps) <= 1.1 * POLL_S + MAX_LINGER_S + LINGER_S
    assert min(gaps[1:]) >= MAX_LINGER_S
    assert sum(each["new"] for each in events) == events[-1]["offsets"]["0"] > 250


async def test_nothing_is_announced_again_by_the_next_triggerer(world):
    """It goes on from what is stored: what is new is one event, a topic made again another one."""
    world.publish(10, 3)
    assert [each["new"] for each in await world.watch(60)] == [3]
    assert await world.watch(60) == []

    world.publish(world.now_s, 2)
    assert [each["new"] for each in await world.watch(60)] == [2]
    world.make_again(5)
    assert [(each["topic_id"], each["new"]) for each in await world.watch(60)] == [(B, 5)]
    assert await world.watch(60) == []


@pytest.mark.parametrize("outages", [1, 2])
async def test_an_outage_is_ridden_out_and_told(world, outages):
    """It looks ever more seldom, once a minute in the end, and tells in `last_error` why; then it
    announces what was published meanwhile, and the next outage begins like the first.
    """
    for outage in range(outages):
        down_s = world.now_s + 20
        world.at(down_s, lambda: setattr(world, "down", UnavailableError("nobody there")))
        world.publish(down_s + 100)
        world.at(down_s + 400, lambda: setattr(world, "down", None))
        world.at(down_s + 399, lambda: world.store.update(seen=world.store["last_error"]))
        world.looked_s.clear()

        events = await world.watch(600)

        assert [each["new"] for each in events] == [1]
        assert "memq_default" in world.store["seen"]
        assert "nobody there" in world.store["seen"]
        assert world.store["last_error"] == ""
        waits = world.gaps(down_s, down_s + 400)
        assert waits[0] <= 1.0
        assert 30.0 <= max(waits) <= 60.0
        assert 10 <= len(waits) <= 25, outage


async def test_a_state_store_that_does_not_answer_is_waited_for(world):
    """What was announced is not known without it, so nothing is announced meanwhile."""
    world.store.update(position={"0": 3}, topic_id=A)
    world.topic.ends[0] = 4
    world.store.error = RuntimeError("api server")
    world.at(100, lambda: setattr(world.store, "error", None))

    events = await world.watch(300)

    assert [each["new"] for each in events] == [1]
    assert world.events[0][0] >= 100
    assert world.store["position"] == {"0": 4}
    assert world.store["last_error"] == ""


@pytest.mark.parametrize(
    ("stored", "ends"),
    [(None, {}), ("x", {}), ({"0": 3, "1": 4}, {0: 3, 1: 4}), ({"a": 1, "1": 2}, {})],
)
def test_what_a_person_stored(stored, ends):
    """A state store that was edited by hand cannot stop the watcher."""
    assert _from_json(stored) == ends
