"""WritePartition: the I/O around one TopicProcessor.

It carries out the processor's effects (uploads in worker threads, publishes on the event loop),
wakes it by timer, and holds back Messages for which there is no room. A held Message stops its
connection from being read, so that pressure reaches the producer through TCP first; one that is
held for longer than `park_timeout_ms` is answered with a typed, retriable error.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from memq.broker.uploader import put_until_deadline
from memq.core.notification.notification import decode_notification
from memq.core.wire.messages import Write, WriteAnswer
from memq.core.write_partition import ACKS_ALL
from memq.core.write_partition_effects import (
    Accepted,
    AnswerWrite,
    BatchEnded,
    PublishBatches,
    ReleaseBodies,
    RingBatch,
    UploadBatch,
)
from memq.errors import MemqError, PublishUncertainError, SequenceGapError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping
    from concurrent.futures import Future

    from memq.broker.duplicates import DuplicateChecker
    from memq.broker.services import Services
    from memq.core.clock import ClockReading
    from memq.core.topic import TopicConfig
    from memq.core.write_partition import TopicProcessor

log = logging.getLogger(__name__)

RETRY_BASE_S = 0.05  # first back-off; doubled per attempt, with full jitter
RETRY_CAP_S = 5.0

_RECEIVED = WriteAnswer()  # the ack of a Message that is not published yet


class Reply(Protocol):
    """How a write is answered; a connection implements it."""

    def answer(self, answer: WriteAnswer) -> None:
        """The Message is acked."""

    def fail(self, error: MemqError) -> None:
        """The Message is refused."""

    def hold(self) -> None:
        """Stop reading from the connection."""

    def unhold(self) -> None:
        """Read on."""


class _Parked(NamedTuple):
    request: Write
    body: Any
    crc: int
    reply: Reply
    deadline_mono_ms: int


class WritePartition:
    """One write partition of a hosted topic.

    Args:
        processor: its state machine, with a rebuilt window.
        queue_topic: where its notifications go.
        services: storage, queue, clock and bounds of the broker.
        repeats: answers repeats of published Messages.
        park_timeout_ms: how long a Message may be held back.
    """

    def __init__(
        self,
        processor: TopicProcessor,
        queue_topic: str,
        services: Services,
        repeats: DuplicateChecker,
        *,
        park_timeout_ms: int,
    ) -> None:
        self.processor = processor
        self._queue_topic = queue_topic
        self._services = services
        self._repeats = repeats
        self._park_timeout_ms = park_timeout_ms
        self._parked: deque[_Parked] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._in_thread: dict[RingBatch, Future[None]] = {}
        self._closing = False
        self._settled = asyncio.Event()

    def __repr__(self) -> str:
        return f"<WritePartition {self.processor!r} [parked {len(self._parked)}]>"

    @property
    def parked(self) -> int:
        """Messages that wait for room."""
        return len(self._parked)

    def uploads(self) -> list[Future[None]]:
        """Attempts to store a Batch that a thread has not ended."""
        return [thread for thread in self._in_thread.values() if not thread.done()]

    def configure(self, config: TopicConfig, schemas: Mapping[str, bytes], written_ms: int) -> None:
        """Take over an altered configuration, for the open Batch as well."""
        self.processor.configure(config, schemas, written_ms, self._services.now())
        self._perform()
        if self._timer is not None:  # it was set by the batch_age of before
            self._timer.cancel()
            self._timer = None
        self._set_timer()

    def write(self, request: Write, body: Any, crc: int, reply: Reply) -> None:
        """Take a checked Message whose body is charged to the memory budget; it is answered."""
        if self._closing:
            self._refuse(body, reply, UnavailableError("the broker is draining; retry elsewhere"))
        elif self._parked or not self.processor.room_for(len(body), request.schema_id):
            self._park(request, body, crc, reply)
        else:
            self._accept(request, body, crc, reply, self._services.now())
            self._perform()

    def expire_parked(self, now: ClockReading) -> None:
        """Refuse the Messages that were held back for too long; called now and then."""
        while self._parked and self._parked[0].deadline_mono_ms <= now.mono_ms:
            parked = self._parked.popleft()
            parked.reply.unhold()
            self._refuse(
                parked.body,
                parked.reply,
                UnavailableError(
                    f"{self._name}: storage is slower than the producers; no room came within "
                    f"{self._park_timeout_ms} ms. Retry later"
                ),
            )

    def stored_through_ms(self) -> int:
        """The watermark of this write partition."""
        return self.processor.stored_through_ms(self._services.now())

    def stored_through_by_read_ms(self) -> list[int]:
        """The watermark of what goes from this write partition to each read partition."""
        return self.processor.stored_through_by_read_ms(self._services.now())

    async def drain(self, timeout_s: float) -> bool:
        """Take no more, seal, and wait until everything is stored and answered.

        Returns:
            False when the time ran out first; what is left was not acked.
        """
        self._closing = True
        while self._parked:
            parked = self._parked.popleft()
            parked.reply.unhold()
            error = UnavailableError(f"{self._name}: the broker is draining; retry elsewhere")
            self._refuse(parked.body, parked.reply, error)
        self.processor.seal(self._services.now())
        self._perform()
        try:
            await asyncio.wait_for(self._until_idle(), timeout_s)
        except TimeoutError:
            log.warning("%s: not drained within %.1f s: %r", self._name, timeout_s, self)
            return False
        return True

    async def close(self) -> None:
        """Stop timers and tasks. Call `drain` first; what is under way then is abandoned."""
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.processor.abandon(UnavailableError(f"{self._name}: closed before it was stored"))
        self._perform()

    # -- inside -----------------------------------------------------------------------------

    @property
    def _name(self) -> str:
        return f"{self.processor.config.name}/{self.processor.write_partition}"

    def _accept(self, request: Write, body: Any, crc: int, reply: Reply, now: ClockReading) -> None:
        try:
            outcome = self.processor.write(request, body, crc, reply, now)
        except MemqError as exc:
            self._refuse(body, reply, exc)
            return
        if isinstance(outcome, Accepted):
            if not outcome.kept:
                self._services.memory.release(len(body))
            if request.acks != ACKS_ALL:
                reply.answer(_RECEIVED)
        else:
            self._services.memory.release(len(body))
            self._services.metrics.repeats.labels(self.processor.config.name).inc()
            self._spawn(self._repeats.answer(request, crc, outcome.place, reply))

    def _park(self, request: Write, body: Any, crc: int, reply: Reply) -> None:
        """Hold a Message back, unless it comes too early: it would hold up the one that is due."""
        name = (request.producer_id, request.epoch)
        held = [
            parked.request.sequence
            for parked in self._parked
            if (parked.request.producer_id, parked.request.epoch) == name
        ]
        try:
            self.processor.check_no_gap(request, max(held, default=-1))
        except SequenceGapError as exc:
            self._refuse(body, reply, exc)
            return
        deadline_ms = self._services.now().mono_ms + self._park_timeout_ms
        self._parked.append(_Parked(request, body, crc, reply, deadline_ms))
        reply.hold()

    def _refuse(self, body: Any, reply: Reply, error: MemqError) -> None:
        self._services.memory.release(len(body))
        reply.fail(error)

    def _perform(self) -> None:
        """Carry out effects until there are none, then set the timer."""
        while effects := self.processor.take_effects():
            for effect in effects:
                match effect:
                    case AnswerWrite(ticket, WriteAnswer() as answer):
                        ticket.answer(answer)
                    case AnswerWrite(ticket, error):
                        ticket.fail(error)
                    case UploadBatch(batch):
                        self._spawn(self._upload(batch))
                    case PublishBatches():
                        self._spawn(self._publish(effect))
                    case ReleaseBodies(batch):
                        self._release(batch)
                    case BatchEnded(batch, published):
                        self._count(batch, published=published)
            self._unpark()
        self._set_timer()
        if self.processor.idle:
            self._settled.set()

    def _unpark(self) -> None:
        now = self._services.now()
        if self._closing:
            self.processor.seal(now)
        else:
            self.processor.tick(now)
        while self._parked:
            waiting = self._parked[0]
            if not self.processor.room_for(len(waiting.body), waiting.request.schema_id):
                return
            parked = self._parked.popleft()
            parked.reply.unhold()
            self._accept(parked.request, parked.body, parked.crc, parked.reply, now)

    def _set_timer(self) -> None:
        if self._timer is not None:
            return
        due_ms = self.processor.seal_due_ms()
        if due_ms is not None:
            delay_s = max(0, due_ms - self._services.now().mono_ms) / 1000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.processor.tick(self._services.now())
        self._perform()

    async def _until_idle(self) -> None:
        while not self.processor.idle:
            self._settled.clear()
            await self._settled.wait()

    def _count(self, batch: RingBatch, *, published: bool) -> None:
        metrics = self._services.metrics
        if published:
            metrics.published(self.processor.config.name, batch, self._services.now())
        else:
            metrics.batches_failed.labels(self.processor.config.name).inc()

    def _release(self, batch: RingBatch) -> None:
        thread = self._in_thread.get(batch)
        if thread is None or thread.done():
            self._let_go(batch)
        else:  # a put that hangs past its deadline holds the memory, and may still store the object
            self._let_go_after(thread, batch)

    def _let_go_after(self, thread: Future[None], batch: RingBatch) -> None:
        loop = asyncio.get_running_loop()

        def ended(_: Future[None]) -> None:  # called by the thread
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._let_go, batch)

        thread.add_done_callback(self._services.bugs.guarded(self._name, ended))

    def _let_go(self, batch: RingBatch) -> None:
        self._in_thread.pop(batch, None)
        self._services.memory.release(batch.body_bytes)

    async def _upload(self, batch: RingBatch) -> None:
        try:
            await put_until_deadline(batch, self._services, self._in_thread)
        except MemqError as exc:
            log.error("%s: Batch %s was not stored: %s", self._name, batch.batch_id, exc)  # noqa: TRY400
            self.processor.failed(batch, exc)
        else:
            self.processor.stored(batch)
        self._perform()

    async def _publish(self, effect: PublishBatches) -> None:
        services, processor = self._services, self.processor
        try:
            offsets = await services.queue.publish(
                self._queue_topic, processor.write_partition, effect.publications
            )
        except PublishUncertainError as exc:
            log.error("%s: %s; reading back", self._name, exc)  # noqa: TRY400
            processor.publish_uncertain()
            await self._resolve(effect.batches)
        except MemqError as exc:
            await self._publish_failed(effect.batches, exc)
        else:
            processor.published(effect.batches, offsets, services.now())
        self._perform()

    async def _publish_failed(self, batches: list[RingBatch], error: MemqError) -> None:
        """Back off, then let the processor try again, or fail what is past its deadline."""
        log.error("%s: notifications were not published: %s", self._name, error)
        self._services.disk.failed(error, self._services.now().mono_ms)
        await asyncio.sleep(self._services.backoff_s(RETRY_BASE_S, RETRY_CAP_S, 2))
        self.processor.publish_failed(batches, error, self._services.now())

    async def _resolve(self, batches: list[RingBatch]) -> None:
        """Fence and read back until it is known which Batches are in the queue."""
        attempt = 0
        while True:
            try:
                in_queue = await self._read_back(batches)
            except MemqError as exc:
                attempt += 1
                log.error("%s: cannot read the queue back: %s", self._name, exc)  # noqa: TRY400
                await asyncio.sleep(self._services.backoff_s(RETRY_BASE_S, RETRY_CAP_S, attempt))
            else:
                self.processor.resolve(in_queue, self._services.now())
                return

    async def _read_back(self, batches: list[RingBatch]) -> dict[str, int]:
        queue, config = self._services.queue, self.processor.config
        await queue.fence(self._queue_topic, self.processor.write_partition)
        since_ms = min(batch.sealed_mono_ms for batch in batches)
        found: dict[str, int] = {}
        for partition in range(config.read_partitions):
            offset = await queue.offset_since(self._queue_topic, partition, since_ms)
            async for entry in self._services.entries(self._queue_topic, partition, offset):
                found[decode_notification(entry.payload).batch_id] = entry.offset
        return found

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks[task] = None
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._services.bugs.report(self._name, error)
