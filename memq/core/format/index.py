"""The index of a Batch, and the footer that leads to it.

The index stands after the end-of-stream marker of the Messages, where no Arrow reader looks. It is
an Arrow IPC stream itself: its schema message carries the Batch's metadata, its one RecordBatch has
one row per Message. The footer has a fixed size and ends the object, so that a reader needs one
ranged read of the object's tail, or two when the index is large, to know where everything is.

Between them the checksums reach every byte of the object: the index holds the CRC32C of the schema
message and of each Message, the footer that of the index and of its own length field, and what is
left, the end-of-stream marker and the magic, is compared with constants.
"""

from __future__ import annotations

import struct
from array import array
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from memq.core.checksum import crc32c
from memq.core.format.envelope import (
    ARROW_ERRORS,
    END_OF_STREAM,
    BytesLike,
    check_schema_message,
    read_envelope,
    view_bytes,
)
from memq.core.format.message import TIMESTAMP_COLUMN, open_message
from memq.core.format.schema import MAX_SCHEMA_BYTES
from memq.errors import CorruptDataError

if TYPE_CHECKING:
    from collections.abc import Sequence

FORMAT_VERSION = 1
_MAGIC = b"MemQBat"
_FOOTER = struct.Struct("<II7sB")  # index length, CRC32C, magic, format version
_LENGTH = struct.Struct("<I")
FOOTER_BYTES = _FOOTER.size

MAX_MESSAGES = 100_000  # in one Batch; the most that the topic option batch_messages can ask for
MAX_PRODUCER_ID_BYTES = 256  # room for a job, a run, a task and a UUID; repeated for each Message
MAX_INDEX_BYTES = 64 << 20  # above what those two limits can add up to (about 35 MiB)

INDEX_SCHEMA: pa.Schema = pa.schema(
    [
        pa.field(name, kind, nullable=False)
        for name, kind in (
            ("producer_id", pa.utf8()),
            ("epoch", pa.int64()),
            ("sequence", pa.int64()),
            ("offset", pa.int64()),
            ("length", pa.int64()),
            ("records", pa.int64()),
            ("min_timestamp_us", pa.int64()),
            ("max_timestamp_us", pa.int64()),
            ("crc32c", pa.uint32()),
        )
    ]
)
"""Columns of the index: the fields of `IndexEntry`, in their order."""

_PREFIX = "memq."  # of the keys of our metadata in the index's schema message


class IndexEntry(msgspec.Struct, frozen=True, gc=False):
    """One Message of a Batch.

    Attributes:
        producer_id: who sent it.
        epoch: of the producer.
        sequence: of the Message.
        offset: of its first byte in the object.
        length: of its bytes.
        records: LogMessages in it.
        min_timestamp_us: least LogMessage timestamp, microseconds since 1970 UTC.
        max_timestamp_us: greatest LogMessage timestamp; both are 0 when not known.
        crc32c: of its bytes.
    """

    producer_id: str
    epoch: int
    sequence: int
    offset: int
    length: int
    records: int
    min_timestamp_us: int
    max_timestamp_us: int
    crc32c: int


class BatchMetadata(msgspec.Struct, frozen=True):
    """What a Batch says about itself as a whole.

    Attributes:
        batch_id: unique name of the Batch.
        topic: the topic.
        write_partition: the write partition that sealed it.
        schema_crc32c: CRC32C of the schema message that opens the object.
        time_column: of the topic: the times of Messages are those of this column.
    """

    batch_id: str
    topic: str
    write_partition: int
    schema_crc32c: int
    time_column: str = TIMESTAMP_COLUMN


class BatchIndex(msgspec.Struct, frozen=True):
    """The index of an object of known size.

    Attributes:
        metadata: of the Batch.
        entries: one per Message, in the order of their bytes.
        offset: where the index begins in the object; it and the footer reach to the end.
    """

    metadata: BatchMetadata
    entries: list[IndexEntry]
    offset: int

    @property
    def schema_length(self) -> int:
        """Bytes of the schema message, which opens the object."""
        return self.entries[0].offset


class Footer(msgspec.Struct, frozen=True):
    """The end of an object.

    Attributes:
        index_length: bytes of the index, which stands directly before the footer.
        crc32c: of the index and of the length field.
    """

    index_length: int
    crc32c: int

    @property
    def tail_length(self) -> int:
        """Bytes of index and footer: how much of the object's end is needed to read the index."""
        return self.index_length + FOOTER_BYTES


def encode_index(entries: Sequence[IndexEntry], metadata: BatchMetadata) -> bytes:
    """Encode the index as an Arrow IPC stream."""
    producer_ids, *numbers, crcs = zip(*map(msgspec.structs.astuple, entries), strict=True)
    arrays = [
        pa.array(producer_ids, pa.utf8()),
        *(_array(pa.int64(), array("q", column)) for column in numbers),
        _array(pa.uint32(), array("I", crcs)),
    ]
    column = metadata.time_column
    schema = INDEX_SCHEMA.with_metadata(
        {
            _PREFIX + "format_version": str(FORMAT_VERSION),
            _PREFIX + "batch_id": metadata.batch_id,
            _PREFIX + "topic": metadata.topic,
            _PREFIX + "write_partition": str(metadata.write_partition),
            _PREFIX + "schema_crc32c": f"{metadata.schema_crc32c:08x}",
        }
        | ({} if column == TIMESTAMP_COLUMN else {_PREFIX + "time_column": column})
    )
    batch = pa.record_batch(arrays, schema=schema)
    return b"".join((schema.serialize(), batch.serialize(), END_OF_STREAM))


def _array(kind: pa.DataType, values: array[int]) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def decode_index(data: BytesLike) -> tuple[BatchMetadata, list[IndexEntry]]:
    """Metadata and entries of an index whose CRC32C has been checked.

    Raises:
        CorruptDataError: the bytes are not an index of this format version.
    """
    view = view_bytes(data)
    start = read_envelope(view).length
    end = len(view) - len(END_OF_STREAM)
    if start > MAX_SCHEMA_BYTES:
        raise CorruptDataError(
            f"the schema of the index has {start} bytes; the limit is {MAX_SCHEMA_BYTES}"
        )
    if end <= start or view[end:] != END_OF_STREAM:
        raise CorruptDataError("the index does not end with an end-of-stream marker")
    check_schema_message(view[:start])
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(view[:start]))
    except ARROW_ERRORS as exc:
        raise CorruptDataError(f"the schema of the index does not hold: {exc}") from exc
    if schema != INDEX_SCHEMA:
        raise CorruptDataError(
            f"the index has other columns than format version {FORMAT_VERSION} says"
        )
    batch = open_message(view[start:end], INDEX_SCHEMA, max_decoded_bytes=MAX_INDEX_BYTES)
    if batch.num_rows > MAX_MESSAGES:  # as objects of Python they take many times the bytes
        raise CorruptDataError(
            f"the index has {batch.num_rows} Messages; a Batch has up to {MAX_MESSAGES}"
        )
    rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
    return _decode_metadata(schema.metadata or {}), [IndexEntry(*row) for row in rows]


def encode_footer(index: bytes) -> bytes:
    """Encode the footer that follows this index."""
    length = len(index)
    return _FOOTER.pack(length, _index_crc32c(index, length), _MAGIC, FORMAT_VERSION)


def decode_footer(tail: BytesLike, object_size: int) -> Footer:
    """Decode the footer at the end of `tail`, the last bytes of an object of `object_size` bytes.

    Raises:
        CorruptDataError: the object does not end as a Batch of this format version does.
    """
    view = view_bytes(tail)
    if len(view) < FOOTER_BYTES:
        raise CorruptDataError(f"{len(view)} bytes are too few for a Batch: it is cut short")
    length, crc, magic, version = _FOOTER.unpack_from(view, len(view) - FOOTER_BYTES)
    if magic != _MAGIC:
        raise CorruptDataError(
            f"the object ends with {magic.hex(' ')}, not with the magic of a Batch "
            f"({_MAGIC.hex(' ')}): it is no Batch, or cut short"
        )
    if version != FORMAT_VERSION:
        raise CorruptDataError(
            f"the Batch has format version {version}; this reader knows {FORMAT_VERSION}"
        )
    if length > min(MAX_INDEX_BYTES, object_size - FOOTER_BYTES):
        raise CorruptDataError(
            f"the footer claims an index of {length} bytes in an object of {object_size} "
            f"(limit {MAX_INDEX_BYTES})"
        )
    return Footer(length, crc)


def decode_tail(tail: BytesLike, object_size: int) -> BatchIndex:
    """Decode the index in the last bytes of an object; `tail` may begin anywhere before it.

    Raises:
        CorruptDataError: footer or index do not hold, or `tail` begins within the index.
    """
    view = view_bytes(tail)
    footer = decode_footer(view, object_size)
    if footer.tail_length > len(view):
        raise CorruptDataError(
            f"index and footer have {footer.tail_length} bytes; {len(view)} were given"
        )
    index = view[len(view) - footer.tail_length : len(view) - FOOTER_BYTES]
    crc = _index_crc32c(index, footer.index_length)
    if crc != footer.crc32c:
        raise CorruptDataError(
            f"the index has CRC32C {crc:08x}, its footer says {footer.crc32c:08x}"
        )
    metadata, entries = decode_index(index)
    return BatchIndex(metadata, entries, object_size - footer.tail_length)


def _index_crc32c(index: BytesLike, length: int) -> int:
    return crc32c(_LENGTH.pack(length), crc32c(index))


def _decode_metadata(raw: dict[bytes, bytes]) -> BatchMetadata:
    try:
        texts = {key.decode(): value.decode() for key, value in raw.items()}
        version = int(texts[_PREFIX + "format_version"])
        metadata = BatchMetadata(
            batch_id=texts[_PREFIX + "batch_id"],
            topic=texts[_PREFIX + "topic"],
            write_partition=int(texts[_PREFIX + "write_partition"]),
            schema_crc32c=int(texts[_PREFIX + "schema_crc32c"], 16),
            time_column=texts.get(_PREFIX + "time_column", TIMESTAMP_COLUMN),
        )
    except (KeyError, ValueError) as exc:
        raise CorruptDataError(f"the metadata of the index is incomplete: {exc!r}") from exc
    if version != FORMAT_VERSION:
        raise CorruptDataError(f"footer and index disagree: format {FORMAT_VERSION} and {version}")
    return metadata
