"""Comparing what was reported as produced with what is stored (see `memq.core.audit.reports`).

For each producer there are sets of sequences, kept as intervals: what its reports name, what they
say was delivered, what was found, found again, damaged, or gone. Each finding is what some of these
have and others have not.

Memory is some hundred bytes for each report, and for each gap in what is found (`MAX_GAPS`).
"""

from __future__ import annotations

import copy
from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memq.core.audit.reports import CRC_MODULUS, ProducedReport, ProducerName, SequenceRun
from memq.core.audit.result import ProducerAudit
from memq.core.ranges import Interval, IntervalSet, contains, difference, intersection, union
from memq.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Sequence

    from memq.core.format.batch import ProducerRun

MAX_GAPS = 5_000_000  # in what is found of all producers: about 100 bytes each


@dataclass(slots=True)
class _ReportTally:
    """One report, and what was found of the Messages that it says were delivered.

    Attributes:
        report: the report.
        failed: sequences that were given up.
        fresh: those of its sequences that no report before it covers.
        reach: where it and the reports before it end.
        records: LogMessages found.
        shared_records: those of them in Messages before `fresh`.
        damaged_records: LogMessages known to be in damaged Messages.
        gone_records: LogMessages known to be in Messages whose object is gone.
        crc_sum: of the Messages found.
    """

    report: ProducedReport
    failed: list[Interval]
    fresh: Interval
    reach: int
    records: int = 0
    shared_records: int = 0
    damaged_records: int = 0
    gone_records: int = 0
    crc_sum: int = 0

    def count(self, sequence: int, records: int, crc32c: int) -> None:
        """Count a Message of this report that was found."""
        if contains(self.failed, sequence):
            return
        self.records += records
        self.crc_sum = (self.crc_sum + crc32c) % CRC_MODULUS
        if sequence < self.fresh.start:
            self.shared_records += records


class _ProducerState:
    """What is known of the Messages of one producer.

    Args:
        name: of the producer.
        judged: reports that are judged, sorted by where they begin.
        others: those that are not; what they name is not unreported.
    """

    def __init__(
        self,
        name: ProducerName,
        judged: Iterable[ProducedReport] = (),
        others: Iterable[ProducedReport] = (),
    ) -> None:
        self.tallies: list[_ReportTally] = []
        self.unreported = ProducerAudit(name)
        self.found = IntervalSet()
        self._old: list[Interval] = []
        self._twice, self._damaged, self._gone = IntervalSet(), IntervalSet(), IntervalSet()
        delivered: list[Interval] = []
        reach = 0
        for report in judged:
            failed = [run.interval for run in report.failed]
            fresh = Interval(max(reach, report.first), report.last + 1)
            reach = max(reach, report.last + 1)
            self.tallies.append(_ReportTally(report, failed, fresh, reach))
            delivered += difference([report.interval], failed)
        self._delivered = union(sorted(delivered))
        self._judged = union(each.report.interval for each in self.tallies)
        self._reported = union(sorted([*self._judged, *(each.interval for each in others)]))

    def needs(self, sequences: Interval, *, in_window: bool) -> bool:
        """Return whether some sequences must be looked at."""
        return bool(intersection(self._judged, sequences)) or (
            in_window and intersection(self._reported, sequences) != [sequences]
        )

    def stored(self, sequence: int, records: int, crc32c: int, *, in_window: bool) -> None:
        """Count a sound Message that was found."""
        one = Interval(sequence, sequence + 1)
        if contains(self._judged, sequence):
            if sequence in self.found:
                self._twice.add(*one)
                return
            self.found.add(*one)
            for tally in self._covering(one):
                tally.count(sequence, records, crc32c)
        elif in_window and not contains(self._reported, sequence):
            self.unreported.unreported_messages += 1
            self.unreported.unreported_records += records

    def unreadable(self, run: ProducerRun, *, gone: bool, in_window: bool) -> None:
        """Record that a copy of some Messages cannot be read."""
        sequences = Interval(run.first, run.last + 1)
        (self._gone if gone else self._damaged).add(*sequences)
        for tally in self._covering(sequences):
            if not difference([sequences], [tally.fresh]):
                tally.gone_records += run.records if gone else 0
                tally.damaged_records += 0 if gone else run.records
        reported = intersection(self._reported, sequences)
        missing = difference([sequences], reported)
        if in_window and missing:
            audit = self.unreported
            (audit.lost if gone else audit.damaged).extend(map(SequenceRun.of, missing))
            # Of a run that is reported in part, the report knows how many are its own.
            records = 0 if reported else run.records
            audit.lost_records += records if gone else 0
            audit.damaged_records += 0 if gone else records

    def expire(self, sequences: Interval) -> None:
        """Retention may have removed some Messages."""
        self._old.append(sequences)

    def unseen(self) -> list[Interval]:
        """Return what is expected, and no Batch and no notification has named."""
        named = [*self.found.intervals(), *self._damaged.intervals(), *self._gone.intervals()]
        return difference(self._delivered, union(sorted(named)))

    def expired(self) -> list[Interval]:
        """Return what is nowhere, and retention may have removed."""
        return _both(self.unseen(), union(sorted(self._old)))

    def audit(self) -> ProducerAudit:
        """Return the findings."""
        audit = copy.deepcopy(self.unreported)
        missing = difference(self._delivered, self.found.intervals())
        damaged = _both(missing, self._damaged.intervals())
        expired = self.expired()
        lost = difference(difference(missing, damaged), expired)
        audit.produced_messages = _messages(self._delivered)
        audit.stored_messages = audit.produced_messages - _messages(missing)
        audit.lost = _runs([*lost, *(run.interval for run in audit.lost)])
        audit.damaged = _runs([*damaged, *(run.interval for run in audit.damaged)])
        audit.recovered = _runs(difference(self.found.intervals(), self._delivered))
        audit.duplicated = _runs(self._twice.intervals())
        audit.expired = _runs(expired)
        for tally in self.tallies:
            report, fresh = tally.report, tally.fresh
            missing_records = max(0, report.records - tally.records)
            shared_records = tally.shared_records
            if not intersection(missing, report.interval):
                if (report.records, report.crc_sum) != (tally.records, tally.crc_sum):
                    audit.changed.append(SequenceRun.of(report.interval))
            elif not intersection(missing, fresh):
                shared_records += missing_records  # an earlier report has named them
            else:
                any_lost, any_expired = intersection(lost, fresh), intersection(expired, fresh)
                _share(tally, audit, any_lost=bool(any_lost), any_expired=bool(any_expired))
            audit.produced_records += report.records - shared_records
            audit.stored_records += tally.records - tally.shared_records
        return audit

    def _covering(self, sequences: Interval) -> Iterator[_ReportTally]:
        """Yield the reports that have one of some sequences."""
        at = bisect_left(self.tallies, sequences.end, key=lambda tally: tally.report.first) - 1
        while at >= 0 and self.tallies[at].reach > sequences.start:
            if self.tallies[at].report.last >= sequences.start:
                yield self.tallies[at]
            at -= 1


def _share(tally: _ReportTally, audit: ProducerAudit, *, any_lost: bool, any_expired: bool) -> None:
    """Add the LogMessages that a report is short of to the findings that it has."""
    rest = max(0, tally.report.records - tally.records)
    damaged = min(tally.damaged_records, rest) if any_lost or any_expired else rest
    lost = min(tally.gone_records, rest - damaged) if any_expired else rest - damaged
    audit.damaged_records += damaged
    audit.lost_records += lost
    audit.expired_records += rest - damaged - lost


class ProducedReconciliation:
    """Compares reports with stored Messages; give it all reports, then all Messages.

    Args:
        topic: the topic.
        reports: those that are judged.
        others: those that are not; what they name is not unreported.
        only: producers that are compared; None for all.
    """

    def __init__(
        self,
        topic: str,
        reports: Iterable[ProducedReport],
        *,
        others: Iterable[ProducedReport] = (),
        only: Container[ProducerName] | None = None,
    ) -> None:
        self._topic = topic
        self._only = only
        self._gaps = 0
        judged, rest = _by_name(reports), _by_name(others)
        self._producers = {
            name: _ProducerState(name, judged[name], rest[name]) for name in {**judged, **rest}
        }

    def __repr__(self) -> str:
        return f"<ProducedReconciliation {self._topic} [{len(self._producers)} producers]>"

    # -- what notifications say -------------------------------------------------------------

    def needs(self, write_partition: int, run: ProducerRun, *, in_window: bool) -> bool:
        """Return whether the Messages of a run must be looked at one by one.

        They need not where other reports than the judged ones name them all.

        Args:
            write_partition: of the Batch.
            run: of the Batch's notification.
            in_window: whether the Batch is in the window, so that what no report names counts as
                unreported.
        """
        producer = self._of(ProducerName(write_partition, run.producer_id, run.epoch))
        sequences = Interval(run.first, run.last + 1)
        return producer is not None and producer.needs(sequences, in_window=in_window)

    def unreadable(
        self, write_partition: int, run: ProducerRun, *, gone: bool, in_window: bool = True
    ) -> None:
        """Record that a Batch with these Messages cannot be read.

        In the window they are lost or damaged even where nobody reported them: their notification
        says that they were stored.

        Args:
            write_partition: of the Batch.
            run: of the Batch's notification.
            gone: True when its object does not exist any more.
            in_window: whether the Batch is in the window.
        """
        if producer := self._of(ProducerName(write_partition, run.producer_id, run.epoch)):
            producer.unreadable(run, gone=gone, in_window=in_window)

    # -- what Batches hold ------------------------------------------------------------------

    def stored(
        self,
        name: ProducerName,
        sequence: int,
        records: int,
        crc32c: int,
        *,
        in_window: bool = True,
    ) -> None:
        """Count one sound stored Message.

        Raises:
            InvalidRequestError: there are more than `MAX_GAPS` in what was found.
        """
        if producer := self._of(name):
            self._gaps -= len(producer.found)
            producer.stored(sequence, records, crc32c, in_window=in_window)
            self._gaps += len(producer.found)
            if self._gaps > MAX_GAPS:
                raise InvalidRequestError(
                    f"what is stored of {self._topic!r} has more than {MAX_GAPS} gaps in this "
                    "window; choose a shorter window"
                )

    def any_unseen(self) -> bool:
        """Return whether a Message is expected that nothing has named so far."""
        return any(each.unseen() for each in self._producers.values())

    # -- findings ---------------------------------------------------------------------------

    def expire(self, reports: Iterable[ProducedReport]) -> None:
        """Retention may have removed what these reports name."""
        for report in reports:
            self._producers[report.name].expire(report.interval)

    def expired_reports(self) -> int:
        """Count the reports of Messages that are nowhere and that retention may have removed."""
        found = 0
        for producer in self._producers.values():
            expired = producer.expired()
            found += sum(
                bool(intersection(expired, each.report.interval)) for each in producer.tallies
            )
        return found

    def producers(self) -> list[ProducerAudit]:
        """Return the findings, sorted by name."""
        return [
            producer.audit()
            for name, producer in sorted(self._producers.items())
            if producer.tallies or producer.unreported != ProducerAudit(name)
        ]

    def _of(self, name: ProducerName) -> _ProducerState | None:
        """Return what is known of a producer; None where nobody asks about it."""
        producer = self._producers.get(name)
        if producer is None and (self._only is None or name in self._only):
            producer = self._producers[name] = _ProducerState(name)
        return producer


def _by_name(reports: Iterable[ProducedReport]) -> defaultdict[ProducerName, list[ProducedReport]]:
    """Reports by producer, sorted by where they begin, the longest first; each only once."""
    result: defaultdict[ProducerName, list[ProducedReport]] = defaultdict(list)
    for report in sorted(reports, key=_order):
        group = result[report.name]
        if not group or group[-1] != report:
            group.append(report)
    return result


def _order(report: ProducedReport) -> tuple[int, int, int, int]:
    return report.first, -report.last, report.window_start_ms, report.window_end_ms


def _both(intervals: Iterable[Interval], others: Sequence[Interval]) -> list[Interval]:
    """Return what both have."""
    return [part for each in intervals for part in intersection(others, each)]


def _messages(intervals: Iterable[Interval]) -> int:
    return sum(end - start for start, end in intervals)


def _runs(intervals: Iterable[Interval]) -> list[SequenceRun]:
    """Intervals in any order as runs."""
    return list(map(SequenceRun.of, union(sorted(intervals))))
