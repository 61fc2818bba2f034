"""Following notifications and fetching Batches ahead of the application.

Theory of operation
-------------------
Each partition that is read has a *buffer*, a queue of planned Batches in the order of offsets:

    asked for --notification--> planned --room in memory--> fetching --> ready --take--> gone

- The *follower* is a task that asks the broker for the notifications after the last planned one of
  every buffer with room for more, in one long poll for all of them. Whenever buffers come, go or
  move it is restarted, so that an answer never meets a buffer that it was not asked for.
- A Batch is fetched when there is a thread for it and its size fits into what is left of the memory
  bound; one that is larger than the bound is fetched when there is nothing else in memory. Buffers
  with the fewest fetched Batches go first.
- `take` gives out the ready head of a buffer, from buffer to buffer in turn. Its memory is then the
  application's.

A buffer that cannot go on keeps its error, which `take` raises until the buffer is moved; the
others go on. When a fetch fails, the buffer forgets what it planned, so that the next `take` is a
new attempt. A buffer whose offset is not retained any more goes on where `on_out_of_range` says, or
stops.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from memq.core.ranges import retained_in_words
from memq.errors import CorruptDataError, MemqError, OffsetOutOfRangeError, ProtocolError
from memq.reading.log import published_batch
from memq.runtime.retry import BROKER_BACKOFF

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping

    from memq.client.topic import TopicClient
    from memq.core.notification import PublishedBatch
    from memq.core.wire.messages import NotificationEntry, PartitionOffsets
    from memq.reading.objects import BatchSource, FetchedBatch

T = TypeVar("T")

OnOutOfRange = Literal["error", "earliest", "latest"]

LONG_POLL_MS = 1_000  # a wait that was abandoned burdens the broker no longer than this
PLAN_AHEAD = 1_000  # notifications of all partitions, about 1 KB each; no more are asked for


@dataclass(eq=False)
class _PlannedBatch:
    """A notification, and its Batch once it is being fetched."""

    published: PublishedBatch
    task: asyncio.Task[FetchedBatch] | None = None
    held_bytes: int = 0


@dataclass(eq=False)
class _PartitionBuffer:
    """One partition; see the module's theory of operation.

    Attributes:
        partition: the partition.
        position: offset of the next Batch to give out.
        asked: offset of the next notification to ask for.
        batches: planned, fetching and ready, in the order of offsets.
        started: how many of them are fetching or ready; these come first.
        error: why it cannot go on after its batches.
    """

    partition: int
    position: int
    asked: int
    batches: deque[_PlannedBatch] = field(default_factory=deque)
    started: int = 0
    error: MemqError | None = None

    @property
    def ready(self) -> bool:
        """Whether there is a Batch or an error to give out."""
        if not self.batches:
            return self.error is not None
        task = self.batches[0].task
        return task is not None and task.done()


class Fetcher:
    """Fetches the Batches of some partitions.

    Args:
        topic: the topic.
        source: reads the Batches.
        prefetch_bytes: bound of the memory for Batches that are fetching or ready.
        concurrency: most Batches that are fetched at a time.
        on_out_of_range: where a partition goes on whose offset is not retained any more.
        wake: called when `take` may have something new to give or raise.

    Attributes:
        taken_from: where the partition of the Batch that was taken last stood before.
    """

    def __init__(
        self,
        topic: TopicClient,
        source: BatchSource,
        *,
        prefetch_bytes: int,
        concurrency: int,
        on_out_of_range: OnOutOfRange,
        wake: Callable[[], None],
    ) -> None:
        self._topic = topic
        self._source = source
        self._prefetch_bytes = prefetch_bytes
        self._concurrency = concurrency
        self._on_out_of_range = on_out_of_range
        self._wake = wake
        self.taken_from = 0
        self._buffers: dict[int, _PartitionBuffer] = {}  # in the order in which they are served
        self._held_bytes = 0
        self._fetching = 0
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._follower: asyncio.Task[None] | None = None
        self._room = asyncio.Event()
        self._trouble: MemqError | None = None  # of the follower, not raised yet

    def __repr__(self) -> str:
        return (
            f"<Fetcher {self._topic.topic} [{len(self._buffers)} partitions | "
            f"{self._planned} planned | {self._fetching} fetching | {self._held_bytes} bytes held]>"
        )

    @property
    def positions(self) -> dict[int, int]:
        """Offset of the next Batch of each partition."""
        return {partition: buffer.position for partition, buffer in sorted(self._buffers.items())}

    def move(self, offsets: Mapping[int, int]) -> None:
        """Read these partitions from these offsets on; others go on as they are."""
        for partition, offset in offsets.items():
            self._replace(partition, offset)
        self._restart_follower()

    def drop(self, partitions: Iterable[int]) -> None:
        """Stop reading these partitions."""
        for partition in partitions:
            self._discard(partition)
        self._restart_follower()
        self._pump()

    def take(self) -> FetchedBatch | None:
        """Return the next Batch, if one is ready.

        Raises:
            OffsetOutOfRangeError: the offset of a partition is not retained any more; move it.
            DataLossError: a Batch is gone; move the partition past it to go on.
            CorruptDataError: a Batch or a notification is damaged; move past it, too.
            MemqError: storage or broker failed for the whole request timeout; it is tried on.
        """
        for buffer in list(self._buffers.values()):
            if buffer.ready:
                self._buffers[buffer.partition] = self._buffers.pop(buffer.partition)  # now last
                fetched = self._take_from(buffer)
                if fetched is not None:
                    return fetched
        if self._follower is not None and self._follower.done():
            self._follower.result()  # raises what nothing expected
        if self._trouble is not None:
            trouble, self._trouble = self._trouble, None
            raise trouble
        return None

    async def close(self) -> None:
        """Stop everything and wait until it has stopped."""
        for partition in list(self._buffers):
            self._discard(partition)
        if self._follower is not None:
            self._follower.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- partition buffers ------------------------------------------------------------------

    def _replace(self, partition: int, offset: int) -> None:
        self._discard(partition)
        self._buffers[partition] = _PartitionBuffer(partition, offset, offset)

    def _discard(self, partition: int) -> None:
        buffer = self._buffers.pop(partition, None)
        for planned in buffer.batches if buffer else ():
            self._held_bytes -= planned.held_bytes
            task, planned.task = planned.task, None
            if task is not None:
                task.cancel()

    def _take_from(self, buffer: _PartitionBuffer) -> FetchedBatch | None:
        if not buffer.batches:
            assert buffer.error is not None  # noqa: S101 - what `ready` says
            raise type(buffer.error)(str(buffer.error)) from buffer.error
        planned = buffer.batches[0]
        assert planned.task is not None  # noqa: S101 - what `ready` says
        try:
            fetched = planned.task.result()
        except OffsetOutOfRangeError:
            # The follower will be told the same, and decides where to go on.
            self.move({buffer.partition: buffer.position})
            return None
        except MemqError:
            self.move({buffer.partition: buffer.position})
            raise
        buffer.batches.popleft()
        buffer.started -= 1
        self.taken_from = buffer.position
        buffer.position = planned.published.offset + 1
        self._held_bytes -= planned.held_bytes
        self._room.set()
        self._pump()
        return fetched

    # -- the follower -----------------------------------------------------------------------

    @property
    def _planned(self) -> int:
        buffers = list(self._buffers.values())  # at once: a repr may be any thread's
        return sum(len(buffer.batches) for buffer in buffers)

    def _restart_follower(self) -> None:
        if self._follower is not None:
            self._follower.cancel()
        self._follower = self._spawn(self._follow())
        self._follower.add_done_callback(lambda _: self._wake())

    async def _follow(self) -> None:
        attempt = 0
        while True:
            self._room.clear()
            positions = self._positions_to_ask()
            if not positions:
                await self._room.wait()
                continue
            try:
                await self._ask(positions)
                attempt = 0
                self._trouble = None
            except MemqError as exc:
                self._trouble = exc
                self._wake()
                await asyncio.sleep(
                    BROKER_BACKOFF.full_jitter_s(attempt, self._topic.cluster.runtime.random)
                )
                attempt += 1

    def _positions_to_ask(self) -> dict[int, int]:
        """Return the positions of the buffers that have used up half of their share."""
        half = PLAN_AHEAD // (2 * max(1, len(self._buffers)))
        return {
            buffer.partition: buffer.asked
            for buffer in self._buffers.values()
            if buffer.error is None and len(buffer.batches) <= half
        }

    async def _ask(self, positions: dict[int, int]) -> None:
        try:
            page = await self._topic.page(
                positions,
                max_entries=max(len(positions), PLAN_AHEAD - self._planned),
                max_wait_ms=LONG_POLL_MS,
            )
        except OffsetOutOfRangeError:
            if not self._realign(await self._topic.offsets()):
                raise
        else:
            self._plan(page.entries)

    def _plan(self, entries: Iterable[NotificationEntry]) -> None:
        for entry in entries:
            buffer = self._buffers.get(entry.partition)
            if buffer is None:
                raise ProtocolError(f"the broker answered for partition {entry.partition} unasked")
            if buffer.error is None and entry.offset >= buffer.asked:
                try:
                    published = published_batch(self._topic.topic, entry)
                except CorruptDataError as exc:
                    buffer.error = exc
                    self._wake()
                    continue
                buffer.batches.append(_PlannedBatch(published))
                buffer.asked = entry.offset + 1
        self._pump()

    def _realign(self, offsets: Iterable[PartitionOffsets]) -> bool:
        """Move or stop the buffers whose offset is not retained; whether there were any."""
        found = False
        for retained in offsets:
            buffer = self._buffers.get(retained.partition)
            if buffer is None or buffer.error or retained.start <= buffer.asked <= retained.end:
                continue
            found = True
            if self._on_out_of_range == "error":
                buffer.error = OffsetOutOfRangeError(
                    f"offset {buffer.asked} of {self._topic.topic}/{retained.partition} is not "
                    f"retained; {retained_in_words(retained.start, retained.end)}. Seek there, or "
                    "set on_out_of_range to earliest or latest (memq consume --on-out-of-range)"
                )
            else:
                earliest = self._on_out_of_range == "earliest"
                self._replace(retained.partition, retained.start if earliest else retained.end)
        self._wake()
        return found

    # -- fetching ---------------------------------------------------------------------------

    def _pump(self) -> None:
        """Start the fetches that there are threads and memory for."""
        while self._fetching < self._concurrency:
            waiting = [
                buffer for buffer in self._buffers.values() if buffer.started < len(buffer.batches)
            ]
            if not waiting:
                return
            buffer = min(waiting, key=lambda buffer: buffer.started)
            planned = buffer.batches[buffer.started]
            size = planned.published.notification.size_bytes
            if self._held_bytes and self._held_bytes + size > self._prefetch_bytes:
                return
            buffer.started += 1
            planned.held_bytes = size
            self._held_bytes += size
            self._fetching += 1
            planned.task = self._spawn(self._source.fetch(planned.published))
            planned.task.add_done_callback(partial(self._fetched, planned))

    def _fetched(self, planned: _PlannedBatch, task: asyncio.Task[FetchedBatch]) -> None:
        self._fetching -= 1
        dropped = planned.task is not task
        if task.cancelled() and not dropped:
            return  # the event loop is ending
        failure = None if task.cancelled() else task.exception()
        if failure is not None and not isinstance(failure, MemqError):
            self._wake()  # a bug, or threads that the interpreter's exit has ended: begin no more
            return
        if not task.cancelled() and failure is None and not dropped:
            decoded_bytes = task.result().size_bytes
            self._held_bytes += decoded_bytes - planned.held_bytes
            planned.held_bytes = decoded_bytes
        self._pump()
        self._wake()

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task
