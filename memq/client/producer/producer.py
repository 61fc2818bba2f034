"""Producers: `Producer` for threads, `AsyncProducer` for asyncio.

Both gather records into Messages, send these to the brokers of the topic's write partitions, and
retry until each is acked or its delivery deadline has passed. `write` returns at once with the
`Delivery` of the record's Message; what it must wait for, within bounds, is memory.

Producer ids. Without one of its own a producer is exactly-once as long as it lives: its retries are
never published twice. With a `producer_id` (and `epoch`) of the user's choice that holds across
restarts: a job that is run again with the same id writes the same Messages under the same names,
and the broker publishes only what is missing. For that the Messages must be cut the same way:
linger is off, records gather until a Message is full, or `flush` is called, or a delivery is waited
for; and the records must be the same, which includes their timestamps: give them. When the `with`
block fails, the Message that is not full is dropped, for the job that is run again to fill.
"""

from __future__ import annotations

import asyncio
import os
import warnings
from typing import TYPE_CHECKING, Any

from memq.client.producer.memory_wait import MemoryWait
from memq.client.producer.options import ProducerOptions
from memq.client.producer.rim import ProducerRim
from memq.client.producer.tables import to_batches
from memq.client.sync import EventLoopThread
from memq.core.runtime import SYSTEM, Runtime
from memq.errors import ClosedError, MemqError

if TYPE_CHECKING:
    from datetime import datetime
    from types import TracebackType
    from typing import Self, Unpack

    import pyarrow as pa

    from memq.client.producer.delivery import Delivery
    from memq.client.producer.options import ProducerArguments
    from memq.client.producer.records import BytesLike
    from memq.client.producer.stats import ProducerStats
    from memq.core.format.message import Headers


class AsyncProducer:
    """Writes to one topic, from one event loop. Use it with `async with`, or `start` and `close`.

    Args:
        bootstrap: comma separated `host:port` of some brokers; None for the environment variable
            `MEMQ_BOOTSTRAP`, or else 127.0.0.1:6367.
        topic: the topic to write to.
        runtime: clocks, chance and threads.
        **options: see `ProducerArguments`.

    Raises:
        ConfigError: an option is of the wrong type, or out of its limits.
    """

    def __init__(
        self,
        bootstrap: str | None = None,
        *,
        topic: str,
        runtime: Runtime = SYSTEM,
        **options: Unpack[ProducerArguments],
    ) -> None:
        self._bootstrap = bootstrap
        self._runtime = runtime
        self._options = ProducerOptions.parse(topic=topic, **options)
        self._rim: ProducerRim | None = None

    async def start(self) -> Self:
        """Find the topic. Starting again does nothing.

        Raises:
            UnknownTopicError: there is no such topic.
            ConfigError: the options do not fit the topic.
            UnavailableError: no broker can be reached.
        """
        if self._rim is None:
            loop = asyncio.get_running_loop()
            self._rim = await ProducerRim.start(
                self._bootstrap,
                self._options,
                hand_over=loop.call_soon,
                runtime=self._runtime,
            )
        return self

    def __repr__(self) -> str:
        return f"<AsyncProducer {self._options.topic} {self._rim or 'not started'}>"

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if exc is not None and self._rim is not None:
                _drop_unfinished(self._rim)
            await self.close()
        except MemqError as error:
            if exc is None:
                raise
            exc.add_note(f"closing the producer failed as well: {error}")

    @property
    def producer_id(self) -> str:
        """Name under which the Messages are sent."""
        return self._started().producer_id

    @property
    def write_partitions(self) -> int:
        """Write partitions that the Messages are spread over; with an id of one's own those that
        the topic was made with.
        """
        return self._started().write_partitions

    @property
    def incarnation(self) -> str:
        """Of the topic that is written to; one that is made again is not."""
        return self._started().incarnation

    @property
    def stats(self) -> ProducerStats:
        """What this producer did so far."""
        return self._started().stats

    async def write(
        self,
        value: BytesLike | None,
        key: BytesLike | None = None,
        headers: Headers | None = None,
        timestamp: datetime | int | None = None,
    ) -> Delivery:
        """Add a record; returns the delivery of its Message. Waits only for memory.

        Args:
            value: its bytes; None is a tombstone.
            key: its key.
            headers: names and bytes, as a mapping or as pairs.
            timestamp: a datetime with a time zone, or microseconds since 1970 UTC; None for now,
                which is taken every 10 ms.

        Raises:
            InvalidRequestError: something is not of its type, or the topic takes tables only.
            MessageTooLargeError: the record fits no Message.
            BufferFullError: there was no memory for it within `max_block`.
            ClosedError: the producer is closed.
            MemqError: what ended the producer.
        """
        rim = self._started()
        delivery = rim.accumulator.write(value, key, headers, timestamp)
        if delivery is None:
            wait = MemoryWait(rim)
            while delivery is None:
                await wait.once()
                delivery = rim.accumulator.write(value, key, headers, timestamp)
        return delivery

    async def write_table(self, rows: Any) -> list[Delivery]:
        """Write the rows of a table, in order; returns the deliveries of their Messages.

        The table is checked as a whole before any of it is written. What is open from `write` is
        sealed first, so that order is kept.

        Args:
            rows: a pyarrow Table or RecordBatch, a pandas or polars DataFrame, or anything that
                speaks the Arrow PyCapsule interface. Columns are cast to the topic's schema;
                missing nullable ones become nulls, a missing `timestamp` becomes now.

        Raises:
            InvalidRequestError: this is no table.
            SchemaMismatchError: a column does not fit the topic's schema.
            MessageTooLargeError: a row fits no Message.
            BufferFullError: there was no memory within `max_block`; earlier rows are written.
            ClosedError: the producer is closed.
            MemqError: what ended the producer.
        """
        rim = self._started()
        deliveries = []
        for batch in _batches(rim, rows):
            wait = None
            while (delivery := rim.accumulator.write_batch(batch, rim.schema_id)) is None:
                wait = wait or MemoryWait(rim)
                await wait.once()
            deliveries.append(delivery)
        return deliveries

    async def flush(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - its own error
        """Seal what is open, and wait until all that was written is settled.

        Args:
            timeout: longest wait in seconds; None for the delivery deadlines.

        Raises:
            RequestTimeoutError: it takes longer; what is not settled is still being delivered.
            ClosedError: the producer is closed.
            MemqError: the error of a Message that failed, if nobody has seen it yet.
        """
        await self._started().flush(timeout)

    async def close(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as `flush`
        """Flush, then close. What is not settled after `timeout` seconds fails. Idempotent.

        Raises:
            as `flush`.
        """
        if self._rim is not None:
            await self._rim.close(timeout)

    def _started(self) -> ProducerRim:
        if self._rim is None:
            raise ClosedError("this producer is not started; use `async with`, or `await start()`")
        return self._rim


class Producer:
    """Writes to one topic, from any number of threads. Use it with `with`, or `close` it.

    It finds the topic when it is made; an event loop in a background thread does the rest. In a
    child process after a fork it raises `ClosedError`: make another one there.

    Args:
        bootstrap: comma separated `host:port` of some brokers; None for the environment variable
            `MEMQ_BOOTSTRAP`, or else 127.0.0.1:6367.
        topic: the topic to write to.
        **options: see `ProducerArguments`.

    Raises:
        ConfigError: an option is wrong, or does not fit the topic.
        UnknownTopicError: there is no such topic.
        UnavailableError: no broker can be reached.
    """

    def __init__(
        self,
        bootstrap: str | None = None,
        *,
        topic: str,
        **options: Unpack[ProducerArguments],
    ) -> None:
        self._closed = True  # until there is something to close
        parsed = ProducerOptions.parse(topic=topic, **options)
        self._pid = os.getpid()
        self._loop = EventLoopThread(f"memq-producer-{topic}")
        try:
            self._rim = self._loop.run(
                ProducerRim.start(bootstrap, parsed, hand_over=self._loop.call)
            )
        except BaseException:
            self._loop.close()
            raise
        self._accumulator = self._rim.accumulator
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else repr(self._rim)
        return f"<Producer {self._rim.options.topic} {state}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if exc is not None and not self._closed:
                _drop_unfinished(self._rim)
            self.close()
        except MemqError as error:
            if exc is None:
                raise
            exc.add_note(f"closing the producer failed as well: {error}")

    def __del__(self) -> None:
        if not self._closed and os.getpid() == self._pid:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, source=self, stacklevel=2)

    @property
    def producer_id(self) -> str:
        """Name under which the Messages are sent."""
        return self._rim.producer_id

    @property
    def write_partitions(self) -> int:
        """Write partitions that the Messages are spread over; with an id of one's own those that
        the topic was made with.
        """
        return self._rim.write_partitions

    @property
    def incarnation(self) -> str:
        """Of the topic that is written to; one that is made again is not."""
        return self._rim.incarnation

    @property
    def stats(self) -> ProducerStats:
        """What this producer did so far."""
        return self._rim.stats

    def write(
        self,
        value: BytesLike | None,
        key: BytesLike | None = None,
        headers: Headers | None = None,
        timestamp: datetime | int | None = None,
    ) -> Delivery:
        """Add a record; returns the delivery of its Message. Waits only for memory.

        Args:
            value: its bytes; None is a tombstone.
            key: its key.
            headers: names and bytes, as a mapping or as pairs.
            timestamp: a datetime with a time zone, or microseconds since 1970 UTC; None for now,
                which is taken every 10 ms.

        Raises:
            InvalidRequestError: something is not of its type, or the topic takes tables only.
            MessageTooLargeError: the record fits no Message.
            BufferFullError: there was no memory for it within `max_block`.
            ClosedError: the producer is closed.
            MemqError: what ended the producer.
        """
        delivery = self._accumulator.write(value, key, headers, timestamp)
        if delivery is None:
            wait = MemoryWait(self._rim)
            while delivery is None:
                wait.block()
                delivery = self._accumulator.write(value, key, headers, timestamp)
        return delivery

    def write_table(self, rows: Any) -> list[Delivery]:
        """Write the rows of a table, in order; returns the deliveries of their Messages.

        The table is checked as a whole before any of it is written. What is open from `write` is
        sealed first, so that order is kept.

        Args:
            rows: a pyarrow Table or RecordBatch, a pandas or polars DataFrame, or anything that
                speaks the Arrow PyCapsule interface. Columns are cast to the topic's schema;
                missing nullable ones become nulls, a missing `timestamp` becomes now.

        Raises:
            InvalidRequestError: this is no table.
            SchemaMismatchError: a column does not fit the topic's schema.
            MessageTooLargeError: a row fits no Message.
            BufferFullError: there was no memory within `max_block`; earlier rows are written.
            ClosedError: the producer is closed.
            MemqError: what ended the producer.
        """
        rim = self._rim
        deliveries = []
        for batch in _batches(rim, rows):
            wait = None
            while (delivery := rim.accumulator.write_batch(batch, rim.schema_id)) is None:
                wait = wait or MemoryWait(rim)
                wait.block()
            deliveries.append(delivery)
        return deliveries

    def conformed(self, rows: Any) -> list[pa.RecordBatch]:
        """The rows of a table as `write_table` would send them, a batch for each Message: checked,
        cast and cut. Nothing is written.

        Each of them given to `write_table` is one Message. So who has to know that all rows are
        good before the first one can be read conforms all of them first.

        Raises:
            InvalidRequestError, SchemaMismatchError, MessageTooLargeError: as `write_table`.
        """
        return _batches(self._rim, rows)

    def flush(self, timeout: float | None = None) -> None:
        """Seal what is open, and wait until all that was written is settled.

        Args:
            timeout: longest wait in seconds; None for the delivery deadlines.

        Raises:
            RequestTimeoutError: it takes longer; what is not settled is still being delivered.
            ClosedError: the producer is closed.
            MemqError: the error of a Message that failed, if nobody has seen it yet.
        """
        self._accumulator.seal()  # here, so that encoding does not hold up the event loop
        self._loop.run(self._rim.flush(timeout))

    def close(self, timeout: float | None = None) -> None:
        """Flush, then close. What is not settled after `timeout` seconds fails. Idempotent.

        Raises:
            as `flush`.
        """
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        try:
            self._loop.run(self._rim.close(timeout))
        finally:
            self._loop.close()


def _drop_unfinished(rim: ProducerRim) -> None:
    """A job with a name of its own failed in the middle of a Message: it is not sent half.

    When the job runs again it fills the same Message under the same name. Had half of it been
    published, the whole one would be refused.
    """
    if rim.options.producer_id is not None:
        rim.accumulator.drop_open(
            ClosedError("dropped: the block of the producer failed before this Message was full")
        )


def _batches(rim: ProducerRim, rows: Any) -> list[pa.RecordBatch]:
    message_bytes, max_message_bytes = rim.accumulator.limits_bytes
    return to_batches(
        rows,
        rim.schema,
        rim.options.topic,
        now_us=rim.runtime.wall_us(),
        message_bytes=message_bytes,
        max_message_bytes=max_message_bytes,
    )
