"""Reading a Batch: the whole object at once, or its index first and then Messages by range.

Whatever the bytes are, reading ends with rows that are exactly what was sent, or with a
`CorruptDataError` that says what does not hold and where.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from memq.core.checksum import crc32c
from memq.core.format.envelope import END_OF_STREAM, BytesLike, view_bytes
from memq.core.format.index import BatchIndex, BatchMetadata, IndexEntry, decode_footer, decode_tail
from memq.core.format.message import MAX_DECODED_BYTES, open_message
from memq.core.format.schema import deserialize_schema
from memq.core.units import counted
from memq.errors import CorruptDataError, MemqError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TAIL_GUESS_BYTES = 64 << 10  # the index of about 700 Messages; one round trip costs more than this


class BatchReader:
    """A whole Batch object in memory.

    Construction checks all but the Messages; each is checked when it is read. Rows refer to
    `buffer`, which must not change while they are in use.

    Args:
        buffer: the whole object.
        max_decoded_bytes: most that one Message may decode to.

    Raises:
        CorruptDataError: the object is not a whole and sound Batch.
        SchemaMismatchError: its schema is none that a Batch can have.
    """

    def __init__(self, buffer: BytesLike, *, max_decoded_bytes: int = MAX_DECODED_BYTES) -> None:
        self._view = view_bytes(buffer)
        self._max_decoded_bytes = max_decoded_bytes
        self.index: BatchIndex = decode_tail(self._view, len(self._view))
        for finding in structure_findings(self._view, self.index):
            raise CorruptDataError(finding)
        self.schema: pa.Schema = deserialize_schema(self._view[: self.index.schema_length])

    def __repr__(self) -> str:
        return (
            f"<BatchReader {self.metadata.batch_id} [{len(self.entries)} messages, "
            f"{len(self._view)} bytes]>"
        )

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def metadata(self) -> BatchMetadata:
        """What the Batch says about itself."""
        return self.index.metadata

    @property
    def entries(self) -> list[IndexEntry]:
        """One entry per Message."""
        return self.index.entries

    def read(self, position: int) -> pa.RecordBatch:
        """Rows of the Message at this position (0 is the first).

        Raises:
            CorruptDataError: the Message is damaged.
            IndexError: there is no such Message.
        """
        entry = self.entries[position]
        data = self._view[entry.offset : entry.offset + entry.length]
        return message_from_range(
            data, entry, self.schema, max_decoded_bytes=self._max_decoded_bytes
        )

    def read_all(self) -> pa.Table:
        """Rows of all Messages, one chunk a Message.

        Raises:
            CorruptDataError: a Message is damaged.
        """
        batches = [self.read(position) for position in range(len(self))]
        return pa.Table.from_batches(batches, schema=self.schema)


def read_index(get_range: Callable[[int, int], BytesLike], size: int) -> BatchIndex:
    """Read the index of an object, through ranged reads of its end: one, or two when it is large.

    Args:
        get_range: returns the bytes of the object from a start on, of a length.
        size: of the object in bytes.

    Raises:
        CorruptDataError: footer or index do not hold.
    """
    tail = _tail(get_range, size, TAIL_GUESS_BYTES)
    footer = decode_footer(tail, size)
    if footer.tail_length > len(tail):
        tail = _tail(get_range, size, footer.tail_length)
    return decode_tail(tail, size)


def schema_from_range(data: BytesLike, index: BatchIndex) -> pa.Schema:
    """Read the schema in the first `index.schema_length` bytes of an object, CRC32C checked.

    Raises:
        CorruptDataError: they are not the schema message that the index was written for.
    """
    for finding in _schema_findings(view_bytes(data), index):
        raise CorruptDataError(finding)
    return deserialize_schema(data)


def message_from_range(
    data: BytesLike,
    entry: IndexEntry,
    schema: pa.Schema,
    *,
    max_decoded_bytes: int = MAX_DECODED_BYTES,
) -> pa.RecordBatch:
    """Rows of one Message from the `entry.length` bytes at `entry.offset` of an object.

    Raises:
        CorruptDataError: they are not the Message that the index was written for.
        SchemaMismatchError: the Message has another schema.
        MessageTooLargeError: decoded it would be larger than `max_decoded_bytes`.
    """
    check_crc32c(data, entry)
    try:
        batch = open_message(data, schema, max_decoded_bytes=max_decoded_bytes)
    except MemqError as exc:
        raise type(exc)(f"Message at byte {entry.offset}: {exc}") from exc
    if batch.num_rows != entry.records:
        raise CorruptDataError(
            f"Message at byte {entry.offset}: it has {counted(batch.num_rows, 'record')}; "
            f"the index says {entry.records}"
        )
    return batch


def check_crc32c(data: BytesLike, entry: IndexEntry) -> None:
    """Check that these are the bytes of the Message that the index was written for.

    Raises:
        CorruptDataError: length or CRC32C differ.
    """
    view = view_bytes(data)
    if len(view) != entry.length:
        raise CorruptDataError(
            f"Message at byte {entry.offset}: it has {entry.length} bytes; {len(view)} are there"
        )
    crc = crc32c(view)
    if crc != entry.crc32c:
        raise CorruptDataError(
            f"Message at byte {entry.offset}: it has CRC32C {crc:08x}; "
            f"the index says {entry.crc32c:08x}"
        )


def structure_findings(view: memoryview, index: BatchIndex) -> Iterator[str]:
    """Yield, as sentences, what is wrong in an object around its Messages.

    Schema message, Messages and end-of-stream marker must follow each other without a gap up to the
    index, so that each byte belongs to something that is checked.
    """
    position = index.schema_length
    if not 0 < position <= index.offset:
        yield f"the first Message is said to begin at byte {position}, before or beyond all others"
        return
    yield from _schema_findings(view[:position], index)
    for number, entry in enumerate(index.entries):
        if entry.offset != position or entry.length <= 0:
            yield (
                f"Message {number} is said to have {entry.length} bytes from byte "
                f"{entry.offset} on; what stands before it ends at byte {position}"
            )
            return
        position += entry.length
    marker = bytes(view[position : index.offset])
    if marker != END_OF_STREAM:
        yield (
            f"from byte {position} to the index at byte {index.offset} stands "
            f"{marker[:16].hex(' ')}, not the end-of-stream marker {END_OF_STREAM.hex(' ')}"
        )


def _schema_findings(data: memoryview, index: BatchIndex) -> Iterator[str]:
    crc = crc32c(data)
    if crc != index.metadata.schema_crc32c:
        yield (
            f"the schema message (bytes 0 to {len(data)}) has CRC32C {crc:08x}; "
            f"the index says {index.metadata.schema_crc32c:08x}"
        )


def _tail(get_range: Callable[[int, int], BytesLike], size: int, wanted: int) -> memoryview:
    length = min(size, wanted)
    tail = view_bytes(get_range(size - length, length))
    if len(tail) != length:
        raise CorruptDataError(
            f"the object should have {size} bytes, but the last {length} were read as {len(tail)}"
        )
    return tail
