"""A cluster on real services: brokers inside the test process, ZooKeeper, Kafka and S3Proxy."""

from __future__ import annotations

import asyncio
import os
import secrets
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from memq import AsyncConsumer, AsyncProducer
from memq.broker.server import Broker
from memq.core.governor import governor
from memq.core.governor.nodes import ELECTION
from memq.core.wire import messages as m
from memq.errors import NotOwnerError, UnavailableError
from tests.harness.services.s3proxy import REGION
from tests.harness.services.tcp_faults import TcpFaultProxy
from tests.integration.broker.support import until
from tests.integration.cluster.conftest import Cluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SESSION_S = 2.0  # four ticks of the tests' ZooKeeper
SETTLE_MS = 1_000  # for which brokers that start together are waited for; 10 s else
READ_S = 60.0  # for what has been acked: on a slow machine readers fall behind the writer


@dataclass
class RealCluster(Cluster):
    """Brokers that share real services; each reaches ZooKeeper through a proxy of its own.

    Attributes:
        services: options of every broker, with which it finds them.
        zookeeper_port: of the server.
        root: that the cluster has in ZooKeeper.
        proxies: in front of ZooKeeper, by broker id.
    """

    services: dict[str, object] = field(default_factory=dict)
    zookeeper_port: int = 0
    root: str = ""
    proxies: dict[str, TcpFaultProxy] = field(default_factory=dict)

    async def _start(self, name: str, options: dict) -> Broker:
        if name not in self.proxies:
            proxy = TcpFaultProxy(("127.0.0.1", self.zookeeper_port))
            self.proxies[name] = self.stack.enter_context(proxy)
        zookeeper = {"zookeeper": f"{self.proxies[name].address}/{self.root}"}
        return await super()._start(name, self.services | zookeeper | options)

    def _make(self, config) -> Broker:
        return Broker(config, admin_http=False)

    @property
    def bootstrap(self) -> str:
        """Addresses of those that run."""
        return ",".join(broker.address for broker in self.brokers.values())


@pytest.fixture
async def real(tmp_path, monkeypatch, s3_server, kafka_server, zookeeper_server):
    """A cluster without brokers; those that run in the end are stopped."""
    monkeypatch.setattr(governor, "SETTLE_MS", SETTLE_MS)
    for name in os.environ:
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)  # for those that read
    unique = f"c-{secrets.token_hex(6)}"
    s3_server.make_bucket(unique)
    services = {
        "cluster_id": unique,
        "queue": f"kafka://{kafka_server.address}",
        "storage": f"s3://{unique}/objects",
        "storage_options": {
            "endpoint": s3_server.endpoint,
            "access_key_id": s3_server.access_key,
            "secret_access_key": s3_server.secret_key,
            "region": REGION,
        },
        "zookeeper_options": {"session_timeout": f"{SESSION_S:g}s"},
    }
    async with AsyncExitStack() as stack:
        made = RealCluster(
            tmp_path,
            stack,
            SESSION_S,
            services=services,
            zookeeper_port=zookeeper_server.port,
            root=unique,
        )
        try:
            yield made
        finally:
            for proxy in made.proxies.values():
                proxy.restore()
            await asyncio.gather(*(made.stop(name) for name in list(made.brokers)))


@asynccontextmanager
async def writing(bootstrap: str, topic: str) -> AsyncIterator[list[bytes]]:
    """Write records until the context ends; gives those that are acked."""
    acked: list[bytes] = []
    done = asyncio.Event()

    async def produce() -> None:
        async with AsyncProducer(bootstrap, topic=topic, linger="1ms") as producer:
            number = 0
            while not done.is_set():
                value = b"%d" % number
                delivery = await producer.write(value)
                delivery.add_done_callback(
                    lambda delivery, value=value: delivery.exception() or acked.append(value)
                )
                number += 1
                await asyncio.sleep(0.02)
            await producer.flush(timeout=20)

    task = asyncio.create_task(produce())
    try:
        yield acked
    finally:
        done.set()
        await task


async def read_all(bootstrap: str, topic: str, count: int, **options) -> list[bytes]:
    """The values of so many records, or of more that came with the last of them."""
    read: list[bytes] = []
    async with AsyncConsumer(bootstrap, topic=topic, start="earliest", **options) as consumer:
        async with asyncio.timeout(READ_S):
            while len(read) < count:
                batch = await consumer.poll(timeout=1.0)
                if batch is not None:
                    read += [record.value for record in batch]
    return read


@asynccontextmanager
async def group_of(count: int, bootstrap: str, topic: str) -> AsyncIterator[set[bytes]]:
    """Members of a group that read and commit until the context ends; gives what they have read.

    Where the machine is slow, a session may end while brokers are away. What was read in it is not
    committed then, and is read again.
    """
    read: set[bytes] = set()
    committed: list[int] = []

    async def member() -> None:
        async with AsyncConsumer(bootstrap, topic=topic, group="g", start="earliest") as consumer:
            while True:
                batch = await consumer.poll(timeout=1.0)
                if batch is not None:
                    read.update(record.value for record in batch)
                    with suppress(NotOwnerError):
                        await consumer.commit()
                        committed.append(batch.partition)

    tasks = [asyncio.create_task(member()) for _ in range(count)]
    try:
        yield read
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        errors = [each for each in ended if not isinstance(each, asyncio.CancelledError)]
        assert errors == []
        assert committed


async def test_producer_and_group_go_on_as_brokers_stop_and_lose_their_sessions(real):
    """What is acked is stored once and read by the group, whoever leaves the cluster, and how."""
    one, _, three = await real.start("one", "two", "three")
    c = await real.connect(one)
    await c.create("t", write_partitions=6, read_partitions=2, batch_age="5ms")
    assert sorted(await real.all_owned("t")) == ["one", "one", "three", "three", "two", "two"]
    async with (
        writing(real.bootstrap, "t") as acked,
        group_of(2, real.bootstrap, "t") as read,
    ):

        async def go_on() -> None:
            acked_before = len(acked)
            await until(lambda: len(acked) >= acked_before + 50)
            missing = set(acked[:acked_before])

            def caught_up() -> bool:
                missing.difference_update(read)
                return not missing

            await until(caught_up, READ_S)

        await go_on()
        await real.stop("two")
        assert sorted(await real.all_owned("t")) == ["one"] * 3 + ["three"] * 3
        await go_on()
        real.proxies["three"].freeze()
        await until(lambda: not three.context.leased())
        await until(lambda: len(one.topics.get("t").partitions) == 6)
        await go_on()
        real.proxies["three"].thaw()
        await until(three.context.leased)
        await real.stop("one")
        assert await real.all_owned("t") == ["three"] * 6
        await go_on()
    assert sorted(await read_all(real.bootstrap, "t", len(acked))) == sorted(acked)


async def test_another_governs_when_the_governor_is_cut_off(real):
    """A topic can be made, and is owned, while the broker that governed hears nothing."""
    one, two = await real.start("one", "two")
    await until(lambda: len(two.topics.brokers()) == 2)
    name = await elected(one)
    other = {"one": two, "two": one}[name]
    real.proxies[name].freeze()
    c = await real.connect(other)
    await c.create("t", write_partitions=2, batch_age="5ms")
    await until(lambda: set(other.topics.get("t").partitions) == {0, 1})
    assert (await c.write(0)).offset >= 0
    await until(lambda: not real.brokers[name].context.leased())
    real.proxies[name].thaw()


async def elected(broker: Broker) -> str:
    """The broker id of the Governor."""
    return (await broker.membership._session.get(ELECTION)).data.decode()


async def test_a_cluster_without_zookeeper_acks_nothing_and_comes_back(real):
    """When no broker reaches ZooKeeper writes are refused, and go on when they do again."""
    one, two = await real.start("one", "two")
    c = await real.connect(one)
    await c.create("t", write_partitions=2, batch_age="5ms")
    number = (await real.all_owned("t")).index("one")
    first = await c.write(0, write_partition=number)
    for proxy in real.proxies.values():
        proxy.freeze()
    await until(lambda: not one.context.leased() and not two.context.leased())
    with pytest.raises(UnavailableError):
        await c.write(1, write_partition=number)
    for proxy in real.proxies.values():
        proxy.thaw()
    await until(lambda: one.context.leased() and two.context.leased())
    owners = await real.all_owned("t")
    c = await real.connect(real.brokers[owners[number]])
    c.schema_id = (await c.ask(m.Metadata(topics=["t"]))).topics[0].schema_id
    again = await c.write(0, write_partition=number)
    assert (again.duplicate, again.offset) == (True, first.offset)
    assert (await c.write(1, write_partition=number)).offset > first.offset
