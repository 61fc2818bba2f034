"""Rows of Python objects become a table of the topic's types, or are refused by row and value."""

import datetime as dt
import math
from decimal import Decimal

import pyarrow as pa
import pytest

from memq.client.producer.rows import to_table
from memq.core.format.schema import DEFAULT_SCHEMA
from memq.errors import InvalidRequestError, SchemaMismatchError

NOON = dt.datetime(2026, 7, 1, 12)  # noqa: DTZ001 - a time without a zone
UTC_NOON = NOON.replace(tzinfo=dt.UTC)
KINDS = {
    "id": pa.int64(),
    "big": pa.uint64(),
    "fare": pa.float64(),
    "small": pa.float32(),
    "price": pa.decimal128(10, 2),
    "at": pa.timestamp("us", "UTC"),
    "local": pa.timestamp("ms"),
    "day": pa.date32(),
    "wait": pa.duration("s"),
    "ok": pa.bool_(),
    "city": pa.utf8(),
    "raw": pa.binary(),
    "tags": pa.list_(pa.utf8()),
    "item": pa.struct([("sku", pa.int64()), ("price", pa.float64())]),
    "by": pa.map_(pa.utf8(), pa.int64()),
}
SCHEMA = pa.schema(list(KINDS.items()))


def test_rows_are_columns_of_the_topics_types():
    """Columns that a row lacks are null there; those that all lack are left to the topic."""
    rows = [
        {"id": 1, "city": "Oslo", "item": {"sku": 1}, "by": {"a": 1}, "at": UTC_NOON},
        {"raw": "text", "item": None, "by": [("a", 1), ("a", 2)], "tags": ("x",), "fare": 2},
        {},
    ]
    table = to_table(rows, SCHEMA, "t")
    assert table.schema == pa.schema([each for each in SCHEMA if each.name in table.column_names])
    assert set(table.column_names) == {"id", "city", "item", "by", "at", "raw", "tags", "fare"}
    assert table["item"].to_pylist() == [{"sku": 1, "price": None}, None, None]
    assert table["by"].to_pylist() == [[("a", 1)], [("a", 1), ("a", 2)], None]
    assert (table["raw"][1].as_py(), table["fare"][1].as_py()) == (b"text", 2.0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("id", 1.0),
        ("fare", math.nan),
        ("price", Decimal("1.5")),
        ("at", UTC_NOON.astimezone(dt.timezone(dt.timedelta(hours=2)))),
        ("local", NOON),
        ("day", NOON.date()),
        ("city", b"Oslo"),
        ("raw", bytearray(b"x")),
        ("tags", []),
        ("item", {"sku": 1, "price": 0.5}),
        ("by", {}),
    ],
)
def test_what_comes_back_the_same_is_taken(name, value):
    """Objects that equal what is read back."""
    (found,) = to_table([{name: value}], SCHEMA, "t")[name]
    assert found.is_valid


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("id", 1.5),
        ("id", True),
        ("big", -1),
        ("fare", 2**53 + 1),
        ("small", 0.1),
        ("price", Decimal("1.005")),
        ("at", NOON),
        ("local", UTC_NOON),
        ("day", NOON),
        ("wait", dt.timedelta(microseconds=1)),
        ("ok", 1),
        ("city", b"\xff"),
        ("tags", "ab"),
        ("tags", ["a", 5]),
        ("item", {"sku": 1, "cost": 2}),
        ("item", {"sku": 1.5}),
        ("item", [("sku", 1)]),
        ("by", {"a": 1.5}),
    ],
)
def test_what_would_change_is_refused_by_column_row_and_value(name, value):
    """The first such row is named, with the value; Arrow's own errors are not seen."""
    with pytest.raises(SchemaMismatchError) as refused:
        to_table([{}, {name: None}, {name: value}], SCHEMA, "t")
    said = str(refused.value)
    assert f"column {name!r} as {KINDS[name]}, but row 2 has" in said
    assert repr(value) in said or str(value) in said


def test_a_key_that_the_topic_lacks_is_refused():
    """Also where only a later row has it."""
    with pytest.raises(
        SchemaMismatchError, match=r"'City' is not in .* which has id.*; row 1 has 'x'"
    ):
        to_table([{"id": 1}, {"City": "x"}], SCHEMA, "t")


@pytest.mark.parametrize("rows", [[5], [("id", 1)], {"id": 1}, "rows", [{"id": 1}, None]])
def test_what_is_no_row_is_refused(rows):
    """The error says what a row must be."""
    with pytest.raises(InvalidRequestError, match="mapping"):
        to_table(rows, SCHEMA, "t")


def test_log_messages_are_rows_too():
    """A topic without a schema of its own takes rows with key, value, headers and timestamp."""
    rows = [{"key": b"k", "value": "v", "headers": {"h": b"x"}, "timestamp": UTC_NOON}]
    assert to_table(rows, DEFAULT_SCHEMA, "t").to_pylist() == [
        {"key": b"k", "value": b"v", "headers": [("h", b"x")], "timestamp": UTC_NOON}
    ]
    assert to_table([], DEFAULT_SCHEMA, "t").num_rows == 0
