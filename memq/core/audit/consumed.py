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
    behind      no report covers it, and none covers a higher offset: lag, and no loss. So is what
                lies below reports that are younger than the *grace*: jobs may run side by side and
                end in any order, and a member may report late what it gave up to another.

A consumer answers for all that lies behind the lowest offset it reported in a partition (of all
reports read: those since shortly before the window). What lies before it was never meant for it.
For a partition without any report of it everything is behind.

Offsets that a group has stepped over (`skipped`) are missed for certain, whatever lies beside: a
member reports it of itself, and an administrator who moves the group forward does. Such a report
alone, which covers nothing, makes nobody a consumer that reports: not every group does.

Batches that are covered more than once are counted as consumed *again*. That is a fact and no
fault: a group delivers at least once, and a job that is run again replaces its output. A report
that stands in the audit topic twice, alone or joined to what came after it, begins at the same
offset and the same time, and counts once.

A report over offsets that retention has removed in part cannot be compared, and is believed. One
that dropped repeats is compared in Messages only; that there are repeats at all is a finding of
the other half of the audit.

How it is done: reports become, for each consumer and partition, a list of pieces with a state each.
Notifications are gone through in the order of offsets, and running totals are kept at the edges of
all reports, so the totals of any report are a difference. Only where some differ, the Notifications
of these ranges are gone through again. Memory is some hundred bytes for each report, consumer and
producer, and up to `MAX_PARTS` named parts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from memq.core.audit.consumed_findings import Amount, ConsumedAudit, ConsumerAudit, Part
from memq.core.audit.coverage import Coverage, State
from memq.core.audit.reports import CRC_MODULUS, ProducerName, ReaderName
from memq.core.spans import Offsets, common, holds, joined, without

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from memq.core.audit.coverage import StoredConsumed
    from memq.core.audit.reports import ConsumedReport
    from memq.core.format.batch import ProducerRun
    from memq.core.notification.notification import Notification

MAX_PARTS = 10_000  # named in one audit, about 200 bytes each; counts go on beyond
MAX_MISMATCHES = 1_000  # sentences of one consumer


class Totals(NamedTuple):
    """What the Notifications of some offsets say, or a report about them."""

    batches: int
    messages: int
    records: int
    crc_sum: int

    def plus(self, notification: Notification) -> Totals:
        """With one more Batch."""
        crc_sum = sum(run.crc_sum for run in notification.producers)
        return Totals(
            self.batches + 1,
            self.messages + notification.messages,
            self.records + notification.records,
            (self.crc_sum + crc_sum) % CRC_MODULUS,
        )

    def minus(self, earlier: Totals) -> Totals:
        """What came since."""
        return Totals(
            self.batches - earlier.batches,
            self.messages - earlier.messages,
            self.records - earlier.records,
            (self.crc_sum - earlier.crc_sum) % CRC_MODULUS,
        )


class _Sums:
    """Running totals of the Notifications of one read partition, kept at some edges."""

    def __init__(self, edges: Iterable[int]) -> None:
        self._edges = sorted(set(edges))
        self._kept: list[Totals] = []
        self._totals = Totals(0, 0, 0, 0)

    def seen(self, offset: int, notification: Notification) -> None:
        """Add the next Batch."""
        self._keep_before(offset)
        self._totals = self._totals.plus(notification)

    def between(self, start: int, end: int) -> Totals:
        """What was seen from one edge up to, not including, another one."""
        self._keep_before(self._edges[-1])
        return self._at(end).minus(self._at(start))

    def _keep_before(self, offset: int) -> None:
        while len(self._kept) < len(self._edges) and self._edges[len(self._kept)] <= offset:
            self._kept.append(self._totals)

    def _at(self, edge: int) -> Totals:
        return self._kept[bisect_right(self._edges, edge) - 1]


class Place(NamedTuple):
    """Where a Notification stands."""

    partition: int
    offset: int


class Consumption:
    """Compares reports of consumers with Notifications.

    Give it the Notifications of `stretches`, in the order of their offsets in each partition; then
    those of `doubtful` once more.

    Args:
        topic: the topic.
        reports: all that were stored since shortly before the window.
        named: consumers that are asked about; they alone, unless there are none.
        held: offsets that are held, by read partition.
        due_ms: what consumers went past before this time is due, by the brokers' clock.
    """

    def __init__(
        self,
        topic: str,
        reports: Iterable[StoredConsumed],
        *,
        named: Sequence[str] = (),
        held: Mapping[int, Offsets],
        due_ms: int,
    ) -> None:
        self._topic = topic
        self._held = held
        self._window: Mapping[int, Offsets] = {}
        self._named = frozenset(named)
        groups: defaultdict[ReaderName, list[StoredConsumed]] = defaultdict(list)
        self._counts: dict[str, int] = dict.fromkeys(named, 0)
        reports = list(reports)
        readers = {report.consumer for report, _ in reports if report.start < report.end}
        for stored in reports:
            name = stored.report.name
            if name.consumer not in readers:
                continue
            if name.partition in held and (not named or name.consumer in self._named):
                groups[name].append(stored)
                self._counts[name.consumer] = self._counts.get(name.consumer, 0) + 1
        self._coverage = {name: Coverage(group, due_ms) for name, group in groups.items()}
        self._checked: dict[ReaderName, list[ConsumedReport]] = {}
        self._sums: dict[int, _Sums] = {}
        self._unreadable: defaultdict[int, list[int]] = defaultdict(list)
        self._doubtful: dict[ReaderName, list[Offsets]] = {}
        self._found: dict[str, dict[ProducerName, ConsumedAudit]] = {
            consumer: {} for consumer in self._counts
        }
        self._parts = 0
        self._unnamed: defaultdict[str, int] = defaultdict(int)
        self._mismatches: defaultdict[str, list[str]] = defaultdict(list)

    def __repr__(self) -> str:
        reports = sum(self._counts.values())
        return f"<Consumption {self._topic} [{len(self._counts)} consumers, {reports} reports]>"

    # -- what to look at --------------------------------------------------------------------

    def stretches(self, window: Mapping[int, Offsets]) -> dict[int, list[Offsets]]:
        """The offsets that must be gone through, by read partition.

        Args:
            window: offsets of the window, by read partition.
        """
        self._window = window
        result = {}
        for partition, wanted in window.items():
            parts = [wanted]
            for name, coverage in self._coverage.items():
                if name.partition == partition:
                    checked = [each for each, _ in coverage.reports if self._matters(each, wanted)]
                    self._checked[name] = checked
                    parts += [Offsets(each.start, each.end) for each in checked]
            if len(parts) > 1:
                self._sums[partition] = _Sums(edge for part in parts[1:] for edge in part)
            result[partition] = common(joined(sorted(parts)), self._held[partition])
        return result

    def _matters(self, report: ConsumedReport, window: Offsets) -> bool:
        """Whether a report is about Batches of the window, and can be compared."""
        overlaps = report.start < window.end and window.start < report.end
        return overlaps and report.start >= self._held[report.partition].start

    # -- what Notifications say -------------------------------------------------------------

    def seen(
        self, partition: int, offset: int, notification: Notification, *, in_window: bool
    ) -> None:
        """Take in one Notification."""
        if partition in self._sums:
            self._sums[partition].seen(offset, notification)
        if in_window:
            for consumer, found in self._found.items():
                self._count(consumer, found, Place(partition, offset), notification)

    def unreadable(self, partition: int, offset: int) -> None:
        """A Notification cannot be read, so reports that cover it cannot be compared."""
        self._unreadable[partition].append(offset)

    def _count(
        self,
        consumer: str,
        found: dict[ProducerName, ConsumedAudit],
        place: Place,
        notification: Notification,
    ) -> None:
        coverage = self._coverage.get(ReaderName(consumer, place.partition))
        state = State.BEHIND if coverage is None else coverage.state(place.offset)
        if state is State.BEFORE:
            return
        again = coverage is not None and coverage.is_twice(place.offset)
        for run in notification.producers:
            audit = _audit_of(found, notification, run)
            _add(audit.stored, run)
            amount: Amount = getattr(audit, state.value)
            _add(amount, run)
            if again:
                _add(audit.again, run)
            if state in (State.MISSED, State.UNREPORTED):
                self._name(consumer, amount, place, run)

    # -- reports that differ ----------------------------------------------------------------

    def doubtful(self) -> dict[int, list[Offsets]]:
        """Offsets that are covered only by reports that differ, by read partition.

        Their Notifications must be gone through again, with `seen_again`.
        """
        result: defaultdict[int, list[Offsets]] = defaultdict(list)
        for name, checked in self._checked.items():
            differing = [report for report in checked if not self._agrees(report)]
            if differing:
                wrong = {id(report) for report in differing}
                sound = joined(
                    Offsets(each.start, each.end)
                    for each, _ in self._coverage[name].reports
                    if id(each) not in wrong
                )
                spans = joined(Offsets(each.start, each.end) for each in differing)
                only = without(spans, sound)
                self._doubtful[name] = common(only, self._window[name.partition])
                result[name.partition] += self._doubtful[name]
                self._explain(differing, self._doubtful[name])
        return {
            partition: common(joined(sorted(parts)), self._held[partition])
            for partition, parts in result.items()
        }

    def seen_again(self, partition: int, offset: int, notification: Notification) -> None:
        """Take in a Notification of the window that is doubtful: it was not consumed after all."""
        place = Place(partition, offset)
        for consumer, found in self._found.items():
            if holds(self._doubtful.get(ReaderName(consumer, partition), ()), offset):
                for run in notification.producers:
                    audit = _audit_of(found, notification, run)
                    _add(audit.consumed, run, sign=-1)
                    _add(audit.mismatched, run)
                    self._name(consumer, audit.mismatched, place, run)

    def _agrees(self, report: ConsumedReport) -> bool:
        if any(report.start <= at < report.end for at in self._unreadable[report.partition]):
            return True
        if report.end > self._held[report.partition].end:
            return False
        there = self._there(report)
        if (report.batches, report.messages + report.repeats) != there[:2]:
            return False
        if report.repeats:
            return report.records <= there.records
        return (report.records, report.crc_sum) == there[2:]

    def _there(self, report: ConsumedReport) -> Totals:
        return self._sums[report.partition].between(report.start, report.end)

    def _explain(self, differing: Iterable[ConsumedReport], doubtful: Sequence[Offsets]) -> None:
        for report in differing:
            sentences = self._mismatches[report.consumer]
            if common(doubtful, Offsets(report.start, report.end)) and (
                len(sentences) < MAX_MISMATCHES
            ):
                sentences.append(_sentence(report, self._there(report)))

    # -- findings ---------------------------------------------------------------------------

    def result(self) -> list[ConsumerAudit]:
        """The findings, sorted by consumer."""
        return [
            ConsumerAudit(
                consumer,
                self._counts[consumer],
                [found[name] for name in sorted(found)],
                self._mismatches[consumer],
                self._unnamed[consumer],
            )
            for consumer, found in sorted(self._found.items())
        ]

    def _name(self, consumer: str, amount: Amount, place: Place, run: ProducerRun) -> None:
        """Name the Messages of a finding, joined to those before where they follow them."""
        part = Part(place.partition, place.offset, place.offset + 1, run.first, run.last)
        last = amount.parts[-1] if amount.parts else None
        if last and (last.partition, last.end, last.last + 1) == (*place, run.first):
            amount.parts[-1] = last._replace(end=part.end, last=part.last)
        elif self._parts < MAX_PARTS:
            self._parts += 1
            amount.parts.append(part)
        else:
            self._unnamed[consumer] += 1


def _audit_of(
    found: dict[ProducerName, ConsumedAudit], notification: Notification, run: ProducerRun
) -> ConsumedAudit:
    name = ProducerName(notification.write_partition, run.producer_id, run.epoch)
    audit = found.get(name)
    if audit is None:
        audit = found[name] = ConsumedAudit(name)
    return audit


def _add(amount: Amount, run: ProducerRun, sign: int = 1) -> None:
    amount.messages += sign * run.messages
    amount.records += sign * run.records


def _sentence(report: ConsumedReport, there: Totals) -> str:
    """How a report differs from what its offsets hold."""
    said = Totals(report.batches, report.messages + report.repeats, report.records, report.crc_sum)
    differences = [
        f"{said_value} {name} where {there_value} are stored"
        for name, said_value, there_value in zip(
            ("Batches", "Messages", "LogMessages"), said, there, strict=False
        )
        if said_value != there_value
    ]
    return (
        f"{report.consumer} reports about {report.topic}/{report.partition} offsets "
        f"{report.start} to {report.end - 1}: "
        + ("; ".join(differences) or "a CRC sum that is not that of what is stored")
    )
