"""Brokers as far as the Governor is concerned, on any coordination service."""

import asyncio

from memq.core.governor.governor import Governor
from memq.core.governor.nodes import ASSIGNMENTS, BROKERS, LOADS, TOPICS, BrokerNode, LoadsNode
from memq.core.governor.topics import new_topic
from memq.core.topic import TopicConfig
from memq.errors import NoNodeError
from memq.zookeeper.folders import make_persistent
from memq.zookeeper.governor_runner import GovernorRunner

LONG_S = 60  # a wait that ends sooner, or the test has failed


def topic_of(name="t", write_partitions=6, topic_id="01" * 8):
    """A topic as it is stored."""
    config = TopicConfig.create(name, write_partitions=write_partitions)
    return new_topic(config, (), now_ms=0, topic_id=topic_id, request_id="")


async def create_topic(session, topic):
    """Store a topic."""
    await session.create(TOPICS.child(topic.name), TOPICS.encode(topic))


async def delete(session, path):
    """Delete a node, whatever its version."""
    await session.delete(path, (await session.get(path)).version)


class Broker:
    """A registered broker that stands for election, and what became of it.

    Attributes:
        elected: whether it governs, each time that this changed.
    """

    def __init__(self, session, name, runtime, **more) -> None:
        self.session, self.name = session, name
        self.elected: list[bool] = []
        self._runtime = runtime
        self._node = BrokerNode(id=name, address=f"{name}:1", **more)

    @classmethod
    async def start(cls, session, name, runtime, **more):
        """Register, and stand for election."""
        self = cls(session, name, runtime, **more)
        await make_persistent(session)
        await session.create(BROKERS.child(name), BROKERS.encode(self._node), ephemeral=True)
        self.stand()
        return self

    def stand(self):
        """Stand for election, as a broker that has registered now."""
        self.runner = GovernorRunner(
            self.session,
            self.name,
            Governor(),
            registered_s=self._runtime.mono_s(),
            runtime=self._runtime,
            on_change=self.elected.append,
        )
        self.task = asyncio.ensure_future(self.runner.run())

    async def stop_running(self):
        """Stand no more; the session goes on."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def report(self, load=1_000.0):
        """Say that it has taken over what it owns."""
        owned = {
            key: load for key, owner in (await owners(self.session)).items() if owner == self.name
        }
        path, data = LOADS.child(self.name), LOADS.encode(LoadsNode.create(owned))
        if self.name in await self.session.children(LOADS.path):
            await self.session.set(path, data, (await self.session.get(path)).version)
        else:
            await self.session.create(path, data, ephemeral=True)


async def assignments(session):
    """What the assignment nodes say, by topic."""
    found = {}
    for name in await session.children(ASSIGNMENTS.path):
        try:
            node = await session.get(ASSIGNMENTS.child(name))
        except NoNodeError:
            continue
        found[name] = ASSIGNMENTS.decode(name, node.data)
    return found


async def owners(session):
    """Owner by topic and write partition."""
    return {
        (topic, number): owner
        for topic, found in (await assignments(session)).items()
        for number, owner in enumerate(found.owners)
    }


async def until(look):
    """Look until something is found, and give it."""
    async with asyncio.timeout(LONG_S):
        while (found := await look()) is None:
            await asyncio.sleep(0.05)
    return found


async def until_elected(brokers):
    """Wait until one of these brokers governs, and give it."""

    async def elected():
        return next((each for each in brokers if each.runner.elected), None)

    return await until(elected)


async def until_owned(session, count, *, by):
    """Wait until so many write partitions have owners, and all of them are among these brokers."""

    async def owned():
        found = await owners(session)
        return found if len(found) == count and set(found.values()) <= set(by) else None

    return await until(owned)
