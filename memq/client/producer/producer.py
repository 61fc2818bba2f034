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

How it works.

    any thread                     event loop
    write → Accumulator ──sealed──▶ submit → ProducerStateMachine ──poll──▶ effects → connections
                    ◀──memory────── settled ◀── answers ◀───────────────────────────────┘

`hand_over` carries calls from the threads that write to the loop, in order. Everything else runs on
the loop. An error that nothing expected ends the producer: it fails all deliveries, and every later
call.
"""

# ruff: noqa: SLF001 - a sync client may look into its async twin

from __future__ import annotations

import asyncio
import atexit
import logging
import math
import sys
import weakref
from collections import deque
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

from memq.client.audit.counters import ProducedCounters
from memq.client.audit.reporter import CLOSE_TIMEOUT_S, AuditReporter
from memq.client.cluster import Cluster
from memq.client.producer.accumulator import Accumulator
from memq.client.producer.delivery import Outcomes
from memq.client.producer.keyed import KeyedAccumulator, check_key_column, open_message_bytes
from memq.client.producer.memory import ByteBudget, MemoryWait
from memq.client.producer.options import ProducerOptions, answer_timeout_s
from memq.client.producer.rows import to_table
from memq.client.producer.state_machine import (
    REFRESH_INTERVAL_S,
    ConnectToBroker,
    DropConnection,
    Effect,
    NamedMessage,
    ProducerStateMachine,
    RefreshHosts,
    SendMessage,
    StateMachineOptions,
)
from memq.client.producer.tables import to_batches
from memq.client.sync import EventLoopThread, SyncClient, documented_by, sync_close, sync_property
from memq.core.format.schema import DEFAULT_SCHEMA, deserialize_schema
from memq.core.units import counted
from memq.core.wire.messages import WriteAnswer
from memq.errors import (
    BufferFullError,
    ClosedError,
    ForbiddenError,
    MemqError,
    RequestTimeoutError,
    TopicRecreatedError,
    UnavailableError,
)
from memq.runtime.retry import BROKER_BACKOFF
from memq.runtime.system import SYSTEM, Runtime
from memq.runtime.tracing import tracing

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
    from datetime import datetime
    from types import TracebackType
    from typing import Concatenate, ParamSpec, Self, Unpack

    import pyarrow as pa

    from memq.client.connection import BrokerConnection
    from memq.client.producer.accumulator import BytesLike, SealedMessage
    from memq.client.producer.delivery import Delivery, ProducerStats, StoredAt
    from memq.client.producer.options import ProducerArguments
    from memq.core.format.message import Headers
    from memq.core.wire.messages import Struct, TopicInfo

    P = ParamSpec("P")

log = logging.getLogger(__name__)

HEED_S = 2.0  # between two looks whether Messages wait for long, and two questions why
PATIENCE_S = 3.0  # for which they may, beyond `batch_age`
STATUS_S = 2.0  # for a broker's answer
FOLLOW_S = 30.0  # longest wait for news of the topic; then the connection shows whether it lives


def _ends_producer(
    event: Callable[Concatenate[AsyncProducer, P], None],
) -> Callable[Concatenate[AsyncProducer, P], None]:
    """Make an unexpected error in this method end the producer: all who wait learn of it."""

    @wraps(event)
    def guarded(self: AsyncProducer, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            event(self, *args, **kwargs)
        except Exception as exc:
            self._end(exc)
            raise

    return guarded


class AsyncProducer:
    """Writes to one topic, from one event loop. Use it with `async with`, or `start` and `close`.

    Args:
        bootstrap: comma separated `host:port` of some brokers; None for those of `MEMQ_BOOTSTRAP`,
            of the profile, or else 127.0.0.1:6367.
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
        self._hand_over: Callable[..., object] | None = None  # None: all who write are on the loop
        self._budget = ByteBudget(self._options.buffer_bytes)
        self._sealed: deque[SealedMessage] = deque()  # and not submitted; bounded by the budget
        self._outcomes = Outcomes()
        self._connections: dict[str, BrokerConnection] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._ticker: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._poll_pending = False
        self._settlement: asyncio.Future[None] | None = None  # of the next Message, for `_drain`
        self._started = self._closed = False
        self._tracing = tracing()

    async def start(self) -> Self:
        """Find the topic. Starting again does nothing.

        Raises:
            UnknownTopicError: there is no such topic.
            ConfigError: the options do not fit the topic.
            UnavailableError: no broker can be reached within `max_block`.
        """
        if not self._started:
            options = self._options
            cluster = Cluster(
                self._bootstrap,
                client=options.client,
                token=options.token,
                security=options.security,
                zone=options.zone,
                runtime=self._runtime,
            )
            try:
                topic = await cluster.topic(
                    options.topic, create=True, timeout_s=options.max_block_ms / 1_000
                )
                self._begin(cluster, topic)
            except BaseException:
                await cluster.close()
                raise
        return self

    def _begin(self, cluster: Cluster, topic: TopicInfo) -> None:
        options, config, runtime = self._options, topic.config, self._runtime
        self._cluster = cluster
        self._may_ask = True  # a broker for its state
        self._loop = asyncio.get_running_loop()
        hand_over: Callable[..., object] = self._hand_over or self._loop.call_soon
        self._adopt(topic)
        identity = StateMachineOptions(
            topic=config.name,
            topic_id=topic.topic_id,
            producer_id=options.producer_id or cluster.new_producer_id(),
            epoch=options.epoch,
            acks=options.acks,
            ordered=config.ordering == "producer",
            fixed_partitions=options.producer_id is not None or options.partition_by is not None,
            max_in_flight=options.max_in_flight,
            delivery_timeout_s=options.delivery_timeout_s(config),
            answer_timeout_s=answer_timeout_s(config),
        )
        self._audit = ProducedCounters(identity, options.client, now_ms=runtime.wall_ms)
        self._reporter = AuditReporter(cluster, self._audit.take_reports, steady=True)
        self._state_machine = ProducerStateMachine(
            identity,
            topic.hosts if options.producer_id is None else topic.hosts[: topic.named_partitions],
            near=cluster.near(),
            release=self._budget.give,
            on_submitted=self._submitted,
            on_settled=self._settled,
            randomness=runtime.random,
        )
        self._accumulator = self._make_accumulator(topic, hand_over)
        self._audited = config.audited
        if self._audited:
            self._reporter.start()
        self._started = True
        if runtime is SYSTEM:
            _unclosed.add(self)
        self._patience_s = config.batch_age_ms / 1_000 + PATIENCE_S
        self._spawn(self._heed())
        if cluster.moves(options.topic):
            self._spawn(self._follow())

    def _make_accumulator(
        self, topic: TopicInfo, hand_over: Callable[..., object]
    ) -> Accumulator | KeyedAccumulator:
        options, runtime = self._options, self._runtime
        column, partitions = options.partition_by, self._state_machine.write_partitions
        message_bytes, most = options.message_bytes, topic.config.message_bytes
        if column is not None:
            check_key_column(column, self._schema, options.topic)
            message_bytes = open_message_bytes(message_bytes, options.buffer_bytes, partitions)
            most = min(most, options.buffer_bytes // 2)
            if topic.config.ordering != "producer":
                log.warning(
                    "topic %s keeps no order: with partition_by the records of a key are placed "
                    "together, but may be stored in another order than they were written in; "
                    "create the topic with ordering=producer to keep it",
                    options.topic,
                )

        def make(write_partition: int | None) -> Accumulator:
            return Accumulator(
                self._budget,
                message_bytes=message_bytes,
                max_message_bytes=most,
                linger_s=options.linger_s,
                compression=options.compression,
                schema_id=topic.schema_id if self._schema.equals(DEFAULT_SCHEMA) else None,
                on_sealed=self._sealed.append,
                on_ready=partial(hand_over, self._submit),
                on_wake=partial(hand_over, self._arm_ticker),
                clock=runtime.mono_s,
                wall_us=runtime.wall_us,
                write_partition=write_partition,
                one_of_many=column is not None,
            )

        if column is None:
            return make(None)
        return KeyedAccumulator(column, make, partitions, options.message_bytes)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "not started"
        if self._started and not self._closed:
            state = f"{self._state_machine!r} {self._accumulator!r}"
        return f"<AsyncProducer {self._options.topic} {state}>"

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if exc is not None and self._started and self._hand_over is None:
                self._drop_unfinished()
            await self.close()
        except MemqError as error:
            if exc is None:
                raise
            exc.add_note(f"closing the producer failed as well: {error}")

    @property
    def producer_id(self) -> str:
        """Name under which the Messages are sent."""
        self._check_started()
        return self._state_machine.options.producer_id

    @property
    def write_partitions(self) -> int:
        """Write partitions that the Messages are spread over; with an id of one's own those that
        the topic was made with.
        """
        self._check_started()
        return self._state_machine.write_partitions

    @property
    def max_value_bytes(self) -> int:
        """Bytes that the value of a record without key and headers may have; the topic says so."""
        self._check_started()
        return self._accumulator.max_value_bytes

    @property
    def schema(self) -> pa.Schema:
        """Of the topic's rows, as far as this producer knows; a schema may grow."""
        self._check_started()
        return self._schema

    @property
    def topic_id(self) -> str:
        """Of the topic that is written to; one that is recreated is not."""
        self._check_started()
        return self._state_machine.options.topic_id

    @property
    def stats(self) -> ProducerStats:
        """What this producer did so far; exact when read on its event loop."""
        self._check_started()
        return self._outcomes.counts._replace(
            in_flight=self._state_machine.in_flight,
            unsettled=self._state_machine.unsettled_count,
            buffer_bytes=self._budget.used_bytes,
            throttled_ms=self._cluster.throttled_ms,
        )

    # -- writing ----------------------------------------------------------------------------

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
        self._check_started()
        delivery = self._accumulator.write(value, key, headers, timestamp)
        if delivery is None:
            write = partial(self._accumulator.write, value, key, headers, timestamp)
            delivery = await self._memory_wait().until(write)
        return delivery

    async def write_table(self, rows: Any) -> list[Delivery]:
        """Write the rows of a table, in order; returns the deliveries of their Messages.

        The table is checked as a whole before any of it is written. What is open from `write` is
        sealed first, so that order is kept.

        Args:
            rows: a pyarrow Table or RecordBatch, a pandas or polars DataFrame, or anything that
                speaks the Arrow PyCapsule interface. Columns are cast to the topic's schema
                where each value comes back the same; missing nullable ones become nulls, a
                missing `timestamp` becomes now.

        Raises:
            InvalidRequestError: this is no table.
            SchemaMismatchError: a column or a value does not fit the topic's schema.
            MessageTooLargeError: a row fits no Message.
            BufferFullError: there was no memory within `max_block`; earlier rows are written.
            ClosedError: the producer is closed.
            MemqError: what ended the producer.
        """
        deliveries = []
        for batch in self._conformed(rows):
            write = partial(self._accumulator.write_batch, batch, self._schema_id)
            if (delivery := write()) is None:
                delivery = await self._memory_wait().until(write)
            deliveries.append(delivery)
        return deliveries

    async def write_rows(self, rows: Iterable[Mapping[str, Any]]) -> list[Delivery]:
        """Write rows of Python objects, in order; as `write_table`.

        Args:
            rows: mappings of column names to values. A column that a row lacks is null there; one
                that all rows lack is as in `write_table`.

        Raises:
            InvalidRequestError: a row is no mapping.
            MemqError: as `write_table`.
        """
        self._check_started()
        return await self.write_table(to_table(rows, self._schema, self._options.topic))

    def conformed(
        self, rows: Any, *, first_row: int | None = 0, now_us: int | None = None
    ) -> list[pa.RecordBatch]:
        """Return the rows of a table as `write_table` would send them, a batch for each Message:
        checked, cast and cut. Nothing is written.

        Each of them given to `write_table` is one Message. So a caller that has to know that all
        rows are good before the first one can be read conforms all of them first.

        Args:
            rows: as in `write_table`.
            first_row: number of the first row in errors; None to leave numbers out.
            now_us: time of rows that have none, microseconds since 1970 UTC; None for now.

        Raises:
            InvalidRequestError, SchemaMismatchError, MessageTooLargeError: as `write_table`.
        """
        return list(self._conformed(rows, first_row, now_us))

    def _conformed(
        self, rows: Any, first_row: int | None = 0, now_us: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        self._check_started()
        accumulator = self._accumulator
        message_bytes, max_message_bytes = accumulator.limits_bytes
        return to_batches(
            rows,
            self._schema,
            self._options.topic,
            now_us=self._runtime.wall_us() if now_us is None else now_us,
            message_bytes=message_bytes,
            max_message_bytes=max_message_bytes,
            first_row=first_row,
            spread=None if isinstance(accumulator, Accumulator) else accumulator.spread,
        )

    def _memory_wait(self) -> MemoryWait:
        return MemoryWait(self._budget, self._options.max_block_ms / 1_000, self._runtime.mono_s)

    def _drop_unfinished(self) -> None:
        """Drop the Message in which a job with a name of its own failed: it is not sent half.

        When the job runs again it fills the same Message under the same name. Had half of it been
        published, the whole one would be refused.
        """
        if self._options.producer_id is not None:
            self._accumulator.drop_open(
                ClosedError(
                    "dropped: the block of the producer failed before this Message was full"
                )
            )

    # -- waiting for what was written -------------------------------------------------------

    async def flush(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - its own error
        """Seal what is open, and wait until all that was written is acked or failed.

        Args:
            timeout: longest wait in seconds; None for the delivery deadlines.

        Raises:
            RequestTimeoutError: it takes longer; what is not acked is still being delivered.
            ClosedError: the producer is closed.
            MemqError: the error of a Message that failed, if nobody has seen it yet.
        """
        self._check_started()
        if self._closed:
            raise self._closed_error()
        if self._hand_over is None:  # else the calling thread has done so, and the loop never waits
            self._accumulator.seal()
        await self._drain(timeout)

    async def close(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as `flush`
        """Flush, then close. What is not acked after `timeout` seconds fails. Idempotent.

        Raises:
            as `flush`.
        """
        if self._closed or not self._started:
            return
        self._closed = True
        why = self._closed_error()
        started_s = self._runtime.mono_s()
        try:
            self._end_writes()
            await self._drain(timeout)
            if records := self._accumulator.open_records:
                raise RequestTimeoutError(
                    f"{counted(records, 'record')} cannot be sent: another thread is in a write "
                    "that does not end"
                )
        finally:
            _unclosed.discard(self)
            self._state_machine.end(why)
            for handle in (self._ticker, self._timer):
                if handle is not None:
                    handle.cancel()
            for task in self._tasks:
                task.cancel()
            spent_s = self._runtime.mono_s() - started_s
            left_s = math.inf if timeout is None else timeout - spent_s
            await self._reporter.close(max(0.0, min(left_s, CLOSE_TIMEOUT_S)))
            await self._cluster.close()

    async def _drain(self, timeout_s: float | None) -> None:
        """Wait until everything that was sealed before this call is acked or failed.

        Raises:
            RequestTimeoutError: it takes longer than `timeout_s` (None: than the deadline).
            MemqError: the first failure of a Message that nobody has seen.
        """
        self._submit()
        unsettled = self._state_machine.unsettled()
        try:
            async with asyncio.timeout(timeout_s):
                while unsettled:
                    if unsettled[-1].settled:
                        unsettled.pop()
                    else:
                        await self._next_settlement()
        except TimeoutError as exc:
            count = sum(not message.settled for message in unsettled)
            raise RequestTimeoutError(
                f"{counted(count, 'Message is', 'Messages are')} not acknowledged after "
                f"{timeout_s:g} s, and delivery goes on"
                f"{self._budget.trouble and f'; {self._budget.trouble}'}"
            ) from exc
        self._outcomes.raise_unseen()

    async def _next_settlement(self) -> None:
        if self._settlement is None or self._settlement.done():
            self._settlement = self._loop.create_future()
        await asyncio.shield(self._settlement)

    def _end_writes(self) -> None:
        """Seal what is open and refuse further writes. Doing so again does nothing."""
        self._accumulator.end(self._closed_error())
        self._budget.close()

    def _unsent_records(self) -> int:
        """Count the records that were written and are neither acked nor failed."""
        named = [each.sealed for each in self._state_machine.unsettled() if not each.settled]
        return self._accumulator.open_records + sum(
            message.records for message in (*self._sealed, *named)
        )

    def _closed_error(self) -> ClosedError:
        return ClosedError(f"this producer to topic {self._options.topic!r} was closed")

    def _check_started(self) -> None:
        if not self._started:
            raise ClosedError("this producer is not started; use `async with`, or `await start()`")

    # -- events -----------------------------------------------------------------------------

    @_ends_producer
    def _submit(self) -> None:
        while self._sealed:
            self._state_machine.submit(self._sealed.popleft())
        self._poll_soon()

    def _submitted(self, message: NamedMessage) -> None:
        if self._audited:
            self._audit.submitted(message)
        if self._tracing is not None:
            message.span = self._tracing.send(self._options.topic, message.sealed.records)
            message.trace = self._tracing.context(message.span)

    def _settled(self, message: NamedMessage, outcome: StoredAt | MemqError) -> None:
        if self._audited:
            self._audit.settled(message, outcome)
        if self._tracing is not None and message.span is not None:
            error = outcome if isinstance(outcome, MemqError) else None
            self._tracing.sent(message.span, error)
        sealed = message.sealed
        if isinstance(outcome, MemqError):
            self._outcomes.failed(sealed.records, sealed.delivery)
        else:
            self._outcomes.acked(sealed.records, sealed.size_bytes)
        if self._settlement is not None and not self._settlement.done():
            self._settlement.set_result(None)

    @_ends_producer
    def _answered(
        self,
        message: NamedMessage,
        connection: BrokerConnection,
        answer: Struct | MemqError,
        _: object,
    ) -> None:
        if connection.closed and self._connections.get(connection.address) is connection:
            del self._connections[connection.address]
            self._state_machine.disconnected(connection.address)
        if isinstance(answer, WriteAnswer):
            self._state_machine.acked(message, answer)
        else:
            assert isinstance(answer, MemqError)  # noqa: S101 - the wire checked the type
            self._state_machine.failed(message, answer, self._runtime.mono_s())
        self._poll_soon()

    def _sent(
        self, message: NamedMessage, connection: BrokerConnection, error: MemqError | None
    ) -> None:
        """Count a Message that wants no answer and has left."""
        self._answered(message, connection, WriteAnswer() if error is None else error, None)

    # -- polling the state machine --------------------------------------------------------

    def _poll_soon(self) -> None:
        """Poll once for all events of one turn of the loop."""
        if not self._poll_pending:
            self._poll_pending = True
            self._loop.call_soon(self._poll)

    @_ends_producer
    def _poll(self) -> None:
        self._poll_pending = False
        for effect in self._state_machine.poll(self._runtime.mono_s()):
            self._carry_out(effect)
        if self._state_machine.error is not None:
            self._fail_writes(self._state_machine.error)
        self._set_timer()

    def _set_timer(self) -> None:
        wake_s = self._state_machine.wake_at_s()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if wake_s < math.inf:
            self._timer = self._loop.call_later(wake_s - self._runtime.mono_s(), self._poll_soon)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case SendMessage():
                self._send(effect)
            case ConnectToBroker():
                self._spawn(self._connect(effect.address))
            case DropConnection():
                connection = self._connections.pop(effect.address, None)
                if connection is not None:
                    connection.drop("it left a Message unanswered for too long")
            case RefreshHosts():
                self._spawn(self._refresh())

    def _send(self, send: SendMessage) -> None:
        message, sealed = send.message, send.message.sealed
        connection = self._connections.get(send.address)
        if connection is None:  # an effect before this one found that it has ended
            error = UnavailableError(f"the connection to broker {send.address} has ended")
            self._state_machine.failed(message, error, self._runtime.mono_s())
            return
        try:
            if send.header.acks == 0:
                sent = partial(self._sent, message, connection)
                connection.post(send.header, sealed.body, sealed.crc32c, sent)
            else:
                answered = partial(self._answered, message, connection)
                connection.send(send.header, sealed.body, sealed.crc32c, answered)
        except MemqError as exc:
            self._answered(message, connection, exc, None)

    async def _connect(self, address: str) -> None:
        try:
            self._connections[address] = await self._cluster.connection(address)
        except MemqError as exc:
            self._state_machine.connect_failed(address, exc, self._runtime.mono_s())
        else:
            self._state_machine.connected(address)
        self._poll_soon()

    async def _refresh(self) -> None:
        try:
            topic = await self._cluster.topic(self._options.topic, refresh=True)
            if topic.topic_id != self._state_machine.options.topic_id:
                raise TopicRecreatedError(
                    f"topic {self._options.topic!r} was deleted and recreated; reopen the "
                    "producer to write to it"
                )
            self._adopt(topic)
        except MemqError as exc:
            self._state_machine.refresh_failed(exc, self._runtime.mono_s())
        else:
            now_s, near = self._runtime.mono_s(), self._cluster.near()
            self._state_machine.refreshed(topic.hosts, now_s, near=near)
        self._poll_soon()

    async def _follow(self) -> None:
        """Learn where write partitions go as soon as they do, from a broker that says so.

        What goes wrong here is no news: a write that fails asks by itself.
        """
        failures = 0
        while True:
            started_s = self._runtime.mono_s()
            try:
                topic = await self._cluster.next_topic(self._options.topic, FOLLOW_S)
                if topic.topic_id == self._state_machine.options.topic_id:
                    self._adopt(topic)
                    self._state_machine.moved(topic.hosts, near=self._cluster.near())
                    self._poll_soon()
                failures = 0
            except MemqError as exc:
                log.debug("topic %s is not followed for a moment: %s", self._options.topic, exc)
                failures += 1
            pause_s = BROKER_BACKOFF.equal_jitter_s(failures, self._runtime.random)
            rest_s = started_s + REFRESH_INTERVAL_S - self._runtime.mono_s()
            await asyncio.sleep(max(pause_s if failures else 0.0, rest_s))

    async def _heed(self) -> None:
        """Ask why, when acks do not come; say so in the log once it begins and once it ends."""
        while True:
            await asyncio.sleep(HEED_S)
            before, trouble = self._state_machine.trouble, await self._trouble()
            if bool(trouble) != bool(before):
                what = trouble or "Messages are acked again"
                log.warning("topic %s: %s", self._options.topic, what)
            self._state_machine.trouble = self._budget.trouble = trouble
            for message in self._state_machine.unsettled() if trouble or before else ():
                message.sealed.delivery.trouble = trouble

    async def _trouble(self) -> str:
        """Why the oldest Message has waited for so long; empty when none has, or nobody knows."""
        now_s = self._runtime.mono_s()
        address, error = self._state_machine.overdue(now_s, self._patience_s)
        if not address or not self._may_ask:
            return error
        try:
            found = await self._cluster.status(address, timeout_s=STATUS_S)
        except ForbiddenError:  # it may only write, and would be denied every few seconds
            self._may_ask = False
            return error
        except MemqError as exc:
            return str(exc) if exc.retriable else error  # an older broker does not know the request
        services = [] if found.status is None else found.status.services
        words = "; ".join(filter(None, (state.words() for state in services)))
        return f"broker {address}: {words}" if words else error

    def _adopt(self, topic: TopicInfo) -> None:
        self._schema_id = topic.schema_id
        self._schema: pa.Schema = deserialize_schema(topic.schemas[topic.schema_id])

    # -- the accumulator's time -------------------------------------------------------------

    def _arm_ticker(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
        self._ticker = self._loop.call_later(self._accumulator.first_tick_s, self._tick)

    @_ends_producer
    def _tick(self) -> None:
        self._ticker = None
        next_s = self._accumulator.tick(may_seal=self._state_machine.unsent == 0)
        if self._sealed:  # an interrupt may have kept `on_ready` away
            self._submit()
        if next_s is not None:
            self._ticker = self._loop.call_later(next_s, self._tick)

    # -- the end ----------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._reap)

    def _reap(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (exc := task.exception()) is not None:
            self._end(exc)

    def _end(self, exc: BaseException) -> None:
        error = MemqError(f"internal error of the producer: {exc!r}")
        self._state_machine.end(error)
        self._fail_writes(error)

    def _fail_writes(self, error: MemqError) -> None:
        """Refuse further writes with this error; what is open fails when `tick` has sealed it."""
        self._accumulator.fail(error)
        self._budget.close()
        self._arm_ticker()


_unclosed: weakref.WeakSet[AsyncProducer] = weakref.WeakSet()


@atexit.register
def _tell_unsent() -> None:
    """Say on stderr what a program that ends without closing its producers has not sent."""
    for producer in list(_unclosed):
        if records := producer._unsent_records():
            sys.stderr.write(
                f"memq: the producer to topic {producer._options.topic!r} was not closed, and "
                f"{counted(records, 'record was', 'records were')} not sent; call close() before "
                "the program ends, or use `with`\n"
            )


class Producer(SyncClient[AsyncProducer]):
    """Writes to one topic, from any number of threads. Use it with `with`, or `close` it.

    It finds the topic when it is made; an event loop in a background thread does the rest. In a
    child process after a fork it raises `ClosedError`: make another one there.

    Args:
        bootstrap: comma separated `host:port` of some brokers; None for those of `MEMQ_BOOTSTRAP`,
            of the profile, or else 127.0.0.1:6367.
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
        client = AsyncProducer(bootstrap, topic=topic, **options)
        loop = EventLoopThread(f"memq-producer-{topic}")
        client._hand_over = loop.call
        loop.owner = client  # records are said to be lost also when the producer is
        super().__init__(client, loop)
        self._accumulator = client._accumulator

    producer_id: str = sync_property(AsyncProducer, "producer_id")
    write_partitions: int = sync_property(AsyncProducer, "write_partitions")
    max_value_bytes: int = sync_property(AsyncProducer, "max_value_bytes")
    schema: pa.Schema = sync_property(AsyncProducer, "schema")
    topic_id: str = sync_property(AsyncProducer, "topic_id")
    stats: ProducerStats = sync_property(AsyncProducer, "stats")

    # What is written goes into the accumulator from the calling thread: nothing hops to the loop.

    @documented_by(AsyncProducer.write)
    def write(
        self,
        value: BytesLike | None,
        key: BytesLike | None = None,
        headers: Headers | None = None,
        timestamp: datetime | int | None = None,
    ) -> Delivery:
        delivery = self._accumulator.write(value, key, headers, timestamp)
        if delivery is None:
            delivery = self._when_free(
                partial(self._accumulator.write, value, key, headers, timestamp)
            )
        return delivery

    @documented_by(AsyncProducer.write_table)
    def write_table(self, rows: Any) -> list[Delivery]:
        deliveries = []
        for batch in self._client._conformed(rows):
            write = partial(self._accumulator.write_batch, batch, self._client._schema_id)
            deliveries.append(write() or self._when_free(write))
        return deliveries

    @documented_by(AsyncProducer.write_rows)
    def write_rows(self, rows: Iterable[Mapping[str, Any]]) -> list[Delivery]:
        return self.write_table(to_table(rows, self.schema, self._client._options.topic))

    @documented_by(AsyncProducer.conformed)
    def conformed(
        self, rows: Any, *, first_row: int | None = 0, now_us: int | None = None
    ) -> list[pa.RecordBatch]:
        return self._client.conformed(rows, first_row=first_row, now_us=now_us)

    @documented_by(AsyncProducer.flush)
    def flush(self, timeout: float | None = None) -> None:
        self._accumulator.seal()  # here, so that encoding does not hold up the event loop
        self._loop.run(self._client.flush(timeout))

    close = sync_close(AsyncProducer.close)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc is not None and not self._closed:
            self._client._drop_unfinished()
        super().__exit__(exc_type, exc, traceback)

    def _before_end(self) -> None:
        self._client._end_writes()  # here: the event loop does not wait for threads that write

    def _when_free(self, write: Callable[[], Delivery | None]) -> Delivery:
        if self._loop.is_current:  # waiting here would keep away the acks that are waited for
            raise BufferFullError(
                "buffer_bytes is reached, and a callback of a delivery cannot wait for room"
            )
        return self._client._memory_wait().block(write)
