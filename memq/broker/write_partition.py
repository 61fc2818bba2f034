"""WritePartition: the I/O around one TopicProcessor.

It carries out the processor's effects (uploads in worker threads, publishes on the event loop),
wakes it by timer, and holds back Messages for which there is no room. Such a Message stops its
connection from being read, so that pressure reaches the producer through TCP first; one that
waits for longer than `park_timeout_ms` is answered with a typed, retriable error.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from memq.broker.upload import Upload
from memq.core.features import TRACES
from memq.core.wire.messages import WriteAnswer
from memq.core.write_partition import (
    ACKS_ALL,
    AnswerWrite,
    BatchEnded,
    BatchState,
    Duplicate,
    PublishBatches,
    ReleaseBodies,
    RingBatch,
    UploadBatch,
)
from memq.errors import (
    FencedError,
    MemqError,
    NotHostedError,
    PublishUncertainError,
    QueueError,
    SequenceGapError,
    UnavailableError,
    UnknownTopicError,
)
from memq.runtime.retry import STORAGE_BACKOFF
from memq.runtime.tracing import place

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping
    from concurrent.futures import Future

    from memq.broker.context import BrokerContext
    from memq.broker.duplicates import DuplicateChecker
    from memq.broker.memory import BodyMemory
    from memq.core.clock import ClockReading
    from memq.core.deduplication import BatchRef
    from memq.core.topic import TopicConfig
    from memq.core.wire.connection import Request
    from memq.core.wire.messages import Struct, Write
    from memq.core.write_partition import TopicProcessor
    from memq.runtime.tracing import Tracing

log = logging.getLogger(__name__)

_RECEIVED = WriteAnswer()  # the ack of a Message that is not published yet


class Client(Protocol):
    """The sender of a Write; a connection implements it."""

    def answer(self, correlation_id: int, header: WriteAnswer) -> None:
        """Ack the Message."""

    def fail(self, correlation_id: int, error: MemqError, request: Struct) -> None:
        """Refuse the Message."""

    def refusal(self, write: Write) -> MemqError | None:
        """Return why the client may not write this now; None when it may."""

    def refused(self, error: MemqError) -> None:
        """It is, and nobody wants that answered."""

    def hold(self) -> None:
        """Stop reading from the client."""

    def unhold(self) -> None:
        """Read on."""


class ReceivedWrite:
    """A Write from the socket until it is answered, with its body until that is stored.

    It owns the body's charge to the memory, which `release` alone gives back.

    Args:
        request: with its body, which is charged.
        client: its sender, to which the answer goes.
        memory: to which it is charged.

    Attributes:
        client: as given.
        header: what the client asks for.
        body: the Message; empty when it is released.
        crc: its CRC32C.
    """

    __slots__ = ("_correlation_id", "_memory", "_oneway", "body", "client", "crc", "header")

    def __init__(self, request: Request, client: Client, memory: BodyMemory) -> None:
        self.header = cast("Write", request.header)
        self.body = request.body
        self.crc = request.body_crc
        self._correlation_id = request.correlation_id
        self._oneway = request.oneway
        self.client = client
        self._memory = memory

    def __repr__(self) -> str:
        header = self.header
        name = f"{header.producer_id} epoch {header.epoch} sequence {header.sequence}"
        return f"<ReceivedWrite {name} [{len(self.body)} bytes]>"

    def release(self) -> None:
        """Nobody needs the body any more."""
        self._memory.release(len(self.body))
        self.body = b""

    def answer(self, answer: WriteAnswer) -> None:
        """Ack it."""
        if not self._oneway:
            self.client.answer(self._correlation_id, answer)

    def fail(self, error: MemqError) -> None:
        """Say why it is not published."""
        if self._oneway:
            self.client.refused(error)
        else:
            self.client.fail(self._correlation_id, error, self.header)

    def refuse(self, error: MemqError) -> None:
        """Say why it is not accepted; its body is needed no more."""
        self.release()
        self.fail(error)


class _Parked(NamedTuple):
    write: ReceivedWrite
    deadline_mono_ms: int


class WritePartition:
    """One write partition of a hosted topic.

    Args:
        processor: its state machine, with a rebuilt window.
        queue_topic: where its notifications go.
        context: of the broker.
        duplicates: checks duplicates of published Messages.

    Attributes:
        processor: as given.
        bytes_received: bytes of Messages that came since it began.
    """

    def __init__(
        self,
        processor: TopicProcessor,
        queue_topic: str,
        context: BrokerContext,
        duplicates: DuplicateChecker,
    ) -> None:
        self.processor = processor
        self.bytes_received = 0
        self._queue_topic = queue_topic
        self._context = context
        self._duplicates = duplicates
        self._parked: deque[_Parked] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._uploads: dict[RingBatch, tuple[Upload, asyncio.Task[None]]] = {}
        self._closing = self._closed = self._abandoned = False
        self._settled = asyncio.Event()

    def __repr__(self) -> str:
        return f"<WritePartition {self.processor!r} [waiting {len(self._parked)}]>"

    @property
    def closing(self) -> bool:
        """Whether it takes nothing more, for good."""
        return self._closing

    @property
    def closed(self) -> bool:
        """Whether it was closed. What it had under way may be published all the same."""
        return self._closed

    @property
    def parked(self) -> int:
        """Messages that wait for room."""
        return len(self._parked)

    def uploads(self) -> list[Future[None]]:
        """Attempts to store a Batch that a thread has not ended."""
        return [thread for upload, _ in self._uploads.values() for thread in upload.running()]

    def configure(self, config: TopicConfig, schemas: Mapping[str, bytes], written_ms: int) -> None:
        """Take over an altered configuration, for the open Batch as well."""
        self.processor.configure(config, schemas, written_ms, self._context.now())
        self._perform()
        if self._timer is not None:  # it was set by the batch_age of before
            self._timer.cancel()
            self._timer = None
        self._set_timer()

    def write(self, write: ReceivedWrite) -> None:
        """Take a checked Message; it is answered."""
        self.bytes_received += len(write.body)
        if self._closing:
            write.refuse(_takes_no_more(self._name))
        elif self._parked or not self._has_room_for(write):
            self._park(write)
        else:
            self._accept(write, self._context.now())
            self._perform()

    def expire_parked(self, now: ClockReading) -> None:
        """Refuse the Messages that waited for room for too long; called now and then."""
        while self._parked and self._parked[0].deadline_mono_ms <= now.mono_ms:
            self._unpark_first().refuse(
                UnavailableError(
                    f"{self._name}: its Batches are not stored and published as fast as Messages "
                    f"come; no room came within {self._context.config.park_timeout_ms} ms. Retry "
                    "later"
                )
            )

    def stored_through_ms(self) -> int:
        """Return the watermark of this write partition."""
        return self.processor.stored_through_ms(self._context.now())

    def stored_through_by_read_ms(self) -> list[int]:
        """Return the watermark of what goes from this write partition to each read partition."""
        return self.processor.stored_through_by_read_ms(self._context.now())

    async def drain(self, timeout_s: float) -> bool:
        """Take no more, seal, and wait until everything is stored and answered.

        Returns:
            False when the time ran out first, or it was closed; what is left was not acked.
        """
        self._take_no_more()
        self.processor.seal(self._context.now())
        self._perform()
        try:
            async with asyncio.timeout(timeout_s):
                await self._until_idle()
        except TimeoutError:
            log.warning("%s: not drained within %.1f s: %r", self._name, timeout_s, self)
            return False
        return not self._abandoned

    async def close(self) -> None:
        """Publish nothing more: what was not drained is abandoned.

        A broker, this one too, may take the write partition over once this has returned.
        """
        self._closed = True
        self._take_no_more()
        if self._timer is not None:
            self._timer.cancel()
        while self._tasks:  # one that ends by itself meanwhile may begin another
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        self._abandoned |= not self.processor.idle
        self.processor.abandon(UnavailableError(f"{self._name}: closed before it was stored"))
        self._perform()

    # -- inside -----------------------------------------------------------------------------

    def _take_no_more(self) -> None:
        """Refuse what comes, and what waits: the room that is made now is not for it."""
        self._closing = True
        while self._parked:
            self._unpark_first().refuse(_takes_no_more(self._name))

    @property
    def _name(self) -> str:
        return f"{self.processor.config.name}/{self.processor.write_partition}"

    def _has_room_for(self, write: ReceivedWrite) -> bool:
        return self.processor.room_for(len(write.body), write.header.schema_id)

    def _accept(self, write: ReceivedWrite, now: ClockReading) -> None:
        try:
            outcome = self.processor.write(write.header, write.body, write.crc, write, now)
        except MemqError as exc:
            write.refuse(exc)
            return
        if isinstance(outcome, Duplicate):
            write.release()
            self._context.metrics.duplicates.labels(self.processor.config.name).inc()
            looking = self._spawn(self._answer_duplicate(write, outcome.batch))
            looking.add_done_callback(partial(self._looked_up, write))
            return
        if not outcome.kept:
            write.release()
        if write.header.acks != ACKS_ALL:
            self._ack(write, _RECEIVED)

    def _ack(self, write: ReceivedWrite, answer: WriteAnswer) -> None:
        """Ack a Message, while it is certain that nobody else has the write partition."""
        try:
            self._context.check_lease()
        except MemqError as exc:  # it may be published; sent again, it is found to be
            write.fail(exc)
        else:
            write.answer(answer)

    async def _answer_duplicate(self, write: ReceivedWrite, batch: BatchRef | None) -> None:
        try:
            answer = await self._duplicates.check(write.header, write.crc, batch)
        except MemqError as exc:
            write.fail(self._as_told(exc))
        else:
            self._ack(write, answer)

    def _looked_up(self, write: ReceivedWrite, looking: asyncio.Task[None]) -> None:
        """Answer a duplicate that was not looked up, for the write partition was closed."""
        if looking.cancelled():
            write.fail(_takes_no_more(self._name))

    def _park(self, write: ReceivedWrite) -> None:
        """Park a Message, unless it comes too early: it would hold up the one that is due."""
        request = write.header
        parked = [
            each.sequence
            for each in (parked.write.header for parked in self._parked)
            if (each.producer_id, each.epoch) == (request.producer_id, request.epoch)
        ]
        try:
            self.processor.check_no_gap(request, max(parked, default=-1))
        except SequenceGapError as exc:
            write.refuse(exc)
            return
        deadline_ms = self._context.now().mono_ms + self._context.config.park_timeout_ms
        self._parked.append(_Parked(write, deadline_ms))
        write.client.hold()

    def _unpark_first(self) -> ReceivedWrite:
        write = self._parked.popleft().write
        write.client.unhold()
        return write

    def _perform(self) -> None:
        """Carry out effects until there are none, then set the timer."""
        while effects := self.processor.take_effects():
            for effect in effects:
                match effect:
                    case AnswerWrite(ticket, WriteAnswer() as answer):
                        self._ack(ticket, answer)
                    case AnswerWrite(ticket, error):
                        self._fail(ticket, error)
                    case UploadBatch(batch):
                        upload = Upload(batch, self._context, self.processor.config.name)
                        self._uploads[batch] = upload, self._spawn(self._upload(batch, upload))
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

    def _fail(self, write: ReceivedWrite, error: Any) -> None:
        """Say why a Message is not published; what others have fenced, its producer sends there."""
        if isinstance(error, FencedError):
            error = NotHostedError(f"{self._name} has gone to another broker: {error}")
        write.fail(error)

    def _unpark(self) -> None:
        now = self._context.now()
        while self._parked and self._has_room_for(self._parked[0].write):
            write = self._unpark_first()
            if error := write.client.refusal(write.header):  # since it came
                write.refuse(error)
            else:
                self._accept(write, now)

    def _set_timer(self) -> None:
        if self._timer is not None:
            return
        due_ms = self.processor.seal_due_ms()
        if due_ms is not None:
            delay_s = max(0, due_ms - self._context.now().mono_ms) / 1000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.processor.tick(self._context.now())
        self._perform()

    async def _until_idle(self) -> None:
        while not self.processor.idle:
            self._settled.clear()
            await self._settled.wait()

    def _count(self, batch: RingBatch, *, published: bool) -> None:
        metrics = self._context.metrics
        if published:
            metrics.published(self.processor.config.name, batch, self._context.now())
        else:
            metrics.batches_failed.labels(self.processor.config.name).inc()

    def _release(self, batch: RingBatch) -> None:
        if batch not in self._uploads:  # it was never sealed
            self._let_go(batch)
            return
        # A put that hangs past its deadline holds the memory, and may still store the object.
        upload, task = self._uploads[batch]
        if batch.state is BatchState.FAILED:
            task.cancel()
        upload.when_over(partial(self._let_go, batch))

    def _let_go(self, batch: RingBatch) -> None:
        self._uploads.pop(batch, None)
        for write in batch.tickets:
            write.release()
        batch.tickets.clear()

    async def _upload(self, batch: RingBatch, upload: Upload) -> None:
        if self._context.tracing is not None and self._context.level >= TRACES:
            batch.traces = [each.header.trace for each in batch.tickets if each.header.trace]
        try:
            await upload.run()
        except MemqError as exc:
            what = f"{self._name}: Batch {batch.batch_id} was not stored: {exc}"
            self._context.warn("not stored", what)
            self.processor.failed(batch, exc)
        else:
            batch.stored_mono_ms = self._context.now().mono_ms
            self.processor.stored(batch)
        self._perform()

    async def _publish(self, effect: PublishBatches) -> None:
        context, processor = self._context, self.processor
        try:
            with context.services.queue.call():
                offsets = await context.queue.publish(
                    self._queue_topic, processor.write_partition, effect.publications
                )
        except PublishUncertainError as exc:
            log.error("%s: %s; reading back", self._name, exc)  # noqa: TRY400
            processor.publish_uncertain()
            await self._resolve(effect.batches)
        except MemqError as exc:
            await self._publish_failed(effect.batches, self._as_told(exc))
        else:
            processor.published(effect.batches, offsets, context.now())
            if context.tracing is not None:
                for batch, offset in zip(effect.batches, offsets, strict=True):
                    self._trace(context.tracing, batch, offset)
        self._perform()

    def _trace(self, tracing: Tracing, batch: RingBatch, offset: int) -> None:
        """Make the spans of a Batch that was published just now."""
        now, sealed = self._context.now(), batch.sealed
        begun = (batch.opened.mono_ms, batch.sealed_mono_ms, batch.put_mono_ms)
        ended = (batch.stored_mono_ms, now.mono_ms)
        times_ms = [now.wall_ms - now.mono_ms + each for each in (*begun, *ended)]
        named = place(batch.batch_id, batch.partition, offset)
        records = sealed.records if sealed else 0
        tracing.published(self.processor.config.name, records, named, batch.traces, times_ms)

    async def _publish_failed(self, batches: list[RingBatch], error: MemqError) -> None:
        """Back off, then let the processor try again, or fail what is past its deadline."""
        what = f"{self._name}: notifications were not published: {error}"
        self._context.warn("not published", what)
        await asyncio.sleep(STORAGE_BACKOFF.full_jitter_s(1, self._context.runtime.random))
        self.processor.publish_failed(batches, error, self._context.now())

    def _as_told(self, error: MemqError) -> MemqError:
        """Return an error of queue or storage as producers are told: with one that ends none.

        Kafka, as it starts, knows no partition for a moment. A deleted topic is closed here anyway.
        """
        if isinstance(error, UnknownTopicError):
            return QueueError(f"the queue knows no topic of {self._name} now: {error}")
        return error

    async def _resolve(self, batches: list[RingBatch]) -> None:
        """Fence and read back until it is known which Batches are in the queue."""
        for failures in itertools.count():
            try:
                in_queue = await self._read_back(batches)
            except MemqError as exc:
                log.error("%s: cannot read the queue back: %s", self._name, exc)  # noqa: TRY400
                random = self._context.runtime.random
                await asyncio.sleep(STORAGE_BACKOFF.full_jitter_s(failures, random))
            else:
                self.processor.resolve(in_queue, self._context.now())
                return

    async def _read_back(self, batches: list[RingBatch]) -> dict[str, int]:
        queue, write_partition = self._context.queue, self.processor.write_partition
        try:
            await queue.fence(self._queue_topic, write_partition, again=True)
        except FencedError as exc:  # so it is decided; what is not there never will be
            log.error("%s: others own it now: %s", self._name, exc)  # noqa: TRY400
        since_ms = min(batch.sealed_mono_ms for batch in batches)
        offsets: dict[str, int] = {}
        for partition in range(self.processor.config.read_partitions):
            published = self._context.notifications_since(self._queue_topic, partition, since_ms)
            async for entry, notification in published:
                offsets[notification.batch_id] = entry.offset
        return offsets

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._context.fatal_errors.spawn(self._name, coroutine)
        self._tasks[task] = None
        task.add_done_callback(lambda task: self._tasks.pop(task, None))
        return task


def _takes_no_more(name: str) -> UnavailableError:
    return UnavailableError(f"{name}: this broker takes nothing more of it; retry elsewhere")
