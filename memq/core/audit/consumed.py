"""What is stored against what was consumed, per consumer and producer, down to the offset.

Theory of operation
-------------------
A Batch never changes and has one place: an offset in a read partition. So a consumer that says
"I am done with these offsets" has said exactly which Messages it is done with, and the Notification
of each Batch tells whose they are. A report also says how much the consumer found there; that must
be what the Notifications of the same offsets say. Judged are the Batches that were published in the
window, by the brokers' clock, so windows that meet hold each Batch once. Each is one of:

    consumed    a report covers it, and what the report counts is what the Notifications of its
                range say.
    mismatched  only reports cover it whose counts or CRC sum differ.
    missed      no report covers it, though the consumer has gone past it, to higher offsets.
    unreported  the same, but the report before it is not `final`: it is a group's, and a member was
                killed, or dropped reports, before it could say how far it came. As a group goes on
                where it has committed, these Batches were consumed, as far as anybody can tell.
                So is what no report covers below the offset that the group has committed.
    behind      no report covers it, and none covers a higher offset: lag, and no loss. So is what
                lies below reports that are younger than the *grace*: jobs may run side by side and
                end in any order, and a member may report late what it committed or gave up.

A job answers for everything from the lowest offset that it reported in a partition (of all reports
read: those since shortly before the window), and a group from where it `began`; what lies before,
down to what it has reported, was never meant for it. A member says at once where it begins, with a
report that covers nothing. What it leaves out when it seeks elsewhere before it has read anything
is unreported.
Where the lowest report of a group is not its first, what lies below is unreported: had it been
consumed and reported, the report would be among those read, for it is younger than the Batch. In a
partition without any report everything is behind, but for what the group has committed there.

Offsets that a group has stepped over (`skipped`) are missed for certain, whatever other reports
say: a member reports it of itself, and an administrator who moves the group forward does. What an
administrator reports (`moved`) makes nobody a consumer that reports: not every group does.

Batches that are covered more than once are counted as consumed *again*. That is a fact and no
fault: a group delivers at least once, and a job that is run again replaces its output. A report
that is in the audit topic twice, alone or joined to what came after it, begins at the same
offset and the same time, and counts once.

A report over offsets that retention has removed in part cannot be compared, and is believed.

How it is done: first the Notifications of all reports are gone through, and their figures are added
up between the edges of reports, so what any report should say is a sum. Then those of the window
are, and each Batch has the finding that holds from the edge before it. Memory is some hundred bytes
for each report, consumer and producer, and up to `MAX_PARTS` named parts.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from itertools import accumulate
from operator import add
from types import MappingProxyType
from typing import TYPE_CHECKING

from memq.core.audit.reports import (
    CRC_MODULUS,
    ConsumedReport,
    ProducerName,
    ReaderName,
    StoredReport,
)
from memq.core.audit.result import (
    CONSUMER_FINDINGS,
    ConsumedAudit,
    ConsumerAudit,
    LocatedRun,
    MessageCount,
)
from memq.core.ranges import Interval, OffsetRange, contains, difference, intersection, union

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from memq.core.format.batch import ProducerRun
    from memq.core.notification import Notification, PublishedBatch

MAX_PARTS = 10_000  # named in one audit, about 200 bytes each; counts go on beyond
MAX_MISMATCHES = 1_000  # sentences of one consumer


_FIGURES = ("Batches", "Messages", "LogMessages", "CRC sum")


class _Totals:
    """Figures of the Notifications of one read partition, added up between the edges of reports."""

    def __init__(self, reports: Iterable[ConsumedReport]) -> None:
        self._edges = sorted({edge for report in reports for edge in report.interval})
        self._sums = [[0] * len(_FIGURES) for _ in self._edges]  # from each edge to the next

    def add(self, offset: int, notification: Notification) -> None:
        """Add a Batch that a report covers."""
        at = bisect_right(self._edges, offset) - 1
        crc_sum = sum(run.crc_sum for run in notification.producers)
        batch = (1, notification.messages, notification.records, crc_sum)
        self._sums[at] = list(map(add, self._sums[at], batch))

    def of(self, report: ConsumedReport) -> list[int]:
        """Return the figures of the offsets of a report."""
        begin, end = (bisect_left(self._edges, edge) for edge in report.interval)
        sums = [sum(each[at] for each in self._sums[begin:end]) for at in range(len(_FIGURES))]
        return [*sums[:-1], sums[-1] % CRC_MODULUS]


class _Coverage:
    """What the reports of one consumer say about one read partition.

    Attributes:
        reports: each once, sorted by where they begin.
        checked: those of them that are compared with what is stored.
        doubtful: offsets that only reports cover which differ.
        reported_ms: when the last of them was stored.
    """

    def __init__(self, stored: Sequence[StoredReport[ConsumedReport]], due_ms: int) -> None:
        each_once = _each_once(stored)
        self.reports = [report for report, _ in each_once]
        self.checked: list[ConsumedReport] = []
        self.doubtful: list[Interval] = []
        self.reported_ms = max(stored_ms for _, stored_ms in stored)
        self._twice = union(_overlaps(self.reports))
        skips = (Interval(each.start - each.skipped, each.start) for each in self.reports)
        self._skips = union(sorted(skips))
        self._goes_on = {each.end for each in self.reports if not each.final}
        # For each report when it, or the first of those after it, was stored.
        times_ms = [stored_ms for _, stored_ms in each_once]
        self._passed_ms = list(accumulate(reversed(times_ms), min))[::-1]
        self._due_ms = due_ms
        self._edges = [0]
        self._findings = [""]
        self._lay_out(union(each.interval for each in self.reports))

    def finding(self, offset: int) -> str:
        """Return the finding of `ConsumedAudit` for an offset; empty if not meant for it."""
        if contains(self.doubtful, offset):
            return "mismatched"
        return self._findings[bisect_right(self._edges, offset) - 1]

    def is_twice(self, offset: int) -> bool:
        """Return whether several reports cover an offset."""
        return contains(self._twice, offset)

    def _lay_out(self, covered: Iterable[Interval]) -> None:
        """Note from which offset which finding holds. Of two at one offset the later counts."""
        reach = min(report.start - report.skipped for report in self.reports)
        lowest = [report for report in self.reports if report.start - report.skipped == reach]
        if not any(report.began or report.final for report in lowest):
            self._from(0, "unreported" if self._is_due(Interval(0, reach)) else "behind")
        for start, end in covered:
            self._lay_out_gap(Interval(reach, start))
            self._from(start, "consumed")
            self._from(end, "behind")
            reach = end

    def _lay_out_gap(self, gap: Interval) -> None:
        if not self._is_due(gap):
            self._from(gap.start, "behind")
            return
        rest = "unreported" if gap.start in self._goes_on else "missed"
        self._from(gap.start, rest)
        for start, end in intersection(self._skips, gap):
            self._from(start, "missed")
            self._from(end, rest)

    def _from(self, offset: int, finding: str) -> None:
        self._edges.append(offset)
        self._findings.append(finding)

    def _is_due(self, gap: Interval) -> bool:
        """Return whether the consumer went past a gap long enough ago."""
        at = bisect_right(self.reports, gap.end - 1, key=lambda report: report.start)
        return self._passed_ms[at] <= self._due_ms


class ConsumedReconciliation:
    """Compares reports of consumers with Notifications.

    Give `compare` the Batches of `to_compare`; then `judge` those of `to_judge`, in the order of
    their offsets in each partition.

    Args:
        topic: the topic.
        reports: all that were stored since shortly before the window.
        named: consumers that are asked about; they alone, unless there are none.
        retained: offsets that are retained, of each read partition.
        window: offsets of the window, of each read partition.
        committed: next offsets that groups had committed before the reports were read.
        due_ms: what consumers went past before this time is due, by the brokers' clock.
    """

    def __init__(
        self,
        topic: str,
        reports: Sequence[StoredReport[ConsumedReport]],
        *,
        named: Sequence[str] = (),
        retained: Iterable[OffsetRange],
        window: Iterable[OffsetRange],
        committed: Mapping[ReaderName, int] = MappingProxyType({}),
        due_ms: int,
    ) -> None:
        self._topic = topic
        self._retained = _by_partition(retained)
        self._window = _by_partition(window)
        self._counts: dict[str, int] = dict.fromkeys(named, 0)
        groups: defaultdict[ReaderName, list[StoredReport[ConsumedReport]]] = defaultdict(list)
        readers = {report.consumer for report, _ in reports if not report.moved}
        for stored in reports:
            name = stored.report.name
            if name.consumer not in readers:
                continue
            if name.partition in self._retained and (not named or name.consumer in named):
                groups[name].append(stored)
                self._counts[name.consumer] = self._counts.get(name.consumer, 0) + 1
        self._coverage = {name: _Coverage(group, due_ms) for name, group in groups.items()}
        self._checked: defaultdict[int, list[ConsumedReport]] = defaultdict(list)
        for name, coverage in self._coverage.items():
            coverage.checked = list(filter(self._matters, coverage.reports))
            self._checked[name.partition] += coverage.checked
        self._totals = {partition: _Totals(each) for partition, each in self._checked.items()}
        self._committed = committed
        self._due_ms = due_ms
        self._unreadable: defaultdict[int, list[int]] = defaultdict(list)
        self._audits: dict[str, dict[ProducerName, ConsumedAudit]] = {
            consumer: {} for consumer in self._counts
        }
        self._parts = 0
        self._unnamed: defaultdict[str, int] = defaultdict(int)
        self._mismatches: defaultdict[str, list[str]] = defaultdict(list)

    def __repr__(self) -> str:
        reports = sum(self._counts.values())
        return (
            f"<ConsumedReconciliation {self._topic} "
            f"[{len(self._counts)} consumers, {reports} reports]>"
        )

    def _matters(self, report: ConsumedReport) -> bool:
        """Return whether a report is about Batches of the window, and can be compared."""
        window = self._window[report.partition]
        overlaps = report.start < window.end and window.start < report.end
        return overlaps and report.start >= self._retained[report.partition].start

    # -- what reports should say ------------------------------------------------------------

    def to_compare(self) -> list[OffsetRange]:
        """Return the offsets of all reports that are compared, each once."""
        return [
            OffsetRange(partition, *part)
            for partition, reports in self._checked.items()
            for part in intersection(
                union(sorted(each.interval for each in reports)), self._retained[partition]
            )
        ]

    def compare(self, batch: PublishedBatch) -> None:
        """Take in what the Notification of a Batch says."""
        self._totals[batch.partition].add(batch.offset, batch.notification)

    def cannot_compare(self, partition: int, offset: int) -> None:
        """Record that a Notification cannot be read, so reports that cover it are believed."""
        self._unreadable[partition].append(offset)

    def _agrees(self, report: ConsumedReport) -> bool:
        if any(report.start <= at < report.end for at in self._unreadable[report.partition]):
            return True
        if report.end > self._retained[report.partition].end:
            return False
        return _said(report) == self._totals[report.partition].of(report)

    # -- what Batches of the window are -----------------------------------------------------

    def to_judge(self) -> list[OffsetRange]:
        """Return the offsets of the window, when all was compared."""
        for coverage in self._coverage.values():
            differing = [report for report in coverage.checked if not self._agrees(report)]
            wrong = set(map(id, differing))
            sound = union(each.interval for each in coverage.reports if id(each) not in wrong)
            coverage.doubtful = difference(union(each.interval for each in differing), sound)
            for report in differing:
                self._explain(report, coverage.doubtful)
        return [
            OffsetRange(partition, *part)
            for partition, retained in self._retained.items()
            for part in intersection([self._window[partition]], retained)
        ]

    def _explain(self, report: ConsumedReport, doubtful: Sequence[Interval]) -> None:
        sentences = self._mismatches[report.consumer]
        in_window = intersection(doubtful, self._window[report.partition])
        if intersection(in_window, report.interval) and len(sentences) < MAX_MISMATCHES:
            sentences.append(_sentence(report, self._totals[report.partition].of(report)))

    def judge(self, batch: PublishedBatch) -> None:
        """Count a Batch of the window for each consumer."""
        for consumer in self._audits:
            name = ReaderName(consumer, batch.partition)
            coverage = self._coverage.get(name)
            finding = "behind" if coverage is None else coverage.finding(batch.offset)
            if finding == "behind" and self._is_committed(name, batch):
                finding = "unreported"
            if finding:
                again = coverage is not None and coverage.is_twice(batch.offset)
                self._count(consumer, batch, ["stored", finding, *(["again"] if again else [])])

    def _is_committed(self, name: ReaderName, batch: PublishedBatch) -> bool:
        """Return whether the group is done with a Batch, and has had the time to report it."""
        coverage = self._coverage.get(name)
        late_ms = max(batch.timestamp_ms, coverage.reported_ms if coverage else 0)
        return batch.offset < self._committed.get(name, 0) and late_ms <= self._due_ms

    def _count(self, consumer: str, batch: PublishedBatch, findings: Iterable[str]) -> None:
        audits = self._audits[consumer]
        for run in batch.notification.producers:
            name = ProducerName(batch.notification.write_partition, run.producer_id, run.epoch)
            if name not in audits:
                audits[name] = ConsumedAudit(name)
            for finding in findings:
                count: MessageCount = getattr(audits[name], finding)
                count.messages += run.messages
                count.records += run.records
                if finding in CONSUMER_FINDINGS:
                    self._name(consumer, count, batch, run)

    # -- findings ---------------------------------------------------------------------------

    def result(self) -> list[ConsumerAudit]:
        """Return the findings, sorted by consumer."""
        return [
            ConsumerAudit(
                consumer,
                self._counts[consumer],
                [audits[name] for name in sorted(audits)],
                self._mismatches[consumer],
                self._unnamed[consumer],
            )
            for consumer, audits in sorted(self._audits.items())
        ]

    def _name(
        self, consumer: str, count: MessageCount, batch: PublishedBatch, run: ProducerRun
    ) -> None:
        """Name the Messages of a finding, joined to those before where they follow them."""
        partition, offset = batch.partition, batch.offset
        last = count.parts[-1] if count.parts else None
        if last and (last.partition, last.end, last.last + 1) == (partition, offset, run.first):
            count.parts[-1] = last._replace(end=offset + 1, last=run.last)
        elif self._parts < MAX_PARTS:
            self._parts += 1
            count.parts.append(LocatedRun(partition, offset, offset + 1, run.first, run.last))
        else:
            self._unnamed[consumer] += 1


def _by_partition(ranges: Iterable[OffsetRange]) -> dict[int, Interval]:
    return {each.partition: Interval(each.start, each.end) for each in ranges}


def _each_once(
    reports: Iterable[StoredReport[ConsumedReport]],
) -> list[StoredReport[ConsumedReport]]:
    """Sort the reports by their start; of those sent again keep only the longest."""
    longest: dict[tuple[int, int, bool], StoredReport[ConsumedReport]] = {}
    for stored in reports:
        report = stored.report
        key = (report.start, report.window_start_ms, report.moved)
        known = longest.get(key)
        if known is None or known.report.end < report.end:
            longest[key] = stored
    return sorted(longest.values(), key=lambda stored: stored.report.interval)


def _overlaps(reports: Iterable[ConsumedReport]) -> list[Interval]:
    """Return what several of some reports cover; the reports come sorted by their start."""
    result = []
    reach = 0
    for report in reports:
        if report.start < min(report.end, reach):
            result.append(Interval(report.start, min(report.end, reach)))
        reach = max(reach, report.end)
    return result


def _said(report: ConsumedReport) -> list[int]:
    return [report.batches, report.messages, report.records, report.crc_sum]


def _sentence(report: ConsumedReport, there: Sequence[int]) -> str:
    """Say how a report differs from what its offsets hold."""
    differences = [
        f"{said} {name} where {stored} are stored"
        for name, said, stored in zip(_FIGURES[:-1], _said(report), there, strict=False)
        if said != stored
    ]
    return (
        f"{report.consumer} reports about {report.topic}/{report.partition} offsets "
        f"{report.start} to {report.end - 1}: "
        + ("; ".join(differences) or "a CRC sum that is not that of what is stored")
    )
