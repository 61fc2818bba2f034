"""CSV becomes rows."""

from __future__ import annotations

import io

import pyarrow as pa
import pytest

from memq.cli.csv_rows import Dialect, csv_rows
from memq.core.format.schema import DEFAULT_SCHEMA
from memq.errors import InvalidRequestError

COMMAS = Dialect()
NOW_US = 1_700_000_000_000_000
RIDES = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("city", pa.utf8()),
        pa.field("fare", pa.decimal32(5, 2)),
        pa.field("raw", pa.binary()),
        pa.field("tags", pa.list_(pa.utf8())),
        pa.field("half", pa.float16()),
        pa.field("single", pa.float32()),
    ]
)


def parts(schema, text, dialect=COMMAS, block_bytes=1 << 20):
    """Tables with the numbers of their rows."""
    data = text if isinstance(text, bytes) else text.encode()
    return csv_rows(
        io.BufferedReader(io.BytesIO(data)),
        schema,
        dialect=dialect,
        block_bytes=block_bytes,
        now_us=lambda: NOW_US,
    )


def rows(schema, text, dialect=COMMAS):
    """All rows."""
    return [row for table, _ in parts(schema, text, dialect) for row in table.to_pylist()]


def test_nulls():
    """An empty cell is null and a quoted one is empty, unless another word says null."""
    assert [row["city"] for row in rows(RIDES, 'id,city\n1,\n2,""\n')] == [None, ""]
    named = Dialect(";", "NA")
    assert [row["city"] for row in rows(RIDES, 'id;city\n1;NA\n2;\n3;"NA"\n', named)] == [
        None,
        "",
        "NA",
    ]


def test_what_csv_has_no_cells_for():
    """Lists and bytes that are no text are JSON."""
    found = rows(
        RIDES,
        'id,raw,tags\n1,text,"[""a"",null]"\n2,"{""base64"":""/wA=""}",\n3,"{""base64""}",[]\n',
    )
    assert [(row["raw"], row["tags"]) for row in found] == [
        (b"text", ["a", None]),
        (b"\xff\x00", None),
        (b'{"base64"}', []),
    ]


def test_log_messages():
    """A topic without columns of its own has those of its LogMessages."""
    [row] = rows(
        DEFAULT_SCHEMA, 'value,key,headers,timestamp\nv,,"[[""h"",""x""]]",2025-01-02T00:00:00Z\n'
    )
    assert (row["key"], row["value"], row["headers"]) == (None, b"v", [("h", b"x")])
    assert row["timestamp"].isoformat() == "2025-01-02T00:00:00+00:00"
    with pytest.raises(InvalidRequestError, match="does not name column 'value'"):
        rows(DEFAULT_SCHEMA, "key\nk\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "names no columns; the topic has id, city"),
        ("id,town\n", "names column 'town'; the topic has id, city"),
        ("id;city\n", "names column 'id;city'; .*; is the delimiter ';'\\? Give it with --delim"),
        ("id,id\n", "names column 'id' more than once"),
        ('"id', "names no columns"),
        (b"\xff\n", "names no columns"),
        ("id,city\r1,a\r", "must end with a newline, not with a carriage return"),
        ("city\na\n", "does not name column 'id', which is never null"),
        ("id,city\n1,a\nx,b\n", "row 3, column 'id': .*'x' as a scalar of type int64"),
        ("id,city\n1,a\n2,b,c\n", "row 3: Expected 2 columns, got 3: 2,b,c"),
        (b"id,city\n1,\xff\n", "row 2, column 'city': string: invalid UTF8 data"),
        ("id,tags\n1,\n2,[5]\n", r"row 3, column 'tags': Expected `str \| null`, got `int`"),
        ('id,raw\n1,a\n2,"{""base64"":""*""}"\n', r"row 3, column 'raw': '\*' is not base64"),
        ("id,fare\n1,1.234\n", "row 2, column 'fare': "),
        ("id,fare\n1,1\n2,1000\n", "row 3, column 'fare': .*does not fit in precision"),
        ("id,half\n1,inf\n2,70000\n", "row 3, column 'half': 70000 is too large for halffloat"),
        ("id,single\n1,-1e39\n", "row 2, column 'single': -1e39 is too large for float"),
        ('id,city\n1,a\n2,"b\n3,c\n', "row 3: a quote is left open, up to the end"),
    ],
)
def test_what_does_not_fit(text, said):
    """The column and the row are named, the first line being row 1."""
    with pytest.raises(InvalidRequestError, match=said):
        rows(RIDES, text)


@pytest.mark.parametrize("nullable", [True, False])
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_rows_that_say_no_time(nullable, unit):
    """Without the column it is now; an empty cell is null where it may be, and else now as well."""
    field = pa.field("timestamp", pa.timestamp(unit, "UTC"), nullable=nullable)
    schema = pa.schema([field, ("id", pa.int8())])
    now = NOW_US * 1_000 // {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[unit]

    def times(text):
        return [
            each
            for table, _ in parts(schema, text)
            for each in table["timestamp"].cast(pa.int64()).to_pylist()
        ]

    assert times("id\n1\n2\n") == [now, now]
    second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    missing = None if nullable else now
    assert times("id,timestamp\n1,\n2,1970-01-01T00:00:01Z\n") == [missing, second]
    plain = pa.schema([("timestamp", pa.utf8()), ("id", pa.int8())])
    assert rows(plain, "id\n1\n") == [{"id": 1}]  # a column of another type is no time
