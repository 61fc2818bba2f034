"""Clients of a cluster whose topics move: brokers that own a part, point at each other, vanish."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress

import pytest

from memq.client.admin import AsyncAdminClient
from memq.client.audit.reporter import ReportSender
from memq.client.cluster import Cluster
from memq.client.producer.producer import AsyncProducer
from memq.client.topic import TopicClient
from memq.core.topic import AUDIT_TOPIC
from memq.core.wire import messages as m
from memq.errors import (
    NotHostedError,
    OffsetOutOfRangeError,
    StorageError,
)
from memq.reading.objects import read_broker
from tests.fakes.tiny_broker import TinyBroker
from tests.integration.broker.support import until
from tests.unit.core.audit.test_produced import report

TIMEOUT_S = 20.0
POSITIONS = [m.PartitionOffset(0, 0)]
READ = m.FetchOffsetsAnswer(partitions=[m.PartitionOffsets(partition=0, start=0, end=3)])


class Two:
    """Two brokers of one cluster, in the zones `a` and `b`.

    Attributes:
        a: the broker that clients are told of first.
        b: the other.
    """

    def __init__(self, **options):
        self.a, self.b = TinyBroker(**options), TinyBroker(**options)

    @property
    def both(self):
        """The two of them."""
        return (self.a, self.b)

    def place(self, *owners, coordinator=None, version="", topic="events"):
        """Say who owns each write partition, and who coordinates; None for nobody."""
        for broker in self.both:
            broker.brokers = [
                m.BrokerInfo(id=zone, address=each.address, zone=zone)
                for zone, each in zip("ab", self.both, strict=True)
            ]
            broker.hosts = [owner.address if owner else "" for owner in owners]
            broker.queue_address = coordinator.address if coordinator else ""
            broker.version = version


@pytest.fixture
async def two():
    async with running() as found:
        yield found


@asynccontextmanager
async def running(**options):
    found = Two(**options)
    async with found.a.serve(), found.b.serve():
        found.place(found.a, coordinator=found.a)
        yield found


@asynccontextmanager
async def reaching(*brokers, **options):
    """A `Cluster` that begins with these brokers."""
    found = Cluster(",".join(each.address for each in brokers), **options)
    try:
        yield found
    finally:
        await found.close()


def numbers(broker):
    """What the broker has published, as it was written."""
    return [value for table in broker.tables() for value in table.column("value").to_pylist()]


# -- producers ------------------------------------------------------------------------------


async def test_a_producer_whose_owner_goes_away(two):
    """An owner that gives up a write partition for nobody, then for another, loses nothing."""
    async with AsyncProducer(two.a.address, topic="events", linger="0ms") as producer:
        await (await producer.write(b"1"))
        two.place(None)
        two.a.faults.extend(NotHostedError("not mine") for _ in range(100))
        delivery = await producer.write(b"2")
        await until(lambda: two.a.metadata_requests + two.b.metadata_requests > 2)
        two.place(two.b)
        await delivery
    assert (numbers(two.a), numbers(two.b)) == ([b"1"], [b"2"])


async def test_a_producer_learns_of_a_move_at_once():
    """A broker that is part of a cluster tells of moves: no write goes to the owner before."""
    async with running() as two:
        two.place(two.a, version="1")
        async with AsyncProducer(two.a.address, topic="events", linger="0ms") as producer:
            await (await producer.write(b"1"))
            await until(lambda: two.a.waiting)
            two.place(two.b)
            two.a.change("2")
            await until(lambda: two.a.waiting)
            await (await producer.write(b"2"))
        assert (numbers(two.a), numbers(two.b)) == ([b"1"], [b"2"])
        assert two.a.writes == 1


async def test_a_producer_goes_on_when_the_broker_that_tells_is_gone():
    """News come from any broker."""
    async with running() as two:
        two.place(two.b, version="1")
        both = f"{two.a.address},{two.b.address}"
        async with AsyncProducer(both, topic="events", linger="0ms") as producer:
            await until(lambda: two.a.waiting)
            await two.a.stop()
            await until(lambda: two.b.waiting)
            await (await producer.write(b"1"))
            await two.a.start()
        assert numbers(two.b) == [b"1"]


# -- reading --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "answer", "read"),
    [
        (m.FetchOffsets, READ, lambda topic: topic.offsets()),
        (m.FetchLag, m.FetchLagAnswer(lags=[], now_us=1), lambda topic: topic.lags(POSITIONS)),
        (
            m.FetchNotifications,
            OffsetOutOfRangeError("it is enough that it came"),
            lambda topic: topic.page({0: 0}, max_entries=1),
        ),
        (m.FetchBatch, m.FetchBatchAnswer(), lambda topic: read_broker(topic, "uri", 0, 1)),
    ],
)
async def test_reading_in_the_zone_of_the_client(two, kind, answer, read):
    """A client reads in its zone, wherever the topic's coordinator is."""
    for zone, near, far in (("b", two.b, two.a), ("a", two.a, two.b)):
        for broker in two.both:
            broker.answers[kind] = answer
            broker.asked.clear()
        two.a.zones.clear()
        async with reaching(two.a, zone=zone) as cluster:
            with suppress(OffsetOutOfRangeError):
                await read(TopicClient(cluster, "events"))
        assert near.count(kind) == 1
        assert two.a.zones == [zone]
        assert far.asked == []


async def test_reading_goes_on_elsewhere_when_the_reader_fails(two):
    """A reader that fails is left alone for a while; what is asked meanwhile goes to another."""
    for broker in two.both:
        broker.answers[m.FetchOffsets] = READ
    async with AsyncAdminClient(two.a.address, zone="b") as admin:
        await admin.offsets("events")
        await two.b.stop()
        for _ in range(3):
            await admin.offsets("events")
        assert two.a.count(m.FetchOffsets) == 3
        await two.b.start()
    assert two.b.count(m.FetchOffsets) == 1


# -- watermarks -----------------------------------------------------------------------------


def watermark(*by_write):
    """What a broker tells that owns those that are not -1."""
    least = min((each for each in by_write if each >= 0), default=-1)
    return m.WatermarkAnswer(
        stored_through_ms=least,
        write_partitions=list(by_write),
        read_partitions=[max(least, 0)],
        retained_since_ms=0,
    )


async def test_watermark_of_all_owners():
    """A topic is stored as far as the owner says that is the least far."""
    async with running(write_partitions=2) as two:
        two.place(two.a, two.b, coordinator=two.a)
        two.a.answers[m.FetchWatermark] = watermark(90, -1)
        two.b.answers[m.FetchWatermark] = watermark(-1, 40)
        async with AsyncAdminClient(two.a.address) as admin:
            found = await admin.watermark("events")
    assert (found.stored_through_ms, found.write_partitions) == (40, [90, 40])
    assert found.read_partitions == [40]


# -- groups and topics ----------------------------------------------------------------------


async def test_groups_of_all_coordinators(two):
    """Groups are asked for at every coordinator, and each tells of its own topics."""
    two.place(two.a, coordinator=two.b)
    for broker, name in zip(two.both, "xy", strict=True):
        broker.add_topic("other")
        broker.answers[m.ListGroups] = m.ListGroupsAnswer(
            groups=[
                m.GroupInfo(group=name, topic=topic, offsets=[], members=[])
                for topic in ("events", "other")
            ]
        )
        broker.coordinators = {"other": two.a.address}
    async with AsyncAdminClient(two.a.address) as admin:
        found = [(each.topic, each.group) for each in await admin.groups()]
    assert found == [("events", "y"), ("other", "x")]


async def test_topics_are_altered_by_their_coordinator(two):
    """A change goes to the coordinator, and follows it."""
    two.place(two.a, coordinator=two.a)
    two.a.answers[m.AlterTopic] = NotHostedError("moved", two.b.address)
    two.b.answers[m.AlterTopic] = lambda _: m.TopicAnswer(topic=two.b._info("events"))
    async with AsyncAdminClient(two.a.address) as admin:
        await admin.alter_topic("events", batch_age="1s")
    assert (two.a.count(m.AlterTopic), two.b.count(m.AlterTopic)) == (1, 1)


# -- the audit ------------------------------------------------------------------------------


async def test_reports_follow_their_topic(two):
    """A report waits for an owner, and reaches it within the call, under one name."""
    for broker in two.both:
        broker.add_topic(AUDIT_TOPIC)
    two.place(None)
    async with reaching(two.a) as cluster:
        sending = asyncio.ensure_future(ReportSender(cluster).send([report(0, 0)], TIMEOUT_S))
        await until(lambda: two.a.metadata_requests > 2)
        two.a.faults.extend([NotHostedError("moved", two.b.address), StorageError("full")])
        two.place(two.a)
        await sending
    assert len(two.a.published) + len(two.b.published) == 1
