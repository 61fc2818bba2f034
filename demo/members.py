"""The demo's consumer group: members that read while everything else fails."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from demo.check import compare
from memq import Consumer
from memq.errors import MemqError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from demo.check import Comparison

POLL_S = 1.0
JOIN_S = 60.0  # for a member to leave


class Members:
    """Members of one group, each in a thread of its own, from `start` to `stop`.

    A Batch that comes again, for its commit did not get through or was lost, is counted and not
    kept twice.

    Args:
        bootstrap: addresses of brokers.
        topic: that they read.
        count: of members.

    Attributes:
        redelivered: Batches that came again.
        retried: errors after which a member went on.
        failed: texts of errors that have ended a member; there should be none.
    """

    def __init__(self, bootstrap: str, topic: str, count: int) -> None:
        self.redelivered = self.retried = 0
        self.failed: list[str] = []
        self._bootstrap = bootstrap
        self._topic = topic
        self._batches: dict[str, list[tuple[bytes | None, Any]]] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(count)]

    def start(self) -> None:
        """Let them join, and read from the beginning."""
        for thread in self._threads:
            thread.start()

    def wait(self, lines: int, timeout_s: float) -> None:
        """Wait until so many lines were read, a member has failed, or the time is over."""
        until_s = time.monotonic() + timeout_s
        while self._lines() < lines and not self.failed and time.monotonic() < until_s:
            time.sleep(POLL_S / 10)

    def stop(self) -> None:
        """Let them leave. May be called again."""
        self._over.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(JOIN_S)

    def compare(self, lines: Sequence[bytes]) -> Comparison:
        """What they have read, beside the input."""
        with self._lock:
            rows = [row for batch in self._batches.values() for row in batch]
            return compare(rows, len(self._batches), lines)

    def _lines(self) -> int:
        with self._lock:
            return sum(map(len, self._batches.values()))

    def _run(self) -> None:
        try:
            with Consumer(
                self._bootstrap, topic=self._topic, group="demo", start="earliest"
            ) as consumer:
                while not self._over.is_set():
                    self._read(consumer)
        except MemqError as exc:
            self.failed.append(str(exc))

    def _read(self, consumer: Consumer) -> None:
        try:
            batch = consumer.poll(timeout=POLL_S)
            if batch is None:
                return
            rows = [(message.key, message.value) for message in batch]
            with self._lock:
                batch_id = batch.notification.batch_id
                self.redelivered += batch_id in self._batches
                self._batches[batch_id] = rows
            consumer.commit()
        except MemqError as exc:
            if not exc.retriable:
                raise
            self.retried += 1
