"""The formats of an export: rows of Arrow become bytes of a file.

Parquet and Arrow hold every type that a topic can have (Parquet but for a struct without fields).
CSV and JSON lines are text, with the same texts as `memq consume --format json`: bytes are their
UTF-8 text, or else `{"base64": "…"}`, and times are ISO 8601. A column becomes text as a whole
where Arrow can do it; nested columns, and those with bytes that are no text, go value by value.
"""

from __future__ import annotations

import base64
from typing import IO, TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
from pyarrow import csv, parquet

from memq.cli.json_rows import is_binary, is_text
from memq.cli.lines import bytes_of, json_value
from memq.cli.output import write_whole
from memq.core.format.envelope import ARROW_ERRORS
from memq.core.format.message import TICKS_PER_SECOND
from memq.core.units import iso_us
from memq.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

Format = Literal["parquet", "csv", "jsonl", "arrow"]

SUFFIXES: dict[str, Format] = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".arrow": "arrow",
    ".feather": "arrow",
}
"""The suffixes of a file, and what they say about it; the first of a format is its own."""

ROW_GROUP_BYTES = 64 << 20  # of rows in memory; what readers of Parquet take at a time
ROW_GROUP_ROWS = 1 << 20  # as pyarrow has it

_BASE64 = '{"base64":'  # how bytes that are no text begin in CSV
TEXT_ROWS = 16_384  # made into text at a time

_encode = msgspec.json.Encoder().encode
_encode_lines = msgspec.json.Encoder().encode_lines
_CALENDAR_S = (-62_135_596_800, 253_402_300_800)  # the years 1 to 9999


class Sink(Protocol):
    """Takes the rows of one file."""

    def write(self, rows: pa.RecordBatch) -> None:
        """Take rows; their bytes may be written later."""

    def close(self) -> None:
        """Write what is left of the file; the file itself stays open."""


def open_sink(form: Format, file: IO[bytes], schema: pa.Schema) -> Sink:
    """What writes rows of a schema to a file.

    Raises:
        InvalidRequestError: the format cannot hold one of the columns.
    """
    try:
        return _SINKS[form](file, schema)
    except ARROW_ERRORS as exc:
        raise InvalidRequestError(f"{form} cannot hold the topic's columns: {exc}") from exc


class _Parquet:
    """Row groups of some size: rows wait for each other."""

    def __init__(self, file: IO[bytes], schema: pa.Schema) -> None:
        self._writer = parquet.ParquetWriter(file, schema, compression="zstd")
        self._schema = schema
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def write(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(rows)
        self._rows += rows.num_rows
        self._bytes += rows.nbytes
        if self._bytes >= ROW_GROUP_BYTES or self._rows >= ROW_GROUP_ROWS:
            self._flush()

    def close(self) -> None:
        if self._waiting:
            self._flush()
        self._writer.close()

    def _flush(self) -> None:
        table = pa.Table.from_batches(self._waiting, schema=self._schema)
        self._writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
        self._waiting = []
        self._rows = self._bytes = 0


class _Csv:
    """A line of names, then the rows; nulls are empty, empty texts are quoted."""

    def __init__(self, file: IO[bytes], schema: pa.Schema) -> None:
        self._schema = pa.schema([(field.name, _csv_type(field.type)) for field in schema])
        self._writer = csv.CSVWriter(file, self._schema)

    def write(self, rows: pa.RecordBatch) -> None:
        for part in _parts(rows):
            columns = _converted(_csv_column, part)
            self._writer.write_batch(pa.record_batch(columns, schema=self._schema))

    def close(self) -> None:
        self._writer.close()


class _JsonLines:
    """An object a line; Arrow puts the lines together."""

    def __init__(self, file: IO[bytes], schema: pa.Schema) -> None:
        self._file = file
        names = [_encode(name).decode() for name in schema.names]
        self._heads = [("{" if n == 0 else ",") + name + ":" for n, name in enumerate(names)]

    def write(self, rows: pa.RecordBatch) -> None:
        for part in _parts(rows):
            pieces: list[Any] = []
            for head, column in zip(self._heads, _converted(_json_column, part), strict=True):
                pieces += [head, column]
            lines = pc.binary_join_element_wise(
                *pieces, "}\n", "", null_handling="replace", null_replacement="null"
            )
            write_whole(self._file, bytes_of(lines.cast(pa.large_binary())))

    def close(self) -> None:
        pass


_SINKS: dict[Format, Callable[[IO[bytes], pa.Schema], Sink]] = {
    "parquet": _Parquet,
    "csv": _Csv,
    "jsonl": _JsonLines,
    "arrow": pa.ipc.new_file,  # which programs can map into memory
}


# -- columns as text ------------------------------------------------------------------------


def _parts(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Some thousand rows at a time: as Python objects they take many times their memory."""
    for start in range(0, rows.num_rows, TEXT_ROWS):
        yield rows.slice(start, TEXT_ROWS)


def _converted(convert: Callable[[pa.Array], T], rows: pa.RecordBatch) -> list[T]:
    converted = []
    for column, field in zip(rows.columns, rows.schema, strict=True):
        try:
            converted.append(convert(column))
        except (*ARROW_ERRORS, OverflowError, ValueError) as exc:
            raise InvalidRequestError(
                f"column {field.name!r} of type {field.type} has a value that text cannot hold: "
                f"{exc}; export it with --format parquet or arrow"
            ) from exc
    return converted


def _json_column(column: pa.Array) -> pa.StringArray:
    """Each value as JSON; null is null, or its JSON."""
    kind = column.type
    if column.null_count == len(column):
        return pa.nulls(len(column), pa.utf8())
    if pat.is_timestamp(kind):
        return pc.binary_join_element_wise('"', _times(column), '"', "")
    if pat.is_integer(kind) or pat.is_boolean(kind):
        return column.cast(pa.utf8())
    plain = _simple(column) if _is_simple(kind) else column
    if is_binary(kind):
        plain = texts if (texts := _text_or_none(column)) is not None else column
    values = plain.to_pylist()
    if not _is_json(plain):
        values = [json_value(value) for value in values]
    # The encoder takes all values at once, and writes no other newlines than those between them.
    lines = pa.array([_encode_lines(values)[:-1]], pa.large_utf8())
    return pc.split_pattern(lines, "\n").flatten().cast(pa.utf8())


def _is_json(column: pa.Array) -> bool:
    """Whether its Python values are what JSON has: no bytes at any depth, and finite numbers."""
    kind = column.type
    if pat.is_floating(kind):
        return bool(pc.all(pc.is_finite(column)).as_py())
    return is_text(kind)


def _csv_type(kind: pa.DataType) -> pa.DataType:
    return _simple_type(kind) if _is_simple(kind) else pa.utf8()


def _csv_column(column: pa.Array) -> pa.Array:
    kind = column.type
    if pat.is_timestamp(kind):
        return _times(column)
    if is_binary(kind):
        return _binary_cells(column)
    if _is_simple(kind):
        return _simple(column)
    if pat.is_null(kind) or pat.is_date(kind) or pat.is_time(kind) or pat.is_decimal(kind):
        return column.cast(pa.utf8())
    return pa.array(map(_csv_text, map(json_value, column.to_pylist())), pa.utf8())


def _binary_cells(column: pa.Array) -> pa.Array:
    """Bytes as text; as base64 those that are none, or that a reader would take for base64."""
    texts = _text_or_none(column)
    if texts is not None and not pc.any(pc.starts_with(texts, _BASE64)).as_py():
        return texts
    found = map(json_value, column.to_pylist())
    return pa.array(map(_csv_text, map(_unmistakable, found)), pa.utf8())


def _unmistakable(value: Any) -> Any:
    if isinstance(value, str) and value.startswith(_BASE64):
        return {"base64": base64.b64encode(value.encode()).decode()}
    return value


def _csv_text(value: Any) -> str | None:
    """One cell of what JSON can hold: a text as it is, all else as JSON."""
    plain = msgspec.to_builtins(value)
    return plain if plain is None or isinstance(plain, str) else _encode(plain).decode()


def _is_simple(kind: pa.DataType) -> bool:
    """Whether Arrow's own Python values, and its own CSV, are what is wanted."""
    return bool(
        pat.is_integer(kind) or pat.is_floating(kind) or pat.is_boolean(kind) or is_text(kind)
    )


def _simple_type(kind: pa.DataType) -> pa.DataType:
    return pa.float32() if pat.is_float16(kind) else kind  # JSON and CSV know no halves


def _simple(column: pa.Array) -> pa.Array:
    return column.cast(_simple_type(column.type))


def _text_or_none(column: pa.Array) -> pa.StringArray | None:
    """Bytes as UTF-8; None where some are no text: only then each value is looked at."""
    try:
        return column.cast(pa.large_binary()).cast(pa.binary()).cast(pa.utf8())
    except pa.ArrowInvalid:
        return None


def _times(column: pa.Array) -> pa.StringArray:
    """ISO 8601, in UTC where the type has a zone, with all the digits of its unit."""
    kind = column.type
    ticks = column.view(pa.int64())
    per_second = TICKS_PER_SECOND[kind.unit]
    bounds = pc.min_max(ticks).as_py()
    low, high = (limit * per_second for limit in _CALENDAR_S)
    if bounds["min"] is not None and not low <= bounds["min"] <= bounds["max"] < high:
        texts = (
            None if tick is None else iso_us(tick * 10**6 // per_second)
            for tick in ticks.to_pylist()
        )
        return pa.array(texts, pa.utf8())
    # Arrow is quick at times without a zone, which it writes with a space before the hour.
    texts = pc.binary_replace_slice(
        ticks.view(pa.timestamp(kind.unit)).cast(pa.utf8()), 10, 11, "T"
    )
    return pc.binary_join_element_wise(texts, "Z", "") if kind.tz else texts
