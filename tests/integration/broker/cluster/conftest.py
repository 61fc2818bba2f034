"""Clusters of brokers inside the test process."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from memq.broker.config import BrokerConfig
from memq.broker.server import Broker
from memq.queue.kafka.queue import KafkaQueue
from memq.storage.local import LocalStorage
from tests.fakes.kafka import InMemoryKafka
from tests.fakes.zookeeper import InMemoryZooKeeper
from tests.integration.broker.support import Client, client, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class ModelBroker(Broker):
    """A broker whose ZooKeeper and Kafka are models."""

    def __init__(self, config: BrokerConfig, cluster: Cluster) -> None:
        super().__init__(config, storage=cluster.storage, admin_http=False)
        self._cluster = cluster
        self.sessions = []

    async def _open_queue(self, folder):
        config = self.config
        queue = KafkaQueue(
            self._cluster.kafka.client(), cluster_id=config.cluster_id, broker_id=config.broker_id
        )
        await queue.start()
        return queue

    async def _open_coordination(self):
        session = await self._cluster.zookeeper.open(
            session_timeout_s=self._cluster.session_timeout_s, request_timeout_s=5
        )
        self.sessions.append(session)
        return session


@dataclass
class Cluster:
    """Brokers that share a ZooKeeper, a Kafka and a storage, all of them models.

    Attributes:
        session_timeout_s: of their sessions.
        brokers: those that run, by id.
    """

    folder: object
    stack: AsyncExitStack
    session_timeout_s: float = 20.0  # longer than a busy machine holds a broker up
    kafka: InMemoryKafka = field(default_factory=InMemoryKafka)
    storage: LocalStorage = field(init=False)
    zookeeper: InMemoryZooKeeper = field(default_factory=InMemoryZooKeeper)
    brokers: dict[str, ModelBroker] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.storage = LocalStorage(self.folder / "objects")

    async def start(self, *names: str, **options) -> list[ModelBroker]:
        """Start brokers of these ids."""
        return [await self._start(name, options) for name in names]

    async def _start(self, name: str, options: dict) -> Broker:
        config = BrokerConfig.create(
            {
                "data_dir": str(self.folder / name),
                "broker_id": name,
                "zookeeper": "zk:2181",
                "queue": "kafka://k:9092",
                "storage": "s3://bucket",
                "port": 0,
                "admin_port": 0,
                "drain_timeout": "5s",
            }
            | options
        )
        broker = ModelBroker(config, self)
        try:
            await broker.start()
        except BaseException:
            await broker.abandon()
            raise
        self.brokers[name] = broker
        return broker

    async def serve(self, *names: str, **topic) -> list:
        """Start brokers with topic `t`: its owner, the others, and a client of the owner."""
        first, *_ = await self.start(*names)
        info = await (await self.connect(first)).create("t", **topic)
        owner = self.brokers[(await self.all_owned("t"))[0]]
        c = await self.connect(owner)
        c.schema_id = info.schema_id
        return [owner, *(each for each in self.brokers.values() if each is not owner), c]

    async def connect(self, broker: Broker) -> Client:
        """A client of one of them, to the end of the test."""
        return await self.stack.enter_async_context(client(broker))

    async def queue(self, broker_id: str) -> KafkaQueue:
        """The queue of a broker that is not there, to the end of the test."""
        queue = KafkaQueue(self.kafka.client(), cluster_id="memq", broker_id=broker_id)
        await queue.start()
        self.stack.push_async_callback(queue.close)
        return queue

    async def all_owned(self, topic: str) -> list[str]:
        """Wait until each write partition of a topic runs somewhere; ids of the brokers."""
        owners: list[str] = []

        def owned() -> bool:
            owners[:] = self.owners(topic)
            return bool(owners) and all(owners)

        await until(owned)
        return owners

    def owners(self, topic: str) -> list[str]:
        """Where each write partition of a topic runs; empty for nowhere."""
        found: dict[int, str] = {}
        count = 0
        for name, broker in self.brokers.items():
            if topic in broker.topics.names():
                hosted = broker.topics.get(topic)
                count = hosted.topic.config.write_partitions
                found |= dict.fromkeys(hosted.partitions, name)
        return [found.get(number, "") for number in range(count)]


@pytest.fixture
async def cluster(tmp_path) -> AsyncIterator[Cluster]:
    """A cluster without brokers; those that run in the end are stopped."""
    async with AsyncExitStack() as stack:
        made = Cluster(tmp_path, stack)
        try:
            yield made
        finally:
            for broker in made.brokers.values():  # else a stop waits for what does not answer
                made.zookeeper.restore(broker.sessions[-1])
            await asyncio.gather(*(each.stop() for each in made.brokers.values()))
