"""What is stored of groups: in turn, and only while this broker has them."""

import asyncio
from types import SimpleNamespace

import pytest

from memq.broker.stored_groups import StoredGroups, restore_groups
from memq.core.group import MAX_SESSION_TIMEOUT_MS, GroupCoordinator
from memq.core.queue import Holding
from memq.core.wire.messages import CommitOffsets, GroupHeartbeat, PartitionOffset
from memq.errors import FencedError, NotHostedError, NotOwnerError, QueueError, TopicRecreatedError
from tests.integration.broker.support import until

SESSION_MS = 10_000


class Queue:
    """Stores what it is told; waits while its gate is shut.

    Attributes:
        stored: what was done, in order.
        failing: raised in its place, while there is one.
        under_way: how many calls wait for the gate.
    """

    def __init__(self):
        self.stored, self.failing, self.under_way = [], None, 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def _store(self, *what):
        self.under_way += 1
        await self.gate.wait()
        self.under_way -= 1
        if self.failing is not None:
            raise self.failing
        self.stored.append(what)

    async def commit(self, group, topic, offsets):
        await self._store("commit", group, topic, offsets)

    async def hold(self, group, topic, holdings):
        await self._store("hold", group, topic, holdings)

    async def delete_group(self, group, topic):
        await self._store("delete", group, topic)


TOPIC = SimpleNamespace(
    name="t", topic_id="i", queue_topic="t.i", config=SimpleNamespace(read_partitions=2)
)


class Broker:
    """A broker that has the groups of topic `t`, until it loses them.

    Attributes:
        mine: the topics whose groups it has, with the topic id of each.
        now_ms: its clock.
    """

    def __init__(self):
        self.queue, self.now_ms, self.mine = Queue(), 0, {"t": "i"}
        self.coordinator = GroupCoordinator()
        self.groups = StoredGroups(self, self, self.coordinator)

    def now(self):
        return SimpleNamespace(mono_ms=self.now_ms)

    def coordinated_names(self):
        return list(self.mine)

    def coordinated(self, name, topic_id=""):
        if name not in self.mine:
            raise NotHostedError(f"the groups of {name!r} are not here")
        if topic_id not in ("", self.mine[name]):
            raise TopicRecreatedError(f"topic {name!r} was recreated")
        return SimpleNamespace(topic=TOPIC, group_changes=0)

    def beat(self):
        """A heartbeat; what it grants is not stored yet."""
        request = GroupHeartbeat(group="g", topic="t", member_id="a", sequence=1)
        return self.coordinator.heartbeat(request, 2, self.now_ms)

    def commit(self, offset=1):
        """A commit that is under way."""
        offsets = [PartitionOffset(0, offset), PartitionOffset(1, offset)]
        request = CommitOffsets(
            group="g", topic="t", member_id="a", offsets=offsets, sequence=0, heartbeat=1
        )
        return self.groups.commit(request, TOPIC)

    def end(self):
        """The last member of the group leaves."""
        self.coordinator.leave("g", "t", "a", self.now_ms)


async def commit_of(broker):
    """Something to do for each test that tries all: a commit."""
    broker.beat()
    return broker.commit


async def save_of(broker):
    """Likewise: who holds what."""
    broker.beat()
    return lambda: broker.groups.save_holdings("g", TOPIC)


async def tidy_of(broker):
    """Likewise: that nobody holds anything any more, of a group that is stored otherwise."""
    broker.beat()
    await broker.groups.save_holdings("g", TOPIC)
    broker.end()
    broker.queue.stored.clear()
    return broker.groups.tidy


async def delete_of(broker):
    """Likewise: a group is deleted."""
    return lambda: broker.groups.delete("g", TOPIC)


ALL = pytest.mark.parametrize("prepare", [commit_of, save_of, tidy_of, delete_of])


@ALL
@pytest.mark.parametrize("recreated", [False, True])
async def test_nothing_is_stored_once_the_groups_are_another_brokers(prepare, recreated):
    """Also of what had been found good, and had only to wait for its turn."""
    broker = Broker()
    act = await prepare(broker)
    lock = broker.groups._locks.setdefault(("g", "t.i"), asyncio.Lock())
    await lock.acquire()
    waiting = asyncio.ensure_future(act())
    await asyncio.sleep(0)
    if recreated:
        broker.mine["t"] = "j"
    else:
        del broker.mine["t"]
    broker.coordinator.forget_topic("t")
    lock.release()
    with pytest.raises(TopicRecreatedError if recreated else NotHostedError):
        await waiting
    assert broker.queue.stored == []


@ALL
async def test_a_queue_that_says_so_means_another_broker(prepare):
    """The client is sent there; the cause is told."""
    broker = Broker()
    act = await prepare(broker)
    broker.queue.failing = FencedError("epoch 2 has it")
    with pytest.raises(NotHostedError, match=r"have gone to another broker.*epoch 2") as caught:
        await act()
    assert isinstance(caught.value.__cause__, FencedError)


async def test_a_commit_is_judged_when_its_turn_comes():
    """One that waited behind another is for who holds the partitions then."""
    broker = Broker()
    broker.beat()
    broker.queue.gate.clear()
    first, second = (asyncio.ensure_future(broker.commit(offset)) for offset in (1, 2))
    await until(lambda: broker.queue.under_way)
    broker.end()
    broker.queue.gate.set()
    await first
    with pytest.raises(NotOwnerError):
        await second
    assert broker.queue.stored == [("commit", "g", "t.i", {0: 1, 1: 1})]


async def test_groups_are_restored_as_stored_and_from_now_on():
    """Where it cannot be read who held what, it is as if somebody held all for the longest; the
    others are restored as they were.
    """
    broker = Broker()
    broker.now_ms = 1_000

    async def holdings(topic):
        assert topic == "t.i"
        return {each: {"a": Holding(SESSION_MS, [1])} for each in "fh"} | {"g": None}

    broker.queue.holdings = holdings
    await restore_groups(TOPIC, broker.coordinator, broker)
    for group, until_ms in (("f", SESSION_MS), ("g", MAX_SESSION_TIMEOUT_MS), ("h", SESSION_MS)):
        broker.coordinator.check_idle("other", "t", 0)
        (member,) = broker.coordinator.members(group, "t", 1_000 + until_ms - 1)
        assert member.partitions == ([0, 1] if group == "g" else [1])
        assert broker.coordinator.members(group, "t", 1_000 + until_ms) == []

    async def away(topic):
        raise QueueError("cannot be read")

    broker.queue.holdings = away
    with pytest.raises(QueueError):
        await restore_groups(TOPIC, broker.coordinator, broker)
