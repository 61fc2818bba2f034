"""The active feature level of a cluster: who raises it, who refuses, who leaves."""

import json

import pytest

from memq import AsyncAdminClient
from memq.core.features import MAX_LEVEL
from memq.core.governor.nodes import ACTIVE, BROKERS, FEATURES, MEMBERS, BrokerNode
from memq.errors import ConfigError, InvalidRequestError
from tests.integration.broker.cluster.test_membership import all_expected
from tests.integration.broker.support import until


async def set_level(cluster, level):
    """Change the node behind everybody's back."""
    session = await cluster.zookeeper.open()
    path = FEATURES.child(ACTIVE)
    data = json.dumps({"level": level}).encode()
    await session.set(path, data, (await session.get(path)).version)
    await session.close()


async def test_a_new_cluster_is_at_the_highest_level(cluster):
    """Brokers that join later find it there."""
    running = await cluster.start("one", "two")
    assert [each.context.level for each in running] == [MAX_LEVEL, MAX_LEVEL]


@pytest.mark.parametrize("folder", [BROKERS, MEMBERS])
async def test_finalize_waits_for_every_broker(cluster, folder):
    """One that lives, or only is expected, and does not know the level is named; once it is gone
    all brokers go on at the new level.
    """
    one, two = await cluster.start("one", "two")
    await all_expected(cluster)
    await set_level(cluster, 1)
    await until(lambda: one.context.level == two.context.level == 1)
    session = await cluster.zookeeper.open()
    node = BrokerNode(id="old", address="old:1", accepting=False)
    await session.create(folder.child("old"), folder.encode(node))
    await until(lambda: "old" in one.membership._brokers | one.membership._members)
    async with AsyncAdminClient(one.address) as admin:
        with pytest.raises(InvalidRequestError, match="not known to old: upgrade"):
            await admin.finalize_upgrade(MAX_LEVEL)
        assert one.context.level == 1
        await session.delete(folder.child("old"), 0)
        await until(lambda: "old" not in one.membership._brokers | one.membership._members)
        await admin.finalize_upgrade(MAX_LEVEL)
    await until(lambda: one.context.level == two.context.level == MAX_LEVEL)
    await session.close()


async def test_a_broker_leaves_a_cluster_whose_level_it_does_not_know(cluster, caplog):
    """It serves no write partition any more, and says why; another one does not start."""
    (one,) = await cluster.start("one")
    await set_level(cluster, MAX_LEVEL + 1)
    await until(lambda: f"'memq' is at feature level {MAX_LEVEL + 1}" in one.context.apart)
    assert not one.context.leased()
    with pytest.raises(ConfigError, match="a level is never lowered"):
        await cluster.start("two")
    await set_level(cluster, MAX_LEVEL)
    await until(one.context.leased)
