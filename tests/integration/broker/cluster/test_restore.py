"""Kafka and ZooKeeper are lost: what brokers find when both were restored from the bucket."""

import asyncio

import pytest

from memq.broker.restore import Bucket, Target, restore
from memq.broker.restore_cluster import SharedQueue, SharedTopics
from memq.core.access.rules import Rule
from memq.core.features import RESTORED
from memq.core.notification import decode_notification
from memq.core.wire import messages as m
from memq.errors import DataLossError, TopicExistsError
from memq.queue.kafka.client import Place
from memq.zookeeper.folders import make_persistent
from tests.fakes.kafka import InMemoryKafka
from tests.fakes.zookeeper import InMemoryZooKeeper

TOPIC = {"read_partitions": 2, "write_partitions": 2, "batch_messages": 1, "batch_age": "1s"}


async def restored(cluster):
    """Restore what the services of a cluster have lost; outcomes by topic."""
    session = await cluster.zookeeper.open(session_timeout_s=20, request_timeout_s=5)
    await make_persistent(session)
    queue = await cluster.queue("restore")
    bucket = Bucket(cluster.storage, "memq", lambda *_: None)
    found = await restore(
        bucket,
        Target(SharedTopics(session), SharedQueue(queue), RESTORED),
        topic=None,
        execute=True,
        progress=lambda *_: None,
    )
    await session.close()
    await queue.close()
    return {each.topic: each for each in found}


async def published(broker, topic="t"):
    """What each offset names: batch ids by partition and offset."""
    hosted = broker.topics.get(topic)
    name = hosted.topic.queue_topic
    found = {}
    for partition in range(hosted.topic.config.read_partitions):
        start, _ = await broker.context.queue.offsets(name, partition)
        async for entry in broker.context.entries(name, partition, start):
            found[partition, entry.offset] = decode_notification(entry.payload).batch_id
    return found


async def write(c, *sequences):
    for sequence in sequences:
        await c.write(sequence, write_partition=0, producer_id="p")


async def stopped(cluster, *, backed_up=True):
    """Stop all brokers."""
    for broker in cluster.brokers.values():
        if not backed_up:
            broker.backups.write = _nothing
        await broker.stop()
    cluster.brokers.clear()


async def _nothing():
    return None


async def test_a_cluster_comes_back_at_its_offsets(cluster):
    """Offsets, with the gaps of transactions and the start that retention left; groups; users."""
    owner, _, c = await cluster.serve("b0", "b1", **TOPIC)
    await write(c, *range(8))
    await owner.backups.write()
    name = owner.topics.get("t").topic.queue_topic
    start = sorted(offset for partition, offset in await published(owner) if partition == 0)[1] + 1
    await owner.context.queue.truncate(name, 0, start)
    position = m.PartitionOffset(partition=0, offset=start)
    await c.ask(m.CommitOffsets(group="g", topic="t", member_id="", offsets=[position]))
    await c.ask(m.AlterRules(add=[Rule(principal="*", operation="read", type="topic", name="t")]))
    before, document = await published(owner), owner.control.document
    await stopped(cluster)
    cluster.kafka, cluster.zookeeper = InMemoryKafka(), InMemoryZooKeeper()
    outcome = (await restored(cluster))["t"]
    assert (outcome.exact, outcome.later, outcome.groups) == (len(before), 0, ["g"])
    [b] = await cluster.start("b0")
    await cluster.all_owned("t")
    c = await cluster.connect(b)
    await c.know("t")
    assert await published(b) == before
    assert await b.context.queue.committed("g", name) == {0: start}
    assert b.control.document == document
    assert (await b.context.queue.offsets(name, 0))[0] == start
    assert (await c.write(7, write_partition=0, producer_id="p")).duplicate
    await write(c, 8, 9)
    after = await published(b)
    assert before.items() < after.items()
    assert len(after) == len(before) + 2
    await b.context.queue.truncate(name, 0, start + 2)
    assert all(offset > start + 1 for partition, offset in await published(b) if partition == 0)
    await stopped(cluster)
    assert {each.action for each in (await restored(cluster)).values()} == {"none"}


async def test_who_waits_for_a_restored_topic_is_told_what_others_publish(cluster):
    """Kafka tells offsets of its own, in a topic that was restored."""
    owner, c = await cluster.serve("b0", **TOPIC)
    await write(c, *range(4))
    name = owner.topics.get("t").topic.queue_topic
    await owner.backups.write()
    await owner.context.queue.truncate(name, 0, 3)
    owner.topics.get("t").expired_before_ms = 1
    await stopped(cluster)
    cluster.kafka, cluster.zookeeper = InMemoryKafka(), InMemoryZooKeeper()
    await restored(cluster)
    [b] = await cluster.start("b0")
    await cluster.all_owned("t")
    other = await cluster.queue("reader")
    _, end = await other.offsets(name, 0)
    waiting = asyncio.ensure_future(other.wait(name, {0: end}, 30))
    c = await cluster.connect(b)
    await c.know("t")
    answer = await c.write(9, write_partition=0, producer_id="p")
    assert await waiting
    [entry] = await other.fetch(name, 0, end, max_entries=9, max_bytes=1 << 20)
    assert entry.offset == answer.offset


async def test_what_no_backup_has_gets_offsets_that_were_never_used(cluster):
    """Nothing that was acked is lost, though brokers died and others took over."""
    owner, _, c = await cluster.serve("b0", "b1", **TOPIC)
    await write(c, *range(4))
    await owner.backups.write()
    known = await published(owner)
    await owner.stop()
    [other] = [each for name, each in cluster.brokers.items() if each is not owner]
    del cluster.brokers[owner.config.broker_id]
    await cluster.all_owned("t")
    c2 = await cluster.connect(other)
    await c2.know("t")
    await write(c2, 4, 5)
    await other.backups.write()
    known = await published(other)
    await write(c2, 6, 7, 8)
    before = await published(other)
    await stopped(cluster, backed_up=False)
    cluster.kafka, cluster.zookeeper = InMemoryKafka(), InMemoryZooKeeper()
    outcome = (await restored(cluster))["t"]
    assert (outcome.exact, outcome.later) == (6, 3)
    [b] = await cluster.start("b2")
    await cluster.all_owned("t")
    after = await published(b)
    assert sorted(after.values()) == sorted(before.values())
    assert {place: after[place] for place in known} == known
    assert (after.keys() - known.keys()).isdisjoint(before)
    c = await cluster.connect(b)
    await c.know("t")
    await write(c, 9)
    assert (await published(b)).keys() - after.keys() - before.keys()


async def test_a_half_of_the_services_is_not_replaced(cluster):
    """Where ZooKeeper was lost, Kafka stays; a Kafka that lost its end is not overwritten."""
    owner, c = await cluster.serve("b0", **TOPIC)
    await write(c, *range(4))
    before = await published(owner)
    name = owner.topics.get("t").topic.queue_topic
    await stopped(cluster)
    cluster.zookeeper = InMemoryZooKeeper()
    with pytest.raises(DataLossError, match="Restore it from a backup"):
        await cluster.start("b0")
    cluster.brokers.clear()
    assert (await restored(cluster))["t"].reason == "the catalog does not have it"
    [b] = await cluster.start("b0")
    await cluster.all_owned("t")
    assert await published(b) == before
    await stopped(cluster)
    cluster.kafka.partition(Place(f"memq.{name}", 0)).records.pop()
    with pytest.raises(TopicExistsError, match="delete it in Kafka, and restore it again"):
        await restored(cluster)


async def test_a_broker_does_not_begin_a_cluster_over_its_backup(cluster):
    """With both services empty it would replace the backup by that of a cluster without topics."""
    _, c = await cluster.serve("b0", **TOPIC)
    await write(c, 0)
    await stopped(cluster)
    cluster.kafka, cluster.zookeeper = InMemoryKafka(), InMemoryZooKeeper()
    with pytest.raises(DataLossError, match=r"has a backup of 2 topics.*`memq restore`"):
        await cluster.start("b0")
