"""The access log: who got in or did not, who was denied, and who changed what, as lines of JSON.

    {"time": "2026-07-01T12:00:00.000Z", "broker": "broker-1", "event": "AlterTopic",
     "principal": "User:ann", "host": "10.0.0.7", "client": "memq", "outcome": "ok",
     "request": {"topic": "clicks", "options": {"retention": "1d"}}, "before": {…}}

Nobody waits for it: lines go to a thread by a bounded queue. What does not fit, or comes faster
than `MAX_LINES_S`, is counted, and so is what cannot be written. The file may be moved away at any
time, as logrotate does: another one is begun.
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
from collections import deque
from logging.handlers import QueueHandler, QueueListener, WatchedFileHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from memq.core.units import iso_ms
from memq.core.wire.messages import REQUESTS, PutUser
from memq.errors import ConfigError
from memq.runtime.files import explain

if TYPE_CHECKING:
    from prometheus_client import Counter

    from memq.core.access.rules import Access
    from memq.runtime.system import Runtime

MAX_WAITING = 10_000  # lines
MAX_LINES_S = 1_000
MAX_TEXT = 4_096  # characters of what a request says
KEPT_LINES = 200  # that are kept in memory, to be shown, each up to `MAX_TEXT`: below 1 MiB

CHANGES = frozenset(
    each.request
    for each in REQUESTS.values()
    if any(need.operation in ("create", "delete", "alter") for need in each.needs)
)
"""Requests that are logged, whatever comes of them."""


class AccessLog:
    """See above.

    Args:
        path: of the file; empty for none.
        broker_id: stands in each line.
        runtime: tells the time.
        lost: counts lines that were not written.

    Attributes:
        kept: the newest lines, the last one at the end.

    Raises:
        ConfigError: the file cannot be written.
    """

    def __init__(self, path: str, broker_id: str, runtime: Runtime, lost: Counter) -> None:
        self._broker_id = broker_id
        self._runtime = runtime
        self._lost = lost
        self._second = self._in_second = 0
        self.kept: deque[str] = deque(maxlen=KEPT_LINES)
        self._queue: _Lines | None = None
        self._thread: QueueListener | None = None
        if path:
            self._open(path)

    def __repr__(self) -> str:
        return f"<AccessLog [{'on' if self._thread else 'off'}]>"

    @property
    def is_on(self) -> bool:
        """Whether it is written."""
        return self._queue is not None

    def _open(self, path: str) -> None:
        try:
            file = _File(Path(path).expanduser(), self._lost)
        except OSError as exc:
            raise ConfigError(f"access_log = {path}: cannot be written: {explain(exc)}") from exc
        lines: queue.Queue[logging.LogRecord] = queue.Queue(MAX_WAITING)
        self._queue = _Lines(lines, self._lost)
        self._thread = QueueListener(lines, file)
        self._thread.start()

    def note(self, event: str, who: Access, client: str, outcome: str = "ok", **more: Any) -> None:
        """Log what somebody did.

        Args:
            event: `login`, `disconnected`, `denied`, or the name of a request.
            who: did it.
            client: as it names itself.
            outcome: `ok`, or the code of an error.
            **more: what else is known of it.
        """
        if self._queue is None:
            return
        now_ms = self._runtime.wall_ms()
        if now_ms // 1000 != self._second:
            self._second, self._in_second = now_ms // 1000, 0
        self._in_second += 1
        if self._in_second > MAX_LINES_S:
            self._lost.inc()
            return
        line = {
            "time": iso_ms(now_ms),
            "broker": self._broker_id,
            "event": event,
            "principal": who.principal,
            "host": who.host,
            "client": client[:MAX_TEXT],
            "outcome": outcome,
        }
        text = json.dumps(line | more)
        self.kept.append(text[:MAX_TEXT])
        self._queue.handle(logging.LogRecord("memq.access", logging.INFO, "", 0, text, None, None))

    def close(self) -> None:
        """Write what waits, and stop."""
        if self._thread is not None:
            with contextlib.suppress(queue.Full):  # its file takes nothing: it is left behind
                self._thread.stop()
            for handler in self._thread.handlers:
                handler.close()
            self._thread = self._queue = None


def said(request: msgspec.Struct) -> dict[str, Any]:
    """Return what a request says, for the log: no secret, and no more than fits in a line."""
    if isinstance(request, PutUser):
        return {"name": request.user.name, "replace": request.replace}
    fields = msgspec.to_builtins(request, builtin_types=(bytes,))
    return {name: _short(value) for name, value in fields.items() if value}


def _short(value: Any) -> Any:
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, dict):
        return {name: _short(inner) for name, inner in value.items()}
    text = json.dumps(value)
    return value if len(text) <= MAX_TEXT else text[:MAX_TEXT]


class _Lines(QueueHandler):
    """Puts lines into the queue, or counts them."""

    def __init__(self, lines: queue.Queue[logging.LogRecord], lost: Counter) -> None:
        super().__init__(lines)
        self._lost = lost

    def enqueue(self, record: logging.LogRecord) -> None:
        """Put a line into the queue, if it has room."""
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            self._lost.inc()


class _File(WatchedFileHandler):
    """Writes lines, or counts those that cannot be written."""

    def __init__(self, path: Path, lost: Counter) -> None:
        super().__init__(path, encoding="utf-8")
        self._lost = lost

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line; where the file cannot be opened again, that is not its thread's end."""
        try:
            super().emit(record)
        except OSError:
            self._lost.inc()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: ARG002, N802 - logging's name
        """Count a line that cannot be written."""
        self._lost.inc()
