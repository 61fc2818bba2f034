"""What the broker answers to each request but Write: one small function each."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from memq.core.storage.keys import key_of_uri, parse_object_key
from memq.core.topic import TopicConfig
from memq.core.wire import messages as m
from memq.errors import (
    InvalidRequestError,
    OffsetOutOfRangeError,
    UnknownGroupError,
    UnknownTopicError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from memq.broker.server import Broker

MAX_WAIT_MS = 60_000  # longest long poll; a client asks again
MAX_FETCH_ENTRIES = 10_000
MAX_FETCH_BYTES = 16 << 20
BATCH_READS = 4  # FetchBatch requests that hold a body at a time; the others wait

Outcome = tuple[m.Struct, Any]

_encode = msgspec.msgpack.Encoder().encode


class Handlers:
    """Answers requests on behalf of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._services = broker.services
        self._batch_reads = asyncio.Semaphore(BATCH_READS)
        self._table: dict[type[m.Struct], Callable[[Any], Awaitable[m.Struct]]] = {
            m.Metadata: self._metadata,
            m.CreateTopic: self._create_topic,
            m.AlterTopic: self._alter_topic,
            m.DeleteTopic: self._delete_topic,
            m.FetchOffsets: self._fetch_offsets,
            m.FetchWatermark: self._fetch_watermark,
            m.CommitOffsets: self._commit_offsets,
            m.FetchCommitted: self._fetch_committed,
            m.GroupHeartbeat: self._group_heartbeat,
            m.LeaveGroup: self._leave_group,
            m.ListGroups: self._list_groups,
            m.DeleteGroup: self._delete_group,
        }

    @asynccontextmanager
    async def serve(self, request: m.Struct) -> AsyncIterator[Outcome]:
        """Answer and body of a request; the body may be held until the context ends."""
        match request:
            case m.FetchNotifications():
                yield await self._fetch_notifications(request)
            case m.FetchBatch():
                async with self._batch_reads:
                    yield m.FetchBatchAnswer(), await self._fetch_batch(request)
            case _:
                yield await self._table[type(request)](request), b""

    def _mono_ms(self) -> int:
        return self._services.now().mono_ms

    # -- topics -----------------------------------------------------------------------------

    async def _metadata(self, request: m.Metadata) -> m.MetadataAnswer:
        topics = self._broker.topics
        names = topics.names() if request.topics is None else request.topics
        if request.create and self._broker.config.auto_create_topics:
            await self._create_missing(names)
        return m.MetadataAnswer(
            cluster_id=self._broker.config.cluster_id,
            brokers=self._broker.brokers(),
            topics=[topics.info(topics.get(name)) for name in names],
        )

    async def _create_missing(self, names: list[str]) -> None:
        for name in names:
            try:
                self._broker.topics.get(name)
            except UnknownTopicError:
                await self._broker.topics.create(TopicConfig.create(name))

    async def _create_topic(self, request: m.CreateTopic) -> m.TopicAnswer:
        topics = self._broker.topics
        return m.TopicAnswer(topic=topics.info(await topics.create(request.config)))

    async def _alter_topic(self, request: m.AlterTopic) -> m.TopicAnswer:
        topics = self._broker.topics
        hosted = await topics.alter(request.topic, request.options, request.schema)
        return m.TopicAnswer(topic=topics.info(hosted))

    async def _delete_topic(self, request: m.DeleteTopic) -> m.Done:
        await self._broker.topics.delete(request.topic)
        self._broker.groups.forget_topic(request.topic)
        return m.Done()

    # -- reading ----------------------------------------------------------------------------

    def _check_partition(self, topic: str, partition: int) -> None:
        count = self._broker.topics.get(topic).topic.config.read_partitions
        if not 0 <= partition < count:
            raise InvalidRequestError(
                f"topic {topic!r} has no read partition {partition}; it has 0 to {count - 1}"
            )

    async def _fetch_notifications(self, request: m.FetchNotifications) -> Outcome:
        queue, topic = self._services.queue, request.topic
        self._broker.topics.get(topic)
        positions = {position.partition: position.offset for position in request.positions}
        for partition, offset in positions.items():
            self._check_partition(topic, partition)
            await self._check_offset(topic, partition, offset)
        if not positions:
            raise InvalidRequestError("FetchNotifications without a position; name partitions")
        wait_ms = min(request.max_wait_ms, MAX_WAIT_MS)
        if wait_ms > 0:
            await queue.wait(topic, positions, wait_ms / 1000)
        entries = await self._entries(request, positions)
        ends = [
            m.Position(partition, (await queue.offsets(topic, partition))[1])
            for partition in positions
        ]
        return m.FetchNotificationsAnswer(ends=ends), _encode(entries)

    async def _entries(
        self, request: m.FetchNotifications, positions: dict[int, int]
    ) -> list[m.NotificationEntry]:
        """Notifications of all the partitions, sharing the limits of the request fairly."""
        found: list[m.NotificationEntry] = []
        entries_left = max(1, min(request.max_entries, MAX_FETCH_ENTRIES))
        bytes_left = max(1, min(request.max_bytes, MAX_FETCH_BYTES))
        for waiting, (partition, offset) in zip(
            range(len(positions), 0, -1), positions.items(), strict=True
        ):
            if entries_left <= 0 or bytes_left <= 0:
                break
            entries = await self._services.queue.fetch(
                request.topic,
                partition,
                offset,
                max_entries=max(1, entries_left // waiting),
                max_bytes=max(1, bytes_left // waiting),
            )
            found += [m.NotificationEntry(partition, *entry) for entry in entries]
            entries_left -= len(entries)
            bytes_left -= sum(len(entry.payload) for entry in entries)
        return found

    async def _check_offset(self, topic: str, partition: int, offset: int) -> None:
        start, end = await self._services.queue.offsets(topic, partition)
        if not start <= offset <= end:
            raise OffsetOutOfRangeError(
                f"offset {offset} of {topic}/{partition} is not held: {start} to {end} are"
            )

    async def _fetch_offsets(self, request: m.FetchOffsets) -> m.FetchOffsetsAnswer:
        queue, topic = self._services.queue, request.topic
        config = self._broker.topics.get(topic).topic.config
        partitions: list[m.PartitionOffsets] = []
        for partition in range(config.read_partitions):
            start, end = await queue.offsets(topic, partition)
            at = None
            if request.at_ms is not None:
                at = await queue.offset_at(topic, partition, request.at_ms)
            partitions.append(m.PartitionOffsets(partition=partition, start=start, end=end, at=at))
        return m.FetchOffsetsAnswer(partitions=partitions)

    async def _fetch_watermark(self, request: m.FetchWatermark) -> m.WatermarkAnswer:
        hosted = self._broker.topics.get(request.topic)
        config = hosted.topic.config
        marks = [partition.stored_through_ms() for partition in hosted.partitions]
        by_read: list[list[int]] = [[] for _ in range(config.read_partitions)]
        for number, mark in enumerate(marks):
            for partition in config.read_partitions_of(number):
                by_read[partition].append(mark)
        least = min(marks)
        return m.WatermarkAnswer(
            stored_through_ms=least,
            write_partitions=marks,
            read_partitions=[min(feeders, default=least) for feeders in by_read],
        )

    async def _fetch_batch(self, request: m.FetchBatch) -> Any:
        limit = self._broker.config.max_body_bytes
        if not 0 < request.length <= limit or request.start < 0:
            raise InvalidRequestError(
                f"range of {request.length} bytes from {request.start}: ask for 1 to {limit} "
                "bytes at a time, from 0 on"
            )
        storage = self._services.storage
        self._broker.topics.get(request.topic)
        key = key_of_uri(request.uri)
        parsed = parse_object_key(key)
        if parsed is None or parsed.topic != request.topic or storage.uri(key) != request.uri:
            raise InvalidRequestError(
                f"{request.uri!r} is no Batch of topic {request.topic!r} in this broker's storage"
            )
        return await asyncio.get_running_loop().run_in_executor(
            self._services.executor, storage.get_range, key, request.start, request.length
        )

    # -- groups -----------------------------------------------------------------------------

    async def _commit_offsets(self, request: m.CommitOffsets) -> m.Done:
        topic = request.topic
        for position in request.offsets:
            self._check_partition(topic, position.partition)
            _, end = await self._services.queue.offsets(topic, position.partition)
            if not 0 <= position.offset <= end:  # below the start: retention overtook the consumer
                raise OffsetOutOfRangeError(
                    f"cannot commit offset {position.offset} of {topic}/{position.partition}, "
                    f"which ends at {end}"
                )
        self._broker.groups.check_commit(request, self._mono_ms())
        offsets = {position.partition: position.offset for position in request.offsets}
        await self._services.queue.commit(request.group, topic, offsets)
        return m.Done()

    async def _fetch_committed(self, request: m.FetchCommitted) -> m.FetchCommittedAnswer:
        self._broker.topics.get(request.topic)
        offsets = await self._services.queue.committed(request.group, request.topic)
        return m.FetchCommittedAnswer(offsets=_positions(offsets))

    async def _group_heartbeat(self, request: m.GroupHeartbeat) -> m.GroupHeartbeatAnswer:
        config = self._broker.topics.get(request.topic).topic.config
        return self._broker.groups.heartbeat(request, config.read_partitions, self._mono_ms())

    async def _leave_group(self, request: m.LeaveGroup) -> m.Done:
        self._broker.groups.leave(request.group, request.topic, request.member_id, self._mono_ms())
        return m.Done()

    async def _list_groups(self, request: m.ListGroups) -> m.ListGroupsAnswer:
        topics = self._broker.topics
        names = topics.names() if request.topic is None else [topics.get(request.topic).topic.name]
        groups = [
            await self._group(group, name) for name in names for group in await self._in(name)
        ]
        return m.ListGroupsAnswer(groups=groups)

    async def _in(self, topic: str) -> list[str]:
        stored = await self._services.queue.groups(topic)
        live = self._broker.groups.groups(self._mono_ms())
        return sorted({*stored, *(group for group, of in live if of == topic)})

    async def _group(self, group: str, topic: str) -> m.GroupInfo:
        return m.GroupInfo(
            group=group,
            topic=topic,
            offsets=_positions(await self._services.queue.committed(group, topic)),
            members=self._broker.groups.members(group, topic, self._mono_ms()),
        )

    async def _delete_group(self, request: m.DeleteGroup) -> m.Done:
        self._broker.topics.get(request.topic)
        if request.group not in await self._in(request.topic):
            raise UnknownGroupError(f"no group {request.group!r} for topic {request.topic!r}")
        self._broker.groups.check_idle(request.group, request.topic, self._mono_ms())
        await self._services.queue.delete_group(request.group, request.topic)
        return m.Done()


def _positions(offsets: dict[int, int]) -> list[m.Position]:
    return [m.Position(partition, offset) for partition, offset in sorted(offsets.items())]
