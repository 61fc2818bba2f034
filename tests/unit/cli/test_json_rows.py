"""JSON lines become rows."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from memq.cli.json_rows import ORIGIN_FIELDS, json_rows
from memq.core.format.schema import DEFAULT_SCHEMA
from memq.errors import InvalidRequestError

NOW_US = 1_700_000_000_000_000
RIDES = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("tags", pa.list_(pa.utf8())),
        pa.field("timestamp", pa.timestamp("ms", "UTC")),
    ]
)


def parts(schema, *blocks):
    """Tables and line numbers of blocks of lines."""
    return list(json_rows([block.split(b"\n") for block in blocks], schema, lambda: NOW_US))


def rows(schema, *blocks):
    """All rows."""
    return [row for table, _ in parts(schema, *blocks) for row in table.to_pylist()]


def values(*lines):
    """Key, value and headers of LogMessages."""
    found = rows(DEFAULT_SCHEMA, b"\n".join(lines))
    return [(row["key"], row["value"], row["headers"]) for row in found]


def refused(schema, *lines):
    """What is said of lines that do not fit, and how many came before."""
    found = 0
    with pytest.raises(InvalidRequestError) as caught:
        for table, _ in json_rows([list(lines)], schema, lambda: NOW_US):
            found += table.num_rows
    return str(caught.value), found


def test_log_messages():
    """A value is text, base64 or null; key, headers and time may be there."""
    assert values(
        b'{"value": "a"}',
        b'{"value": null, "key": "k"}',
        b'{"key": {"base64": "/wA="}, "value": "", "headers": [["h", "x"], ["h", null]]}',
        b'{"value": {"base64": ""}, "headers": {"h": {"base64": "/w=="}}}',
    ) == [
        (None, b"a", None),
        (b"k", None, None),
        (b"\xff\x00", b"", [("h", b"x"), ("h", None)]),
        (None, b"", [("h", b"\xff")]),
    ]


def test_time_of_log_messages():
    """A time has its zone; LogMessages that say none are of now."""
    table = pa.concat_tables(
        table
        for table, _ in parts(
            DEFAULT_SCHEMA,
            b'{"value":"a","timestamp":"2025-01-02T03:04:05.000006+02:00"}',
            b'{"value":"b"}',
        )
    )
    ticks = table.column("timestamp").cast(pa.int64()).to_pylist()
    assert ticks == [1_735_779_845_000_006, NOW_US]
    said, _ = refused(DEFAULT_SCHEMA, b'{"value":"a","timestamp":"2025-01-02T03:04:05"}')
    assert said.startswith("line 1: column 'timestamp': ")
    assert "expected a zone offset" in said


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            b'{"page": "/"}',
            "unknown field `page`; .*; to send each line as it is, use --format lines",
        ),
        (b'{"value": {"page": "/"}}', r"`page` - at `\$.value`; a line has a value"),
        (b'{"value": 5, "more": "' + b"x" * 80 + b'"}', "x…$"),
        (b'{"value": {"base64": "*"}}', r"'\*' is not base64"),
        (
            b'{"value": "a", "timestamp": "2025-01-01T00:00:00.1234567Z"}',
            "column 'timestamp': .*'2025-01-01T00:00:00.1234567Z' as a scalar",
        ),
        (b'{"value": "a", "timestamp": "9 microseconds since 1970"}', "Failed to parse string"),
        (b'{"value": "a", "value": "b"}', "field `value` 2 times"),
        (b'{"value": "a", "\\u0076alue": "b"}', "field `value` 2 times"),
        (b'{"value": "a", "headers": {"h": "x" , "h" : "y"}}', "field `h` 2 times"),
        (b'{"value": "\xff"}', "can't decode byte"),
        (b'{"value":' * 100_000, "."),
    ],
)
def test_line_that_is_no_log_message(line, said):
    """The line is named with what is wrong in it, and what came before it is given out."""
    error, before = refused(DEFAULT_SCHEMA, b'{"value":"a"}', b"", line)

    assert before == 1
    with pytest.raises(InvalidRequestError, match=f"line 3: .*{said}"):
        raise InvalidRequestError(error)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{}", "missing required field `id`"),
        (b'{"id": 1.5}', r"Expected `int`, got `float` - at `\$.id`"),
        (b'{"id": 9223372036854775808}', "column 'id': .*too large"),
        (b'{"id": 1, "town": "Oslo"}', "unknown field `town`"),
        (b'{"id": 1, "tags": ["a"], "tags" : []}', "field `tags` 2 times"),
        (b'{"id": 1, "at": "2025-01-02T03:00:00"}', "column 'at': .*expected a zone offset"),
        (b'{"id": 1, "tags": [5]}', r"Expected `str \| null`, got `int` - at `\$.tags\[0\]`"),
        (b'{"id": 1, "timestamp": "2025-01-02T00:00:00.0001Z"}', "column 'timestamp': .*lose data"),
    ],
)
def test_row_that_does_not_fit(line, said):
    """The line and its column are named; the rows before it are given out."""
    error, before = refused(RIDES, b'{"id":1}', b'{"id":2}', line, b'{"id":4}')

    assert before == 2
    with pytest.raises(InvalidRequestError, match=f"line 3: .*{said}"):
        raise InvalidRequestError(error)


def test_rows_as_consume_prints_them():
    """When the first line has all that consume prints, rows are the values of all lines."""
    names = ["key", "headers", "timestamp", *ORIGIN_FIELDS]
    line = json.dumps(dict.fromkeys(names) | {"value": {"id": 7}}).encode()

    assert [row["id"] for row in rows(RIDES, line + b"\n" + line)] == [7, 7]
    assert "line 2: " in refused(RIDES, line, b'{"id":7}')[0]
    plain = pa.schema([("key", pa.utf8()), ("value", pa.int64())])
    assert rows(plain, b'{"key": "a", "value": 1}') == [{"key": "a", "value": 1}]


def test_maps_are_objects_or_pairs():
    """A map with text keys may be an object."""
    schema = pa.schema([("m", pa.map_(pa.utf8(), pa.binary()))])

    found = rows(schema, b'{"m":{"a":"x"}}\n{"m":[["a","x"],["a",{"base64":"/w=="}]]}\n{"m":{}}')

    assert [row["m"] for row in found] == [[("a", b"x")], [("a", b"x"), ("a", b"\xff")], []]


WRONG = {
    "no JSON": b'{"id": ',
    "of another type": b'{"id": "x"}',
    "too large": b'{"id": 9223372036854775808}',
    "too fine": b'{"id": 1, "timestamp": "2025-01-02T00:00:00.0001Z"}',
}


@pytest.mark.parametrize("later", WRONG)
@pytest.mark.parametrize("sooner", WRONG)
@pytest.mark.parametrize("at", [1, 2, 5])
def test_the_first_line_that_does_not_fit_is_named(sooner, later, at):
    """Whatever is wrong with it, and with a later one; the rows before it are given out."""
    lines = [b'{"id":1}', b"", *[b'{"id":2}'] * 6]
    place = at if at > 1 else 0
    lines[place], lines[place + 2] = WRONG[sooner], WRONG[later]
    error, before = refused(RIDES, *lines)
    assert error.startswith(f"line {place + 1}: ")
    assert before == len([each for each in lines[:place] if each])
    alone, _ = refused(RIDES, WRONG[sooner])
    assert error.partition(": ")[2] == alone.partition(": ")[2]


@pytest.mark.parametrize(
    "inside", [lambda kind: kind, pa.list_, lambda kind: pa.struct({"a": kind})]
)
def test_durations_are_refused(inside):
    """Text has none; the column is named, and the way out."""
    schema = pa.schema([("id", pa.int8()), ("took", inside(pa.duration("s")))])
    with pytest.raises(InvalidRequestError, match=r"'took' of type .*write such rows in Python"):
        rows(schema, b'{"id":1}')


def test_names_that_cannot_be_fields_of_an_object():
    """A schema with two fields of one name is refused, with another way."""
    twice = pa.struct([("a", pa.int8()), ("a", pa.int8())])
    with pytest.raises(InvalidRequestError, match=r"cannot take fields of such names; .* Python"):
        rows(pa.schema([("x", twice)]), b'{"x":{"a":1}}')
