"""A topic as a broker serves it, and how write partitions of it are taken over and run here."""

from __future__ import annotations

import asyncio
import heapq
import logging
from typing import TYPE_CHECKING

from memq.broker.context import SCAN_BYTES
from memq.broker.duplicates import DuplicateChecker
from memq.broker.write_partition import WritePartition
from memq.core.deduplication import BatchRef, DeduplicationWindow
from memq.core.format.schema import deserialize_schema
from memq.core.log_events import event
from memq.core.queue import GROUPS
from memq.core.units import counted
from memq.core.write_partition import TopicProcessor
from memq.errors import MemqError
from memq.storage.keys import BatchKey, batch_id_at, object_key, opened_ms

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from concurrent.futures import Future

    import pyarrow as pa

    from memq.broker.context import BrokerContext
    from memq.broker.metrics import Metrics
    from memq.core.governor.topics import Topic
    from memq.core.notification import Notification
    from memq.core.queue import QueueEntry

log = logging.getLogger(__name__)

NOT_OWNED = -1
"""What is told of the watermark of a write partition that another broker owns."""


class HostedTopic:
    """A topic that this broker serves, with those of its write partitions that run here.

    Attributes:
        topic: its configuration and schemas.
        schemas: the schemas it accepts, ready for checking, by schema id.
        partitions: the write partitions that run here, by number.
        coordinated: whether this broker keeps its groups, and sees to retention and orphans; so it
            is with the owner of write partition 0.
        group_changes: counts changes of its groups' offsets, as far as they are known here.
        messages_received: Messages that came since they were last counted.
        bytes_received: their bytes.
        expired_before_ms: retention has removed what was published before this time.
        removing: is held while notifications are removed.
        sizes: by read partition, from and to which offset Batches were counted, and their bytes.
    """

    def __init__(self, topic: Topic, context: BrokerContext) -> None:
        self.duplicates = DuplicateChecker(topic.config, topic.queue_topic, context)
        self._context = context
        self.messages_received = 0
        self.bytes_received = 0
        self.expired_before_ms = 0
        self.removing = asyncio.Lock()
        self.sizes: dict[int, tuple[int, int, int]] = {}
        self.partitions: dict[int, WritePartition] = {}
        self.coordinated = False
        self.group_changes = 0
        self.set(topic)

    def __repr__(self) -> str:
        topic = self.topic
        running = f"{len(self.partitions)} of {topic.config.write_partitions}"
        return f"<HostedTopic {topic.queue_topic} [{running} write partitions]>"

    @property
    def retains(self) -> bool:
        """Whether this broker certainly owns its retention and orphans now.

        No fence keeps a deletion out, and another owner's clients may have made retention longer.
        """
        return self.coordinated and self._context.leased()

    def count_received(self, metrics: Metrics) -> None:
        """Add what came to the counters, which would cost too much for each Message."""
        metrics.messages.labels(self.topic.name).inc(self.messages_received)
        metrics.bytes.labels(self.topic.name).inc(self.bytes_received)
        self.messages_received = self.bytes_received = 0

    def uploads(self) -> list[Future[None]]:
        """Attempts to store a Batch that a thread has not ended, though nobody waits any more."""
        return [thread for each in self.partitions.values() for thread in each.uploads()]

    def retained_since_ms(self, now_ms: int) -> int:
        """Retention has removed nothing that was published at this time or later.

        It never went further than it reaches now, also by the clock of another broker, than it
        reached when the topic was altered last, or than it went since the broker started.
        """
        config = self.topic.config
        shortest_ms = config.dedup_window_ms if config.retention_bytes else config.retention_ms
        reach_ms = now_ms - shortest_ms + self._context.clocks_differ_ms
        return max(reach_ms, self.topic.retained_since_ms, self.expired_before_ms)

    async def watermarks(self) -> tuple[list[int], list[int]]:
        """Return how far the topic is stored, by write and by read partition, as far as it runs
        here.

        What is told holds in later lives and at later owners too; while that cannot be made sure,
        on a full disk, it stands still. `NOT_OWNED` stands for a write partition that does not run
        here, and for every read partition when none does.

        Raises:
            QueueError: the time cannot be saved, and what was saved here does not reach to what
                another broker has told of a write partition that came from there; or what was
                published is not seen by everybody yet.
        """
        context, times = self._context, self._context.times
        try:
            await times.promise(context.now())
        except MemqError as exc:
            if times.saved.wall_ms < times.told_ms:
                raise
            context.warn("time", f"watermark not advanced, cannot save the time: {exc}")
        latest_ms = times.saved.wall_ms
        # A broker that has fenced one of them meanwhile tells its watermark; see `owns`. One that
        # takes over a closed one finds out what became of what it had under way.
        here = {
            number: partition
            for number, partition in self.partitions.items()
            if not partition.closed and context.queue.owns(self.topic.queue_topic, number)
        }
        by_write = [NOT_OWNED] * self.topic.config.write_partitions
        for number, partition in here.items():
            by_write[number] = min(latest_ms, partition.stored_through_ms())
        told = [each.stored_through_by_read_ms() for each in here.values()]
        by_read = [min(latest_ms, *of_one) for of_one in zip(*told, strict=True)]
        times.told(max([*by_write, *by_read]))
        return by_write, by_read or [NOT_OWNED] * self.topic.config.read_partitions

    def set(self, topic: Topic) -> None:
        """Take over an altered configuration."""
        self.topic = topic
        self.schemas: dict[str, pa.Schema] = {
            name: deserialize_schema(schema) for name, schema in topic.schemas.items()
        }
        self.duplicates.config = topic.config
        running = self.partitions.values()
        written_ms = max((each.processor.written_ms for each in running), default=0)
        for partition in running:
            partition.configure(topic.config, topic.schemas, written_ms)

    def begin(self, topic: Topic, rebuilt: Mapping[int, Rebuilt], told_ms: int) -> None:
        """Let write partitions run that were taken over.

        Args:
            topic: as it is now; it may have more of them than before.
            rebuilt: what each of them starts from.
            told_ms: no watermark of them was told that is later.
        """
        context, config = self._context, topic.config
        context.times.told(told_ms)
        for number, start in rebuilt.items():
            processor = TopicProcessor(
                config,
                number,
                topic_id=topic.topic_id,
                broker_id=context.config.broker_id,
                schemas=topic.schemas,
                new_batch_id=self._new_batch_id,
                locate=self._locator(topic, number),
                window=start.window,
                written_ms=max(told_ms, start.written_ms),
                opened_ms=start.opened_ms,
            )
            self.partitions[number] = WritePartition(
                processor, topic.queue_topic, context, self.duplicates
            )
            found = counted(start.batches, "notification")
            taken = event(
                "write_partition_taken_over",
                broker=context.config.broker_id,
                topic=config.name,
                write_partition=number,
            )
            log.info("%s/%d: taken over, %s", config.name, number, found, extra=taken)
        if GROUPS in rebuilt:
            self.coordinated = True
            self.group_changes += 1  # by others, before

    async def stop(self, timeout_s: float, *write_partitions: int) -> bool:
        """Drain and close write partitions that run here; all of them when none is named.

        Returns:
            Whether all that was accepted is stored and acked.
        """
        running = self.partitions
        stopping = [running[each] for each in write_partitions or running if each in running]
        drained = await asyncio.gather(*(partition.drain(timeout_s) for partition in stopping))
        for partition in stopping:
            await partition.close()
        return all(drained)

    def _new_batch_id(self, running_ms: int) -> str:
        return batch_id_at(running_ms, self._context.runtime.token_hex(8))

    def _locator(
        self, topic: Topic, write_partition: int
    ) -> Callable[[str, int, int], tuple[str, str]]:
        def locate(batch_id: str, sealed_ms: int, running_ms: int) -> tuple[str, str]:
            key = object_key(
                BatchKey(
                    cluster_id=self._context.config.cluster_id,
                    topic=topic.name,
                    topic_id=topic.topic_id,
                    write_partition=write_partition,
                    sealed_ms=sealed_ms,
                    batch_id=batch_id,
                    running_ms=running_ms,
                )
            )
            return key, self._context.storage.uri(key)

        return locate


# -- take over --------------------------------------------------------------------------------


class Rebuilt:
    """What a write partition starts from.

    Attributes:
        window: its published sequences.
        written_ms: the latest time that is written down for one of its Batches.
        opened_ms: the latest running time in the id of one of them.
        batches: how many notifications it was rebuilt from.
    """

    def __init__(self, window_ms: int) -> None:
        self.window = DeduplicationWindow(window_ms)
        self.written_ms = 0
        self.opened_ms = -1
        self.batches = 0


async def take_over(
    topic: Topic, write_partitions: Sequence[int], context: BrokerContext
) -> dict[int, Rebuilt]:
    """Fence some write partitions of a topic, then rebuild their windows from the queue.

    Only after the fence is everything that an earlier owner published visible, and nothing can be
    added by it any more; so the order of the two steps is what makes the windows complete.

    Raises:
        MemqError: the queue cannot be fenced or read.
    """
    if not write_partitions:
        return {}
    config, queue_topic = topic.config, topic.queue_topic
    await context.queue.fence(queue_topic, *write_partitions)
    rebuilt = {number: Rebuilt(config.dedup_window_ms) for number in write_partitions}
    since_ms = context.now().mono_ms - config.dedup_window_ms - context.clocks_differ_ms
    published = _in_order(queue_topic, config.read_partitions, since_ms, context)
    async for partition, entry, notification in published:
        target = rebuilt.get(notification.write_partition)
        if target is not None:
            batch = BatchRef(partition, entry.offset, notification.batch_id)
            target.window.publish(notification.producers, batch, entry.running_ms)
            target.written_ms = max(target.written_ms, notification.sealed_ms)
            target.opened_ms = max(target.opened_ms, opened_ms(notification.batch_id))
            target.batches += 1
    return rebuilt


async def _in_order(
    queue_topic: str, read_partitions: int, since_ms: int, context: BrokerContext
) -> AsyncIterator[tuple[int, QueueEntry, Notification]]:
    """Yield what was published to any read partition since then, each write partition's in order.

    One after the other, the read partitions would show a window more gaps than there ever were.
    """
    at_once_bytes = SCAN_BYTES // read_partitions
    heads: list[tuple[str, int, QueueEntry, Notification]] = []  # the next of each, by batch id
    following = [
        context.notifications_since(queue_topic, partition, since_ms, at_once_bytes=at_once_bytes)
        for partition in range(read_partitions)
    ]

    async def push(partition: int) -> None:
        async for entry, notification in following[partition]:
            heapq.heappush(heads, (notification.batch_id, partition, entry, notification))
            return

    for partition in range(read_partitions):
        await push(partition)
    while heads:
        _, partition, entry, notification = heapq.heappop(heads)
        yield partition, entry, notification
        await push(partition)
