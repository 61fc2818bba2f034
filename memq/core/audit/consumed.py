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
report that covers nothing, and again where it seeks elsewhere before it has read anything: what
lies between the two was not meant for it either. Where it goes back before it has read anything
from there, the beginning is withdrawn, and counts no more.
Where the lowest report of a group is not its first, what lies below is unreported: had it been
consumed and reported, the report would be among those read, for it is younger than the Batch. In a
partition without any report everything is behind, but for what the group has committed there.

Offsets that a group has stepped over (`skipped`) are missed for certain, whatever lies beside: a
member reports it of itself, and an administrator who moves the group forward does. What an
administrator reports (`moved`) makes nobody a consumer that reports: not every group does.

Batches that are covered more than once are counted as consumed *again*. That is a fact and no
fault: a group delivers at least once, and a job that is run again replaces its output. A report
that is in the audit topic twice, alone or joined to what came after it, begins at the same
offset and the same time, and counts once.

A report over offsets that retention has removed in part cannot be compared, and is believed.

How it is done: reports become, for each consumer and partition, the offsets from which a finding
holds. Notifications are gone through in the order of offsets, and running totals are kept at the
edges of all reports, so the totals of any report are a difference. Only where some differ, the
Notifications of these ranges are gone through again. Memory is some hundred bytes for each report,
consumer and producer, and up to `MAX_PARTS` named parts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from itertools import accumulate, chain
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

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
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from memq.core.format.batch import ProducerRun
    from memq.core.notification import Notification, PublishedBatch

MAX_PARTS = 10_000  # named in one audit, about 200 bytes each; counts go on beyond
MAX_MISMATCHES = 1_000  # sentences of one consumer


class _Totals(NamedTuple):
    """What the Notifications of some offsets say, or a report about them."""

    batches: int = 0
    messages: int = 0
    records: int = 0
    crc_sum: int = 0

    def plus(self, more: _Totals, sign: int = 1) -> _Totals:
        """With what other offsets have, or with a negative sign without it."""
        batches, messages, records, crc_sum = (
            a + sign * b for a, b in zip(self, more, strict=True)
        )
        return _Totals(batches, messages, records, crc_sum % CRC_MODULUS)


class _RunningTotals:
    """Totals of the Notifications of one read partition so far, kept at some edges."""

    def __init__(self, edges: Iterable[int]) -> None:
        self._edges = sorted(set(edges))
        self._kept: list[_Totals] = []
        self._totals = _Totals()

    def add(self, offset: int, notification: Notification) -> None:
        """Add the next Batch."""
        self._keep_before(offset)
        crc_sum = sum(run.crc_sum for run in notification.producers)
        batch = _Totals(1, notification.messages, notification.records, crc_sum)
        self._totals = self._totals.plus(batch)

    def between(self, start: int, end: int) -> _Totals:
        """What was added from one edge up to, not including, another one."""
        self._keep_before(self._edges[-1])
        return self._at(end).plus(self._at(start), sign=-1)

    def _keep_before(self, offset: int) -> None:
        while len(self._kept) < len(self._edges) and self._edges[len(self._kept)] <= offset:
            self._kept.append(self._totals)

    def _at(self, edge: int) -> _Totals:
        return self._kept[bisect_right(self._edges, edge) - 1]


class _Coverage:
    """What the reports of one consumer say about one read partition.

    Attributes:
        reports: each once, sorted by where they begin.
        checked: those of them that are compared with what is stored.
        doubtful: offsets of the window that only reports cover which differ.
        reported_ms: when the last of them was stored.
    """

    def __init__(self, stored: Sequence[StoredReport[ConsumedReport]], due_ms: int) -> None:
        each_once, withdrawn = _without_withdrawn(_each_once(stored))
        self.reports = [report for report, _ in each_once]
        self.checked: list[ConsumedReport] = []
        self.doubtful: list[Interval] = []
        self.reported_ms = max(stored_ms for _, stored_ms in stored)
        self._twice = union(_overlaps(self.reports))
        skips = (Interval(each.start - each.skipped, each.start) for each in self.reports)
        self._skips = union(sorted(skips))
        self._goes_on = {each.end for each in self.reports if not each.final}
        self._begins = {each.start for each in self.reports if each.began and not each.moved}
        self._unread = {each.start for each in self.reports if each.began} - {
            each.end for each in self.reports if each.start < each.end
        }
        self._passed_ms = _passed_ms([stored_ms for _, stored_ms in each_once])
        self._due_ms = due_ms
        self._edges = [0]
        self._findings = [""]
        self._lay_out(union(each.interval for each in self.reports), begun=withdrawn)

    def finding(self, offset: int) -> str:
        """Which finding of `ConsumedAudit` an offset is; empty where it was not meant for it."""
        return self._findings[bisect_right(self._edges, offset) - 1]

    def is_twice(self, offset: int) -> bool:
        """Whether several reports cover an offset."""
        return contains(self._twice, offset)

    def _lay_out(self, covered: Iterable[Interval], *, begun: bool) -> None:
        """Note from which offset which finding holds. Of two at one offset the later counts.

        Args:
            covered: by reports.
            begun: the group has begun, above all of these.
        """
        reach = min(report.start - report.skipped for report in self.reports)
        lowest = [report for report in self.reports if report.start - report.skipped == reach]
        if not begun and not any(report.began or report.final for report in lowest):
            below = Interval(0, reach)
            self._from(0, "unreported" if self._is_due(below) else "behind")
        for start, end in covered:
            self._lay_out_gap(Interval(reach, start))
            self._from(start, "consumed")
            self._from(end, "behind")
            reach = end

    def _lay_out_gap(self, gap: Interval) -> None:
        if not self._is_due(gap):
            self._from(gap.start, "behind")
            return
        if gap.start in self._unread and gap.end in self._begins:
            rest = ""
        else:
            rest = "unreported" if gap.start in self._goes_on else "missed"
        self._from(gap.start, rest)
        for start, end in intersection(self._skips, gap):
            self._from(start, "missed")
            self._from(end, rest)

    def _from(self, offset: int, finding: str) -> None:
        self._edges.append(offset)
        self._findings.append(finding)

    def _is_due(self, gap: Interval) -> bool:
        """Whether the consumer went past a gap long enough ago."""
        at = bisect_right(self.reports, gap.end - 1, key=lambda report: report.start)
        return self._passed_ms[at] <= self._due_ms


class ConsumedReconciliation:
    """Compares reports of consumers with Notifications.

    Give it the Batches of `ranges`, in the order of their offsets in each partition; then those of
    `doubtful` once more.

    Args:
        topic: the topic.
        reports: all that were stored since shortly before the window.
        named: consumers that are asked about; they alone, unless there are none.
        retained: offsets that are retained, of each read partition.
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
        committed: Mapping[ReaderName, int] = MappingProxyType({}),
        due_ms: int,
    ) -> None:
        self._topic = topic
        self._retained = _by_partition(retained)
        self._window: dict[int, Interval] = {}
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
        self._committed = committed
        self._due_ms = due_ms
        self._totals: dict[int, _RunningTotals] = {}
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

    # -- what to look at --------------------------------------------------------------------

    def ranges(self, window: Iterable[OffsetRange]) -> list[OffsetRange]:
        """The offsets that must be gone through.

        Args:
            window: offsets of the window, of each read partition.
        """
        self._window = _by_partition(window)
        wanted = {partition: [self._window[partition]] for partition in self._retained}
        for name, coverage in self._coverage.items():
            coverage.checked = [each for each in coverage.reports if self._matters(each)]
            wanted[name.partition] += [each.interval for each in coverage.checked]
        for partition, (_, *checked) in wanted.items():
            if checked:
                self._totals[partition] = _RunningTotals(chain.from_iterable(checked))
        return self._ranges(wanted)

    def _matters(self, report: ConsumedReport) -> bool:
        """Whether a report is about Batches of the window, and can be compared."""
        window = self._window[report.partition]
        overlaps = report.start < window.end and window.start < report.end
        return overlaps and report.start >= self._retained[report.partition].start

    def _ranges(self, wanted: dict[int, list[Interval]]) -> list[OffsetRange]:
        """What of some offsets is retained, each once."""
        return [
            OffsetRange(partition, *part)
            for partition, parts in wanted.items()
            for part in intersection(union(sorted(parts)), self._retained[partition])
        ]

    # -- what Notifications say -------------------------------------------------------------

    def add(self, batch: PublishedBatch, *, in_window: bool) -> None:
        """Take in one Batch."""
        if batch.partition in self._totals:
            self._totals[batch.partition].add(batch.offset, batch.notification)
        if in_window:
            for consumer in self._audits:
                self._count(consumer, batch)

    def add_unreadable(self, partition: int, offset: int) -> None:
        """A Notification cannot be read, so reports that cover it cannot be compared."""
        self._unreadable[partition].append(offset)

    def _count(self, consumer: str, batch: PublishedBatch) -> None:
        name = ReaderName(consumer, batch.partition)
        coverage = self._coverage.get(name)
        finding = "behind" if coverage is None else coverage.finding(batch.offset)
        if finding == "behind" and self._is_committed(name, batch):
            finding = "unreported"
        if not finding:
            return
        again = coverage is not None and coverage.is_twice(batch.offset)
        for run, audit in self._audits_of(consumer, batch.notification):
            _add(audit.stored, run)
            count: MessageCount = getattr(audit, finding)
            _add(count, run)
            if again:
                _add(audit.again, run)
            if finding in CONSUMER_FINDINGS:
                self._name(consumer, count, batch, run)

    def _is_committed(self, name: ReaderName, batch: PublishedBatch) -> bool:
        """Whether the group is done with a Batch, and has had the time to report it."""
        coverage = self._coverage.get(name)
        late_ms = max(batch.timestamp_ms, coverage.reported_ms if coverage else 0)
        return batch.offset < self._committed.get(name, 0) and late_ms <= self._due_ms

    # -- reports that differ ----------------------------------------------------------------

    def doubtful(self) -> list[OffsetRange]:
        """Offsets that are covered only by reports that differ.

        Their Batches must be gone through again, with `add_doubtful`.
        """
        wanted: defaultdict[int, list[Interval]] = defaultdict(list)
        for name, coverage in self._coverage.items():
            differing = [report for report in coverage.checked if not self._agrees(report)]
            wrong = set(map(id, differing))
            sound = union(each.interval for each in coverage.reports if id(each) not in wrong)
            only = difference(union(each.interval for each in differing), sound)
            coverage.doubtful = intersection(only, self._window[name.partition])
            wanted[name.partition] += coverage.doubtful
            self._explain(differing, coverage.doubtful)
        return self._ranges(wanted)

    def add_doubtful(self, batch: PublishedBatch) -> None:
        """Take in a Batch of the window that is doubtful: it was not consumed after all."""
        for consumer in self._audits:
            coverage = self._coverage.get(ReaderName(consumer, batch.partition))
            if coverage is not None and contains(coverage.doubtful, batch.offset):
                for run, audit in self._audits_of(consumer, batch.notification):
                    _add(audit.consumed, run, sign=-1)
                    _add(audit.mismatched, run)
                    self._name(consumer, audit.mismatched, batch, run)

    def _agrees(self, report: ConsumedReport) -> bool:
        if any(report.start <= at < report.end for at in self._unreadable[report.partition]):
            return True
        if report.end > self._retained[report.partition].end:
            return False
        return _said(report) == self._there(report)

    def _there(self, report: ConsumedReport) -> _Totals:
        return self._totals[report.partition].between(report.start, report.end)

    def _explain(self, differing: Iterable[ConsumedReport], doubtful: Sequence[Interval]) -> None:
        for report in differing:
            sentences = self._mismatches[report.consumer]
            if intersection(doubtful, report.interval) and len(sentences) < MAX_MISMATCHES:
                sentences.append(_sentence(report, self._there(report)))

    # -- findings ---------------------------------------------------------------------------

    def result(self) -> list[ConsumerAudit]:
        """The findings, sorted by consumer."""
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

    def _audits_of(
        self, consumer: str, notification: Notification
    ) -> Iterator[tuple[ProducerRun, ConsumedAudit]]:
        """The runs of a Batch, each with what was found about its producer for a consumer."""
        audits = self._audits[consumer]
        for run in notification.producers:
            name = ProducerName(notification.write_partition, run.producer_id, run.epoch)
            if name not in audits:
                audits[name] = ConsumedAudit(name)
            yield run, audits[name]

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


def _add(count: MessageCount, run: ProducerRun, sign: int = 1) -> None:
    count.messages += sign * run.messages
    count.records += sign * run.records


def _each_once(
    reports: Iterable[StoredReport[ConsumedReport]],
) -> list[StoredReport[ConsumedReport]]:
    """The reports sorted by their start; of those that were sent again only the longest."""
    longest: dict[tuple[int, int, bool], StoredReport[ConsumedReport]] = {}
    for stored in reports:
        report = stored.report
        key = (report.start, report.window_start_ms, report.moved)
        known = longest.get(key)
        if known is None or known.report.end < report.end:
            longest[key] = stored
    return sorted(longest.values(), key=lambda stored: stored.report.interval)


def _without_withdrawn(
    reports: Iterable[StoredReport[ConsumedReport]],
) -> tuple[list[StoredReport[ConsumedReport]], bool]:
    """The reports without beginnings below which the group went on later; whether there were any.

    Args:
        reports: sorted by their start.
    """
    kept: list[StoredReport[ConsumedReport]] = []
    latest = (-1, -1)  # of those that start lower
    withdrawn = False
    for stored in reports:
        report = stored.report
        made = (stored.stored_ms, report.window_start_ms)
        if report.began and report.start == report.end and made < latest:
            withdrawn = True
            continue
        kept.append(stored)
        latest = max(latest, made)
    return kept, withdrawn


def _passed_ms(stored_ms: Sequence[int]) -> list[int]:
    """For each report when it, or the first of those after it, was stored."""
    return list(accumulate(reversed(stored_ms), min))[::-1]


def _overlaps(reports: Iterable[ConsumedReport]) -> list[Interval]:
    """What several of some reports cover, which come sorted by their start."""
    result = []
    reach = 0
    for report in reports:
        if report.start < min(report.end, reach):
            result.append(Interval(report.start, min(report.end, reach)))
        reach = max(reach, report.end)
    return result


def _said(report: ConsumedReport) -> _Totals:
    return _Totals(report.batches, report.messages, report.records, report.crc_sum)


def _sentence(report: ConsumedReport, there: _Totals) -> str:
    """How a report differs from what its offsets hold."""
    differences = [
        f"{said} {name} where {stored} are stored"
        for name, said, stored in zip(
            ("Batches", "Messages", "LogMessages"), _said(report)[:3], there[:3], strict=True
        )
        if said != stored
    ]
    return (
        f"{report.consumer} reports about {report.topic}/{report.partition} offsets "
        f"{report.start} to {report.end - 1}: "
        + ("; ".join(differences) or "a CRC sum that is not that of what is stored")
    )
