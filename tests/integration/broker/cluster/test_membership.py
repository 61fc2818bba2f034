"""A broker's part in its cluster: it joins, registers, is lost, hands over, and leaves."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import suppress

import pytest

from memq import AsyncAdminClient, AsyncConsumer, AsyncProducer
from memq.broker import cluster_topics, governing, membership, traffic
from memq.broker.membership import _differ
from memq.core.governor.coordination import Create, Delete
from memq.core.governor.nodes import (
    ASSIGNMENTS,
    BROKERS,
    DOOMED,
    DRAINING,
    LOADS,
    MEMBERS,
    TOPICS,
    BrokerNode,
)
from memq.core.wire import messages as m
from memq.errors import (
    ChangeUncertainError,
    MemqError,
    NoNodeError,
    NotHostedError,
    UnavailableError,
    VersionConflictError,
)
from memq.runtime.retry import Backoff
from memq.zookeeper.session import Sync
from tests.advice import follows
from tests.integration.broker.cluster.conftest import ModelBroker
from tests.integration.broker.support import GatedStorage, until


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


@pytest.fixture
def soon(monkeypatch):
    """What is tried again is tried again soon, and what is reported now and then is so often."""
    monkeypatch.setattr(membership, "AGAIN", Backoff(0.01, 0.05))
    monkeypatch.setattr(cluster_topics, "AGAIN", Backoff(0.01, 0.05))
    monkeypatch.setattr(membership, "REPORT_S", 0.02)


def governs(broker):
    """Whether it does."""
    runner = broker.membership.governing._runner
    return runner is not None and runner.elected


async def test_what_went_while_a_broker_had_no_session_is_gone_when_it_joins_again(
    cluster, soon, monkeypatch
):
    """A topic, a broker and a member of which it hears nothing any more; what came is there."""
    monkeypatch.setattr("memq.core.governor.governor.SETTLE_MS", 0)  # whoever governs next
    one, two, _ = await cluster.start("one", "two", "three")
    c = await cluster.connect(two)
    for name in ("gone", "made anew", "stays"):
        await c.create(name.replace(" ", "-"))
        await cluster.all_owned(name.replace(" ", "-"))
    await all_expected(cluster)
    before = one.topics.get("made-anew").topic.incarnation
    cluster.zookeeper.refuse(one.sessions[-1])
    cluster.zookeeper.expire(one.sessions[-1])
    opening, go_on = asyncio.Event(), asyncio.Event()
    open_session = one.membership._open_session

    async def open_later():
        opening.set()
        await go_on.wait()
        return await open_session()

    one.membership._open_session = open_later
    cluster.zookeeper.restore(one.sessions[-1])  # it hears that its session is over
    await opening.wait()
    for name in ("gone", "made-anew"):
        await two.topics.delete(name)
    await c.create("made-anew")
    await c.create("new")
    await cluster.stop("three")
    go_on.set()
    await until(lambda: one.context.leased() and counted(one) == (2, 2))
    assert {"stays", "new", "made-anew"} <= {*one.topics.names()}
    assert "gone" not in one.topics.names()
    assert one.topics.get("made-anew").topic.incarnation != before
    assert [each.id for each in one.topics.brokers()] == ["one", "two"]


@pytest.mark.parametrize("step", ["is deleted", "is removed"])
async def test_a_topic_that_goes_as_a_broker_joins_is_not_taken_for_lost(
    cluster, monkeypatch, step
):
    """What the queue had is doomed before or after that, and for some of the time only."""
    (one,) = await cluster.start("one")
    c = await cluster.connect(one)
    made = await c.create("t")
    await cluster.all_owned("t")
    doomed = DOOMED.child(f"t.{made.incarnation}")
    if step == "is removed":
        await one.topics.delete("t")
    opened, looked = ModelBroker._open_coordination, []

    async def opening(broker):
        session = await opened(broker)
        children = session.children

        async def meanwhile(path):
            found = await children(path)
            if path == DOOMED.path and not looked:
                looked.append(found)
                if step == "is deleted":
                    await one.topics.delete("t")
                else:
                    await session.delete(doomed, (await session.get(doomed)).version)
            return found

        session.children = meanwhile
        return session

    monkeypatch.setattr(ModelBroker, "_open_coordination", opening)
    (two,) = await cluster.start("two")
    assert looked
    assert two.topics._taken_back == {}
    assert (await c.create("t")).incarnation != made.incarnation
    await until(lambda: "t" in two.topics.names())


async def test_nodes_that_are_not_understood_change_nothing(cluster, caplog):
    """Of a topic, its assignment and a broker: what was there before holds, and news comes on."""
    one, two = await cluster.start("one", "two")
    c = await cluster.connect(one)
    await c.create("t", batch_age="1ms", write_partitions=2)
    owners = await cluster.all_owned("t")
    writer = await cluster.connect(two)
    writer.schema_id = c.schema_id
    session = await cluster.zookeeper.open()
    paths = [TOPICS.child("t"), ASSIGNMENTS.child("t"), BROKERS.child("two")]
    before = {path: await session.get(path) for path in paths}
    hosts = one.topics.hosts(one.topics.get("t"))
    for path in paths[:2]:
        await session.set(path, b"?", before[path].version)
    one.membership._broker_changed("two", before[paths[2]]._replace(data=b"?"))
    told = [f"node {path!r} must hold" for path in paths]
    await until(lambda: all(each in caplog.text for each in told))
    assert one.topics.hosts(one.topics.get("t")) == hosts
    assert await cluster.all_owned("t") == owners
    for number, owner in enumerate(owners):
        at = c if owner == "one" else writer
        await at.write(0, write_partition=number)
    await session.set(TOPICS.child("t"), before[paths[0]].data, before[paths[0]].version + 1)
    await c.create("u")
    await cluster.all_owned("u")
    assert len(one.sessions) == len(two.sessions) == 1


@pytest.mark.parametrize(
    ("said", "now", "differ"),
    [
        ({}, {}, False),
        ({}, {("t", 0): None}, True),
        ({("t", 0): 1.0}, {}, True),
        ({("t", 0): 1.0}, {("t", 1): 1.0}, True),
        ({("t", 0): None}, {("t", 0): None}, False),
        ({("t", 0): None}, {("t", 0): 0.0}, True),
        ({("t", 0): 0.0}, {("t", 0): None}, True),
        ({("t", 0): 0.0}, {("t", 0): 0.0}, False),
        ({("t", 0): 0.0}, {("t", 0): 1.0}, True),
        ({("t", 0): 100.0}, {("t", 0): 90.0}, False),
        ({("t", 0): 100.0}, {("t", 0): 89.9}, True),
        ({("t", 0): 90.0}, {("t", 0): 100.0}, False),
        ({("t", 0): 89.9}, {("t", 0): 100.0}, True),
        ({("t", 0): 100.0, ("t", 1): 50.0}, {("t", 0): 100.0, ("t", 1): 80.0}, True),
        ({("t", 0): 50.0, ("t", 1): 100.0}, {("t", 0): 80.0, ("t", 1): 100.0}, True),
    ],
)
def test_loads_are_said_anew_when_they_have_changed_by_more_than_a_tenth(said, now, differ):
    """Or when another write partition runs here, or one is known that was not."""
    assert _differ(said, now) is differ


@pytest.mark.parametrize("dies", [True, False])
async def test_a_broker_that_stops_waits_while_another_one_can_take_over(cluster, dies):
    """What drains is waited for until it has gone, or until nobody is there any more to take it."""
    cluster.storage = storage = GatedStorage()
    one, two = await cluster.start("one", "two", drain_timeout="10m")
    c = await cluster.connect(one)
    await c.create("t", batch_age="1ms", write_partitions=2)
    number = (await cluster.all_owned("t")).index("one")
    storage.gate.clear()
    await c.write(0, acks=1, write_partition=number)
    partition = one.topics.get("t").partitions[number]
    await until(partition.uploads)
    handing = asyncio.ensure_future(one.membership.hand_over(3600.0))
    await until(lambda: partition.closing)
    assert not BROKERS.decode("one", cluster.zookeeper.node(BROKERS.child("one")).data).accepting
    for _ in range(20):
        await asyncio.sleep(0)
    assert not handing.done()
    if dies:
        two.membership._open_session = asyncio.Event().wait
        cluster.zookeeper.refuse(two.sessions[-1])
        cluster.zookeeper.expire(two.sessions[-1])
        await until(handing.done)
        assert one.topics.running()
    storage.gate.set()
    await until(handing.done)
    if not dies:
        assert not one.topics.running()


@pytest.mark.parametrize("refused", ["set", "delete", "get"])
async def test_a_stop_ends_the_session_though_nothing_can_be_said(cluster, caplog, refused):
    """Others may take over at once, and not only when the session has run out."""
    (one,) = await cluster.start("one")
    await until(lambda: cluster.zookeeper.names(MEMBERS.path) == ("one",))
    session = one.sessions[-1]

    async def refuse(*_):
        raise UnavailableError("not now")

    setattr(session, refused, refuse)
    assert await cluster.brokers.pop("one").stop()
    assert not cluster.zookeeper.knows(session)
    assert cluster.zookeeper.names(BROKERS.path) == ()
    assert "not now" in caplog.text


@pytest.mark.parametrize("error", [None, NoNodeError, VersionConflictError, ChangeUncertainError])
async def test_one_lost_broker_that_cannot_be_noted_holds_up_no_other(cluster, monkeypatch, error):
    """Each is noted once, and forgotten after its time; one that is back is left alone."""
    note_lost = governing.Governing.note_lost
    monkeypatch.setattr(governing.Governing, "note_lost", lambda _: asyncio.sleep(0))
    (one,) = await cluster.start("one")
    await until(lambda: cluster.zookeeper.names(LOADS.path) == ("one",) and governs(one))
    session, now_ms = one.sessions[-1], one.context.now().wall_ms
    by_hand = await cluster.zookeeper.open()
    since = {"a": 0, "b": 0, "kept": now_ms - governing.FORGET_MS + 60_000, "z": 0}
    since["over"] = now_ms - governing.FORGET_MS - 60_000
    for name, lost_ms in since.items():
        node = BrokerNode(id=name, address=f"{name}:1", lost_ms=lost_ms)
        await by_hand.create(MEMBERS.child(name), MEMBERS.encode(node))
    await by_hand.create(BROKERS.child("b"), b"not understood, and there", ephemeral=True)
    await until(lambda: counted(one) == (1 + len(since), 1))
    get = session.get

    async def failing(path):
        if path == MEMBERS.child("a") and error is not None:
            raise error("not now")
        return await get(path)

    session.get = failing
    await note_lost(one.membership.governing)
    found = {
        name: MEMBERS.decode(name, cluster.zookeeper.node(MEMBERS.child(name)).data).lost_ms
        for name in cluster.zookeeper.names(MEMBERS.path)
    }
    assert sorted(found) == ["a", "b", "kept", "one", "z"]
    assert (found["b"], found["kept"], found["one"]) == (0, since["kept"], 0)
    assert found["z"] >= now_ms
    assert (found["a"] == 0) == (error is not None)
    session.get = get
    await note_lost(one.membership.governing)
    again = MEMBERS.decode("z", cluster.zookeeper.node(MEMBERS.child("z")).data).lost_ms
    assert again == found["z"]


async def test_a_topic_is_spread_over_the_brokers(cluster):
    """A topic that one broker makes is known to all, and each broker has its share of it."""
    one, two, three = await cluster.start("one", "two", "three")
    made = await (await cluster.connect(one)).create("t", write_partitions=6)
    owners = await cluster.all_owned("t")
    assert sorted(owners) == ["one", "one", "three", "three", "two", "two"]
    addresses = [cluster.brokers[owner].address for owner in owners]
    assert made.hosts == addresses
    for broker in (two, three):
        c = await cluster.connect(broker)
        answer = await c.ask(m.Metadata(topics=["t"]))
        assert answer.topics[0].hosts == addresses
        assert [each.id for each in answer.brokers] == ["one", "three", "two"]


async def test_what_a_stopped_broker_had_goes_to_another(cluster):
    """A broker that stops hands over, and a Message that it has acked is a duplicate elsewhere."""
    one, two = await cluster.start("one", "two")
    c = await cluster.connect(one)
    info = await c.create("t", write_partitions=2)
    owners = await cluster.all_owned("t")
    number = owners.index("two")
    c2 = await cluster.connect(two)
    c2.schema_id = info.schema_id
    first = await c2.write(0, write_partition=number)
    await cluster.stop("two")
    assert await cluster.all_owned("t") == ["one", "one"]
    again = await c.write(0, write_partition=number)
    assert (again.duplicate, again.offset, again.batch_id) == (True, first.offset, first.batch_id)


async def test_a_broker_whose_session_is_over_acks_nothing(cluster):
    """Others take over what a broker had whose session is over, and it refuses what comes."""
    cluster.session_timeout_s = 2.0
    one, two = await cluster.start("one", "two")
    c = await cluster.connect(one)
    info = await c.create("t", write_partitions=2)
    number = (await cluster.all_owned("t")).index("two")
    c2 = await cluster.connect(two)
    c2.schema_id = info.schema_id
    await c2.write(0, write_partition=number)
    cluster.zookeeper.freeze(two.sessions[-1])
    await until(lambda: not two.context.leased())
    with pytest.raises(UnavailableError):
        await c2.write(1, write_partition=number)
    await until(lambda: number in one.topics.get("t").partitions)
    assert (await c.write(0, write_partition=number)).duplicate
    cluster.zookeeper.thaw(two.sessions[-1])
    await until(two.context.leased)
    with pytest.raises(NotHostedError):
        await c2.write(1, write_partition=number)


async def test_a_broker_whose_id_another_process_has_taken_leaves_the_cluster(cluster):
    """Also when its node was never seen to be gone: whoever made the new one is that broker now."""
    (one,) = await cluster.start("one")
    await (await cluster.connect(one)).create("t")
    await cluster.all_owned("t")
    twin, path = await cluster.zookeeper.open(), BROKERS.child("one")
    node = await twin.get(path)
    await twin.transact([Delete(path, node.version), Create(path, node.data, ephemeral=True)])
    await until(lambda: not one.topics.running())
    await twin.close()
    await cluster.all_owned("t")


@follows("has lost its session with the coordination service; ask again")
async def test_a_topic_that_is_asked_for_as_a_session_ends_is_asked_for_again(cluster, monkeypatch):
    """That a broker has lost its session is no answer for a client: others have theirs."""
    (one,) = await cluster.start("one")
    c = await cluster.connect(one)
    await until(one.context.leased)
    session = one.sessions[-1]
    link = cluster.zookeeper._links[session]
    asked, ask = asyncio.Event(), link.ask

    def heard(request):
        if isinstance(request, Sync):  # which comes first when a topic is made
            asked.set()
        return ask(request)

    monkeypatch.setattr(link, "ask", heard)
    cluster.zookeeper.freeze(session)
    asking = asyncio.ensure_future(c.create("t"))
    await asked.wait()  # with a session that is still alive, as far as the broker knows
    cluster.zookeeper.expire(session)
    cluster.zookeeper.thaw(session)
    with pytest.raises(UnavailableError):
        await asking
    made = False
    async with asyncio.timeout(60):
        while not made:  # until it has seen the end, and begun another
            with suppress(UnavailableError):
                await c.create("t")
                made = True


async def test_a_drained_broker_owns_nothing(cluster, monkeypatch):
    """A drain moves all that a broker owns, and it is given something again when it is over."""
    monkeypatch.setattr(traffic, "KNOWN_S", 0.1)
    monkeypatch.setattr(membership, "REPORT_S", 0.2)
    await cluster.start("one", "two")
    bootstrap = ",".join(broker.address for broker in cluster.brokers.values())
    async with AsyncAdminClient(bootstrap) as admin:
        await admin.create_topic("t", write_partitions=4)
        assert set(await cluster.all_owned("t")) == {"one", "two"}
        await admin.drain_broker("one")
        await until(lambda: cluster.owners("t") == ["two"] * 4)
        found = {each.id: each for each in (await admin.describe_cluster()).brokers}
        assert found["one"].draining
        assert found["one"].write_partitions == {}
        assert found["two"].write_partitions["t"] == [0, 1, 2, 3]
        await admin.drain_broker("one", withdraw=True)
        await admin.rebalance_cluster()
        await until(lambda: sorted(cluster.owners("t")) == ["one", "one", "two", "two"])


async def test_a_broker_that_reads_owns_nothing(cluster):
    """A broker of the role `read` serves notifications and takes no write partitions."""
    await cluster.start("one")
    await cluster.start("r", role="read", zone="a")
    bootstrap = cluster.brokers["one"].address
    async with AsyncAdminClient(bootstrap) as admin:
        await admin.create_topic("t", write_partitions=3)
        assert await cluster.all_owned("t") == ["one"] * 3
        async with AsyncProducer(bootstrap, topic="t") as producer:
            await producer.write(b"x")
        async with AsyncConsumer(bootstrap, topic="t", start="earliest", zone="a") as consumer:
            async with asyncio.timeout(60):
                while (batch := await consumer.poll(timeout=1.0)) is None:
                    pass
            assert [record.value for record in batch] == [b"x"]
        reader = cluster.brokers["r"]
        assert json.loads(json.dumps(reader.topics.names())) == ["_memq_audit", "t"]


async def test_a_frozen_zookeeper_is_named_before_the_session_is_over(cluster, monkeypatch):
    """Each broker says that ZooKeeper does not answer, since when, and when it does again."""
    monkeypatch.setattr("memq.broker.membership.SILENT_S", 0.2)
    cluster.session_timeout_s = 20.0
    one, two = await cluster.start("one", "two")
    c = await cluster.connect(one)
    await c.create("t", write_partitions=2)
    await cluster.all_owned("t")
    for broker in (one, two):
        cluster.zookeeper.freeze(broker.sessions[-1])
        await until(broker.context.not_ready)
        assert broker.context.leased()
        assert broker.context.not_ready()[0].startswith("zookeeper (zk:2181) refuses since 20")
    async with AsyncAdminClient(f"{one.address},{two.address}", request_timeout_s=5) as admin:
        found = await admin.status()
        assert "zookeeper (zk:2181) refuses since" in found.problems()[0]
        assert "(at one, two); mend zookeeper" in found.problems()[0]
        for broker in (one, two):
            cluster.zookeeper.thaw(broker.sessions[-1])
        await until(lambda: not (one.context.not_ready() or two.context.not_ready()))
        found = await admin.status()
        assert found.problems() == []
        assert [each.id for each in found.brokers] == ["one", "two"]
        assert found.cluster.governor in ("one", "two")
