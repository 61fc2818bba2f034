"""Rows as bytes: the lines that `memq consume` prints, and the files that `memq export` writes.

Parquet and Arrow hold every type that a topic can have (Parquet but for a struct without fields).
CSV and JSON lines are text: bytes are their UTF-8 text, or else `{"base64": "…"}`, and times are
ISO 8601.
"""

from __future__ import annotations

import base64
import io
import math
from datetime import UTC, datetime
from itertools import islice, repeat
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
from pyarrow import csv, parquet

from memq.cli.json_rows import is_binary, is_text
from memq.cli.output import write_whole
from memq.core.format.envelope import ARROW_ERRORS
from memq.core.format.message import TICKS_PER_SECOND
from memq.core.format.schema import DEFAULT_SCHEMA
from memq.core.notification import Notification
from memq.core.units import iso_us
from memq.errors import InvalidRequestError
from memq.reading.batch import Batch, LogMessage, arrange, timestamps_us
from memq.reading.rows import conformed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from memq.core.format.reader import BatchReader

T = TypeVar("T")

LineFormat = Literal["raw", "json", "csv"]
FileFormat = Literal["parquet", "csv", "jsonl", "arrow"]

SUFFIXES: dict[str, FileFormat] = {
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

_encoder = msgspec.json.Encoder()
_PIECE = 4_096  # LogMessages; enough to spread the cost of a write, small against their Batch
_CALENDAR_S = (-62_135_596_800, 253_402_300_800)  # the years 1 to 9999


# -- lines of LogMessages --------------------------------------------------------------------


def raw_lines(
    rows: Iterable[pa.RecordBatch], key_separator: bytes | None = None
) -> Iterator[memoryview]:
    """Values, each followed by a newline; a tombstone is an empty line.

    Each RecordBatch becomes one piece, joined by Arrow without a step per LogMessage.

    Args:
        rows: of an untyped topic.
        key_separator: stands between each key, which may be missing, and its value; None for values
            alone.

    Raises:
        InvalidRequestError: the rows are those of a typed topic without a binary `value`.
    """
    for batch in rows:
        position = batch.schema.get_field_index("value")
        if position < 0 or batch.schema.types[position] != pa.binary():
            raise InvalidRequestError(
                "a typed topic has columns and no raw values; print it with --format json or csv"
            )
        parts = [_large(batch.column(position)), _large(b"\n")]
        if key_separator is not None:
            parts = [_large(batch.column("key")), _large(key_separator), *parts]
        joined = pc.binary_join_element_wise(
            *parts, _large(b""), null_handling="replace", null_replacement=b""
        )
        yield bytes_of(joined)


def _large(part: pa.Array | bytes) -> Any:
    """Cast to offsets that allow more than 2 GiB joined."""
    kind = pa.large_binary()
    return pa.scalar(part, kind) if isinstance(part, bytes) else part.cast(kind)


def json_lines(objects: Iterable[dict[str, Any]]) -> Iterator[bytes]:
    """Yield one line for each object, some thousand to a piece."""
    rest = iter(objects)
    while piece := list(islice(rest, _PIECE)):
        yield _encoder.encode_lines(piece)


def json_object(message: LogMessage, value: Any = None) -> dict[str, Any]:
    """Convert a LogMessage to what JSON can hold; bytes that are not UTF-8 become `{"base64":
    "…"}`.

    Args:
        message: of a topic of whatever kind.
        value: what JSON holds for its value, where that is known.
    """
    return {
        "key": json_value(message.key),
        "value": json_value(message.value) if value is None else value,
        "headers": json_value(message.headers),
        "timestamp": iso_us(message.timestamp_us),
        "partition": message.partition,
        "offset": message.offset,
        "write_partition": message.write_partition,
        "producer_id": message.producer_id,
        "epoch": message.epoch,
        "sequence": message.sequence,
        "position": message.position,
    }


def object_records(reader: BatchReader) -> Iterator[dict[str, Any]]:
    """Yield the LogMessages of an object, which does not know at which offset it was published."""
    metadata, entries = reader.metadata, reader.entries
    # Nothing else that a notification tells is in a LogMessage.
    told: dict[str, Any] = dict.fromkeys(Notification.__struct_fields__)
    told |= {"topic": metadata.topic, "write_partition": metadata.write_partition}
    about = Notification(**told)
    for position, entry in enumerate(entries):
        sections = arrange([(entry, reader.read(position))], reader.schema, "none")
        batch = Batch(about, -1, -1, reader.schema, sections)
        batch.time_column = metadata.time_column
        for message in batch:
            found = json_object(message)
            del found["partition"], found["offset"]
            yield found


def json_value(value: Any) -> Any:
    """Convert a value without bytes at any depth; the encoder itself has a text for times and
    decimals.
    """
    match value:
        case float() if not math.isfinite(value):  # JSON has no such numbers
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case bytes():
            return _text_or_base64(value)
        case datetime() if value.tzinfo is not None:  # an offset of long ago has seconds
            return value.astimezone(UTC)
        case dict():
            return {name: json_value(item) for name, item in value.items()}
        case list() | tuple():
            return [json_value(item) for item in value]
        case _:
            return value


def _text_or_base64(value: bytes) -> str | dict[str, str]:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def bytes_of(array: pa.LargeBinaryArray) -> memoryview:
    """Return all values of an array as one buffer."""
    _, offsets, data = array.buffers()
    bounds = memoryview(offsets).cast("B").cast("q")
    first, last = bounds[array.offset], bounds[array.offset + len(array)]
    return memoryview(data)[first:last]


# -- lines of Batches ------------------------------------------------------------------------


class Lines(NamedTuple):
    """What is printed.

    Attributes:
        of: makes the lines of a Batch.
        header: stands before all of them.
    """

    of: Callable[[Batch], Iterable[bytes | memoryview]]
    header: bytes = b""


def lines_of(
    form: LineFormat, schema: pa.Schema, key_separator: bytes | None = None, *, named: bool = False
) -> Lines:
    """Make the formatter that turns Batches of a topic into lines.

    Args:
        form: of the lines.
        schema: of the topic, as it is now.
        key_separator: for raw lines with their keys; None for values alone.
        named: JSON says the topic.

    Raises:
        InvalidRequestError: the topic has no such form; and so may what makes the lines.
    """
    if form == "csv":
        return _csv_lines(schema)
    if form == "json":
        plain = schema.equals(DEFAULT_SCHEMA)

        def objects(batch: Batch) -> Iterator[dict[str, Any]]:
            found = map(json_object, batch) if plain else _rows_as_json(batch)
            return ({"topic": batch.topic} | each for each in found) if named else found

        return Lines(lambda batch: json_lines(objects(batch)))
    return Lines(
        lambda batch: raw_lines((section.rows for section in batch.sections), key_separator)
    )


def _rows_as_json(batch: Batch) -> Iterator[dict[str, Any]]:
    """Yield the LogMessages of a typed topic, whose rows become JSON as in an export."""
    written = _Written("jsonl", batch.schema)
    for section in batch.sections:
        origins = zip(
            timestamps_us(section.rows, batch.time_column),
            repeat(batch.topic),
            repeat(batch.partition),
            repeat(batch.offset),
            repeat(batch.notification.write_partition),
            *section[1:],
            strict=False,
        )
        *values, _ = written.of(section.rows).split(b"\n")
        for value, origin in zip(values, origins, strict=False):
            yield json_object(LogMessage(None, None, None, *origin), msgspec.Raw(value))


def _csv_lines(schema: pa.Schema) -> Lines:
    """CSV with one header for all Batches."""
    written = _Written("csv", schema)
    return Lines(
        lambda batch: (written.of(_widened(section.rows, schema)) for section in batch.sections),
        written.taken(),
    )


class _Written:
    """What an export would write of some rows.

    Args:
        form: of the export.
        schema: of the rows.
    """

    def __init__(self, form: Literal["csv", "jsonl"], schema: pa.Schema) -> None:
        self._buffer = io.BytesIO()
        self._sink = open_sink(form, self._buffer, schema)

    def of(self, rows: pa.RecordBatch) -> bytes:
        """Write these rows and return the bytes."""
        self._sink.write(rows)
        return self.taken()

    def taken(self) -> bytes:
        """Take what was written since the last call."""
        data = self._buffer.getvalue()
        self._buffer.seek(0)
        self._buffer.truncate()
        return data


def _widened(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows of an older schema, with null for what it lacks.

    Raises:
        InvalidRequestError: they have a column that the schema lacks.
    """
    grown = [name for name in rows.schema.names if name not in schema.names]
    if grown:
        raise InvalidRequestError(
            f"the schema of the topic has grown by column {grown[0]!r}, which is not in the first "
            "line; start over"
        )
    return conformed(rows, schema, "a Batch")


# -- files ----------------------------------------------------------------------------------


class Sink(Protocol):
    """Takes the rows of one file."""

    def write(self, rows: pa.RecordBatch) -> None:
        """Take rows; their bytes may be written later."""

    def close(self) -> None:
        """Write what is left of the file; the file itself stays open."""


def open_sink(form: FileFormat, file: IO[bytes], schema: pa.Schema) -> Sink:
    """Open a writer of rows of a schema to a file.

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
            write_whole(self._file, _encoder.encode_lines(objects))

    def close(self) -> None:
        pass


_SINKS: dict[FileFormat, Callable[[IO[bytes], pa.Schema], Sink]] = {
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
    lines = _encoder.encode_lines([json_value(value) for value in plain.to_pylist()])
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
    """Format one cell of CSV: text as it is, all else as JSON."""
    plain = msgspec.to_builtins(value)
    return plain if plain is None or isinstance(plain, str) else _encoder.encode(plain).decode()


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
