"""CSV, cut into blocks anywhere: read as Python reads it, or refused."""

from __future__ import annotations

import csv
import io
import math

import hypothesis
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from memq.cli.csv_rows import Dialect, csv_rows
from memq.errors import InvalidRequestError, MessageTooLargeError

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


def rows_of(text, kinds, block_bytes):
    """The cells of a file, whose columns have these types; or why it is refused."""
    names = [f"c{number}" for number in range(len(kinds))]
    data = (";".join(names) + "\r\n" + text).encode("utf-8", "surrogatepass")
    parts = csv_rows(
        io.BufferedReader(io.BytesIO(data)),
        pa.schema(list(zip(names, kinds, strict=True))),
        dialect=Dialect(";"),
        block_bytes=block_bytes,
        now_us=lambda: 0,
    )
    found = []
    try:
        for table, numbers in parts:
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


def number_of(cell, kind):
    """What a cell says as a number, exactly; None for none."""
    if pa.types.is_integer(kind):
        return int(cell)
    value = float(cell)
    if cell.lstrip("-").isdecimal() and int(cell) != value:
        assert repr(value).replace(".", "").startswith(cell.rstrip("0"))
    return value


@hypothesis.given(
    st.lists(st.sampled_from(NUMBERS), min_size=1, max_size=4),
    st.sampled_from(
        [pa.int8(), pa.uint8(), pa.int64(), pa.uint64(), pa.float16(), pa.float32(), pa.float64()]
    ),
    st.booleans(),
)
def test_any_number_in_csv(cells, kind, quoted):
    """A number is stored as it is written, to the digits that its type has, or refused by cell."""
    text = "".join(f'"{cell}"\n' if quoted else f"{cell}\n" for cell in cells)
    found, error = rows_of(text, [kind], 1 << 20)
    if error is not None:
        assert "column 'c0'" in str(error)
        return
    for cell, [value] in zip(cells, found, strict=True):
        wanted = number_of(cell, kind)
        if cell.lstrip("-").isdecimal():
            assert value == wanted
        elif math.isfinite(wanted) and "inf" not in cell:
            assert value == pytest.approx(wanted, rel=1e-2)
        else:
            assert repr(value) == repr(wanted)
            assert "n" in cell


@pytest.mark.parametrize("null", ["", "NA"])
def test_a_quoted_null(null):
    """Where all cells are quoted, a null is one in each column that has no texts."""
    kinds = [pa.int8(), pa.float64(), pa.date32(), pa.bool_(), pa.decimal128(5)]
    kinds += [pa.timestamp("us", "UTC"), pa.time32("s"), pa.list_(pa.int8())]
    schema = pa.schema([("text", pa.utf8()), *((str(kind), kind) for kind in kinds)])
    names = ",".join(f'"{name}"' for name in schema.names)
    cells = [",".join([each] * len(schema)) for each in (f'"{null}"', null)]
    [(table, _)] = csv_rows(
        io.BufferedReader(io.BytesIO("\n".join([names, *cells, ""]).encode())),
        schema,
        dialect=Dialect(",", null),
        block_bytes=1 << 20,
        now_us=lambda: 0,
    )
    assert table["text"].to_pylist() == [null, None]
    assert {column.null_count for column in table.columns[1:]} == {2}
