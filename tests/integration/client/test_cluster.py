"""Discovery, shared connections and retries, over real sockets."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs

from memq.client.cluster import METADATA_AGE_S, Cluster, parse_bootstrap
from memq.core.runtime import SYSTEM, Runtime
from memq.core.topic import TopicConfig
from memq.core.wire.messages import Metadata, Write
from memq.errors import (
    ClosedError,
    ConfigError,
    InvalidRequestError,
    NotHostedError,
    RequestTimeoutError,
    StorageError,
    UnavailableError,
    UnknownTopicError,
)
from tests.fakes.tiny_broker import TinyBroker

DEAD = "127.0.0.1:1"


@pytest.fixture
async def broker():
    async with TinyBroker().serve() as tiny:
        yield tiny


@pytest.fixture
async def make():
    clusters = []

    def make(*addresses, clock=SYSTEM.mono_s, **options):
        runtime = Runtime(mono_s=clock, random=lambda: 0.01)
        clusters.append(Cluster(",".join(addresses), runtime=runtime, **options))
        return clusters[-1]

    yield make
    for cluster in clusters:
        await cluster.close()


WRITE = Write(
    topic="events",
    write_partition=0,
    producer_id="p",
    epoch=0,
    sequence=0,
    first_unsettled=0,
    acks=-1,
    schema_id="s",
    records=1,
    min_timestamp_us=0,
    max_timestamp_us=0,
)


async def test_topic_is_asked_for_once_until_refreshed(broker, make):
    """A topic is remembered, and asked for again when the caller says so."""
    cluster = make(broker.address)
    first = await cluster.topic("events")
    assert first.hosts == [broker.address]
    assert await cluster.topic("events") is first
    assert broker.metadata_requests == 1
    await cluster.topic("events", refresh=True)
    assert broker.metadata_requests == 2
    assert [info.address for info in cluster.brokers] == [broker.address]
    assert repr(cluster) == f"<Cluster {broker.address} [1 connections | 1 brokers | 1 topics]>"


async def test_what_is_known_grows_old(broker, make):
    """After some minutes brokers and topics are asked for again, though nothing went wrong."""
    now = [0.0]
    cluster = make(broker.address, clock=lambda: now[0])
    for moment_s, asked in ((0, 1), (METADATA_AGE_S - 1, 1), (METADATA_AGE_S, 2)):
        now[0] = moment_s
        await cluster.topic("events")
        assert broker.metadata_requests == asked


async def test_a_forgotten_topic_is_asked_for(broker, make):
    """What turned out to be over is not believed again."""
    cluster = make(broker.address)
    await cluster.topic("events")
    cluster.forget("events")
    await cluster.topic("events")
    assert broker.metadata_requests == 2


async def test_pages_of_topics_share_one_deadline(broker, make):
    """A list that takes several requests takes no longer than one that takes one."""
    now = [0.0]
    cluster = make(broker.address, clock=lambda: now[0])
    named = broker.metadata(Metadata(topics=["events"]))

    def page(_request):
        now[0] += 1
        config = TopicConfig.create(f"t{now[0]:02.0f}")
        topics = [structs.replace(named.topics[0], config=config)]
        return structs.replace(named, topics=topics, more=now[0] < 10)

    broker.metadata = page
    assert len((await cluster.metadata(None, timeout_s=20)).topics) == 10
    now[0] = 0.0
    with pytest.raises(RequestTimeoutError):
        await cluster.metadata(None, timeout_s=5)


async def test_unknown_topic_is_not_retried(broker, make):
    """What the broker knows for sure is raised at once."""
    with pytest.raises(UnknownTopicError):
        await make(broker.address).topic("nope")
    assert broker.metadata_requests == 1


async def test_dead_seeds_are_passed_over(broker, make):
    """Any seed that answers will do, and it is asked first from then on."""
    cluster = make(DEAD, broker.address)
    await cluster.topic("events")
    assert cluster._choose(set()) == broker.address


async def test_known_brokers_are_asked_when_the_seeds_are_gone(broker, make):
    """A broker that was learnt from a seed answers when the seed is gone."""
    seed = TinyBroker()
    await seed.start()
    cluster = make(seed.address)
    await cluster.topic("events")
    cluster.brokers[0].address = broker.address
    await seed.stop()
    await cluster.topic("events", refresh=True)
    assert broker.metadata_requests == 1


async def test_broker_that_comes_up_late_is_found(make):
    """Until its deadline a call waits for a broker to appear."""
    late = TinyBroker()
    await late.start()
    port = int(late.address.rpartition(":")[2])
    await late.stop()
    tries = []

    async def sleep(seconds):
        tries.append(seconds)
        if len(tries) == 3:
            await late.start(port)
        await asyncio.sleep(0)

    cluster = make(f"127.0.0.1:{port}", sleep=sleep)
    await cluster.topic("events")
    assert len(tries) == 3
    await late.stop()


async def test_nobody_answers_until_the_deadline(make):
    """The last error is raised when there is no time for another try."""
    now = [0.0]

    async def sleep(seconds):
        now[0] += 1.0
        await asyncio.sleep(0)

    cluster = make(DEAD, clock=lambda: now[0], sleep=sleep)
    with pytest.raises(UnavailableError, match=DEAD):
        await cluster.topic("events", timeout_s=5)
    assert 4 <= now[0] <= 5


async def test_waiting_for_a_broker_is_logged_now_and_then(make, caplog):
    """A call in vain is silent for a moment, then says what it waits for, and not each time."""
    now = [0.0]

    async def sleep(seconds):
        now[0] += 1.0
        await asyncio.sleep(0)

    cluster = make(DEAD, clock=lambda: now[0], sleep=sleep)
    with pytest.raises(UnavailableError):
        await cluster.topic("events", timeout_s=2.5)
    assert caplog.messages == []
    for timeout_s in (20, 10):
        with pytest.raises(UnavailableError):
            await cluster.topic("events", timeout_s=timeout_s)
        [line] = caplog.messages
    assert line.startswith(f"cannot connect to broker {DEAD}")
    assert line.endswith("; trying again for up to 17 s")
    with pytest.raises(UnavailableError):
        await cluster.topic("events", timeout_s=20)
    assert len(caplog.messages) == 2


async def test_retriable_errors_are_tried_again_at_the_same_broker(broker, make):
    """A call to one broker backs off and repeats itself."""
    broker.faults.extend([StorageError("a"), "drop", InvalidRequestError("c")])
    cluster = make(broker.address)
    with pytest.raises(InvalidRequestError, match="c"):
        await cluster.call(broker.address, WRITE, b"x")
    assert broker.writes == 3


async def test_redirect_is_followed(broker, make):
    """A broker that names the host is believed."""
    other = TinyBroker()
    other.faults.append(InvalidRequestError("got there"))
    async with other.serve():
        broker.faults.append(NotHostedError("elsewhere", other.address))
        with pytest.raises(InvalidRequestError, match="got there"):
            await make(broker.address).call(broker.address, WRITE, b"x")


async def test_redirect_to_nowhere_is_the_callers(broker, make):
    """Without an address the caller must refresh the topic."""
    broker.faults.append(NotHostedError("not here"))
    with pytest.raises(NotHostedError):
        await make(broker.address).call(broker.address, WRITE, b"x")
    assert broker.writes == 1


async def test_redirects_in_a_circle_back_off(broker, make):
    """The first redirect is followed at once; brokers that point at each other are not hammered."""
    delays = []

    async def sleep(seconds):
        delays.append(seconds)

    broker.faults.extend(NotHostedError("no", broker.address) for _ in range(3))
    broker.faults.append(InvalidRequestError("enough"))
    cluster = make(broker.address, sleep=sleep)
    with pytest.raises(InvalidRequestError):
        await cluster.call(broker.address, WRITE, b"x")
    assert delays[0] == 0.0
    assert all(delay > 0 for delay in delays[1:])
    assert len(delays) == 3


async def test_unanswered_call_ends_at_its_deadline(broker, make):
    """A broker that never answers costs the deadline, no more."""
    broker.faults.append("ignore")
    with pytest.raises(RequestTimeoutError):
        await make(broker.address).call(broker.address, WRITE, b"x", timeout_s=0.1)


async def test_connection_is_shared_and_opened_once(broker, make):
    """Callers at the same time share one attempt, later ones its connection."""
    cluster = make(broker.address)
    connections = await asyncio.gather(*(cluster.connection(broker.address) for _ in range(5)))
    assert len(set(map(id, connections))) == 1
    assert len(broker.connections) == 1


async def test_caller_that_gives_up_does_not_take_the_attempt_along(broker, make):
    """A cancelled caller leaves the others their connection."""
    cluster = make(broker.address)
    first = asyncio.ensure_future(cluster.connection(broker.address))
    second = asyncio.ensure_future(cluster.connection(broker.address))
    await asyncio.sleep(0)
    first.cancel()
    assert not (await second).closed


async def test_broken_connection_is_replaced(broker, make):
    """The next caller gets a new connection, and old ones do not pile up."""
    cluster = make(broker.address)
    first = await cluster.connection(broker.address)
    broker.cut()
    await first._lost
    second = await cluster.connection(broker.address)
    assert second is not first
    assert list(cluster._connections.values()) == [second]


async def test_closed_cluster_says_so(broker, make):
    """After `close` there are no connections, and calls raise."""
    cluster = make(broker.address)
    connection = await cluster.connection(broker.address)
    await cluster.close()
    assert connection.closed
    with pytest.raises(ClosedError):
        await cluster.call(None, Metadata())
    assert "closed" in repr(cluster)


def test_bootstrap_is_a_list_of_addresses():
    """Spaces and repeats do not matter."""
    assert parse_bootstrap(" a:1, b:2 ,a:1,") == ["a:1", "b:2"]
    for bad in ("", " , ", "a:1,b"):
        with pytest.raises(ConfigError):
            parse_bootstrap(bad)


async def test_brokers_that_are_not_named(monkeypatch):
    """A client that is given no brokers takes them from the environment, or else has a default."""
    monkeypatch.setenv("MEMQ_BOOTSTRAP", "c:3,d:4")
    assert Cluster(None).seeds == ["c:3", "d:4"]
    monkeypatch.delenv("MEMQ_BOOTSTRAP")
    assert Cluster(None).seeds == ["127.0.0.1:6367"]
