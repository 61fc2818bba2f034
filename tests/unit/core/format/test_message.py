import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.core.format.message import (
    UNKNOWN_RANGE,
    decode_message,
    encode_message,
    encode_records,
    open_message,
    timestamp_range_us,
)
from memq.core.format.schema import DEFAULT_SCHEMA
from memq.errors import (
    CorruptDataError,
    InvalidRequestError,
    MessageTooLargeError,
    SchemaMismatchError,
)
from tests.unit.core.format.builders import record_batches, records

MAX = 64 << 20


def check(body, schema=DEFAULT_SCHEMA) -> int:
    return open_message(body, schema, max_decoded_bytes=MAX).num_rows


# -- encoding -------------------------------------------------------------------------------


def test_records_become_columns() -> None:
    """Keys, values, headers as dicts or pairs, timestamps; null, empty and missing are distinct."""
    batch = encode_records(
        [b"k", None, b""],
        [b"v", b"", None],
        [{"a": b"1", "b": None}, None, [("a", b"1"), ("a", b"2")]],
        [1, 2, 3],
    )
    assert batch.schema.equals(DEFAULT_SCHEMA, check_metadata=True)
    columns = batch.drop_columns(["timestamp"]).to_pydict()
    assert columns == {
        "key": [b"k", None, b""],
        "value": [b"v", b"", None],
        "headers": [[("a", b"1"), ("b", None)], None, [("a", b"1"), ("a", b"2")]],
    }
    assert batch["timestamp"].cast(pa.int64()).to_pylist() == [1, 2, 3]


@pytest.mark.parametrize("count", [1, 7, 8, 9, 1000])
def test_absent_keys_and_headers_are_null_and_cost_no_more_than_offsets(count) -> None:
    """A record of no bytes takes 8 of timestamp, 3 x 4 of offsets and 3 bits, and no more."""
    batch = encode_records(None, [b""] * count, None, range(count))
    assert batch["key"].null_count == batch["headers"].null_count == count
    assert batch["headers"].to_pylist() == [None] * count
    assert batch.equals(encode_records([None] * count, [b""] * count, [None] * count, range(count)))
    body = encode_message(batch)
    assert body.size < 900 + count * 20.5
    assert check(body) == count


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ((None, [b"a", b"b"], None, [0]), InvalidRequestError, "2 values were given, but 1 time"),
        (([b"a"], [b"a", b"b"], None, [0, 0]), InvalidRequestError, "1 keys"),
        ((None, [b"a", b"b"], [None], [0, 0]), InvalidRequestError, "1 headers"),
        ((None, [5], None, [0]), SchemaMismatchError, "a value is not of type binary"),
        (([5], [b""], None, [0]), SchemaMismatchError, "a key is not of type binary"),
        ((None, [b""], [{"a": 5}], [0]), SchemaMismatchError, "a headers is not of type map"),
        ((None, [b""], [5], [0]), SchemaMismatchError, "a headers is not of type map"),
        ((None, [b""], None, ["now"]), SchemaMismatchError, "a timestamp is not of type"),
        ((None, [b""], None, [2**63]), SchemaMismatchError, "a timestamp is not of type"),
        ((None, [b""], None, [None]), SchemaMismatchError, "no timestamp"),
        ((None, ["\ud800"], None, [0]), SchemaMismatchError, "a value is not of type binary"),
    ],
)
def test_records_that_do_not_fit_are_refused_by_name(arguments, error, match) -> None:
    """The column, the type and the lengths are in the message."""
    with pytest.raises(error, match=match):
        encode_records(*arguments)


@given(record_batches(), st.sampled_from([None, "zstd", "lz4"]))
def test_any_rows_survive_a_message(batch, compression) -> None:
    """Random schemas, nested and sliced: the same rows come back, and the same bytes each time."""
    body = encode_message(batch, compression)
    assert body.size % 8 == 0
    assert body == encode_message(batch, compression)
    assert check(body, batch.schema) == batch.num_rows
    assert decode_message(body, batch.schema).equals(batch)
    assert open_message(bytes(body), batch.schema).equals(batch)


def test_a_message_needs_a_record_and_a_known_compression() -> None:
    """Both are refused before anything is encoded."""
    with pytest.raises(InvalidRequestError, match="at least one record"):
        encode_message(records(1).slice(1))
    with pytest.raises(InvalidRequestError, match="'gzip' is not one of"):
        encode_message(records(1), "gzip")


# -- checking -------------------------------------------------------------------------------


def test_the_size_limit_is_that_of_the_decoded_rows() -> None:
    """Compression does not get more past it; the limit itself is allowed."""
    batch = encode_records(None, [b"x" * 100_000], None, [0])
    for compression in (None, "zstd", "lz4"):
        body = encode_message(batch, compression)
        assert open_message(body, DEFAULT_SCHEMA, max_decoded_bytes=100_100).num_rows == 1
        with pytest.raises(MessageTooLargeError, match="the limit is 100000"):
            open_message(body, DEFAULT_SCHEMA, max_decoded_bytes=100_000)


def test_nulls_are_looked_for_behind_nested_columns_too() -> None:
    """Columns before the one that must have none may have nulls, at any depth."""
    nested = pa.map_(pa.utf8(), pa.list_(pa.int64()))
    columns = [("a", pa.null(), True), ("b", nested, True), ("c", pa.int64(), False)]
    schema = pa.schema([pa.field(name, kind, nullable=null) for name, kind, null in columns])
    nullable = pa.schema([field.with_nullable(True) for field in schema])
    rows = [{"b": [("x", None)], "c": 1}, {"c": 2}]
    sound = pa.RecordBatch.from_pylist(rows, schema=nullable)
    assert check(encode_message(sound), schema) == 2

    damaged = pa.RecordBatch.from_pylist([*rows, {}], schema=nullable)
    with pytest.raises(SchemaMismatchError, match="'c' must not have nulls"):
        check(encode_message(damaged), schema)


@pytest.mark.parametrize(
    ("rows", "claimed"),
    [
        (pa.array([b"\xff\xfe"]), pa.utf8()),
        (pa.array([[1]], pa.list_(pa.int32())), pa.map_(pa.int32(), pa.int32())),
        (pa.array([2**40], pa.int64()), pa.time64("us")),
    ],
)
def test_values_that_their_type_does_not_allow_are_corrupt(rows, claimed) -> None:
    """What the schema promises of a value holds for every value, or the Message is refused."""
    body = encode_message(pa.record_batch([rows], names=["a"]))
    with pytest.raises((CorruptDataError, SchemaMismatchError)):
        check(body, pa.schema([("a", claimed)]))


def test_offsets_that_lead_out_of_the_values_are_corrupt() -> None:
    """The classic way to crash a reader."""
    body = bytearray(encode_message(pa.record_batch({"a": pa.array([b"abc", b"d"])})))
    offsets = struct.pack("<3i", 0, 3, 4)
    place = body.index(offsets)
    for damaged in ((0, 3, 1000), (0, -5, 4), (-8, 3, 4), (0, 3, 2**31 - 1), (4, 3, 4)):
        body[place : place + 12] = struct.pack("<3i", *damaged)
        with pytest.raises(CorruptDataError, match="does not hold"):
            check(body, pa.schema([("a", pa.binary())]))


def test_a_compressed_buffer_that_does_not_decompress_is_corrupt() -> None:
    """Damage inside of it, or a declared size that is not what comes out."""
    batch = pa.record_batch({"a": pa.array([b"abc" * 1000])})
    for compression in ("zstd", "lz4"):
        body = bytearray(encode_message(batch, compression))
        size_at = body.rindex(struct.pack("<q", 3000))
        for at, value in ((size_at, 2999), (size_at, 3001), (size_at + 8, 0)):
            damaged = bytearray(body)
            struct.pack_into("<q", damaged, at, value)
            with pytest.raises(CorruptDataError):
                check(damaged, batch.schema)


# -- timestamps -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (pa.timestamp("s"), [1, 2], (1_000_000, 2_000_000)),
        (pa.timestamp("ms", "Europe/Paris"), [1, 2], (1_000, 2_000)),
        (pa.timestamp("ns", "UTC"), [-1, 1_999], (-1, 1)),
        (pa.timestamp("us"), [None, 3], (3, 3)),
        (pa.timestamp("us"), [None, None], UNKNOWN_RANGE),
        (pa.timestamp("s"), [-(2**62), 2**62], (-(2**63), 2**63 - 1)),
        (pa.int64(), [1, 2], UNKNOWN_RANGE),
        (pa.date32(), [1, 2], UNKNOWN_RANGE),
    ],
)
def test_a_typed_topic_has_a_range_if_it_has_a_timestamp_column(kind, values, expected) -> None:
    """Units are converted, nulls left out; other types tell nothing."""
    batch = pa.record_batch({"timestamp": pa.array(values, kind)})
    assert timestamp_range_us(batch) == expected
