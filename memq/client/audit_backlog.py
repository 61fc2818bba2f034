"""Audit reports on their way to the audit topic: merged while they wait, so that memory is bounded.

Reports of one producer and write partition follow each other without a gap, so two that wait become
one that says the same of both. However long the audit topic cannot be reached, what waits is one
report per write partition, unless deliveries failed here and there: each such run of sequences is
kept. Beyond `MAX_WEIGHT` the oldest report is dropped; the audit then counts its Messages as
unreported.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from memq.core.audit import CRC_MODULUS, MAX_REPORT_MESSAGES, Run, encode_report, joined_runs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memq.core.audit import ProducedReport, ProducerName

MAX_FAILED_RUNS = 10_000  # of one report; about 20 bytes each, well within a Message
MAX_WEIGHT = 100_000  # reports and failed runs that wait; about 10 MB


class Outgoing(NamedTuple):
    """A report with its JSON."""

    report: ProducedReport
    value: bytes


class ReportBacklog:
    """Reports that wait, in the order of their sequences per producer and write partition.

    Attributes:
        dropped_messages: Messages whose report was dropped because too much waits.
    """

    def __init__(self) -> None:
        self.dropped_messages = 0
        self._waiting: dict[ProducerName, deque[ProducedReport]] = {}
        self._weight = 0

    def __repr__(self) -> str:
        reports = sum(map(len, self._waiting.values()))
        return f"<ReportBacklog [{reports} reports over {self.messages} Messages]>"

    @property
    def messages(self) -> int:
        """Messages that the waiting reports are about."""
        return sum(report.messages for queue in self._waiting.values() for report in queue)

    def add(self, reports: Iterable[ProducedReport]) -> None:
        """Have new reports wait behind the others."""
        for report in reports:
            queue = self._waiting.setdefault(report.name, deque())
            self._weight += _weight(report)
            joined = _joined(queue[-1], report) if queue else None
            if joined is None:
                queue.append(report)
            else:
                self._weight += _weight(joined) - _weight(queue[-1]) - _weight(report)
                queue[-1] = joined
        self._shrink()

    def take(self, max_bytes: int) -> list[Outgoing]:
        """The oldest reports, for one Message of up to so many bytes; empty when none waits.

        A report that is larger alone is dropped: no Message could ever carry it.
        """
        taken: list[Outgoing] = []
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
                self._weight -= _weight(queue[0])
                taken.append(Outgoing(queue.popleft(), value))
            del self._waiting[name]
        return taken

    def put_back(self, taken: Iterable[Outgoing]) -> None:
        """These were not delivered, or nobody knows: they wait again, before all others."""
        returned: dict[ProducerName, list[ProducedReport]] = {}
        for report, _ in taken:
            returned.setdefault(report.name, []).append(report)
        for name, reports in returned.items():
            newer = self._waiting.pop(name, ())
            self._weight -= sum(map(_weight, newer))
            self.add([*reports, *newer])

    def _shrink(self) -> None:
        while self._weight > MAX_WEIGHT:
            self._drop_first(
                max(self._waiting.values(), key=lambda queue: sum(map(_weight, queue)))
            )

    def _drop_first(self, queue: deque[ProducedReport]) -> None:
        report = queue.popleft()
        self._weight -= _weight(report)
        self.dropped_messages += report.messages


def _weight(report: ProducedReport) -> int:
    return 1 + len(report.failed)


def _joined(report: ProducedReport, following: ProducedReport) -> ProducedReport | None:
    """One report in place of two, or None where it would be too large."""
    failed = joined_runs(Run(*run) for run in [*report.failed, *following.failed])
    too_many = following.last - report.first >= MAX_REPORT_MESSAGES
    if too_many or len(failed) > MAX_FAILED_RUNS or following.first != report.last + 1:
        return None
    return msgspec.structs.replace(
        report,
        last=following.last,
        records=report.records + following.records,
        size_bytes=report.size_bytes + following.size_bytes,
        crc_sum=(report.crc_sum + following.crc_sum) % CRC_MODULUS,
        failed=failed,
        window_end_ms=following.window_end_ms,
    )
