"""The lines that `memq consume` prints of each Batch, in each format."""

from __future__ import annotations

import io
from itertools import repeat
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from memq.cli.export_formats import open_sink
from memq.cli.lines import json_lines, json_object, raw_lines
from memq.core.format.schema import DEFAULT_SCHEMA
from memq.errors import InvalidRequestError
from memq.reading.batch import LogMessage, timestamps_us
from memq.reading.rows import conformed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa

    from memq.reading.batch import Batch

Format = Literal["raw", "json", "csv"]


class Lines(NamedTuple):
    """What is printed.

    Attributes:
        of: makes the lines of a Batch.
        header: stands before all of them.
    """

    of: Callable[[Batch], Iterable[bytes | memoryview]]
    header: bytes = b""


def lines_of(form: Format, schema: pa.Schema, key_separator: bytes | None = None) -> Lines:
    """What makes lines of the Batches of a topic.

    Args:
        form: of the lines.
        schema: of the topic, as it is now.
        key_separator: for raw lines with their keys; None for values alone.

    Raises:
        InvalidRequestError: the topic has no such form; and so may what makes the lines.
    """
    if form == "csv":
        return _csv_lines(schema)
    if form == "json" and schema.equals(DEFAULT_SCHEMA):
        return Lines(lambda batch: json_lines(map(json_object, batch)))
    if form == "json":
        return Lines(lambda batch: json_lines(_rows_as_json(batch)))
    return Lines(
        lambda batch: raw_lines((section.rows for section in batch.sections), key_separator)
    )


def _rows_as_json(batch: Batch) -> Iterator[dict[str, Any]]:
    """The LogMessages of a typed topic, whose rows become JSON as in an export."""
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
        """What is written of these rows."""
        self._sink.write(rows)
        return self.taken()

    def taken(self) -> bytes:
        """What was written since it was taken last."""
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
            "line; begin anew"
        )
    return conformed(rows, schema, "a Batch")
