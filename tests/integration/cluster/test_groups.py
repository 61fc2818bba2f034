"""Consumer groups and watermarks whose topics move from one broker to another."""

from __future__ import annotations

import asyncio
import json

from memq import AsyncAdminClient, AsyncConsumer, AsyncProducer
from memq.broker import membership, traffic
from memq.core.wire import messages as m
from tests.integration.broker.support import until


def heartbeat(member_id: str) -> m.GroupHeartbeat:
    """The first heartbeat of a member."""
    return m.GroupHeartbeat(
        topic="t", group="g", member_id=member_id, sequence=1, owned=[], session_timeout_ms=10_000
    )


def commit(offset: int) -> m.CommitOffsets:
    """A commit of an administrator."""
    positions = [m.PartitionOffset(0, offset)]
    return m.CommitOffsets(topic="t", group="g", member_id="", offsets=positions)


async def test_a_group_goes_on_when_its_coordinator_stops(cluster):
    """Members keep what they hold, and commit, when the groups of their topic move."""
    await cluster.start("one", "two", "three")
    bootstrap = ",".join(broker.address for broker in cluster.brokers.values())
    async with AsyncAdminClient(bootstrap) as admin:
        await admin.create_topic("t", read_partitions=2, batch_age="1ms", batch_messages=1)
        lost = []
        members = [
            AsyncConsumer(
                bootstrap, topic="t", group="g", start="earliest", session_timeout="6s",
                on_lost=lost.append,
            )
            for _ in range(2)
        ]  # fmt: skip
        async with members[0], members[1], AsyncProducer(bootstrap, topic="t") as producer:
            read: list[bytes] = []

            async def take(member, count):
                async with asyncio.timeout(60):
                    while len(read) < count:
                        batch = await member.poll(timeout=0.05)
                        if batch is not None:
                            read.extend(record.value for record in batch)
                            await member.commit()

            async def both(count):
                await asyncio.gather(*(take(member, count) for member in members))

            for turn in range(3):
                for number in range(10):
                    await producer.write(b"%d-%d" % (turn, number))
                    await producer.flush(timeout=20)
                await both(10 * (turn + 1))
                (owner,) = await cluster.all_owned("t")
                if turn < 2:
                    await cluster.stop(owner)
                    await cluster.all_owned("t")
        assert sorted(read) == sorted(b"%d-%d" % (t, n) for t in range(3) for n in range(10))
        assert lost == []
        (group,) = await admin.groups("t")
        assert sum(each.offset > 0 for each in group.offsets) == 2


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
