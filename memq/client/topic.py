"""One topic, as a client sees it through the brokers of its cluster.

What is asked of a group goes to the broker that coordinates the topic's groups; how far the topic
is stored, to the owners of its write partitions, all of them; what is read, to a reader
(`memq.client.broker_choice`). Which brokers these are may change while a call is under way, and for
a moment a write partition has no owner. So a call is made in attempts: when one fails in a way that
may pass, the topic is looked up again and the broker of that moment is asked, until the deadline of
the call. A broker that names another one is believed first, at once one time.

A topic that a broker does not know, or knows as another topic id, is looked up once more too:
the broker may not have heard yet of what another one has told.

All calls are about one topic id: the one given, or else the first that was met.
When the topic is deleted and recreated, they fail with `TopicRecreatedError` from then on, for
offsets of the one mean nothing in the other.

What retention has removed is a first part of each read partition; the rest is retained. Nobody
remembers when the last removed Batch was published: before the first one that is left, and before
the time that the broker says retention has come to.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import AsyncExitStack, aclosing
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from memq.client.cluster import Cluster
from memq.client.credentials import with_credentials
from memq.client.lag import lag_of
from memq.client.sync import EventLoopThread, SyncClient, sync, sync_close, sync_iter, sync_property
from memq.core.decoding import UNDECODABLE
from memq.core.named_values import asks_brokers
from memq.core.ranges import OffsetRange
from memq.core.wire import messages as m
from memq.errors import (
    CorruptDataError,
    MemqError,
    NotHostedError,
    ProtocolError,
    TopicRecreatedError,
    UnavailableError,
    UnknownTopicError,
)
from memq.reading.log import RetainedSince, check_retained, published_batch

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        Awaitable,
        Callable,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )
    from typing import Self, Unpack

    from memq.client.cluster import ClusterArguments
    from memq.client.connection import Body
    from memq.client.lag import Lag
    from memq.core.named_values import NamedValues
    from memq.core.notification import PublishedBatch
    from memq.runtime.retry import Retry

T = TypeVar("T")

ATTEMPT_S = 5.0  # a broker that does not answer for this long may not be the one to ask any more
PAGE_ENTRIES = 1_000  # notifications asked for at a time, about 1 MB
MAX_PAGE_BYTES = 16 << 20  # far above the 1 MiB asked for; decoded they take up to 12 times as much

_entries = msgspec.msgpack.Decoder(list[m.NotificationEntry])


class Page(NamedTuple):
    """Notifications of some partitions.

    Attributes:
        entries: in the order of their offsets within each partition.
        ends: one past the last notification of each partition asked for.
    """

    entries: list[m.NotificationEntry]
    ends: dict[int, int]


class TopicClient:
    """Calls about one topic's notifications and groups.

    Args:
        cluster: the brokers.
        topic: the topic.
        topic_id: of the topic; empty for the one that is met first.

    Attributes:
        topic_id: of the topic; empty until one was met.
    """

    def __init__(self, cluster: Cluster, topic: str, topic_id: str = "") -> None:
        self.cluster = cluster
        self.topic = topic
        self.topic_id = topic_id

    def __repr__(self) -> str:
        return f"<TopicClient {self.topic} at {self.cluster!r}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections of its cluster, which was made for this topic alone."""
        await self.cluster.close()

    @property
    def storage_options(self) -> NamedValues:
        """Options of the object store, as they were given."""
        return self.cluster.storage_options

    async def options_for(self, uri: str) -> NamedValues:
        """Return the options with which an object of the topic is read: with credentials of
        brokers, where these are asked.

        Raises:
            ConfigError: the brokers hand out none, or the options do not go together.
            MemqError: as `ask`.
        """
        if uri.startswith("s3://") and asks_brokers(self.storage_options):
            own = self.cluster
            return await with_credentials(self, own.borrowed, own.runtime.mono_s)
        return self.storage_options

    def retry(self) -> Retry:
        """Begin the attempts of a call that is made of several; they share the request timeout."""
        return self.cluster.retry(self.cluster.request_timeout_s)

    async def info(self) -> m.TopicInfo:
        """Look up the topic as it is now: its options, schemas, hosts and topic id.

        Raises:
            UnknownTopicError: there is no such topic.
            TopicRecreatedError: it was deleted and recreated.
            MemqError: the brokers failed until the deadline.
        """
        info = await self.cluster.topic(self.topic, refresh=True)
        if self.topic_id not in ("", info.topic_id):
            raise TopicRecreatedError(
                f"topic {self.topic!r} was deleted and recreated: {self.topic_id} and "
                f"{info.topic_id} are two topics of that name"
            )
        self.topic_id = info.topic_id
        return info

    async def page(
        self,
        positions: Mapping[int, int],
        *,
        max_entries: int,
        max_wait_ms: int = 0,
        timeout_s: float | None = None,
    ) -> Page:
        """Notifications from some offsets on; waits up to `max_wait_ms` for the first.

        Raises:
            OffsetOutOfRangeError: an offset is not retained.
            MemqError: as `ask`.
        """
        request = m.FetchNotifications(
            topic=self.topic,
            positions=_positions(positions),
            max_entries=max_entries,
            max_wait_ms=max_wait_ms,
        )
        answer: m.FetchNotificationsAnswer
        answer, body = await self.read(request, timeout_s=timeout_s, wait_s=max_wait_ms / 1000)
        if len(body) > MAX_PAGE_BYTES:
            raise ProtocolError(
                f"the broker answered {len(body)} bytes of notifications; the limit is "
                f"{MAX_PAGE_BYTES}"
            )
        try:
            entries = _entries.decode(body)
        except UNDECODABLE as exc:
            raise ProtocolError(f"the broker answered no list of notifications: {exc}") from exc
        return Page(entries, {end.partition: end.offset for end in answer.ends})

    async def offsets(
        self, at_ms: int | None = None, *, timeout_s: float | None = None
    ) -> list[m.PartitionOffsets]:
        """Start and end of every partition, and the first offset published at `at_ms` or later.

        Raises:
            MemqError: as `ask`.
        """
        request = m.FetchOffsets(topic=self.topic, at_ms=at_ms)
        answer: m.FetchOffsetsAnswer
        answer, _ = await self.read(request, timeout_s=timeout_s)
        return answer.partitions

    async def lasting(self, ends: Mapping[int, int]) -> dict[int, int]:
        """Return these ends as far as offsets before them last, whatever is lost.

        `memq restore` gives new offsets to what was not backed up. So who keeps offsets elsewhere
        goes no further. Brokers back up before they answer, unless they are not to.

        Raises:
            MemqError: as `ask`.
        """
        answer: m.FetchBackupAnswer
        answer, _ = await self.ask(m.FetchBackup(topic=self.topic))
        if answer.ends is None:
            return {**ends}
        return {partition: min(end, answer.ends[partition]) for partition, end in ends.items()}

    async def starts(self) -> dict[int, int]:
        """Look up the first offset that is retained, by partition.

        Raises:
            MemqError: as `ask`.
        """
        return {each.partition: each.start for each in await self.offsets()}

    async def ranges_between(self, start_ms: int | None, end_ms: int | None) -> list[OffsetRange]:
        """Look up what was published from one time up to, not including, another one, by partition.

        Args:
            start_ms: milliseconds since 1970 UTC; None for all that is retained.
            end_ms: milliseconds since 1970 UTC; None for all that is published by now.

        Raises:
            MemqError: as `ask`.
        """
        begin = await self.offsets(start_ms)
        finish = await self.offsets(end_ms)
        return [
            OffsetRange(
                first.partition,
                first.start if first.at is None else first.at,
                last.end if last.at is None else last.at,
                self.topic_id,
            )
            for first, last in zip(begin, finish, strict=True)
        ]

    async def check_retained(self, wanted: OffsetRange) -> None:
        """Make sure that a range can be read in full.

        Raises:
            InvalidRequestError: the topic has no such partition, or this is no range.
            OffsetOutOfRangeError: some of the offsets are not retained, or not published yet.
            MemqError: as `ask`.
        """
        check_retained(self.topic, wanted, await self.offsets())

    async def pages(
        self, ranges: Iterable[OffsetRange], *, page_entries: int | None = None
    ) -> AsyncGenerator[list[m.NotificationEntry], None]:
        """Yield the notifications of some ranges, one range after the other, up to so many at a
        time.

        Raises:
            OffsetOutOfRangeError: retention has removed some of them.
            MemqError: as `ask`.
        """
        for partition, start, end, _ in ranges:
            offset = start
            while offset < end:
                wanted = min(page_entries or PAGE_ENTRIES, end - offset)
                page = await self.page({partition: offset}, max_entries=wanted)
                if not page.entries:  # Kafka's offsets have gaps, at the end of a range as well
                    break
                yield [entry for entry in page.entries if entry.offset < end]
                offset = page.entries[-1].offset + 1

    async def entries(
        self, ranges: Iterable[OffsetRange], *, page_entries: int | None = None
    ) -> AsyncGenerator[m.NotificationEntry, None]:
        """Yield the notifications of some ranges, one range after the other, as they stand in the
        queue.

        Only a page of them is in memory at a time. Close it (`contextlib.aclosing`) when it is left
        before its end; the same holds for `pages` and `batches`.

        Raises:
            MemqError: as `pages`.
        """
        async with aclosing(self.pages(ranges, page_entries=page_entries)) as pages:
            async for page in pages:
                for entry in page:
                    yield entry

    async def batches_by_time(
        self, ranges: Sequence[OffsetRange], damaged: Callable[[str], object] | None = None
    ) -> AsyncGenerator[PublishedBatch, None]:
        """Yield the Batches of some ranges, one for each read partition, merged by their times.

        Args:
            ranges: of the topic.
            damaged: told of what is no notification, in place of an error.

        Raises:
            CorruptDataError: something in the queue is no notification.
            MemqError: as `pages`.
        """
        page_entries = max(1, PAGE_ENTRIES // max(1, len(ranges)))
        async with AsyncExitStack() as stack:
            streams = [
                await stack.enter_async_context(
                    aclosing(self.entries([each], page_entries=page_entries))
                )
                for each in ranges
            ]
            heads: list[tuple[int, int, m.NotificationEntry]] = []

            async def advance(at: int) -> None:
                if (following := await anext(streams[at], None)) is not None:
                    heappush(heads, (following.timestamp_ms, at, following))

            for at in range(len(streams)):
                await advance(at)
            while heads:
                _, at, entry = heappop(heads)
                await advance(at)
                try:
                    batch = published_batch(self.topic, entry)
                except CorruptDataError as exc:
                    if damaged is None:
                        raise
                    damaged(str(exc))
                else:
                    yield batch

    async def batches(self, ranges: Iterable[OffsetRange]) -> AsyncGenerator[PublishedBatch, None]:
        """Yield the Batches of some ranges, one range after the other.

        Raises:
            CorruptDataError: something in the queue is no notification.
            MemqError: as `pages`.
        """
        async with aclosing(self.entries(ranges)) as entries:
            async for entry in entries:
                yield published_batch(self.topic, entry)

    async def lags(self, positions: Sequence[m.PartitionOffset]) -> m.FetchLagAnswer:
        """Return what is published from each of the positions on, in their order.

        Raises:
            InvalidRequestError: the topic has no such partition.
            MemqError: as `ask`.
        """
        answer: m.FetchLagAnswer
        answer, _ = await self.read(m.FetchLag(topic=self.topic, positions=list(positions)))
        return answer

    async def lag(self, positions: Mapping[int, int]) -> dict[int, Lag]:
        """Count what is published from some offsets on, by partition; what retention removed is
        not.

        Raises:
            InvalidRequestError: the topic has no such partition.
            CorruptDataError: a notification that is to be counted is damaged.
            MemqError: as `ask`.
        """
        answer = await self.lags(_positions(positions))
        for each in answer.lags:
            if each.error:
                raise CorruptDataError(each.error)
        return {each.partition: lag_of(each, answer.now_us) for each in answer.lags}

    async def watermark(self) -> m.WatermarkAnswer:
        """Look up how far the topic is stored, by all that own a part of it.

        Raises:
            UnavailableError: a write partition has no owner, or its owner does not tell.
            MemqError: as `ask`.
        """

        async def told(topic: m.TopicInfo, _: str, left_s: float) -> m.WatermarkAnswer:
            owners = dict.fromkeys(topic.hosts)
            self._found(min(owners, default=""), "owns every write partition")
            request = m.FetchWatermark(topic=self.topic)
            answers = await asyncio.gather(
                *(self._attempt(topic, owner, request, left_s) for owner in owners),
                return_exceptions=True,
            )
            found: list[m.WatermarkAnswer] = []
            for answer in answers:
                if isinstance(answer, BaseException):
                    raise answer
                found.append(answer[0])
            return merge_watermarks(self.topic, len(topic.hosts), found)

        return await self._until_done(told, None)

    async def retained_since(self) -> list[RetainedSince]:
        """Since when each read partition is retained in full.

        Raises:
            OffsetOutOfRangeError: retention removed Batches meanwhile; ask again.
            MemqError: as `ask`.
        """
        starts = await self.starts()
        firsts_ms = {
            partition: -math.inf if start == 0 else await self._published_ms(partition, start)
            for partition, start in starts.items()
        }
        # Asked last, so it covers all that was removed before.
        retained_since_ms = (await self.watermark()).retained_since_ms
        return [
            RetainedSince(partition, min(first_ms, retained_since_ms))
            for partition, first_ms in firsts_ms.items()
        ]

    async def _published_ms(self, partition: int, start: int) -> float:
        """Look up when the first Batch from an offset on was published; infinity when there is
        none.
        """
        page = await self.page({partition: start}, max_entries=1)
        return page.entries[0].timestamp_ms if page.entries else math.inf

    async def committed(self, group: str, *, timeout_s: float | None = None) -> dict[int, int]:
        """Stored next offsets of a group; partitions without one are absent.

        Raises:
            MemqError: as `ask`.
        """
        request = m.FetchCommitted(group=group, topic=self.topic)
        answer: m.FetchCommittedAnswer
        answer, _ = await self.ask(request, timeout_s=timeout_s)
        return {position.partition: position.offset for position in answer.offsets}

    async def groups(self) -> list[m.GroupInfo]:
        """Return the consumer groups of the topic, with stored offsets and live members.

        Raises:
            MemqError: as `ask`.
        """
        found: list[m.GroupInfo] = []
        after = ""
        while True:
            from_topic = self.topic if after else ""
            request = m.ListGroups(topic=self.topic, from_topic=from_topic, after_group=after)
            answer: m.ListGroupsAnswer
            answer, _ = await self.ask(request)
            found += answer.groups
            if not answer.from_topic:
                return found
            if answer.after_group <= after:
                raise ProtocolError(f"asked for groups after {after!r}, the broker goes back")
            after = answer.after_group

    async def commit(
        self,
        group: str,
        member_id: str,
        offsets: Mapping[int, int],
        *,
        committer: str = "",
        sequence: int = 0,
        heartbeat: int = 0,
        timeout_s: float | None = None,
    ) -> None:
        """Store next offsets of a group; an empty member id is that of an administrator.

        An attempt that was given up may arrive after later ones. With a sequence, which counts the
        commits of this member, or else of this committer, and with the number of the member's
        latest heartbeat, it then changes nothing.

        Raises:
            NotOwnerError: the member does not hold one of the partitions now.
            InvalidRequestError: an administrator commits while the group has members.
            OffsetOutOfRangeError: an offset is not retained.
            MemqError: as `ask`.
        """
        request = m.CommitOffsets(
            group=group,
            topic=self.topic,
            member_id=member_id,
            offsets=_positions(offsets),
            committer=committer,
            sequence=sequence,
            heartbeat=heartbeat,
        )
        await self.ask(request, timeout_s=timeout_s)

    async def ask(
        self, request: m.Struct, *, timeout_s: float | None = None, wait_s: float = 0.0
    ) -> tuple[Any, memoryview]:
        """Ask the broker that coordinates the topic's groups: header and body of the answer.

        Args:
            request: header to send.
            timeout_s: deadline of the call; None for that of the cluster.
            wait_s: how long the broker may take on purpose, on top of it.

        Raises:
            UnknownTopicError: there is no such topic.
            TopicRecreatedError: it was deleted and recreated.
            RequestTimeoutError: no answer by the deadline.
            UnavailableError: no broker could be reached, or was the one to ask, by the deadline.
            MemqError: the typed error that the broker named.
        """
        return await self._ask(
            lambda topic: self._found(topic.queue_address, "coordinates the groups"),
            request,
            timeout_s=timeout_s,
            wait_s=wait_s,
        )

    async def read(
        self, request: m.TopicRequest, *, timeout_s: float | None = None, wait_s: float = 0.0
    ) -> tuple[Any, memoryview]:
        """Ask a reader: header and body of the answer.

        Args:
            request: header to send; one that any broker of a cluster answers.
            timeout_s: as in `ask`.
            wait_s: as in `ask`.

        Raises:
            MemqError: as `ask`.
        """
        return await self._ask(
            lambda topic: self._found(self.cluster.reader(topic), "serves"),
            request,
            timeout_s=timeout_s,
            wait_s=wait_s,
        )

    async def write(
        self, request: m.Write, body: Body, body_crc: int, *, timeout_s: float | None = None
    ) -> None:
        """Send a Message to the owner of its write partition, until it is acked.

        Every attempt has the same name and bytes.

        Raises:
            MemqError: as `ask`.
        """
        number = request.write_partition
        budget_s = self.cluster.request_timeout_s if timeout_s is None else timeout_s
        await self._ask(
            lambda topic: self._found(topic.hosts[number], f"owns write partition {number}"),
            request,
            body,
            body_crc=body_crc,
            timeout_s=budget_s,
            attempt_s=budget_s / 2,
        )

    def _found(self, address: str, does: str) -> str:
        """Return the address of a broker, where there is one."""
        if not address:
            raise UnavailableError(f"no broker {does} of topic {self.topic!r} now")
        return address

    async def _ask(
        self,
        whom: Callable[[m.TopicInfo], str],
        request: m.Struct,
        body: Body = b"",
        *,
        body_crc: int | None = None,
        timeout_s: float | None,
        wait_s: float = 0.0,
        attempt_s: float = ATTEMPT_S,
    ) -> tuple[Any, memoryview]:
        async def attempt(
            topic: m.TopicInfo, pointed_to: str, left_s: float
        ) -> tuple[Any, memoryview]:
            address = pointed_to or whom(topic)
            return await self._attempt(
                topic, address, request, left_s, body=body, body_crc=body_crc
            )

        return await self._until_done(attempt, timeout_s, wait_s, attempt_s)

    async def _attempt(
        self,
        topic: m.TopicInfo,
        address: str,
        request: m.Struct,
        timeout_s: float,
        *,
        body: Body = b"",
        body_crc: int | None = None,
    ) -> tuple[Any, memoryview]:
        if isinstance(request, m.TopicRequest):
            request.topic_id = self.topic_id or topic.topic_id
        return await self.cluster.attempt(
            address, request, body, body_crc=body_crc, timeout_s=timeout_s
        )

    async def _until_done(
        self,
        attempt: Callable[[m.TopicInfo, str, float], Awaitable[T]],
        timeout_s: float | None,
        wait_s: float = 0.0,
        attempt_s: float = ATTEMPT_S,
    ) -> T:
        """Look the topic up and make the attempt, again and again until it succeeds or must not.

        Args:
            attempt: given the topic, the address that a broker has named, if one has, and the
                seconds that are left for it.
            timeout_s: as in `ask`.
            wait_s: as in `ask`.
            attempt_s: how long an attempt may take without that.
        """
        cluster = self.cluster
        budget_s = cluster.request_timeout_s if timeout_s is None else timeout_s
        retry = cluster.retry(budget_s + wait_s)
        pointed_to, redirected = "", False
        recreated: TopicRecreatedError | None = None  # as a broker says, which others may not say
        while True:
            topic = await cluster.topic(self.topic, timeout_s=retry.left_s)
            if recreated and self.topic_id not in ("", topic.topic_id):
                raise recreated
            try:
                found = await attempt(topic, pointed_to, min(retry.left_s, attempt_s + wait_s))
            except MemqError as error:
                pointed_to = error.address if isinstance(error, NotHostedError) else ""
                at_once = bool(pointed_to) and not redirected
                redirected = redirected or at_once
                recreated = error if isinstance(error, TopicRecreatedError) else None
                may_pass = error.retriable or isinstance(
                    error, UnknownTopicError | TopicRecreatedError
                )
                if may_pass:
                    cluster.forget(self.topic)  # also for the calls after this one
                delay_s = retry.after(error, at_once=at_once, retriable=may_pass)
            else:
                self.topic_id = self.topic_id or topic.topic_id
                return found
            await asyncio.sleep(delay_s)


class SyncTopicClient(SyncClient[TopicClient]):
    """A `TopicClient` for threads, with connections of its own. Use it with `with`, or `close` it.

    Args:
        bootstrap: comma separated `host:port` of some brokers; None for those of `MEMQ_BOOTSTRAP`,
            of the profile, or else 127.0.0.1:6367.
        topic: the topic.
        topic_id: of the topic; empty for the one that is met first.
        token: credential; empty where the brokers ask for none.
        zone: where this client runs; empty for that of `MEMQ_ZONE`, or of the profile.
        storage_options: of the object store, for those who read objects of the topic; none for
            those of `MEMQ_STORAGE_OPTIONS`, or of the profile.
        security: what TLS needs, as a table or as "NAME=VALUE,NAME=VALUE"; none for
            those of `MEMQ_SECURITY`, or of the profile.
        client: names this client in the brokers' logs.
        request_timeout_s: how long brokers are tried before a call fails.
        loop: makes the event loop on which the calls run.
    """

    def __init__(
        self,
        bootstrap: str | None,
        topic: str,
        *,
        topic_id: str = "",
        loop: type[EventLoopThread] = EventLoopThread,
        **cluster: Unpack[ClusterArguments],
    ) -> None:
        client = TopicClient(Cluster(bootstrap, **cluster), topic, topic_id)
        super().__init__(client, loop(f"memq-topic-{topic}"))

    topic_id: str = sync_property(TopicClient, "topic_id")
    close = sync_close(TopicClient.close)
    info = sync(TopicClient.info)
    options_for = sync(TopicClient.options_for)
    offsets = sync(TopicClient.offsets)
    lasting = sync(TopicClient.lasting)
    starts = sync(TopicClient.starts)
    ranges_between = sync(TopicClient.ranges_between)
    check_retained = sync(TopicClient.check_retained)
    lag = sync(TopicClient.lag)
    watermark = sync(TopicClient.watermark)
    retained_since = sync(TopicClient.retained_since)
    groups = sync(TopicClient.groups)
    committed = sync(TopicClient.committed)
    commit = sync(TopicClient.commit)
    page = sync(TopicClient.page)
    pages = sync_iter(TopicClient.pages)
    batches_by_time = sync_iter(TopicClient.batches_by_time)

    def batches(self, ranges: Iterable[OffsetRange]) -> Iterator[PublishedBatch]:
        """Yield the Batches of some ranges; see `TopicClient.batches`."""
        for page in self.pages(ranges):
            for entry in page:
                yield published_batch(self._client.topic, entry)


def merge_watermarks(
    topic: str, write_partitions: int, answers: Sequence[m.WatermarkAnswer]
) -> m.WatermarkAnswer:
    """Merge how far a topic is stored, from what the owners of its write partitions tell.

    Each write partition is as far as its owner says; other brokers say -1. A read partition is
    as far as the least that an owner says, and so is the topic. A broker that owns nothing any more
    says -1 of all.

    Args:
        topic: its name.
        write_partitions: how many there are at least.
        answers: one of each owner.

    Raises:
        UnavailableError: nobody tells of one of the write partitions.
        ProtocolError: they do not speak of the same topic.
    """
    if len({len(answer.read_partitions) for answer in answers}) > 1:
        raise ProtocolError(f"brokers tell of different read partitions of topic {topic!r}")
    count = max([write_partitions, *(len(answer.write_partitions) for answer in answers)])
    by_write = []
    for number in range(count):
        told = [
            answer.write_partitions[number]
            for answer in answers
            if number < len(answer.write_partitions) and answer.write_partitions[number] >= 0
        ]
        if not told:
            raise UnavailableError(
                f"no broker tells how far write partition {number} of topic {topic!r} is stored now"
            )
        by_write.append(min(told))  # two tell while it moves: the lesser holds in any case
    return m.WatermarkAnswer(
        stored_through_ms=min(by_write),
        write_partitions=by_write,
        read_partitions=[
            min([each for each in told if each >= 0], default=-1)
            for told in zip(*(answer.read_partitions for answer in answers), strict=True)
        ],
        retained_since_ms=max(answer.retained_since_ms for answer in answers),
    )


def _positions(offsets: Mapping[int, int]) -> list[m.PartitionOffset]:
    return [m.PartitionOffset(partition, offset) for partition, offset in sorted(offsets.items())]
