"""A broker's part in its cluster: it joins, registers, is lost, hands over, and leaves."""

import asyncio
import logging
from contextlib import suppress

import pytest

from memq import AsyncAdminClient
from memq.broker import membership
from memq.client.connection import BrokerConnection
from memq.client.security import Security
from memq.core.governor.coordination import Create, Delete
from memq.core.governor.nodes import BROKERS, DRAINING, MEMBERS
from memq.core.wire import messages as m
from memq.errors import MemqError, NotHostedError, SessionLostError, UnavailableError
from tests.harness.certificates import Certificates
from tests.integration.broker.support import TIMEOUT_S, GatedStorage, turns, until


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


async def until_lost(broker, name):
    """Wait until a broker is, and who governs says since when."""
    async with asyncio.timeout(60), AsyncAdminClient(broker.address) as admin:
        while True:
            with suppress(MemqError):  # nobody governs
                found = (await admin.describe_cluster()).lost
                if found.keys() == {name} and found[name]:
                    return found
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("dies", ["one", "three"])
async def test_a_broker_that_died_is_named_by_all_that_live(cluster, monkeypatch, caplog, dies):
    """Also when it was the one that governs; each survivor says so once, and counts it."""
    monkeypatch.setattr("memq.core.governor.governor.SETTLE_MS", 0)  # whoever governs next
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


async def test_a_lost_broker_is_forgotten_on_request(cluster):
    """By a drain; what is withdrawn is the drain of a broker, which stays expected."""
    one, two = await cluster.start("one", "two")
    await all_expected(cluster)
    async with AsyncAdminClient(one.address) as admin:
        for _ in range(2):
            await admin.drain_broker("two")
        assert cluster.zookeeper.names(DRAINING) == ("two",)
        kill(cluster, two)
        await until_lost(one, "two")
        for _ in range(2):
            await admin.drain_broker("two", withdraw=True)
        assert cluster.zookeeper.names(DRAINING) == ()
        assert cluster.zookeeper.names(MEMBERS.path) == ("one", "two")
        await admin.drain_broker("two")
    await until(lambda: counted(one) == (1, 1))
    assert cluster.zookeeper.names(DRAINING) == ()


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
    await turns()
    assert not handing.done()
    if dies:
        kill(cluster, two)
        await until(handing.done)
        assert one.topics.running()
    storage.gate.set()
    await until(handing.done)
    if not dies:
        assert not one.topics.running()


async def test_a_broker_whose_session_is_over_acks_nothing(cluster):
    """Others take over what a broker had whose session is over, and it refuses what comes."""
    cluster.session_timeout_s = 2.0
    old, new, c = await cluster.serve("one", "two")
    await c.write(0)
    cluster.zookeeper.freeze(old.sessions[-1])
    await until(lambda: not old.context.leased())
    with pytest.raises(UnavailableError):
        await c.write(1)
    await until(lambda: new.topics.get("t").partitions)
    other = await cluster.connect(new)
    other.schema_id = c.schema_id
    assert (await other.write(0)).duplicate
    cluster.zookeeper.thaw(old.sessions[-1])
    await until(old.context.leased)
    with pytest.raises(NotHostedError):
        await c.write(1)


async def test_a_broker_whose_id_another_process_has_taken_leaves_the_cluster(cluster):
    """Also when its node was never seen to be gone: whoever made the new one is that broker now."""
    one, _ = await cluster.serve("one")
    twin, path = await cluster.zookeeper.open(), BROKERS.child("one")
    node = await twin.get(path)
    await twin.transact([Delete(path, node.version), Create(path, node.data, ephemeral=True)])
    await until(lambda: not one.topics.running())
    await twin.close()
    await cluster.all_owned("t")


async def test_a_drained_broker_owns_nothing(cluster, monkeypatch):
    """A drain moves all that a broker owns, and it is given something again when it is over."""
    monkeypatch.setattr(membership, "KNOWN_S", 0.1)
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
    await cluster.start("r", role="read", zone="a")
    one, reader, c = await cluster.serve("one", write_partitions=3, batch_age="1ms")
    assert cluster.owners("t") == ["one"] * 3
    await c.write(0)
    news = m.FetchNotifications(topic="t", positions=[m.PartitionOffset(0, 0)], max_wait_ms=60_000)
    answer = await (await cluster.connect(reader)).ask(news)
    assert answer.ends == [m.PartitionOffset(0, 1)]
    async with AsyncAdminClient(one.address) as admin:
        roles = {each.id: each.role for each in (await admin.describe_cluster()).brokers}
    assert roles == {"one": "all", "r": "read"}


async def test_clients_of_another_listener_stay_on_it(cluster, tmp_path):
    """Over TLS all brokers have TLS addresses, also the one to which a client is sent on."""
    certificates = Certificates(tmp_path)
    secure = certificates.broker_options() | {"port": 0}
    brokers = await cluster.start("one", "two", listeners={"secure": secure})
    await all_expected(cluster)
    await (await cluster.connect(brokers[0])).create("t", write_partitions=2)
    await cluster.all_owned("t")
    addresses = {each.listeners["secure"].address for each in brokers}
    security = Security.parse({"ca": certificates.ca})
    told = set()
    for address in addresses:
        connection = await BrokerConnection.open(
            address, security=security, connect_timeout_s=TIMEOUT_S
        )
        answer, _ = await connection.request(m.Metadata(topics=["t"]), timeout_s=TIMEOUT_S)
        told |= {each.address for each in answer.brokers} | {*answer.topics[0].hosts}
        told.add(answer.topics[0].queue_address)
        try:
            answer, _ = await connection.request(m.DescribeCluster(), timeout_s=TIMEOUT_S)
            told |= {each.address for each in answer.brokers}
        except NotHostedError as error:
            told.add(error.address)
            assert brokers[0].address not in str(error)
        await connection.close()
    assert told == addresses


async def test_a_session_that_is_over_is_no_answer_to_who_governs(cluster):
    """A client that asks in that moment is to ask again: another session is opened."""
    _, other = await cluster.start("one", "two")
    session, governing = other.sessions[-1], other.membership.governing
    cluster.zookeeper.expire(session)
    await until(lambda: len(other.sessions) > 1)
    with pytest.raises(SessionLostError):
        await session.get("/governor")
    governing._session = session  # as in the moment between the two
    governing._runner = None
    with pytest.raises(UnavailableError, match="ask again"):
        await governing.describe()
