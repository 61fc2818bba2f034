import hashlib
import struct
import time

import pyarrow as pa
import pytest

from memq.core.format.envelope import _fields, _references, _target, read_envelope
from memq.core.format.schema import (
    DEFAULT_SCHEMA,
    MAX_NESTING,
    MAX_ROW_BYTES,
    MAX_SCHEMA_BYTES,
    check_topic_schema,
    deserialize_schema,
    layout_of,
    plain_schema,
    schema_id,
    serialize_schema,
)
from memq.errors import CorruptDataError, SchemaMismatchError
from tests.unit.core.format.builders import repointed, shared

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


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.int8(), MAX_ROW_BYTES),
        pa.list_(pa.utf8(), MAX_ROW_BYTES // 8),
        pa.list_(pa.list_(pa.float64(), 1 << 10), 1 << 9),
        pa.binary(MAX_ROW_BYTES),
        pa.struct([("a", pa.list_(pa.int8(), MAX_ROW_BYTES - 1))]),
    ],
)
def test_fixed_sizes_add_up_to_a_bounded_row(kind) -> None:
    """A row of nulls takes them as well; those of 184 bytes of schema could claim 16 GiB."""
    check_topic_schema(pa.schema([("a", kind)]))
    check_topic_schema(pa.schema([("a", pa.list_(kind))]))
    for wider in (
        pa.schema([("a", kind), ("b", pa.int8())]),
        pa.schema([("a", pa.list_(kind, 2))]),
    ):
        with pytest.raises(SchemaMismatchError, match=f"the limit is {MAX_ROW_BYTES}"):
            check_topic_schema(wider)
    with pytest.raises(SchemaMismatchError, match="a row of nulls takes"):
        check_topic_schema(pa.schema([("a", pa.list_(pa.list_(kind, 2**31 - 1), 2**31 - 1))]))


LONG = "x" * 5_000
SHORT = [str(number) for number in range(50)]


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([(name, pa.int8()) for name in (LONG, *SHORT)]),
        pa.schema([("c", pa.struct([(name, pa.int8()) for name in (LONG, *SHORT)]))]),
        pa.schema([("c", pa.int8())], {"k": LONG} | dict.fromkeys(SHORT, "")),
        pa.schema([pa.field("c", pa.int8(), metadata={"k": LONG} | dict.fromkeys(SHORT, ""))]),
    ],
)
def test_a_part_of_a_schema_stands_for_itself_alone(schema) -> None:
    """Arrow copies what each reference leads to: 60 KB could take gigabytes."""
    data = bytes(schema.serialize())
    assert deserialize_schema(data) == schema
    metadata = memoryview(data)[8:]
    header = read_envelope(memoryview(data)).header
    _, fields_at, pairs_at = _fields(metadata, header, 3)
    first = _fields(metadata, _references(metadata, fields_at)[0], 7)
    with pytest.raises(CorruptDataError, match="more than once"):
        deserialize_schema(shared(data, fields_at, pairs_at, first[5], first[6]))


def test_a_time_zone_of_a_schema_stands_for_itself_alone() -> None:
    """It is a text as well."""
    zones = [LONG, *["UTC"] * 50]
    schema = pa.schema([(str(n), pa.timestamp("s", zone)) for n, zone in enumerate(zones)])
    data = bytes(schema.serialize())
    assert deserialize_schema(data) == schema
    metadata = memoryview(data)[8:]
    fields_at = _fields(metadata, read_envelope(memoryview(data)).header, 2)[1]
    types = [_fields(metadata, field, 4)[3] for field in _references(metadata, fields_at)]
    zones_at = [_fields(metadata, _target(metadata, at), 2)[1] for at in types]
    with pytest.raises(CorruptDataError, match="more than once"):
        deserialize_schema(repointed(data, zones_at))


def test_a_vector_of_a_schema_fits_into_it() -> None:
    """Its count is compared before a reference is read."""
    data = bytearray(pa.schema([("a", pa.int8())]).serialize())
    metadata = memoryview(data)[8:]
    fields_at = _fields(metadata, read_envelope(memoryview(data)).header, 2)[1]
    struct.pack_into("<I", data, 8 + _target(metadata, fields_at), 2**32 - 1)
    with pytest.raises(CorruptDataError, match="claims 4294967295 elements"):
        deserialize_schema(data)


def test_thousands_of_columns_are_looked_at_once_each() -> None:
    """Those that may have no nulls as well: what a broker does for a new topic takes no seconds."""
    columns = [pa.field(str(number), pa.int8(), nullable=False) for number in range(5_000)]
    began = time.process_time()
    required = layout_of(pa.schema(columns)).required
    assert time.process_time() - began < 3
    assert required == tuple((2 * n + 1, str(n)) for n in range(5_000))
