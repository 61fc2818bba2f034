"""LogMessages and rows as lines, and what text cannot hold."""

import io
from itertools import repeat

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.cli.formats import TEXT_ROWS, open_sink, raw_lines
from memq.cli.template import template_lines
from memq.core.format.message import encode_records
from memq.core.format.schema import DEFAULT_SCHEMA
from memq.core.notification import Notification
from memq.core.units import iso_us
from memq.errors import InvalidRequestError
from memq.reading.batch import Batch, Section

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


@given(
    st.lists(st.tuples(SOME, SOME, st.integers(-(10**15), 10**15))),
    st.sampled_from([b"%t %p %o %k=%v\n", b"%K %S %T|", b"%%x%s", b"plain\n", b"%k", b""]),
)
def test_a_template_says_what_kcat_would(messages, template):
    """Each letter is its value in every LogMessage; all else stands as it is."""
    keys, values, times = zip(*messages, strict=True) if messages else ([], [], [])
    rows = encode_records(list(keys), list(values), None, list(times))
    batch = batch_of(rows)
    expected = b"".join(
        template.replace(b"%%x", b"\0x")
        .replace(b"%t", b"clicks")
        .replace(b"%p", b"1")
        .replace(b"%o", b"7")
        .replace(b"%K", str(-1 if key is None else len(key)).encode())
        .replace(b"%S", str(-1 if value is None else len(value)).encode())
        .replace(b"%T", str(int(time_us / 1_000)).encode())
        .replace(b"%k", b"<key>")
        .replace(b"%v", value or b"")
        .replace(b"%s", value or b"")
        .replace(b"<key>", key or b"")
        .replace(b"\0x", b"%x")
        for key, value, time_us in messages
    )
    assert b"".join(template_lines(template, DEFAULT_SCHEMA).of(batch)) == expected


def batch_of(rows):
    """A Batch of one Message."""
    told = dict.fromkeys(Notification.__struct_fields__) | {"topic": "clicks"}
    section = Section(rows, repeat("p"), repeat(0), repeat(0), range(len(rows)))
    return Batch(Notification(**told), 1, 7, DEFAULT_SCHEMA, [section])


def test_headers_in_a_template():
    """As kcat writes them; null is empty."""
    headers = [[("a", b"1"), ("b", None)], None, []]
    rows = encode_records(None, [b"x", b"y", b"z"], headers, [0, 0, 0])
    found = b"".join(template_lines(b"%h;%v\n", DEFAULT_SCHEMA).of(batch_of(rows)))
    assert found == b"a=1,b=;x\n;y\n;z\n"


@pytest.mark.parametrize("template", [b"%", b"x%", b"%q", b"%\n", b"%\xff"])
def test_a_template_with_another_letter(template):
    """It is refused, and the error has those that there are."""
    with pytest.raises(InvalidRequestError, match="is none of %t %p"):
        template_lines(template, DEFAULT_SCHEMA)


def test_a_template_of_a_typed_topic():
    """It has neither key nor value."""
    with pytest.raises(InvalidRequestError, match="--format json"):
        template_lines(b"%v", pa.schema([("n", pa.int64())]))
