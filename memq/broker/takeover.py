"""Take over write partitions: fence the previous owner, then rebuild what it published."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, NamedTuple

from memq.broker.services import SCAN_BYTES
from memq.core.deduplication import DeduplicationWindow, Place
from memq.core.notification.notification import Notification, decode_notification

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from memq.broker.services import Services
    from memq.core.governor.catalog import Topic


class Rebuilt:
    """What a write partition starts from.

    Attributes:
        window: its published sequences.
        written_ms: the latest time that is written down for one of its Batches.
        batches: how many notifications it was rebuilt from.
    """

    def __init__(self, window_ms: int) -> None:
        self.window = DeduplicationWindow(window_ms)
        self.written_ms = 0
        self.batches = 0


class _Published(NamedTuple):
    place: Place
    running_ms: int
    notification: Notification


async def take_over(
    topic: Topic, write_partitions: range, services: Services
) -> dict[int, Rebuilt]:
    """Fence some write partitions of a topic, then rebuild their windows from the queue.

    Only after the fence is everything that an earlier owner published visible, and nothing can be
    added by it any more; so the order of the two steps is what makes the windows complete.

    Raises:
        MemqError: the queue cannot be fenced or read.
    """
    config, queue_topic = topic.config, topic.queue_topic
    for write_partition in write_partitions:
        await services.queue.fence(queue_topic, write_partition)
    rebuilt = {number: Rebuilt(config.dedup_window_ms) for number in write_partitions}
    since_ms = services.now().mono_ms - config.dedup_window_ms
    async for published in _in_order(queue_topic, config.read_partitions, since_ms, services):
        notification = published.notification
        target = rebuilt.get(notification.write_partition)
        if target is not None:
            target.window.publish(notification.producers, published.place, published.running_ms)
            target.written_ms = max(target.written_ms, notification.sealed_ms)
            target.batches += 1
    return rebuilt


async def _in_order(
    queue_topic: str, read_partitions: int, since_ms: int, services: Services
) -> AsyncIterator[_Published]:
    """What was published to any read partition since then, each write partition's in order.

    One after the other, the read partitions would show a window more gaps than there ever were.
    """
    heads: list[tuple[str, int, _Published, AsyncIterator[_Published]]] = []
    at_once_bytes = SCAN_BYTES // read_partitions
    for partition in range(read_partitions):
        following = _since(queue_topic, partition, since_ms, services, at_once_bytes)
        await _push(heads, partition, following)
    while heads:
        _, partition, published, following = heapq.heappop(heads)
        yield published
        await _push(heads, partition, following)


async def _push(
    heads: list[tuple[str, int, _Published, AsyncIterator[_Published]]],
    partition: int,
    following: AsyncIterator[_Published],
) -> None:
    published = await anext(following, None)
    if published is not None:
        heapq.heappush(heads, (published.place.batch_id, partition, published, following))


async def _since(
    queue_topic: str, partition: int, since_ms: int, services: Services, at_once_bytes: int
) -> AsyncIterator[_Published]:
    offset = await services.queue.offset_since(queue_topic, partition, since_ms)
    entries = services.entries(queue_topic, partition, offset, at_once_bytes=at_once_bytes)
    async for entry in entries:
        notification = decode_notification(entry.payload)
        place = Place(partition, entry.offset, notification.batch_id)
        yield _Published(place, entry.running_ms, notification)
