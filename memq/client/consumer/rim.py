"""What both consumers are made of: polling, partitions that come and go, and their end.

`poll` is where everything is decided. It gives up and takes up partitions, starts a commit when one
is due, and hands out the next Batch; so whatever earlier polls handed out counts as done. Fetching
ahead and heartbeats go on in the background, whether or not the application polls.

A member that gives up a partition stops handing it out, commits (`auto_commit`), calls `on_revoke`,
and only then lets go of it, so that the next holder begins where it ended. A member that has lost
its session calls `on_lost` and commits nothing: others may work on its partitions already. Such a
*move* can take longer than a poll may; it then goes on behind it, and later polls wait for it.

A group member tells the audit what it has committed: it is counted here and reported in the
background, as producers report what they sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING

from memq.client.audit.counters import ConsumedCounters
from memq.client.audit.reporter import CLOSE_TIMEOUT_S, AuditReporter
from memq.client.cluster import Cluster
from memq.client.consumer.commits import Commits
from memq.client.consumer.fetcher import Fetcher
from memq.client.consumer.group_session import GroupSession
from memq.client.consumer.membership import Membership
from memq.client.duplicates import DuplicateWindow
from memq.client.objects import BatchSource
from memq.client.start import check_offsets, resolve
from memq.client.topic import TopicClient
from memq.core.runtime import SYSTEM, Runtime
from memq.errors import ClosedError, InvalidRequestError, MemqError, RequestTimeoutError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memq.client.batch import Batch
    from memq.client.consumer.options import ConsumerOptions, OnPartitions
    from memq.client.objects import FetchedBatch
    from memq.client.start import Start
    from memq.core.wire.messages import TopicInfo

MEMBER_ID_BYTES = 8  # random; two members of a group never share a name


class ConsumerRim:
    """A started consumer; make one with `await ConsumerRim.start(…)`.

    Attributes:
        options: of the consumer.
        queue: of the topic.
        fetcher: fetches ahead.
        commits: how far the application has come.
        repeats: Messages that were dropped because they had been handed out before.
    """

    def __init__(self, cluster: Cluster, options: ConsumerOptions, topic: TopicInfo) -> None:
        self.options = options
        self.queue = TopicClient(cluster, options.topic, topic.incarnation)
        self.repeats = 0
        self._cluster = cluster
        self._executor = cluster.runtime.threads(options.fetch_threads, "memq-fetch")
        self._source = BatchSource(
            self.queue, self._executor, read_through=options.read_through, order=options.order
        )
        self._woken = asyncio.Event()
        self.fetcher = Fetcher(
            self.queue,
            self._source,
            prefetch_bytes=options.prefetch_bytes,
            concurrency=options.fetch_threads,
            on_out_of_range=options.on_out_of_range,
            wake=self._woken.set,
        )
        self._consumed = ConsumedCounters(
            options.topic,
            topic.incarnation,
            options.group or "",
            options.client,
            now_ms=cluster.runtime.wall_ms,
        )
        self._reporter = AuditReporter(cluster, self._consumed.take_reports)
        if topic.config.audited and options.audit and options.group is not None:
            self._reporter.start()
        self.commits = Commits(
            self.queue,
            options.group,
            membership=lambda: self._session.membership if self._session else None,
            auto_interval_s=options.auto_commit_interval_ms / 1000 if options.auto_commit else None,
            on_stored=self._consumed.committed,
        )
        self._window = DuplicateWindow()
        self._session: GroupSession | None = None
        self._assigned = False  # by hand, or all of them: no group decides
        self._moving: asyncio.Task[None] | None = None
        self._polling = False
        self._closing = False

    @classmethod
    async def start(
        cls, bootstrap: str | None, options: ConsumerOptions, *, runtime: Runtime = SYSTEM
    ) -> ConsumerRim:
        """Find the topic; without a group, begin to read all of its partitions.

        Raises:
            UnknownTopicError: there is no such topic.
            UnavailableError: no broker can be reached.
        """
        cluster = Cluster(
            bootstrap,
            client=options.client,
            token=options.token,
            request_timeout_s=options.request_timeout_ms / 1000,
            runtime=runtime,
        )
        try:
            topic = await cluster.topic(options.topic)
        except BaseException:
            await cluster.close()
            raise
        rim = cls(cluster, options, topic)
        if options.group is None:
            try:
                await rim.assign(range(topic.config.read_partitions))
            except BaseException:
                await rim.close(0, orderly=False)
                raise
        return rim

    def __repr__(self) -> str:
        state = "closed" if self._closing else repr(self._session or self.commits)
        return f"[{state} | {self.fetcher!r} | {self.repeats} repeats]"

    # -- polling ----------------------------------------------------------------------------

    async def poll(self, timeout_s: float) -> Batch | None:
        """The next Batch; None when there is none within `timeout_s`."""
        self._check_open()
        if self._polling:
            raise InvalidRequestError("poll was called while another poll of this consumer waits")
        self._polling = True
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        session = self._session_if_group()
        if session:
            session.poll_begins()
        try:
            self.commits.auto_commit()
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
        while (fetched := self.fetcher.take()) is not None:
            batch, repeats = self._without_repeats(fetched)
            next_offset = batch.offset + 1
            self.commits.moved(batch.partition, next_offset)
            if self._reporter.started:
                self._consumed.handed_out(
                    batch.partition,
                    self.fetcher.taken_from,
                    next_offset,
                    records=len(batch),
                    entries=fetched.entries,
                    duplicates=repeats,
                )
            if len(batch):
                return batch
        return None

    def _without_repeats(self, fetched: FetchedBatch) -> tuple[Batch, list[int]]:
        batch = fetched.batch
        place = (batch.partition, batch.offset)
        repeats = self._window.find(place, batch.notification.write_partition, fetched.entries)
        if not repeats:
            return batch, repeats
        self.repeats += len(repeats)
        return self._source.without(fetched, repeats), repeats

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
        """Partitions that are read now, sorted."""
        return list(self.fetcher.positions)

    def _session_if_group(self) -> GroupSession | None:
        if self._session is None and self.options.group is not None and not self._assigned:
            membership = Membership(
                group=self.options.group,
                topic=self.options.topic,
                member_id=self._cluster.runtime.token_hex(MEMBER_ID_BYTES),
                client=self.options.client,
                session_timeout_ms=self.options.session_timeout_ms,
            )
            self._session = GroupSession(
                self.queue,
                membership,
                session_timeout_s=self.options.session_timeout_ms / 1000,
                max_poll_interval_s=self.options.max_poll_interval_ms / 1000,
                wake=self._woken.set,
            )
        return self._session

    def _in_place(self) -> bool:
        """Whether no partition has to come or go, and none is about to."""
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
            await self._lose(membership)
        if membership.to_release:
            await self._release(membership, membership.to_release)
            session.nudge()
        if membership.to_start:
            await self._start(membership, membership.to_start)

    async def _lose(self, membership: Membership) -> None:
        lost, membership.lost = membership.lost, set()
        self._stop_reading(lost)
        await _notify(self.options.on_lost, lost)

    async def _release(self, membership: Membership, partitions: set[int]) -> None:
        self.fetcher.drop(partitions)
        failed: MemqError | None = None
        if self.commits.auto:
            # Cut short here, by `close`, they are still held, and given up there with the others.
            try:
                await self.commits.commit_if_owner(self.commits.pending(partitions))
            except MemqError as exc:
                failed = exc  # they are given up all the same
        try:
            await _notify(self.options.on_revoke, partitions)
        finally:
            membership.released(partitions)
            self._stop_reading(partitions)
        if failed is not None:
            raise failed

    async def _start(self, membership: Membership, partitions: set[int]) -> None:
        offsets, committed = await self._beginnings(partitions)
        # The group may have changed its mind meanwhile.
        partitions = partitions & membership.to_start
        membership.started(partitions)
        self.commits.forget(partitions)
        self._begin({partition: offsets[partition] for partition in partitions}, committed)
        await _notify(self.options.on_assign, partitions)

    def _begin(self, offsets: Mapping[int, int], committed: Mapping[int, int]) -> None:
        self.fetcher.move(offsets)
        for partition in offsets:
            self._consumed.took_up(partition, committed.get(partition))

    def _stop_reading(self, partitions: Iterable[int]) -> None:
        self.fetcher.drop(partitions)
        self.commits.forget(partitions)
        self._consumed.gave_up(partitions)

    async def _beginnings(self, partitions: Iterable[int]) -> tuple[dict[int, int], dict[int, int]]:
        """Where to begin: where the group has come to, or else at the start asked for.

        Returns:
            These offsets, and those of them that the group has committed.
        """
        offsets = await resolve(self.queue, self.options.start, partitions)
        committed = {}
        if self.options.group is not None:
            found = await self.queue.committed(self.options.group)
            committed = {p: offset for p, offset in found.items() if p in offsets}
        return offsets | committed, committed

    async def assign(self, partitions: Iterable[int] | Mapping[int, int]) -> None:
        """Read just these partitions, from offsets if they are given; leaves the group."""
        self._check_open()
        committed: dict[int, int] = {}
        if isinstance(partitions, Mapping):
            check_offsets(partitions)
            offsets = await resolve(self.queue, partitions, partitions)
        else:
            offsets, committed = await self._beginnings(partitions)
        self._assigned = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()
        self._stop_reading(self.assignment)
        self._begin(offsets, committed)
        self._woken.set()

    # -- positions --------------------------------------------------------------------------

    async def seek(self, start: Start, partitions: Iterable[int] | None = None) -> None:
        """Go on elsewhere with partitions that are read, or with all of them."""
        self._check_open()
        wanted = self.assignment if partitions is None else list(partitions)
        for partition in wanted:
            self.position(partition)
        offsets = await resolve(self.queue, start, wanted)
        here = {p: offset for p, offset in offsets.items() if p in self.fetcher.positions}
        self.fetcher.move(here)
        for partition, offset in here.items():
            self.commits.moved(partition, offset)
        self._woken.set()

    def position(self, partition: int) -> int:
        """Offset of the next Batch of a partition."""
        positions = self.fetcher.positions
        if partition not in positions:
            raise InvalidRequestError(
                f"partition {partition!r} of {self.options.topic!r} is not read by this consumer; "
                f"it reads {list(positions)}"
            )
        return positions[partition]

    async def lag(self) -> dict[int, int]:
        """Batches that are published and not handed out yet, by partition."""
        self._check_open()
        ends = {held.partition: held.end for held in await self.queue.offsets()}
        positions = self.fetcher.positions
        return {p: max(0, ends[p] - position) for p, position in positions.items()}

    async def committed(self) -> dict[int, int]:
        """Next offsets that the group has committed, by partition."""
        self._check_open()
        if self.options.group is None:
            raise InvalidRequestError("a consumer without a group has committed nothing")
        return await self.queue.committed(self.options.group)

    async def commit(self, offsets: Mapping[int, int] | None = None) -> None:
        """Commit these next offsets, or how far the application has come."""
        self._check_open()
        if offsets is not None:
            check_offsets(offsets)
        await self.commits.commit(self.commits.pending() if offsets is None else offsets)

    # -- the end ----------------------------------------------------------------------------

    async def close(self, timeout_s: float, *, orderly: bool) -> None:
        """Stop; in order, with a last commit and `on_revoke`, or as after a crash."""
        if self._closing:
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
            self._closing = True
            self._woken.set()
            # Also what it was about to give up: what it committed of that is to be reported.
            held = self._session.membership.held if self._session is not None else set()
            if self._session is not None:
                await self._session.close()
            await self.commits.close()
            self._stop_reading({*self.assignment, *held})
            await self.fetcher.close()
            left_s = started_s + timeout_s - asyncio.get_running_loop().time()
            await self._reporter.close(max(0.0, min(left_s, CLOSE_TIMEOUT_S)))
            await self._cluster.close()
            self._executor.shutdown(wait=False, cancel_futures=True)

    async def _finish(self) -> None:
        if self.commits.auto:
            await self.commits.settle()
            await self.commits.commit_if_owner(self.commits.pending())
        if self._session is not None and self._session.membership.held:
            await _notify(self.options.on_revoke, self._session.membership.held)

    def _check_open(self) -> None:
        if self._closing:
            raise ClosedError("this consumer is closed")


async def _notify(callback: OnPartitions | None, partitions: Iterable[int]) -> None:
    found = sorted(partitions)
    if callback is not None and found:
        answer = callback(found)
        if isinstance(answer, Awaitable):
            await answer
