"""Consumers: `Consumer` for threads, `AsyncConsumer` for asyncio.

Both read a topic Batch by Batch: all of its partitions, the ones they are assigned, or as members
of a group those that the group gives them.

What is delivered. The Batches of a partition come in the order of their offsets, each at least
once: after a crash a group goes on after its last commit. A commit covers whole Batches. A consumer
never skips what it cannot read: it raises, and goes on where `seek` says.

Offsets, positions and lag count Batches, not LogMessages.

How it works. `poll` is where everything is decided. It gives up and takes up partitions, starts a
commit when one is due, and hands out the next Batch; so whatever earlier polls handed out counts as
done. Fetching ahead and heartbeats go on in the background, whether or not the application polls.

A member that gives up a partition stops handing it out, commits (`auto_commit`), calls `on_revoke`,
and only then lets go of it, so that the next holder begins where it ended. A member that has lost
its session calls `on_lost` and commits nothing: others may work on its partitions already. Such a
*move* can take longer than a poll may; then it goes on after the poll, and later polls wait for it.

A group member tells the audit what it has committed: it is counted here and reported in the
background, as producers report what they sent.
"""

# ruff: noqa: SLF001 - a sync client may look into its async twin

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING

from memq.client.audit.counters import ConsumedCounters
from memq.client.audit.reporter import CLOSE_TIMEOUT_S as REPORT_TIMEOUT_S
from memq.client.audit.reporter import AuditReporter
from memq.client.cluster import Cluster
from memq.client.consumer.fetcher import Fetcher
from memq.client.consumer.group import Commits, GroupMembership, GroupSession
from memq.client.consumer.options import ConsumerOptions
from memq.client.sync import (
    EventLoopThread,
    SyncClient,
    documented_by,
    sync,
    sync_close,
    sync_property,
)
from memq.client.topic import TopicClient
from memq.errors import ClosedError, InvalidRequestError, MemqError, RequestTimeoutError
from memq.reading.objects import BatchSource
from memq.reading.start import check_offsets, resolve
from memq.runtime.system import SYSTEM, Runtime
from memq.runtime.tracing import place, tracing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator
    from datetime import datetime
    from types import TracebackType
    from typing import Self, Unpack

    from memq.client.consumer.options import ConsumerArguments, OnPartitions
    from memq.core.wire.messages import TopicInfo
    from memq.reading.batch import Batch
    from memq.reading.start import Start

ITERATION_POLL_S = 1.0  # an iteration polls again and again; this only bounds one round
CLOSE_TIMEOUT_S = 10.0  # for the last commit
MEMBER_ID_BYTES = 8  # random; two members of a group never share a name


class AsyncConsumer:
    """Reads one topic, from one event loop. Use it with `async with`, or `start` and `close`.

    Args:
        bootstrap: comma separated `host:port` of some brokers; None for those of `MEMQ_BOOTSTRAP`,
            of the profile, or else 127.0.0.1:6367.
        topic: the topic to read.
        runtime: clocks, chance and threads.
        **options: see `ConsumerArguments`.

    Raises:
        ConfigError: an option is of the wrong type, or out of its limits.
        InvalidRequestError: topic or group cannot be a name.
    """

    def __init__(
        self,
        bootstrap: str | None = None,
        *,
        topic: str,
        runtime: Runtime = SYSTEM,
        **options: Unpack[ConsumerArguments],
    ) -> None:
        self._bootstrap = bootstrap
        self._runtime = runtime
        self._options = ConsumerOptions.parse(topic=topic, **options)
        # Replaced where the callbacks run in another thread.
        self._call_back: Callable[[OnPartitions, list[int]], Awaitable[None]] = _call_back
        self._woken = asyncio.Event()
        self._session: GroupSession | None = None
        self._assigned = False  # by hand, or all of them: no group decides
        self._moving: asyncio.Task[None] | None = None
        self._polling = False
        self._started = self._closed = False
        self._tracing = tracing()

    async def start(self) -> Self:
        """Find the topic, and begin; a group is joined by the first poll. Again it does nothing.

        Raises:
            UnknownTopicError: there is no such topic.
            UnavailableError: no broker can be reached.
        """
        if self._started:
            return self
        options = self._options
        cluster = Cluster(
            self._bootstrap,
            client=options.client,
            token=options.token,
            security=options.security,
            zone=options.zone,
            storage_options=options.storage_options,
            request_timeout_s=options.request_timeout_ms / 1000,
            group=options.group or "",
            runtime=self._runtime,
        )
        try:
            topic = await cluster.topic(options.topic)
        except BaseException:
            await cluster.close()
            raise
        self._set_up(cluster, topic)
        if options.group is None:
            try:
                await self.assign(range(topic.config.read_partitions))
            except BaseException:
                await self._end(0, orderly=False)
                raise
        return self

    def _set_up(self, cluster: Cluster, topic: TopicInfo) -> None:
        options = self._options
        self._cluster = cluster
        self._topic = TopicClient(cluster, options.topic, topic.topic_id)
        self._executor = self._runtime.threads(options.fetch_threads, "memq-fetch")
        source = self._source = BatchSource(
            self._topic, self._executor, read_through=options.read_through, order=options.order
        )
        self._fetcher = Fetcher(
            self._topic,
            source,
            prefetch_bytes=options.prefetch_bytes,
            concurrency=options.fetch_threads,
            on_out_of_range=options.on_out_of_range,
            wake=self._woken.set,
        )
        to_report = asyncio.Event()
        self._consumed = ConsumedCounters(
            options.topic,
            topic.topic_id,
            options.group or "",
            options.client,
            now_ms=self._runtime.wall_ms,
            on_report=to_report.set,
        )
        self._reporter = AuditReporter(cluster, self._consumed.take_reports, woken=to_report)
        reports = topic.config.audited and options.audit and options.group is not None
        if reports:
            self._reporter.start()
        self._commits = Commits(
            self._topic,
            options.group,
            positions=lambda: self._fetcher.positions,
            membership=lambda: self._session.membership if self._session else None,
            auto_interval_s=options.auto_commit_interval_ms / 1000 if options.auto_commit else None,
            on_stored=self._consumed.committed if reports else lambda _: None,
        )
        self._started = True

    def __repr__(self) -> str:
        if not self._started:
            return f"<AsyncConsumer {self._options.topic} not started>"
        state = "closed" if self._closed else repr(self._session or self._commits)
        return f"<AsyncConsumer {self._options.topic} [{state} | {self._fetcher!r}]>"

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # What was in work when the body failed is not done: it must not be committed.
        await self._end(CLOSE_TIMEOUT_S, orderly=exc is None)

    async def __aiter__(self) -> AsyncIterator[Batch]:
        """Batches without end; leave it with `break`."""
        while True:
            batch = await self.poll(ITERATION_POLL_S)
            if batch is not None:
                yield batch

    # -- polling ----------------------------------------------------------------------------

    async def poll(self, timeout: float = 1.0) -> Batch | None:  # noqa: ASYNC109 - its own outcome
        """Return the next Batch; None when there is none within `timeout` seconds.

        What earlier polls handed out counts as done from now on: `auto_commit` may commit it.

        Raises:
            OffsetOutOfRangeError: retention has removed the next offset; `seek` elsewhere.
            DataLossError: the next Batch is gone though it should be there; `seek` past it.
            CorruptDataError: it is damaged; `seek` past it.
            StorageError: the storage failed for the whole request timeout; poll again.
            UnavailableError: the broker did; poll again.
            InvalidRequestError: another poll of this consumer waits.
            ClosedError: the consumer is closed.
            MemqError: what else the brokers answered, to an auto-commit for instance.
        """
        self._check_open()
        if self._polling:
            raise InvalidRequestError("poll was called while another poll of this consumer waits")
        self._polling = True
        deadline_s = asyncio.get_running_loop().time() + timeout
        session = self._session_if_group()
        if session:
            session.poll_begins()
        try:
            self._commits.auto_commit()
            while True:
                self._woken.clear()
                batch = self._next() if self._in_place() else None
                if batch is not None or not await self._wait(deadline_s):
                    return batch
                self._check_open()
        finally:
            self._polling = False
            if session:
                session.poll_ends()

    def _next(self) -> Batch | None:
        fetched = self._fetcher.take()
        if fetched is None:
            return None
        batch = fetched.batch
        next_offset = batch.offset + 1
        if self._reporter.started:
            self._consumed.handed_out(
                batch.partition,
                self._fetcher.taken_from,
                next_offset,
                records=len(batch),
                entries=fetched.entries,
            )
        if self._tracing is not None:
            named = place(batch.notification.batch_id, batch.partition, batch.offset)
            self._tracing.received(batch.topic, len(batch), named)
        return batch

    async def _wait(self, deadline_s: float) -> bool:
        """Wait until something has changed; False when it has not by the deadline."""
        try:
            async with asyncio.timeout_at(deadline_s):
                await self._woken.wait()
        except TimeoutError:
            return False
        return True

    # -- partitions that come and go --------------------------------------------------------

    @property
    def assignment(self) -> list[int]:
        """Partitions that are read now, sorted; a group gives them out from the first poll on."""
        self._check_started()
        return list(self._fetcher.positions)

    @property
    def throttled_ms(self) -> int:
        """For how long brokers let this consumer wait so far, by its quotas."""
        self._check_started()
        return self._cluster.throttled_ms

    @property
    def storage_requests(self) -> dict[str, int]:
        """What it asked of object stores so far, which bill it: "get", and "get_bytes".

        What brokers read for it is not in it.
        """
        self._check_started()
        return dict(self._source.requests)

    async def assign(self, partitions: Iterable[int] | Mapping[int, int]) -> None:
        """Read just these partitions.

        Args:
            partitions: their numbers, to begin where the group has committed or else at `start`;
                or the offset to begin at by partition. A group member leaves its group; it can
                still commit, as long as the group has no members.

        Raises:
            InvalidRequestError: there is no such partition, or an offset is negative.
            MemqError: the broker failed for the whole request timeout.
        """
        self._check_open()
        if isinstance(partitions, Mapping):
            check_offsets(partitions)
            offsets = await resolve(self._topic, partitions, partitions)
            committed = await self._committed(offsets)
        else:
            offsets = await resolve(self._topic, self._options.start, partitions)
            committed = await self._committed(offsets)
            offsets |= committed
        self._assigned = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()
        self._stop_reading(self.assignment)
        self._commits.begin_at(offsets)
        self._read_from(offsets, committed)
        self._woken.set()

    def _session_if_group(self) -> GroupSession | None:
        if self._session is None and self._options.group is not None and not self._assigned:
            membership = GroupMembership(
                group=self._options.group,
                topic=self._options.topic,
                member_id=self._runtime.token_hex(MEMBER_ID_BYTES),
                client=self._options.client,
                session_timeout_ms=self._options.session_timeout_ms,
            )
            self._session = GroupSession(
                self._topic,
                membership,
                max_poll_interval_s=self._options.max_poll_interval_ms / 1000,
                wake=self._woken.set,
            )
        return self._session

    def _in_place(self) -> bool:
        """Return whether no partition has to come or go, and none is about to."""
        while self._moving is not None or self._must_move():
            if self._moving is None:
                self._moving = asyncio.get_running_loop().create_task(self._move())
                self._moving.add_done_callback(lambda _: self._woken.set())
            if not self._moving.done():
                return False
            moved, self._moving = self._moving, None
            moved.result()
        return True

    def _must_move(self) -> bool:
        session = self._session
        if session is None:
            return False
        session.membership.expire(session.now_ms())
        if not session.membership.must_move:
            session.check()  # only after what was lost has been given up
        return session.membership.must_move

    async def _move(self) -> None:
        assert self._session is not None  # noqa: S101 - only a group moves partitions
        session, membership = self._session, self._session.membership
        if membership.lost:
            await self._stop_lost(membership)
        if membership.to_release:
            await self._give_up(membership, membership.to_release)
            session.nudge()
        if membership.to_start:
            await self._take_up(membership, membership.to_start)

    async def _stop_lost(self, membership: GroupMembership) -> None:
        lost, membership.lost = membership.lost, set()
        self._stop_reading(lost)
        await self._notify(self._options.on_lost, lost)

    async def _give_up(self, membership: GroupMembership, partitions: set[int]) -> None:
        failed: MemqError | None = None
        if self._commits.auto:
            # Cut short here, by `close`, they are still held, and given up there with the others.
            try:
                await self._commits.commit_if_owner(self._commits.pending(partitions))
            except MemqError as exc:
                failed = exc  # they are given up all the same
        try:
            await self._notify(self._options.on_revoke, partitions)
        finally:
            membership.released(partitions)
            self._stop_reading(partitions)
        if failed is not None:
            raise failed

    async def _take_up(self, membership: GroupMembership, partitions: set[int]) -> None:
        offsets = await resolve(self._topic, self._options.start, partitions)
        committed = await self._committed(offsets)
        offsets |= committed
        # The group may have changed its mind meanwhile, and the session may be over.
        if self._session is not None:
            membership.expire(self._session.now_ms())
        partitions = partitions & membership.to_start
        membership.started(partitions)
        self._commits.forget(partitions)
        self._commits.begin_at({p: at for p, at in committed.items() if p in partitions})
        self._read_from({partition: offsets[partition] for partition in partitions}, committed)
        await self._notify(self._options.on_assign, partitions)  # which may seek, and commit
        await self._commits.begin(partitions - committed.keys())

    def _read_from(self, offsets: Mapping[int, int], committed: Mapping[int, int]) -> None:
        self._fetcher.move(offsets)
        for partition in offsets if self._reporter.started else ():
            self._consumed.took_up(partition, committed.get(partition))

    async def _notify(self, callback: OnPartitions | None, partitions: Iterable[int]) -> None:
        found = sorted(partitions)
        if callback is not None and found:
            await self._call_back(callback, found)

    def _stop_reading(self, partitions: Iterable[int]) -> None:
        self._fetcher.drop(partitions)
        self._commits.forget(partitions)
        self._consumed.gave_up(partitions)

    async def _committed(self, partitions: Iterable[int]) -> dict[int, int]:
        """Return the group's committed offsets in some partitions, where it has committed."""
        if self._options.group is None:
            return {}
        found = await self._topic.committed(self._options.group)
        return {partition: found[partition] for partition in partitions if partition in found}

    # -- positions --------------------------------------------------------------------------

    async def seek(self, partition: int, offset: int) -> None:
        """Go on with a partition at an offset; `commit` will commit it.

        Raises:
            InvalidRequestError: the partition is not read by this consumer.
            MemqError: the broker failed for the whole request timeout.
        """
        await self._seek({partition: offset}, [partition])

    async def seek_to_beginning(self, partitions: Iterable[int] | None = None) -> None:
        """Go on with these partitions (None: all that are read) at the first offset that is
        retained.

        Raises:
            as `seek`.
        """
        await self._seek("earliest", partitions)

    async def seek_to_end(self, partitions: Iterable[int] | None = None) -> None:
        """Go on with these partitions (None: all that are read) after the last Batch.

        Raises:
            as `seek`.
        """
        await self._seek("latest", partitions)

    async def seek_to_time(self, at: datetime, partitions: Iterable[int] | None = None) -> None:
        """Go on with these partitions (None: all) at the first Batch published at `at` or later.

        Raises:
            ConfigError: the time has no time zone.
            as `seek`.
        """
        await self._seek(at, partitions)

    async def _seek(self, start: Start, partitions: Iterable[int] | None = None) -> None:
        self._check_open()
        wanted = self.assignment if partitions is None else list(partitions)
        for partition in wanted:
            self.position(partition)
        offsets = await resolve(self._topic, start, wanted)
        held = self._fetcher.positions
        self._fetcher.move({p: offset for p, offset in offsets.items() if p in held})
        self._commits.forget(offsets)  # so that the next commit stores where it goes on
        self._woken.set()

    def position(self, partition: int) -> int:
        """Offset of the next Batch of a partition.

        Raises:
            InvalidRequestError: the partition is not read by this consumer.
        """
        self._check_started()
        positions = self._fetcher.positions
        if partition not in positions:
            raise InvalidRequestError(
                f"partition {partition!r} of {self._options.topic!r} is not read by this consumer; "
                f"it reads {list(positions)}"
            )
        return positions[partition]

    async def lag(self) -> dict[int, int]:
        """Batches that are published and not handed out yet, of each partition that is read.

        What retention has removed is not among them: nobody can read it any more.

        Raises:
            CorruptDataError: a notification that is to be counted is damaged.
            MemqError: the broker failed for the whole request timeout.
        """
        self._check_open()
        lag = await self._topic.lag(self._fetcher.positions)
        return {partition: each.batches for partition, each in lag.items()}

    async def committed(self) -> dict[int, int]:
        """Next offsets that the group has committed; partitions without one are absent.

        Raises:
            InvalidRequestError: there is no group.
            MemqError: the broker failed for the whole request timeout.
        """
        self._check_open()
        if self._options.group is None:
            raise InvalidRequestError("a consumer without a group has committed nothing")
        return await self._topic.committed(self._options.group)

    async def commit(self, offsets: Mapping[int, int] | None = None) -> None:
        """Commit for the group.

        Args:
            offsets: next offset by partition; None for all Batches handed out so far.

        Raises:
            InvalidRequestError: there is no group, or the consumer was assigned its partitions by
                hand and the group has members.
            NotOwnerError: another member holds one of the partitions by now.
            OffsetOutOfRangeError: an offset is not retained.
            MemqError: the broker failed for the whole request timeout.
        """
        self._check_open()
        if offsets is not None:
            check_offsets(offsets)
        await self._commits.commit(self._commits.pending() if offsets is None else offsets)

    # -- the end ----------------------------------------------------------------------------

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:  # noqa: ASYNC109 - its own error
        """Commit what was handed out (`auto_commit`), leave the group, stop. Idempotent.

        Raises:
            RequestTimeoutError: the commit takes longer than `timeout` seconds.
            MemqError: the commit failed.
        """
        await self._end(timeout, orderly=True)

    async def _end(self, timeout_s: float, *, orderly: bool) -> None:
        """Stop; in order, with a last commit and `on_revoke`, or as after a crash."""
        if self._closed or not self._started:
            return
        started_s = asyncio.get_running_loop().time()
        try:
            if self._moving is not None:
                self._moving.cancel()
                await asyncio.gather(self._moving, return_exceptions=True)
            if orderly:
                async with asyncio.timeout(timeout_s):
                    await self._finish()
        except TimeoutError as exc:
            raise RequestTimeoutError(f"the last commit took longer than {timeout_s:g} s") from exc
        finally:
            self._closed = True
            self._woken.set()
            # Also what it was about to give up: what it committed of that is to be reported.
            held = self._session.membership.held if self._session is not None else set()
            if self._session is not None:
                await self._session.close()
            await self._commits.close()
            self._stop_reading({*self.assignment, *held})
            await self._fetcher.close()
            left_s = started_s + timeout_s - asyncio.get_running_loop().time()
            await self._reporter.close(max(0.0, min(left_s, REPORT_TIMEOUT_S)))
            await self._cluster.close()
            self._executor.shutdown(wait=False, cancel_futures=True)

    async def _finish(self) -> None:
        if self._commits.auto:
            await self._commits.settle()
            await self._commits.commit_if_owner(self._commits.pending())
        if self._session is not None and self._session.membership.held:
            await self._notify(self._options.on_revoke, self._session.membership.held)

    def _check_started(self) -> None:
        if not self._started:
            raise ClosedError("this consumer is not started; use `async with`, or `await start()`")

    def _check_open(self) -> None:
        self._check_started()
        if self._closed:
            raise ClosedError("this consumer is closed")


async def _call_back(callback: OnPartitions, partitions: list[int]) -> None:
    answer = callback(partitions)
    if isinstance(answer, Awaitable):
        await answer


class Consumer(SyncClient[AsyncConsumer]):
    """Reads one topic, from one thread at a time. Use it with `with`, or `close` it.

    It finds the topic when it is made; an event loop in a background thread does the rest, while
    the callbacks run in the thread that polls or closes. In a child process after a fork it raises
    `ClosedError`: make another one there.

    Args:
        bootstrap: comma separated `host:port` of some brokers; None for those of `MEMQ_BOOTSTRAP`,
            of the profile, or else 127.0.0.1:6367.
        topic: the topic to read.
        **options: see `ConsumerArguments`.

    Raises:
        ConfigError: an option is of the wrong type, or out of its limits.
        InvalidRequestError: topic or group cannot be a name.
        UnknownTopicError: there is no such topic.
        UnavailableError: no broker can be reached.
    """

    def __init__(
        self, bootstrap: str | None = None, *, topic: str, **options: Unpack[ConsumerArguments]
    ) -> None:
        client = AsyncConsumer(bootstrap, topic=topic, **options)
        super().__init__(client, EventLoopThread(f"memq-consumer-{topic}"))
        client._call_back = self._callbacks.call

    def __iter__(self) -> Iterator[Batch]:
        """Batches without end; leave it with `break`."""
        while True:
            batch = self.poll(ITERATION_POLL_S)
            if batch is not None:
                yield batch

    assignment: list[int] = sync_property(AsyncConsumer, "assignment")
    throttled_ms: int = sync_property(AsyncConsumer, "throttled_ms")
    storage_requests: dict[str, int] = sync_property(AsyncConsumer, "storage_requests")

    @documented_by(AsyncConsumer.position)
    def position(self, partition: int) -> int:
        return self._client.position(partition)

    poll = sync(AsyncConsumer.poll, callbacks=True)
    assign = sync(AsyncConsumer.assign)
    seek = sync(AsyncConsumer.seek)
    seek_to_beginning = sync(AsyncConsumer.seek_to_beginning)
    seek_to_end = sync(AsyncConsumer.seek_to_end)
    seek_to_time = sync(AsyncConsumer.seek_to_time)
    lag = sync(AsyncConsumer.lag)
    committed = sync(AsyncConsumer.committed)
    commit = sync(AsyncConsumer.commit)
    close = sync_close(AsyncConsumer.close)
