"""Folders of a cluster: made at a first start, and mended by a person or a restart."""

from __future__ import annotations

import asyncio

import pytest

from memq.core.governor.nodes import BROKERS, DOOMED, PERSISTENT, TOPICS, BrokerNode, DoomedNode
from memq.core.governor.topics import new_topic
from memq.core.topic import TopicConfig
from memq.errors import CorruptDataError
from memq.zookeeper.folders import make_persistent
from tests.advice import follows
from tests.fakes.zookeeper import InMemoryZooKeeper

TOPIC = new_topic(TopicConfig.create("t"), (), now_ms=5, incarnation="ab" * 8, request_id="r")
BROKER = (BROKERS, "a", BrokerNode(id="a", address="h:1", zone="z", rack="r", capacity=2.0))
BY_HAND = [
    (TOPICS, "t", TOPIC),
    (DOOMED, TOPIC.queue_topic, DoomedNode(topic=TOPIC, by="a")),
]


async def read(session, folder, name):
    """What a node says."""
    return folder.decode(name, (await session.get(folder.child(name))).data)


@follows("restart that broker, which makes it anew")
async def test_a_broker_registers_anew_when_it_is_restarted(virtual_time):
    """The damaged node was its ephemeral, and went with it."""
    folder, name, value = BROKER
    service = InMemoryZooKeeper()
    person, broker = await service.open(), await service.open()
    await make_persistent(person)
    await broker.create(folder.child(name), b"?", ephemeral=True)
    with pytest.raises(CorruptDataError):
        await read(person, folder, name)
    await broker.close()
    restarted = await service.open()
    await restarted.create(folder.child(name), folder.encode(value), ephemeral=True)
    assert await read(person, folder, name) == value


@follows("put back what it held, or delete it, and create the topic anew")
@follows("delete it; what is left of that topic in the queue and in the storage then stays")
@pytest.mark.parametrize(("folder", "name", "value"), BY_HAND)
async def test_a_damaged_node_is_put_back_or_deleted(virtual_time, folder, name, value):
    """Both are possible at any time."""
    person = await InMemoryZooKeeper().open()
    await make_persistent(person)
    await person.create(folder.child(name), b"?")
    with pytest.raises(CorruptDataError):
        await read(person, folder, name)
    await person.set(folder.child(name), folder.encode(value), 0)
    assert await read(person, folder, name) == value
    await person.delete(folder.child(name), 1)
    assert await person.children(folder.path) == ()


# -- what every cluster has -----------------------------------------------------------------


async def test_the_first_start_makes_what_every_cluster_has(virtual_time):
    """Brokers that start together all succeed; another start changes nothing."""
    service = InMemoryZooKeeper()
    sessions = [await service.open() for _ in range(3)]
    for number, session in enumerate(sessions):
        service.delay(session, 0.01 * number)
    async with asyncio.TaskGroup() as tasks:
        for session in sessions:
            tasks.create_task(make_persistent(session))
    expected = tuple(sorted(path.removeprefix("/") for path in PERSISTENT))
    assert await sessions[0].children("/") == expected
    before = [await sessions[0].get(path) for path in PERSISTENT]
    await make_persistent(sessions[1])
    assert [await sessions[0].get(path) for path in PERSISTENT] == before
