"""Human durations and sizes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.core.units import (
    counted,
    format_duration_ms,
    format_size_bytes,
    parse_duration_ms,
    parse_size_bytes,
)
from memq.errors import ConfigError

FIELD = st.integers(min_value=0, max_value=2**63 - 1)


@pytest.mark.parametrize(
    ("number", "words", "text"),
    [
        (1, ["record"], "1 record"),
        (2, ["record"], "2 records"),
        (0, ["Batch"], "0 Batches"),
        (3, ["read partition"], "3 read partitions"),
        (2, ["entry"], "2 entries"),
        (2, ["day"], "2 days"),
        (2, ["index"], "2 indexes"),
        (1, ["Message is", "Messages are"], "1 Message is"),
        (2, ["Message is", "Messages are"], "2 Messages are"),
    ],
)
def test_counted(number, words, text):
    """One thing is spoken of as one, and all other numbers as many."""
    assert counted(number, *words) == text


@pytest.mark.parametrize(
    ("text", "value_ms"),
    [
        ("500ms", 500),
        ("1.5s", 1_500),
        (" 10 m ", 600_000),
        ("2h", 7_200_000),
        ("7d", 604_800_000),
        ("0ms", 0),
    ],
)
def test_parse_duration(text, value_ms):
    """A number with a unit of time is milliseconds; fractions and blanks are fine."""
    assert parse_duration_ms(text) == value_ms


DURATION, SIZE = r"is not a duration; write it like \"500ms\"", "is not a size"
WRONG_DURATIONS = ["", "5", "ms", "-5s", "5 parsecs", "1e3s", "5MB", "5Ms", "5s5s", "٣s", "5s\n5"]
WRONG_SIZES = ["64kb", "64K", "64", "64MB", "1.B", ".5KiB"]


@pytest.mark.parametrize(
    ("parse", "text", "complaint"),
    [(parse_duration_ms, text, DURATION) for text in [*WRONG_DURATIONS, "9" * 400 + "s"]]
    + [(parse_size_bytes, text, SIZE) for text in [*WRONG_SIZES, "9" * 400 + "B"]],
)
def test_refuses_what_is_none(parse, text, complaint):
    """With examples of how to write it; decimal units are not taken for binary ones."""
    with pytest.raises(ConfigError, match=complaint):
        parse(text)


@given(FIELD)
def test_what_is_written_is_read_back(value):
    """Whatever a field can hold is written and read back exactly."""
    assert parse_duration_ms(format_duration_ms(value)) == value
    assert parse_size_bytes(format_size_bytes(value)) == value


@given(st.text(max_size=30))
def test_any_text_parses_or_is_refused(text):
    """No text whatever raises anything but the typed error."""
    for parse in (parse_duration_ms, parse_size_bytes):
        try:
            assert parse(text) >= 0
        except ConfigError as exc:
            assert repr(text) in str(exc)
