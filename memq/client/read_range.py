"""Reading exactly the records of some offsets or times, with no group and nothing remembered.

A Batch never changes, so a range of offsets names the same data for ever, until retention removes
it. What a read reads is planned before its first row (`memq.reading.plan`). The rows come by
read partition, in the order of offsets, and within a Batch as they stand in it.
"""

from __future__ import annotations

import asyncio
import math
import weakref
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict

import pyarrow as pa

from memq.client.cluster import Cluster
from memq.client.sync import EventLoopThread, SyncClient, sync, sync_close, sync_iter, sync_property
from memq.client.topic import TopicClient
from memq.core.defaults import READ_TIMEOUT_S
from memq.core.format.schema import deserialize_schema
from memq.core.units import parse_time
from memq.errors import ConfigError, RequestTimeoutError
from memq.reading.objects import BatchSource
from memq.reading.plan import Selection, plan_read
from memq.reading.rows import FETCHES, RowsOfBatch, chosen_columns, read_batches, rows_of_batch
from memq.runtime.system import SYSTEM

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
    from typing import Self, Unpack

    from memq.client.cluster import ClusterArguments
    from memq.core.named_values import GivenValues
    from memq.core.wire.messages import PartitionOffsets
    from memq.reading.objects import ReadThrough
    from memq.reading.plan import Piece, ReadPlan


class AsyncTopicReader:
    """Reads the rows of a topic by offset or time: first `plan`, then `rows`.

    Use it with `async with`: it is opened by entering it.

    Args:
        bootstrap: comma separated `host:port` of some brokers; None for those of `MEMQ_BOOTSTRAP`,
            of the profile, or else 127.0.0.1:6367.
        topic: the topic.
        topic_id: of the topic; empty for whichever there is.
        columns: names of the columns wanted; None for all.
        metadata: add the columns `ORIGIN_COLUMNS`.
        read_through: "storage", or "broker" for machines that cannot reach the storage.
        token: credential; empty where the brokers ask for none.
        zone: where this reader runs; empty for that of `MEMQ_ZONE`, or of the profile.
        storage_options: of the object store, as a table or as "NAME=VALUE,NAME=VALUE"; none for
            those of `MEMQ_STORAGE_OPTIONS`, or of the profile.
        client: names this reader in the brokers' logs.
        limit: rows that `rows` gives at most.

    Attributes:
        schema: of the rows.
        schema_ids: of the Batches whose columns are all in it.
    """

    schema: pa.Schema
    schema_ids: frozenset[str]

    def __init__(
        self,
        bootstrap: str | None = None,
        *,
        topic: str,
        topic_id: str = "",
        columns: Sequence[str] | None = None,
        metadata: bool = False,
        read_through: ReadThrough = "storage",
        limit: float = math.inf,
        **cluster: Unpack[ClusterArguments],
    ) -> None:
        self._cluster = Cluster(bootstrap, **cluster)
        self._topic = TopicClient(self._cluster, topic, topic_id)
        self._executor = self._cluster.runtime.threads(FETCHES, "memq-fetch")
        self._source = BatchSource(self._topic, self._executor, read_through=read_through)
        self._columns, self._metadata, self._limit = columns, metadata, limit

    def __repr__(self) -> str:
        return f"<AsyncTopicReader of {self._topic.topic}>"

    async def __aenter__(self) -> Self:
        try:
            await self.refresh()
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

    async def refresh(self) -> None:
        """Look the topic up again: it may have gained columns.

        Raises:
            UnknownTopicError: there is no such topic any more.
            TopicRecreatedError: it was deleted and recreated.
            MemqError: the brokers failed.
        """
        info = await self._topic.info()
        offered = deserialize_schema(info.schemas[info.schema_id])
        self.schema = chosen_columns(offered, self._columns, metadata=self._metadata)
        self.schema_ids = frozenset(info.schemas)

    @property
    def topic_id(self) -> str:
        """Of the topic."""
        return self._topic.topic_id

    async def offsets(self, at_ms: int | None = None) -> list[PartitionOffsets]:
        """Start and end of every read partition, and the first offset published at `at_ms` or
        later.

        Raises:
            MemqError: the brokers failed.
        """
        return await self._topic.offsets(at_ms)

    async def lasting(self, ends: Mapping[int, int]) -> dict[int, int]:
        """Return these ends as far as they last, as `TopicClient.lasting` does."""
        return await self._topic.lasting(ends)

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

    async def rows(
        self, plan: ReadPlan, pieces: Sequence[Piece] | None = None
    ) -> AsyncGenerator[RowsOfBatch, None]:
        """Yield the rows of each Batch of a plan, by partition and offset, with bounded memory.

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
        wanted = plan.pieces if pieces is None else pieces
        rows_of = partial(
            rows_of_batch, schema=self.schema, times=plan.times, metadata=self._metadata
        )
        left = self._limit
        reading = read_batches(self._topic, self._source, plan, wanted, rows_of)
        async with aclosing(reading) as batches:
            async for batch, rows in batches:
                kept = []
                for each in rows:
                    kept.append(each.slice(0, int(min(left, len(each)))))
                    left -= len(kept[-1])
                yield RowsOfBatch(batch, kept)
                if left <= 0:
                    return


class TopicReader(SyncClient[AsyncTopicReader]):
    """An `AsyncTopicReader` for threads; it is opened when it is made. Use it with `with`.

    Args:
        reader: not opened yet.
    """

    def __init__(self, reader: AsyncTopicReader) -> None:
        super().__init__(reader, EventLoopThread("memq-read"))

    schema: pa.Schema = sync_property(AsyncTopicReader, "schema")
    schema_ids: frozenset[str] = sync_property(AsyncTopicReader, "schema_ids")
    topic_id: str = sync_property(AsyncTopicReader, "topic_id")
    close = sync_close(AsyncTopicReader.close)
    refresh = sync(AsyncTopicReader.refresh)
    offsets = sync(AsyncTopicReader.offsets)
    lasting = sync(AsyncTopicReader.lasting)
    plan = sync(AsyncTopicReader.plan)
    rows = sync_iter(AsyncTopicReader.rows)


class Scan:
    """Rows that were fixed when `scan` was called; every reading of it gives the same ones.

    Whatever takes an Arrow stream takes it: pyarrow, pandas, Polars, DuckDB. Iterate over it for
    RecordBatches. Close it, use it with `with`, or forget it: then its connections close.

    Args:
        schema: of the rows.
        rows: begins to read them; called for each reading.
        close: what they are read from.

    Attributes:
        schema: of the rows.
    """

    def __init__(
        self,
        schema: pa.Schema,
        rows: Callable[[], Iterator[pa.RecordBatch]],
        close: Callable[[], None],
    ) -> None:
        self.schema = schema
        self._rows = rows
        self.close = weakref.finalize(self, close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        yield from self._rows()  # a generator, which keeps this alive and open

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.reader().__arrow_c_stream__(requested_schema)

    def reader(self) -> pa.RecordBatchReader:
        """Begin to read from the first row.

        Returns:
            A reader. It raises a MemqError where brokers or storage fail, and where retention
            removes what it has not read yet.
        """
        return pa.RecordBatchReader.from_batches(self.schema, iter(self))

    def read_all(self) -> pa.Table:
        """Read all rows into memory.

        Raises:
            MemqError: as while `reader` is read.
        """
        return self.reader().read_all()


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
        end_time: records from before this time, given in the same way.
        limit: rows, at most: the first by partition and offset; None for all.
        topic_id: of the topic, from `AdminClient.describe_topic`; empty for whichever there is.
        columns: names of the columns wanted; None for all.
        metadata: add the columns `ORIGIN_COLUMNS`.
        read_through: "storage", or "broker" for machines that cannot reach the storage.
        token: credential; empty where the brokers ask for none.
        zone: where this reader runs; empty for that of `MEMQ_ZONE`, or of the profile.
        storage_options: of the object store, as a table or as "NAME=VALUE,NAME=VALUE"; none for
            those of `MEMQ_STORAGE_OPTIONS`, or of the profile.
        security: what TLS needs, as a table or as "NAME=VALUE,NAME=VALUE"; none for
            those of `MEMQ_SECURITY`, or of the profile.
    """

    partition: int | None
    start: int | str | datetime | None
    end: int | str | datetime | None
    start_time: datetime | str | None
    end_time: datetime | str | None
    limit: int | None
    topic_id: str
    columns: Sequence[str] | None
    metadata: bool
    read_through: ReadThrough
    token: str
    zone: str
    storage_options: GivenValues
    security: GivenValues


def read_range(
    bootstrap: str | None = None,
    *,
    topic: str,
    timeout: float = READ_TIMEOUT_S,
    **options: Unpack[ReadArguments],
) -> pa.Table:
    """Return the records of some offsets, of some times, or all that are retained, as one table.

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
        TopicRecreatedError: the topic is of another topic id.
        RequestTimeoutError: it takes longer than `timeout`.
        MemqError: brokers or storage failed for the whole request timeout.
    """
    reader, selection = reader_of(bootstrap, topic, options)
    loop = EventLoopThread("memq-read")
    try:
        found = loop.run(_collect(reader, selection, timeout))
    except TimeoutError as exc:
        raise RequestTimeoutError(f"topic {topic!r} was not read within {timeout:g} s") from exc
    finally:
        loop.close()
    return pa.Table.from_batches(found, schema=reader.schema)


async def _collect(
    reader: AsyncTopicReader, selection: Selection, timeout_s: float
) -> list[pa.RecordBatch]:
    async with asyncio.timeout(timeout_s), aclosing(_rows(reader, selection)) as rows:
        return [each async for each in rows]


async def _rows(
    reader: AsyncTopicReader, selection: Selection
) -> AsyncGenerator[pa.RecordBatch, None]:
    async with reader:
        plan = await reader.plan(selection)
        async with aclosing(reader.rows(plan)) as batches:
            async for each in batches:
                for rows in each.rows:
                    yield rows


def scan(bootstrap: str | None = None, *, topic: str, **options: Unpack[ReadArguments]) -> Scan:
    """Read as `read_range` does, for data of any size: RecordBatches that are read on demand.

    A few Batches are read ahead, and no more is in memory, whatever the range holds. What is read
    is fixed before this returns: what is published later is not part of it.

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


def async_scan(
    bootstrap: str | None = None, *, topic: str, **options: Unpack[ReadArguments]
) -> AsyncGenerator[pa.RecordBatch, None]:
    """Read as `scan` does, for asyncio; close it (`contextlib.aclosing`) when left before its end.

    What is read is fixed when the first RecordBatch is asked for.

    Args:
        bootstrap: as in `read_range`, like all others.
        topic: the topic.
        **options: see `ReadArguments`.

    Raises:
        MemqError: as `scan`.
    """
    return _rows(*reader_of(bootstrap, topic, options))


def reader_of(
    bootstrap: str | None, topic: str, options: ReadArguments
) -> tuple[AsyncTopicReader, Selection]:
    """Make the reader, not opened yet, and what is to be read.

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
