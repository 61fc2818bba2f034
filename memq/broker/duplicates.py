"""Answers repeats of published Messages, after making sure that they are repeats.

A producer with an id of its own choice may have a bug and send other content under an old sequence.
Acking that as a repeat would lose acked data, so the CRC32C of the published Message is looked up
in the index of its Batch first. Repeats come after a crash or a lost connection, never in the
steady state, and the last few indexes are kept, so this is cheap where it matters.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING

from memq.core.deduplication import Place
from memq.core.format.reader import read_index
from memq.core.notification.notification import Notification, decode_notification
from memq.core.storage.keys import key_of_uri
from memq.core.wire.messages import Write, WriteAnswer
from memq.errors import (
    MemqError,
    ObjectNotFoundError,
    OffsetOutOfRangeError,
    SequenceConflictError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from memq.broker.services import Services
    from memq.broker.write_partition import Reply
    from memq.core.storage.handler import StorageHandler
    from memq.core.topic import TopicConfig

MAX_INDEXES = 16  # each up to a few hundred KiB
MAX_LOOKUPS = 8  # at a time, per topic

_Key = tuple[str, int, int]


class DuplicateChecker:
    """Finds published Messages of one topic by name.

    Args:
        config: of the topic; set anew when it is altered.
        queue_topic: where its notifications are.
        services: the broker's seams.
    """

    def __init__(self, config: TopicConfig, queue_topic: str, services: Services) -> None:
        self.config = config
        self._queue_topic = queue_topic
        self._services = services
        self._indexes: OrderedDict[str, dict[_Key, int]] = OrderedDict()
        self._slots = asyncio.Semaphore(MAX_LOOKUPS)

    async def answer(self, request: Write, crc: int, place: Place | None, reply: Reply) -> None:
        """Ack a repeat with the place of the original; refuse other content under its name."""
        try:
            async with self._slots:
                place, published_crc = await self._find(request, place)
        except MemqError as exc:
            reply.fail(exc)
            return
        if published_crc is not None and published_crc != crc:
            reply.fail(
                SequenceConflictError(
                    f"sequence {request.sequence} of producer {request.producer_id!r}, epoch "
                    f"{request.epoch}, was published with other content; a stable producer id "
                    "must send the same Messages again, or use a higher epoch"
                )
            )
        else:
            reply.answer(WriteAnswer(**place._asdict(), duplicate=True) if place else _UNKNOWN)

    async def _find(self, request: Write, place: Place | None) -> tuple[Place | None, int | None]:
        """Place and CRC of the published Message; None for what retention has removed."""
        notification: Notification | None = None
        if place is not None:
            notification = await self._notification(place)
        else:
            async for found, candidate in self._recent(request):
                place, notification = found, candidate
        if notification is None:
            return place, None
        try:
            index = await self._index(notification)
        except ObjectNotFoundError:
            return place, None
        return place, index.get((request.producer_id, request.epoch, request.sequence))

    async def _notification(self, place: Place) -> Notification | None:
        try:
            entries = await self._services.queue.fetch(
                self._queue_topic, place.partition, place.offset, max_entries=1, max_bytes=1
            )
        except OffsetOutOfRangeError:
            return None
        return decode_notification(entries[0].payload) if entries else None

    async def _recent(self, request: Write) -> AsyncIterator[tuple[Place, Notification]]:
        """Notifications inside the window that hold the Message; there is one or none."""
        since_ms = self._services.now().mono_ms - self.config.dedup_window_ms
        for partition in range(self.config.read_partitions):
            offset = await self._services.queue.offset_since(self._queue_topic, partition, since_ms)
            async for entry in self._services.entries(self._queue_topic, partition, offset):
                notification = decode_notification(entry.payload)
                if _holds(notification, request):
                    yield Place(partition, entry.offset, notification.batch_id), notification

    async def _index(self, notification: Notification) -> dict[_Key, int]:
        index = self._indexes.get(notification.batch_id)
        if index is None:
            index = await asyncio.get_running_loop().run_in_executor(
                self._services.executor, _read_crcs, notification, self._services.storage
            )
            self._indexes[notification.batch_id] = index
            if len(self._indexes) > MAX_INDEXES:
                self._indexes.popitem(last=False)
        return index


_UNKNOWN = WriteAnswer(duplicate=True)


def _holds(notification: Notification, request: Write) -> bool:
    return notification.write_partition == request.write_partition and any(
        run.producer_id == request.producer_id
        and run.epoch == request.epoch
        and run.first <= request.sequence <= run.last
        for run in notification.producers
    )


def _read_crcs(notification: Notification, storage: StorageHandler) -> dict[_Key, int]:
    key = key_of_uri(notification.uri)
    index = read_index(
        lambda start, length: storage.get_range(key, start, length), notification.size_bytes
    )
    return {(e.producer_id, e.epoch, e.sequence): e.crc32c for e in index.entries}
