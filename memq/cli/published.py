"""The notifications of a topic, page by page."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from memq.cli.connect import check_reachable
from memq.cli.ranges import Range, check_held
from memq.client.cluster import Cluster
from memq.client.sync import EventLoopThread
from memq.client.topic import TopicClient
from memq.core.notification.notification import decode_notification

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memq.core.notification.notification import Notification
    from memq.core.wire.messages import PartitionOffsets

PAGE_ENTRIES = 500  # about 500 KB; a topic may hold millions


class Published(NamedTuple):
    """A notification and where it stands."""

    partition: int
    offset: int
    notification: Notification


class PublishedBatches:
    """The Batches of a topic that are held now, or those of one range.

    Args:
        loop: to ask on.
        queue: of the topic.
        wanted: the only range to go through; None for all.

    Attributes:
        ranges: what to go through.

    Raises:
        InvalidRequestError: there is no such partition.
        OffsetOutOfRangeError: the range is not held in full.
    """

    def __init__(self, loop: EventLoopThread, queue: TopicClient, wanted: Range | None) -> None:
        self._loop = loop
        self._queue = queue
        held = self.held()
        if wanted is not None:
            check_held(queue.topic, wanted, held)
            self.ranges = [wanted]
        else:
            self.ranges = [Range(each.partition, each.start, each.end) for each in held]

    def __repr__(self) -> str:
        return f"<PublishedBatches {self._queue.topic} {self.ranges}>"

    def held(self) -> list[PartitionOffsets]:
        """What is held of each partition by now."""
        return self._loop.run(self._queue.offsets())

    def __len__(self) -> int:
        """Offsets to go through."""
        return sum(each.end - each.start for each in self.ranges)

    def __iter__(self) -> Iterator[Published]:
        """The notifications, fetched as the iteration goes.

        Raises:
            OffsetOutOfRangeError: an offset is not held.
            CorruptDataError: something in the queue is no notification.
        """
        for partition, start, end in self.ranges:
            offset = start
            while offset < end:
                page = self._loop.run(
                    self._queue.page({partition: offset}, max_entries=PAGE_ENTRIES)
                )
                if not page.entries:  # Kafka's offsets have gaps, at the end as well
                    break
                for entry in page.entries:
                    if entry.offset < end:
                        yield Published(partition, entry.offset, decode_notification(entry.payload))
                offset = page.entries[-1].offset + 1


@contextmanager
def published_batches(
    bootstrap: str, token: str, topic: str, wanted: Range | None
) -> Iterator[PublishedBatches]:
    """The Batches of a topic, while the connection is open.

    Raises:
        UnknownTopicError: there is no such topic.
        MemqError: the brokers cannot be asked, or as `PublishedBatches`.
    """
    check_reachable(bootstrap)
    cluster = Cluster(bootstrap, token=token, client="memq batch")
    loop = EventLoopThread("memq-published")
    try:
        yield PublishedBatches(loop, TopicClient(cluster, topic), wanted)
    finally:
        loop.run(cluster.close())
        loop.close()
