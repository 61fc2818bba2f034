"""What every part of a broker shares: the seams, the clock, the bounds and the counters."""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memq.broker.clock import system_now
from memq.broker.metrics import Metrics

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Callable
    from concurrent.futures import ThreadPoolExecutor

    from memq.broker.memory import MemoryBudget
    from memq.broker.pool import BodyPool
    from memq.core.notification.queue import Entry, NotificationQueue
    from memq.core.ring import Now
    from memq.core.storage.handler import StorageHandler

log = logging.getLogger(__name__)

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
        executor: worker threads for storage.
        metrics: counters.
        now: the clock.
        rng: for jitter.
        failure: set to the first error that no part of the broker expected; the broker then stops,
            for a state machine that was interrupted half-way must not go on acking.
    """

    cluster_id: str
    storage: StorageHandler
    queue: NotificationQueue
    memory: MemoryBudget
    bodies: BodyPool
    executor: ThreadPoolExecutor
    metrics: Metrics = field(default_factory=Metrics)
    now: Callable[[], Now] = system_now
    rng: random.Random = field(default_factory=random.Random)
    failure: asyncio.Future[BaseException] | None = None

    def backoff_s(self, base_s: float, cap_s: float, attempt: int) -> float:
        """Full jitter: a random time up to the base doubled per attempt, at most the cap."""
        return self.rng.uniform(0, min(cap_s, base_s * 2**attempt))

    async def entries(
        self, topic: str, partition: int, start: int, end: int | None = None
    ) -> AsyncIterator[Entry]:
        """The queue's entries from `start` to `end` (to the end as of now when None)."""
        if end is None:
            _, end = await self.queue.offsets(topic, partition)
        while start < end:
            entries = await self.queue.fetch(
                topic, partition, start, max_entries=SCAN_ENTRIES, max_bytes=SCAN_BYTES
            )
            for entry in entries:
                if entry.offset >= end:
                    return
                yield entry
            start = entries[-1].offset + 1

    def on_bug(self, where: str, error: BaseException | None) -> None:
        """An error that nothing expected: log it whole and stop the broker."""
        log.critical("%s: unexpected error, stopping", where, exc_info=error)
        if self.failure is not None and not self.failure.done() and error is not None:
            self.failure.set_result(error)
