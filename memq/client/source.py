"""Reading Batches: straight from storage, or through a broker where storage cannot be reached.

The bytes are read and decoded in worker threads: both let go of the interpreter for most of their
time. A Batch that comes out of here is whole, checked against its CRC32Cs, and the one that its
Notification speaks of. Everything else is an error that names topic, partition, offset and object.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from memq.client.backoff import full_jitter_s
from memq.client.batch import Batch, Order, arrange
from memq.core.format.reader import BatchReader
from memq.core.storage.open import open_uri
from memq.core.wire.messages import FetchBatch
from memq.errors import (
    CorruptDataError,
    DataLossError,
    MemqError,
    MessageTooLargeError,
    ObjectNotFoundError,
    OffsetOutOfRangeError,
    SchemaMismatchError,
)

if TYPE_CHECKING:
    from concurrent.futures import Executor

    import pyarrow as pa

    from memq.client.topic import TopicClient
    from memq.core.format.index import IndexEntry
    from memq.core.notification.notification import Notification

ReadThrough = Literal["storage", "broker"]

RANGE_BYTES = 4 << 20  # of one request to a broker: large enough for throughput, small for memory

MAX_OBJECT_BYTES = 2 << 30  # the largest batch_bytes, twice: its last Message and the index


class Place(NamedTuple):
    """Where a Notification stands in the queue."""

    partition: int
    offset: int


class Fetched(NamedTuple):
    """A Batch with its Messages, from which it can be made anew without some of them.

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
        queue: of the topic.
        executor: whose threads read and decode.
        read_through: "storage", or "broker" for clients that cannot reach it.
        order: of the LogMessages within a Batch.
    """

    def __init__(
        self,
        queue: TopicClient,
        executor: Executor,
        *,
        read_through: ReadThrough = "storage",
        order: Order = "none",
    ) -> None:
        self._queue = queue
        self._executor = executor
        self._read_through = read_through
        self._order = order

    async def fetch(self, notification: Notification, place: Place) -> Fetched:
        """Read one Batch; what may pass is tried again for the cluster's request timeout.

        Raises:
            OffsetOutOfRangeError: retention has removed it.
            DataLossError: it is gone, and retention has not removed it.
            CorruptDataError: its bytes are damaged.
            StorageError: the storage failed until the deadline.
            MemqError: the broker failed until the deadline.
        """
        clock = asyncio.get_running_loop().time
        deadline_s = clock() + self._queue.cluster.request_timeout_s
        attempt = 0
        while True:
            try:
                return await self._read(notification, place)
            except ObjectNotFoundError as exc:
                raise await self._missing(notification, place) from exc
            except MemqError as exc:
                delay_s = full_jitter_s(attempt, self._queue.cluster.runtime.random)
                if not exc.retriable or clock() + delay_s >= deadline_s:
                    raise type(exc)(f"{name_of(notification, place)}: {exc}") from exc
            await asyncio.sleep(delay_s)
            attempt += 1

    def without(self, fetched: Fetched, repeats: list[int]) -> Batch:
        """The Batch without the Messages at some positions of the object."""
        dropped = set(repeats)
        messages = enumerate(zip(fetched.entries, fetched.rows, strict=True))
        kept = [message for position, message in messages if position not in dropped]
        batch = fetched.batch
        sections = arrange(kept, batch.schema, self._order)
        return Batch(batch.notification, batch.partition, batch.offset, batch.schema, sections)

    async def _read(self, notification: Notification, place: Place) -> Fetched:
        run = asyncio.get_running_loop().run_in_executor
        if self._read_through == "storage":
            return await run(self._executor, self._read_storage, notification, place)
        data = await self._read_broker(notification)
        return await run(self._executor, decode, data, notification, place, self._order)

    def _read_storage(self, notification: Notification, place: Place) -> Fetched:
        storage, key = open_uri(notification.uri)
        return decode(storage.get(key), notification, place, self._order)

    async def _read_broker(self, notification: Notification) -> bytearray:
        if not 0 <= notification.size_bytes <= MAX_OBJECT_BYTES:
            raise CorruptDataError(
                f"the notification of {notification.uri} says {notification.size_bytes} bytes; the "
                f"limit is {MAX_OBJECT_BYTES}"
            )
        data = bytearray(notification.size_bytes)
        for start in range(0, len(data), RANGE_BYTES):
            length = min(RANGE_BYTES, len(data) - start)
            request = FetchBatch(
                topic=self._queue.topic, uri=notification.uri, start=start, length=length
            )
            _, body = await self._queue.ask(request)
            if len(body) != length:
                raise CorruptDataError(
                    f"{notification.uri} has {start + len(body)} bytes; "
                    f"its notification says {len(data)}"
                )
            data[start : start + length] = body
        return data

    async def _missing(self, notification: Notification, place: Place) -> MemqError:
        """What it means that the object is not there."""
        offsets = {held.partition: held for held in await self._queue.offsets()}
        held = offsets[place.partition]
        if place.offset < held.start:
            return OffsetOutOfRangeError(
                f"offset {place.offset} of {notification.topic}/{place.partition} was removed by "
                f"retention; {held.start} to {held.end} are held"
            )
        return DataLossError(
            f"{name_of(notification, place)} is gone, though its notification is held. If this "
            "machine does not share the brokers' storage, read through the broker; otherwise seek "
            "past this offset to go on"
        )


def decode(data: Any, notification: Notification, place: Place, order: Order) -> Fetched:
    """The Batch in the bytes of its object.

    Raises:
        CorruptDataError: the bytes are damaged, or another Batch's.
        SchemaMismatchError: its rows cannot be sorted by key.
        MessageTooLargeError: likewise.
    """
    try:
        reader = BatchReader(data)
        rows = [reader.read(number) for number in range(len(reader))]
    except (CorruptDataError, SchemaMismatchError, MessageTooLargeError) as exc:
        raise CorruptDataError(f"{name_of(notification, place)} is damaged: {exc}") from exc
    if reader.metadata.batch_id != notification.batch_id:
        raise CorruptDataError(
            f"{name_of(notification, place)} is another: the object holds Batch "
            f"{reader.metadata.batch_id}"
        )
    sections = arrange(list(zip(reader.entries, rows, strict=True)), reader.schema, order)
    batch = Batch(notification, place.partition, place.offset, reader.schema, sections)
    # Compressed rows take more than their bytes did, all others refer to these.
    decoded_bytes = sum(message.get_total_buffer_size() for message in rows)
    return Fetched(batch, reader.entries, rows, max(decoded_bytes, notification.size_bytes))


def name_of(notification: Notification, place: Place) -> str:
    """A Batch, for error messages."""
    return (
        f"Batch {notification.batch_id} at {notification.topic}/{place.partition} "
        f"offset {place.offset} ({notification.uri})"
    )
