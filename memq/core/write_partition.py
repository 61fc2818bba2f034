"""TopicProcessor: the Batches of one write partition, from Message to ack.

Theory of operation
-------------------
A write partition has one *open* Batch and a *ring* of sealed ones, oldest first:

    open --seal--> uploading --stored--> stored --published--> gone
                       |                    |
                       +--failed--> gone    +--failed--> gone

Rule 1. A Batch is sealed when it is full (bytes, Messages, size of its notification), when it is
    `batch_age_ms` old, when a Message with another schema arrives, or on `seal()`. Sealing gives
    one `UploadBatch`. Once it is stored its bodies are released; what follows needs their numbers
    only.
Rule 2. Batches upload side by side, in any order. Only the unbroken stored prefix of the ring is
    published, one `PublishBatches` at a time: notifications appear in the order of sealing.
Rule 3. `acks=all` is answered when the Batch is published; never sooner. `acks=1` is answered when
    the Message is accepted. `acks=0` is not answered.
Rule 4. A Message is accepted once. A duplicate of a published one is reported as `Duplicate`; that
    of one still on its way joins it and is answered with it. (See `memq.core.deduplication`.)
Rule 5. At most `ring_slots` Batches exist at a time, the open one included, so an open Batch always
    has a slot to be sealed into. When all are taken and the open one cannot take a Message,
    `room_for` is False: the caller holds Messages back, which stops reading from their producers.
Rule 6. A Batch that cannot be stored or published by its deadline fails: its Messages are answered
    with a retriable error and forgotten, so that a retry is a new Message. With
    `ordering="producer"` everything after it fails too, since it would otherwise overtake a retry.
Rule 7. A publish that may or may not have happened (`PublishBatches` answered by
    `publish_uncertain`) stops publishing until `resolve` says which Batches are in the queue.
Rule 8. What is written down never contradicts what was said before, however the wall clock is set.
    A Batch is written down as sealed at a time that is not before any watermark that was told, nor
    before any Batch that was sealed earlier. So a stretch of time that a watermark has closed stays
    closed; after a step back new Batches have the old, later time until the clock has caught up.
    The watermark itself is never later than the clock: it goes back with it.

The processor does no I/O and knows no clock: callers pass a `ClockReading`, carry out the effects
from `take_effects`, and report what came of them.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from memq.core.deduplication import BatchRef, DeduplicationWindow
from memq.core.format.batch import BatchBuilder
from memq.core.notification import NOTIFICATION_VERSION, Notification, encode_notification
from memq.core.queue import Publication
from memq.core.units import format_duration_ms
from memq.core.wire.messages import Write, WriteAnswer
from memq.errors import InvalidRequestError, MemqError, SequenceConflictError, SequenceGapError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from memq.core.clock import ClockReading
    from memq.core.format.batch import SealedBatch
    from memq.core.topic import TopicConfig

ACKS_ALL = -1
MAX_NOTIFICATION_BYTES = 1 << 20
"""A Batch whose notification reaches this is sealed: Kafka and the embedded queue refuse larger
ones. It takes thousands of producers in one Batch, or one that leaves thousands of gaps."""
RUN_BYTES = 80
"""Most that a run of sequences takes in a notification besides the producer id: five numbers."""
Ticket = Any
"""Whatever the caller needs to answer a request; the processor hands it back unread."""
MessageKey = tuple[str, int, int]
"""(producer id, epoch, sequence)."""


class BatchState(enum.Enum):
    """Where a sealed Batch is on its way."""

    UPLOADING = "uploading"
    STORED = "stored"
    PUBLISHING = "publishing"
    FAILED = "failed"


@dataclass(eq=False, slots=True)
class RingBatch:
    """A Batch from its first Message until it is published or has failed.

    Attributes:
        batch_id: unique name, which sorts by time.
        schema_id: of every Message in it.
        opened: when its first Message came.
        builder: gathers the Messages until the Batch is sealed.
        sealed: the sealed Batch; None while it is open.
        state: where it is; meaningless while it is open.
        sealed_mono_ms: when it was sealed.
        sealed_wall_ms: the same as it is written down: never before an earlier watermark or Batch.
        put_mono_ms: when a thread first began to store it; 0 before.
        stored_mono_ms: when it was stored; 0 before.
        deadline_mono_ms: when it fails if it is not published.
        partition: read partition that its notification goes to.
        key: of its object in storage.
        uri: of its object, complete.
        tickets: of the Messages whose bodies it holds.
        pending: its Messages that are not answered for good, by name.
        last_sequences: of each producer and epoch in it.
        notification_bytes: about what its notification will take.
        traces: contexts of spans of its Messages, where they are followed.
    """

    batch_id: str
    schema_id: str
    opened: ClockReading
    builder: BatchBuilder
    sealed: SealedBatch | None = None
    state: BatchState = BatchState.UPLOADING
    sealed_mono_ms: int = 0
    sealed_wall_ms: int = 0
    put_mono_ms: int = 0
    stored_mono_ms: int = 0
    deadline_mono_ms: int = 0
    partition: int = 0
    key: str = ""
    uri: str = ""
    tickets: list[Ticket] = field(default_factory=list)
    pending: dict[MessageKey, PendingMessage] = field(default_factory=dict)
    last_sequences: dict[tuple[str, int], int] = field(default_factory=dict)
    notification_bytes: int = 0
    traces: list[str] = field(default_factory=list)

    def forget_bodies(self) -> None:
        """Let go of the bytes of a stored Batch; all its numbers stay."""
        if self.sealed is not None:
            self.sealed.buffers.clear()

    def note_sequence(self, producer_id: str, epoch: int, sequence: int) -> None:
        """Count a Message into `notification_bytes`: what follows its predecessor is free."""
        name = (producer_id, epoch)
        if self.last_sequences.get(name) != sequence - 1:
            self.notification_bytes += 2 * len(producer_id) + RUN_BYTES
        self.last_sequences[name] = sequence


class PendingMessage:
    """A Message on its way, with those who wait for its `acks=all` answer."""

    __slots__ = ("crc", "waiting")

    def __init__(self, crc: int) -> None:
        self.crc = crc
        self.waiting: list[Ticket] = []


# -- effects: what the caller must do -------------------------------------------------------


class UploadBatch(NamedTuple):
    """Store the Batch; report `stored` or `failed`."""

    batch: RingBatch


class PublishBatches(NamedTuple):
    """Publish these, in order; report `published`, `publish_uncertain` or `failed`."""

    batches: list[RingBatch]
    publications: list[Publication]


class AnswerWrite(NamedTuple):
    """Answer a request that waited: with an ack or with an error."""

    ticket: Ticket
    outcome: WriteAnswer | MemqError


class ReleaseBodies(NamedTuple):
    """The bodies of a Batch are needed no more: it is stored, or has failed before that."""

    batch: RingBatch


class BatchEnded(NamedTuple):
    """A Batch has left the ring.

    Attributes:
        batch: the Batch.
        published: False when it failed; its object, if there is one, is an orphan.
    """

    batch: RingBatch
    published: bool


Effect = UploadBatch | PublishBatches | AnswerWrite | ReleaseBodies | BatchEnded


class Accepted(NamedTuple):
    """What became of a Message that was not refused.

    Attributes:
        kept: the body is kept until its Batch is released; False when an equal Message is on its
            way already and this one waits with it.
    """

    kept: bool


_KEPT, _JOINED = Accepted(kept=True), Accepted(kept=False)


class Duplicate(NamedTuple):
    """The Message was published before; `batch` is None where that is no longer remembered."""

    batch: BatchRef | None


class Load(NamedTuple):
    """How much a write partition holds.

    Attributes:
        open_messages: Messages in the open Batch.
        sealed_batches: sealed Batches on their way.
        ring_slots: how many of these there may be, the open one included.
        pending_messages: Messages that are not published yet.
        uncertain: a publish may or may not have taken effect, and that is being found out.
    """

    open_messages: int
    sealed_batches: int
    ring_slots: int
    pending_messages: int
    uncertain: bool


class TopicProcessor:
    """The state machine of one write partition.

    Args:
        config: of the topic; replace it with `configure`.
        write_partition: its number.
        topic_id: of the topic, written into notifications.
        broker_id: of the broker, written there too.
        schemas: accepted schemas, serialized, by schema id.
        new_batch_id: makes a unique id that sorts by time, from milliseconds of running time.
        locate: gives key and URI of a new object, from batch id, and time and running time of
            sealing.
        window: published sequences, rebuilt from the queue.
        written_ms: the latest time that was written down or told so far; see rule 8.
        opened_ms: the latest running time in the id of a Batch so far; ids of an owner with a clock
            behind that of the one before go on from there.

    Attributes:
        config, write_partition, window, written_ms: as above, and as they are now.
    """

    def __init__(
        self,
        config: TopicConfig,
        write_partition: int,
        *,
        topic_id: str,
        broker_id: str,
        schemas: Mapping[str, bytes],
        new_batch_id: Callable[[int], str],
        locate: Callable[[str, int, int], tuple[str, str]],
        window: DeduplicationWindow,
        written_ms: int = 0,
        opened_ms: int = -1,
    ) -> None:
        self.config = config
        self.write_partition = write_partition
        self.window = window
        self._topic_id = topic_id
        self._broker_id = broker_id
        self._schemas = schemas
        self._new_batch_id = new_batch_id
        self._locate = locate
        self._open: RingBatch | None = None
        self._ring: deque[RingBatch] = deque()
        self._pending: dict[MessageKey, PendingMessage] = {}
        self._effects: list[Effect] = []
        self._next_partition = 0
        self.written_ms = written_ms
        self._last_opened_ms = opened_ms
        self._uncertain = False

    def __repr__(self) -> str:
        load = self.load
        return (
            f"<TopicProcessor {self.config.name}/{self.write_partition} "
            f"[open {load.open_messages} | ring {load.sealed_batches}/{load.ring_slots} | "
            f"pending {load.pending_messages}{' | uncertain' if load.uncertain else ''}]>"
        )

    @property
    def load(self) -> Load:
        """How much it holds at the moment."""
        return Load(
            open_messages=self._open.builder.messages if self._open else 0,
            sealed_batches=len(self._ring),
            ring_slots=self.config.ring_slots,
            pending_messages=len(self._pending),
            uncertain=self._uncertain,
        )

    # -- what the caller asks ---------------------------------------------------------------

    def configure(
        self, config: TopicConfig, schemas: Mapping[str, bytes], written_ms: int, now: ClockReading
    ) -> None:
        """Take over an altered configuration; it holds from the next event on.

        Args:
            config: of the topic.
            schemas: accepted schemas, serialized, by schema id.
            written_ms: the latest time that any write partition of the topic has written down or
                told: a read partition may come from one to another.
            now: the time.
        """
        number = self.write_partition
        if config.read_partitions_of(number) != self.config.read_partitions_of(number):
            self.seal(now)  # what was accepted goes where the watermark expects it
        self.config = config
        self.written_ms = max(self.written_ms, written_ms)
        self._schemas = schemas
        self.window.window_ms = config.dedup_window_ms

    @property
    def batch_ids(self) -> set[str]:
        """The Batches that are open or on their way."""
        return {batch.batch_id for batch in self._unpublished()}

    @property
    def idle(self) -> bool:
        """Nothing open, nothing on its way."""
        return self._open is None and not self._ring

    def room_for(self, size_bytes: int, schema_id: str) -> bool:
        """Return whether a Message of that size and schema can be accepted now."""
        if self._takes(size_bytes, schema_id):
            return True
        return len(self._ring) + (self._open is not None) < self.config.ring_slots

    def check_no_gap(self, request: Write, parked: int = -1) -> None:
        """Refuse a Message of an ordered topic that came before the one that precedes it.

        Args:
            request: of the Message.
            parked: greatest sequence of its producer that the caller holds back; -1 for none.

        Raises:
            SequenceGapError: room would not help it.
        """
        if self.config.ordering != "producer":
            return
        expected = max(self._expected(request), parked + 1)
        if request.sequence > expected:
            raise SequenceGapError(
                f"sequence {request.sequence} of producer {request.producer_id!r} came before "
                f"{expected}; resend in order"
            )

    def seal_due_ms(self) -> int | None:
        """Return when `tick` has to seal the open Batch, on the monotonic clock; None when it need
        not.
        """
        if self._open is None:
            return None
        return self._open.opened.mono_ms + self.config.batch_age_ms

    def stored_through_ms(self, now: ClockReading) -> int:
        """Return the watermark: every Message accepted before this time and acked is published."""
        reached = min([now.wall_ms, *(batch.opened.wall_ms for batch in self._unpublished())])
        self.written_ms = max(self.written_ms, reached)
        return reached

    def stored_through_by_read_ms(self, now: ClockReading) -> list[int]:
        """Return the watermark of what goes from here to each read partition.

        What was accepted before the topic was altered counts where it goes to.
        """
        reached = [now.wall_ms] * self.config.read_partitions
        for batch in self._unpublished():
            for number in self._read_partitions_of(batch):
                reached[number] = min(reached[number], batch.opened.wall_ms)
        self.written_ms = max(self.written_ms, *reached)
        return reached

    def take_effects(self) -> list[Effect]:
        """Take what has to be done now; each effect is handed out once."""
        effects, self._effects = self._effects, []
        return effects

    # -- events -----------------------------------------------------------------------------

    def write(
        self, request: Write, body: Any, crc: int, ticket: Ticket, now: ClockReading
    ) -> Accepted | Duplicate:
        """Accept a checked Message; `room_for` must have said yes.

        With `acks=all` an accepted one is answered later, as an `AnswerWrite`.

        Raises:
            ProducerFencedError, SequenceConflictError, SequenceGapError, InvalidRequestError,
            UnavailableError: the Message is refused, and nothing has changed.
        """
        key = (request.producer_id, request.epoch, request.sequence)
        pending = self._pending.get(key)
        outcome = _JOINED
        if pending is None:
            if self.window.is_published(*key):
                return Duplicate(self.window.batch_of(*key))
            self._check_sequence(request)
            batch = self._accept(request, body, crc, ticket, now)
            pending = self._pending[key] = batch.pending[key] = PendingMessage(crc)
            self.window.admit(*key, now.mono_ms)
            outcome = _KEPT
        elif pending.crc != crc:
            raise SequenceConflictError(
                f"sequence {request.sequence} of producer {request.producer_id!r} is on its way "
                "with other content; a retry must send the same bytes"
            )
        if request.acks == ACKS_ALL:
            pending.waiting.append(ticket)
        return outcome

    def tick(self, now: ClockReading) -> None:
        """Seal the open Batch when it has its age."""
        due_ms = self.seal_due_ms()
        if due_ms is not None and now.mono_ms >= due_ms:
            self.seal(now)

    def seal(self, now: ClockReading) -> None:
        """Seal the open Batch now, if there is one."""
        if self._open is None:
            return
        batch, self._open = self._open, None
        batch.sealed = batch.builder.seal()
        batch.sealed_mono_ms = now.mono_ms
        batch.sealed_wall_ms = max(now.wall_ms, batch.opened.wall_ms, self.written_ms)
        self.written_ms = batch.sealed_wall_ms
        batch.deadline_mono_ms = now.mono_ms + self.config.upload_deadline_ms
        share = self.config.read_partitions_of(self.write_partition)
        batch.partition = share[self._next_partition % len(share)]
        self._next_partition += 1
        batch.key, batch.uri = self._locate(batch.batch_id, batch.sealed_wall_ms, now.mono_ms)
        self._ring.append(batch)
        self._effects.append(UploadBatch(batch))

    def stored(self, batch: RingBatch) -> None:
        """Record that the Batch's object is durable."""
        if batch not in self._ring:
            return  # it failed by its deadline, and its late object is an orphan
        batch.state = BatchState.STORED
        batch.forget_bodies()
        self._effects.append(ReleaseBodies(batch))
        self._publish_prefix()

    def published(
        self, batches: Iterable[RingBatch], offsets: Iterable[int], now: ClockReading
    ) -> None:
        """Record that the Batches' notifications are durable, at these offsets."""
        for batch, offset in zip(batches, offsets, strict=True):
            self._settle_published(batch, offset, now)
        self._publish_prefix()

    def publish_failed(
        self, batches: Iterable[RingBatch], error: MemqError, now: ClockReading
    ) -> None:
        """None of the Batches was published; those with time left are published again."""
        overdue: list[RingBatch] = []
        for batch in batches:
            batch.state = BatchState.STORED
            if not error.retriable or now.mono_ms >= batch.deadline_mono_ms:
                overdue.append(batch)
        self._fail(overdue, error)

    def publish_uncertain(self) -> None:
        """It is open whether the last `PublishBatches` took effect; wait for `resolve`."""
        self._uncertain = True

    def resolve(self, in_queue: Mapping[str, int], now: ClockReading) -> None:
        """After a fence: the offsets of those Batches, by id, that are in the queue after all."""
        self._uncertain = False
        for batch in [batch for batch in self._ring if batch.state is BatchState.PUBLISHING]:
            if batch.batch_id in in_queue:
                self._settle_published(batch, in_queue[batch.batch_id], now)
            else:
                batch.state = BatchState.STORED
        self._publish_prefix()

    def failed(self, batch: RingBatch, error: MemqError) -> None:
        """Nack the Messages of a Batch that cannot be stored by its deadline."""
        if batch in self._ring:  # one before it may have taken it along
            self._fail([batch], error)

    def abandon(self, error: MemqError) -> None:
        """Nothing more is stored or published: what is open or on its way is nacked."""
        batches = self._unpublished()
        self._ring.clear()
        self._open = None
        for batch in batches:
            self._drop(batch, error)

    # -- inside -----------------------------------------------------------------------------

    def _unpublished(self) -> list[RingBatch]:
        return [*self._ring] if self._open is None else [*self._ring, self._open]

    def _read_partitions_of(self, batch: RingBatch) -> list[int]:
        """Return where a Batch may be published; the choice is made when it is sealed."""
        if batch is self._open:
            return self.config.read_partitions_of(self.write_partition)
        return [batch.partition]

    def _expected(self, request: Write) -> int:
        """Return the sequence that an ordered topic takes next from this producer."""
        known = self.window.next_sequence(request.producer_id, request.epoch)
        return max(known or 0, request.first_unsettled)

    def _check_sequence(self, request: Write) -> None:
        if request.sequence < request.first_unsettled:
            raise InvalidRequestError(
                f"sequence {request.sequence} is below first_unsettled {request.first_unsettled} "
                "of the same request"
            )
        if self.config.ordering != "producer":
            return
        self.check_no_gap(request)
        expected = self._expected(request)
        if request.sequence < expected:
            raise SequenceConflictError(
                f"sequence {request.sequence} of producer {request.producer_id!r} came after "
                f"{expected - 1}, which was accepted, so an ordered topic cannot take it; nor is "
                "it known as published within dedup_window, "
                f"{format_duration_ms(self.config.dedup_window_ms)}. Run a job again sooner than "
                "that, or under a higher epoch"
            )

    def _accept(
        self, request: Write, body: Any, crc: int, ticket: Ticket, now: ClockReading
    ) -> RingBatch:
        """Return the Batch that a Message has joined; seal it if that has filled it."""
        if not self._takes(len(body), request.schema_id):
            self.seal(now)
        batch = self._open or self._new_batch(request.schema_id, now)
        batch.builder.add(
            body,
            producer_id=request.producer_id,
            epoch=request.epoch,
            sequence=request.sequence,
            records=request.records,
            min_timestamp_us=request.min_timestamp_us,
            max_timestamp_us=request.max_timestamp_us,
            crc32c=crc,
        )
        self._open = batch
        batch.tickets.append(ticket)
        batch.note_sequence(request.producer_id, request.epoch, request.sequence)
        if (
            batch.builder.size_bytes >= self.config.batch_bytes
            or batch.builder.messages >= self.config.batch_messages
            or batch.notification_bytes >= MAX_NOTIFICATION_BYTES
        ):
            self.seal(now)
        return batch

    def _takes(self, size_bytes: int, schema_id: str) -> bool:
        """Return whether the open Batch takes such a Message. (A new Batch takes any first one.)"""
        batch = self._open
        return (
            batch is not None
            and batch.schema_id == schema_id
            and batch.builder.size_bytes + size_bytes <= self.config.batch_bytes
        )

    def _new_batch(self, schema_id: str, now: ClockReading) -> RingBatch:
        # Ids are compared to tell which Batch of a write partition came first.
        self._last_opened_ms = max(now.mono_ms, self._last_opened_ms + 1)
        batch_id = self._new_batch_id(self._last_opened_ms)
        builder = BatchBuilder(
            self._schemas[schema_id],
            batch_id=batch_id,
            topic=self.config.name,
            write_partition=self.write_partition,
            time_column=self.config.time_column,
        )
        return RingBatch(batch_id=batch_id, schema_id=schema_id, opened=now, builder=builder)

    def _publish_prefix(self) -> None:
        """Publish the unbroken stored prefix; there is none while a publish is under way."""
        prefix: list[RingBatch] = []
        for batch in self._ring:
            if batch.state is not BatchState.STORED:
                break
            prefix.append(batch)
        if not prefix:
            return
        for batch in prefix:
            batch.state = BatchState.PUBLISHING
        publications = [
            Publication(
                batch.partition,
                encode_notification(self._notification(batch)),
                batch.sealed_wall_ms,
                batch.sealed_mono_ms,
            )
            for batch in prefix
        ]
        self._effects.append(PublishBatches(prefix, publications))

    def _notification(self, batch: RingBatch) -> Notification:
        sealed = batch.sealed
        assert sealed is not None  # noqa: S101 - only sealed Batches are in the ring
        min_timestamp_us, max_timestamp_us = sealed.timestamp_range_us
        return Notification(
            version=NOTIFICATION_VERSION,
            topic=self.config.name,
            topic_id=self._topic_id,
            write_partition=self.write_partition,
            batch_id=batch.batch_id,
            uri=batch.uri,
            size_bytes=sealed.size_bytes,
            index_offset=sealed.index_offset,
            messages=sealed.messages,
            records=sealed.records,
            min_timestamp_us=min_timestamp_us,
            max_timestamp_us=max_timestamp_us,
            producers=sealed.producers,
            schema_id=batch.schema_id,
            broker_id=self._broker_id,
            sealed_ms=batch.sealed_wall_ms,
            stored_through_ms=batch.sealed_wall_ms,
        )

    def _settle_published(self, batch: RingBatch, offset: int, now: ClockReading) -> None:
        sealed = batch.sealed
        assert sealed is not None  # noqa: S101 - only sealed Batches are published
        self._ring.remove(batch)
        published = BatchRef(batch.partition, offset, batch.batch_id)
        self.window.publish(sealed.producers, published, now.mono_ms)
        answer = WriteAnswer(**published._asdict())
        for key, pending in batch.pending.items():
            del self._pending[key]
            self._effects.extend(AnswerWrite(ticket, answer) for ticket in pending.waiting)
        self._effects.append(BatchEnded(batch, published=True))

    def _fail(self, batches: list[RingBatch], error: MemqError) -> None:
        """Nack these, all of them before anything is published again."""
        doomed = batches
        if batches and self.config.ordering == "producer":
            ring = list(self._ring)
            doomed = ring[ring.index(batches[0]) :]
            if self._open is not None:
                self._drop(self._open, _failed_before(error))
                self._open = None
        for batch in doomed:
            self._ring.remove(batch)
            self._drop(batch, error if batch in batches else _failed_before(error))
        self._publish_prefix()

    def _drop(self, batch: RingBatch, error: MemqError) -> None:
        if batch.state is BatchState.UPLOADING:
            self._effects.append(ReleaseBodies(batch))
        batch.state = BatchState.FAILED
        for key, pending in batch.pending.items():
            del self._pending[key]
            self.window.rewind(*key)
            self._effects.extend(AnswerWrite(ticket, error) for ticket in pending.waiting)
        self._effects.append(BatchEnded(batch, published=False))


def _failed_before(error: MemqError) -> MemqError:
    return SequenceGapError(f"a Batch before this one failed ({error}); resend in order")
