"""What becomes of write partitions as brokers come and go."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from memq import AsyncConsumer, AsyncProducer
from memq.core.governor.coordination import Create, Delete
from memq.core.governor.nodes import BROKERS
from memq.core.governor.session import Sync
from memq.core.wire import messages as m
from memq.errors import NotHostedError, UnavailableError
from tests.advice import follows
from tests.integration.broker.support import until


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


async def test_a_producer_and_a_consumer_go_on_as_brokers_come_and_go(cluster):
    """Each record that was acked is read once, while every broker is stopped and started again."""
    await cluster.start("one", "two", "three")
    c = await cluster.connect(cluster.brokers["one"])
    await c.create("t", write_partitions=4, read_partitions=2, batch_age="5ms")
    await cluster.all_owned("t")
    bootstrap = ",".join(broker.address for broker in cluster.brokers.values())
    written, done = {}, asyncio.Event()

    async def produce():
        async with AsyncProducer(bootstrap, topic="t", linger="1ms") as producer:
            while not done.is_set():
                value = b"%d" % len(written)
                written[value] = await producer.write(value)
                await asyncio.sleep(0.002)
            await producer.flush(timeout=20)

    producing = asyncio.create_task(produce())
    for name in ("one", "two", "three"):
        await cluster.stop(name)
        await cluster.start(name)
    done.set()
    await producing
    acked = [value for value, delivery in written.items() if delivery.result(0).offset >= 0]
    read = []
    bootstrap = ",".join(broker.address for broker in cluster.brokers.values())
    async with AsyncConsumer(bootstrap, topic="t", group="g", start="earliest") as consumer:
        async with asyncio.timeout(60):
            while len(read) < len(acked):
                batch = await consumer.poll(timeout=1.0)
                if batch is not None:
                    read += [record.value for record in batch]
        await consumer.commit()
    assert sorted(read) == sorted(acked)
    assert len(acked) == len(written) > 20


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
