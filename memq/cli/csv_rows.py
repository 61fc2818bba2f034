"""CSV becomes rows of a topic's schema, a block at a time.

The first line names the columns; a topic without columns of its own has those of its LogMessages,
`key`, `value`, `headers` and `timestamp`. A cell that is empty is null, and one that is `""` is an
empty text. Arrow reads the cells. Lists, structs, maps and headers are JSON, and bytes that are no
text are `{"base64": "…"}`, as in the JSON that `memq consume` prints.
"""

from __future__ import annotations

import io
import math
import re
from collections import Counter
from csv import Error as CsvError
from csv import reader
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
from pyarrow import csv

from memq.cli.json_rows import (
    BASE64_BEGINS,
    BYTE_ORDER_MARK,
    EXACT_WHOLES,
    Rows,
    bytes_of_text,
    is_another,
    is_binary,
    is_time,
    json_cells,
    narrowed,
    without_advice,
)
from memq.core.format.envelope import ARROW_ERRORS
from memq.core.format.message import TIMESTAMP_COLUMN
from memq.core.format.schema import DEFAULT_SCHEMA
from memq.errors import InvalidRequestError, MessageTooLargeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from io import BufferedReader

_CELL = re.compile(r"In CSV column #(\d+): Row #(\d+): (?:CSV conversion error to )?")
_ROW = re.compile(r"CSV parse error: Row #(\d+): ")
_HEXADECIMAL = re.compile(rb"[+-]?0[xX]")


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
    """What matches as many whole rows as there are, and what matches one that ends the file.

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
    """The names in the first line, which fit the topic.

    Raises:
        InvalidRequestError: they do not.
    """
    columns = ", ".join(schema.names)
    try:
        line = stream.readline(most_bytes)
        while line.count(b'"') % 2 and (more := stream.readline(most_bytes - len(line))):
            line += more  # a name with a newline in it
        text = line.decode("utf-8-sig").removesuffix("\n").removesuffix("\r")
        names = _names_in(text if len(line) < most_bytes else "", delimiter)
    except (ValueError, CsvError) as exc:
        raise InvalidRequestError(
            f"the first line names no columns; the topic has {columns}: {exc}"
        ) from exc
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
    needed = [field.name for field in schema if not (field.nullable or is_time(field))]
    if schema.equals(DEFAULT_SCHEMA):
        needed = ["value"]
    missing = [name for name in needed if name not in names]
    if missing:
        raise InvalidRequestError(
            f"the first line does not name column {missing[0]!r}, which is never null; the topic "
            f"has {columns}"
        )
    return names


def _names_in(text: str, delimiter: str) -> list[str]:
    if not text:
        raise ValueError("it is empty, or as long as a block")
    names, *more = reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    if more:
        raise ValueError("lines must end with a newline, not with a carriage return alone")
    return names


def _table(
    data: bytes, names: list[str], schema: pa.Schema, dialect: Dialect, number: int
) -> pa.Table:
    """Some whole rows, of which the first has a number. Where Arrow cuts, it may lose a byte.

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

    def read(kinds: dict[str, pa.DataType], *, quoted_null: bool) -> pa.Table:
        convert = csv.ConvertOptions(
            column_types=kinds,
            include_columns=list(kinds),
            null_values=[dialect.null],
            strings_can_be_null=True,
            quoted_strings_can_be_null=quoted_null,
        )
        return csv.read_csv(pa.BufferReader(data), options, parse, convert)

    kinds = {name: _cell_type(schema.field(name)) for name in names}
    texts = {name: kind for name, kind in kinds.items() if _is_text(schema.field(name).type)}
    others = {name: kind for name, kind in kinds.items() if name not in texts}
    try:
        if texts and others and b'"%b"' % dialect.null.encode() in data:
            read_texts, rows = read(texts, quoted_null=False), read(others, quoted_null=True)
            rows = pa.table({each: (read_texts if each in texts else rows)[each] for each in names})
        else:
            rows = read(kinds, quoted_null=not texts)
        table = _typed(rows, schema, number)
        for name in names:
            if not _is_doubtful(table[name], data):
                continue
            written = read({name: pa.utf8()}, quoted_null=True)[name].to_pylist()
            values = table[name].to_pylist()
            for row, (text, value) in enumerate(zip(written, values, strict=True), number):
                if value is not None and not _is_as_written(text.strip(), value):
                    raise InvalidRequestError(
                        f"row {row}, column {name!r}: {text} does not fit; it would be {value}"
                    )
    except ARROW_ERRORS as exc:
        raise _refusal(str(exc), names, number) from exc
    return table


def _is_doubtful(numbers: pa.ChunkedArray, data: bytes) -> bool:
    """Whether some of a column may be other numbers than were written."""
    if pat.is_integer(numbers.type):
        return _HEXADECIMAL.search(data) is not None
    if not pat.is_floating(numbers.type):
        return False
    return bool(pc.any(pc.greater_equal(pc.abs(numbers.cast(pa.float64())), EXACT_WHOLES)).as_py())


def _is_as_written(text: str, value: float) -> bool:
    """Whether a number is what its cell says: Arrow takes 0xFF for the bits of an int8."""
    if text.lstrip("+-").isdecimal():
        return not is_another(int(text), value)
    return not _HEXADECIMAL.match(text.encode()) and (math.isfinite(value) or "n" in text.lower())


def _cell_type(field: pa.Field) -> pa.DataType:
    """What Arrow reads a cell as."""
    kind = field.type
    if pat.is_floating(kind):
        return pa.float64()
    if pat.is_decimal(kind):
        return pa.decimal128(kind.precision, kind.scale)
    if is_binary(kind):
        return pa.binary()
    return pa.utf8() if pat.is_nested(kind) or pat.is_duration(kind) else kind


def _is_text(kind: pa.DataType) -> bool:
    """Whether cells of a type are values as they stand, an empty one too."""
    return bool(pat.is_string(kind) or pat.is_large_string(kind) or is_binary(kind))


def _typed(table: pa.Table, schema: pa.Schema, number: int) -> pa.Table:
    """The rows, with what Arrow has no cells for.

    Raises:
        InvalidRequestError: a cell does not fit.
    """
    columns = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        kind = schema.field(name).type
        convert = _conversion(kind)
        if convert is None:
            columns.append(column)
            continue
        try:
            columns.append(convert(column))
        except ValueError:
            for row in range(len(column)):
                try:
                    convert(column.slice(row, 1))
                except ValueError as exc:
                    raise InvalidRequestError(
                        f"row {number + row}, column {name!r}: {exc}"
                    ) from exc
            raise
    return pa.table(columns, table.column_names)


def _conversion(kind: pa.DataType) -> Callable[[pa.Array], pa.Array] | None:
    """What makes values of the cells that Arrow has read; None where they are values already."""
    if pat.is_nested(kind):
        return lambda cells: json_cells(cells.to_pylist(), kind)
    if is_binary(kind):
        return lambda cells: _bytes(cells, kind)
    if pat.is_duration(kind):
        return lambda cells: json_cells(_quoted(cells), kind)
    if pat.is_floating(kind) and not pat.is_float64(kind):
        return lambda cells: narrowed(cells, kind)
    if pat.is_decimal(kind):
        return _valid
    return None


def _valid(cells: pa.Array) -> pa.Array:
    """The cells; Arrow reads decimals that have more digits than their type."""
    cells.validate(full=True)
    return cells


def _quoted(cells: pa.Array) -> list[str | None]:
    """Texts as JSON."""
    return [None if cell is None else f'"{cell}"' for cell in cells.to_pylist()]


def _bytes(cells: pa.Array, kind: pa.DataType) -> pa.Array:
    if pc.any(pc.starts_with(cells, BASE64_BEGINS)).as_py():
        return pa.array(map(bytes_of_text, cells.to_pylist()), kind)
    return cells.cast(kind)


def _with_times(table: pa.Table, schema: pa.Schema, now_us: int) -> pa.Table:
    """The rows with a time, where those of the topic have one, and these do not say it."""
    position = schema.get_field_index(TIMESTAMP_COLUMN)
    if position < 0 or not is_time(field := schema.field(position)):
        return table
    now = pa.scalar(now_us, pa.timestamp("us", "UTC")).cast(field.type, safe=False)
    if TIMESTAMP_COLUMN not in table.column_names:
        return table.append_column(field, pa.repeat(now, table.num_rows))
    if field.nullable:
        return table
    position = table.schema.get_field_index(TIMESTAMP_COLUMN)
    return table.set_column(position, field, table.column(position).fill_null(now))


def _refusal(reason: str, names: list[str], number: int) -> InvalidRequestError:
    """What Arrow says of rows, the first of which has this number."""
    reason = without_advice(reason)
    if (cell := _CELL.match(reason)) is not None:
        name, row = names[int(cell[1])], int(cell[2]) + number - 1
        return InvalidRequestError(f"row {row}, column {name!r}: {reason[cell.end() :]}")
    if (bad := _ROW.match(reason)) is not None:
        return InvalidRequestError(f"row {int(bad[1]) + number - 1}: {reason[bad.end() :]}")
    return InvalidRequestError(f"row {number} or a later one is no CSV: {reason}")
