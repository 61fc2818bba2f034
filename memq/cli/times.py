"""Points in time on the command line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from memq.core.units import parse_duration_ms
from memq.errors import ConfigError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def parse_time(text: str, now: datetime) -> datetime:
    """An ISO 8601 time, in UTC where it names no zone; or a time so long ago: "15m", "2h".

    Raises:
        ConfigError: it is neither.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is not None:
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    try:
        return now - timedelta(milliseconds=parse_duration_ms(text))
    except (ConfigError, OverflowError) as exc:
        raise ConfigError(
            f"{text!r} is no time; write it like 2025-06-30T12:00:00Z, or 15m for so long ago"
        ) from exc


def to_us(moment: datetime) -> int:
    """Microseconds since 1970 UTC."""
    return (moment - _EPOCH) // _MICROSECOND
