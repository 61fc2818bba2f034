"""Following notifications and fetching Batches ahead of the application.

Theory of operation
-------------------
Each partition that is read has a *lane*, a queue of slots in the order of offsets:

    asked for --notification--> planned --room in memory--> fetching --> ready --take--> gone

- The *follower* is a task that asks the broker for the notifications behind the last planned one
  of every lane with room for more, in one long poll for all of them. Whenever lanes come, go or
  move it is started anew, so that an answer never meets a lane that it was not asked for.
- A slot is fetched when there is a thread for it and its size fits into what is left of the memory
  bound; a Batch that is larger than the bound is fetched when nothing else is held. Lanes that hold
  least go first.
- `take` gives out the ready head of a lane, from lane to lane in turn. Its memory is then the
  application's.

A lane that cannot go on keeps its error, which `take` raises until the lane is moved; the others go
on. When a fetch fails, the lane forgets what it planned, so that the next `take` is a new attempt.
A lane whose offset is not held any more goes on where `on_out_of_range` says, or stops.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from memq.client.topic import published_batch
from memq.core.retry import BROKER_BACKOFF
from memq.errors import CorruptDataError, MemqError, OffsetOutOfRangeError, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping

    from memq.client.objects import BatchSource, FetchedBatch
    from memq.client.topic import TopicClient
    from memq.core.notification.notification import PublishedBatch
    from memq.core.wire.messages import NotificationEntry, PartitionOffsets

T = TypeVar("T")

OnOutOfRange = Literal["error", "earliest", "latest"]

LONG_POLL_MS = 1_000  # a wait that was abandoned burdens the broker no longer than this
PLAN_AHEAD = 1_000  # notifications held for all lanes, about 1 KB each; more are never asked for


@dataclass(eq=False)
class _Slot:
    """A notification, and its Batch once it is being fetched."""

    published: PublishedBatch
    task: asyncio.Task[FetchedBatch] | None = None
    held_bytes: int = 0


@dataclass(eq=False)
class _Lane:
    """One partition; see the module's theory of operation.

    Attributes:
        partition: the partition.
        position: offset of the next Batch to give out.
        asked: offset of the next notification to ask for.
        slots: planned, fetching and ready, in the order of offsets.
        started: slots that are fetching or ready; they stand in front.
        error: why it cannot go on behind its slots.
    """

    partition: int
    position: int
    asked: int
    slots: deque[_Slot] = field(default_factory=deque)
    started: int = 0
    error: MemqError | None = None

    @property
    def ready(self) -> bool:
        """Whether there is a Batch or an error to give out."""
        if not self.slots:
            return self.error is not None
        task = self.slots[0].task
        return task is not None and task.done()


class Fetcher:
    """Fetches the Batches of some partitions.

    Args:
        queue: of the topic.
        source: reads the Batches.
        prefetch_bytes: bound of the memory for Batches that are fetching or ready.
        concurrency: most Batches that are fetched at a time.
        on_out_of_range: where a lane goes on whose offset is not held any more.
        wake: called when `take` may have something new to give or raise.

    Attributes:
        taken_from: where the partition of the Batch that was taken last stood before.
    """

    def __init__(
        self,
        queue: TopicClient,
        source: BatchSource,
        *,
        prefetch_bytes: int,
        concurrency: int,
        on_out_of_range: OnOutOfRange,
        wake: Callable[[], None],
    ) -> None:
        self._queue = queue
        self._source = source
        self._prefetch_bytes = prefetch_bytes
        self._concurrency = concurrency
        self._on_out_of_range = on_out_of_range
        self._wake = wake
        self.taken_from = 0
        self._lanes: dict[int, _Lane] = {}  # in the order in which they are served
        self._held_bytes = 0
        self._fetching = 0
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._follower: asyncio.Task[None] | None = None
        self._room = asyncio.Event()
        self._trouble: MemqError | None = None  # of the follower, not raised yet

    def __repr__(self) -> str:
        return (
            f"<Fetcher {self._queue.topic} [{len(self._lanes)} lanes | {self._planned} planned | "
            f"{self._fetching} fetching | {self._held_bytes} bytes held]>"
        )

    @property
    def positions(self) -> dict[int, int]:
        """Offset of the next Batch of each partition."""
        return {partition: lane.position for partition, lane in sorted(self._lanes.items())}

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
        """The next Batch, if one is ready.

        Raises:
            OffsetOutOfRangeError: a partition does not hold its offset any more; move it.
            DataLossError: a Batch is gone; move the partition past it to go on.
            CorruptDataError: a Batch or a notification is damaged; likewise.
            MemqError: storage or broker failed for the whole request timeout; it is tried on.
        """
        for lane in list(self._lanes.values()):
            if lane.ready:
                self._lanes[lane.partition] = self._lanes.pop(lane.partition)  # others come first
                fetched = self._take_from(lane)
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
        for partition in list(self._lanes):
            self._discard(partition)
        if self._follower is not None:
            self._follower.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- lanes ------------------------------------------------------------------------------

    def _replace(self, partition: int, offset: int) -> None:
        self._discard(partition)
        self._lanes[partition] = _Lane(partition, offset, offset)

    def _discard(self, partition: int) -> None:
        lane = self._lanes.pop(partition, None)
        for slot in lane.slots if lane else ():
            self._held_bytes -= slot.held_bytes
            task, slot.task = slot.task, None
            if task is not None:
                task.cancel()

    def _take_from(self, lane: _Lane) -> FetchedBatch | None:
        if not lane.slots:
            assert lane.error is not None  # noqa: S101 - what `ready` says
            raise type(lane.error)(str(lane.error)) from lane.error
        slot = lane.slots[0]
        assert slot.task is not None  # noqa: S101 - likewise
        try:
            fetched = slot.task.result()
        except OffsetOutOfRangeError:
            # The follower will be told the same, and decides where to go on.
            self.move({lane.partition: lane.position})
            return None
        except MemqError:
            self.move({lane.partition: lane.position})
            raise
        lane.slots.popleft()
        lane.started -= 1
        self.taken_from = lane.position
        lane.position = slot.published.offset + 1
        self._held_bytes -= slot.held_bytes
        self._room.set()
        self._pump()
        return fetched

    # -- the follower -----------------------------------------------------------------------

    @property
    def _planned(self) -> int:
        return sum(len(lane.slots) for lane in list(self._lanes.values()))  # any thread's repr

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
                    BROKER_BACKOFF.full_jitter_s(attempt, self._queue.cluster.runtime.random)
                )
                attempt += 1

    def _positions_to_ask(self) -> dict[int, int]:
        """The lanes that have used up half of their share."""
        half = PLAN_AHEAD // (2 * max(1, len(self._lanes)))
        return {
            lane.partition: lane.asked
            for lane in self._lanes.values()
            if lane.error is None and len(lane.slots) <= half
        }

    async def _ask(self, positions: dict[int, int]) -> None:
        try:
            page = await self._queue.page(
                positions,
                max_entries=max(len(positions), PLAN_AHEAD - self._planned),
                max_wait_ms=LONG_POLL_MS,
            )
        except OffsetOutOfRangeError:
            if not self._realign(await self._queue.offsets()):
                raise
        else:
            self._plan(page.entries)

    def _plan(self, entries: Iterable[NotificationEntry]) -> None:
        for entry in entries:
            lane = self._lanes.get(entry.partition)
            if lane is None:
                raise ProtocolError(f"the broker answered for partition {entry.partition} unasked")
            if lane.error is None and entry.offset >= lane.asked:
                try:
                    published = published_batch(self._queue.topic, entry)
                except CorruptDataError as exc:
                    lane.error = exc
                    self._wake()
                    continue
                lane.slots.append(_Slot(published))
                lane.asked = entry.offset + 1
        self._pump()

    def _realign(self, offsets: Iterable[PartitionOffsets]) -> bool:
        """Move or stop the lanes whose offset is not held; whether there were any."""
        found = False
        for held in offsets:
            lane = self._lanes.get(held.partition)
            if lane is None or lane.error or held.start <= lane.asked <= held.end:
                continue
            found = True
            if self._on_out_of_range == "error":
                lane.error = OffsetOutOfRangeError(
                    f"offset {lane.asked} of {self._queue.topic}/{held.partition} is not held; "
                    f"{held.start} to {held.end} are. Seek there, or set on_out_of_range"
                )
            else:
                earliest = self._on_out_of_range == "earliest"
                self._replace(held.partition, held.start if earliest else held.end)
        self._wake()
        return found

    # -- fetching ---------------------------------------------------------------------------

    def _pump(self) -> None:
        """Start the fetches that there are threads and memory for."""
        while self._fetching < self._concurrency:
            waiting = [lane for lane in self._lanes.values() if lane.started < len(lane.slots)]
            if not waiting:
                return
            lane = min(waiting, key=lambda lane: lane.started)
            slot = lane.slots[lane.started]
            size = slot.published.notification.size_bytes
            if self._held_bytes and self._held_bytes + size > self._prefetch_bytes:
                return
            lane.started += 1
            slot.held_bytes = size
            self._held_bytes += size
            self._fetching += 1
            slot.task = self._spawn(self._source.fetch(slot.published))
            slot.task.add_done_callback(partial(self._fetched, slot))

    def _fetched(self, slot: _Slot, task: asyncio.Task[FetchedBatch]) -> None:
        self._fetching -= 1
        dropped = slot.task is not task
        if task.cancelled() and not dropped:
            return  # the event loop is ending
        failure = None if task.cancelled() else task.exception()
        if failure is not None and not isinstance(failure, MemqError):
            self._wake()  # a bug, or threads that the interpreter's exit has ended: begin no more
            return
        if not task.cancelled() and failure is None and not dropped:
            decoded_bytes = task.result().size_bytes
            self._held_bytes += decoded_bytes - slot.held_bytes
            slot.held_bytes = decoded_bytes
        self._pump()
        self._wake()

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task
