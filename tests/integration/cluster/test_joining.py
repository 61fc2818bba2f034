"""How a broker joins, registers, reports and leaves, with an error in the middle of each."""

from __future__ import annotations

import asyncio

import pytest

from memq.broker import cluster_topics, governing, membership
from memq.broker.membership import _differ
from memq.core.governor.nodes import (
    ASSIGNMENTS,
    BROKERS,
    DOOMED,
    LOADS,
    MEMBERS,
    TOPICS,
    BrokerNode,
)
from memq.core.retry import Backoff
from memq.errors import (
    ChangeUncertainError,
    NoNodeError,
    NotHostedError,
    UnavailableError,
    VersionConflictError,
)
from tests.integration.broker.support import GatedStorage, until
from tests.integration.cluster.conftest import ModelBroker
from tests.integration.cluster.test_lost import all_expected, counted


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


@pytest.mark.parametrize("happened", ["made", "refused", "made and gone"])
async def test_a_registration_without_an_answer_is_looked_up(cluster, monkeypatch, happened):
    """It is this broker's own, and is not waited for; or it is made anew."""
    opened, attempts = ModelBroker._open_coordination, []

    async def opening(broker):
        session = await opened(broker)
        create = session.create

        async def unanswered(path, data=b"", **options):
            if path == BROKERS.child("one"):
                attempts.append(path)
                if len(attempts) == 1:
                    if happened != "refused":
                        await create(path, data, **options)
                    if happened == "made and gone":
                        await session.delete(path, 0)
                    raise ChangeUncertainError("no answer")
            await create(path, data, **options)

        session.create = unanswered
        return session

    monkeypatch.setattr(ModelBroker, "_open_coordination", opening)
    (one,) = await cluster.start("one")
    await until(one.context.leased)
    assert len(one.sessions) == 1
    assert len(attempts) == (1 if happened == "made" else 2)


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


async def test_nobody_but_the_one_that_governs_notes_who_is_lost_or_describes(cluster):
    """A governor that nobody sees, or that is this broker and not elected, is asked for again."""
    one, two = await cluster.start("one", "two")
    await until(lambda: governs(one) or governs(two))
    at, other = (one, two) if governs(one) else (two, one)
    await until(lambda: other.membership.governing._session and other.context.leased())
    with pytest.raises(NotHostedError, match="governs the cluster") as error:
        await other.membership.governing.describe()
    assert error.value.address == at.address
    brokers = other.membership.governing._brokers
    seen = dict(brokers)
    brokers.clear()
    with pytest.raises(UnavailableError, match="no broker governs"):
        await other.membership.governing.describe()
    brokers.update(seen)
    at.membership.governing._runner.elected = False
    with pytest.raises(UnavailableError, match="no broker governs"):
        await at.membership.governing.describe()
    at.membership.governing._runner.elected = True
    session, asked = other.sessions[-1], []
    other.membership.governing._members["gone"] = BrokerNode(id="gone", address="gone:1")
    get = session.get

    async def seen_get(path):
        asked.append(path)
        return await get(path)

    session.get = seen_get
    await other.membership.governing.note_lost()
    assert asked == []
    del other.membership.governing._members["gone"]
