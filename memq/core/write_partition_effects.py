"""What a TopicProcessor and its caller tell each other: Batches, effects and outcomes."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from memq.core.clock import ClockReading
    from memq.core.deduplication import BatchRef
    from memq.core.format.batch import BatchBuilder, SealedBatch
    from memq.core.queue import Publication
    from memq.core.wire.messages import WriteAnswer
    from memq.errors import MemqError

RUN_BYTES = 80
"""Most that a run of sequences takes in a notification beside the producer id: five numbers."""
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


class Duplicate(NamedTuple):
    """The Message was published before; `batch` is None where that is no longer remembered."""

    batch: BatchRef | None
