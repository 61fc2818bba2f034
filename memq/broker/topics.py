"""The topics that this broker hosts: their write partitions, and their making and deleting."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING

from memq.broker.partition import WritePartition
from memq.broker.recovery import take_over
from memq.broker.repeats import RepeatChecker
from memq.core.format.schema import deserialize_schema
from memq.core.storage.keys import object_key, topic_objects
from memq.core.topic import AUDIT_TOPIC, TopicConfig
from memq.core.topic_processor import TopicProcessor
from memq.core.wire.messages import TopicInfo
from memq.errors import (
    CorruptDataError,
    InvalidRequestError,
    MemqError,
    NotHostedError,
    UnavailableError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from memq.broker.config import BrokerConfig
    from memq.broker.metrics import Metrics
    from memq.broker.services import Services
    from memq.core.governor.catalog import Catalog, Topic

log = logging.getLogger(__name__)


def new_batch_id(wall_ms: int) -> str:
    """A unique name that sorts by time: 12 hex digits of milliseconds, 16 random ones."""
    return f"{wall_ms:012x}{os.urandom(8).hex()}"


class HostedTopic:
    """A topic with its running write partitions.

    Attributes:
        topic: its configuration and schemas.
        schemas: the schemas it accepts, ready for checking, by schema id.
        partitions: its write partitions, by number.
        messages_received: Messages that came since they were last counted.
        bytes_received: their bytes.
    """

    def __init__(self, topic: Topic, repeats: RepeatChecker) -> None:
        self.repeats = repeats
        self.messages_received = 0
        self.bytes_received = 0
        self.partitions: list[WritePartition] = []
        self.set(topic)

    def count_received(self, metrics: Metrics) -> None:
        """Add what came to the counters, which would cost too much for each Message."""
        metrics.messages.labels(self.topic.name).inc(self.messages_received)
        metrics.bytes.labels(self.topic.name).inc(self.bytes_received)
        self.messages_received = self.bytes_received = 0

    def set(self, topic: Topic) -> None:
        """Take over an altered configuration."""
        self.topic = topic
        self.schemas: dict[str, pa.Schema] = {
            name: deserialize_schema(schema) for name, schema in topic.schemas.items()
        }
        self.repeats.config = topic.config
        for partition in self.partitions:
            partition.configure(topic.config, topic.schemas)


class Topics:
    """Every hosted topic.

    Args:
        catalog: which topics there are, durably.
        config: of the broker.
        services: its seams.
        address: gives the `host:port` that clients reach this broker under.
    """

    def __init__(
        self,
        catalog: Catalog,
        config: BrokerConfig,
        services: Services,
        address: Callable[[], str],
    ) -> None:
        self._catalog = catalog
        self._config = config
        self._services = services
        self._address = address
        self._hosted: dict[str, HostedTopic] = {}
        self._elsewhere = {topic: peer.address for peer in config.peers for topic in peer.topics}
        self._damaged: dict[str, CorruptDataError] = {}
        self._lock = asyncio.Lock()  # one making, altering or deleting at a time

    def __repr__(self) -> str:
        return f"<Topics [{len(self._hosted)} hosted | {len(self._elsewhere)} elsewhere]>"

    async def start(self) -> None:
        """Take over every topic of the catalog, and make those that the configuration asks for."""
        for name in self._catalog.names():
            try:
                await self._host(self._catalog.get(name))
            except CorruptDataError as exc:
                log.error("topic %s is damaged and not served: %s", name, exc)  # noqa: TRY400
                self._damaged[name] = exc
        unknown = set(await self._services.queue.topics()) - set(self._catalog.names())
        if unknown:
            log.warning(
                "the queue holds topics that the catalog does not know, they are left alone: %s",
                ", ".join(sorted(unknown)),
            )
        for config in (*self._config.topics, _audit_config()):
            if config.name not in self._catalog and config.name not in self._elsewhere:
                await self.create(config)

    def names(self) -> list[str]:
        """The hosted topics, sorted."""
        return sorted(self._hosted)

    def hosted(self) -> list[HostedTopic]:
        """The hosted topics."""
        return list(self._hosted.values())

    def get(self, name: str) -> HostedTopic:
        """A hosted topic.

        Raises:
            NotHostedError: another broker hosts it; the error has its address.
            CorruptDataError: its notifications are damaged; restart the broker when that is mended.
            UnknownTopicError: nobody does.
        """
        hosted = self._hosted.get(name)
        if hosted is not None:
            return hosted
        if name in self._elsewhere:
            address = self._elsewhere[name]
            raise NotHostedError(f"topic {name!r} is hosted by {address}; ask there", address)
        if name in self._damaged:
            raise CorruptDataError(f"topic {name!r} is not served: {self._damaged[name]}")
        self._catalog.get(name)
        raise UnavailableError(f"topic {name!r} is being made or deleted; retry")

    def info(self, hosted: HostedTopic) -> TopicInfo:
        """A topic as clients need it."""
        topic, address = hosted.topic, self._address()
        return TopicInfo(
            config=topic.config,
            schemas=topic.schemas,
            schema_id=topic.schema_id,
            hosts=[address] * topic.config.write_partitions,
            queue_address=address,
            created_ms=topic.created_ms,
        )

    async def create(self, config: TopicConfig) -> HostedTopic:
        """Make a topic and host it.

        Raises:
            TopicExistsError, ConfigError, SchemaMismatchError, QueueError: it was not made.
        """
        async with self._lock:
            if config.name in self._elsewhere:
                self.get(config.name)
            topic = self._catalog.create(config, self._services.now().wall_ms)
            hosted = await self._host(topic)
        log.info("topic %s created", config.name)
        return hosted

    async def alter(self, name: str, options: dict[str, str], schema: bytes | None) -> HostedTopic:
        """Change a topic; it holds from the next Message on.

        Raises:
            UnknownTopicError, ConfigError, SchemaMismatchError: nothing has changed.
        """
        async with self._lock:
            hosted = self.get(name)
            hosted.set(self._catalog.alter(name, options, schema))
            await self._grow(hosted)
        log.info("topic %s altered: %s%s", name, options, " and its schema" if schema else "")
        return hosted

    async def delete(self, name: str) -> None:
        """Delete a topic: first its notifications, then its entry, then its objects."""
        if name == AUDIT_TOPIC:
            raise InvalidRequestError(f"{AUDIT_TOPIC} is internal and cannot be deleted")
        async with self._lock:
            hosted = self.get(name)
            del self._hosted[name]
            await self._stop(hosted, timeout_s=5)
            await self._services.queue.delete_topic(name)
            self._catalog.delete(name)
        log.info("topic %s deleted", name)
        await asyncio.get_running_loop().run_in_executor(
            self._services.executor, self._delete_objects, name
        )

    async def stop(self, timeout_s: float) -> bool:
        """Drain and stop everything; True when all that was accepted is stored and acked."""
        drained = await asyncio.gather(
            *(self._stop(hosted, timeout_s) for hosted in self._hosted.values())
        )
        return all(drained)

    # -- inside -----------------------------------------------------------------------------

    async def _host(self, topic: Topic) -> HostedTopic:
        await self._services.queue.create_topic(topic.name, topic.config.read_partitions)
        hosted = HostedTopic(topic, RepeatChecker(topic.config, self._services))
        await self._grow(hosted)
        self._hosted[topic.name] = hosted
        return hosted

    async def _grow(self, hosted: HostedTopic) -> None:
        """Start the write partitions that the topic has but does not run yet."""
        config = hosted.topic.config
        missing = range(len(hosted.partitions), config.write_partitions)
        for number, start in (await take_over(config, missing, self._services)).items():
            processor = TopicProcessor(
                config,
                number,
                broker_id=self._config.broker_id,
                schemas=hosted.topic.schemas,
                new_batch_id=new_batch_id,
                locate=self._locator(config.name, number),
                window=start.window,
                stored_through_ms=start.stored_through_ms,
            )
            hosted.partitions.append(
                WritePartition(
                    processor,
                    self._services,
                    hosted.repeats,
                    park_timeout_ms=self._config.park_timeout_ms,
                )
            )
            if start.batches:
                log.info("%s/%d: taken over, %d notifications", config.name, number, start.batches)

    def _locator(self, topic: str, write_partition: int) -> Callable[[str, int], tuple[str, str]]:
        def locate(batch_id: str, sealed_ms: int) -> tuple[str, str]:
            key = object_key(self._config.cluster_id, topic, write_partition, sealed_ms, batch_id)
            return key, self._services.storage.uri(key)

        return locate

    async def _stop(self, hosted: HostedTopic, timeout_s: float) -> bool:
        drained = await asyncio.gather(
            *(partition.drain(timeout_s) for partition in hosted.partitions)
        )
        for partition in hosted.partitions:
            await partition.close()
        return all(drained)

    def _delete_objects(self, name: str) -> None:
        """Delete a topic's objects; what cannot be deleted now is an orphan and goes later."""
        storage = self._services.storage
        try:
            for info in topic_objects(storage, self._config.cluster_id, name):
                storage.delete(info.key)
        except MemqError as exc:
            log.warning("topic %s: some objects are left, as orphans: %s", name, exc)


def _audit_config() -> TopicConfig:
    return TopicConfig.create(
        AUDIT_TOPIC, batch_age="100ms", retention="30d", audited=False, dedup_window="10m"
    )
