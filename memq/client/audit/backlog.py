"""Audit reports on their way to the audit topic: merged while they wait, so that memory is bounded.

Reports of one producer and write partition follow each other without a gap, so two that wait become
one that says the same of both. However long the audit topic cannot be reached, what waits is one
report per write partition, unless deliveries failed here and there: each such run of sequences is
kept. Likewise those of a consumer join for as long as it reads on from offset to offset. Beyond
`MAX_WEIGHT` the oldest report is dropped; the audit then counts its Messages as unreported.
"""

from __future__ import annotations

from collections import deque
from itertools import chain
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from memq.core.audit.reports import ConsumedReport, ProducedReport, encode_report

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memq.core.audit.reports import ProducerName, ReaderName

MAX_WEIGHT = 100_000  # reports and failed runs that wait; about 10 MB

R = TypeVar("R", ProducedReport, ConsumedReport)


class Outgoing(NamedTuple, Generic[R]):
    """A report with its JSON."""

    report: R
    value: bytes


class ReportBacklog(Generic[R]):
    """Reports of one kind that wait, in the order of what they are about.

    Attributes:
        dropped_messages: Messages whose report was dropped because too much waits.
    """

    def __init__(self) -> None:
        self.dropped_messages = 0
        self._waiting: dict[ProducerName | ReaderName, deque[R]] = {}
        self._weight = 0

    def __repr__(self) -> str:
        reports = sum(map(len, self._waiting.values()))
        return f"<ReportBacklog [{reports} reports over {self.messages} Messages]>"

    @property
    def messages(self) -> int:
        """Messages that the waiting reports are about."""
        return sum(report.messages for queue in self._waiting.values() for report in queue)

    def add(self, reports: Iterable[R]) -> None:
        """Have new reports wait behind the others."""
        for report in reports:
            queue = self._waiting.setdefault(report.name, deque())
            self._weight += report.weight
            joined = queue[-1].joined(report) if queue else None
            if joined is None:
                queue.append(report)
            else:
                self._weight += joined.weight - queue[-1].weight - report.weight
                queue[-1] = joined
        self._shrink()

    def take(self, max_bytes: int) -> list[Outgoing[R]]:
        """The oldest reports, for one Message of up to so many bytes; empty when none waits.

        A report that is larger alone is dropped: no Message could ever carry it.
        """
        taken: list[Outgoing[R]] = []
        left_bytes = max_bytes
        for name, queue in list(self._waiting.items()):
            while queue:
                value = encode_report(queue[0])
                if len(value) > max_bytes:
                    self._drop_first(queue)
                    continue
                if len(value) > left_bytes:
                    return taken
                left_bytes -= len(value)
                self._weight -= queue[0].weight
                taken.append(Outgoing(queue.popleft(), value))
            del self._waiting[name]
        return taken

    def put_back(self, taken: Iterable[Outgoing[R]]) -> None:
        """These were not delivered, or nobody knows: they wait again, before all others."""
        returned: dict[ProducerName | ReaderName, list[R]] = {}
        for report, _ in taken:
            returned.setdefault(report.name, []).append(report)
        for name, earlier in returned.items():
            newer = self._waiting.pop(name, deque[R]())
            self._weight -= _weight(newer)
            self.add(chain(earlier, newer))

    def _shrink(self) -> None:
        while self._weight > MAX_WEIGHT:
            self._drop_first(max(self._waiting.values(), key=_weight))

    def _drop_first(self, queue: deque[R]) -> None:
        report = queue.popleft()
        self._weight -= report.weight
        self.dropped_messages += report.messages


def _weight(reports: Iterable[R]) -> int:
    return sum(report.weight for report in reports)
