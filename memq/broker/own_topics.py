"""The topics of a broker that governs itself: it hosts all that its catalog holds.

`memq.broker.catalog` has the theory of how a topic comes and goes as a whole. Creation and
deletion hold one lock, and are answered as soon as they are durable. `memq.broker.retention`
removes what is left of a deleted topic in the background.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from memq.broker.hosted_topic import HostedTopic, take_over
from memq.broker.retention import Deletions
from memq.broker.topics import Topics
from memq.core.governor.topics import altered_topic, new_topic
from memq.core.topic import TOPIC_ID_DIGITS, TopicConfig
from memq.core.wire.messages import BrokerInfo
from memq.errors import CorruptDataError, MemqError, TopicExistsError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from memq.broker.catalog import Catalog
    from memq.broker.context import BrokerContext
    from memq.core.governor.topics import Topic

log = logging.getLogger(__name__)

DELETED_S = 5.0  # for what is under way of a topic that is deleted


class OwnTopics(Topics):
    """Every topic of the catalog.

    Args:
        catalog: which topics there are, durably.
        context: of the broker.
        on_deleted: told the name of each topic in the moment in which it is gone.
    """

    def __init__(
        self, catalog: Catalog, context: BrokerContext, on_deleted: Callable[[str], None]
    ) -> None:
        super().__init__(context)
        self._catalog = catalog
        self._on_deleted = on_deleted
        self._damaged: dict[str, CorruptDataError] = {}
        self._lock = asyncio.Lock()  # one creation, change or deletion at a time
        self._deletions = Deletions(self, context)

    async def start(self) -> None:
        """Take over every topic of the catalog, and make those that the configuration asks for."""
        for name, error in self._catalog.damaged.items():
            self._not_served(name, error)
        known = [self._catalog.get(name) for name in self._catalog.names()]
        in_queue = await self._context.queue.topics()
        for topic in known:
            if topic.queue_topic not in in_queue:
                missing = (
                    f"its notifications are missing: the queue has no {topic.queue_topic!r}. Put "
                    "its folder back, or stop the broker and run `memq restore`"
                )
                self._not_served(topic.name, CorruptDataError(missing))
                continue
            try:
                told_ms = self._context.times.saved.wall_ms
                self._hosted[topic.name] = await self._take_up(topic, told_ms)
            except CorruptDataError as exc:
                self._not_served(topic.name, exc)
        doomed = self._catalog.doomed()
        unknown = {*in_queue} - {topic.queue_topic for topic in (*known, *doomed)}
        for queue_topic in sorted(unknown):
            name = queue_topic.rpartition(".")[0]
            if name and name not in self._catalog:
                missing = (
                    f"its file in the catalog is missing, and the queue has {queue_topic!r}. Put "
                    "the file back, or stop the broker and run `memq restore`"
                )
                self._not_served(name, CorruptDataError(missing))
        taken = {*self._catalog.names(), *self._damaged}
        for config in self._wanted_topics():
            if config.name not in taken:
                await self.create(config)
        self._deletions.start()

    def missing(self, name: str) -> MemqError:
        """Why a topic is not hosted."""
        if name in self._damaged:
            return CorruptDataError(f"topic {name!r} is not served: {self._damaged[name]}")
        try:
            self._catalog.get(name)
        except MemqError as exc:
            return exc
        return UnavailableError(f"topic {name!r} is being made or deleted; retry")

    def is_empty(self) -> bool:
        """Return whether the catalog has no topic, and no file that cannot be read."""
        return not self._catalog.names() and not self._catalog.damaged

    def catalog(self) -> list[Topic]:
        """Return all topics there are."""
        if self._catalog.damaged:
            raise next(iter(self._catalog.damaged.values()))
        return [self._catalog.get(name) for name in self._catalog.names()]

    def hosts(self, hosted: HostedTopic) -> list[str]:
        """Return this broker's address, for each write partition."""
        return [self._context.address] * hosted.topic.config.write_partitions

    def brokers(self) -> list[BrokerInfo]:
        """Return this one."""
        config = self._context.config
        return [BrokerInfo(id=config.broker_id, address=self._context.address, zone=config.zone)]

    def addresses(self, listener: str) -> dict[str, str]:
        """Return this one's."""
        return {self._context.address: self._context.listeners[listener].address}

    async def stop(self, timeout_s: float) -> bool:
        """Drain and stop everything; True when all that was accepted is stored and acked."""
        drained = await super().stop(timeout_s)
        await self._deletions.stop()
        return drained

    # -- what is left of deleted topics -----------------------------------------------------

    async def doomed(self) -> list[Topic]:
        """Return the topics of which something may be left."""
        return self._catalog.doomed()

    async def withdraw(self, topic: Topic) -> bool:
        """See to it, durably, that it cannot come to exist any more."""
        self._catalog.withdraw(topic)
        return True

    async def forget(self, topic: Topic) -> None:
        """Note that nothing is left of it."""
        self._catalog.forget(topic)

    # -- inside -----------------------------------------------------------------------------

    def _not_served(self, name: str, error: CorruptDataError) -> None:
        log.error("topic %s is damaged and not served: %s", name, error)
        self._damaged[name] = error

    async def _create(self, config: TopicConfig, request_id: str) -> HostedTopic:
        async with self._lock:
            if config.name in self._damaged:
                raise self.missing(config.name)
            if config.name in self._catalog:
                hosted = self.get(config.name)
                if request_id and request_id == hosted.topic.request_id:
                    return hosted
                raise TopicExistsError(f"topic {config.name!r} exists already")
            topic = new_topic(
                config,
                self._catalog.names(),
                now_ms=self._context.now().wall_ms,
                topic_id=self._context.runtime.token_hex(TOPIC_ID_DIGITS // 2),
                request_id=request_id,
            )
            self._catalog.announce(topic)
            try:
                await self._context.queue.create_topic(topic.queue_topic, config.read_partitions)
                hosted = await self._take_up(topic, told_ms=0)
                self._catalog.save(topic)
            except BaseException:
                self._doom(topic)
                raise
            self._hosted[topic.name] = hosted
            self._spare(topic)
        log.info("topic %s created, topic id %s", topic.name, topic.topic_id)
        return hosted

    async def _alter(self, name: str, options: dict[str, str], schema: bytes | None) -> HostedTopic:
        async with self._lock:
            hosted = self.get(name)
            retained_since_ms = hosted.retained_since_ms(self._context.now().wall_ms)
            altered = altered_topic(hosted.topic, options, schema, retained_since_ms)
            added = range(len(hosted.partitions), altered.config.write_partitions)
            rebuilt = await take_over(altered, added, self._context)
            self._catalog.save(altered)
            hosted.begin(altered, rebuilt, self._context.times.saved.wall_ms)
            hosted.set(altered)  # the added ones learn as well what was written down or told
        log.info("topic %s altered: %s%s", name, options, " and its schema" if schema else "")
        return hosted

    async def _delete(self, name: str, topic_id: str) -> None:
        async with self._lock:
            hosted = self.get(name, topic_id)
            self._catalog.delete(name)
            del self._hosted[name]
            hosted.coordinated = False  # retention and a scan for orphans leave it alone
            self._on_deleted(name)
            await hosted.stop(DELETED_S)
        log.info("topic %s deleted, topic id %s", name, hosted.topic.topic_id)
        self._doom(hosted.topic, hosted.uploads())

    def _doom(self, topic: Topic, uploads: Sequence[Future[None]] = ()) -> None:
        self._catalog.doom(topic)
        self._deletions.add(topic, uploads)

    def _spare(self, topic: Topic) -> None:
        """Forget that the topic was doomed: it exists now."""
        try:
            self._catalog.forget(topic)
        except MemqError as exc:  # it means nothing once the topic has its own file
            log.warning("cannot remove the announcement of topic %s: %s", topic.queue_topic, exc)

    async def _take_up(self, topic: Topic, told_ms: int) -> HostedTopic:
        """Take over a topic's write partitions, and run them.

        Args:
            topic: the topic.
            told_ms: no watermark of it was told that is later.
        """
        hosted = HostedTopic(topic, self._context)
        rebuilt = await take_over(topic, range(topic.config.write_partitions), self._context)
        hosted.begin(topic, rebuilt, told_ms)
        return hosted
