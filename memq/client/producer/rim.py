"""The rim of a producer: sockets, timers and tasks around accumulator and core, on an event loop.

    any thread                     event loop
    write → Accumulator ──sealed──▶ submit → ProducerCore ──poll──▶ effects → Cluster, connections
                    ◀──budget────── settled ◀── answers ◀─────────────────────────┘

`hand_over` carries calls from the threads that write to the loop, in order. Everything else in here
runs on the loop. An error that nothing expected ends the producer: it fails all deliveries, and
every later call.
"""

from __future__ import annotations

import asyncio
import math
import threading
from functools import partial, wraps
from typing import TYPE_CHECKING

from memq.client.audit.counters import ProducedCounters
from memq.client.audit.reporter import CLOSE_TIMEOUT_S, AuditReporter
from memq.client.cluster import Cluster
from memq.client.producer.accumulator import Accumulator
from memq.client.producer.memory import ByteBudget
from memq.client.producer.options import answer_timeout_s
from memq.client.producer.state import Connect, CoreOptions, Drop, Effect, Entry, Refresh, Send
from memq.client.producer.state_machine import ProducerCore
from memq.client.producer.stats import Outcomes
from memq.core.format.schema import DEFAULT_SCHEMA, deserialize_schema
from memq.core.runtime import SYSTEM, Runtime
from memq.core.wire.messages import WriteAnswer
from memq.errors import (
    ClosedError,
    MemqError,
    RequestTimeoutError,
    TopicRecreatedError,
    UnavailableError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any, Concatenate, ParamSpec

    import pyarrow as pa

    from memq.client.connection import BrokerConnection
    from memq.client.producer.accumulator import SealedMessage
    from memq.client.producer.delivery import StoredAt
    from memq.client.producer.options import ProducerOptions
    from memq.client.producer.stats import ProducerStats
    from memq.core.wire.messages import Struct, TopicInfo

    P = ParamSpec("P")


def _ends_producer(
    event: Callable[Concatenate[ProducerRim, P], None],
) -> Callable[Concatenate[ProducerRim, P], None]:
    """An error that nothing expected in this method ends the producer: all who wait learn of it."""

    @wraps(event)
    def guarded(self: ProducerRim, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            event(self, *args, **kwargs)
        except Exception as exc:
            self._end(exc)
            raise

    return guarded


class ProducerRim:
    """Everything of a producer but its public face. Make it with `await ProducerRim.start(…)`.

    Attributes:
        options: of the producer.
        schema: that tables must have, as the cluster told it last.
        schema_id: of that schema.
        accumulator: where records and tables go.
        budget: memory for Messages.
        runtime: clocks, chance and threads.
        loop_thread: identity of the thread that runs the loop.
    """

    def __init__(
        self,
        options: ProducerOptions,
        cluster: Cluster,
        topic: TopicInfo,
        *,
        hand_over: Callable[..., object],
    ) -> None:
        self.options = options
        self.runtime = cluster.runtime
        self._adopt(topic)
        self._cluster = cluster
        self._loop = asyncio.get_running_loop()
        self.loop_thread = threading.get_ident()
        config = topic.config
        core_options = CoreOptions(
            topic=config.name,
            incarnation=topic.incarnation,
            producer_id=options.producer_id or self.runtime.token_hex(16),
            epoch=options.epoch,
            acks=options.acks,
            ordered=config.ordering == "producer",
            fixed_partitions=options.producer_id is not None,
            max_in_flight=options.max_in_flight,
            delivery_timeout_s=options.delivery_timeout_s(config),
            answer_timeout_s=answer_timeout_s(config),
        )
        self._audit = ProducedCounters(core_options, options.client, now_ms=self.runtime.wall_ms)
        self._reporter = AuditReporter(cluster, self._audit.take_reports)
        self.budget = ByteBudget(options.buffer_bytes)
        self._core = ProducerCore(
            core_options,
            topic.hosts if options.producer_id is None else topic.hosts[: topic.named_partitions],
            release=self.budget.give,
            on_submitted=self._named,
            on_settled=self._settled,
            randomness=self.runtime.random,
        )
        self.accumulator = Accumulator(
            self.budget,
            message_bytes=options.message_bytes,
            max_message_bytes=config.message_bytes,
            linger_s=options.linger_s,
            compression=options.compression,
            schema_id=topic.schema_id if self.schema.equals(DEFAULT_SCHEMA) else None,
            on_sealed=partial(hand_over, self._submit),
            on_wake=partial(hand_over, self._arm_ticker),
            clock=self.runtime.mono_s,
            wall_us=self.runtime.wall_us,
        )
        self._connections: dict[str, BrokerConnection] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._ticker: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._poll_pending = False
        self._closed = False
        self._settlement: asyncio.Future[None] | None = None  # of the next Message, for `drain`
        self._outcomes = Outcomes()
        if config.audited:
            self._reporter.start()

    @classmethod
    async def start(
        cls,
        bootstrap: str | None,
        options: ProducerOptions,
        *,
        hand_over: Callable[..., object],
        runtime: Runtime = SYSTEM,
    ) -> ProducerRim:
        """Find the topic, and be ready to write to it.

        Args:
            bootstrap: as `Cluster` takes it.
            options: of the producer.
            hand_over: has the loop call a function soon, in order, from any thread that writes.
            runtime: clocks, chance and threads.

        Raises:
            UnknownTopicError: there is no such topic.
            ConfigError: the options do not fit the topic.
            MemqError: no broker can be asked within `max_block`.
        """
        cluster = Cluster(bootstrap, client=options.client, token=options.token, runtime=runtime)
        try:
            topic = await cluster.topic(
                options.topic, create=True, timeout_s=options.max_block_ms / 1_000
            )
            return cls(options, cluster, topic, hand_over=hand_over)
        except BaseException:
            await cluster.close()
            raise

    def __repr__(self) -> str:
        return f"<ProducerRim {self._core!r} {self.accumulator!r}>"

    @property
    def producer_id(self) -> str:
        """Name under which the Messages are sent."""
        return self._core.options.producer_id

    @property
    def incarnation(self) -> str:
        """Of the topic that is written to."""
        return self._core.options.incarnation

    @property
    def write_partitions(self) -> int:
        """Write partitions that Messages are spread over."""
        return self._core.write_partitions

    @property
    def stats(self) -> ProducerStats:
        """What was done so far; exact when read on the loop."""
        return self._outcomes.stats(
            in_flight=self._core.in_flight,
            unsettled=self._core.unsettled_count,
            buffer_bytes=self.budget.used_bytes,
        )

    # -- waiting for what was written -------------------------------------------------------

    async def drain(self, timeout_s: float | None) -> None:
        """Wait until everything that was sealed before this call is settled.

        Raises:
            RequestTimeoutError: it takes longer than `timeout_s` (None: than the deadline).
            MemqError: the first failure of a Message that nobody has seen.
        """
        await asyncio.sleep(0)  # what was sealed is handed over first
        unsettled = self._core.unsettled()
        try:
            async with asyncio.timeout(timeout_s):
                while unsettled:
                    if unsettled[-1].settled:
                        unsettled.pop()
                    else:
                        await self._next_settlement()
        except TimeoutError as exc:
            count = sum(not entry.settled for entry in unsettled)
            raise RequestTimeoutError(
                f"{count} Messages are not settled after {timeout_s:g} s; they are still being "
                "delivered"
            ) from exc
        self._outcomes.raise_unseen()

    async def flush(self, timeout_s: float | None) -> None:
        """Seal what is open, and drain.

        Raises:
            ClosedError: the producer is closed.
            as `drain`.
        """
        if self._closed:
            raise self._closed_error()
        self.accumulator.seal()
        await self.drain(timeout_s)

    async def close(self, timeout_s: float | None) -> None:
        """Deliver what was written, or give it up after `timeout_s`, and free everything.

        Raises:
            as `drain`.
        """
        if self._closed:
            return
        self._closed = True
        why = self._closed_error()
        started_s = self.runtime.mono_s()
        try:
            self.accumulator.end(why)
            self.budget.close()
            await self.drain(timeout_s)
        finally:
            self._core.end(why)
            for handle in (self._ticker, self._timer):
                if handle is not None:
                    handle.cancel()
            for task in self._tasks:
                task.cancel()
            spent_s = self.runtime.mono_s() - started_s
            left_s = math.inf if timeout_s is None else timeout_s - spent_s
            await self._reporter.close(max(0.0, min(left_s, CLOSE_TIMEOUT_S)))
            await self._cluster.close()

    async def _next_settlement(self) -> None:
        if self._settlement is None or self._settlement.done():
            self._settlement = self._loop.create_future()
        await asyncio.shield(self._settlement)

    def _closed_error(self) -> ClosedError:
        return ClosedError(f"this producer to topic {self.options.topic!r} was closed")

    # -- events -----------------------------------------------------------------------------

    @_ends_producer
    def _submit(self, message: SealedMessage) -> None:
        self._core.submit(message)
        self._poll_soon()

    def _named(self, entry: Entry) -> None:
        if self._reporter.started:
            self._audit.submitted(entry)

    def _settled(self, entry: Entry, outcome: StoredAt | MemqError) -> None:
        if self._reporter.started:
            self._audit.settled(entry, outcome)
        self._outcomes.settled(entry, outcome if isinstance(outcome, MemqError) else None)
        if self._settlement is not None and not self._settlement.done():
            self._settlement.set_result(None)

    @_ends_producer
    def _answered(
        self, entry: Entry, connection: BrokerConnection, answer: Struct | MemqError, _: object
    ) -> None:
        if connection.closed and self._connections.get(connection.address) is connection:
            del self._connections[connection.address]
            self._core.disconnected(connection.address)
        if isinstance(answer, WriteAnswer):
            self._core.acked(entry, answer)
        else:
            assert isinstance(answer, MemqError)  # noqa: S101 - the wire checked the type
            self._core.failed(entry, answer, self.runtime.mono_s())
        self._poll_soon()

    def _sent(self, entry: Entry, connection: BrokerConnection, error: MemqError | None) -> None:
        """A Message that wants no answer has left."""
        self._answered(entry, connection, WriteAnswer() if error is None else error, None)

    # -- polling the core -------------------------------------------------------------------

    def _poll_soon(self) -> None:
        """Poll once for all events of one turn of the loop."""
        if not self._poll_pending:
            self._poll_pending = True
            self._loop.call_soon(self._poll)

    @_ends_producer
    def _poll(self) -> None:
        self._poll_pending = False
        for effect in self._core.poll(self.runtime.mono_s()):
            self._carry_out(effect)
        if self._core.error is not None:
            self.accumulator.end(self._core.error)
            self.budget.close()
        self._set_timer()

    def _set_timer(self) -> None:
        wake_s = self._core.wake_at_s()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if wake_s < math.inf:
            self._timer = self._loop.call_later(wake_s - self.runtime.mono_s(), self._poll_soon)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Send():
                self._send(effect)
            case Connect():
                self._spawn(self._connect(effect.address))
            case Drop():
                connection = self._connections.pop(effect.address, None)
                if connection is not None:
                    connection.drop("it left a Message unanswered for too long")
            case Refresh():
                self._spawn(self._refresh())

    def _send(self, send: Send) -> None:
        entry, message = send.entry, send.entry.message
        connection = self._connections.get(send.address)
        if connection is None:  # an effect before this one found that it has ended
            error = UnavailableError(f"the connection to broker {send.address} has ended")
            self._core.failed(entry, error, self.runtime.mono_s())
            return
        try:
            if send.header.acks == 0:
                sent = partial(self._sent, entry, connection)
                connection.post(send.header, message.body, message.crc32c, sent)
            else:
                answered = partial(self._answered, entry, connection)
                connection.send(send.header, message.body, message.crc32c, answered)
        except MemqError as exc:
            self._answered(entry, connection, exc, None)

    async def _connect(self, address: str) -> None:
        try:
            self._connections[address] = await self._cluster.connection(address)
        except MemqError as exc:
            self._core.connect_failed(address, exc, self.runtime.mono_s())
        else:
            self._core.connected(address)
        self._poll_soon()

    async def _refresh(self) -> None:
        try:
            topic = await self._cluster.topic(self.options.topic, refresh=True)
            if topic.incarnation != self._core.options.incarnation:
                raise TopicRecreatedError(
                    f"topic {self.options.topic!r} was deleted and made again; open the producer "
                    "anew to write to it"
                )
            self._adopt(topic)
        except MemqError as exc:
            self._core.refresh_failed(exc, self.runtime.mono_s())
        else:
            self._core.refreshed(topic.hosts, self.runtime.mono_s())
        self._poll_soon()

    def _adopt(self, topic: TopicInfo) -> None:
        self.schema_id = topic.schema_id
        self.schema: pa.Schema = deserialize_schema(topic.schemas[topic.schema_id])

    # -- the accumulator's time -------------------------------------------------------------

    def _arm_ticker(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
        self._ticker = self._loop.call_later(self.accumulator.first_tick_s, self._tick)

    @_ends_producer
    def _tick(self) -> None:
        self._ticker = None
        next_s = self.accumulator.tick(may_seal=self._core.unsent == 0)
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
        self._core.end(error)
        self.accumulator.end(error)
        self.budget.close()
