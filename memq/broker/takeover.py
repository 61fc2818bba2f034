"""Take over write partitions: fence the previous owner, then rebuild what it published."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from memq.broker.context import SCAN_BYTES
from memq.core.deduplication import BatchRef, DeduplicationWindow
from memq.storage.keys import opened_ms

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from memq.broker.context import BrokerContext
    from memq.core.governor.topics import Topic
    from memq.core.notification import Notification
    from memq.core.queue import QueueEntry


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
    """What was published to any read partition since then, each write partition's in order.

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
