"""LogMessages and rows as lines, and what text cannot hold."""

import io

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.cli.formats import TEXT_ROWS, open_sink, raw_lines
from memq.core.format.message import encode_records
from memq.core.units import iso_us
from memq.errors import InvalidRequestError

SOME = st.none() | st.binary(max_size=8)


@given(st.lists(st.tuples(SOME, SOME)), st.integers(0, 5), st.integers(0, 5))
def test_raw_is_values_and_newlines(messages, start, length):
    """Each value ends with a newline, wherever in its buffers a slice begins; a key stands before
    it where that is asked for, the separator between them; what is missing is empty.
    """
    keys, values = [key for key, _ in messages], [value for _, value in messages]
    rows = [encode_records(keys, values, None, [0] * len(values)).slice(start, length)]
    wanted = messages[start : start + length]

    assert b"".join(raw_lines(rows)) == b"".join((value or b"") + b"\n" for _, value in wanted)
    assert b"".join(raw_lines(rows, b"=>")) == b"".join(
        (key or b"") + b"=>" + (value or b"") + b"\n" for key, value in wanted
    )


def test_raw_of_a_typed_topic():
    """Columns have no raw form; the error says what to do."""
    with pytest.raises(InvalidRequestError, match="--format json"):
        list(raw_lines([pa.record_batch({"value": pa.array([1.5])})]))


def written(form, rows):
    """The text of some rows."""
    file = io.BytesIO()
    sink = open_sink(form, file, rows.schema)
    sink.write(rows)
    sink.close()
    return file.getvalue().decode()


@pytest.mark.parametrize("time_us", [-(2**63), -62_135_596_800_000_001, 0, 2**63 - 1])
def test_any_time_has_a_text(time_us):
    """Also one that no calendar has."""
    rows = encode_records(None, [b"v"], None, [time_us])

    assert iso_us(time_us) in written("csv", rows)
    assert iso_us(time_us) in written("jsonl", rows)


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
