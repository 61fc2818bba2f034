"""Recovery: what can still be read of a damaged or truncated object.

With a sound index, every Message whose CRC32C holds is recovered, wherever the damage is. Without
one, the stream is walked from its front as any Arrow reader would, and Messages are recovered while
their envelopes lead from one to the next. No checksum vouches for those, so they are marked: they
are sound Arrow data, but a flipped bit inside a value would not be noticed.

Nothing is guessed or repaired, and what is not recovered is named.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memq.core.checksum import crc32c
from memq.core.format.envelope import END_OF_STREAM, BytesLike, read_envelope, view_bytes
from memq.core.format.index import BatchIndex, IndexEntry, decode_tail
from memq.core.format.message import open_message
from memq.core.format.reader import message_from_range, schema_from_range
from memq.core.format.schema import deserialize_schema
from memq.core.units import counted
from memq.errors import CorruptDataError, MemqError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa


@dataclass(frozen=True)
class RecoveredMessage:
    """One Message that could be read.

    Attributes:
        position: of its first byte in the object.
        batch: its rows.
        entry: its entry in the index, whose CRC32C holds; None when there was no index, so that
            nothing vouches for the values.
    """

    position: int
    batch: pa.RecordBatch
    entry: IndexEntry | None


@dataclass(frozen=True)
class Recovered:
    """What `recover` saved.

    Attributes:
        schema: of the Messages; None when there is none to read them with.
        index: of the Batch; None when it is lost.
        messages: what could be read, in the order of the bytes.
        lost: what could not, one sentence each, naming where.
    """

    schema: pa.Schema | None
    index: BatchIndex | None
    messages: list[RecoveredMessage] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    @property
    def records(self) -> int:
        """LogMessages saved."""
        return sum(message.batch.num_rows for message in self.messages)


def recover(buffer: BytesLike, *, schema_bytes: bytes | None = None) -> Recovered:
    """Read the whole Messages of an object that may be damaged or cut short.

    Args:
        buffer: what is left of the object.
        schema_bytes: the serialized schema of the Batch, for when its own is damaged; one that the
            index contradicts is not used.
    """
    view = view_bytes(buffer)
    try:
        index = decode_tail(view, len(view))
    except MemqError as exc:
        return _recover_by_walk(view, schema_bytes, f"The index is lost: {exc}")
    return _recover_by_index(view, index, schema_bytes)


def _recover_by_index(view: memoryview, index: BatchIndex, schema_bytes: bytes | None) -> Recovered:
    lost = []
    try:
        schema = schema_from_range(view[: index.schema_length], index)
    except MemqError as exc:
        lost.append(f"The schema message is lost: {exc}")
        if schema_bytes is None or crc32c(schema_bytes) != index.metadata.schema_crc32c:
            everything = counted(len(index.entries), "Message is", "Messages are")
            lost.append(f"{everything} lost without the schema")
            return Recovered(None, index, lost=lost)
        schema = deserialize_schema(schema_bytes)
    saved = Recovered(schema, index, lost=lost)
    for entry in index.entries:
        data = view[max(entry.offset, 0) : max(entry.offset + entry.length, 0)]
        try:
            batch = message_from_range(data, entry, schema)
        except MemqError as exc:
            lost.append(
                f"Lost: {counted(entry.records, 'record')} of producer {entry.producer_id!r}, "
                f"epoch {entry.epoch}, sequence {entry.sequence}: {exc}"
            )
        else:
            saved.messages.append(RecoveredMessage(entry.offset, batch, entry))
    return saved


def _recover_by_walk(view: memoryview, schema_bytes: bytes | None, reason: str) -> Recovered:
    lost = [reason]
    try:
        start = len(schema_bytes) if schema_bytes else read_envelope(view).length
        schema = deserialize_schema(schema_bytes or view[:start])
    except MemqError as exc:
        lost.append(f"All Messages are lost without the schema message: {exc}")
        return Recovered(None, None, lost=lost)
    saved = Recovered(schema, None, lost=lost)
    for position, data in _walk(view, start, lost):
        try:
            batch = open_message(data, schema)
        except MemqError as exc:
            lost.append(f"Bytes {position} to {position + len(data)} are no sound Message: {exc}")
        else:
            saved.messages.append(RecoveredMessage(position, batch, None))
    return saved


def _walk(view: memoryview, start: int, lost: list[str]) -> Iterator[tuple[int, memoryview]]:
    """Position and bytes of each message from `start` to the end-of-stream marker."""
    position = start
    while view[position : position + len(END_OF_STREAM)] != END_OF_STREAM:
        try:
            length = read_envelope(view[position:]).length
        except CorruptDataError as exc:
            lost.append(
                f"What followed byte {position} is lost "
                f"({len(view) - position} bytes are left): {exc}"
            )
            return
        yield position, view[position : position + length]
        position += length
