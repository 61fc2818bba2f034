"""CSV becomes rows: cut into blocks anywhere, it is read as Python reads it, or refused."""

import csv
import io
import math

import hypothesis
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from memq.cli.csv_rows import Dialect, csv_rows
from memq.core.format.schema import DEFAULT_SCHEMA
from memq.errors import InvalidRequestError, MessageTooLargeError

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


def parts(schema, text, dialect=Dialect(), block_bytes=1 << 20):  # noqa: B008 - a value
    """Tables with the numbers of their rows."""
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    return csv_rows(
        io.BufferedReader(io.BytesIO(data)),
        schema,
        dialect=dialect,
        block_bytes=block_bytes,
        now_us=lambda: NOW_US,
    )


def rows(schema, text, *dialect):
    """All rows."""
    return [row for table, _ in parts(schema, text, *dialect) for row in table.to_pylist()]


# -- any text -------------------------------------------------------------------------------

WORDS = [
    "",
    "a",
    '"',
    '""',
    ",",
    ";",
    "\n",
    "\r",
    "\r\n",
    "\n\n",
    "\0",
    " ",
    "\ufeff",
    "é",
    "\u2028",
]
NUMBERS = [
    *("0", "-1", "7", "255", "256", "0xFF", "1e400", "-1e400", "1e300", "0.1", "inf", "nan", "1e2"),
    *("9007199254740992", "9007199254740993", "1152921504606847000", "16777217", "2049", "-0"),
    *("9223372036854775807", "9223372036854775808", "18446744073709551616"),
]
TEXTS = st.lists(st.sampled_from(WORDS), max_size=5).map("".join)
BLOCKS = st.sampled_from([1 << 20, 16, 17, 18, 19, 23, 29, 31, 37, 64])


@st.composite
def files(draw, cells):
    """Files as programs write them, and then some bytes that no program would."""
    text = io.StringIO(newline="")
    quoting = draw(st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]))
    end = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    writer = csv.writer(text, lineterminator=end, quoting=quoting, delimiter=";")
    width = draw(st.integers(1, 3))
    for _ in range(draw(st.integers(0, 6))):
        writer.writerow([draw(cells) for _ in range(width)])
    written = text.getvalue()
    if draw(st.booleans()):
        at = draw(st.integers(0, len(written)))
        written = written[:at] + draw(TEXTS) + written[at:]
    return width, written[: len(written) - draw(st.integers(0, 2))]


def rows_of(text, kinds, block_bytes=1 << 20):
    """The cells of a file, whose columns have these types; or why it is refused."""
    schema = pa.schema([(f"c{number}", kind) for number, kind in enumerate(kinds)])
    given = ";".join(schema.names) + "\r\n" + text
    found = []
    try:
        for table, numbers in parts(schema, given, Dialect(";"), block_bytes):
            assert list(numbers) == list(range(2 + len(found), 2 + len(found) + len(table)))
            found += [list(row.values()) for row in table.to_pylist()]
    except (InvalidRequestError, MessageTooLargeError) as exc:
        return found, exc
    return found, None


def expected(text, width):
    """Its rows as Python reads them; of one column, a blank line is one."""
    read = csv.reader(io.StringIO(text, newline=""), delimiter=";")
    return [row or [""] for row in read if row or width == 1]


def is_closed(text):
    """Whether no quote is left open."""
    *_, last = csv.reader(io.StringIO(text + "\nend", newline=""), delimiter=";")
    return last == ["end"]


@hypothesis.given(files(TEXTS), BLOCKS)
@hypothesis.example((1, '"' + "\r\n" * 20 + '"\n'), 16)
@hypothesis.example((1, '"x' + "\r\n" * 8 + '"\n'), 17)
@hypothesis.example((2, '"\ufeffa"; b\n\ufeffc;d\n'), 16)
@hypothesis.example((1, "a\rb\r\rc\r"), 3)
def test_any_csv(file, block_bytes):
    """Each cell is what Python reads, wherever blocks end; or a row is refused, by its number."""
    width, text = file
    wanted = expected(text, width)
    found, error = rows_of(text, [pa.utf8()] * width, max(16, block_bytes, 3 * width + 2))

    assert [[cell or "" for cell in row] for row in found] == wanted[: len(found)]
    if error is None:
        assert len(found) == len(wanted)
        assert is_closed(text)
        return
    ragged = [number for number, row in enumerate(wanted, 2) if len(row) != width]
    if "Expected" in str(error):
        assert str(error).startswith(f"row {ragged[0]}: ")
    elif isinstance(error, MessageTooLargeError):
        assert block_bytes < 1 << 20
        assert str(error).startswith(f"row {2 + len(found)} has more")
    else:
        assert str(error).startswith(f"row {len(wanted) + 1}: a quote is left open")
        assert not is_closed(text)


@hypothesis.given(
    st.lists(st.sampled_from(NUMBERS), min_size=1, max_size=4),
    st.sampled_from(
        [pa.int8(), pa.uint8(), pa.int64(), pa.uint64(), pa.float16(), pa.float32(), pa.float64()]
    ),
    st.booleans(),
)
def test_any_number(cells, kind, quoted):
    """A number is stored as it is written, to the digits that its type has, or refused by cell."""
    text = "".join(f'"{cell}"\n' if quoted else f"{cell}\n" for cell in cells)
    found, error = rows_of(text, [kind])
    if error is not None:
        assert "column 'c0'" in str(error)
        return
    for cell, [value] in zip(cells, found, strict=True):
        if cell.lstrip("-").isdecimal():
            shortest = repr(value).replace(".", "")  # digits that stand for a float are that float
            assert value == int(cell) or shortest.startswith(cell.rstrip("0") or "0")
        elif math.isfinite(float(cell)):
            assert value == pytest.approx(float(cell), rel=1e-2)
        else:
            assert repr(value) == cell


# -- nulls and times ------------------------------------------------------------------------


def test_nulls():
    """An empty cell is null and a quoted one is empty, unless another word says null."""
    assert [row["city"] for row in rows(RIDES, 'id,city\n1,\n2,""\n')] == [None, ""]
    found = rows(RIDES, 'id;city\n1;NA\n2;\n3;"NA"\n', Dialect(";", "NA"))
    assert [row["city"] for row in found] == [None, "", "NA"]


@pytest.mark.parametrize("null", ["", "NA"])
def test_a_quoted_null(null):
    """Where all cells are quoted, a null is one in each column that has no texts."""
    kinds = [pa.int8(), pa.float64(), pa.date32(), pa.bool_(), pa.decimal128(5)]
    kinds += [pa.timestamp("us", "UTC"), pa.time32("s"), pa.list_(pa.int8())]
    schema = pa.schema([("text", pa.utf8()), *((str(kind), kind) for kind in kinds)])
    lines = [[f'"{each}"' for each in schema.names], [f'"{null}"'] * 9, [null] * 9]

    quoted, plain = rows(schema, "\n".join(map(",".join, lines)), Dialect(",", null))

    assert quoted == plain | {"text": null}
    assert {*plain.values()} == {None}


@pytest.mark.parametrize("nullable", [True, False])
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_rows_that_say_no_time(nullable, unit):
    """Without the column it is now; an empty cell is null where it may be, and else now as well."""
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    now = NOW_US * per_second // 10**6
    field = pa.field("timestamp", pa.timestamp(unit, "UTC"), nullable=nullable)

    def times(text):
        ((table, _),) = parts(pa.schema([field, ("id", pa.int8())]), text)
        return table["timestamp"].cast(pa.int64()).to_pylist()

    assert times("id\n1\n2\n") == [now, now]
    missing = None if nullable else now
    assert times("id,timestamp\n1,\n2,1970-01-01T00:00:01Z\n") == [missing, per_second]
    plain = pa.schema([("timestamp", pa.utf8()), ("id", pa.int8())])
    assert rows(plain, "id\n1\n") == [{"id": 1}]  # a column of another type is no time


# -- refusals -------------------------------------------------------------------------------


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
        ("id,single\n1,16777217\n", "row 2, column 'single': 16777217 does not fit into float"),
        ('id,city\n1,a\n2,"b\n3,c\n', "row 3: a quote is left open, up to the end"),
    ],
)
def test_what_does_not_fit(text, said):
    """The column and the row are named, the first line being row 1."""
    with pytest.raises(InvalidRequestError, match=said):
        rows(RIDES, text)


def test_a_topic_without_columns_of_its_own():
    """It has those of its LogMessages, of which only the value must be named."""
    assert rows(DEFAULT_SCHEMA, "value\nv\n")[0]["value"] == b"v"
    with pytest.raises(InvalidRequestError, match="does not name column 'value'"):
        rows(DEFAULT_SCHEMA, "key\nk\n")
