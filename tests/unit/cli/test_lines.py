"""LogMessages become lines."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.cli.formats import raw_lines
from memq.core.format.message import encode_records
from memq.errors import InvalidRequestError


def raw(rows):
    """Raw lines as bytes."""
    return b"".join(raw_lines(rows))


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
