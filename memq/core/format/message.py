"""A Message: the LogMessages of one producer upload, as one Arrow RecordBatch.

Its bytes are the RecordBatch as an Arrow encapsulated message, and nothing else. The producer makes
them once, and then they travel, rest and are read unchanged: wire, broker, storage and reader see
the same bytes under the same CRC32C.

Two ways lead from bytes to rows. `open_message` trusts nothing: whatever it is given, it returns
rows on which no later read can crash, or raises. The broker runs it on all it
receives, and readers on all they fetch, as it costs about 2 ns a record. `decode_message` only maps
the bytes; it is for bytes that were checked before in the same place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from memq.core.format.envelope import (
    ARROW_ERRORS,
    END_OF_STREAM,
    BytesLike,
    check_record_batch,
    read_envelope,
    view_bytes,
)
from memq.core.format.schema import DEFAULT_SCHEMA, layout_of
from memq.errors import (
    CorruptDataError,
    InvalidRequestError,
    MessageTooLargeError,
    SchemaMismatchError,
)

Headers = Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]]
"""Headers of one LogMessage; a name may repeat when they are given as pairs."""

MAX_DECODED_BYTES = 64 << 20
"""What a reader takes of one Message by default: the most that a topic can be set to accept."""

UNKNOWN_RANGE = (0, 0)
"""Timestamp range of rows that have no timestamp."""

TIMESTAMP_COLUMN = "timestamp"

_KEY, _VALUE, _HEADERS, _TIMESTAMP = (field.type for field in DEFAULT_SCHEMA)
_NO_HEADERS = pa.nulls(0, pa.struct([_HEADERS.key_field, _HEADERS.item_field]))
TICKS_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


def encode_records(
    keys: Sequence[bytes | None] | None,
    values: Sequence[bytes | None],
    headers: Sequence[Headers | None] | None,
    timestamps_us: Sequence[int],
) -> pa.RecordBatch:
    """LogMessages as a RecordBatch of `DEFAULT_SCHEMA`, from one list per column.

    Args:
        keys: one key a record; None when no record has one.
        values: one value a record; text is stored as UTF-8.
        headers: the headers of each record; None when no record has any.
        timestamps_us: microseconds since 1970 UTC, one a record.

    Raises:
        InvalidRequestError: the lists differ in length.
        SchemaMismatchError: an element is not of its column's type.
        MessageTooLargeError: the records do not fit into one Arrow array (2 GiB).
    """
    count = len(values)
    for name, given in (("keys", keys), ("headers", headers), ("timestamps", timestamps_us)):
        if given is not None and len(given) != count:
            raise InvalidRequestError(f"{count} values were given, but {len(given)} {name}")
    columns = [
        pa.nulls(count, _KEY) if keys is None else _array("key", keys, _KEY),
        _array("value", values, _VALUE),
        _null_headers(count) if headers is None else _array("headers", headers, _HEADERS),
        _array(TIMESTAMP_COLUMN, timestamps_us, _TIMESTAMP),
    ]
    if columns[3].null_count:
        raise SchemaMismatchError("a record has no timestamp; it must have one")
    return pa.record_batch(columns, schema=DEFAULT_SCHEMA)


def encode_message(batch: pa.RecordBatch, compression: str | None = None) -> pa.Buffer:
    """Encode a Message; always the same for the same rows, and a multiple of 8 bytes long.

    Args:
        batch: at least one row, of a schema that can be stored.
        compression: None, "zstd" or "lz4", of each Arrow buffer on its own.

    Raises:
        InvalidRequestError: there is no row, or no such compression.
        SchemaMismatchError: the schema cannot be stored.
    """
    layout_of(batch.schema)
    if batch.num_rows == 0:
        raise InvalidRequestError("a Message needs at least one record")
    if compression is None:
        return batch.serialize()
    if compression not in ("zstd", "lz4"):
        raise InvalidRequestError(f"compression {compression!r} is not one of zstd, lz4 or None")
    return _compressed(batch, compression)


def open_message(
    body: BytesLike, schema: pa.Schema, *, max_decoded_bytes: int = MAX_DECODED_BYTES
) -> pa.RecordBatch:
    """Rows of a Message whose bytes may be hostile; safe to read in any way once returned.

    The rows refer to `body`, unless it is compressed: it must not change while they are in use.

    Args:
        body: exactly one Message.
        schema: what its rows must have.
        max_decoded_bytes: most that its Arrow buffers may hold, summed; also the most values that
            one column may have.

    Raises:
        CorruptDataError: the bytes are not a sound RecordBatch.
        SchemaMismatchError: they are not one of this schema, or it cannot be stored.
        MessageTooLargeError: decoded it would be larger than `max_decoded_bytes`.
    """
    check_record_batch(view_bytes(body), layout_of(schema), max_decoded_bytes)
    batch = decode_message(body, schema)
    try:
        batch.validate(full=True)
    except ARROW_ERRORS as exc:
        raise CorruptDataError(f"the RecordBatch does not hold: {exc}") from exc
    return batch


def decode_message(body: BytesLike, schema: pa.Schema) -> pa.RecordBatch:
    """Rows of a Message that has been checked; a view on `body`, unless it is compressed.

    Raises:
        CorruptDataError: Arrow cannot decode it. Not every damage is noticed here.
    """
    try:
        return pa.ipc.read_record_batch(pa.py_buffer(body), schema)
    except ARROW_ERRORS as exc:
        raise CorruptDataError(f"Arrow cannot decode the RecordBatch: {exc}") from exc


def time_position(schema: pa.Schema, time_column: str) -> int:
    """Find the column that is the time of rows; -1 where there is none.

    It must be an Arrow timestamp, of any unit; one without time zone is taken as UTC.
    """
    position = schema.get_field_index(time_column)
    return position if position >= 0 and pat.is_timestamp(schema.types[position]) else -1


def timestamp_range_us(
    batch: pa.RecordBatch, time_column: str = TIMESTAMP_COLUMN
) -> tuple[int, int]:
    """Least and greatest time of rows, in microseconds since 1970 UTC.

    Finer units are rounded down. Nulls do not count. Without a column of times, or with nothing but
    nulls in it, the range is `UNKNOWN_RANGE`.
    """
    position = time_position(batch.schema, time_column)
    if position < 0:
        return UNKNOWN_RANGE
    column = batch.column(position)
    least, greatest = pc.min_max(column).values()
    if not least.is_valid:
        return UNKNOWN_RANGE
    per_second = TICKS_PER_SECOND[column.type.unit]
    return _microseconds(least.value, per_second), _microseconds(greatest.value, per_second)


def _microseconds(ticks: int, per_second: int) -> int:
    # Seconds and milliseconds reach further than 64 bits of microseconds do.
    return min(max(ticks * 10**6 // per_second, _INT64_MIN), _INT64_MAX)


def _array(name: str, values: Sequence[object], kind: pa.DataType) -> pa.Array:
    try:
        array = pa.array(values, kind)
    except ARROW_ERRORS as exc:
        raise SchemaMismatchError(f"a {name} is not of type {kind}: {exc}") from exc
    if isinstance(array, pa.ChunkedArray):
        raise MessageTooLargeError(f"the {name} column exceeds 2 GiB; send fewer records at once")
    return array


def _null_headers(count: int) -> pa.Array:
    """Null headers without the child arrays of `pa.nulls`, which would cost 8 bytes a record."""
    validity, offsets = bytes((count + 7) // 8), bytes(4 * (count + 1))
    buffers = [pa.py_buffer(validity), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(_HEADERS, count, buffers, count, 0, [_NO_HEADERS])


def _compressed(batch: pa.RecordBatch, compression: str) -> pa.Buffer:
    """Only Arrow's stream writer compresses, so the message is cut out of a stream of one."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    stream = sink.getvalue()
    start = read_envelope(view_bytes(stream)).length
    return stream.slice(start, stream.size - start - len(END_OF_STREAM))
