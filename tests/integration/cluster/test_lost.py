"""Brokers that die are named, and loads are evened out by what is known of them."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

import pytest

from memq import AsyncAdminClient
from memq.core.governor.nodes import DRAINING, MEMBERS
from memq.errors import MemqError
from tests.advice import follows
from tests.integration.broker.support import until


def counted(broker):
    """How many brokers one expects, and how many it sees."""
    value = broker.context.metrics.registry.get_sample_value
    return tuple(
        value("memq_cluster_brokers", {"state": state}) for state in ("expected", "present")
    )


async def all_expected(cluster):
    """Wait until each broker sees all of them, and ZooKeeper knows that they are to be there."""
    names = tuple(sorted(cluster.brokers))
    seen = (len(names), len(names))
    await until(lambda: cluster.zookeeper.names(MEMBERS.path) == names)
    await until(lambda: all(counted(each) == seen for each in cluster.brokers.values()))


def kill(cluster, broker):
    """Let the others see it dead: its session ends, and it gets no other."""
    broker._open_coordination = asyncio.Event().wait  # it hears nothing any more
    broker.membership._open_session = broker._open_coordination
    cluster.zookeeper.refuse(broker.sessions[-1])
    cluster.zookeeper.expire(broker.sessions[-1])


async def lost(broker):
    """Who is lost, as the one that governs says."""
    async with AsyncAdminClient(broker.address) as admin:
        return (await admin.describe_cluster()).lost


async def until_lost(broker, *names):
    """Wait until these are, with a time."""
    async with asyncio.timeout(60):
        while True:
            with suppress(MemqError):  # nobody governs
                found = await lost(broker)
                if sorted(found) == sorted(names) and all(found.values()):
                    return found
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("dies", ["one", "three"])
async def test_a_broker_that_died_is_named_by_all_that_live(cluster, caplog, dies):
    """Also when it was the one that governs; each survivor says so once, and counts it."""
    await cluster.start("one", "two", "three")
    await all_expected(cluster)
    survivors = [each for name, each in cluster.brokers.items() if name != dies]
    before_ms = survivors[0].context.now().wall_ms
    with caplog.at_level(logging.WARNING):
        kill(cluster, cluster.brokers[dies])
        found = await until_lost(survivors[0], dies)
        await until(lambda: all(counted(each) == (3, 2) for each in survivors))
        told = f"broker {dies} at {cluster.brokers[dies].address} is lost"
        await until(lambda: caplog.text.count(told) == len(survivors))
    assert before_ms <= found[dies] <= survivors[0].context.now().wall_ms
    assert await until_lost(survivors[1], dies) == found


@follows("delete it; that broker makes it anew when it registers")
async def test_a_member_whose_node_is_damaged_is_expected_when_it_registers_anew(cluster):
    """What cannot be understood names nobody who is lost."""
    one, two = await cluster.start("one", "two")
    await all_expected(cluster)
    session, path = await cluster.zookeeper.open(), MEMBERS.child("two")
    await session.set(path, b"?", (await session.get(path)).version)
    await session.delete(path, (await session.get(path)).version)
    cluster.zookeeper.expire(two.sessions[-1])
    await until(lambda: "two" in cluster.zookeeper.names(MEMBERS.path))
    await until_lost(one)


async def test_a_broker_that_waits_for_its_id_takes_nobody_along_when_it_stops(cluster, caplog):
    """Another process has that id, and is expected still."""
    await cluster.start("one", "two")
    await all_expected(cluster)
    await cluster.start("twin", broker_id="one")
    await until(lambda: "broker one is registered already" in caplog.text)
    await cluster.stop("twin")
    await all_expected(cluster)


async def test_a_lost_broker_is_forgotten_on_request(cluster):
    """By a drain, which leaves nothing behind for one of this id that comes later."""
    one, two = await cluster.start("one", "two")
    await all_expected(cluster)
    kill(cluster, two)
    await until_lost(one, "two")
    async with AsyncAdminClient(one.address) as admin:
        await admin.drain_broker("two")
    await until(lambda: counted(one) == (1, 1))
    assert cluster.zookeeper.names(DRAINING) == ()
