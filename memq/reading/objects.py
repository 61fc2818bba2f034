"""Reading the objects of Batches: from storage, through a broker, or from whichever has them.

The bytes are read and decoded in worker threads: both let go of the interpreter for most of their
time. A Batch that comes out of here is whole, checked against its CRC32Cs, and the one that its
Notification speaks of. Everything else is an error that names topic, partition, offset and object.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from memq.core.format.batch import producer_runs
from memq.core.format.index import FOOTER_BYTES, MAX_INDEX_BYTES, decode_tail
from memq.core.format.reader import BatchReader
from memq.core.named_values import NO_VALUES, asks_brokers
from memq.core.ranges import OffsetRange, retained_in_words
from memq.core.units import counted
from memq.core.wire.messages import FetchBatch
from memq.errors import (
    ConfigError,
    CorruptDataError,
    DataLossError,
    InvalidRequestError,
    MemqError,
    MessageTooLargeError,
    ObjectNotFoundError,
    OffsetOutOfRangeError,
    ProtocolError,
    SchemaMismatchError,
    StorageError,
    UnavailableError,
)
from memq.reading.batch import Batch, Order, arrange
from memq.storage.keys import key_of_uri, object_key, parse_object_key
from memq.storage.metering import metered
from memq.storage.open import open_uri

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
    from concurrent.futures import Executor

    import pyarrow as pa

    from memq.core.format.index import BatchIndex, IndexEntry
    from memq.core.named_values import NamedValues
    from memq.core.notification import Notification, PublishedBatch
    from memq.reading.log import TopicLog

T = TypeVar("T")
R = TypeVar("R")

ReadThrough = Literal["storage", "broker"]

RANGE_BYTES = 4 << 20  # of one request to a broker: large enough for throughput, small for memory
BROKER_TIMEOUT_S = 10.0  # of one range, where storage failed already; else the client's own
MAX_OBJECT_BYTES = 2 << 30  # the largest batch_bytes, twice: its last Message and the index


# -- bytes ----------------------------------------------------------------------------------


def check_span(uri: str, start: int, length: int) -> None:
    """Make sure that an object can have some bytes, before memory is taken for them.

    Raises:
        CorruptDataError: it cannot; what named them is damaged.
    """
    if start < 0 or length < 0 or start + length > MAX_OBJECT_BYTES:
        raise CorruptDataError(
            f"bytes {start} to {start + length} of {uri} are asked for, as its notification says; "
            f"an object has up to {MAX_OBJECT_BYTES}"
        )


def read_storage(uri: str, start: int, length: int, options: NamedValues = NO_VALUES) -> Any:
    """Bytes of an object, straight from its storage; fewer where it ends sooner. It blocks.

    Args:
        uri: of the object.
        start: first byte.
        length: how many.
        options: of the object store, where the object is in one.

    Raises:
        CorruptDataError: no object can have these bytes.
        ObjectNotFoundError: there is no such object.
        StorageError: the storage failed.
        ConfigError: this machine knows no such storage, or the storage knows no such option.
    """
    check_span(uri, start, length)
    storage, key = open_uri(uri, options)
    return storage.get_range(key, start, length)


async def in_storage(topic: TopicLog, uri: str, read: Callable[[NamedValues], Awaitable[T]]) -> T:
    """Read something of an object in its storage, with the options for it.

    S3 says that there is no such object to those alone who may list, which credentials for one
    topic do not allow. So where the storage refuses these, a broker is asked whether it is there.

    Args:
        topic: whose object it is.
        uri: of the object.
        read: reads it, given the options.

    Raises:
        ObjectNotFoundError: there is no such object.
        MemqError: no broker gives credentials; or as `read`.
    """
    options = await topic.options_for(uri)
    try:
        return await read(options)
    except StorageError as exc:
        if exc.refused and options != topic.storage_options:
            await read_broker(topic, uri, 0, 1, timeout_s=BROKER_TIMEOUT_S)
        raise


async def read_broker(
    topic: TopicLog, uri: str, start: int, length: int, *, timeout_s: float | None = None
) -> bytearray:
    """Bytes of an object through a broker; fewer where it ends sooner.

    Args:
        topic: whose object it is.
        uri: of the object.
        start: first byte.
        length: how many.
        timeout_s: of each `RANGE_BYTES`; None for that of the cluster.

    Raises:
        CorruptDataError: no object can have these bytes.
        ObjectNotFoundError: the broker does not find the object.
        MemqError: the broker failed until the deadline.
    """
    check_span(uri, start, length)
    data = bytearray(length)
    reach = 0
    while reach < length:
        wanted = min(RANGE_BYTES, length - reach)
        request = FetchBatch(topic=topic.topic, uri=uri, start=start + reach, length=wanted)
        _, body = await topic.read(request, timeout_s=timeout_s)
        if len(body) > wanted:
            raise ProtocolError(f"the broker sent {len(body)} bytes of {uri}; {wanted} were wanted")
        data[reach : reach + len(body)] = body
        reach += len(body)
        if len(body) < wanted:
            del data[reach:]
            break
    return data


class FallbackReader:
    """Reads ranges of objects from worker threads: from storage, or else through the broker.

    An object is called gone only when the broker does not find it either: a machine that cannot
    reach the brokers' storage, or sees another one under the same name, would else report
    everything as lost. Nor is one called unreadable while the storage is away: only where the same
    storage answers for another object.

    Options of the storage that it does not know are an error: a caller that gives some wants it
    read.

    Args:
        topic: of the objects.
        loop: on which the broker is asked.
    """

    def __init__(self, topic: TopicLog, loop: asyncio.AbstractEventLoop) -> None:
        self._topic = topic
        self._loop = loop

    def get_range(self, uri: str, start: int, length: int) -> Any:
        """Bytes of an object; fewer where it ends sooner.

        Raises:
            CorruptDataError: no object can have these bytes, or the broker says that it is none of
                this topic.
            ObjectNotFoundError: neither this machine nor the broker finds it.
            StorageError: neither can read it, though the storage answers.
            ConfigError: the storage cannot be opened with the options that were given.
            MemqError: the broker cannot be asked, or the storage is away.
        """
        try:
            return self._read(uri, start, length)
        except StorageError:
            self._check_storage_answers(uri)
            return self._read(uri, start, length)

    def _check_storage_answers(self, uri: str) -> None:
        key = key_of_uri(uri)
        batch = parse_object_key(key)
        assert batch is not None  # noqa: S101 - or `key_of_uri` had refused it
        absent = object_key(batch._replace(sealed_ms=0))  # no Batch was sealed then
        try:
            self._read(uri.removesuffix(key) + absent, 0, 1)
        except ObjectNotFoundError:
            return
        except StorageError as exc:
            raise UnavailableError(
                f"the storage is away, so nothing can be said of its objects: {exc}. Try again "
                "when it answers"
            ) from exc

    def _read(self, uri: str, start: int, length: int) -> Any:
        options = self._topic.storage_options
        if asks_brokers(options):
            asked: Any = self._topic.options_for(uri)
            options = asyncio.run_coroutine_threadsafe(asked, self._loop).result()
        try:
            return read_storage(uri, start, length, options)
        except (ObjectNotFoundError, StorageError, ConfigError) as exc:
            if options and isinstance(exc, ConfigError):
                raise
            asked = read_broker(self._topic, uri, start, length, timeout_s=BROKER_TIMEOUT_S)
            try:
                return asyncio.run_coroutine_threadsafe(asked, self._loop).result()
            except InvalidRequestError as refusal:
                raise CorruptDataError(f"{exc}; and through the broker: {refusal}") from exc


# -- the index of a Batch against its notification: each has a checksum of its own ---------------


def read_index(notification: Notification, get_range: Callable[[int, int], Any]) -> BatchIndex:
    """Read the index of a Batch, in one read.

    Args:
        notification: of the Batch.
        get_range: reads the object: first byte, and how many; fewer where it ends sooner.

    Raises:
        CorruptDataError: it is damaged, or not the one that the notification speaks of.
        MemqError: as `get_range`.
    """
    start, size = notification.index_offset, notification.size_bytes
    if size - start > MAX_INDEX_BYTES + FOOTER_BYTES:
        raise CorruptDataError(
            f"its notification says that its index begins at byte {start} of {size}; an index has "
            f"up to {MAX_INDEX_BYTES} bytes"
        )
    tail = get_range(start, size - start)
    check_length(tail, size - start)
    index = decode_tail(tail, size)
    for difference in differences(notification, index, size):
        raise CorruptDataError(difference)
    return index


def check_length(data: Any, length: int) -> None:
    """Check that as many bytes are there as a notification says.

    Raises:
        CorruptDataError: they are not.
    """
    if len(data) != length:
        raise CorruptDataError(
            f"its notification says {counted(length, 'byte')}, but {len(data)} are there"
        )


def differences(notification: Notification, index: BatchIndex, size_bytes: int) -> Iterator[str]:
    """Yield what a notification says that is not so, as sentences.

    Args:
        notification: of a Batch; without the names of its Messages (`()`) these are not compared.
        index: of the object that it names.
        size_bytes: of that object.
    """
    actual: dict[str, Any] = {
        "batch_id": index.metadata.batch_id,
        "topic": index.metadata.topic,
        "write_partition": index.metadata.write_partition,
        "size_bytes": size_bytes,
        "index_offset": index.offset,
        "messages": len(index.entries),
        "records": sum(entry.records for entry in index.entries),
    }
    if isinstance(notification.producers, list):  # a plan keeps none, as a tuple
        actual["producers"] = producer_runs(index.entries)
    for name, value in actual.items():
        said = getattr(notification, name)
        if said != value:
            yield f"its notification says {name} = {said!r}; it is {value!r}"


# -- Batches --------------------------------------------------------------------------------


class FetchedBatch(NamedTuple):
    """A Batch with its Messages.

    Attributes:
        batch: in the order asked for.
        entries: of its Messages, as they stand in the object.
        rows: of the same Messages.
        size_bytes: memory that its rows take.
    """

    batch: Batch
    entries: list[IndexEntry]
    rows: list[pa.RecordBatch]
    size_bytes: int


class BatchSource:
    """Reads the Batches of one topic.

    Args:
        topic: the topic.
        executor: whose threads read and decode.
        read_through: "storage", or "broker" for clients that cannot reach it.
        order: of the LogMessages within a Batch.

    Attributes:
        requests: what was asked of object stores, as `ObjectStorage.requests` counts; what brokers
            read is not in it.
    """

    def __init__(
        self,
        topic: TopicLog,
        executor: Executor,
        *,
        read_through: ReadThrough = "storage",
        order: Order = "none",
    ) -> None:
        self._topic = topic
        self._executor = executor
        self._read_through = read_through
        self._order = order
        self.requests: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"<BatchSource of {self._topic.topic} through {self._read_through}>"

    async def fetch(self, published: PublishedBatch) -> FetchedBatch:
        """Read one Batch; what may pass is tried again for the cluster's request timeout.

        Raises:
            OffsetOutOfRangeError: retention has removed it.
            DataLossError: it is gone, and retention has not removed it.
            CorruptDataError: its bytes are damaged.
            StorageError: the storage failed until the deadline.
            MemqError: the broker failed until the deadline.
        """
        retry = self._topic.retry()
        looked_at = {published.notification.uri}
        while True:
            try:
                return await self._read(published, retry.left_s)
            except ObjectNotFoundError as exc:
                published = await self._present(published)
                if published.notification.uri in looked_at:
                    raise _lost(published) from exc
                looked_at.add(published.notification.uri)
                continue
            except CorruptDataError as exc:
                raise _damaged(published, exc) from exc
            except MemqError as exc:
                delay_s = retry.after(type(exc)(f"{published}: {exc}"))
            await asyncio.sleep(delay_s)

    async def run(self, work: Callable[[T], R], item: T) -> R:
        """Do work on an item in one of the threads that read and decode."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, work, item)

    async def _read(self, published: PublishedBatch, left_s: float) -> FetchedBatch:
        it = published.notification
        if self._read_through == "storage":
            reading = partial(self.run, partial(self._read_storage, published))
            return await in_storage(self._topic, it.uri, reading)
        data = await read_broker(self._topic, it.uri, 0, it.size_bytes, timeout_s=left_s)
        return await self.run(partial(decode, published=published, order=self._order), data)

    def _read_storage(self, published: PublishedBatch, options: NamedValues) -> FetchedBatch:
        it = published.notification
        reading = partial(read_storage, it.uri, 0, it.size_bytes, options)
        data = metered(self.requests, reading)
        return decode(data, published, self._order)

    async def _present(self, published: PublishedBatch) -> PublishedBatch:
        """Return the Batch as the broker names it now: its object may have been moved meanwhile.

        Raises:
            OffsetOutOfRangeError: retention has removed it.
            MemqError: the broker failed until the deadline.
        """
        partition, offset = published.partition, published.offset
        retained = (await self._topic.offsets())[partition]
        if offset < retained.start:
            raise OffsetOutOfRangeError(
                f"offset {offset} of {self._topic.topic}/{partition} was "
                f"removed by retention; {retained_in_words(retained.start, retained.end)}"
            )
        place = OffsetRange(partition, offset, offset + 1)
        async with aclosing(self._topic.batches([place])) as batches:
            found = [each async for each in batches]
        return found[0] if found else published


def _lost(published: PublishedBatch) -> DataLossError:
    return DataLossError(
        f"{published} is gone, though its notification is retained. If this machine does not share "
        "the brokers' storage, set read_through to broker (memq consume --read-through broker); "
        f"{_way_on(published)}"
    )


def _damaged(published: PublishedBatch, how: CorruptDataError) -> CorruptDataError:
    return CorruptDataError(
        f"{published} is damaged: {how}. `memq batch verify {published.notification.topic}` names "
        f"all that is; {_way_on(published)}"
    )


def _way_on(published: PublishedBatch) -> str:
    """Say what to do about a Batch that cannot be had."""
    topic, then = published.notification.topic, published.offset + 1
    return (
        f"restore the object from a copy, or seek past it, a group with `memq group reset-offsets "
        f"GROUP {topic} --partition {published.partition} --to-offset {then} --execute`"
    )


def decode(data: Any, published: PublishedBatch, order: Order = "none") -> FetchedBatch:
    """Decode the Batch in the bytes of its object.

    Raises:
        CorruptDataError: the bytes are damaged, or another Batch's.
        SchemaMismatchError: its rows cannot be sorted by key.
        MessageTooLargeError: its rows cannot be sorted by key.
    """
    it = published.notification
    check_length(data, it.size_bytes)
    try:
        reader = BatchReader(data)
        rows = [reader.read(number) for number in range(len(reader))]
    except (SchemaMismatchError, MessageTooLargeError) as exc:
        raise CorruptDataError(str(exc)) from exc
    if reader.metadata.batch_id != it.batch_id:
        raise CorruptDataError(f"the object holds another Batch, {reader.metadata.batch_id}")
    sections = arrange(list(zip(reader.entries, rows, strict=True)), reader.schema, order)
    batch = Batch(it, published.partition, published.offset, reader.schema, sections)
    batch.time_column = reader.metadata.time_column
    # Compressed rows take more than their bytes did, all others refer to these.
    decoded_bytes = sum(message.get_total_buffer_size() for message in rows)
    return FetchedBatch(batch, reader.entries, rows, max(decoded_bytes, it.size_bytes))


async def map_ahead(
    work: Callable[[T], Awaitable[R]],
    items: AsyncIterator[T],
    most: int,
    weigh: Callable[[T], int] = lambda _: 1,
    wanted: Callable[[T], bool] = lambda _: True,
) -> AsyncGenerator[tuple[T, R], None]:
    """Yield each item with the result of its work, in order; several are worked on at a time.

    Close it (`contextlib.aclosing`) when it is left before its end.

    Args:
        work: on an item.
        items: the items.
        most: what the items that are worked on, or wait for their turn, may weigh together; one
            that is heavier is worked on by itself.
        weigh: the weight of an item; each counts for 1 without it.
        wanted: whether an item is worked on at all.
    """
    pending: deque[tuple[T, asyncio.Future[R]]] = deque()
    held = 0
    try:
        async for item in items:
            if not wanted(item):
                continue
            while pending and held + weigh(item) > most:
                first, result = pending.popleft()
                held -= weigh(first)
                yield first, await result
            held += weigh(item)
            pending.append((item, asyncio.ensure_future(work(item))))
        while pending:
            first, result = pending.popleft()
            yield first, await result
    finally:
        for _, result in pending:
            result.cancel()
