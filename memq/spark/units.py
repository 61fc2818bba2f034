"""Sizes and times as users of Spark write them, beside those of MemQ.

Sizes are `64m`, `1g` or `64mb` beside `64MiB` and plain bytes. Spark counts by 1024, whatever the
case: its `64mb` is our `64MiB`. Times are `15m`, `15min` or plain milliseconds.
"""

from __future__ import annotations

import re

from memq.core.units import parse_duration_ms, parse_size_bytes

_SPARK_SIZE = re.compile("([0-9]{1,20})(?:([kmgtp])?b?)", re.IGNORECASE)
_POWERS = {letter: power for power, letter in enumerate("kmgtp", 1)}


def parse_size(text: str) -> int:
    """Bytes of a size as Spark writes them, or as MemQ does.

    Raises:
        ConfigError: it is no size.
        ValueError: it is 0.
    """
    found = _SPARK_SIZE.fullmatch(text.strip())
    if found is None:
        size = parse_size_bytes(text)
    else:
        size = int(found[1]) << 10 * _POWERS.get((found[2] or "").lower(), 0)
    if not size:
        raise ValueError('must be more than 0: bytes, or a size such as "64MiB" or "64m"')
    return size


def parse_time_ms(text: str) -> int:
    """Milliseconds of a time as Spark writes them, or as MemQ does.

    Raises:
        ConfigError: it is no time.
    """
    plain = text.strip().lower()
    if plain.isdigit():
        return int(plain)
    return parse_duration_ms(plain.removesuffix("in") if plain.endswith("min") else plain)
