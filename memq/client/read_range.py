"""Reading exactly the records of some offsets or times, with no group and nothing remembered.

A Batch never changes, so a range of offsets names the same data for ever, until retention removes
it. What a read reads is planned before its first row (`memq.reading.plan`). The rows come by
read partition, in the order of offsets, and within a Batch as they stand in it.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, TypeVar

import pyarrow as pa

from memq.client.cluster import Cluster
from memq.client.scan import Scan
from memq.client.sync import EventLoopThread, SyncClient, sync, sync_close, sync_iter, sync_property
from memq.client.topic import TopicClient
from memq.core.defaults import READ_TIMEOUT_S
from memq.core.format.schema import ORIGIN_COLUMNS, ORIGINS, deserialize_schema
from memq.core.units import parse_time
from memq.errors import ConfigError, InvalidRequestError, RequestTimeoutError, SchemaMismatchError
from memq.reading.log import check_retained
from memq.reading.objects import BatchSource, map_ahead
from memq.reading.plan import Selection, plan_read
from memq.runtime.system import SYSTEM

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence
    from typing import Self, Unpack

    from memq.client.cluster import ClusterArguments
    from memq.core.format.index import IndexEntry
    from memq.core.named_values import GivenValues
    from memq.core.notification import PublishedBatch
    from memq.core.wire.messages import PartitionOffsets
    from memq.reading.batch import Batch
    from memq.reading.objects import FetchedBatch, ReadThrough
    from memq.reading.plan import EventTimes, Piece, ReadPlan

T = TypeVar("T")

FETCHES = 4  # Batches fetched, or waiting to be taken, at a time
FETCH_BYTES = 128 << 20  # of their objects in sum; a larger one is fetched by itself
JOINED_BYTES = 1 << 20  # smaller Messages of a Batch become one RecordBatch of about this size


class RowsOfBatch(NamedTuple):
    """What a read takes of a Batch.

    Attributes:
        batch: the Batch.
        rows: of the wanted times and columns.
    """

    batch: PublishedBatch
    rows: list[pa.RecordBatch]


async def read_batches(
    topic: TopicClient,
    source: BatchSource,
    plan: ReadPlan,
    pieces: Sequence[Piece],
    work: Callable[[FetchedBatch], T],
) -> AsyncGenerator[tuple[PublishedBatch, T | None], None]:
    """Read Batches of a plan, in the order of the pieces, a few at a time.

    Close it (`contextlib.aclosing`) when it is left before its end.

    Args:
        topic: the topic.
        source: of its Batches.
        plan: that the pieces are of.
        pieces: what to read.
        work: is done on each Batch, in a thread of the source.

    Returns:
        Each Batch with what the work gave; None where its index says that it has none of the times.

    Raises:
        OffsetOutOfRangeError: retention has removed some of it.
        DataLossError: a Batch is gone that should be there.
        CorruptDataError: a Batch is damaged.
        MemqError: brokers or storage failed.
    """

    async def read(batch: PublishedBatch) -> T | None:
        times = plan.times
        # Those that do not overlap were planned for Messages of unknown times, which few have.
        if times and not times.overlap(batch.notification) and await source.times_are_known(batch):
            return None
        fetched = await source.fetch(batch)
        return await source.run(work, fetched)

    async with (
        aclosing(_wanted(topic, plan, pieces)) as wanted,
        aclosing(map_ahead(read, wanted, FETCH_BYTES, _weight)) as found,
    ):
        async for each in found:
            yield each


async def _wanted(
    topic: TopicClient, plan: ReadPlan, pieces: Sequence[Piece]
) -> AsyncGenerator[PublishedBatch, None]:
    async with aclosing(topic.batches([each.range for each in pieces])) as batches:
        async for batch in batches:
            if plan.reads(batch):
                yield batch


def _weight(batch: PublishedBatch) -> int:
    return max(batch.notification.size_bytes, FETCH_BYTES // FETCHES)


class AsyncTopicReader:
    """Reads the rows of a topic by offset or time: first `plan`, then `rows`.

    Use it with `async with`: it is opened by entering it.

    Args:
        bootstrap: comma separated `host:port` of some brokers; None for those of `MEMQ_BOOTSTRAP`,
            of the profile, or else 127.0.0.1:6367.
        topic: the topic.
        incarnation: of the topic; empty for whichever there is.
        columns: names of the columns wanted; None for all.
        metadata: add the columns `ORIGIN_COLUMNS`.
        read_through: "storage", or "broker" for machines that cannot reach the storage.
        token: credential; empty where the brokers ask for none.
        zone: where this reader runs; empty for that of `MEMQ_ZONE`, or of the profile.
        storage_options: of the object store, as a table or as "NAME=VALUE,NAME=VALUE"; none for
            those of `MEMQ_STORAGE_OPTIONS`, or of the profile.
        client: names this reader in the brokers' logs.
        schema_id: schema of the topic that the rows are to have; empty for the newest.
        limit: rows that `rows` gives at most.

    Attributes:
        schema: of the rows.
        schema_id: of the topic's schema that it is made from.
    """

    schema: pa.Schema
    schema_id: str

    def __init__(
        self,
        bootstrap: str | None = None,
        *,
        topic: str,
        incarnation: str = "",
        columns: Sequence[str] | None = None,
        metadata: bool = False,
        read_through: ReadThrough = "storage",
        schema_id: str = "",
        limit: float = math.inf,
        **cluster: Unpack[ClusterArguments],
    ) -> None:
        self._cluster = Cluster(bootstrap, **cluster)
        self._topic = TopicClient(self._cluster, topic, incarnation)
        self._executor = self._cluster.runtime.threads(FETCHES, "memq-fetch")
        self._source = BatchSource(self._topic, self._executor, read_through=read_through)
        self._columns, self._metadata, self._limit = columns, metadata, limit
        self.schema_id = schema_id

    def __repr__(self) -> str:
        return f"<AsyncTopicReader of {self._topic.topic}>"

    async def __aenter__(self) -> Self:
        try:
            self._info = await self._topic.info()
            self.schema_id = self.schema_id or self._info.schema_id
            self.schema = self._choose(deserialize_schema(self._info.schemas[self.schema_id]))
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; what is being fetched is given up."""
        await self._cluster.close()
        self._executor.shutdown(wait=False, cancel_futures=True)

    @property
    def incarnation(self) -> str:
        """Of the topic."""
        return self._topic.incarnation

    async def offsets(self) -> list[PartitionOffsets]:
        """Start and end of every read partition.

        Raises:
            MemqError: the brokers failed.
        """
        return await self._topic.offsets()

    async def plan(self, selection: Selection, *, piece_bytes: float = math.inf) -> ReadPlan:
        """Settle what `rows` is to read.

        Args:
            selection: what is wanted.
            piece_bytes: stored bytes after which a piece ends.

        Raises:
            ConfigError: a time has no time zone.
            InvalidRequestError: there is no such partition, the range is none, or records of the
                topic have no time.
            OffsetOutOfRangeError: some of the offsets are not retained, or not published yet.
            MemqError: brokers or storage failed.
        """
        return await plan_read(self._topic, selection, piece_bytes=piece_bytes)

    async def check_retained(self, pieces: Sequence[Piece]) -> None:
        """Make sure that pieces can be read in full.

        Raises:
            OffsetOutOfRangeError: retention has removed some of them.
            TopicRecreatedError: the topic was deleted and recreated.
            MemqError: the brokers failed.
        """
        retained = await self._topic.offsets()
        for piece in pieces:
            check_retained(self._topic.topic, piece.range, retained)

    async def rows(
        self, plan: ReadPlan, pieces: Sequence[Piece] | None = None
    ) -> AsyncGenerator[RowsOfBatch, None]:
        """The rows of each Batch of a plan, by partition and offset, with bounded memory.

        Close it (`contextlib.aclosing`) when it is left before its end.

        Args:
            plan: from `plan`.
            pieces: of the plan; None for all.

        Raises:
            OffsetOutOfRangeError: retention has removed some of it meanwhile.
            DataLossError: a Batch is gone that should be there.
            CorruptDataError: a Batch is damaged.
            SchemaMismatchError: a Batch has other types than the topic.
            MemqError: brokers or storage failed.
        """
        # A plan that was written down says nothing of the column.
        times = plan.times and plan.times.of_topic(self._info)

        wanted = plan.pieces if pieces is None else pieces
        rows_of = partial(self._rows, times=times)
        reading = read_batches(self._topic, self._source, plan, wanted, rows_of)
        async with aclosing(reading) as batches:
            left = self._limit
            async for batch, rows in batches:
                kept = []
                for each in rows or ():
                    kept.append(each.slice(0, int(min(left, len(each)))))
                    left -= len(kept[-1])
                yield RowsOfBatch(batch, kept)
                if left <= 0:
                    return

    def _choose(self, schema: pa.Schema) -> pa.Schema:
        """The schema of the rows for the topic's schema."""
        offered = _with_origins(schema) if self._metadata else schema
        if self._columns is None:
            return offered
        unknown = [name for name in self._columns if name not in offered.names]
        if unknown:
            raise InvalidRequestError(
                f"no column {unknown[0]!r}; there are {', '.join(offered.names)}"
            )
        return pa.schema([offered.field(name) for name in self._columns])

    def _rows(self, fetched: FetchedBatch, times: EventTimes | None) -> list[pa.RecordBatch]:
        kept = []
        for entry, rows in zip(fetched.entries, fetched.rows, strict=True):
            named = _with_origin(fetched.batch, entry, rows) if self._metadata else rows
            wanted = named if times is None else times.select(named)
            if wanted.num_rows:
                kept.append(wanted)
        return _joined([conformed(rows, self.schema, repr(fetched.batch)) for rows in kept])


class TopicReader(SyncClient[AsyncTopicReader]):
    """An `AsyncTopicReader` for threads; it is opened when it is made. Use it with `with`.

    Args:
        reader: not opened yet.
    """

    def __init__(self, reader: AsyncTopicReader) -> None:
        super().__init__(reader, EventLoopThread("memq-read"))

    schema: pa.Schema = sync_property(AsyncTopicReader, "schema")
    schema_id: str = sync_property(AsyncTopicReader, "schema_id")
    incarnation: str = sync_property(AsyncTopicReader, "incarnation")
    close = sync_close(AsyncTopicReader.close)
    offsets = sync(AsyncTopicReader.offsets)
    plan = sync(AsyncTopicReader.plan)
    check_retained = sync(AsyncTopicReader.check_retained)
    rows = sync_iter(AsyncTopicReader.rows)


# -- what users call ------------------------------------------------------------------------


class ReadArguments(TypedDict, total=False):
    """The keyword arguments of a read; without any it reads all that is retained.

    Attributes:
        partition: read partition; None for all.
        start: first offset, with a partition; or a time, as `start_time`; None for the first that
            is retained.
        end: one past the last offset, with a partition; or a time; None for what is published by
            now.
        start_time: records of this time or later, by the topic's `time_column`: a datetime with a
            time zone, or text such as "2025-06-30T12:00Z", or "1h" for an hour ago.
        end_time: records from before this time; likewise.
        limit: rows, at most: the first by partition and offset; None for all.
        incarnation: of the topic, from `AdminClient.describe_topic`; empty for whichever there is.
        columns: names of the columns wanted; None for all.
        metadata: add the columns `ORIGIN_COLUMNS`.
        read_through: "storage", or "broker" for machines that cannot reach the storage.
        token: credential; empty where the brokers ask for none.
        zone: where this reader runs; empty for that of `MEMQ_ZONE`, or of the profile.
        storage_options: of the object store, as a table or as "NAME=VALUE,NAME=VALUE"; none for
            those of `MEMQ_STORAGE_OPTIONS`, or of the profile.
    """

    partition: int | None
    start: int | str | datetime | None
    end: int | str | datetime | None
    start_time: datetime | str | None
    end_time: datetime | str | None
    limit: int | None
    incarnation: str
    columns: Sequence[str] | None
    metadata: bool
    read_through: ReadThrough
    token: str
    zone: str
    storage_options: GivenValues


def read_range(
    bootstrap: str | None = None,
    *,
    topic: str,
    timeout: float = READ_TIMEOUT_S,
    **options: Unpack[ReadArguments],
) -> pa.Table:
    """The records of some offsets, of some times, or all that are retained, as one table.

    Args:
        bootstrap: comma separated `host:port` of some brokers; None for those of `MEMQ_BOOTSTRAP`,
            of the profile, or else 127.0.0.1:6367.
        topic: the topic.
        timeout: seconds that all of it may take.
        **options: see `ReadArguments`.

    Returns:
        A table with the columns of the topic's schema, by partition and offset. When the schema
        grew within what is read, rows from before have nulls in the columns that were added.

    Raises:
        ConfigError: a time has no time zone, or there is no such option.
        InvalidRequestError: there is no such partition or column, the range is not one, or records
            of the topic have no time.
        OffsetOutOfRangeError: some of the offsets are not retained; the message says which are.
        DataLossError: a Batch is gone that should be there.
        CorruptDataError: a Batch is damaged.
        UnknownTopicError: there is no such topic.
        TopicRecreatedError: the topic is of another incarnation.
        RequestTimeoutError: it takes longer than `timeout`.
        MemqError: brokers or storage failed for the whole request timeout.
    """
    reader, selection = reader_of(bootstrap, topic, options)
    loop = EventLoopThread("memq-read")
    try:
        return loop.run(_read_table(reader, topic, selection, timeout))
    finally:
        loop.close()


async def _read_table(
    reader: AsyncTopicReader, topic: str, selection: Selection, timeout_s: float
) -> pa.Table:
    found = []
    try:
        async with asyncio.timeout(timeout_s), reader:
            plan = await reader.plan(selection)
            async with aclosing(reader.rows(plan)) as batches:
                async for each in batches:
                    found += each.rows
    except TimeoutError as exc:
        raise RequestTimeoutError(f"topic {topic!r} was not read within {timeout_s:g} s") from exc
    return pa.Table.from_batches(found, schema=reader.schema)


def scan(bootstrap: str | None = None, *, topic: str, **options: Unpack[ReadArguments]) -> Scan:
    """As `read_range`, for data of any size: RecordBatches that are read as they are asked for.

    A few Batches are read ahead, and no more is in memory, whatever the range holds. What is read
    is settled before this returns: what is published later is not part of it.

    Args:
        bootstrap: as in `read_range`, like all others.
        topic: the topic.
        **options: see `ReadArguments`.

    Returns:
        An Arrow stream for pyarrow, pandas, Polars, DuckDB; see `Scan`.

    Raises:
        MemqError: as `read_range`, also while rows are read; but there is no timeout of the whole.
            Retention that removes some of what is not read yet is an error.
    """
    opening, selection = reader_of(bootstrap, topic, options)
    reader = TopicReader(opening)
    try:
        plan = reader.plan(selection)
    except BaseException:
        reader.close()
        raise
    return Scan(
        reader.schema,
        lambda: (rows for each in reader.rows(plan) for rows in each.rows),
        reader.close,
    )


async def async_scan(
    bootstrap: str | None = None, *, topic: str, **options: Unpack[ReadArguments]
) -> AsyncGenerator[pa.RecordBatch, None]:
    """As `scan`, for asyncio; close it (`contextlib.aclosing`) when it is left before its end.

    What is read is settled when the first RecordBatch is asked for.

    Args:
        bootstrap: as in `read_range`, like all others.
        topic: the topic.
        **options: see `ReadArguments`.

    Raises:
        MemqError: as `scan`.
    """
    reader, selection = reader_of(bootstrap, topic, options)
    async with reader:
        plan = await reader.plan(selection)
        async with aclosing(reader.rows(plan)) as batches:
            async for each in batches:
                for rows in each.rows:
                    yield rows


def reader_of(
    bootstrap: str | None, topic: str, options: ReadArguments
) -> tuple[AsyncTopicReader, Selection]:
    """What reads, not opened yet, and what is to be read.

    Raises:
        ConfigError: an option is unknown, or they do not go together.
    """
    reading: dict[str, Any] = {**options}
    unknown = sorted(reading.keys() - ReadArguments.__annotations__.keys())
    if unknown:
        known = ", ".join(sorted(ReadArguments.__annotations__))
        raise ConfigError(f"unknown option {unknown[0]!r} of a read; known are {known}")
    if (limit := reading.pop("limit", None)) is not None:
        if type(limit) is not int or limit < 0:
            raise ConfigError(f"limit = {limit!r}: must be a whole number, 0 or more")
        reading["limit"] = limit
    for side in ("start", "end"):
        time = f"{side}_time"
        if isinstance(reading.get(side), str | datetime):
            if reading.get(time) is not None:
                raise ConfigError(f"{side} and {time} are both times; give one of them")
            reading[time] = reading.pop(side)
        if isinstance(at := reading.get(time), str):
            reading[time] = parse_time(at, datetime.fromtimestamp(SYSTEM.wall_ns() / 10**9, UTC))
    selecting = {name: reading.pop(name) for name in Selection._fields if name in reading}
    selection = Selection(**selecting)
    selection.check(topic)
    return AsyncTopicReader(bootstrap, topic=topic, **reading), selection


# -- rows -----------------------------------------------------------------------------------


def _joined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The same rows with small RecordBatches put together: each costs whoever takes them."""
    joined: list[pa.RecordBatch] = []
    small: list[pa.RecordBatch] = []
    held = 0
    for rows in batches:
        small.append(rows)
        held += rows.nbytes
        if held >= JOINED_BYTES:
            joined.append(_concat(small))
            small, held = [], 0
    if small:
        joined.append(_concat(small))
    return joined


def _concat(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def conformed(rows: pa.RecordBatch, schema: pa.Schema, source: object) -> pa.RecordBatch:
    """The rows with the columns of `schema`; those that they do not have are nulls.

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
