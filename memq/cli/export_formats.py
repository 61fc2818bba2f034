"""The formats of an export: rows of Arrow become bytes of a file.

Parquet and Arrow hold every type that a topic can have (Parquet but for a struct without fields).
CSV and JSON lines are text, with the same texts as `memq consume --format json`: bytes are their
UTF-8 text, or else `{"base64": "…"}`, and times are ISO 8601.
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
from memq.cli.lines import json_value
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
    """An object a line."""

    def __init__(self, file: IO[bytes], schema: pa.Schema) -> None:
        self._file = file
        self._names = schema.names

    def write(self, rows: pa.RecordBatch) -> None:
        for part in _parts(rows):
            rows_of_values = zip(*_converted(_json_values, part), strict=True)
            objects = [dict(zip(self._names, values, strict=True)) for values in rows_of_values]
            write_whole(self._file, _encode_lines(objects))

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


def _json_values(column: pa.Array) -> list[msgspec.Raw]:
    plain = _times(column) if pat.is_timestamp(column.type) else column
    lines = _encode_lines([json_value(value) for value in plain.to_pylist()])
    return [msgspec.Raw(line) for line in lines.split(b"\n")[:-1]]


def _csv_type(kind: pa.DataType) -> pa.DataType:
    if pat.is_float16(kind):
        return pa.float32()  # CSV knows no halves
    simple = pat.is_integer(kind) or pat.is_floating(kind) or pat.is_boolean(kind) or is_text(kind)
    return kind if simple else pa.utf8()


def _csv_column(column: pa.Array) -> pa.Array:
    """Cells of what Arrow's CSV has as the same values, and of all else as text."""
    kind = _csv_type(column.type)
    if pat.is_timestamp(column.type) or not pat.is_string(kind) or is_text(column.type):
        return _times(column) if pat.is_timestamp(column.type) else column.cast(kind)
    found = map(json_value, column.to_pylist())
    if is_binary(column.type):
        found = map(_unmistakable, found)
    return pa.array(map(_csv_text, found), pa.utf8())


def _unmistakable(value: Any) -> Any:
    """Write a text as base64 that a reader would take for base64."""
    if isinstance(value, str) and value.startswith(_BASE64):
        return {"base64": base64.b64encode(value.encode()).decode()}
    return value


def _csv_text(value: Any) -> str | None:
    """One cell of what JSON can hold: a text as it is, all else as JSON."""
    plain = msgspec.to_builtins(value)
    return plain if plain is None or isinstance(plain, str) else _encode(plain).decode()


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
