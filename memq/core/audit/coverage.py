"""What one consumer's reports say about one read partition (see `memq.core.audit.consumed`)."""

from __future__ import annotations

from bisect import bisect_right
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from memq.core.spans import Offsets, common, holds, joined

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from memq.core.audit.reports import ConsumedReport


class StoredConsumed(NamedTuple):
    """A report, and when it was stored, by the brokers' clock."""

    report: ConsumedReport
    stored_ms: int


class State(Enum):
    """What is known of an offset. The value is the finding's attribute of `ConsumedAudit`."""

    BEFORE = ""
    CONSUMED = "consumed"
    MISSED = "missed"
    UNREPORTED = "unreported"
    BEHIND = "behind"


class Coverage:
    """What the reports of one consumer say about one read partition.

    Attributes:
        reports: each once, sorted by where they begin.
    """

    def __init__(self, reports: Iterable[StoredConsumed], due_ms: int) -> None:
        self.reports = _each_once(reports)
        spans = [Offsets(report.start, report.end) for report, _ in self.reports]
        self._twice = joined(_overlaps(spans))
        self._skips = joined(
            sorted(Offsets(each.start - each.skipped, each.start) for each, _ in self.reports)
        )
        self._goes_on = {each.end for each, _ in self.reports if not each.final}
        self._passed_ms = _passed_ms(self.reports)
        self._due_ms = due_ms
        self._begins = [0]
        self._states = [State.BEFORE]
        self._lay_out(joined(spans))

    def state(self, offset: int) -> State:
        """What is known of an offset."""
        return self._states[bisect_right(self._begins, offset) - 1]

    def is_twice(self, offset: int) -> bool:
        """Whether several reports cover an offset."""
        return holds(self._twice, offset)

    def _lay_out(self, covered: Iterable[Offsets]) -> None:
        """Cut all offsets into pieces of one state. A later piece with the same begin counts."""
        reach = min(report.start - report.skipped for report, _ in self.reports)
        for start, end in covered:
            self._lay_out_hole(Offsets(reach, start))
            self._piece(start, State.CONSUMED)
            self._piece(end, State.BEHIND)
            reach = end

    def _lay_out_hole(self, hole: Offsets) -> None:
        """The pieces between two that are covered."""
        if not self._is_due(hole):
            self._piece(hole.start, State.BEHIND)
            return
        missing = hole.start in self._goes_on
        rest = State.UNREPORTED if missing else State.MISSED
        self._piece(hole.start, rest)
        for start, end in common(self._skips, hole):
            self._piece(start, State.MISSED)
            self._piece(end, rest)

    def _piece(self, start: int, state: State) -> None:
        self._begins.append(start)
        self._states.append(state)

    def _is_due(self, hole: Offsets) -> bool:
        """Whether the consumer went past a hole long enough ago."""
        at = bisect_right(self.reports, hole.end - 1, key=_start)
        return self._passed_ms[at] <= self._due_ms


def _start(stored: StoredConsumed) -> int:
    return stored.report.start


def _each_once(reports: Iterable[StoredConsumed]) -> list[StoredConsumed]:
    """The reports sorted by their start; of those that were sent again only the longest."""
    longest: dict[tuple[int, int], StoredConsumed] = {}
    for stored in reports:
        key = (stored.report.start, stored.report.window_start_ms)
        known = longest.get(key)
        if known is None or known.report.end < stored.report.end:
            longest[key] = stored
    return sorted(longest.values(), key=lambda stored: (stored.report.start, stored.report.end))


def _passed_ms(reports: Sequence[StoredConsumed]) -> list[int]:
    """For each report when it, or the first of those behind it, was stored."""
    result: list[int] = []
    for _, stored_ms in reversed(reports):
        result.append(min(stored_ms, result[-1]) if result else stored_ms)
    return result[::-1]


def _overlaps(spans: Iterable[Offsets]) -> list[Offsets]:
    """What several of some spans have, which come sorted by their start."""
    result = []
    reach = 0
    for start, end in spans:
        if start < reach:
            result.append(Offsets(start, min(end, reach)))
        reach = max(reach, end)
    return result
