"""Reading exactly the Batches in a range of offsets, with no group and nothing remembered.

A Batch never changes, so a range names the same data for ever, until retention removes it. The rows
come in the order of offsets, and within a Batch as they stand in it. A Message that stands at two
offsets of the range is read once.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from memq.client.cluster import Cluster
from memq.client.duplicates import DuplicateWindow
from memq.client.objects import BatchSource, FetchedBatch, map_ahead
from memq.client.sync import EventLoopThread
from memq.client.topic import TopicClient
from memq.core.format.envelope import ARROW_ERRORS
from memq.core.format.schema import deserialize_schema
from memq.core.ranges import OffsetRange
from memq.errors import InvalidRequestError, RequestTimeoutError, SchemaMismatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memq.client.batch import Batch
    from memq.client.objects import ReadThrough
    from memq.core.format.index import IndexEntry

FETCHES = 4  # Batches fetched at a time; the table has them all in the end
TIMEOUT_S = 300.0  # a gigabyte over a slow link

ORIGIN_COLUMNS = (
    "partition",
    "offset",
    "batch",
    "write_partition",
    "producer_id",
    "epoch",
    "sequence",
    "position",
)
"""Columns that `metadata=True` adds: read partition, offset and id of the Batch; write partition,
sender and sequence of the Message; position of the LogMessage in it. The last five name it."""


_ORIGINS = [
    pa.field(name, kind)
    for name, kind in zip(
        ORIGIN_COLUMNS,
        (
            pa.int32(),
            pa.int64(),
            pa.utf8(),
            pa.int32(),
            pa.utf8(),
            pa.int64(),
            pa.int64(),
            pa.int64(),
        ),
        strict=True,
    )
]


class _Shape(NamedTuple):
    """Which columns are wanted."""

    columns: Sequence[str] | None
    metadata: bool

    def of(self, schema: pa.Schema) -> pa.Schema:
        """The schema of the result for a topic's schema."""
        offered = _with_origins(schema) if self.metadata else schema
        if self.columns is None:
            return offered
        unknown = [name for name in self.columns if name not in offered.names]
        if unknown:
            raise InvalidRequestError(
                f"no column {unknown[0]!r}; there are {', '.join(offered.names)}"
            )
        return pa.schema([offered.field(name) for name in self.columns])


class BatchOfRange(NamedTuple):
    """A Batch, and the positions of its Messages that are duplicates."""

    fetched: FetchedBatch
    duplicates: frozenset[int]


def read_range(
    bootstrap: str | None = None,
    *,
    topic: str,
    partition: int,
    start: int,
    end: int,
    incarnation: str = "",
    columns: Sequence[str] | None = None,
    metadata: bool = False,
    read_through: ReadThrough = "storage",
    token: str = "",
    timeout: float = TIMEOUT_S,
) -> pa.Table:
    """The rows of the Batches from offset `start` up to, not including, `end`.

    Args:
        bootstrap: comma separated `host:port` of some brokers; None for those of `MEMQ_BOOTSTRAP`,
            of the profile, or else 127.0.0.1:6367.
        topic: the topic.
        partition: read partition.
        start: first offset.
        end: one past the last offset.
        incarnation: of the topic, from `AdminClient.describe_topic`; empty for whichever there is.
        columns: names of the columns wanted; None for all.
        metadata: add the columns `ORIGIN_COLUMNS`.
        read_through: "storage", or "broker" for machines that cannot reach the storage.
        token: credential; empty where the brokers ask for none.
        timeout: seconds that all of it may take.

    Returns:
        A table with the columns of the topic's schema. When the schema grew within the range, rows
        from before have nulls in the columns that were added.

    Raises:
        InvalidRequestError: there is no such partition or column, or the range is not one.
        OffsetOutOfRangeError: some of the offsets are not retained; the message says which are.
        DataLossError: a Batch is gone that should be there.
        CorruptDataError: a Batch is damaged.
        UnknownTopicError: there is no such topic.
        TopicRecreatedError: the topic is of another incarnation.
        RequestTimeoutError: it takes longer than `timeout`.
        MemqError: brokers or storage failed for the whole request timeout.
    """
    wanted = OffsetRange(partition, start, end, incarnation)
    if any(type(number) is not int for number in wanted[:3]):
        raise InvalidRequestError(f"{topic} {wanted}: all must be whole numbers, 0 or more")
    shape = _Shape(columns, metadata)
    cluster = Cluster(bootstrap, token=token)
    loop = EventLoopThread("memq-read-range")
    try:
        return loop.run(_read(cluster, topic, wanted, shape, read_through, timeout_s=timeout))
    finally:
        loop.close()


async def _read(
    cluster: Cluster,
    name: str,
    wanted: OffsetRange,
    shape: _Shape,
    read_through: ReadThrough,
    *,
    timeout_s: float,
) -> pa.Table:
    executor = cluster.runtime.threads(FETCHES, "memq-fetch")
    try:
        async with asyncio.timeout(timeout_s):
            info = await cluster.topic(name)
            topic = TopicClient(cluster, name, wanted.incarnation)
            schema = shape.of(deserialize_schema(info.schemas[info.schema_id]))
            await topic.check_retained(wanted)
            source = BatchSource(topic, executor, read_through=read_through)
            found = await fetch_range(topic, wanted, source)
            tables = [_table(each, metadata=shape.metadata) for each in found]
            return _concat(schema, tables)
    except TimeoutError as exc:
        raise RequestTimeoutError(f"{name} {wanted} was not read within {timeout_s:g} s") from exc
    finally:
        await cluster.close()
        executor.shutdown(wait=False, cancel_futures=True)


async def fetch_range(
    topic: TopicClient, wanted: OffsetRange, source: BatchSource
) -> list[BatchOfRange]:
    """The Batches of a range in the order of their offsets, a few fetched at a time.

    Raises:
        MemqError: as `read_range`.
    """
    async with (
        aclosing(topic.batches([wanted])) as published,
        aclosing(map_ahead(source.fetch, published, FETCHES)) as batches,
    ):
        fetched = [each async for _, each in batches]
    window = DuplicateWindow(sum(len(each.entries) for each in fetched))  # none may be forgotten
    return [BatchOfRange(each, frozenset(_duplicates(window, each))) for each in fetched]


def _duplicates(window: DuplicateWindow, fetched: FetchedBatch) -> list[int]:
    batch = fetched.batch
    place = (batch.partition, batch.offset)
    return window.find(place, batch.notification.write_partition, fetched.entries)


# -- from Batches to one table --------------------------------------------------------------


def _table(found: BatchOfRange, *, metadata: bool) -> pa.Table:
    """The rows of a Batch, with their origins if they are wanted."""
    fetched, duplicates = found
    kept = [
        (entry, rows)
        for number, (entry, rows) in enumerate(zip(fetched.entries, fetched.rows, strict=True))
        if number not in duplicates
    ]
    schema = fetched.batch.schema
    if not metadata:
        return pa.Table.from_batches([rows for _, rows in kept], schema=schema)
    columns = [_with_origin(fetched.batch, entry, rows) for entry, rows in kept]
    return pa.Table.from_batches(columns, schema=_with_origins(schema))


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
        for value, field in zip(same_for_all, _ORIGINS, strict=False)
    ]
    positions = pa.array(range(count), pa.int64())
    return pa.record_batch([*rows.columns, *origins, positions], schema=_with_origins(rows.schema))


def _with_origins(schema: pa.Schema) -> pa.Schema:
    taken = sorted(set(schema.names) & set(ORIGIN_COLUMNS))
    if taken:
        raise InvalidRequestError(
            f"the topic has a column {taken[0]!r} of its own; read without metadata"
        )
    return pa.schema([*schema, *_ORIGINS])


def _concat(schema: pa.Schema, tables: list[pa.Table]) -> pa.Table:
    """All rows with the columns of `schema`; those that a table does not have are nulls."""
    wanted = set(schema.names)
    chosen = [
        table.select([name for name in table.column_names if name in wanted]) for table in tables
    ]
    try:
        table = pa.concat_tables([schema.empty_table(), *chosen], promote_options="default")
    except ARROW_ERRORS as exc:
        raise SchemaMismatchError(f"Batches of the range have schemas that differ: {exc}") from exc
    return table.select(schema.names)
