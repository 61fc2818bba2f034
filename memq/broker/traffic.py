"""How much is written to each write partition of a broker, averaged over about a minute."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memq.core.governor.assignment import Partition

OVER_S = 60.0  # about which traffic is averaged
KNOWN_S = 20.0  # from when on it is told: until then producers may not have found this broker


class _Measured(NamedTuple):
    """What was counted of a write partition, when, the rate as of then, and since when."""

    total_bytes: int
    at_s: float
    bytes_per_s: float
    since_s: float


class TrafficMeter:
    """Rates from counters. It knows no clock: times are given, in seconds."""

    def __init__(self) -> None:
        self._measured: dict[Partition, _Measured] = {}

    def __repr__(self) -> str:
        return f"<TrafficMeter [{len(self._measured)} write partitions]>"

    def measure(
        self, totals: Mapping[Partition, int], now_s: float
    ) -> dict[Partition, float | None]:
        """Bytes per second of each of these write partitions; None where it is not known yet.

        Args:
            totals: bytes received since each began to run here. What is not named is forgotten.
            now_s: the clock.
        """
        measured: dict[Partition, _Measured] = {}
        for key, total in totals.items():
            last = self._measured.get(key)
            if last is None or total < last.total_bytes:  # it has begun anew
                measured[key] = _Measured(total, now_s, 0.0, now_s)
            elif now_s <= last.at_s:
                measured[key] = last
            else:
                passed_s = now_s - last.at_s
                rate = (total - last.total_bytes) / passed_s
                # What was before the first of it does not count: unknown is not zero.
                all_s = now_s - last.since_s
                weight = math.expm1(-passed_s / OVER_S) / math.expm1(-all_s / OVER_S)
                smooth = last.bytes_per_s + weight * (rate - last.bytes_per_s)
                measured[key] = _Measured(total, now_s, smooth, last.since_s)
        self._measured = measured
        return {
            key: each.bytes_per_s if now_s - each.since_s >= KNOWN_S else None
            for key, each in measured.items()
        }
