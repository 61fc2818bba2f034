"""What a producer did, counted for its audit reports (see `memq.core.audit.reports`).

A window collects the Messages that were submitted in it, per write partition. It is closed when a
report is asked for, and reported once all its Messages are settled, so that a report is final. The
number of windows is bounded by the delivery deadline over the time between reports.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memq.client.producer.delivery import StoredAt
from memq.core.audit.reports import REPORT_VERSION, ProducedReport

if TYPE_CHECKING:
    from memq.client.producer.state_machine import NamedMessage, StateMachineOptions
    from memq.errors import MemqError

_CRC_MODULUS = 2**64  # of the sum in a report


@dataclass(slots=True)
class _Window:
    """Messages of one write partition; see `ProducedReport` for the fields."""

    first: int
    start_ms: int
    last: int = -1
    end_ms: int | None = None
    open_messages: int = 0
    records: int = 0
    size_bytes: int = 0
    crc_sum: int = 0
    repeats: int = 0
    failed: list[int] = field(default_factory=list)


class AuditCounters:
    """Counts what a `ProducerStateMachine` submits and settles.

    Args:
        options: of that core.
        client: how the producer names itself.
        now_ms: when it started, in milliseconds since 1970 UTC.
    """

    def __init__(self, options: StateMachineOptions, client: str, now_ms: int) -> None:
        self._options = options
        self._client = client
        self._start_ms = now_ms
        self._windows: defaultdict[int, deque[_Window]] = defaultdict(deque)

    def __repr__(self) -> str:
        count = sum(len(windows) for windows in self._windows.values())
        return f"<AuditCounters {self._options.producer_id} [{count} windows not reported]>"

    def submitted(self, message: NamedMessage) -> None:
        """The Message was given its name."""
        windows = self._windows[message.partition.number]
        if not windows or windows[-1].end_ms is not None:
            windows.append(_Window(message.sequence, self._start_ms))
        window = windows[-1]
        window.last = message.sequence
        window.open_messages += 1
        window.records += message.sealed.records
        window.size_bytes += message.sealed.size_bytes
        window.crc_sum += message.sealed.crc32c

    def settled(self, message: NamedMessage, outcome: StoredAt | MemqError) -> None:
        """The Message was acked, or given up with an error."""
        windows = self._windows[message.partition.number]
        window = next(window for window in windows if message.sequence <= window.last)
        window.open_messages -= 1
        if isinstance(outcome, StoredAt):
            window.repeats += outcome.duplicate
        else:
            window.failed.append(message.sequence)
            window.records -= message.sealed.records
            window.size_bytes -= message.sealed.size_bytes
            window.crc_sum -= message.sealed.crc32c

    def take_reports(self, now_ms: int) -> list[ProducedReport]:
        """Close the open windows, and hand out those in which everything is settled.

        A write partition's windows come in order: one that is not settled keeps later ones back.
        """
        reports = []
        for number, windows in self._windows.items():
            if windows and windows[-1].end_ms is None:
                windows[-1].end_ms = now_ms
            while windows and windows[0].open_messages == 0:
                reports.append(self._report(number, windows.popleft()))
        self._start_ms = now_ms
        return reports

    def _report(self, write_partition: int, window: _Window) -> ProducedReport:
        return ProducedReport(
            version=REPORT_VERSION,
            topic=self._options.topic,
            write_partition=write_partition,
            producer_id=self._options.producer_id,
            epoch=self._options.epoch,
            first=window.first,
            last=window.last,
            records=window.records,
            size_bytes=window.size_bytes,
            crc_sum=window.crc_sum % _CRC_MODULUS,
            failed=_runs(sorted(window.failed)),
            repeats=window.repeats,
            window_start_ms=window.start_ms,
            window_end_ms=window.end_ms or window.start_ms,
            incarnation=self._options.incarnation,
            client=self._client,
        )


def _runs(sequences: list[int]) -> list[tuple[int, int]]:
    """Runs, ends included, of sorted numbers."""
    runs: list[tuple[int, int]] = []
    for sequence in sequences:
        if runs and sequence == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], sequence)
        else:
            runs.append((sequence, sequence))
    return runs
