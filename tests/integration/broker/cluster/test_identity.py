"""What brokers must have in common is compared when they join, and a restored ZooKeeper is seen."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
from functools import partial

import msgspec
import pytest

from memq import AsyncAdminClient
from memq.broker import identity
from memq.broker.identity import ClusterIdentity
from memq.core.governor.nodes import CLUSTER, DOOMED, TOPICS, DoomedNode
from memq.core.wire import messages as m
from memq.errors import (
    ConfigError,
    CorruptDataError,
    DataLossError,
    UnknownTopicError,
)
from memq.storage.local import LocalStorage
from tests.advice import follows
from tests.integration.broker.support import until

NODE = CLUSTER.child("cluster")


@pytest.fixture(autouse=True)
def short_sessions(cluster):
    """A session that ZooKeeper does not know any more is found out when it would be over."""
    cluster.session_timeout_s = 2.0


def made(cluster):
    """What stands in ZooKeeper of the cluster."""
    return CLUSTER.decode("cluster", cluster.zookeeper.node(NODE).data)


async def test_the_first_broker_makes_what_the_others_must_find(cluster):
    """An object in its storage, and a node that names it; the next one joins with both."""
    await cluster.start("one")
    found = made(cluster)
    assert (found.cluster_id, found.queue, found.broker) == ("memq", "in-memory", "one")
    assert cluster.storage.get(found.object)
    await cluster.start("two")
    assert made(cluster) == found


@follows("Correct the option, or mount what is not mounted")
async def test_another_storage_is_refused_and_named(cluster):
    """A letter's difference, or a missing mount: neither is the place where the others write."""
    (one,) = await cluster.start("one")
    right, cluster.storage = cluster.storage, LocalStorage(cluster.folder / "object")
    with pytest.raises(ConfigError, match="storage: broker 'one' has made cluster 'memq'") as error:
        await cluster.start("two")
    assert not error.value.retriable
    assert one.context.root.uri in str(error.value)
    assert cluster.storage.uri("a").removesuffix("a") in str(error.value)
    cluster.storage = right
    await cluster.start("two")


async def test_another_cluster_id_is_refused_and_named(cluster):
    """As where a copy of what ZooKeeper has of one cluster was made the root of another."""
    await cluster.start("one")
    with pytest.raises(ConfigError, match=r"cluster_id: .* with memq; .* has other"):
        await cluster.start("two", cluster_id="other")


@follows("stop all brokers and delete it; the next to start makes it anew")
async def test_a_node_that_is_damaged_lets_nobody_join(cluster):
    """What the others have is not known then."""
    await cluster.start("one")
    await cluster.stop("one")
    session = await cluster.zookeeper.open()
    await session.set(NODE, b"?", 0)
    with pytest.raises(CorruptDataError, match="'/cluster' must hold what the brokers have"):
        await cluster.start("one")
    await session.delete(NODE, 1)
    await cluster.start("one")
    assert made(cluster).broker == "one"


async def test_a_mount_that_goes_while_a_broker_runs_ends_its_part(cluster, monkeypatch):
    """It owns nothing and is not ready until the mount is there again, and says why."""
    monkeypatch.setattr(identity, "LOOK_S", 0.05)
    (one,) = await cluster.start("one")
    await (await cluster.connect(one)).create("t")
    await cluster.all_owned("t")
    folder = cluster.folder / "objects"
    folder.rename(cluster.folder / "unmounted")
    folder.mkdir()
    await until(lambda: one.context.apart and not one.topics.running())
    assert "storage: broker 'one' has made cluster 'memq'" in one.context.apart
    assert one.context.apart in one.context.not_ready()[0]
    shutil.rmtree(folder)
    (cluster.folder / "unmounted").rename(folder)
    await cluster.all_owned("t")
    assert one.context.not_ready() == []


async def restored(cluster, backup):
    """Let ZooKeeper be as in a backup, and each broker have seen more before."""
    session = await cluster.zookeeper.open()
    for number in range(20):  # sessions that end make up for some
        await session.create(f"/{number}")
    for broker in cluster.brokers.values():
        await broker.membership._session.get("/19")
    cluster.zookeeper.roll_back(backup)


async def test_brokers_join_again_when_zookeeper_was_restored(cluster):
    """Acks go on without a restart, and what was acked before is a duplicate."""
    one, two = await cluster.start("one", "two")
    c = await cluster.connect(one)
    await c.create("t", batch_age="5ms")
    (owner,) = await cluster.all_owned("t")
    backup = cluster.zookeeper.back_up()
    c = await cluster.connect(cluster.brokers[owner])
    c.schema_id = (await c.ask(m.Metadata(topics=["t"]))).topics[0].schema_id
    first = await c.write(0)
    await restored(cluster, backup)
    await until(lambda: len(one.sessions) > 1 and len(two.sessions) > 1, 30)
    await until(lambda: one.context.leased() and two.context.leased(), 30)
    (owner,) = await cluster.all_owned("t")
    assert one.context.apart == two.context.apart == ""
    c = await cluster.connect(cluster.brokers[owner])
    c.schema_id = (await c.ask(m.Metadata(topics=["t"]))).topics[0].schema_id
    again = await c.write(0)
    assert (again.duplicate, again.offset) == (True, first.offset)
    assert (await c.write(1)).offset > first.offset


@follows("Restore it from a backup, or correct the option zookeeper")
async def test_an_empty_zookeeper_is_not_believed(cluster):
    """Nobody joins it, whether it runs or starts; with the backup all go on by themselves."""
    (one,) = await cluster.start("one")
    await (await cluster.connect(one)).create("t")
    await cluster.all_owned("t")
    backup = cluster.zookeeper.back_up()
    await restored(cluster, None)
    await until(lambda: "has lost cluster 'memq'" in one.context.apart, 30)
    with pytest.raises(DataLossError, match=r"does not know it, of which Kafka has . topic"):
        await cluster.start("two")
    assert cluster.zookeeper.node(NODE) is None
    cluster.zookeeper.roll_back(backup)
    await until(one.context.leased, 30)
    await cluster.all_owned("t")


@follows("so it is not served. Restore a newer one, or")
async def test_a_topic_that_zookeeper_has_lost_is_refused_and_not_made_anew(cluster):
    """It was made after the backup: its notifications are in Kafka, under another incarnation."""
    (one,) = await cluster.start("one")
    await (await cluster.connect(one)).create("before")
    backup = cluster.zookeeper.back_up()
    await (await cluster.connect(one)).create("after")
    node = cluster.zookeeper.node(TOPICS.child("after"))
    await restored(cluster, backup)
    await until(lambda: len(one.sessions) > 1 and one.context.leased(), 30)
    await cluster.all_owned("before")
    async with AsyncAdminClient(one.address) as admin:
        for refused in (admin.describe_topic, admin.create_topic):
            with pytest.raises(DataLossError, match=r"'after' is not there, but memq\.after\."):
                await refused("after")
        await (await cluster.zookeeper.open()).create(TOPICS.child("after"), node.data)
        await cluster.all_owned("after")
        await admin.delete_topic("after")
        with pytest.raises(UnknownTopicError):
            await admin.describe_topic("after")


@follows("restart the brokers to take it")
async def test_a_topic_that_is_as_it_was_before_it_was_altered_is_refused(cluster):
    """Its retention may have been shorter, and so would delete what is to be kept."""
    (one,) = await cluster.start("one")
    async with AsyncAdminClient(one.address) as admin:
        await admin.create_topic("t", retention="1h")
        backup = cluster.zookeeper.back_up()
        await admin.alter_topic("t", retention="2h")
        await restored(cluster, backup)
        await until(lambda: len(one.sessions) > 1 and one.context.leased(), 30)
        for refused in (admin.describe_topic, partial(admin.alter_topic, retention="3h")):
            with pytest.raises(DataLossError, match="'t' is there as it was before it was altered"):
                await refused("t")
        assert "t" not in one.topics.names()
    await cluster.stop("one")
    await cluster.start("one")
    await cluster.all_owned("t")


@follows("delete that to do without it")
async def test_a_topic_that_was_lost_can_be_done_without(cluster):
    """When Kafka has nothing of it either, one of its name can be made at the next start."""
    (one,) = await cluster.start("one")
    await one.context.queue.create_topic("t.0123456789abcdef", 1)
    await cluster.stop("one")
    (one,) = await cluster.start("one")
    c = await cluster.connect(one)
    with pytest.raises(DataLossError, match=r"but memq\.t\.0123456789abcdef in Kafka is"):
        await c.create("t")
    cluster.kafka.delete("memq.t.0123456789abcdef")
    await cluster.stop("one")
    (one,) = await cluster.start("one")
    await (await cluster.connect(one)).create("t")


@pytest.mark.parametrize("maker", ["one", "gone"])
async def test_a_topic_that_was_being_made_at_the_backup_is_not_removed(cluster, maker):
    """It has come to exist since, and has notifications."""
    (one,) = await cluster.start("one")
    c = await cluster.connect(one)
    await c.create("t", batch_age="5ms")
    await cluster.all_owned("t")
    await c.write(0)
    topic = one.topics.get("t").topic
    session = await cluster.zookeeper.open()
    node = await session.get(TOPICS.child("t"))
    await session.delete(TOPICS.child("t"), node.version)
    doomed = DOOMED.child(topic.queue_topic)
    await session.create(doomed, DOOMED.encode(DoomedNode(topic=topic, by=maker)))
    cluster.zookeeper.expire(one.sessions[-1])
    await until(lambda: len(one.sessions) > 1 and one.context.leased())
    deletions = one.membership.governing._deletions
    await until(lambda: (runner := one.membership.governing._runner) and runner.elected)
    assert await one.membership.governing.doomed() == []
    await deletions._remove_all()
    assert cluster.zookeeper.node(doomed).version == 0
    assert await one.context.queue.offsets(topic.queue_topic, 0) != (0, 0)
    assert len(list(one.context.objects_of(topic))) == 1


class Otherwise:
    """A queue or storage that answers some things otherwise."""

    def __init__(self, inner, **answers):
        self._inner = inner
        vars(self).update(answers)

    def __getattr__(self, name):
        return getattr(self._inner, name)


@pytest.mark.parametrize(
    ("theirs", "ours", "joins"),
    [("x", "x", True), ("x", "", True), ("", "x", True), ("", "", True), ("x", "y", False)],
)
async def test_a_kafka_that_has_no_id_is_any(cluster, theirs, ours, joins):
    """Two ids that differ are of two clusters; where one is not known, nothing is."""
    (one,) = await cluster.start("one")
    session = await cluster.zookeeper.open()
    node = CLUSTER.encode(msgspec.structs.replace(made(cluster), queue=theirs))
    await session.set(NODE, node, 0)
    queue = Otherwise(one.context.queue, service_id=partial(asyncio.sleep, 0, ours))
    context = dataclasses.replace(one.context, queue=queue)
    checking = ClusterIdentity(context).check(session)
    if joins:
        await checking
    else:
        with pytest.raises(ConfigError, match=r"with Kafka x; .* has Kafka y"):
            await checking


@pytest.mark.parametrize("since", ["gone", "made by another"])
async def test_a_cluster_that_was_found_before_is_not_made_anew(cluster, since):
    """A process that has been part of it knows better than a ZooKeeper that is empty, or began."""
    (one,) = await cluster.start("one")
    session = await cluster.zookeeper.open()
    joined = ClusterIdentity(one.context)
    await joined.check(session)
    before = made(cluster)
    await session.delete(NODE, 0)
    other = msgspec.structs.replace(before, object="clusters/memq/other", broker="two")
    if since != "gone":
        cluster.storage.put(other.object, [b"x"], timeout_s=9)
        await session.create(NODE, CLUSTER.encode(other))
    with pytest.raises(DataLossError, match=r"does not know it|'two' has made since"):
        await joined.check(session)
    assert (cluster.zookeeper.node(NODE) is None) == (since == "gone")
