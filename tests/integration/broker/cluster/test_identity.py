"""What brokers must have in common is compared when they join, and a restored ZooKeeper is seen."""

import shutil

import pytest

from memq.broker import identity
from memq.core.governor.nodes import CLUSTER
from memq.errors import ConfigError, DataLossError
from memq.storage.local import LocalStorage
from tests.integration.broker.support import until


@pytest.fixture(autouse=True)
def short_sessions(cluster):
    """A session that ZooKeeper does not know any more is found out when it would be over."""
    cluster.session_timeout_s = 2.0


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


async def test_a_mount_that_goes_while_a_broker_runs_ends_its_part(cluster, monkeypatch):
    """It owns nothing and is not ready until the mount is there again, and says why."""
    monkeypatch.setattr(identity, "LOOK_S", 0.05)
    one, _ = await cluster.serve("one")
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
    one, two, c = await cluster.serve("one", "two", batch_age="5ms")
    backup = cluster.zookeeper.back_up()
    first, schema_id = await c.write(0), c.schema_id
    await restored(cluster, backup)
    await until(lambda: len(one.sessions) > 1 and len(two.sessions) > 1, 30)
    await until(lambda: one.context.leased() and two.context.leased(), 30)
    (owner,) = await cluster.all_owned("t")
    assert one.context.apart == two.context.apart == ""
    c = await cluster.connect(cluster.brokers[owner])
    c.schema_id = schema_id
    again = await c.write(0)
    assert (again.duplicate, again.offset) == (True, first.offset)
    assert (await c.write(1)).offset > first.offset


async def test_an_empty_zookeeper_is_not_believed(cluster):
    """Nobody joins it, whether it runs or starts; with the backup all go on by themselves."""
    one, _ = await cluster.serve("one")
    backup = cluster.zookeeper.back_up()
    await restored(cluster, None)
    await until(lambda: "has lost cluster 'memq'" in one.context.apart, 30)
    with pytest.raises(DataLossError, match=r"does not know it, of which Kafka has . topic"):
        await cluster.start("two")
    assert cluster.zookeeper.node(CLUSTER.child("cluster")) is None
    cluster.zookeeper.roll_back(backup)
    await until(one.context.leased, 30)
    await cluster.all_owned("t")
