"""The topics that this broker hosts: their write partitions, and how they come and go.

A topic comes and goes as a whole, whatever fails between the steps; `memq.core.governor.catalog`
has the theory. Creation and deletion hold one lock, and are answered as soon as they are durable;
`memq.broker.deletion` removes what is left of a deleted topic in the background.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, TypeVar

from memq.broker.deletion import Deletions
from memq.broker.duplicates import DuplicateChecker
from memq.broker.takeover import take_over
from memq.broker.write_partition import WritePartition
from memq.core.format.schema import deserialize_schema
from memq.core.storage.keys import BatchKey, object_key
from memq.core.topic import AUDIT_OPTIONS, AUDIT_TOPIC, INCARNATION_DIGITS, TopicConfig
from memq.core.units import counted
from memq.core.wire.messages import TopicInfo
from memq.core.write_partition import TopicProcessor
from memq.errors import (
    CorruptDataError,
    InvalidRequestError,
    MemqError,
    NotHostedError,
    TopicExistsError,
    TopicRecreatedError,
    UnavailableError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Future

    import pyarrow as pa

    from memq.broker.context import BrokerContext
    from memq.broker.metrics import Metrics
    from memq.core.governor.catalog import Catalog, Topic

log = logging.getLogger(__name__)

T = TypeVar("T")


class HostedTopic:
    """A topic with its running write partitions.

    Attributes:
        topic: its configuration and schemas.
        schemas: the schemas it accepts, ready for checking, by schema id.
        partitions: its write partitions, by number.
        messages_received: Messages that came since they were last counted.
        bytes_received: their bytes.
        expired_before_ms: retention has removed what was published before this time.
    """

    def __init__(self, topic: Topic, context: BrokerContext) -> None:
        self.duplicates = DuplicateChecker(topic.config, topic.queue_topic, context)
        self._context = context
        self.messages_received = 0
        self.bytes_received = 0
        self.expired_before_ms = 0
        self.partitions: list[WritePartition] = []
        self.set(topic)

    def count_received(self, metrics: Metrics) -> None:
        """Add what came to the counters, which would cost too much for each Message."""
        metrics.messages.labels(self.topic.name).inc(self.messages_received)
        metrics.bytes.labels(self.topic.name).inc(self.bytes_received)
        self.messages_received = self.bytes_received = 0

    def uploads(self) -> list[Future[None]]:
        """Attempts to store a Batch that a thread has not ended, though nobody waits any more."""
        return [thread for partition in self.partitions for thread in partition.uploads()]

    def retained_since_ms(self, now_ms: int) -> int:
        """Retention has removed nothing that was published at this time or later.

        It never went further than it reaches now, than it reached when the topic was altered last,
        or than it went since the broker started.
        """
        reach_ms = now_ms - self.topic.config.retention_ms
        return max(reach_ms, self.topic.retained_since_ms, self.expired_before_ms)

    async def watermarks(self) -> tuple[list[int], list[int]]:
        """How far the topic is stored, by write and by read partition.

        What is told holds in later lives too; while that cannot be made sure, on a full disk, it
        stands still.
        """
        context, times = self._context, self._context.times
        try:
            await times.promise(context.now())
        except MemqError as exc:
            context.warn("time", f"the watermark stands still, for the time was not saved: {exc}")
        latest_ms = times.saved.wall_ms
        by_write = [min(latest_ms, each.stored_through_ms()) for each in self.partitions]
        told = [each.stored_through_by_read_ms() for each in self.partitions]
        by_read = [min(latest_ms, *of_one) for of_one in zip(*told, strict=True)]
        times.told(max(*by_write, *by_read))
        return by_write, by_read

    def set(self, topic: Topic) -> None:
        """Take over an altered configuration."""
        self.topic = topic
        self.schemas: dict[str, pa.Schema] = {
            name: deserialize_schema(schema) for name, schema in topic.schemas.items()
        }
        self.duplicates.config = topic.config
        written_ms = max((each.processor.written_ms for each in self.partitions), default=0)
        for partition in self.partitions:
            partition.configure(topic.config, topic.schemas, written_ms)


class Topics:
    """Every hosted topic.

    Args:
        catalog: which topics there are, durably.
        context: of the broker.
        on_deleted: told the name of each topic in the moment in which it is gone.
    """

    def __init__(
        self,
        catalog: Catalog,
        context: BrokerContext,
        on_deleted: Callable[[str], None],
    ) -> None:
        self._catalog = catalog
        self._context = context
        self._on_deleted = on_deleted
        self._hosted: dict[str, HostedTopic] = {}
        peers = context.config.peers
        self._elsewhere = {topic: peer.address for peer in peers for topic in peer.topics}
        self._damaged: dict[str, CorruptDataError] = {}
        self._lock = asyncio.Lock()  # one creation, change or deletion at a time
        self._changes: set[asyncio.Task[Any]] = set()
        self._deletions = Deletions(catalog, context)
        self._stopping = False

    def __repr__(self) -> str:
        return f"<Topics [{len(self._hosted)} hosted | {len(self._elsewhere)} elsewhere]>"

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
                    "its folder back, or stop the broker and run `memq recover DATA_DIR`"
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
        if unknown:
            log.warning(
                "the queue holds topics that the catalog does not know, they are left alone: %s",
                ", ".join(sorted(unknown)),
            )
        for queue_topic in sorted(unknown):
            name = queue_topic.rpartition(".")[0]
            if name and name not in self._catalog:
                missing = (
                    f"its file in the catalog is missing, and the queue has {queue_topic!r}. Put "
                    "the file back, or stop the broker and run `memq recover DATA_DIR`"
                )
                self._not_served(name, CorruptDataError(missing))
        taken = {*self._catalog.names(), *self._damaged, *self._elsewhere}
        for config in (*self._context.config.topics, _audit_config()):
            if config.name not in taken:
                await self.create(config)
        self._deletions.start()

    def names(self) -> list[str]:
        """The hosted topics, sorted."""
        return sorted(self._hosted)

    def hosted(self) -> list[HostedTopic]:
        """The hosted topics."""
        return list(self._hosted.values())

    def get(self, name: str, incarnation: str = "") -> HostedTopic:
        """A hosted topic.

        Args:
            name: of the topic.
            incarnation: that the caller means; empty for whichever there is.

        Raises:
            TopicRecreatedError: it is another incarnation that is hosted.
            NotHostedError: another broker hosts it; the error has its address.
            CorruptDataError: its notifications are damaged; restart the broker when that is mended.
            UnknownTopicError: nobody does.
        """
        hosted = self._hosted.get(name)
        if hosted is not None:
            if incarnation and incarnation != hosted.topic.incarnation:
                raise TopicRecreatedError(
                    f"topic {name!r} was deleted and recreated: {incarnation} is over, this is "
                    f"{hosted.topic.incarnation}, with other data under the same offsets. Open the "
                    "client anew, and begin at 'earliest' to miss nothing"
                )
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
        topic, address = hosted.topic, self._context.address
        return TopicInfo(
            config=topic.config,
            schemas=topic.schemas,
            schema_id=topic.schema_id,
            hosts=[address] * topic.config.write_partitions,
            queue_address=address,
            named_partitions=topic.named_partitions,
            created_ms=topic.created_ms,
            incarnation=topic.incarnation,
        )

    async def create(self, config: TopicConfig, request_id: str = "") -> HostedTopic:
        """Make a topic and host it; a request that made it before is answered with it.

        Raises:
            TopicExistsError, ConfigError, SchemaMismatchError, QueueError: it was not made, and
                nothing is left of it.
            UnavailableError: the broker is draining.
        """
        self._check_running()
        return await self._to_its_end(self._create(config, request_id))

    async def alter(self, name: str, options: dict[str, str], schema: bytes | None) -> HostedTopic:
        """Change a topic; it holds from the next Message on.

        Raises:
            UnknownTopicError, ConfigError, SchemaMismatchError, QueueError: nothing has changed.
            UnavailableError: the broker is draining.
        """
        self._check_running()
        return await self._to_its_end(self._alter(name, options, schema))

    async def delete(self, name: str, incarnation: str = "") -> None:
        """Delete a topic; what belongs to it is removed in the background.

        Args:
            name: of the topic.
            incarnation: that is to go; empty for whichever there is.

        Raises:
            TopicRecreatedError: it is another incarnation that is here.
            UnknownTopicError, NotHostedError: it is not here.
            InvalidRequestError: it is internal.
            QueueError: the disk refused; the topic is there as before.
            UnavailableError: the broker is draining.
        """
        self._check_running()
        await self._to_its_end(self._delete(name, incarnation))

    async def stop(self, timeout_s: float) -> bool:
        """Drain and stop everything; True when all that was accepted is stored and acked."""
        self._stopping = True
        await asyncio.gather(*self._changes, return_exceptions=True)
        drained = await asyncio.gather(
            *(self._stop(hosted, timeout_s) for hosted in self._hosted.values())
        )
        await self._deletions.stop()
        return all(drained)

    # -- inside -----------------------------------------------------------------------------

    def _not_served(self, name: str, error: CorruptDataError) -> None:
        log.error("topic %s is damaged and not served: %s", name, error)
        self._damaged[name] = error

    def _check_running(self) -> None:
        if self._stopping:  # what is made or changed now would not be drained
            raise UnavailableError("the broker is draining; retry elsewhere")

    async def _to_its_end(self, change: Coroutine[Any, Any, T]) -> T:
        """Make a change whole, also when the client that asked for it goes away meanwhile."""
        # Whoever asked may have gone away, and with them the net that catches a bug.
        task = self._context.fatal_errors.spawn(self, change, expected=MemqError)
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        return await asyncio.shield(task)

    async def _create(self, config: TopicConfig, request_id: str) -> HostedTopic:
        async with self._lock:
            if config.name in self._elsewhere or config.name in self._damaged:
                self.get(config.name)
            if config.name in self._catalog:
                hosted = self.get(config.name)
                if request_id and request_id == hosted.topic.request_id:
                    return hosted
                raise TopicExistsError(f"topic {config.name!r} exists already")
            topic = self._catalog.new(
                config,
                now_ms=self._context.now().wall_ms,
                incarnation=self._context.runtime.token_hex(INCARNATION_DIGITS // 2),
                request_id=request_id,
            )
            self._catalog.announce(topic)
            try:
                await self._context.queue.create_topic(topic.queue_topic, config.read_partitions)
                hosted = await self._take_up(topic, told_ms=0)
                self._catalog.save(topic)
            except BaseException:
                self._deletions.add(topic)
                raise
            self._hosted[topic.name] = hosted
            self._deletions.spare(topic)
        log.info("topic %s created, incarnation %s", topic.name, topic.incarnation)
        return hosted

    async def _alter(self, name: str, options: dict[str, str], schema: bytes | None) -> HostedTopic:
        async with self._lock:
            hosted = self.get(name)
            retained_since_ms = hosted.retained_since_ms(self._context.now().wall_ms)
            altered = self._catalog.altered(name, options, schema, retained_since_ms)
            added = await self._new_partitions(
                altered,
                hosted.duplicates,
                first=len(hosted.partitions),
                told_ms=self._context.times.saved.wall_ms,
            )
            self._catalog.save(altered)
            hosted.partitions += added
            hosted.set(altered)  # the added ones learn as well what was written down or told
        log.info("topic %s altered: %s%s", name, options, " and its schema" if schema else "")
        return hosted

    async def _delete(self, name: str, incarnation: str) -> None:
        if name == AUDIT_TOPIC:
            raise InvalidRequestError(f"{AUDIT_TOPIC} is internal and cannot be deleted")
        async with self._lock:
            hosted = self.get(name, incarnation)
            self._catalog.delete(name)
            del self._hosted[name]
            self._on_deleted(name)
            await self._stop(hosted, timeout_s=5)
        log.info("topic %s deleted, incarnation %s", name, hosted.topic.incarnation)
        self._deletions.add(hosted.topic, hosted.uploads())

    async def _take_up(self, topic: Topic, told_ms: int) -> HostedTopic:
        """A topic with its write partitions, taken over and running.

        Args:
            topic: the topic.
            told_ms: no watermark of it was told that is later.
        """
        hosted = HostedTopic(topic, self._context)
        hosted.partitions = await self._new_partitions(
            topic, hosted.duplicates, first=0, told_ms=told_ms
        )
        return hosted

    async def _new_partitions(
        self, topic: Topic, duplicates: DuplicateChecker, *, first: int, told_ms: int
    ) -> list[WritePartition]:
        """The write partitions of a topic from the `first` on, taken over and running."""
        config = topic.config
        missing = range(first, config.write_partitions)
        partitions: list[WritePartition] = []
        for number, start in (await take_over(topic, missing, self._context)).items():
            processor = TopicProcessor(
                config,
                number,
                incarnation=topic.incarnation,
                broker_id=self._context.config.broker_id,
                schemas=topic.schemas,
                new_batch_id=self._new_batch_id,
                locate=self._locator(topic, number),
                window=start.window,
                written_ms=max(told_ms, start.written_ms),
            )
            partitions.append(
                WritePartition(processor, topic.queue_topic, self._context, duplicates)
            )
            if start.batches:
                log.info(
                    "%s/%d: taken over, %s",
                    config.name,
                    number,
                    counted(start.batches, "notification"),
                )
        return partitions

    def _new_batch_id(self, running_ms: int) -> str:
        """A unique name that sorts by running time: 12 hex digits of it, 16 random ones."""
        return f"{running_ms:012x}{self._context.runtime.token_hex(8)}"

    def _locator(
        self, topic: Topic, write_partition: int
    ) -> Callable[[str, int, int], tuple[str, str]]:
        def locate(batch_id: str, sealed_ms: int, running_ms: int) -> tuple[str, str]:
            key = object_key(
                BatchKey(
                    cluster_id=self._context.config.cluster_id,
                    topic=topic.name,
                    incarnation=topic.incarnation,
                    write_partition=write_partition,
                    sealed_ms=sealed_ms,
                    batch_id=batch_id,
                    running_ms=running_ms,
                )
            )
            return key, self._context.storage.uri(key)

        return locate

    async def _stop(self, hosted: HostedTopic, timeout_s: float) -> bool:
        drained = await asyncio.gather(
            *(partition.drain(timeout_s) for partition in hosted.partitions)
        )
        for partition in hosted.partitions:
            await partition.close()
        return all(drained)


def _audit_config() -> TopicConfig:
    return TopicConfig.create(AUDIT_TOPIC, **AUDIT_OPTIONS)
