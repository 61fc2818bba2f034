"""What every part of a broker shares: the seams, the clock, the bounds and the counters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memq.broker.disk import DiskRoom
from memq.broker.metrics import Metrics
from memq.core.runtime import SYSTEM, Runtime

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from concurrent.futures import Executor

    from memq.broker.bugs import Bugs
    from memq.broker.memory import MemoryBudget
    from memq.broker.pool import BodyPool
    from memq.broker.timekeeper import Timekeeper
    from memq.broker.turns import Turns
    from memq.core.clock import ClockReading
    from memq.core.notification.queue import Entry, NotificationQueue
    from memq.core.storage.handler import StorageHandler

SCAN_ENTRIES = 1_000  # notifications read at a time when the queue is scanned
SCAN_BYTES = 4 << 20


@dataclass
class Services:
    """Seams, clock, bounds and counters of one broker.

    Attributes:
        cluster_id: name of the cluster, part of every object's key.
        storage: where Batches go.
        queue: where notifications go.
        memory: the memory bound.
        bodies: lends the memory of large bodies.
        turns: lets requests in, and bounds what their answers take.
        executor: worker threads for storage.
        runtime: clocks, chance and threads.
        disk: room on the disks of storage and queue.
        metrics: counters.
        times: running time and wall time, and what is kept of them for the next life.
        now: the broker's clock.
        bugs: errors that no part of the broker expected; the first one stops it.
    """

    cluster_id: str
    storage: StorageHandler
    queue: NotificationQueue
    memory: MemoryBudget
    bodies: BodyPool
    turns: Turns
    executor: Executor
    bugs: Bugs
    times: Timekeeper
    runtime: Runtime = SYSTEM
    disk: DiskRoom = field(default_factory=DiskRoom)
    metrics: Metrics = field(default_factory=Metrics)
    now: Callable[[], ClockReading] = field(init=False)

    def __post_init__(self) -> None:
        self.now = self.times.clock

    def backoff_s(self, base_s: float, cap_s: float, attempt: int) -> float:
        """Full jitter: a random time up to the base doubled per attempt, at most the cap."""
        return self.runtime.random() * min(cap_s, base_s * 2.0**attempt)

    async def entries(
        self,
        topic: str,
        partition: int,
        start: int,
        end: int | None = None,
        *,
        at_once_bytes: int = SCAN_BYTES,
    ) -> AsyncIterator[Entry]:
        """The queue's entries from `start` to `end` (to the end as of now when None)."""
        if end is None:
            _, end = await self.queue.offsets(topic, partition)
        while start < end:
            entries = await self.queue.fetch(
                topic, partition, start, max_entries=SCAN_ENTRIES, max_bytes=at_once_bytes
            )
            for entry in entries:
                if entry.offset >= end:
                    return
                yield entry
            start = entries[-1].offset + 1
