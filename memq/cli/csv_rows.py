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
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
from pyarrow import csv

from memq.cli.json_rows import (
    BASE64_BEGINS,
    Rows,
    bytes_of_text,
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
    number = 2
    try:
        if not stream.peek(1):
            return
        source = _Tail(stream)
        for batch, last in _with_last(_open(source, names, schema, dialect, block_bytes)):
            if last:
                _check_end(batch, source.tail, number)
            table = _with_times(_typed(batch, schema, number), schema, now_us())
            yield Rows(table, range(number, number + batch.num_rows))
            number += batch.num_rows
    except ARROW_ERRORS as exc:
        raise _refusal(str(exc), names, number, block_bytes) from exc


def _with_last(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, bool]]:
    """Each RecordBatch, and whether it is the last; an error comes after those before it."""
    batch = next(batches, None)
    while batch is not None:
        try:
            following = next(batches, None)
        except ARROW_ERRORS:
            yield batch, False
            raise
        yield batch, following is None
        batch = following


class _Tail(io.RawIOBase):
    """A stream that knows the last two blocks that were read of it, of which all but the last one
    are whole.

    Args:
        stream: to read.
    """

    def __init__(self, stream: BufferedReader) -> None:
        super().__init__()
        self._stream = stream
        self._blocks = (b"", b"")

    @property
    def tail(self) -> bytes:
        """The bytes of these."""
        return b"".join(self._blocks)

    def readable(self) -> bool:
        """Yes."""
        return True

    def read(self, size: int = -1) -> bytes:
        """As the stream does."""
        data = self._stream.read(size)
        if data:
            self._blocks = (self._blocks[1], data)
        return data


def _check_end(batch: pa.RecordBatch, tail: bytes, number: int) -> None:
    """Refuse a file that ends within a quoted cell: Arrow takes the rest of the file for the cell.

    Args:
        batch: the last rows.
        tail: the last bytes of the file, as many as a row may have.
        number: of the first of the rows.

    Raises:
        InvalidRequestError: the last cell has no quote at its end.
    """
    last = batch.column(batch.num_columns - 1)[-1].as_py() if batch.num_rows else None
    if isinstance(last, str):
        last = last.encode()
    if isinstance(last, bytes):
        quoted = b'"' + last.replace(b'"', b'""')
        if tail.endswith(quoted) and not tail.endswith(quoted + b'"'):
            raise InvalidRequestError(
                f"row {number + batch.num_rows - 1}: a quote is left open, up to the end of the "
                "input"
            )


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
        names = _names_in(text, delimiter)
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
        raise ValueError("it is empty")
    if "\r" in text and '"' not in text:
        raise ValueError("lines must end with a newline, not with a carriage return alone")
    return next(reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True))


def _open(
    stream: _Tail,
    names: list[str],
    schema: pa.Schema,
    dialect: Dialect,
    block_bytes: int,
) -> Any:
    # On this thread alone: then rows are numbered from the beginning of the file in every error.
    read = csv.ReadOptions(column_names=names, block_size=block_bytes, use_threads=False)
    parse = csv.ParseOptions(
        delimiter=dialect.delimiter,
        newlines_in_values=True,
        ignore_empty_lines=len(names) > 1,  # of one column: a null
    )
    convert = csv.ConvertOptions(
        column_types={name: _cell_type(schema.field(name)) for name in names},
        null_values=[dialect.null],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    return csv.open_csv(stream, read_options=read, parse_options=parse, convert_options=convert)


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


def _typed(batch: pa.RecordBatch, schema: pa.Schema, number: int) -> pa.Table:
    """The rows, with what Arrow has no cells for.

    Raises:
        InvalidRequestError: a cell does not fit.
    """
    columns = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
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
    return pa.table(columns, batch.schema.names)


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


def _refusal(
    reason: str, names: list[str], number: int, block_bytes: int
) -> InvalidRequestError | MessageTooLargeError:
    """What Arrow says of a file without its first line."""
    reason = without_advice(reason)
    if "straddling" in reason:
        return MessageTooLargeError(
            f"a row from row {number} on has more than {block_bytes} bytes, which fit into no "
            "Message of this topic; is a quote left open?"
        )
    if (cell := _CELL.match(reason)) is not None:
        name, row = names[int(cell[1])], int(cell[2]) + 1
        return InvalidRequestError(f"row {row}, column {name!r}: {reason[cell.end() :]}")
    if (bad := _ROW.match(reason)) is not None:
        return InvalidRequestError(f"row {int(bad[1]) + 1}: {reason[bad.end() :]}")
    return InvalidRequestError(f"the input is no CSV: {reason}")
