"""What is printed of a topic can be produced again: nothing is changed on the way."""

import io
from itertools import repeat

import hypothesis
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from memq.cli.csv_rows import Dialect, csv_rows
from memq.cli.formats import lines_of
from memq.cli.json_rows import json_rows
from memq.client.producer.tables import conform
from memq.core.format.message import encode_records
from memq.errors import InvalidRequestError
from memq.reading.batch import Batch, Section
from tests.unit.cli.rows import tables
from tests.unit.reading.batches import Sent, notify, seal


def printed(table, form, schema=None):
    """The rows of a topic, which had this schema, as `memq consume` prints them."""
    (rows,) = table.combine_chunks().to_batches()
    message = Sent("p", 0, rows)
    sections = [Section(rows, repeat("p"), repeat(0), repeat(0), range(len(rows)))]
    batch = Batch(notify(seal(message)), 0, 0, table.schema, sections)
    lines = lines_of(form, schema or table.schema)
    return lines.header + b"".join(lines.of(batch))


def read(text, schema, form):
    """These rows, read as `memq produce` does."""
    if form == "json":
        parts = json_rows([text.splitlines()], schema, lambda: 0)
    else:
        parts = csv_rows(
            io.BufferedReader(io.BytesIO(text)),
            schema,
            dialect=Dialect(),
            block_bytes=1 << 20,
            now_us=lambda: 0,
        )
    return pa.concat_tables([conform(part.table, schema, "t", 0) for part in parts])


def same(table):
    """Rows such that equal ones are equal: NaN is not."""
    return repr(table.to_pylist())


@pytest.mark.parametrize("form", ["json", "csv"])
@hypothesis.given(table=tables())
def test_rows_of_any_schema(form, table):
    """Whatever types the columns have, and whatever is in them."""
    found = read(printed(table, form), table.schema, form)

    found.validate(full=True)
    assert same(found) == same(table)


BYTES = st.binary(max_size=6) | st.text(max_size=6).map(str.encode)
NAMES = st.text(st.characters(codec="utf-8"), max_size=4)
HEADERS = st.lists(st.tuples(NAMES, st.none() | BYTES), max_size=3)
CALENDAR_US = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)
MESSAGES = st.tuples(st.none() | BYTES, st.none() | BYTES, st.none() | HEADERS, CALENDAR_US)


@pytest.mark.parametrize("form", ["json", "csv"])
@hypothesis.given(messages=st.lists(MESSAGES, min_size=1, max_size=4))
@hypothesis.example(messages=[(None, b'{"base64":"AA=="}', [], 0)])
@hypothesis.example(messages=[(b"", b'\xff,"\r\n', [("", b"\xff")], -1)])
def test_any_log_message(form, messages):
    """Whatever a LogMessage holds: keys, values, headers and times, missing ones too."""
    rows = encode_records(*map(list, zip(*messages, strict=True)))
    table = pa.Table.from_batches([rows])

    assert same(read(printed(table, form), table.schema, form)) == same(table)


def test_a_column_that_the_first_line_lacks():
    """Rows with a column that was not there when CSV began are refused; begun anew it has them."""
    table = pa.table({"id": [1], "tip": [0.5]})
    with pytest.raises(InvalidRequestError, match="has grown by column 'tip'"):
        printed(table, "csv", pa.schema({"id": pa.int64()}))

    assert printed(table, "csv") == b'"id","tip"\n1,0.5\n'
