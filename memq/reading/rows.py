"""Reading the Batches of a plan, a few at a time, and their rows with the columns wanted."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import pyarrow as pa

from memq.core.format.schema import ORIGIN_COLUMNS, ORIGINS
from memq.errors import InvalidRequestError, SchemaMismatchError
from memq.reading.objects import map_ahead

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from memq.core.format.index import IndexEntry
    from memq.core.notification import PublishedBatch
    from memq.reading.batch import Batch
    from memq.reading.log import TopicLog
    from memq.reading.objects import BatchSource, FetchedBatch
    from memq.reading.plan import EventTimes, Piece, ReadPlan

T = TypeVar("T")

FETCHES = 4  # Batches fetched, or waiting to be taken, at a time
FETCH_BYTES = 128 << 20  # of their objects in sum; a larger one is fetched by itself


class RowsOfBatch(NamedTuple):
    """What a read takes of a Batch.

    Attributes:
        batch: the Batch.
        rows: of the wanted times and columns.
    """

    batch: PublishedBatch
    rows: list[pa.RecordBatch]


async def read_batches(
    topic: TopicLog,
    source: BatchSource,
    plan: ReadPlan,
    pieces: Sequence[Piece],
    work: Callable[[FetchedBatch], T],
) -> AsyncGenerator[tuple[PublishedBatch, T], None]:
    """Read Batches of a plan, in the order of the pieces, a few at a time.

    Close it (`contextlib.aclosing`) when it is left before its end.

    Args:
        topic: the topic.
        source: of its Batches.
        plan: that the pieces are of.
        pieces: what to read.
        work: is done on each Batch, in a thread of the source.

    Returns:
        Each Batch with what the work gave.

    Raises:
        OffsetOutOfRangeError: retention has removed some of it.
        DataLossError: a Batch is gone that should be there.
        CorruptDataError: a Batch is damaged.
        MemqError: brokers or storage failed.
    """

    async def read(batch: PublishedBatch) -> T:
        return await source.run(work, await source.fetch(batch))

    async with (
        aclosing(topic.batches([each.range for each in pieces])) as batches,
        aclosing(map_ahead(read, batches, FETCH_BYTES, _weight, plan.reads)) as found,
    ):
        async for each in found:
            yield each


def _weight(batch: PublishedBatch) -> int:
    return max(batch.notification.size_bytes, FETCH_BYTES // FETCHES)


def chosen_columns(
    schema: pa.Schema, columns: Sequence[str] | None, *, metadata: bool
) -> pa.Schema:
    """Return the schema of rows with the columns wanted, for a topic's schema.

    Raises:
        InvalidRequestError: there is no such column, or the topic has one of `ORIGIN_COLUMNS`.
    """
    offered = _with_origins(schema) if metadata else schema
    if columns is None:
        return offered
    unknown = [name for name in columns if name not in offered.names]
    if unknown:
        raise InvalidRequestError(f"no column {unknown[0]!r}; there are {', '.join(offered.names)}")
    return pa.schema([offered.field(name) for name in columns])


def rows_of_batch(
    fetched: FetchedBatch, *, schema: pa.Schema, times: EventTimes | None, metadata: bool
) -> list[pa.RecordBatch]:
    """Return the rows of a Batch that have one of the times, with the columns of a schema.

    Raises:
        SchemaMismatchError: a column is of another type.
    """
    kept = []
    for entry, rows in zip(fetched.entries, fetched.rows, strict=True):
        named = _with_origin(fetched.batch, entry, rows) if metadata else rows
        wanted = named if times is None else times.select(named)
        if wanted.num_rows:
            kept.append(conformed(wanted, schema, repr(fetched.batch)))
    # Each RecordBatch costs its reader: those of small Messages are put together.
    table: pa.Table = pa.Table.from_batches(kept, schema=schema)
    return list(table.combine_chunks().to_batches())


def conformed(rows: pa.RecordBatch, schema: pa.Schema, source: object) -> pa.RecordBatch:
    """Return the rows with the columns of `schema`; those that they do not have are nulls.

    Raises:
        SchemaMismatchError: a column is of another type.
    """
    if rows.schema.equals(schema):
        return rows
    columns = []
    for field in schema:
        position = rows.schema.get_field_index(field.name)
        if position < 0:
            columns.append(pa.nulls(rows.num_rows, field.type))
        elif rows.schema.types[position] == field.type:
            columns.append(rows.column(position))
        else:
            raise SchemaMismatchError(
                f"{source} has a column {field.name!r} of type {rows.schema.types[position]}, and "
                f"the topic has {field.type}"
            )
    return pa.record_batch(columns, schema=schema)


def _with_origin(batch: Batch, entry: IndexEntry, rows: pa.RecordBatch) -> pa.RecordBatch:
    same_for_all = (
        batch.partition,
        batch.offset,
        batch.notification.batch_id,
        batch.notification.write_partition,
        entry.producer_id,
        entry.epoch,
        entry.sequence,
    )
    count = rows.num_rows
    origins = [
        pa.repeat(pa.scalar(value, field.type), count)
        for value, field in zip(same_for_all, ORIGINS, strict=False)
    ]
    positions = pa.array(range(count), pa.int64())
    return pa.record_batch([*rows.columns, *origins, positions], schema=_with_origins(rows.schema))


def _with_origins(schema: pa.Schema) -> pa.Schema:
    taken = sorted(set(schema.names) & set(ORIGIN_COLUMNS))
    if taken:
        raise InvalidRequestError(
            f"the topic has a column {taken[0]!r} of its own; read without metadata"
        )
    return pa.schema([*schema, *ORIGINS])
