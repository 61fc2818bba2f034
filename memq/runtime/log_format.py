"""What log lines look like: text for people, or a JSON object a line for programs.

A JSON line has `time` (UTC), `level`, `logger` and `message`, and `exception` with the traceback
where there is one. An event (`memq.core.log_events`) has fields of its own. The line has no other
line break than its own and is ASCII, whatever was logged.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from memq.core.log_events import FIELDS
from memq.core.options import Option

if TYPE_CHECKING:
    from types import TracebackType

LogFormat = Literal["text", "json"]

LOG_FORMAT = Option(
    "text",
    "text",
    choices=("text", "json"),
    name="log_format",
    doc="text, or json: an object a line, with time, level, logger and message.",
)
MAX_CHARACTERS = 16_384  # of a message, and of a traceback; collectors of logs cut longer lines

_TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"

_log = logging.getLogger("memq")


class JsonFormatter(logging.Formatter):
    """A record as a JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as one line, without its end."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": _cut(record.getMessage()),
        } | getattr(record, FIELDS, {})
        if record.exc_info:
            line["exception"] = _cut(self.formatException(record.exc_info))
        return json.dumps(line)


def configure(log_format: LogFormat, level: str) -> None:
    """Let everything that this process logs go to stderr.

    As JSON this includes Python's warnings and what nobody expected, which would else stand there
    as text.

    Args:
        log_format: of the lines.
        level: the least that is logged, such as "INFO".
    """
    handler = logging.StreamHandler(sys.stderr)
    is_json = log_format == "json"
    handler.setFormatter(JsonFormatter() if is_json else logging.Formatter(_TEXT))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(is_json)
    sys.excepthook = _log_unexpected if is_json else sys.__excepthook__
    threading.excepthook = _log_unexpected_in_thread if is_json else threading.__excepthook__


def is_json() -> bool:
    """Return whether this process logs JSON: then it has nothing else to say on stderr."""
    return any(isinstance(each.formatter, JsonFormatter) for each in logging.getLogger().handlers)


def _log_unexpected(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    _log.critical("unexpected error, stopping: %s", error, exc_info=(kind, error, trace))


def _log_unexpected_in_thread(found: threading.ExceptHookArgs) -> None:
    if found.exc_value is not None:
        _log_unexpected(found.exc_type, found.exc_value, found.exc_traceback)


def _cut(text: str) -> str:
    """Shorten a text in the middle where it is too long: what matters stands at both ends."""
    over = len(text) - MAX_CHARACTERS
    if over <= 0:
        return text
    half = MAX_CHARACTERS // 2
    return f"{text[:half]} … ({over} characters left out) … {text[-half:]}"
