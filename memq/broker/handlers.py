"""What the broker does with each request: one small function each."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from bisect import bisect_left, bisect_right
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from memq.broker.access_log import said
from memq.broker.authorization import describes, hidden_topic
from memq.broker.credentials import Lender
from memq.broker.lag import check_read_partition
from memq.broker.level_file import write_level
from memq.broker.retention import delete_expired, trim
from memq.broker.stored_groups import StoredGroups
from memq.core.features import MAX_LEVEL, MIN_LEVEL, check_final
from memq.core.format.message import TIMESTAMP_COLUMN, open_message, timestamp_range_us
from memq.core.names import MAX_PRODUCER_ID, is_producer_id
from memq.core.ranges import retained_in_words
from memq.core.topic import TopicConfig
from memq.core.units import counted
from memq.core.wire import messages as m
from memq.core.write_partition import MAX_NOTIFICATION_BYTES
from memq.errors import (
    InvalidRequestError,
    MemqError,
    MessageTooLargeError,
    NotHostedError,
    OffsetOutOfRangeError,
    QueueError,
    SchemaMismatchError,
    TopicExistsError,
    TopicRecreatedError,
    UnknownGroupError,
    UnknownTopicError,
)
from memq.storage.keys import key_of_uri, parse_object_key

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping

    import pyarrow as pa

    from memq.broker.access_handlers import AccessHandlers
    from memq.broker.backup import Backups
    from memq.broker.context import BrokerContext
    from memq.broker.governing import Governing
    from memq.broker.lag import LagCounter
    from memq.broker.membership import ClusterMembership
    from memq.broker.operators import OperatorHandlers
    from memq.broker.topics import Topics
    from memq.broker.write_partition import ReceivedWrite
    from memq.core.access.rules import Access
    from memq.core.governor.topics import Topic
    from memq.core.group import GroupCoordinator

T = TypeVar("T")

log = logging.getLogger(__name__)

MAX_WAIT_MS = 60_000  # longest long poll; a client asks again
MAX_FETCH_ENTRIES = 2_000  # they are made on the event loop, and others wait meanwhile: some ms
MAX_FETCH_BYTES = 4 << 20
BATCH_READS = 4  # FetchBatch requests that are read from storage at a time; the others wait
PAGE_BYTES = 1 << 20  # of a list of topics or groups in one answer; the client asks for the next
INFO_BYTES = 1 << 10  # of that for a topic or a group with all that is small in it,
MEMBER_BYTES = 1 << 8  # for a member, without its text,
LOOK_BYTES = 1 << 10  # and for looking into a topic, which takes time though it adds nothing
LOOKED_THROUGH = 200  # topics in one turn of the event loop: some milliseconds, with many rules
MAX_NAMED_TOPICS = 100  # topics that one Metadata may name
MAX_EPOCH = (1 << 31) - 1
MAX_SEQUENCE = (1 << 62) - 1

_MAY_BE_LATE = (UnknownTopicError, TopicRecreatedError, SchemaMismatchError)
"""Errors of a Write that a broker of a cluster may only see for what it has not seen yet."""

_KNOWS_WHO = frozenset(
    each.request for each in m.REQUESTS.values() if any(need.each for need in each.needs)
) | {m.FetchCredentials, m.GroupHeartbeat}

Outcome = tuple[m.Struct, Any]

_encode = msgspec.msgpack.Encoder().encode


class _Kind(NamedTuple):
    """How the requests of one type are served.

    Attributes:
        serve: makes the answer, with its body if it has one. Where the request needs something of
            each that it lists (`Need.each`), it is given the client's `Access` as well, and where
            the answer names the client.
        only_reads: it leaves nothing behind, unless it creates topics.
        lists: the answer has as many items as there are, schemas or errors.
    """

    serve: Callable[..., Awaitable[m.Struct | Outcome]]
    only_reads: bool = False
    lists: bool = False


class Handlers:
    """Answers requests on behalf of one broker.

    Args:
        context: of the broker.
        topics: that it hosts.
        groups: who holds which partition.
        lag: counts what is published after offsets.
        membership: of the broker in its cluster; None for one that governs itself.
        access: for what is asked about users and rules.
        backups: that it writes.
        operators: for what operators look at.
    """

    def __init__(
        self,
        context: BrokerContext,
        topics: Topics,
        groups: GroupCoordinator,
        lag: LagCounter,
        membership: ClusterMembership | None,
        *,
        access: AccessHandlers,
        backups: Backups,
        operators: OperatorHandlers,
    ) -> None:
        self._context = context
        self._backups = backups
        self._topics = topics
        self._groups = groups
        self.stored_groups = StoredGroups(context, topics, groups)
        self._lag = lag
        self._membership = membership
        self.status: Callable[[], m.BrokerStatus]  # set by the code that has all of it
        self.addresses = topics.addresses
        self._batch_reads = asyncio.Semaphore(BATCH_READS)
        self._table = self._kinds(access) | {
            m.DescribeTopics: _Kind(self._describe_topics, only_reads=True, lists=True),
            m.FetchLagHistory: _Kind(self._fetch_lag_history, only_reads=True),
            m.ListConnections: _Kind(operators.list_connections, only_reads=True, lists=True),
            m.DescribeBroker: _Kind(operators.describe_broker, only_reads=True, lists=True),
        }
        self._operators = operators

    def _kinds(self, access: AccessHandlers) -> dict[type[m.Struct], _Kind]:
        return {
            m.Metadata: _Kind(self._metadata, only_reads=True, lists=True),
            m.CreateTopic: _Kind(self._create_topic, lists=True),
            m.AlterTopic: _Kind(self._alter_topic, lists=True),
            m.DeleteTopic: _Kind(self._delete_topic),
            m.TrimTopic: _Kind(self._trim_topic),
            m.FetchNotifications: _Kind(self._fetch_notifications, only_reads=True),
            m.FetchOffsets: _Kind(self._fetch_offsets, only_reads=True),
            m.FetchWatermark: _Kind(self._fetch_watermark, only_reads=True),
            m.FetchLag: _Kind(self._fetch_lag, only_reads=True, lists=True),
            m.FetchBatch: _Kind(self._fetch_batch, only_reads=True),
            m.FetchCredentials: _Kind(Lender(self._context, self._topics).lend, only_reads=True),
            m.FetchBackup: _Kind(self._fetch_backup, only_reads=True),
            m.CommitOffsets: _Kind(self._commit_offsets),
            m.FetchCommitted: _Kind(self._fetch_committed, only_reads=True),
            m.GroupHeartbeat: _Kind(self._group_heartbeat),
            m.LeaveGroup: _Kind(self._leave_group),
            m.ListGroups: _Kind(self._list_groups, only_reads=True, lists=True),
            m.DeleteGroup: _Kind(self._delete_group),
            m.DescribeCluster: _Kind(self._describe_cluster, only_reads=True, lists=True),
            m.DrainBroker: _Kind(self._drain_broker),
            m.RebalanceCluster: _Kind(self._rebalance_cluster),
            m.FinalizeUpgrade: _Kind(self._finalize_upgrade),
            m.ListUsers: _Kind(access.list_users, only_reads=True, lists=True),
            m.PutUser: _Kind(access.put_user),
            m.DeleteUser: _Kind(access.delete_user),
            m.ListRules: _Kind(access.list_rules, only_reads=True, lists=True),
            m.AlterRules: _Kind(access.alter_rules),
            m.CheckAccess: _Kind(access.check_access, only_reads=True),
            m.ListQuotas: _Kind(access.list_quotas, only_reads=True, lists=True),
            m.AlterQuota: _Kind(access.alter_quota),
        }

    def write(self, write: ReceivedWrite) -> None:
        """Check a Message and hand it to its write partition."""
        try:
            self._write(write)
        except _MAY_BE_LATE as exc:
            if not self._topics.may_lag:
                write.refuse(exc)
            else:
                where = f"a Write to {write.header.topic}"
                self._context.fatal_errors.spawn(where, self._write_later(write))
        except MemqError as exc:
            write.refuse(exc)

    async def _write_later(self, write: ReceivedWrite) -> None:
        """Write, once this broker has seen all that its client can know of."""
        try:
            await self._topics.look(write.header.topic)
            if error := write.client.refusal(write.header):
                raise error
            self._write(write)
        except MemqError as exc:
            write.refuse(exc)

    def _write(self, write: ReceivedWrite) -> None:
        request = write.header
        hosted = self._topics.get(request.topic, request.topic_id)
        partition = hosted.partitions.get(request.write_partition)
        if partition is None:
            raise self._topics.not_hosted(hosted, request.write_partition)
        self._context.check_lease()
        schema = hosted.schemas.get(request.schema_id)
        if schema is None:
            raise SchemaMismatchError(
                f"topic {request.topic!r} has no schema {request.schema_id!r}; it has "
                f"{', '.join(hosted.schemas)}: fetch its metadata again"
            )
        _check_write(request, write.body, hosted.topic.config, schema)
        hosted.messages_received += 1
        hosted.bytes_received += len(write.body)
        partition.write(write)

    async def news(self, request: m.Struct) -> None:
        """Wait for what a long poll asks for; any other request has nothing to wait for.

        Raises:
            MemqError: as `serve`.
        """
        if isinstance(request, m.FetchNotifications) and request.max_wait_ms > 0:
            await self._guarded(request, self._wait(request))
        elif isinstance(request, m.Metadata) and request.known and request.max_wait_ms > 0:
            wait_s = min(request.max_wait_ms, MAX_WAIT_MS) / 1000
            changed = self._topics.changed(request.topics or (), request.known, wait_s)
            await self._guarded(request, changed)

    def answer_bytes(self, request: m.Struct) -> int:
        """Estimate the maximum size of the answer; 0 if it is small."""
        match request:
            case m.FetchNotifications():
                return max(MAX_NOTIFICATION_BYTES, min(request.max_bytes, MAX_FETCH_BYTES))
            case m.FetchBatch():
                return max(1, min(request.length, self._context.config.max_body_bytes))
            case m.DescribeCluster(own=True):
                return 0
        return PAGE_BYTES if self._table[type(request)].lists else 0

    def before(self, request: m.Struct) -> dict[str, Any]:
        """Return what a request is about to change, for the access log."""
        if isinstance(request, m.AlterTopic | m.DeleteTopic | m.TrimTopic):
            with contextlib.suppress(MemqError):
                return {"before": said(self._topics.get(request.topic).topic.config)}
        return {}

    async def serve(self, request: m.Struct, access: Access) -> Outcome:
        """Answer and body of a request that its client may make.

        Args:
            request: to be served.
            access: says what else the client may do.

        Raises:
            MemqError: it is refused; or it only reads, and an error that nothing expected, which
                is logged, costs this request only. From any other such an error is raised: what
                the request was to change may be changed by half.
        """
        return await self._guarded(request, self._serve(request, access))

    async def _guarded(self, request: m.Struct, work: Awaitable[T]) -> T:
        try:
            return await work
        except UnknownTopicError as exc:
            raise await self._known(getattr(request, "topic", None), exc) from exc
        except MemqError:
            raise
        except Exception as exc:
            creates = isinstance(request, m.Metadata) and request.create
            if creates or not self._table[type(request)].only_reads:
                raise
            log.exception("unexpected error serving %s", type(request).__name__)
            raise MemqError(f"{type(exc).__name__}: {exc}") from exc

    async def _known(self, name: str | None, error: UnknownTopicError) -> MemqError:
        """Return the error; or another one if the topic exists and only the queue has lost it."""
        if name is not None:
            with contextlib.suppress(MemqError):
                await self._topics.look(name)
            with contextlib.suppress(MemqError):  # also where ZooKeeper does not say
                self._topics.get(name)
                return QueueError(f"the notification queue has lost topic {name!r}: {error}")
        return error

    async def _wait(self, request: m.FetchNotifications) -> None:
        topic, positions = await self._positions(request)
        wait_ms = min(request.max_wait_ms, MAX_WAIT_MS)
        await self._context.queue.wait(topic.queue_topic, positions, wait_ms / 1000)

    async def _serve(self, request: m.Struct, access: Access) -> Outcome:
        serve = self._table[type(request)].serve
        answer = await (serve(request, access) if type(request) in _KNOWS_WHO else serve(request))
        return answer if isinstance(answer, tuple) else (answer, b"")

    def _mono_ms(self) -> int:
        return self._context.now().mono_ms

    # -- topics -----------------------------------------------------------------------------

    async def _metadata(self, request: m.Metadata, access: Access) -> m.MetadataAnswer:
        more = False
        if request.topics is None:
            names, more = await self._page_of_topics(request.after, access)
        else:
            names = request.topics
            if len(names) > MAX_NAMED_TOPICS:
                raise InvalidRequestError(
                    f"{len(names)} topics named; name up to {MAX_NAMED_TOPICS}, or ask for all"
                )
            if request.create and self._context.config.auto_create_topics:
                await self._create_missing([n for n in names if access.may("create", "topic", n)])
            for name in names:
                await self._find(name, access)
        return m.MetadataAnswer(
            cluster_id=self._context.config.cluster_id,
            brokers=self._topics.brokers(),
            topics=[self._topics.info(self._topics.get(name)) for name in names],
            more=more,
            version=self._topics.version(request.topics or ()),
        )

    async def _find(self, name: str, access: Access) -> None:
        """Find a topic, or raise the error for one that the client may not describe."""
        try:
            await self._topics.find(name)
        except UnknownTopicError as exc:
            if access.unrestricted:
                raise
            raise hidden_topic(access, name) from exc

    async def _page_of_topics(self, after: str, access: Access) -> tuple[list[str], bool]:
        """Names of topics, as many as one answer holds, and whether there are more."""
        names = await _described(self._topics.names(), access)
        start = stop = bisect_right(names, after)
        left = PAGE_BYTES
        while stop < len(names) and left > 0:
            left -= self._info_bytes(names[stop])
            stop += 1
        return names[start:stop], stop < len(names)

    def _info_bytes(self, name: str) -> int:
        """About what a topic takes in an answer; 0 when the answer is an error."""
        try:
            hosted = self._topics.get(name)
        except MemqError:
            return 0
        hosts = hosted.topic.config.write_partitions * (len(self._context.address) + 4)
        return INFO_BYTES + hosts + sum(map(len, hosted.topic.schemas.values()))

    async def _describe_topics(
        self, request: m.DescribeTopics, access: Access
    ) -> m.DescribeTopicsAnswer:
        names = await _described(self._topics.names(), access)
        later = names[bisect_right(names, request.after) :]
        return self._operators.describe_topics(later, access, list_groups=request.list_groups)

    async def _create_missing(self, names: list[str]) -> None:
        for name in names:
            try:
                await self._topics.find(name)
            except UnknownTopicError:
                with contextlib.suppress(TopicExistsError):  # another client was quicker
                    await self._topics.create(TopicConfig.create(name))

    async def _create_topic(self, request: m.CreateTopic) -> m.TopicAnswer:
        hosted = await self._topics.create(request.config, request.request_id)
        return m.TopicAnswer(topic=self._topics.info(hosted))

    async def _alter_topic(self, request: m.AlterTopic) -> m.TopicAnswer:
        hosted = await self._topics.alter(request.topic, request.options, request.schema)
        return m.TopicAnswer(topic=self._topics.info(hosted))

    async def _delete_topic(self, request: m.DeleteTopic) -> m.Done:
        await self._topics.delete(request.topic, request.topic_id)
        return m.Done()

    async def _trim_topic(self, request: m.TrimTopic) -> m.TrimTopicAnswer:
        await self._coordinated(request)
        hosted = self._topics.coordinated(request.topic, request.topic_id)
        wanted = {each.partition: each.offset for each in request.offsets}
        for partition, offset in wanted.items():
            _, end = await self._retained(hosted.topic, partition)
            if not 0 <= offset <= end:
                raise InvalidRequestError(
                    f"{request.topic}/{partition} ends at {end}; {offset} is not published"
                )
        self._context.check_lease()
        record = partial(self._topics.alter, request.topic, {}, None) if request.execute else None
        ends, keys = await trim(hosted, wanted, self._context, record)
        self._context.fatal_errors.spawn("trim", delete_expired(keys, self._context))
        return m.TrimTopicAnswer(offsets=[m.PartitionOffset(*each) for each in ends.items()])

    # -- reading ----------------------------------------------------------------------------

    async def _topic(self, request: m.TopicRequest) -> Topic:
        """Return the topic that the request means, with the topic id that it means."""
        return (await self._topics.find(request.topic, request.topic_id)).topic

    async def _coordinated(self, request: m.TopicRequest) -> Topic:
        """Return the same topic, whose groups this broker keeps."""
        await self._topics.find(request.topic, request.topic_id)
        return self._topics.coordinated(request.topic, request.topic_id).topic

    async def _retained(self, topic: Topic, partition: int) -> tuple[int, int]:
        """Start and end of what is retained of a read partition."""
        check_read_partition(topic, partition)
        return await self._context.queue.offsets(topic.queue_topic, partition)

    async def _positions(self, request: m.FetchNotifications) -> tuple[Topic, dict[int, int]]:
        """Check what a fetch reads, and where it begins in each partition."""
        topic = await self._topic(request)
        if len(request.positions) > topic.config.read_partitions:
            raise InvalidRequestError(
                f"{len(request.positions)} positions; {topic.name!r} has "
                f"{counted(topic.config.read_partitions, 'read partition')}: name each once"
            )
        positions = {position.partition: position.offset for position in request.positions}
        for partition, offset in positions.items():
            start, end = await self._retained(topic, partition)
            if not start <= offset <= end:
                raise OffsetOutOfRangeError(
                    f"offset {offset} of {topic.name}/{partition} is not retained; "
                    f"{retained_in_words(start, end)}"
                )
        if not positions:
            raise InvalidRequestError("FetchNotifications without a position; name partitions")
        return topic, positions

    async def _fetch_notifications(self, request: m.FetchNotifications) -> Outcome:
        topic, positions = await self._positions(request)
        entries = await self._entries(request, topic, positions)
        ends = [
            m.PartitionOffset(partition, (await self._retained(topic, partition))[1])
            for partition in positions
        ]
        return m.FetchNotificationsAnswer(ends=ends), _encode(entries)

    async def _entries(
        self, request: m.FetchNotifications, topic: Topic, positions: dict[int, int]
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
            stored = await self._context.queue.fetch(
                topic.queue_topic,
                partition,
                offset,
                max_entries=max(1, entries_left // waiting),
                max_bytes=max(1, bytes_left // waiting),
            )
            entries = await self._context.root.served(stored)
            found += [
                m.NotificationEntry(partition, entry.offset, entry.timestamp_ms, entry.payload)
                for entry in entries
            ]
            entries_left -= len(entries)
            bytes_left -= sum(len(entry.payload) for entry in entries)
        return found

    async def _fetch_offsets(self, request: m.FetchOffsets) -> m.FetchOffsetsAnswer:
        queue, topic = self._context.queue, await self._topic(request)
        partitions: list[m.PartitionOffsets] = []
        for partition in range(topic.config.read_partitions):
            start, end = await self._retained(topic, partition)
            at = None
            if request.at_ms is not None:
                at = await queue.offset_at(topic.queue_topic, partition, request.at_ms)
            partitions.append(m.PartitionOffsets(partition=partition, start=start, end=end, at=at))
        return m.FetchOffsetsAnswer(partitions=partitions)

    async def _fetch_backup(self, request: m.FetchBackup) -> m.FetchBackupAnswer:
        topic = await self._coordinated(request)
        if not self._context.config.backup_interval_ms:
            return m.FetchBackupAnswer(ends=None)
        return m.FetchBackupAnswer(ends=await self._backups.reach(topic.queue_topic))

    async def _fetch_watermark(self, request: m.FetchWatermark) -> m.WatermarkAnswer:
        hosted = await self._topics.find(request.topic, request.topic_id)
        by_write, by_read = await hosted.watermarks()
        self._context.check_lease()
        return m.WatermarkAnswer(
            stored_through_ms=min([each for each in by_write if each >= 0], default=-1),
            write_partitions=by_write,
            read_partitions=by_read,
            retained_since_ms=hosted.retained_since_ms(self._context.now().wall_ms),
        )

    async def _fetch_lag(self, request: m.FetchLag) -> m.FetchLagAnswer:
        lags = await self._lag.lags(await self._topic(request), request.positions)
        return m.FetchLagAnswer(lags=lags, now_us=self._context.now().wall_ms * 1_000)

    async def _fetch_batch(self, request: m.FetchBatch) -> Outcome:
        limit = self._context.config.max_body_bytes
        if not 0 < request.length <= limit or request.start < 0:
            raise InvalidRequestError(
                f"range of {request.length} bytes from {request.start}: ask for 1 to {limit} "
                "bytes at a time, from 0 on"
            )
        storage, topic = self._context.storage, await self._topic(request)
        key = key_of_uri(request.uri)
        parsed = parse_object_key(key)
        # The key decides, for the URI may be from before the objects were moved.
        if parsed is None or (parsed.topic, parsed.topic_id) != (topic.name, topic.topic_id):
            raise InvalidRequestError(f"{request.uri!r} is no Batch of topic {request.topic!r}")
        async with self._batch_reads:
            body = await asyncio.get_running_loop().run_in_executor(
                self._context.reads, storage.get_range, key, request.start, request.length
            )
        return m.FetchBatchAnswer(), body

    # -- groups -----------------------------------------------------------------------------

    async def _commit_offsets(self, request: m.CommitOffsets) -> m.Done:
        topic = await self._coordinated(request)
        for position in request.offsets:
            _, end = await self._retained(topic, position.partition)
            if not 0 <= position.offset <= end:  # below the start: retention overtook the consumer
                raise OffsetOutOfRangeError(
                    f"cannot commit offset {position.offset} of {topic.name}/{position.partition}, "
                    f"which ends at {end}"
                )
        await self.stored_groups.commit(request, topic)
        return m.Done()

    async def _fetch_committed(self, request: m.FetchCommitted) -> m.FetchCommittedAnswer:
        queue_topic = (await self._topic(request)).queue_topic
        offsets = await self._context.queue.committed(request.group, queue_topic)
        return m.FetchCommittedAnswer(offsets=_positions(offsets))

    async def _group_heartbeat(
        self, request: m.GroupHeartbeat, access: Access
    ) -> m.GroupHeartbeatAnswer:
        topic = await self._coordinated(request)
        partitions = topic.config.read_partitions
        answer = self._groups.heartbeat(request, partitions, self._mono_ms(), access.host)
        await self.stored_groups.save_holdings(request.group, topic)
        self._groups.check_granted(request, answer)
        self._context.check_lease()
        return answer

    async def _leave_group(self, request: m.LeaveGroup) -> m.Done:
        await self._coordinated(request)
        self._groups.leave(request.group, request.topic, request.member_id, self._mono_ms())
        return m.Done()

    async def _list_groups(self, request: m.ListGroups, access: Access) -> m.ListGroupsAnswer:
        topics, after = self._topics, request.after_group
        names = topics.coordinated_names() if request.topic is None else [request.topic]
        names = await _described(names, access)
        live = self._groups.groups(self._mono_ms())
        found: list[m.GroupInfo] = []
        left = PAGE_BYTES
        for name in names[bisect_left(names, request.from_topic) :]:
            if left <= 0:
                return m.ListGroupsAnswer(groups=found, from_topic=name)
            left -= LOOK_BYTES
            try:
                topic = topics.coordinated(name).topic
                groups = [
                    each
                    for each in await self._in(topic, live)
                    if access.may("describe", "group", each)
                ]
            except (UnknownTopicError, NotHostedError):
                if request.topic is not None:
                    raise
                continue  # deleted meanwhile, or another broker's
            for group in groups:
                if name == request.from_topic and group <= after:
                    continue
                if left <= 0:
                    last = found[-1].group if found and found[-1].topic == name else ""
                    return m.ListGroupsAnswer(groups=found, from_topic=name, after_group=last)
                found.append(await self._group(group, topic))
                left -= _group_bytes(found[-1])
        return m.ListGroupsAnswer(groups=found)

    async def _in(self, topic: Topic, live: Mapping[str, Collection[str]]) -> list[str]:
        """Groups of a topic that have stored offsets or live members, sorted."""
        try:
            stored = await self._context.queue.groups(topic.queue_topic)
        except UnknownTopicError as exc:
            raise await self._known(topic.name, exc) from exc
        return sorted({*stored, *live.get(topic.name, ())})

    async def _group(self, group: str, topic: Topic) -> m.GroupInfo:
        return m.GroupInfo(
            group=group,
            topic=topic.name,
            offsets=_positions(await self._context.queue.committed(group, topic.queue_topic)),
            members=self._groups.members(group, topic.name, self._mono_ms()),
        )

    async def _delete_group(self, request: m.DeleteGroup) -> m.Done:
        topic = await self._coordinated(request)
        live = self._groups.groups(self._mono_ms())
        if request.group not in await self._in(topic, live):
            raise UnknownGroupError(f"no group {request.group!r} for topic {request.topic!r}")
        await self.stored_groups.delete(request.group, topic)
        return m.Done()

    async def _fetch_lag_history(self, request: m.FetchLagHistory) -> m.FetchLagHistoryAnswer:
        topic = await self._coordinated(request)
        return self._operators.history(topic.topic_id, request.group)

    # -- the cluster ------------------------------------------------------------------------

    async def _describe_cluster(self, request: m.DescribeCluster) -> m.DescribeClusterAnswer:
        if request.own:
            seen = [m.ClusterBroker(id=b.id, address=b.address) for b in self._topics.brokers()]
            config = self._context.config
            found = m.DescribeClusterAnswer(cluster_id=config.cluster_id, governor="", brokers=seen)
        else:
            found = await self._cluster().describe()
        found.status = self.status()
        return found

    async def _drain_broker(self, request: m.DrainBroker) -> m.Done:
        await self._cluster().drain(request.broker_id, withdraw=request.withdraw)
        return m.Done()

    async def _rebalance_cluster(self, request: m.RebalanceCluster) -> m.Done:  # noqa: ARG002 - as above
        await self._cluster().rebalance()
        return m.Done()

    async def _finalize_upgrade(self, request: m.FinalizeUpgrade) -> m.Done:
        context, level = self._context, request.level
        if self._membership is not None:
            await self._membership.finalize(level)
        else:
            known = {context.config.broker_id: (MIN_LEVEL, MAX_LEVEL)}
            check_final(level, context.level, known)
            write_level(Path(context.config.data_dir), level)
            context.level = level
        return m.Done()

    def _cluster(self) -> Governing:
        if self._membership is None:
            raise InvalidRequestError(
                "this broker is no part of a cluster: it governs itself (set the option zookeeper)"
            )
        return self._membership.governing


def _check_write(request: m.Write, body: Any, config: TopicConfig, schema: pa.Schema) -> None:
    message_bytes = config.message_bytes
    if len(body) > message_bytes:
        raise MessageTooLargeError(
            f"Message of {len(body)} bytes; topic {request.topic!r} takes up to {message_bytes}: "
            "lower the producer's message_bytes or raise the topic's"
        )
    if not (
        is_producer_id(request.producer_id)
        and 0 <= request.epoch <= MAX_EPOCH
        and 0 <= request.sequence <= MAX_SEQUENCE
        and request.acks in (-1, 0, 1)
    ):
        raise InvalidRequestError(
            f"producer id of {len(request.producer_id)} characters, epoch {request.epoch}, "
            f"sequence {request.sequence}, acks {request.acks}: the id has 1 to "
            f"{MAX_PRODUCER_ID} printable ASCII characters, epoch and sequence are not negative, "
            "acks is -1, 0 or 1"
        )
    rows = open_message(body, schema, max_decoded_bytes=message_bytes)
    if len(rows) != request.records:
        raise InvalidRequestError(
            f"the header says {counted(request.records, 'record')}, the body has {len(rows)}"
        )
    if config.time_column != TIMESTAMP_COLUMN:  # which producers know nothing of
        times = timestamp_range_us(rows, config.time_column)
        request.min_timestamp_us, request.max_timestamp_us = times


async def _described(names: list[str], access: Access) -> list[str]:
    """Return the topics of these that a client may describe; others have their turn meanwhile."""
    if access.unrestricted:
        return names
    found: list[str] = []
    for start in range(0, len(names), LOOKED_THROUGH):
        some = names[start : start + LOOKED_THROUGH]
        found += [name for name in some if describes(access, name)]
        await asyncio.sleep(0)
    return found


def _group_bytes(info: m.GroupInfo) -> int:
    """About what a group takes in an answer."""
    members = sum(
        MEMBER_BYTES + len(member.client) + 3 * len(member.partitions) for member in info.members
    )
    return INFO_BYTES + 12 * len(info.offsets) + members


def _positions(offsets: dict[int, int]) -> list[m.PartitionOffset]:
    return [m.PartitionOffset(partition, offset) for partition, offset in sorted(offsets.items())]
