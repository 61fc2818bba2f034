"""Rows as text: the same values as `memq consume --format json` has, whatever they are."""

from __future__ import annotations

import csv
import io

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.cli.formats import TEXT_ROWS, json_value, open_sink
from memq.core.format.message import encode_records
from memq.core.units import iso_us
from memq.errors import InvalidRequestError

BYTES = st.none() | st.binary(max_size=8) | st.text(max_size=8).map(str.encode)
RECORDS = st.lists(
    st.tuples(
        BYTES,
        BYTES,
        st.none() | st.lists(st.tuples(st.text(max_size=3), BYTES), max_size=2),
        st.integers(-(2**63), 2**63 - 1) | st.integers(0, 2**51),
    ),
    min_size=1,
    max_size=20,
)


def written(form, rows):
    """The text of some rows."""
    file = io.BytesIO()
    sink = open_sink(form, file, rows.schema)
    sink.write(rows)
    sink.close()
    return file.getvalue().decode()


@given(RECORDS)
def test_any_records_are_cells_of_the_same_texts(records):
    """A cell is the text of its value, or its JSON, and nothing for a null."""

    def cell(value):
        found = json_value(value)
        if found is None or isinstance(found, str):
            return found or ""
        return msgspec.json.encode(found).decode()

    keys, values, headers, times = zip(*records, strict=True)
    text = written("csv", encode_records(keys, values, headers, times))

    head, *lines = csv.reader(io.StringIO(text, newline=""))
    assert head == ["key", "value", "headers", "timestamp"]
    assert lines == [
        [cell(key), cell(value), cell(pairs), iso_us(time_us)]
        for key, value, pairs, time_us in records
    ]


def test_rows_come_in_parts():
    """More rows than are made into text at a time all come, in their order."""
    count = 2 * TEXT_ROWS + 1
    rows = pa.record_batch({"x": pa.array(range(count))})

    assert written("jsonl", rows) == "".join(f'{{"x":{n}}}\n' for n in range(count))
    assert written("csv", rows) == '"x"\n' + "".join(f"{n}\n" for n in range(count))


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_a_value_that_no_text_can_hold_names_its_column(form):
    """A duration in odd nanoseconds has no text; the error says which format has it."""
    rows = pa.record_batch({"took": pa.array([1], pa.duration("ns"))})

    with pytest.raises(InvalidRequestError, match=r"column .took. of type duration.*parquet or"):
        written(form, rows)


def test_a_column_that_parquet_has_not_is_refused_at_once():
    """A struct without fields is refused before any row is read."""
    with pytest.raises(InvalidRequestError, match="parquet cannot hold the topic's columns"):
        open_sink("parquet", io.BytesIO(), pa.schema([("x", pa.struct([]))]))
