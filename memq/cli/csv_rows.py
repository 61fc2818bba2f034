"""CSV becomes rows of a topic's schema, a block at a time.

The first line names the columns; a topic without columns of its own has those of its LogMessages,
`key`, `value`, `headers` and `timestamp`. A cell that is empty is null, and one that is `""` is an
empty text. Arrow reads the cells. Lists, structs, maps and headers are JSON, and bytes that are no
text are `{"base64": "…"}`, as in the JSON that `memq consume` prints.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from csv import Error as CsvError
from csv import reader
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
from pyarrow import csv

from memq.cli.json_rows import (
    BASE64_BEGINS,
    BYTE_ORDER_MARK,
    REFUSED,
    Rows,
    bytes_of_text,
    check_types,
    exact_float,
    is_binary,
    is_text,
    is_time,
    json_cells,
    needed_names,
    now_in,
    take_fitting,
    times_of,
    without_advice,
)
from memq.core.format.envelope import ARROW_ERRORS
from memq.core.format.message import TIMESTAMP_COLUMN
from memq.errors import InvalidRequestError, MessageTooLargeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from io import BufferedReader

_CELL = re.compile(r"In CSV column #(\d+): Row #(\d+): (?:CSV conversion error to )?")
_ROW = re.compile(r"CSV parse error: Row #(\d+): ")
_HEXADECIMAL = "^[+-]?0[xX]"


class Dialect(NamedTuple):
    """How a CSV file is written.

    Attributes:
        delimiter: between cells, one ASCII character.
        null: a cell without quotes that is null.
    """

    delimiter: str = ","
    null: str = ""


def csv_rows(
    stream: BufferedReader,
    schema: pa.Schema,
    *,
    dialect: Dialect,
    block_bytes: int,
    now_us: Callable[[], int],
) -> Iterator[Rows]:
    """Rows of a CSV file, some at a time; they are numbered as in the file, whose header is row 1.

    Args:
        stream: of the file, its header first.
        schema: of the topic.
        dialect: of the file.
        block_bytes: to read at a time; no row may have more.
        now_us: time of rows that say none, in microseconds since 1970 UTC.

    Raises:
        InvalidRequestError: the header or a row does not fit; earlier blocks were given out.
        MessageTooLargeError: a row is larger than a block.
    """
    check_types(schema)
    names = _read_names(stream, schema, dialect.delimiter, block_bytes)
    whole_rows, last_row = _row_patterns(dialect.delimiter)
    rest, number = b"", 2
    while True:
        more = stream.read(block_bytes - len(rest))
        block = rest + more
        match = whole_rows.match(block) if more else last_row.fullmatch(block)
        if match is None:
            raise InvalidRequestError(
                f"row {number}: a quote is left open, up to the end of the input"
            )
        if not match.end() and len(block) == block_bytes:
            raise MessageTooLargeError(
                f"row {number} has more than {block_bytes} bytes, which fit into no Message of "
                "this topic; is a quote left open?"
            )
        rest = block[match.end() :]
        if match.end():
            table = _table(block[: match.end()], names, schema, dialect, number)
            yield Rows(_with_times(table, schema, now_us()), range(number, number + len(table)))
            number += len(table)
        if not more:
            return


def _row_patterns(delimiter: str) -> tuple[re.Pattern[bytes], re.Pattern[bytes]]:
    """Compile what matches as many whole rows as there are, and what matches one that ends the
    file.

    A quote opens a cell only at its beginning. A carriage return that ends a block may be half of
    a newline.
    """
    between = re.escape(delimiter.encode())
    plain = rb"[^%b\r\n]*+" % between
    cell = rb'(?:"[^"]*+(?:""[^"]*+)*+"%b|(?!")%b)' % (plain, plain)
    row = rb"(?:%b%b)*+%b" % (cell, between, cell)
    return re.compile(rb"(?>%b(?:\r?\n|\r(?!\Z)))*+" % row), re.compile(row + rb"\r?\n?")


def _read_names(
    stream: BufferedReader, schema: pa.Schema, delimiter: str, most_bytes: int
) -> list[str]:
    """Read the names in the first line.

    Raises:
        InvalidRequestError: it has none, or they do not fit the topic.
    """
    columns = ", ".join(schema.names)
    try:
        line = stream.readline(most_bytes)
        while line.count(b'"') % 2 and (more := stream.readline(most_bytes - len(line))):
            line += more  # a name with a newline in it
        text = line.decode("utf-8-sig") if len(line) < most_bytes else ""
        (names,) = reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    except (ValueError, CsvError) as exc:
        raise InvalidRequestError(
            f"the first line names no columns; the topic has {columns}. Lines must end "
            f"with a newline, not with a carriage return alone: {exc}"
        ) from exc
    _check_names(names, schema, columns)
    return names


def _check_names(names: list[str], schema: pa.Schema, columns: str) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise InvalidRequestError(f"the first line names column {twice[0]!r} more than once")
    unknown = [name for name in names if name not in schema.names]
    if unknown:
        others = [sign for sign in ";\t|" if len(names) == 1 and sign in names[0]]
        way = f"; is the delimiter {others[0]!r}? Give it with --delimiter" if others else ""
        raise InvalidRequestError(
            f"the first line names column {unknown[0]!r}; the topic has {columns}{way}"
        )
    missing = sorted(needed_names(schema).difference(names))
    if missing:
        raise InvalidRequestError(
            f"the first line does not name column {missing[0]!r}, which is never null; the topic "
            f"has {columns}"
        )


def _table(
    data: bytes, names: list[str], schema: pa.Schema, dialect: Dialect, number: int
) -> pa.Table:
    """Read some whole rows, of which the first has a number. Where Arrow cuts, it may lose a byte.

    Raises:
        InvalidRequestError: a row does not fit.
    """
    if data.startswith(BYTE_ORDER_MARK):  # Arrow drops one, and it is none: a row begins with it
        data = BYTE_ORDER_MARK + data
    parse = csv.ParseOptions(
        delimiter=dialect.delimiter,
        newlines_in_values=True,
        ignore_empty_lines=len(names) > 1,  # of one column: a null
    )
    # On this thread alone: else errors number no rows.
    options = csv.ReadOptions(column_names=names, block_size=len(data), use_threads=False)
    kinds = {name: schema.field(name).type for name in names}
    convert = csv.ConvertOptions(
        column_types={name: _cell_type(kind) for name, kind in kinds.items()},
        null_values=[dialect.null],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    try:
        table = csv.read_csv(pa.BufferReader(data), options, parse, convert)
    except ARROW_ERRORS as exc:
        raise _refusal(str(exc), names, number) from exc
    if not table.num_rows:  # blank lines alone
        return schema.empty_table()
    columns = []
    for name, kind in kinds.items():
        read = partial(_values, kind=kind, null=dialect.null)
        column, good, why = take_fitting(table[name].combine_chunks(), read, REFUSED)
        if why is not None:
            raise InvalidRequestError(
                f"row {number + good}, column {name!r}: {without_advice(why)}"
            ) from why
        columns.append(column)
    return pa.table(columns, names)


def _cell_type(kind: pa.DataType) -> pa.DataType:
    """Return what Arrow reads a cell as: all but texts and bytes are read again, by `_values`."""
    if is_binary(kind):
        return pa.binary()
    return kind if is_text(kind) else pa.utf8()


def _values(cells: pa.Array, kind: pa.DataType, null: str) -> pa.Array:
    """Make values of a type of their cells.

    Raises:
        ValueError: one does not fit.
    """
    if is_binary(kind):
        return _bytes(cells, kind)
    if is_text(kind):
        return cells
    cells = pc.utf8_trim_whitespace(cells)
    cells = pc.if_else(pc.equal(cells, null), None, cells)  # in quotes as well
    if pat.is_nested(kind):
        return json_cells(cells.to_pylist(), kind)
    if pat.is_temporal(kind):
        return times_of(cells, kind)
    if pat.is_floating(kind):
        cells.cast(pa.float64())  # refuses what is no number
        return pa.array(map(partial(_float, kind=kind), cells.to_pylist()), kind)
    if pc.any(pc.match_substring_regex(cells, _HEXADECIMAL)).as_py():
        raise ValueError("hexadecimal numbers are not taken")  # Arrow takes 0xFF for -1
    return pa.array(cells.to_pylist(), kind) if pat.is_null(kind) else cells.cast(kind)


def _bytes(cells: pa.Array, kind: pa.DataType) -> pa.Array:
    if pc.any(pc.starts_with(cells, BASE64_BEGINS)).as_py():
        return pa.array(map(bytes_of_text, cells.to_pylist()), kind)
    return cells.cast(kind)


def _float(text: str | None, kind: pa.DataType) -> float | None:
    if text is None:
        return None
    whole = int(text) if text.lstrip("+-").isdecimal() else 0
    return exact_float(whole or text, kind)  # -0 is no whole number


def _with_times(table: pa.Table, schema: pa.Schema, now_us: int) -> pa.Table:
    """Return the rows with a time, where those of the topic have one, and these do not say it."""
    position = schema.get_field_index(TIMESTAMP_COLUMN)
    if position < 0 or not is_time(field := schema.field(position)):
        return table
    now = now_in(field, now_us)
    if TIMESTAMP_COLUMN not in table.column_names:
        return table.append_column(field, pa.repeat(now, table.num_rows))
    if field.nullable:
        return table
    position = table.schema.get_field_index(TIMESTAMP_COLUMN)
    return table.set_column(position, field, table.column(position).fill_null(now))


def _refusal(reason: str, names: list[str], number: int) -> InvalidRequestError:
    """Return what Arrow says of rows, the first of which has this number."""
    if (cell := _CELL.match(reason)) is not None:
        name, row = names[int(cell[1])], int(cell[2]) + number - 1
        return InvalidRequestError(f"row {row}, column {name!r}: {reason[cell.end() :]}")
    if (bad := _ROW.match(reason)) is not None:
        return InvalidRequestError(f"row {int(bad[1]) + number - 1}: {reason[bad.end() :]}")
    return InvalidRequestError(f"row {number} or a later one is no CSV: {reason}")
