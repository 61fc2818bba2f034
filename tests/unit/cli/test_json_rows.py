"""JSON lines become rows."""

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


def rows(schema, *lines):
    """All rows."""
    found = json_rows([list(lines)], schema, lambda: NOW_US)
    return [row for table, _ in found for row in table.to_pylist()]


def refused(schema, *lines):
    """What is said of lines that do not fit, and how many came before."""
    found = 0
    with pytest.raises(InvalidRequestError) as caught:
        for table, _ in json_rows([list(lines)], schema, lambda: NOW_US):
            found += table.num_rows
    return str(caught.value), found


def test_log_messages():
    """A value is text, base64 or null; key, headers and time may be there, and else it is now."""
    found = rows(
        DEFAULT_SCHEMA,
        b'{"value": null, "timestamp": "2023-11-14T23:13:20+01:00"}',
        b'{"key": {"base64": "/wA="}, "value": "", "headers": [["h", "x"], ["h", null]]}',
        b'{"value": {"base64": ""}, "headers": {"h": {"base64": "/w=="}}}',
    )
    assert [(row["key"], row["value"], row["headers"]) for row in found] == [
        (None, None, None),
        (b"\xff\x00", b"", [("h", b"x"), ("h", None)]),
        (None, b"", [("h", b"\xff")]),
    ]
    assert {row["timestamp"].timestamp() for row in found} == {NOW_US / 1e6}


@pytest.mark.parametrize(
    ("schema", "line", "said"),
    [
        *(
            (DEFAULT_SCHEMA, *row)
            for row in (
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
                (b'{"value": "a", "timestamp": "2025-01-01T00:00:00"}', "expected a zone offset"),
                (b'{"value": "a", "value": "b"}', "field `value` 2 times"),
                (b'{"value": "a", "\\u0076alue": "b"}', "field `value` 2 times"),
                (b'{"value": "a", "headers": {"h": "x" , "h" : "y"}}', "field `h` 2 times"),
                (b'{"value": "\xff"}', "can't decode byte"),
                (b'{"value":' * 100_000, "."),
            )
        ),
        *(
            (RIDES, *row)
            for row in (
                (b"{}", "missing required field `id`"),
                (b'{"id": 1.5}', r"Expected `int`, got `float` - at `\$.id`"),
                (b'{"id": 9223372036854775808}', "column 'id': .*too large"),
                (b'{"id": 1, "tags": ["a"], "tags" : []}', "field `tags` 2 times"),
                (b'{"id": 1, "at": "2025-01-02T03:00:00"}', "column 'at': .*expected a zone off"),
                (
                    b'{"id": 1, "tags": [5]}',
                    r"Expected `str \| null`, got `int` - at `\$.tags\[0\]`",
                ),
            )
        ),
    ],
)
def test_a_line_that_does_not_fit(schema, line, said):
    """The line is named with its column and what is wrong; what came before it is given out."""
    fine = b'{"value":"a"}' if schema is DEFAULT_SCHEMA else b'{"id":1}'
    error, before = refused(schema, fine, b"", line, fine)

    assert before == 1
    with pytest.raises(InvalidRequestError, match=f"line 3: .*{said}"):
        raise InvalidRequestError(error)


def test_rows_as_consume_prints_them():
    """When the first line has all that consume prints, rows are the values of all lines."""
    names = ["key", "headers", "timestamp", *ORIGIN_FIELDS]
    line = json.dumps(dict.fromkeys(names) | {"value": {"id": 7}}).encode()

    assert [row["id"] for row in rows(RIDES, line, line)] == [7, 7]
    assert "line 2: " in refused(RIDES, line, b'{"id":7}')[0]
    plain = pa.schema([("key", pa.utf8()), ("value", pa.int64())])
    assert rows(plain, b'{"key": "a", "value": 1}') == [{"key": "a", "value": 1}]


def test_maps_are_objects_or_pairs():
    """A map with text keys may be an object."""
    schema = pa.schema([("m", pa.map_(pa.utf8(), pa.binary()))])

    found = rows(
        schema, b'{"m":{"a":"x"}}', b'{"m":[["a","x"],["a",{"base64":"/w=="}]]}', b'{"m":{}}'
    )

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


TWICE = pa.struct([("a", pa.int8()), ("a", pa.int8())])


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (pa.duration("s"), "'x' of type .*write such rows in Python"),
        (pa.list_(pa.duration("s")), "'x' of type .*write such rows in Python"),
        (TWICE, "cannot take fields of such names; .* Python"),
    ],
)
def test_columns_that_have_no_json(kind, said):
    """Durations have no text, and an object has no field twice: refused with the way out."""
    with pytest.raises(InvalidRequestError, match=said):
        rows(pa.schema([("x", kind)]), b'{"x":{"a":1}}')
