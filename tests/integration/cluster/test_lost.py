"""Brokers that die are named, and loads are evened out by what is known of them."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

import pytest

from memq import AsyncAdminClient, AsyncProducer
from memq.broker import governing, membership, traffic
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


async def test_a_broker_that_comes_back_is_lost_no_more(cluster):
    """It has the same id, and registers anew."""
    one, two = await cluster.start("one", "two")
    await all_expected(cluster)
    cluster.zookeeper.refuse(two.sessions[-1])
    cluster.zookeeper.expire(two.sessions[-1])
    await until_lost(one, "two")
    cluster.zookeeper.restore(two.sessions[-1])
    await until_lost(one)
    assert counted(one) == (2, 2)


async def test_a_broker_that_comes_back_as_it_is_noted_is_not_lost(cluster, monkeypatch):
    """Who governs had seen it gone, and looks once more before it writes that down."""
    monkeypatch.setattr(membership, "REPORT_S", 0.05)
    one, two = await cluster.start("one", "two")
    await all_expected(cluster)
    session, path = one.sessions[-1], MEMBERS.child("two")
    get, version = session.get, cluster.zookeeper.node(path).version
    governing, noted = one.membership.governing, asyncio.Event()
    note_lost = governing.note_lost

    async def note():
        await note_lost()
        if session.get == get:
            noted.set()

    async def get_late(at):
        if at == path:
            cluster.zookeeper.restore(two.sessions[-1])
            await until(lambda: cluster.zookeeper.node(path).version > version)
            session.get = get
        return await get(at)

    session.get, governing.note_lost = get_late, note
    cluster.zookeeper.refuse(two.sessions[-1])
    cluster.zookeeper.expire(two.sessions[-1])
    await noted.wait()
    assert not MEMBERS.decode("two", cluster.zookeeper.node(path).data).lost_ms


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


async def test_a_broker_that_was_stopped_is_not_lost(cluster, caplog):
    """SIGTERM takes it out of those that are expected."""
    one, _ = await cluster.start("one", "two")
    await all_expected(cluster)
    await cluster.stop("two")
    await until(lambda: counted(one) == (1, 1))
    assert await lost(one) == {}
    assert "is lost" not in caplog.text


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


async def test_a_drain_of_a_lost_broker_is_withdrawn(cluster):
    """It is expected all the same, and not drained when it comes back."""
    one, two = await cluster.start("one", "two")
    await all_expected(cluster)
    async with AsyncAdminClient(one.address) as admin:
        for _ in range(2):
            await admin.drain_broker("two")
        cluster.zookeeper.refuse(two.sessions[-1])
        cluster.zookeeper.expire(two.sessions[-1])
        await until_lost(one, "two")
        for _ in range(2):  # who had no answer asks again
            await admin.drain_broker("two", withdraw=True)
        assert cluster.zookeeper.names(DRAINING) == ()
        assert sorted(await lost(one)) == ["two"]
        cluster.zookeeper.restore(two.sessions[-1])
        await until_lost(one)
        found = (await admin.describe_cluster()).brokers
    assert {each.id: each.draining for each in found} == {"one": False, "two": False}


async def test_a_lost_broker_is_forgotten_at_last(cluster, monkeypatch):
    """One that never comes back is not expected for ever."""
    monkeypatch.setattr(membership, "REPORT_S", 0.05)
    one, two = await cluster.start("one", "two")
    await all_expected(cluster)
    kill(cluster, two)
    await until_lost(one, "two")
    monkeypatch.setattr(governing, "FORGET_MS", 0)
    await until(lambda: cluster.zookeeper.names(MEMBERS.path) == ("one",))


async def test_rebalance_right_after_a_rolling_restart_under_load(cluster, monkeypatch):
    """No broker has more than 1.2 times the mean of what is written."""
    monkeypatch.setattr(membership, "REPORT_S", 0.3)
    monkeypatch.setattr(traffic, "KNOWN_S", 1.0)
    names = ("one", "two", "three")
    await cluster.start(*names)
    bootstrap = ",".join(broker.address for broker in cluster.brokers.values())
    done = asyncio.Event()
    async with AsyncAdminClient(bootstrap) as admin:
        await admin.create_topic("t", write_partitions=9, batch_age="5ms")
        await cluster.all_owned("t")

        async def produce():
            async with AsyncProducer(bootstrap, topic="t", linger="1ms") as producer:
                while not done.is_set():
                    for _ in range(20):
                        await producer.write(b"x" * 200)
                    await asyncio.sleep(0.01)

        producing = asyncio.create_task(produce())
        for name in names:
            await cluster.stop(name)
            await cluster.start(name)
            await cluster.all_owned("t")
        await admin.rebalance_cluster()

        async def settled():
            found = await admin.describe_cluster()
            loads = [each.bytes_per_s for each in found.brokers]
            even = len(loads) == 3 and 0 < max(loads) <= 1.2 * sum(loads) / 3
            return even and not found.moving

        async with asyncio.timeout(120):
            while not await settled():
                await asyncio.sleep(0.1)
        done.set()
        await producing
