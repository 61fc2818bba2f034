import hashlib
import struct

import pyarrow as pa
import pytest

from memq.core.format.schema import (
    DEFAULT_SCHEMA,
    MAX_NESTING,
    MAX_SCHEMA_BYTES,
    check_topic_schema,
    deserialize_schema,
    plain_schema,
    schema_id,
    serialize_schema,
)
from memq.errors import CorruptDataError, SchemaMismatchError

WORDS = pa.dictionary(pa.int8(), pa.utf8())


def nested(depth: int) -> pa.DataType:
    kind = pa.int8()
    for _ in range(depth - 1):
        kind = pa.list_(kind)
    return kind


@pytest.mark.parametrize(
    "schema",
    [
        DEFAULT_SCHEMA,
        pa.schema([pa.field("a", pa.int64(), nullable=False), ("b", pa.list_(pa.utf8()))]),
        pa.schema([("t", pa.struct([("x", pa.map_(pa.utf8(), pa.float32()))]))]),
    ],
)
def test_a_schema_survives_its_bytes(schema) -> None:
    """Names, types and nullability come back; the length keeps what follows aligned."""
    data = serialize_schema(schema)
    assert deserialize_schema(data).equals(schema, check_metadata=True)
    assert len(data) % 8 == 0


def test_equal_schemas_have_equal_bytes_and_one_id() -> None:
    """Metadata changes neither; the id is 16 hex digits of the SHA-256 of the bytes."""
    inner = pa.field("item", pa.int8(), metadata={"a": "b"})
    rich = pa.schema([pa.field("x", pa.list_(inner), metadata={"c": "d"})], {"pandas": "{}"})
    bare = pa.schema([("x", pa.list_(pa.field("item", pa.int8())))])
    data = serialize_schema(rich)
    assert data == serialize_schema(bare)
    assert deserialize_schema(data).equals(bare, check_metadata=True)
    assert schema_id(data) == hashlib.sha256(data).digest()[:8].hex()


@pytest.mark.parametrize(
    ("kind", "plain"),
    [
        (WORDS, pa.utf8()),
        (pa.list_(WORDS), pa.list_(pa.utf8())),
        (pa.large_list(WORDS), pa.large_list(pa.utf8())),
        (pa.list_(WORDS, 2), pa.list_(pa.utf8(), 2)),
        (pa.map_(pa.utf8(), WORDS), pa.map_(pa.utf8(), pa.utf8())),
        (pa.struct([("a", pa.list_(WORDS))]), pa.struct([("a", pa.list_(pa.utf8()))])),
        (pa.dictionary(pa.int8(), pa.int64()), pa.int64()),
        (pa.dictionary(pa.int8(), pa.list_(WORDS)), pa.list_(pa.utf8())),
        (pa.string_view(), pa.large_utf8()),
        (pa.list_(pa.binary_view()), pa.list_(pa.large_binary())),
        (pa.int32(), pa.int32()),
    ],
)
def test_plain_schema_replaces_other_encodings_at_any_depth(kind, plain) -> None:
    """Dictionaries become their values, views become large; the rest stays."""
    assert plain_schema(pa.schema([("c", kind)])) == pa.schema([("c", plain)])


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (WORDS, "type of its values"),
        (pa.string_view(), "large_string"),
        (pa.binary_view(), "large_binary"),
        (pa.uuid(), "storage type"),
        (pa.sparse_union([pa.field("a", pa.int8())]), "readers"),
        (pa.dense_union([pa.field("a", pa.int8())]), "readers"),
        (pa.run_end_encoded(pa.int32(), pa.utf8()), "readers"),
        (pa.list_view(pa.int8()), "readers"),
        (pa.large_list_view(pa.int8()), "readers"),
        (pa.month_day_nano_interval(), "readers"),
        (pa.decimal256(50, 2), "readers"),
        (pa.decimal128(9, -2), "scale"),
        (pa.binary(0), "below 1"),
        (pa.list_(pa.int8(), 0), "below 1"),
        (pa.struct([("a", pa.int8()), ("a", pa.int8())]), "more than one field named 'a'"),
        (nested(MAX_NESTING + 1), "deeper than 16"),
    ],
)
def test_what_cannot_be_stored_is_refused_with_its_reason(kind, reason) -> None:
    """At the top and inside of a list, and the column is named."""
    for wrapped in (kind, pa.list_(kind), pa.map_(pa.utf8(), kind)):
        with pytest.raises(SchemaMismatchError, match=reason) as caught:
            check_topic_schema(pa.schema([("ok", pa.int8()), ("odd", wrapped)]))
        assert "'odd'" in str(caught.value)


def test_a_schema_needs_columns_with_names_of_their_own() -> None:
    """No columns, or two of one name, are refused; nesting is allowed up to the limit."""
    with pytest.raises(SchemaMismatchError, match="at least one column"):
        serialize_schema(pa.schema([]))
    with pytest.raises(SchemaMismatchError, match="more than one column named 'a'"):
        serialize_schema(pa.schema([("a", pa.int8()), ("a", pa.int8())]))
    check_topic_schema(pa.schema([("a", nested(MAX_NESTING))]))


def test_bytes_that_are_not_one_schema_message_are_refused() -> None:
    """Too short, too long, another kind of message, another continuation."""
    data = serialize_schema(DEFAULT_SCHEMA)
    batch = bytes(pa.RecordBatch.from_pylist([], schema=DEFAULT_SCHEMA).serialize())
    for bad in (b"", data[:-8], data + b"\0" * 8, data * 2, batch, b"\0" * 8 + data):
        with pytest.raises(CorruptDataError):
            deserialize_schema(bad)


def test_a_schema_of_a_foreign_writer_must_be_one_that_can_be_stored() -> None:
    """A dictionary, too many bytes, nesting without end, and what no Arrow writer makes."""
    wide = pa.schema([(f"column number {i}", pa.int8()) for i in range(20_000)])
    negative = bytearray(pa.schema([("a", pa.list_(pa.int8(), 12_345))]).serialize())
    struct.pack_into("<i", negative, negative.index(struct.pack("<i", 12_345)), -12_345)
    for data, match in (
        (pa.schema([("a", WORDS)]).serialize(), "type of its values"),
        (wide.serialize(), str(MAX_SCHEMA_BYTES)),
        (negative, "below 1"),
    ):
        with pytest.raises(SchemaMismatchError, match=match):
            deserialize_schema(bytes(data))
    with pytest.raises((SchemaMismatchError, CorruptDataError)):
        deserialize_schema(bytes(pa.schema([("a", nested(500))]).serialize()))
