"""LogMessages become lines."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.cli.lines import json_lines, json_object, raw_lines
from memq.core.format.message import encode_records
from memq.errors import InvalidRequestError
from memq.reading.batch import LogMessage

ORIGIN = ("topic", 1, 2, 6, "producer", 3, 4, 5)


def raw(rows):
    """Raw lines as bytes."""
    return b"".join(raw_lines(rows))


def as_json(*messages):
    """Each message back from its JSON line."""
    return [
        json.loads(line) for line in b"".join(json_lines(map(json_object, messages))).splitlines()
    ]


@given(st.lists(st.none() | st.binary(max_size=8)), st.integers(0, 5), st.integers(0, 5))
def test_raw_is_values_and_newlines(values, start, length):
    """Each value ends with a newline, wherever in its buffers a slice begins."""
    rows = encode_records(None, values, None, [0] * len(values)).slice(start, length)

    wanted = values[start : start + length]

    assert raw([rows]) == b"".join((value or b"") + b"\n" for value in wanted)


@given(st.lists(st.tuples(st.none() | st.binary(max_size=4), st.none() | st.binary(max_size=4))))
def test_raw_with_keys(messages):
    """A key stands before its value, the separator between them; a missing one is empty."""
    keys, values = [key for key, _ in messages], [value for _, value in messages]
    rows = encode_records(keys, values, None, [0] * len(messages))

    wanted = [(key or b"") + b"=>" + (value or b"") + b"\n" for key, value in messages]

    assert b"".join(raw_lines([rows], b"=>")) == b"".join(wanted)


def test_raw_of_a_typed_topic():
    """Columns have no raw form; the error says what to do."""
    with pytest.raises(InvalidRequestError, match="--format json"):
        raw([pa.record_batch({"value": pa.array([1.5])})])


def test_json_marks_what_is_not_text():
    """Bytes that are no UTF-8 come as base64 in an object of their own; nothing stays null."""
    [line] = as_json(LogMessage(None, b"\xff\x00", None, 0, *ORIGIN))

    assert line["value"] == {"base64": "/wA="}
    assert line["key"] is None
    assert line["headers"] is None


def test_json_of_a_typed_row():
    """Each type of a column has a JSON form, at any depth."""
    row = {
        "id": 2**63 - 1,
        "ratios": [float("nan"), float("inf"), float("-inf"), 0.5],
        "price": Decimal("1.10"),
        "at": dt.datetime(2025, 1, 2, 3, tzinfo=dt.UTC),
        "day": dt.date(2025, 1, 2),
        "raw": [{"inner": b"\xfe"}],
        "pairs": [("a", b"b")],
    }

    [line] = as_json(LogMessage(None, row, None, 0, *ORIGIN))

    assert line["value"] == {
        "id": 2**63 - 1,
        "ratios": ["NaN", "Infinity", "-Infinity", 0.5],
        "price": "1.10",
        "at": "2025-01-02T03:00:00Z",
        "day": "2025-01-02",
        "raw": [{"inner": {"base64": "/g=="}}],
        "pairs": [["a", "b"]],
    }
