"""Take over write partitions: fence the previous owner, then rebuild what it published."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memq.core.dedup import DedupWindow, Place
from memq.core.notification.notification import decode_notification

if TYPE_CHECKING:
    from memq.broker.services import Services
    from memq.core.topic import TopicConfig


class Rebuilt:
    """What a write partition starts from.

    Attributes:
        window: its published sequences.
        stored_through_ms: its watermark.
        batches: how many notifications it was rebuilt from.
    """

    def __init__(self, window_ms: int) -> None:
        self.window = DedupWindow(window_ms)
        self.stored_through_ms = 0
        self.batches = 0


async def take_over(
    config: TopicConfig, write_partitions: range, services: Services
) -> dict[int, Rebuilt]:
    """Fence some write partitions of a topic, then rebuild their windows from the queue.

    Only after the fence is everything that an earlier owner published visible, and nothing can be
    added by it any more; so the order of the two steps is what makes the windows complete.

    Raises:
        MemqError: the queue cannot be fenced or read.
    """
    for write_partition in write_partitions:
        await services.queue.fence(config.name, write_partition)
    rebuilt = {number: Rebuilt(config.dedup_window_ms) for number in write_partitions}
    since_ms = services.now().wall_ms - config.dedup_window_ms
    for partition in range(config.read_partitions):
        offset = await services.queue.offset_at(config.name, partition, since_ms)
        async for entry in services.entries(config.name, partition, offset):
            notification = decode_notification(entry.payload)
            target = rebuilt.get(notification.write_partition)
            if target is None:
                continue
            place = Place(partition, entry.offset, notification.batch_id)
            target.window.publish(notification.producers, place, notification.sealed_ms)
            target.stored_through_ms = max(target.stored_through_ms, notification.stored_through_ms)
            target.batches += 1
    return rebuilt
