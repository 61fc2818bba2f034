"""The grammar of filters, and what it compiles to."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.console.filters import MAX_CHARS, MAX_DEPTH, compile_filter
from memq.errors import InvalidRequestError

ROWS = pa.table(
    {
        "key": pa.array([b"x", b"y", None, b"xy"], pa.binary()),
        "city": pa.array(["Rome", "Oslo", 'a"b', None]),
        "n": pa.array([1, 2, 3, None], pa.int32()),
        "small": pa.array([1, 2, 3, 4], pa.int8()),
        "f": pa.array([0.5, 1.5, 2.5, None]),
        "d": pa.array(
            [Decimal("1.50"), Decimal("2.00"), None, Decimal("3.25")], pa.decimal128(9, 2)
        ),
        "ok": pa.array([True, False, None, True]),
        "at": pa.array(
            [datetime(2026, 11, day, 12, tzinfo=UTC) for day in (1, 2, 3, 4)],
            pa.timestamp("us", "UTC"),
        ),
        "plain": pa.array(
            [datetime.fromisoformat(f"2026-11-0{day}T12:00") for day in (1, 2, 3, 4)],
            pa.timestamp("ms"),
        ),
        "day": pa.array([date(2026, 11, day) for day in (1, 2, 3, 4)]),
        "user": pa.array(
            [{"age": 17, "name": "a"}, {"age": 30, "name": "b"}, None, {"age": 50, "name": None}]
        ),
    }
)


def chosen(text):
    numbered = ROWS.append_column("i", pa.array(range(len(ROWS))))
    return numbered.filter(compile_filter(text, ROWS.schema))["i"].to_pylist()


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ('key = "x"', [0]),
        ('key contains "x"', [0, 3]),
        ('city contains "o"', [0, 1]),
        (r'city = "a\"b"', [2]),
        ("n >= 2", [1, 2]),
        ("n != 2", [0, 2]),
        ("n < 1.5", [0]),
        ("f > 1", [1, 2]),
        ("d >= 2", [1, 3]),
        ("d > 1.75", [1, 3]),
        ("ok = true", [0, 3]),
        ("n = null", [3]),
        ("n != null", [0, 1, 2]),
        ("at >= 2026-11-03", [2, 3]),
        ("at < 2026-11-02T12:00:00Z", [0]),
        ("at <= 2026-11-02T14:00:00+02:00", [0, 1]),
        ("plain >= 2026-11-03T12:00", [2, 3]),
        ("day = 2026-11-02", [1]),
        ("user.age > 18", [1, 3]),
        ('n = 1 or n = 2 and city = "Oslo"', [0, 1]),
        ('(n = 1 or n = 2) and city = "Oslo"', [1]),
        ("not n = 1", [1, 2]),
        ("NOT (n = 1 OR n = 2)", [2]),
    ],
)
def test_a_filter_chooses_rows(text, rows):
    """Each comparison, precedence and kind of column, as its words say."""
    assert chosen(text) == rows


@pytest.mark.parametrize(
    ("text", "place", "why"),
    [
        ("", 1, "the name of a column"),
        ("nope = 1", 1, "no 'nope'"),
        ("user.nope = 1", 1, "there is age, name"),
        ("n.x = 1", 1, "no field"),
        ("n =", 4, "not the end"),
        ("n = = 1", 5, "expected"),
        ('n = "x"', 5, "cannot be compared"),
        ("key = 1", 7, "cannot be compared"),
        ("ok = 1", 6, "cannot be compared"),
        ("small = 1000", 9, "is no int8"),
        ("n = 1 n = 2", 7, "expected and, or, or the end"),
        ("(n = 1", 7, "expected )"),
        ("n > null", 3, "only compared by"),
        ("at > 2026-13-01", 6, "is no time"),
        ('n contains "1"', 12, "contains is for text"),
        ("city contains 1", 15, "a text in double quotes"),
        ('key = "x', 7, "expected"),
        ("n = 1; drop", 6, "expected and, or"),
        ("not " * (MAX_DEPTH + 2) + "n = 1", 4 * (MAX_DEPTH + 1) + 1, "nested deeper"),
    ],
)
def test_an_error_names_the_place(text, place, why):
    """What is no filter is refused, with the character and what is expected there."""
    with pytest.raises(InvalidRequestError) as error:
        compile_filter(text, ROWS.schema)
    assert f"at character {place}:" in str(error.value)
    assert why in str(error.value)


def test_a_filter_has_a_length():
    """A longer one is refused before it is read."""
    with pytest.raises(InvalidRequestError, match=f"up to {MAX_CHARS}"):
        compile_filter("(" * (MAX_CHARS + 1), ROWS.schema)


WORDS = st.sampled_from(
    [
        "key",
        "n",
        "at",
        "user.age",
        "=",
        "<",
        "and",
        "or",
        "not",
        "(",
        ")",
        "contains",
        '"x"',
        "1",
        "null",
        "2026-11-01",
        "true",
        "\0",
        "é",
    ]
)


@given(st.lists(WORDS, max_size=12).map(" ".join) | st.text(max_size=60))
def test_anything_is_compiled_or_refused(text):
    """No text makes another error, neither when it is compiled nor when it is used."""
    try:
        found = compile_filter(text, ROWS.schema)
    except InvalidRequestError:
        return
    ROWS.filter(found)
