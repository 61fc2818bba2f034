"""Comparing what was reported as produced with what is stored (see `memq.core.audit.reports`).

The reports about one producer cover runs of sequences with no gap; each run has one byte of state
per Message. What is found in Batches is marked there. At the end each finding is a class of
states, and its sequences are the runs of bytes of that class.

State is one byte for each Message that the reports name, and some hundred for each report.
"""

from __future__ import annotations

import copy
import re
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING

from memq.core.audit.reports import (
    CRC_MODULUS,
    ProducedReport,
    ProducerName,
    SequenceRun,
    merged_runs,
)
from memq.core.audit.result import ProducerAudit
from memq.core.ranges import Interval, contains, difference, intersection, union
from memq.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Sequence

    from memq.core.format.batch import ProducerRun

MAX_MESSAGES = 500_000_000  # that one audit compares: half a GiB of state

# What is known of a Message: bits of its byte of state.
_FOUND = 1  # a sound copy of it is stored
_TWICE = 2  # and another one
_DAMAGED = 4  # a copy of it cannot be read
_GONE = 8  # a copy of it was stored once, but the object is gone
_EXPECTED = 16  # a report says that it was delivered
_OLD = 32  # retention may have removed it

_MADE_OLD = bytes(state | _OLD for state in range(2 * _OLD)).ljust(256)


def _runs_in_state(belongs: Callable[[int], bool]) -> re.Pattern[bytes]:
    """What finds the runs of Messages whose state belongs to a class."""
    states = bytes(state for state in range(2 * _OLD) if belongs(state))
    return re.compile(b"[%b]+" % re.escape(states))


_PRODUCED = _runs_in_state(lambda state: state & _EXPECTED > 0)
_STORED = _runs_in_state(lambda state: state & (_EXPECTED | _FOUND) == _EXPECTED | _FOUND)
_MISSING = _runs_in_state(lambda state: state & (_EXPECTED | _FOUND) == _EXPECTED)
_UNSEEN = _runs_in_state(lambda state: state & ~_OLD == _EXPECTED)
_EXPIRED = _runs_in_state(lambda state: state == _EXPECTED | _OLD)
_LOST = _runs_in_state(
    lambda state: state & (_EXPECTED | _FOUND | _DAMAGED) == _EXPECTED and state != _EXPECTED | _OLD
)
_SPOILT = _runs_in_state(
    lambda state: state & (_EXPECTED | _FOUND | _DAMAGED) == _EXPECTED | _DAMAGED
)
_RECOVERED = _runs_in_state(lambda state: state & (_EXPECTED | _FOUND) == _FOUND)
_DUPLICATED = _runs_in_state(lambda state: state & _TWICE > 0)

_start, _end, _first = attrgetter("start"), attrgetter("end"), attrgetter("first")


@dataclass(slots=True)
class _ReportTally:
    """One report, and what was found of the Messages that it says were delivered.

    Attributes:
        report: the report.
        failed: sequences that were given up.
        fresh: first of its sequences that no report before it covers.
        records: LogMessages found.
        shared_records: those of them in Messages before `fresh`.
        damaged_records: LogMessages known to be in damaged Messages.
        gone_records: LogMessages known to be in Messages whose object is gone.
        crc_sum: of the Messages found.
    """

    report: ProducedReport
    failed: list[Interval]
    fresh: int
    records: int = 0
    shared_records: int = 0
    damaged_records: int = 0
    gone_records: int = 0
    crc_sum: int = 0

    def count(self, sequence: int, records: int, crc32c: int) -> None:
        """Count a Message of this report that was found."""
        if self.failed and contains(self.failed, sequence):
            return
        self.records += records
        self.crc_sum = (self.crc_sum + crc32c) % CRC_MODULUS
        if sequence < self.fresh:
            self.shared_records += records


class _MessageStates:
    """What is known of the Messages of a run without a gap, and of the reports that cover it.

    The reports come sorted by where they begin.
    """

    def __init__(self, sequences: Interval, reports: Iterable[ProducedReport]) -> None:
        self.start, self.end = sequences
        self._state = bytearray(self.end - self.start)
        self._tallies: list[_ReportTally] = []
        self._reaches: list[int] = []  # where the reports up to each end
        reach = self.start
        for report in reports:
            failed = [run.interval for run in report.failed]
            self._tallies.append(_ReportTally(report, failed, fresh=reach))
            reach = max(reach, report.last + 1)
            self._reaches.append(reach)
            for start, end in difference([report.interval], failed):  # was delivered
                self._state[self._slice(start, end)] = bytes([_EXPECTED]) * (end - start)
        self._firsts = [tally.report.first for tally in self._tallies]

    def stored(self, sequence: int, records: int, crc32c: int) -> None:
        """A sound Message was found."""
        at = sequence - self.start
        if self._state[at] & _FOUND:
            self._state[at] |= _TWICE
            return
        self._state[at] |= _FOUND
        for tally in self._covering(Interval(sequence, sequence + 1)):
            tally.count(sequence, records, crc32c)

    def unreadable(self, sequences: Interval, records: int, flag: int) -> None:
        """A copy of some Messages cannot be read."""
        for start, end in intersection([sequences], Interval(self.start, self.end)):
            for sequence in range(start, end):
                self._state[sequence - self.start] |= flag
        for tally in self._covering(sequences):
            if tally.fresh <= sequences.start and sequences.end <= tally.report.last + 1:
                if flag == _DAMAGED:
                    tally.damaged_records += records
                else:
                    tally.gone_records += records

    def expire(self, report: ProducedReport) -> None:
        """Retention may have removed the Messages that a report names."""
        part = self._slice(max(report.first, self.start), report.last + 1)
        self._state[part] = self._state[part].translate(_MADE_OLD)

    def expired_reports(self) -> int:
        """How many reports name Messages that retention may have removed."""
        return sum(
            self._any(_EXPIRED, report.first, report.last + 1)
            for report in (tally.report for tally in self._tallies)
        )

    def any_unseen(self) -> bool:
        """Whether a Message is expected that no Batch and no notification named."""
        return self._any(_UNSEEN, self.start, self.end)

    def judge(self, audit: ProducerAudit) -> None:
        """Add the findings to the producer's."""
        audit.produced_messages += sum(run.messages for run in self._runs(_PRODUCED))
        audit.stored_messages += sum(run.messages for run in self._runs(_STORED))
        audit.lost += self._runs(_LOST)
        audit.damaged += self._runs(_SPOILT)
        audit.recovered += self._runs(_RECOVERED)
        audit.duplicated += self._runs(_DUPLICATED)
        audit.expired += self._runs(_EXPIRED)
        for tally in self._tallies:
            self._judge_report(tally, audit)

    def _judge_report(self, tally: _ReportTally, audit: ProducerAudit) -> None:
        report, end = tally.report, tally.report.last + 1
        missing_records = max(0, report.records - tally.records)
        shared_records = tally.shared_records
        if not self._any(_MISSING, report.first, end):
            if (report.records, report.crc_sum) != (tally.records, tally.crc_sum):
                audit.changed.append(SequenceRun(report.first, report.last))
        elif not self._any(_MISSING, tally.fresh, end):
            shared_records += missing_records  # an earlier report has named them
        else:
            self._share(tally, missing_records, audit)
        audit.produced_records += report.records - shared_records
        audit.stored_records += tally.records - tally.shared_records

    def _share(self, tally: _ReportTally, missing_records: int, audit: ProducerAudit) -> None:
        """Add what a report is short of to the findings of which there are some."""
        fresh = tally.fresh, tally.report.last + 1
        expired = self._any(_EXPIRED, *fresh)
        damaged_records = missing_records
        if expired or self._any(_LOST, *fresh):
            damaged_records = min(tally.damaged_records, missing_records)
        rest = missing_records - damaged_records
        lost_records = min(tally.gone_records, rest) if expired else rest
        audit.damaged_records += damaged_records
        audit.lost_records += lost_records
        audit.expired_records += rest - lost_records

    def _slice(self, start: int, end: int) -> slice:
        """Where the states of some sequences are."""
        return slice(start - self.start, end - self.start)

    def _any(self, kind: re.Pattern[bytes], start: int, end: int) -> bool:
        """Whether one of some sequences is in a class of states."""
        return kind.search(self._state, start - self.start, end - self.start) is not None

    def _runs(self, kind: re.Pattern[bytes]) -> list[SequenceRun]:
        return [
            SequenceRun(self.start + match.start(), self.start + match.end() - 1)
            for match in kind.finditer(self._state)
        ]

    def _covering(self, sequences: Interval) -> Iterator[_ReportTally]:
        """The reports that have one of some sequences."""
        at = bisect_left(self._firsts, sequences.end) - 1
        while at >= 0 and self._reaches[at] > sequences.start:
            if self._tallies[at].report.last >= sequences.start:
                yield self._tallies[at]
            at -= 1


class ProducedReconciliation:
    """Compares reports with stored Messages; give it all reports, then all Messages.

    Args:
        topic: the topic.
        reports: those that are judged.
        others: those that are not; what they name is not unreported.
        only: producers that are compared; None for all.

    Raises:
        InvalidRequestError: they name more than `MAX_MESSAGES`.
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
        judged = _by_name(reports)
        covered = {name: _covered(group) for name, group in judged.items()}
        messages = sum(end - start for intervals in covered.values() for start, end in intervals)
        if messages > MAX_MESSAGES:
            raise InvalidRequestError(
                f"the reports about {topic!r} in this window name {messages} Messages; one audit "
                f"compares up to {MAX_MESSAGES}: choose a shorter window"
            )
        self._states = {
            name: [_MessageStates(each, _within(judged[name], each)) for each in intervals]
            for name, intervals in covered.items()
        }
        everything = _by_name([*chain.from_iterable(judged.values()), *others])
        self._reported = {name: _covered(group) for name, group in everything.items()}
        self._unreported: dict[ProducerName, ProducerAudit] = {}

    def __repr__(self) -> str:
        runs = sum(map(len, self._states.values()))
        producers = len(self._states)
        return f"<ProducedReconciliation {self._topic} [{producers} producers, {runs} runs]>"

    # -- what notifications say -------------------------------------------------------------

    def needs(self, write_partition: int, run: ProducerRun, *, in_window: bool) -> bool:
        """Whether the Messages of a run must be looked at one by one.

        They need not where other reports than the judged ones name them all.

        Args:
            write_partition: of the Batch.
            run: of the Batch's notification.
            in_window: whether the Batch is in the window, so that what no report names counts as
                unreported.
        """
        name, sequences = _name(write_partition, run), Interval(run.first, run.last + 1)
        return bool(self._overlapping(name, sequences)) or (
            in_window and not self._is_reported(name, sequences)
        )

    def unreadable(
        self, write_partition: int, run: ProducerRun, *, gone: bool, in_window: bool = True
    ) -> None:
        """A Batch with these Messages cannot be read.

        In the window they are lost or damaged even where nobody reported them: their notification
        says that they were stored.

        Args:
            write_partition: of the Batch.
            run: of the Batch's notification.
            gone: True when its object does not exist any more.
            in_window: whether the Batch is in the window.
        """
        if not self.needs(write_partition, run, in_window=in_window):
            return
        name, sequences = _name(write_partition, run), Interval(run.first, run.last + 1)
        for states in self._overlapping(name, sequences):
            states.unreadable(sequences, run.records, _GONE if gone else _DAMAGED)
        reported = intersection(self._reported.get(name, ()), sequences)
        missing = difference([sequences], reported)
        if in_window and missing:
            audit = self._unreported_of(name)
            (audit.lost if gone else audit.damaged).extend(map(SequenceRun.of, missing))
            # Of a run that is reported in part, the report knows how many are its own.
            records = 0 if reported else run.records
            audit.lost_records += records if gone else 0
            audit.damaged_records += 0 if gone else records

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
        """Count one sound stored Message."""
        one = Interval(sequence, sequence + 1)
        for states in self._overlapping(name, one):
            states.stored(sequence, records, crc32c)
            return
        if in_window and not self._is_reported(name, one):
            audit = self._unreported_of(name)
            audit.unreported_messages += 1
            audit.unreported_records += records

    def any_unseen(self) -> bool:
        """Whether a Message is expected that nothing has named so far."""
        return any(states.any_unseen() for states in self._all())

    # -- findings ---------------------------------------------------------------------------

    def expire(self, reports: Iterable[ProducedReport]) -> None:
        """Retention may have removed what these reports name."""
        for report in reports:
            for states in self._overlapping(report.name, report.interval):
                states.expire(report)

    def expired_reports(self) -> int:
        """How many reports name Messages that are nowhere and that retention may have removed."""
        return sum(states.expired_reports() for states in self._all())

    def producers(self) -> list[ProducerAudit]:
        """The findings, sorted by name."""
        return [self._audit(name) for name in sorted(self._states.keys() | self._unreported)]

    def _audit(self, name: ProducerName) -> ProducerAudit:
        audit = copy.deepcopy(self._unreported.get(name)) or ProducerAudit(name)
        for states in self._states.get(name, ()):
            states.judge(audit)
        audit.lost = merged_runs(sorted(audit.lost))
        audit.damaged = merged_runs(sorted(audit.damaged))
        return audit

    def _all(self) -> Iterable[_MessageStates]:
        return chain.from_iterable(self._states.values())

    def _overlapping(self, name: ProducerName, sequences: Interval) -> Sequence[_MessageStates]:
        """What is known of a producer's Messages where reports cover some of these sequences."""
        covered = self._states.get(name, ())
        begin = bisect_right(covered, sequences.start, key=_end)
        return covered[begin : bisect_left(covered, sequences.end, key=_start)]

    def _is_reported(self, name: ProducerName, sequences: Interval) -> bool:
        """Whether reports name all of it, or nobody asks."""
        if self._only is not None and name not in self._only:
            return True
        return intersection(self._reported.get(name, ()), sequences) == [sequences]

    def _unreported_of(self, name: ProducerName) -> ProducerAudit:
        """What the Batches of the window have, or had, that no report names."""
        return self._unreported.setdefault(name, ProducerAudit(name))


def _by_name(reports: Iterable[ProducedReport]) -> dict[ProducerName, list[ProducedReport]]:
    """Reports by producer, sorted by where they begin, the longest first; each only once."""
    result: dict[ProducerName, list[ProducedReport]] = {}
    for report in sorted(reports, key=_order):
        group = result.setdefault(report.name, [])
        if not group or group[-1] != report:
            group.append(report)
    return result


def _order(report: ProducedReport) -> tuple[int, int, int, int]:
    return report.first, -report.last, report.window_start_ms, report.window_end_ms


def _covered(reports: Iterable[ProducedReport]) -> list[Interval]:
    """The sequences that some sorted reports name."""
    return union(report.interval for report in reports)


def _within(reports: Sequence[ProducedReport], covered: Interval) -> Sequence[ProducedReport]:
    """Those of some sorted reports that make up an interval which they cover."""
    begin = bisect_left(reports, covered.start, key=_first)
    return reports[begin : bisect_left(reports, covered.end, key=_first)]


def _name(write_partition: int, run: ProducerRun) -> ProducerName:
    return ProducerName(write_partition, run.producer_id, run.epoch)
