"""Tables of all kinds become RecordBatches of the topic's schema, cut to size."""

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.client.producer.tables import MAX_RECORDS, conform, cut, to_arrow, to_batches
from memq.core.format.message import encode_message
from memq.core.format.schema import DEFAULT_SCHEMA
from memq.errors import InvalidRequestError, MessageTooLargeError

TYPED = pa.schema(
    [
        pa.field("id", pa.int32(), nullable=False),
        pa.field("name", pa.utf8()),
        pa.field("tags", pa.list_(pa.utf8())),
    ]
)


def conformed(rows, schema=DEFAULT_SCHEMA):
    return conform(to_arrow(rows), schema, "events", 5)


def test_missing_columns_are_filled():
    """Missing nullable columns are null, a missing timestamp is the given time."""
    table = conformed(pa.table({"value": [b"a", b"b"]}))
    assert table.schema.equals(DEFAULT_SCHEMA)
    assert table.column("timestamp").cast(pa.int64()).to_pylist() == [5, 5]
    assert table.column("key").null_count == table.column("headers").null_count == 2


def test_column_of_the_right_type_is_not_copied():
    """A column that fits is passed on as it is."""
    values = pa.array([b"abc"] * 1_000, pa.binary())
    column = conformed(pa.table({"value": values})).column("value").chunk(0)
    assert column.buffers()[2].address == values.buffers()[2].address


@pytest.mark.parametrize(
    "rows",
    [
        pa.table({"value": [b"a", None]}),
        pa.record_batch({"value": [b"a", None]}),
        pl.DataFrame({"value": [b"a", None]}),
        pl.DataFrame({"value": ["a", None]}),
        pl.DataFrame({"value": pl.Series(["a", None], dtype=pl.Categorical)}),
        pa.table({"value": pa.array(["a", None]).dictionary_encode()}),
        pa.RecordBatchReader.from_batches(
            pa.schema([("value", pa.binary())]), [pa.record_batch({"value": [b"a", None]})]
        ),
    ],
    ids=lambda rows: type(rows).__module__,
)
def test_all_kinds_of_tables_are_taken(rows):
    """pyarrow, polars and whatever speaks Arrow's interface; dictionaries and views are decoded."""
    assert conformed(rows).column("value").to_pylist() == [b"a", None]


@pytest.mark.parametrize("rows", [[{"value": b"a"}], b"abc", 5])
def test_what_is_no_table_is_refused(rows):
    """The error says what a table may be."""
    with pytest.raises(InvalidRequestError, match="DataFrame"):
        to_arrow(rows)


def test_cut_gives_messages_of_the_size():
    """The cuts fill Messages well, keep all rows in order and share the table's memory."""
    table = conformed(pa.table({"value": pa.array([b"x" * 100] * 20_000, pa.binary())}))
    before = pa.total_allocated_bytes()
    batches = cut(table, 1 << 18, 1 << 20)
    assert pa.total_allocated_bytes() - before < 10_000
    sizes = [len(encode_message(batch)) for batch in batches]
    assert all(size <= 1 << 18 for size in sizes)
    assert all(size > 0.8 * (1 << 18) for size in sizes[:-1])
    assert pa.Table.from_batches(batches).equals(table)


def test_many_small_chunks_become_few_messages():
    """A table in small pieces is put together first."""
    table = pa.concat_tables([pa.table({"value": [b"x"]})] * 500)
    assert len(cut(conformed(table), 1 << 20, 1 << 20)) == 1


def test_large_row_may_exceed_the_target_but_not_the_limit():
    """A single row may be larger than a Message usually is, up to what the topic accepts."""
    table = conformed(pa.table({"value": [b"x", b"y" * 3_000, b"z"]}))
    batches = cut(table, 1_500, 5_000)
    assert max(batch.num_rows for batch in batches) == 1
    with pytest.raises(MessageTooLargeError, match=r"a row of \d+ bytes"):
        cut(table, 1_500, 3_000)


def test_records_of_a_message_are_bounded():
    """Columns that take no bytes do not make endless Messages."""
    table = pa.table({"nothing": pa.nulls(2 * MAX_RECORDS + 1)})
    assert [batch.num_rows for batch in cut(table, 1 << 20, 1 << 20)] == [
        MAX_RECORDS,
        MAX_RECORDS,
        1,
    ]


def test_empty_table_is_no_message():
    """No rows, no Messages."""
    assert cut(conformed(pa.table({"value": pa.array([], pa.binary())})), 1 << 20, 1 << 20) == []


@given(st.lists(st.lists(st.binary(max_size=2_000), max_size=20), max_size=8))
def test_any_table_is_cut_without_loss(chunks):
    """However rows and chunks are sized: all rows, in order, none above the target if it can be."""
    column = pa.chunked_array([pa.array(chunk, pa.binary()) for chunk in chunks], pa.binary())
    batches = list(
        to_batches(
            pa.table({"value": column}),
            DEFAULT_SCHEMA,
            "events",
            now_us=1,
            message_bytes=3_000,
            max_message_bytes=10_000,
        )
    )
    rows = [value for batch in batches for value in batch.column("value").to_pylist()]
    assert rows == column.to_pylist()
    for batch in batches:
        assert len(encode_message(batch)) <= 3_000 or batch.num_rows == 1
