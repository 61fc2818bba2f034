"""A cluster on real services: brokers inside the test process, ZooKeeper, Kafka and S3Proxy."""

from __future__ import annotations

import asyncio
import os
import secrets
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import pytest

from memq.broker.server import Broker
from memq.core.governor import governor
from memq.core.wire import messages as m
from memq.errors import UnavailableError
from tests.harness.services.s3proxy import REGION
from tests.harness.services.tcp_faults import TcpFaultProxy
from tests.integration.broker.cluster.conftest import Cluster
from tests.integration.broker.support import until

SESSION_S = 2.0  # four ticks of the tests' ZooKeeper
SETTLE_MS = 1_000  # for which brokers that start together are waited for; 10 s else


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
