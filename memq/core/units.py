"""What people read and write: "500ms", "16MiB", "2025-06-30T12:00:00.000Z", "3 Batches".

Configuration and the command line speak these; code carries plain integers whose names end in
`_ms`, `_us` or `_bytes`.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from fractions import Fraction

from memq.errors import ConfigError

SECOND_MS, MINUTE_MS, HOUR_MS, DAY_MS = 1_000, 60_000, 3_600_000, 86_400_000
KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND, _MICROSECOND = timedelta(milliseconds=1), timedelta(microseconds=1)
_DURATIONS_MS = {"ms": 1, "s": SECOND_MS, "m": MINUTE_MS, "h": HOUR_MS, "d": DAY_MS}
_SIZES = {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": TIB}
# 20 digits hold any 64-bit field; more can only be a mistake, and costs time to convert.
_UNITS = ("KiB", "MiB", "GiB", "TiB")
_AGES = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
_SHORT_S = 10.0  # below it a tenth of a second says something
_QUANTITY = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([A-Za-z]+)")


def parse_duration_ms(text: str) -> int:
    """Milliseconds of "500ms", "1.5s", "10m", "2h" or "7d".

    Raises:
        ConfigError: the text is not a number with one of those units.
    """
    return _parse(text, _DURATIONS_MS, "duration", '"500ms", "10s", "5m", "2h" or "7d"')


def parse_size_bytes(text: str) -> int:
    """Bytes of "512B", "64KiB", "16MiB", "2GiB" or "1TiB".

    Raises:
        ConfigError: the text is not a number with one of those units.
    """
    return _parse(text, _SIZES, "size", '"512B", "64KiB", "16MiB" or "2GiB"')


def parse_time(text: str, now: datetime) -> datetime:
    """Parse an ISO 8601 time with its zone, or a time so long ago: "15m", "2h".

    Raises:
        ConfigError: it is neither, or has no zone: one that is guessed is hours off elsewhere.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is not None:
        if moment.tzinfo is None:
            written = moment.isoformat()
            raise ConfigError(
                f"{text!r} has no time zone; write {written}Z for UTC, or its offset, such as "
                f"{written}+02:00"
            )
        return moment
    try:
        return now - timedelta(milliseconds=parse_duration_ms(text))
    except (ConfigError, OverflowError) as exc:
        raise ConfigError(
            f"{text!r} is not a time; write it like 2025-06-30T12:00:00Z, or 15m for so long ago"
        ) from exc


def format_duration_ms(value_ms: int) -> str:
    """Format a duration as the shortest text that `parse_duration_ms` gives back exactly."""
    return _format(value_ms, _DURATIONS_MS)


def format_size_bytes(value_bytes: int) -> str:
    """Format a size as the shortest exact text, so that `parse_size_bytes` gives it back."""
    return _format(value_bytes, _SIZES)


def counted(number: int, one: str, many: str | None = None) -> str:
    """Format a number with what it counts: "1 Batch", "2 Batches", "0 entries".

    Args:
        number: how many there are.
        one: the words after a 1.
        many: those after another number; None for the regular plural of `one`.
    """
    if number == 1:
        return f"1 {one}"
    return f"{number} {_plural(one) if many is None else many}"


def _plural(one: str) -> str:
    if one.endswith(("ch", "sh", "s", "x")):
        return f"{one}es"
    if one.endswith("y") and one[-2:-1] not in "aeiou":
        return f"{one[:-1]}ies"
    return f"{one}s"


def human_size(size_bytes: float) -> str:
    """Format a size for the eye: "512 B", "8.0 MiB"."""
    if abs(size_bytes) < 1024:
        return f"{size_bytes:.0f} B"
    power = 1
    while abs(size_bytes) >= 1024 ** (power + 1) and power < len(_UNITS):
        power += 1
    return f"{size_bytes / 1024**power:.1f} {_UNITS[power - 1]}"


def human_age(seconds: float) -> str:
    """Format a duration for the eye, in two units at most: "4.2s", "3m 20s", "2d 4h"."""
    if seconds < _SHORT_S:
        return f"{seconds:.1f}s" if seconds else "0s"
    whole = round(seconds)
    large = next(at for at, (_, size) in enumerate(_AGES) if whole >= size)
    parts = []
    for unit, size in _AGES[large : large + 2]:
        count, whole = divmod(whole, size)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts)


def _parse(text: str, units: dict[str, int], kind: str, examples: str) -> int:
    match = _QUANTITY.fullmatch(text.strip())
    if match is None or match[2] not in units:
        raise ConfigError(f"{text!r} is not a {kind}; write it like {examples}")
    return round(Fraction(match[1]) * units[match[2]])  # a float would lose digits past 2**53


def _format(value: int, units: dict[str, int]) -> str:
    unit, factor = next(
        (unit, factor) for unit, factor in reversed(units.items()) if value % factor == 0
    )
    return f"{value // factor}{unit}" if value else f"0{next(iter(units))}"


def iso_us(time_us: int) -> str:
    """ISO 8601 in UTC of microseconds since 1970; the number where no calendar reaches."""
    return _iso(time_us, _MICROSECOND, "microseconds")


def iso_ms(time_ms: int) -> str:
    """ISO 8601 in UTC of milliseconds since 1970; the number where no calendar reaches."""
    return _iso(time_ms, _MILLISECOND, "milliseconds")


def _iso(ticks: int, tick: timedelta, unit: str) -> str:
    try:
        return (_EPOCH + ticks * tick).isoformat(timespec=unit).replace("+00:00", "Z")
    except OverflowError:
        return f"{ticks} {unit} since 1970"
