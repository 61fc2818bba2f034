"""What a table may have for a topic's columns, and how what it may not have is named."""

import datetime as dt
import io

import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from memq.client.producer.tables import conform, to_arrow, to_batches
from memq.errors import SchemaMismatchError

NOON = dt.datetime(2026, 7, 1, 12)  # noqa: DTZ001 - a time without a zone
INSTANT = pa.timestamp("us", "UTC")
SKU = pa.struct([("sku", pa.int64())])
PRICED = pa.struct([("sku", pa.int64()), ("price", pa.float64())])
ITEM = {"sku": 1, "price": 9.5}
REQUIRED = pa.struct([pa.field("sku", pa.int64(), nullable=False)])
BAD_TEXT = pa.array([b"a", b"\xff\xfe"]).view(pa.utf8())


def fitted(rows, schema):
    """The rows as those of a topic."""
    return conform(to_arrow(rows), schema, "t", 7)


def column(array, kind):
    """One column, written to a topic that has it as another type."""
    field = kind if isinstance(kind, pa.Field) else pa.field("v", kind)
    return fitted(pa.table([array], ["v"]), pa.schema([field])).column("v")


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (pa.array([1.5, float("inf"), -0.0], pa.float64()), pa.float32()),
        (pa.array([9.5, 0.1]), pa.decimal128(10, 2)),
        (pa.array(["a", None, "no longer kept inline"], pa.string_view()), pa.utf8()),
        (pa.array(["a", None, "a"]).dictionary_encode(), pa.utf8()),
        (pa.array([[1, 2], None]), pa.list_(pa.int64(), 2)),
        (pa.array([None, [None, None]], pa.list_(pa.null(), 2)), pa.list_(pa.null(), 2)),
        (pa.array([[1, 2], None], pa.list_(pa.int8(), 2)), pa.list_(pa.int64())),
        (
            pa.array([[("a", 1)], None], pa.map_(pa.utf8(), pa.int8())),
            pa.map_(pa.binary(), pa.int64()),
        ),
        (pa.array([{"sku": 1}, None], pa.struct([("sku", pa.int8())])), REQUIRED),
        (pa.array([{"sku": 1}]), PRICED),
        (pa.nulls(2), pa.list_(pa.int64())),
        (pa.array([5_000_000], INSTANT), pa.timestamp("s", "+02:00")),
        (pa.array([5], pa.date32()), pa.date64()),
        (
            pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"u" * 16], pa.binary(16))),
            pa.binary(16),
        ),
    ],
)
def test_what_comes_back_the_same_is_taken(array, kind):
    """Wider and narrower types of one kind, other encodings, zones and orders of fields."""
    found = column(array, kind)
    assert found.type == kind
    assert found.null_count == (2 if pa.types.is_null(array.type) else array.null_count)
    found.validate(full=True)


@pytest.mark.parametrize(
    ("array", "kind", "said"),
    [
        (
            pa.array([1.5, None, 1e300]),
            pa.float32(),
            r"'v' as float, but got double; row 2 has 1e\+300",
        ),
        (pa.array([2**53 + 1]), pa.float64(), f"row 0 has {2**53 + 1}"),
        (BAD_TEXT, pa.utf8(), r"row 1 has b'\\xff\\xfe', which that cannot hold"),
        (pa.array([86_400_001]).view(pa.date64()), pa.date64(), "row 0 has 86400001"),
        (pa.array([2**60], pa.timestamp("s")), pa.timestamp("us"), "row 0 has"),
        (
            pa.array([NOON]),
            INSTANT,
            "an instant, but got .*a time without a zone; row 0 has 2026-07",
        ),
        (pa.array([None, "5"]), pa.int64(), "a number, but got string, a text or .* 1 has '5'"),
        (
            pa.array([ITEM]),
            SKU,
            r"'v\.price' is not in the schema of topic 't', which has sku; row 0 has 9\.5",
        ),
        (
            pa.array([[], [[("a", ITEM)]]], pa.large_list(pa.map_(pa.utf8(), PRICED))),
            pa.large_list(pa.map_(pa.utf8(), SKU)),
            r"'v\[\]\[\]\.value\.price'.*; row 1 has 9\.5",
        ),
        (
            pa.array([{"SKU": 7}]),
            SKU,
            r"'v\.SKU' .* row 0 has 7; names differ by case: rename it to 'sku'",
        ),
        (
            pa.array([{}], pa.struct([])),
            REQUIRED,
            r"'v\.sku' as int64, not null, but the rows have no such",
        ),
        (
            pa.array([[1], None, [2, None]]),
            pa.list_(pa.field("item", pa.int64(), nullable=False)),
            r"'v\[\]' as int64, not null, but row 2 is null",
        ),
        (pa.array([[1, 2], [3]]), pa.list_(pa.int64(), 2), r"row 1 has \[3\], not of length 2"),
        (
            pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), BAD_TEXT),
            pa.list_(pa.utf8()),
            r"'v\[\]' as string, but got string; row 1 has b'\\xff\\xfe'",
        ),
    ],
)
def test_what_would_change_is_refused_by_column_row_and_value(array, kind, said):
    """At any depth, with the path to it; and the error is final."""
    with pytest.raises(SchemaMismatchError, match=said) as refused:
        column(array, kind)
    assert not refused.value.retriable


def test_lists_that_do_not_hold_are_refused():
    """What Arrow would read beyond its memory for is found before that, by any depth."""
    unsound = pa.ListArray.from_arrays(pa.array([0, 9, 1], pa.int32()), pa.array([1]))
    nested = pa.StructArray.from_arrays([unsound], ["x"])
    for array, kind in ((unsound, pa.list_(pa.int8())), (nested, nested.type)):
        with pytest.raises(SchemaMismatchError, match="the rows do not become those of topic 't'"):
            column(array, kind)


@pytest.mark.parametrize("kind", [pa.list_(pa.int8()), pa.map_(pa.utf8(), pa.int8())], ids=str)
def test_empty_lists_may_come_without_offsets(kind):
    """As Java sends them, and so Spark: a buffer of no bytes, from which nothing is read."""
    children = [pa.array([], kind.field(0).type)]
    bare = pa.Array.from_buffers(kind, 0, [None, pa.py_buffer(b"")], children=children)
    outer = pa.ListArray.from_arrays(pa.array([0, 0], pa.int32()), bare)
    assert column(outer, pa.list_(kind)).to_pylist() == [[]]
    assert column(bare, kind).to_pylist() == []


def test_what_is_hidden_by_a_null_or_a_slice_is_no_value():
    """Only the rows that are given count, whatever lies below their nulls or beside them."""
    hidden = pa.StructArray.from_arrays(
        [pa.array([1e300, 1.5])], ["x"], mask=pa.array([True, False])
    )
    assert column(hidden, pa.struct([("x", pa.float32())])).to_pylist() == [None, {"x": 1.5}]
    lists = pa.ListArray.from_arrays(
        pa.array([0, 1, 2], pa.int32()), pa.array([1e300, 1.5]), mask=pa.array([True, False])
    )
    assert column(lists, pa.list_(pa.float32())).to_pylist() == [None, [1.5]]
    whole = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), BAD_TEXT)
    assert column(whole.slice(0, 1), pa.list_(pa.utf8())).to_pylist() == [["a"]]


def test_columns_are_looked_up_by_their_exact_names():
    """One that stands twice or differs by case is refused, not null or now; the advice helps."""
    schema = pa.schema([("city", pa.utf8()), ("timestamp", INSTANT)])
    times = pa.array([NOON])
    rows = pa.table([["Oslo"], ["Oslo"], times], ["city", "City", "timestamp"])
    with pytest.raises(
        SchemaMismatchError, match=r"'City' .*; row 0 has 'Oslo'; names differ by case"
    ):
        fitted(rows, schema)
    rows = rows.rename_columns(["city", "city", "timestamp"])
    with pytest.raises(SchemaMismatchError, match="'city' as one, but it is there more than once"):
        fitted(rows, schema)
    rows = rows.remove_column(1)
    with pytest.raises(SchemaMismatchError, match="cast it first"):
        fitted(rows, schema)
    rows = rows.set_column(1, "timestamp", pa.compute.assume_timezone(times, "UTC"))
    assert fitted(rows, schema).num_rows == 1


def test_an_index_with_a_name_is_a_column():
    """A named index of pandas is neither dropped nor filled in; one without a name is left out."""
    schema = pa.schema([("city", pa.utf8()), ("fare", pa.float64()), ("timestamp", INSTANT)])
    times = pd.DatetimeIndex([NOON], tz="UTC", name="timestamp")
    frame = pd.DataFrame({"city": ["Oslo"], "fare": [1.5]}, index=times)
    assert fitted(frame, schema)["timestamp"].to_pylist() == [NOON.replace(tzinfo=dt.UTC)]
    both = frame.set_index("city", append=True)
    assert fitted(both, schema)["city"].to_pylist() == ["Oslo"]
    with pytest.raises(SchemaMismatchError, match="'station' is not in the schema"):
        fitted(frame.rename_axis("station"), schema)


@pytest.mark.parametrize(
    ("objects", "row"),
    [
        ([dt.date(2026, 7, 1), NOON], 1),
        ([NOON, NOON.replace(tzinfo=dt.UTC)], 1),
        ([NOON, 5], 1),
        ([NOON, pd.Timestamp(1)], 1),
        ([None, [NOON], [NOON.replace(tzinfo=dt.UTC)]], 2),
        ([2**70], None),
    ],
)
def test_objects_of_pandas_are_what_they_were(objects, row):
    """A column of objects that Arrow would take for others is refused by the first of these."""
    frame = pd.DataFrame({"v": pd.Series(objects, dtype=object)})
    with pytest.raises(
        SchemaMismatchError, match="Overflow|too large" if row is None else f"'v'.* row {row} has"
    ):
        to_arrow(frame)


def test_objects_of_pandas_that_are_of_one_kind_are_taken():
    """Whole numbers beside fractions, and what is missing in any way."""
    frame = pd.DataFrame(
        {
            "day": pd.Series([dt.date(2026, 7, 1), None, pd.NaT], dtype=object),
            "number": pd.Series([1, 2.5, pd.NA], dtype=object),
            "item": pd.Series([{"a": 1}, {"b": [1, 2]}, None], dtype=object),
        }
    )
    assert to_arrow(frame)["item"].to_pylist() == [
        {"a": 1, "b": None},
        {"a": None, "b": [1, 2]},
        None,
    ]


def test_rows_of_later_chunks_and_pieces_are_counted_from_the_first(monkeypatch):
    """The row in an error is that of the table; of a table in pieces nothing comes before all are
    checked.
    """
    monkeypatch.setattr("memq.client.producer.tables.PIECE_BYTES", 64)
    values = [float(number) for number in range(100)]
    rows = pa.concat_tables([pa.table({"v": values}), pa.table({"v": [0.0, 1e300]})])
    cuts = {"now_us": 0, "message_bytes": 1 << 20, "max_message_bytes": 1 << 20}
    batches = to_batches(rows, pa.schema([("v", pa.float32())]), "t", **cuts)
    with pytest.raises(SchemaMismatchError, match=r"row 101 has 1e\+300"):
        next(batches)
    good = to_batches(rows.slice(0, 101), pa.schema([("v", pa.float32())]), "t", **cuts)
    assert [row for batch in good for row in batch["v"].to_pylist()] == [*values, 0.0]


def test_nulls_stand_below_no_field_that_may_not_be_null():
    """What is below a null struct is no null where the field may not be: Parquet takes the rows."""
    inner = pa.struct([pa.field("a", pa.int32(), nullable=False), pa.field("b", pa.string())])
    lists = pa.field("l", pa.list_(inner), nullable=False)
    kind = pa.struct([pa.field("s", inner), lists, pa.field("m", pa.map_(pa.string(), inner))])
    one = {"a": 1, "b": "x"}
    values = [{"s": None, "l": [None, one], "m": [("k", None)]}, None, {"s": one, "l": [], "m": []}]
    given = pa.array(values, kind)
    found = column(given, kind)
    assert found.to_pylist() == given.to_pylist()
    found.validate(full=True)
    pq.write_table(pa.table({"v": found}, schema=pa.schema([("v", kind)])), io.BytesIO())
