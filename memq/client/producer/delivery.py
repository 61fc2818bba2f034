"""What becomes of Messages: the future that `write` returns, and the counts of all outcomes."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, NamedTuple

from memq.core.units import counted
from memq.errors import RequestTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from memq.errors import MemqError

_log = logging.getLogger(__name__)

MAX_FAILED = 1_000  # failed deliveries kept to raise one that nobody has seen; one is enough


class StoredAt(NamedTuple):
    """Where a Message is.

    Attributes:
        topic: the topic.
        partition: read partition of the notification of its Batch; -1 when the ack did not say,
            which is so with acks 0 and 1.
        offset: of that notification; -1 where `partition` is.
        batch_id: of the Batch; empty where `partition` is -1.
        write_partition: that the Message belongs to.
        sequence: of the Message, in its write partition and by its producer.
        duplicate: the broker had published it before, and did not publish it again.
    """

    topic: str
    partition: int
    offset: int
    batch_id: str
    write_partition: int
    sequence: int
    duplicate: bool


class Delivery:
    """The outcome of one Message, shared by all records in it. Thread safe, without a lock.

    The event loop must not wait for a thread here: a signal's handler may have interrupted it.
    The thread that takes a callback out of the dict calls it, so each is called once.

    In a thread, `result()` waits; in asyncio, `await delivery` does. It always ends, at the latest
    with `DeliveryTimeoutError` at the Message's deadline.

    Attributes:
        seen: True when somebody was given the outcome. An error that nobody saw is raised by the
            producer's next `flush` or `close`.
        trouble: why it takes long, as a broker says; empty when it does not.
    """

    __slots__ = ("_callbacks", "_on_wait", "_settled", "seen", "trouble")

    def __init__(self, on_wait: Callable[[], None] | None = None) -> None:
        self.seen = False
        self.trouble = ""
        self._callbacks: dict[object, Callable[[Delivery], object]] = {}
        self._on_wait = on_wait
        self._settled: StoredAt | MemqError | None = None

    def __repr__(self) -> str:
        outcome = self._settled
        state = f"failed: {outcome}" if isinstance(outcome, Exception) else outcome or "pending"
        return f"<Delivery {state}>"

    def done(self) -> bool:
        """Return whether the outcome is known."""
        return self._settled is not None

    def result(self, timeout: float | None = None) -> StoredAt:
        """Return where the Message was stored; wait up to `timeout` seconds (None: to its
        deadline).

        Raises:
            DeliveryTimeoutError: it was not acked by its deadline.
            RequestTimeoutError: the outcome is still open after `timeout`.
            InvalidRequestError: a signal's handler, `__del__` or a logging handler asks, in the
                middle of a write.
            MemqError: it was refused, with the broker's typed error.
        """
        self._wait(timeout)
        return self._outcome()

    def exception(self, timeout: float | None = None) -> MemqError | None:
        """Return the error of the Message, None when it was acked; wait as `result` does.

        Raises:
            RequestTimeoutError: the outcome is still open after `timeout`.
        """
        self._wait(timeout)
        self.seen = True
        return self._settled if isinstance(self._settled, Exception) else None

    def add_done_callback(self, callback: Callable[[Delivery], object]) -> None:
        """Call `callback(delivery)` when the outcome is known; at once if it is.

        It is called on the producer's event loop and must not block. It counts as having seen the
        outcome. What it raises is logged.
        """
        self.seen = True
        self._watch(callback)

    def __await__(self) -> Generator[object, None, StoredAt]:
        if not self.done():
            loop = asyncio.get_running_loop()
            waiting = loop.create_future()

            def wake(_: Delivery) -> None:
                with suppress(RuntimeError):  # that loop is closed: nobody waits there any more
                    loop.call_soon_threadsafe(_set, waiting)

            self._seal()
            watch = self._watch(wake)
            try:
                yield from waiting
            finally:
                self._callbacks.pop(watch, None)
        return self._outcome()

    # -- for the producer -------------------------------------------------------------------

    def sealed(self) -> None:
        """Record that the Message is on its way: waiting for it need not seal it any more."""
        self._on_wait = None

    def settle(self, outcome: StoredAt | MemqError) -> None:
        """Make the outcome known. Only the first one counts."""
        if self._settled is None:
            self._settled = outcome
            for watch in tuple(self._callbacks):
                self._tell(watch)

    def _wait(self, timeout_s: float | None) -> None:
        if self.done():
            return
        settled: SimpleQueue[Delivery] = SimpleQueue()  # never left locked: see `memq.client.sync`
        self._seal()
        watch = self._watch(settled.put)
        try:
            settled.get(timeout=None if timeout_s is None else max(0.0, timeout_s))
        except Empty as exc:
            why = f"; {self.trouble}" if self.trouble else ""
            raise RequestTimeoutError(
                f"the Message is not acknowledged after {timeout_s:g} s{why}"
            ) from exc
        finally:
            self._callbacks.pop(watch, None)

    def _outcome(self) -> StoredAt:
        self.seen = True
        if isinstance(self._settled, Exception):
            raise self._settled
        assert self._settled is not None  # noqa: S101 - called when done
        return self._settled

    def _seal(self) -> None:
        """Have the Message end: without a linger time nothing but the one who waits would do so.

        Raises:
            InvalidRequestError: the caller has interrupted a write, so the Message cannot end.
        """
        on_wait = self._on_wait
        if on_wait is not None:
            on_wait()

    def _watch(self, callback: Callable[[Delivery], object]) -> object:
        """Have it called when the outcome is known; return its key among the callbacks."""
        watch = object()
        self._callbacks[watch] = callback
        if self.done():
            self._tell(watch)
        return watch

    def _tell(self, watch: object) -> None:
        callback = self._callbacks.pop(watch, None)
        if callback is None:
            return  # another thread tells it
        try:
            callback(self)
        except Exception:  # noqa: BLE001 - it is the caller's code; the Message's outcome stands
            _log.exception("a callback of a delivery raised")


def _set(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


class ProducerStats(NamedTuple):
    """What a producer did so far.

    Attributes:
        acked_messages: Messages acked; with acks=0, sent.
        acked_records: records in them.
        acked_bytes: bytes in them.
        failed_messages: Messages given up.
        failed_records: records in them.
        in_flight: Messages without an answer now.
        unsettled: Messages sealed, and neither acked nor failed now.
        buffer_bytes: memory in use now.
        throttled_ms: for how long brokers let this producer wait, by its quotas.
    """

    acked_messages: int = 0
    acked_records: int = 0
    acked_bytes: int = 0
    failed_messages: int = 0
    failed_records: int = 0
    in_flight: int = 0
    unsettled: int = 0
    buffer_bytes: int = 0
    throttled_ms: int = 0


class Outcomes:
    """Counts acked and failed Messages, and remembers the failed ones until they are raised.

    Attributes:
        counts: so far.
    """

    def __init__(self) -> None:
        self.counts = ProducerStats()
        self._failed: list[Delivery] = []

    def __repr__(self) -> str:
        counts = self.counts
        return f"<Outcomes [{counts.acked_messages} acked | {counts.failed_messages} failed]>"

    def acked(self, records: int, size_bytes: int) -> None:
        """Record that a Message was acked."""
        counts = self.counts
        self.counts = counts._replace(
            acked_messages=counts.acked_messages + 1,
            acked_records=counts.acked_records + records,
            acked_bytes=counts.acked_bytes + size_bytes,
        )

    def failed(self, records: int, delivery: Delivery) -> None:
        """Record that a Message was given up."""
        counts = self.counts
        self.counts = counts._replace(
            failed_messages=counts.failed_messages + 1,
            failed_records=counts.failed_records + records,
        )
        if len(self._failed) < MAX_FAILED:
            self._failed.append(delivery)

    def raise_unseen(self) -> None:
        """Raise the first error that nobody was told by its delivery; each is raised once.

        Raises:
            MemqError: that error, with a note of how many there are.
        """
        failed, self._failed = self._failed, []
        errors = [delivery.exception() for delivery in failed if not delivery.seen]
        unseen = [error for error in errors if error is not None]
        if unseen:
            unseen[0].add_note(f"{counted(len(unseen), 'Message')} failed and nobody had looked")
            raise unseen[0]
