"""`view=messages`: one row for each Message of a range, in place of its records.

It answers what a range holds and in which state: counts, sizes, checksums, repeats, damage. Rows
come from the indexes of the Batches alone when neither `status` nor `error` is among the columns;
otherwise every Message is read and checked as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyspark.sql.types import (
    DataType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
)

from memq.core.format.message import UNKNOWN_RANGE
from memq.spark.columns import exactly

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from memq.core.format.index import IndexEntry
    from memq.spark.plan import Piece, StoredBatch

OK, REPEAT, DAMAGED, MISSING = "ok", "repeat", "damaged", "missing"
"""States of a Message: read and sound; one that came before, and is not read; damaged; its object
is gone."""

MESSAGE_COLUMNS: dict[str, DataType] = {
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "batch": StringType(),
    "write_partition": IntegerType(),
    "producer_id": StringType(),
    "epoch": LongType(),
    "sequence": LongType(),
    "records": LongType(),
    "bytes": LongType(),
    "crc32c": LongType(),
    "min_timestamp": TimestampType(),
    "max_timestamp": TimestampType(),
    "status": StringType(),
    "error": StringType(),
}
"""Columns of the view. What only an index can tell is null where the index cannot be read."""

NEVER_NULL = frozenset({"topic", "partition", "offset", "batch", "write_partition", "status"})
"""Columns that every row has."""

CHECKED = frozenset({"status", "error"})
"""Columns that cannot be told without reading the Messages."""


class State(NamedTuple):
    """One Message and how it was found."""

    entry: IndexEntry
    status: str
    error: str | None = None


def state_rows(
    target: pa.Schema, topic: str, batch: StoredBatch, states: Iterable[State]
) -> pa.RecordBatch:
    """Rows for Messages of a Batch whose index was read.

    Args:
        target: the columns.
        topic: the topic.
        batch: that holds them.
        states: of the Messages.
    """
    rows = []
    for entry, status, error in states:
        times = (entry.min_timestamp_us, entry.max_timestamp_us)
        least, greatest = (None, None) if times == UNKNOWN_RANGE else times
        rows.append(
            _origin(topic, batch)
            | {
                "producer_id": entry.producer_id,
                "epoch": entry.epoch,
                "sequence": entry.sequence,
                "records": entry.records,
                "bytes": entry.length,
                "crc32c": entry.crc32c,
                "min_timestamp": least,
                "max_timestamp": greatest,
                "status": status,
                "error": error,
            }
        )
    return _record_batch(target, rows)


def unread_rows(
    target: pa.Schema, topic: str, piece: Piece, status: str, error: str
) -> pa.RecordBatch:
    """Rows for Messages of which only the notification speaks."""
    names = list(_names(piece.batch))[piece.first : piece.last]
    origin = _origin(topic, piece.batch) | {"status": status, "error": error}
    rows = [
        origin | {"producer_id": producer_id, "epoch": epoch, "sequence": sequence}
        for producer_id, epoch, sequence in names
    ]
    return _record_batch(target, rows)


def _names(batch: StoredBatch) -> Iterator[tuple[str, int, int]]:
    for run in batch.producers:
        for sequence in range(run.first, run.last + 1):
            yield run.producer_id, run.epoch, sequence


def _origin(topic: str, batch: StoredBatch) -> dict[str, Any]:
    return {
        "topic": topic,
        "partition": batch.partition,
        "offset": batch.offset,
        "batch": batch.batch_id,
        "write_partition": batch.write_partition,
    }


def _record_batch(target: pa.Schema, rows: list[dict[str, Any]]) -> pa.RecordBatch:
    columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in target]
    return exactly(columns, target)
