"""What every part of a broker shares: configuration, seams, clock, bounds and counters."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memq.broker.config import DEFAULT_LISTENER
from memq.broker.data_dir import DiskSpace
from memq.broker.metrics import Metrics
from memq.broker.object_root import ObjectRoot, Presence
from memq.broker.services import Services
from memq.core.clock import CLOCKS_DIFFER_MS
from memq.core.notification import decode_notification
from memq.errors import ClosedError, UnavailableError
from memq.queue.kafka.queue import START_S
from memq.runtime.hedging import Hedging
from memq.runtime.system import SYSTEM, Runtime
from memq.runtime.tracing import Tracing, tracing
from memq.storage.keys import topic_objects

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Callable, Iterator
    from concurrent.futures import Executor

    from memq.broker.config import BrokerConfig
    from memq.broker.fair_queuing import FairScheduler
    from memq.broker.fatal_errors import FatalErrors
    from memq.broker.listeners import Listener
    from memq.broker.memory import BodyMemory
    from memq.broker.timekeeper import Timekeeper
    from memq.core.clock import ClockReading
    from memq.core.governor.topics import Topic
    from memq.core.notification import Notification
    from memq.core.queue import NotificationQueue, QueueEntry
    from memq.storage.handler import ObjectInfo, StorageHandler

log = logging.getLogger(__name__)

SCAN_ENTRIES = 1_000  # notifications read at a time when the queue is scanned
SCAN_BYTES = 4 << 20


class RateLimitedLog:
    """Warnings, at most one a second for each kind; the next one says how many were left out.

    Hostile clients can cause a warning for every frame they send. The log must stay readable and
    must not become the bottleneck.
    """

    def __init__(self, logger: logging.Logger, clock_s: Callable[[], float]) -> None:
        self._logger = logger
        self._clock_s = clock_s
        self._next_s: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def __call__(self, kind: str, text: str) -> None:
        """Log a warning of that kind, or count it."""
        now_s = self._clock_s()
        if now_s < self._next_s.get(kind, 0):
            self._left_out[kind] = self._left_out.get(kind, 0) + 1
            return
        left_out = self._left_out.pop(kind, 0)
        self._next_s[kind] = now_s + 1
        self._logger.warning("%s%s", text, f" ({left_out} more like it)" if left_out else "")


@dataclass
class BrokerContext:
    """Configuration, seams, clock, bounds and counters of one broker.

    Attributes:
        config: of the broker.
        storage: where Batches go.
        queue: where notifications go.
        memory: bounds and lends the memory of bodies.
        scheduler: admits requests, and bounds what their answers take.
        uploads: worker threads for uploads; as many more as there are `upload_slots`, for hedges.
        upload_slots: uploads at a time.
        reads: worker threads for all else that is asked of the storage.
        fatal_errors: errors that no part of the broker expected; the first one stops it.
        times: running time and wall time, and what is kept of them for the next life.
        runtime: clocks, chance and threads.
        disk: room on the disks of storage and queue.
        hedging: tells when an upload is attempted a second time.
        metrics: counters.
        tracing: makes spans; None where nobody wants them.
        listeners: its addresses, by name; also while it drains, when it listens no more.
        ready: it serves, and does not stop.
        stopping: it stops, and waits for its threads.
        leased: whether the broker certainly is part of its cluster, so that it may ack now.
        level: the active feature level.
        apart: why it was not part of its cluster last; empty while it is.
        shared: whether other brokers share its queue and its storage.
        presence: what was found of its objects when they were looked for last.
        root: below which the storage has its objects.
        now: the broker's clock.
        services: what they say that are behind the broker.
        warn: the log for what clients can cause, and cause again.
    """

    config: BrokerConfig
    storage: StorageHandler
    queue: NotificationQueue
    memory: BodyMemory
    scheduler: FairScheduler
    uploads: Executor
    upload_slots: asyncio.Semaphore
    reads: Executor
    fatal_errors: FatalErrors
    times: Timekeeper
    runtime: Runtime = SYSTEM
    disk: DiskSpace = field(default_factory=DiskSpace)
    hedging: Hedging = field(default_factory=Hedging)
    metrics: Metrics = field(default_factory=Metrics)
    tracing: Tracing | None = field(default_factory=tracing)
    listeners: dict[str, Listener] = field(default_factory=dict)
    ready: bool = False
    stopping: bool = False
    leased: Callable[[], bool] = lambda: True
    level: int = 1
    apart: str = ""
    shared: bool = False
    presence: Presence = field(default_factory=Presence)
    root: ObjectRoot = field(init=False)
    now: Callable[[], ClockReading] = field(init=False)
    services: Services = field(init=False)
    warn: RateLimitedLog = field(init=False)

    def __post_init__(self) -> None:
        self.root = ObjectRoot(self.storage)
        self.metrics.storage.counts = self.storage.requests
        self.metrics.storage.hedges = lambda: self.hedging.hedges
        self.now = self.times.clock
        config = self.config
        self.services = Services(
            self.now, storage=self.root.uri, queue=config.queue, zookeeper=config.zookeeper
        )
        self.warn = RateLimitedLog(log, self.runtime.mono_s)

    @property
    def clocks_differ_ms(self) -> int:
        """By how much running times of brokers that share the queue may differ."""
        return CLOCKS_DIFFER_MS if self.shared else 0

    @property
    def forgotten_after_s(self) -> float:
        """For how long other brokers may still serve notifications that retention removed."""
        return 2 * START_S if self.shared else 0.0

    @property
    def address(self) -> str:
        """The `host:port` that clients of its default listener reach this broker under."""
        return self.listeners[DEFAULT_LISTENER].address

    def other_addresses(self) -> dict[str, str]:
        """Return the `host:port` of its other listeners, by name."""
        return {
            name: each.address for name, each in self.listeners.items() if name != DEFAULT_LISTENER
        }

    def not_ready(self) -> list[str]:
        """Why the broker should be given nothing to do now; none when it is ready."""
        if not self.ready:
            return ["it starts or stops"]
        reasons = [*self.services.refusing(), *self.presence.reasons()]
        if not self.leased():
            why = f": {self.apart}" if self.apart else ""
            reasons.append(f"it is not certain to be part of its cluster{why}")
        return reasons

    def check_lease(self) -> None:
        """Raise when the lease is over; call it before a promise to a client.

        Raises:
            UnavailableError: others may have taken over what this broker has.
        """
        if not self.leased():
            raise UnavailableError(
                f"broker {self.config.broker_id} has not heard of the coordination service for so "
                "long that others may have taken over; ask again"
            )

    def check_not_stopping(self) -> None:
        """Raise when the broker stops; long work in a thread calls it often.

        Raises:
            ClosedError: the broker stops, and waits for the thread.
        """
        if self.stopping:
            raise ClosedError("the broker is stopping; the next start goes on with it")

    def objects_of(self, topic: Topic) -> Iterator[ObjectInfo]:
        """Yield every object of a topic, listed as the iteration goes. It blocks.

        Raises:
            ClosedError: the broker stops.
            StorageError: a listing failed; what came before is valid.
        """
        yield from topic_objects(
            self.storage,
            self.config.cluster_id,
            topic.name,
            topic.topic_id,
            self.check_not_stopping,
        )

    async def entries(
        self,
        topic: str,
        partition: int,
        start: int,
        end: int | None = None,
        *,
        at_once_bytes: int = SCAN_BYTES,
    ) -> AsyncIterator[QueueEntry]:
        """Yield the queue's entries from `start` to `end` (to the end as of now when None)."""
        if end is None:
            _, end = await self.queue.offsets(topic, partition)
        while start < end:
            entries = await self.queue.fetch(
                topic, partition, start, max_entries=SCAN_ENTRIES, max_bytes=at_once_bytes
            )
            if not entries:  # Kafka's offsets have gaps, at the end as well
                return
            for entry in entries:
                if entry.offset >= end:
                    return
                yield entry
            start = entries[-1].offset + 1

    async def notifications_since(
        self, topic: str, partition: int, running_ms: int, *, at_once_bytes: int = SCAN_BYTES
    ) -> AsyncIterator[tuple[QueueEntry, Notification]]:
        """Yield what was published to a read partition at that running time or later."""
        start = await self.queue.offset_since(topic, partition, running_ms)
        async for entry in self.entries(topic, partition, start, at_once_bytes=at_once_bytes):
            yield entry, decode_notification(entry.payload)
