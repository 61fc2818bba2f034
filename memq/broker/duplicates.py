"""Makes sure that the duplicate of a published Message is one.

A producer with an id of its own choice may have a bug and send other content under an old sequence.
Acking that as a duplicate would lose acked data, so the CRC32C of the published Message is looked
up in the index of its Batch first. Duplicates come after a crash or a lost connection, never in the
steady state, and the last few indexes are kept, so this is cheap where it matters.
"""

from __future__ import annotations

import asyncio
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from memq.core.deduplication import BatchRef
from memq.core.format.reader import read_index
from memq.core.notification import Notification, decode_notification
from memq.core.wire.messages import Write, WriteAnswer
from memq.errors import ObjectNotFoundError, OffsetOutOfRangeError, SequenceConflictError
from memq.storage.keys import key_of_uri

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from memq.broker.context import BrokerContext
    from memq.core.topic import TopicConfig
    from memq.core.write_partition import MessageKey
    from memq.storage.handler import StorageHandler

MAX_INDEXES = 16  # each up to a few hundred KiB
MAX_LOOKUPS = 8  # at a time, per topic


class DuplicateChecker:
    """Finds published Messages of one topic by name.

    Args:
        config: of the topic; set again when it is altered.
        queue_topic: where its notifications are.
        context: of the broker.
    """

    def __init__(self, config: TopicConfig, queue_topic: str, context: BrokerContext) -> None:
        self.config = config
        self._queue_topic = queue_topic
        self._context = context
        self._crcs = lru_cache(MAX_INDEXES)(partial(_read_crcs, context.storage))
        self._slots = asyncio.Semaphore(MAX_LOOKUPS)

    async def check(self, request: Write, crc: int, batch: BatchRef | None) -> WriteAnswer:
        """Make the ack of a duplicate: where its original is, if that is still known.

        Args:
            request: of the Message.
            crc: CRC32C of its body.
            batch: where the original is; None when that is no longer remembered.

        Raises:
            SequenceConflictError: what was published under its name has other content.
            MemqError: queue or storage cannot be read.
        """
        async with self._slots:
            batch, published_crc = await self._find(request, batch)
        if published_crc is not None and published_crc != crc:
            raise SequenceConflictError(
                f"sequence {request.sequence} of producer {request.producer_id!r}, epoch "
                f"{request.epoch}, was published with other content; a stable producer id "
                "must send the same Messages again; for others, use a higher epoch (memq produce "
                "--epoch)"
            )
        return WriteAnswer(**batch._asdict() if batch else {}, duplicate=True)

    async def _find(
        self, request: Write, batch: BatchRef | None
    ) -> tuple[BatchRef | None, int | None]:
        """Batch and CRC of the published Message; None for what retention has removed."""
        notification: Notification | None = None
        if batch is not None:
            notification = await self._notification(batch)
        else:
            async for found, candidate in self._recent(request):
                batch, notification = found, candidate
        if notification is None:
            return batch, None
        try:
            crcs = await asyncio.get_running_loop().run_in_executor(
                self._context.reads,
                self._crcs,
                key_of_uri(notification.uri),
                notification.size_bytes,
            )
        except ObjectNotFoundError:
            return batch, None
        return batch, crcs.get((request.producer_id, request.epoch, request.sequence))

    async def _notification(self, batch: BatchRef) -> Notification | None:
        try:
            entries = await self._context.queue.fetch(
                self._queue_topic, batch.partition, batch.offset, max_entries=1, max_bytes=1
            )
        except OffsetOutOfRangeError:
            return None
        return decode_notification(entries[0].payload) if entries else None

    async def _recent(self, request: Write) -> AsyncIterator[tuple[BatchRef, Notification]]:
        """Notifications inside the window that hold the Message; there is one or none."""
        since_ms = self._context.now().mono_ms - self.config.dedup_window_ms
        for partition in range(self.config.read_partitions):
            found = self._context.notifications_since(self._queue_topic, partition, since_ms)
            async for entry, notification in found:
                if _holds(notification, request):
                    yield BatchRef(partition, entry.offset, notification.batch_id), notification


def _holds(notification: Notification, request: Write) -> bool:
    return notification.write_partition == request.write_partition and any(
        run.producer_id == request.producer_id
        and run.epoch == request.epoch
        and run.first <= request.sequence <= run.last
        for run in notification.producers
    )


def _read_crcs(storage: StorageHandler, key: str, size_bytes: int) -> dict[MessageKey, int]:
    index = read_index(lambda start, length: storage.get_range(key, start, length), size_bytes)
    return {(e.producer_id, e.epoch, e.sequence): e.crc32c for e in index.entries}
