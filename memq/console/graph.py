"""Lines over time as SVG, drawn here: points, and the labels of both axes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH, HEIGHT = 720, 160  # of the view box; the page scales it
SPAN_S = 6 * 3_600
GAP_S = 130  # without a look in between, the line is broken: a broker rests up to a minute
UNKNOWN = -1


@dataclass(frozen=True)
class Graph:
    """A line, which has gaps where nothing is known.

    Attributes:
        lines: points of each part, as SVG writes them.
        most: the greatest value, which touches the top.
        last: the last one; None where nothing is known.
        hours: place and words of the hours on the axis.
    """

    lines: Sequence[str]
    most: int
    last: int | None
    hours: Sequence[tuple[int, str]]


def graph(times_s: Sequence[int], values: Sequence[int], now_s: int) -> Graph:
    """Draw the values of the last six hours; of many at one place the greatest shows.

    Args:
        times_s: when each was found, seconds since 1970 UTC, in their order.
        values: 0 or more; `UNKNOWN` where it was not known.
        now_s: the end of the axis.
    """
    start_s = now_s - SPAN_S
    columns: dict[int, int] = {}  # by place on the axis
    parts: list[dict[int, int]] = []
    last_s = 0
    for time_s, value in zip(times_s, values, strict=True):
        if value == UNKNOWN or not start_s <= time_s <= now_s:
            continue
        if not parts or time_s - last_s > GAP_S:
            columns = {}
            parts.append(columns)
        x = (time_s - start_s) * WIDTH // SPAN_S
        columns[x] = max(value, columns.get(x, 0))
        last_s = time_s
    most = max((value for part in parts for value in part.values()), default=0)
    scale = HEIGHT / (most or 1)
    lines = [
        " ".join(f"{x},{HEIGHT - value * scale:.1f}" for x, value in _wide(part).items())
        for part in parts
    ]
    first = -(-start_s // 3_600) * 3_600
    hours = [
        ((at - start_s) * WIDTH // SPAN_S, datetime.fromtimestamp(at, UTC).strftime("%H:%M"))
        for at in range(first, now_s + 1, 3_600)
    ]
    known = bool(values) and values[-1] != UNKNOWN
    return Graph(lines, most, values[-1] if known else None, hours)


def _wide(part: dict[int, int]) -> dict[int, int]:
    """Make a part of one point wide enough to be seen."""
    return {x + 1: value for x, value in part.items()} | part if len(part) == 1 else part
