"""Schemas: what a topic may declare, the bytes it is stored as, and its id.

A schema is stored *plain*: without metadata, so that equal schemas have equal bytes and one id,
and without types that are only another encoding of the same values (dictionary, view), so that a
Message is one self-contained RecordBatch. Readers differ in what else of Arrow they know. A type
is refused when a Batch that has it could not be read back, value by value, by every reader that a
Batch promises to be readable by; `check_topic_schema` names them.
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.types as pat

from memq.core.format.envelope import (
    ARROW_ERRORS,
    BytesLike,
    EnvelopeLayout,
    check_schema_message,
    count_nodes_and_buffers,
    template_of,
    view_bytes,
)
from memq.errors import CorruptDataError, SchemaMismatchError

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFAULT_SCHEMA: pa.Schema = pa.schema(
    [
        pa.field("key", pa.binary()),
        # A null value is a tombstone, as in Kafka; an empty value is a value.
        pa.field("value", pa.binary()),
        pa.field("headers", pa.map_(pa.utf8(), pa.binary())),
        # Never null: offsets for times and the audit rely on it.
        pa.field("timestamp", pa.timestamp("us", "UTC"), nullable=False),
    ]
)
"""The schema of a topic that declares none."""

MAX_SCHEMA_BYTES = (
    1 << 20
)  # thousands of columns; it is kept for every topic, and sent on discovery
MAX_ROW_BYTES = 4 << 20  # of a row of nulls, which is made of each schema; fixed sizes add up to it
MAX_NESTING = 16  # deeper than real tables go; Arrow readers give up at 64, some sooner
ORIGINS = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("batch", pa.utf8()),
        ("write_partition", pa.int32()),
        ("producer_id", pa.utf8()),
        ("epoch", pa.int64()),
        ("sequence", pa.int64()),
        ("position", pa.int64()),
    ]
)
ORIGIN_COLUMNS = tuple(ORIGINS.names)
"""Columns that readers can add to a topic's: read partition, offset and id of the Batch; write
partition, sender and sequence of the Message; position of the LogMessage in it. The last five name
it."""
RANGE_COLUMNS = ("memq_topic", "memq_topic_id", "memq_partition", "memq_range")
"""Columns by which files and tables say which range a row is of: topic, topic id, partition and
offsets. In files they are the names of folders, from the outermost on."""
_SCHEMA_CACHE = 1024  # layouts kept; a schema beyond that only costs its checks again


def serialize_schema(schema: pa.Schema) -> bytes:
    """Serialize the schema in plain form as an Arrow schema message: what opens a Batch object.

    Raises:
        SchemaMismatchError: it cannot be stored.
    """
    plain = plain_schema(schema)
    check_topic_schema(plain)
    return bytes(plain.serialize())


def deserialize_schema(data: BytesLike) -> pa.Schema:
    """Deserialize the schema in the bytes of one Arrow schema message.

    Raises:
        CorruptDataError: the bytes are not exactly one schema message.
        SchemaMismatchError: it is a schema that cannot be stored.
    """
    view = view_bytes(data)
    if len(view) > MAX_SCHEMA_BYTES:
        raise SchemaMismatchError(
            f"the schema has {len(view)} bytes; the limit is {MAX_SCHEMA_BYTES}"
        )
    check_schema_message(view)
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(data))
        check_topic_schema(schema)
    except ARROW_ERRORS as exc:
        raise CorruptDataError(f"the Arrow schema message does not hold: {exc}") from exc
    return schema


def schema_id(schema_bytes: BytesLike) -> str:
    """Name of a serialized schema: the first 16 hex digits of the SHA-256 of its bytes."""
    return hashlib.sha256(schema_bytes).hexdigest()[:16]


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema with metadata dropped, dictionary types replaced by the type of their
    values, and views by large strings and binaries, at any depth.
    """
    return pa.schema([_plain_field(field) for field in schema])


def check_topic_schema(schema: pa.Schema) -> None:
    """Refuse a schema that cannot be stored.

    Refused are: no columns; two columns, or two fields of a struct, of one name; fixed sizes that
    add up to more than `MAX_ROW_BYTES`; nesting deeper than `MAX_NESTING`; dictionary and view
    types (send them plain); and types that not every reader of Arrow streams reads: extension,
    union, run-end encoded, list view, interval, decimal256, decimals of negative scale, and
    binaries or lists of a fixed size below 1.

    Raises:
        SchemaMismatchError: naming the column and the reason.
    """
    if len(schema) == 0:
        raise SchemaMismatchError("a schema needs at least one column")
    if (name := _duplicated(schema.names)) is not None:
        raise SchemaMismatchError(f"the schema has more than one column named {name!r}")
    for field in schema:
        for reason in _objections(field.type, depth=1):
            raise SchemaMismatchError(f"column {field.name!r} cannot be stored: {reason}")
    row_bytes = sum(map(_fixed_bytes, schema.types))
    if row_bytes > MAX_ROW_BYTES:
        raise SchemaMismatchError(
            f"a row of nulls takes {row_bytes} bytes; the limit is {MAX_ROW_BYTES}: declare lists "
            "or binaries without a fixed size"
        )


def layout_of(schema: pa.Schema) -> EnvelopeLayout:
    """Return what every RecordBatch of this schema has; counted in an empty one, which Arrow lays
    out.

    Raises:
        SchemaMismatchError: it cannot be stored.
    """
    # Arrow hashes a schema by its whole text, half the cost of checking a small Message. So one
    # that is used again and again is known by its identity, which the entry keeps alive.
    known = _LAYOUTS.get(id(schema))
    if known is None:
        if len(_LAYOUTS) >= _SCHEMA_CACHE:
            _LAYOUTS.clear()
        known = _LAYOUTS[id(schema)] = (schema, _layout(schema))
    return known[1]


_LAYOUTS: dict[int, tuple[pa.Schema, EnvelopeLayout]] = {}


@lru_cache(maxsize=_SCHEMA_CACHE)
def _layout(schema: pa.Schema) -> EnvelopeLayout:
    check_topic_schema(schema)
    empty = pa.RecordBatch.from_pylist([], schema=schema)
    nodes, buffers = count_nodes_and_buffers(view_bytes(empty.serialize()))
    first = accumulate(map(_nodes, schema.types), initial=0)
    required = tuple(
        (2 * node + 1, field.name)
        for node, field in zip(first, schema, strict=False)
        if not field.nullable
    )
    layout = EnvelopeLayout(
        struct.Struct(f"<{2 * nodes}q"), struct.Struct(f"<{2 * buffers}q"), required
    )
    row = pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in schema], schema=schema)
    return layout._replace(template=template_of(view_bytes(row.serialize()), layout))


def _nodes(kind: pa.DataType) -> int:
    """Count the field nodes of a column; a map has one for its entries, which are structs."""
    return 1 + int(pat.is_map(kind)) + sum(map(_nodes, _children(kind)))


def _fixed_bytes(kind: pa.DataType) -> int:
    """Count the bytes that each value takes, even null; at least 1, as validity takes some."""
    if pat.is_fixed_size_list(kind):
        return int(kind.list_size) * _fixed_bytes(kind.value_type)
    if pat.is_struct(kind):
        return 1 + sum(map(_fixed_bytes, _children(kind)))
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:
        return 8  # of no fixed size: an offset


def _plain_field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, _plain_type(field.type), nullable=field.nullable)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pat.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if pat.is_string_view(kind):
        return pa.large_utf8()
    if pat.is_binary_view(kind):
        return pa.large_binary()
    return _plain_nested(kind) if pat.is_nested(kind) else kind


def _plain_nested(kind: pa.DataType) -> pa.DataType:
    if pat.is_struct(kind):
        return pa.struct([_plain_field(field) for field in kind])
    if pat.is_map(kind):
        key, item = _plain_field(kind.key_field), _plain_field(kind.item_field)
        return pa.map_(key, item, keys_sorted=kind.keys_sorted)
    if pat.is_fixed_size_list(kind):
        return pa.list_(_plain_field(kind.value_field), kind.list_size)
    if pat.is_list(kind):
        return pa.list_(_plain_field(kind.value_field))
    if pat.is_large_list(kind):
        return pa.large_list(_plain_field(kind.value_field))
    return kind  # of no kind that can be stored; check_topic_schema says so


_STORABLE = frozenset(
    getattr(pa.lib, f"Type_{name}")
    for name in (
        *("NA", "BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"),
        *("HALF_FLOAT", "FLOAT", "DOUBLE", "DECIMAL32", "DECIMAL64", "DECIMAL128"),
        *("DATE32", "DATE64", "TIME32", "TIME64", "TIMESTAMP", "DURATION"),
        *("STRING", "LARGE_STRING", "BINARY", "LARGE_BINARY", "FIXED_SIZE_BINARY"),
        *("LIST", "LARGE_LIST", "FIXED_SIZE_LIST", "STRUCT", "MAP"),
    )
)
"""What a type must be one of: a type that Arrow has yet to invent is refused until it is tried."""

_REFUSED = (
    (
        pat.is_dictionary,
        "declare the type of its values, and rows are decoded when they are written",
    ),
    (pat.is_string_view, "declare large_string"),
    (pat.is_binary_view, "declare large_binary"),
    (lambda kind: isinstance(kind, pa.BaseExtensionType), "declare its storage type"),
    (lambda kind: kind.id not in _STORABLE, "some Arrow readers lack it"),
    (lambda kind: pat.is_decimal(kind) and kind.scale < 0, "its scale is negative"),
    (lambda kind: pat.is_fixed_size_binary(kind) and kind.byte_width < 1, "its size is below 1"),
    (lambda kind: pat.is_fixed_size_list(kind) and kind.list_size < 1, "its size is below 1"),
)
"""Types that are refused, each with the reason or what to do instead."""


def _objections(kind: pa.DataType, depth: int) -> Iterator[str]:
    if depth > MAX_NESTING:
        yield f"it is nested deeper than {MAX_NESTING} levels"
        return
    for refuses, reason in _REFUSED:
        if refuses(kind):
            yield f"{kind}: {reason}"
            return
    if pat.is_struct(kind) and (name := _duplicated([field.name for field in kind])) is not None:
        yield f"{kind} has more than one field named {name!r}"
    for child in _children(kind):
        yield from _objections(child, depth + 1)


def _children(kind: pa.DataType) -> list[pa.DataType]:
    if pat.is_struct(kind):
        return [field.type for field in kind]
    if pat.is_map(kind):
        return [kind.key_type, kind.item_type]
    return [kind.value_type] if pat.is_nested(kind) else []


def _duplicated(names: list[str]) -> str | None:
    name, count = Counter(names).most_common(1)[0] if names else ("", 0)
    return name if count > 1 else None
