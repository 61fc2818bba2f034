"""Clients of a cluster of two brokers: whom they ask."""

from functools import partial

import pytest

from memq.client.admin import AsyncAdminClient
from memq.core.wire import messages as m
from tests.fakes.tiny_broker import TinyBroker

READ = m.FetchOffsetsAnswer(partitions=[m.PartitionOffsets(partition=0, start=0, end=3)])


class Two:
    """Two brokers of one cluster, in the zones `a` and `b`.

    Attributes:
        a: the broker that clients are told of first.
        b: the other.
    """

    def __init__(self):
        self.a, self.b = TinyBroker(), TinyBroker()

    @property
    def both(self):
        """The two of them."""
        return (self.a, self.b)

    def place(self, coordinator):
        """Say who coordinates; write partitions are at the first."""
        for broker in self.both:
            broker.brokers = [
                m.BrokerInfo(id=zone, address=each.address, zone=zone)
                for zone, each in zip("ab", self.both, strict=True)
            ]
            broker.hosts = [self.a.address]
            broker.queue_address = coordinator.address


@pytest.fixture
async def two():
    found = Two()
    async with found.a.serve(), found.b.serve():
        found.place(found.a)
        yield found


async def test_reading_in_the_zone_of_the_client(two):
    """A client reads in its zone, wherever the topic's coordinator is."""
    for zone, near, far in (("b", two.b, two.a), ("a", two.a, two.b)):
        for broker in two.both:
            broker.answers[m.FetchOffsets] = READ
            broker.asked.clear()
        two.a.zones.clear()
        async with AsyncAdminClient(two.a.address, zone=zone) as admin:
            await admin.offsets("events")
        assert near.count(m.FetchOffsets) == 1
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


async def test_groups_of_all_coordinators(two):
    """Groups of each topic are asked for at its coordinator."""
    two.place(two.b)

    def groups_of(name, request):
        info = m.GroupInfo(group=name, topic=request.topic, offsets=[], members=[])
        return m.ListGroupsAnswer(groups=[info])

    for broker, name in zip(two.both, "xy", strict=True):
        broker.add_topic("other")
        broker.answers[m.ListGroups] = partial(groups_of, name)
        broker.coordinators = {"other": two.a.address}
    async with AsyncAdminClient(two.a.address) as admin:
        found = [(each.topic, each.group) for each in await admin.groups()]
    assert found == [("events", "y"), ("other", "x")]
