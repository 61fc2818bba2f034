"""What becomes of Messages: the future that `write` returns, and the counts of all outcomes."""

from __future__ import annotations

import asyncio
import logging
import threading
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
        offset: of that notification; -1 likewise.
        batch_id: of the Batch; empty likewise.
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
    """The outcome of one Message, shared by all records in it. Thread safe.

    In a thread, `result()` waits; in asyncio, `await delivery` does. It always ends, at the latest
    with `DeliveryTimeoutError` at the Message's deadline.

    Attributes:
        seen: True when somebody was given the outcome. An error that nobody saw is raised by the
            producer's next `flush` or `close`.
        trouble: why it takes long, as a broker says; empty when it does not.
    """

    __slots__ = ("_callbacks", "_error", "_lock", "_on_wait", "_stored", "seen", "trouble")

    def __init__(self, on_wait: Callable[[], None] | None = None) -> None:
        self.seen = False
        self.trouble = ""
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[Delivery], object]] = []
        self._on_wait = on_wait
        self._stored: StoredAt | None = None
        self._error: MemqError | None = None

    def __repr__(self) -> str:
        state = self._stored or (self._error and f"failed: {self._error}") or "pending"
        return f"<Delivery {state}>"

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._stored is not None or self._error is not None

    def result(self, timeout: float | None = None) -> StoredAt:
        """Where the Message was stored; waits up to `timeout` seconds (None: to its deadline).

        Raises:
            DeliveryTimeoutError: it was not acked by its deadline.
            RequestTimeoutError: the outcome is still open after `timeout`.
            MemqError: it was refused, with the broker's typed error.
        """
        self._wait(timeout)
        return self._outcome()

    def exception(self, timeout: float | None = None) -> MemqError | None:
        """The error of the Message, None when it was acked; waits as `result` does.

        Raises:
            RequestTimeoutError: the outcome is still open after `timeout`.
        """
        self._wait(timeout)
        self.seen = True
        return self._error

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
            self._watch(wake)
            try:
                yield from waiting
            finally:
                self._unwatch(wake)
        return self._outcome()

    # -- for the producer -------------------------------------------------------------------

    def sealed(self) -> None:
        """The Message is on its way: waiting for it need not seal it any more."""
        self._on_wait = None

    def settle(self, outcome: StoredAt | MemqError) -> None:
        """Make the outcome known. Only the first one counts."""
        with self._lock:
            if self.done():
                return
            if isinstance(outcome, StoredAt):
                self._stored = outcome
            else:
                self._error = outcome
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            self._tell(callback)

    def _wait(self, timeout_s: float | None) -> None:
        if self.done():
            return
        settled: SimpleQueue[Delivery] = SimpleQueue()  # never left locked: see `memq.client.sync`
        self._seal()
        self._watch(settled.put)
        try:
            settled.get(timeout=None if timeout_s is None else max(0.0, timeout_s))
        except Empty as exc:
            why = f"; {self.trouble}" if self.trouble else ""
            raise RequestTimeoutError(
                f"the Message is not settled after {timeout_s:g} s{why}"
            ) from exc
        finally:
            self._unwatch(settled.put)

    def _outcome(self) -> StoredAt:
        self.seen = True
        if self._error is not None:
            raise self._error
        assert self._stored is not None  # noqa: S101 - called when done
        return self._stored

    def _seal(self) -> None:
        """Without a linger time nothing but the one who waits would end the Message."""
        on_wait = self._on_wait
        if on_wait is not None:
            on_wait()

    def _watch(self, callback: Callable[[Delivery], object]) -> None:
        with self._lock:
            if not self.done():
                self._callbacks.append(callback)
                return
        self._tell(callback)

    def _unwatch(self, callback: Callable[[Delivery], object]) -> None:
        with self._lock, suppress(ValueError):
            self._callbacks.remove(callback)

    def _tell(self, callback: Callable[[Delivery], object]) -> None:
        try:
            callback(self)
        except Exception:  # noqa: BLE001 - it is the caller's code; the Message is settled all the same
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
        unsettled: Messages sealed and not settled now.
        buffer_bytes: memory in use now.
    """

    acked_messages: int = 0
    acked_records: int = 0
    acked_bytes: int = 0
    failed_messages: int = 0
    failed_records: int = 0
    in_flight: int = 0
    unsettled: int = 0
    buffer_bytes: int = 0


class Outcomes:
    """Counts settled Messages, and remembers the failed ones until they are raised.

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
        """A Message was acked."""
        counts = self.counts
        self.counts = counts._replace(
            acked_messages=counts.acked_messages + 1,
            acked_records=counts.acked_records + records,
            acked_bytes=counts.acked_bytes + size_bytes,
        )

    def failed(self, records: int, delivery: Delivery) -> None:
        """A Message was given up."""
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
