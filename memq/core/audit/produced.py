"""Comparing what was reported as produced with what is stored (see `memq.core.audit.reports`).

All that reports say about one producer lies in *spans*: stretches of sequences with no gap, each
with one byte of state per Message. What is found in Batches is marked there. At the end each
finding is a class of states, and its sequences are the runs of bytes of that class.

State is one byte for each Message that the reports name, and some hundred for each report.
"""

from __future__ import annotations

import copy
import re
from bisect import bisect_left, bisect_right
from collections import deque
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol, TypeVar

from memq.core.audit.reports import (
    CRC_MODULUS,
    ProducedReport,
    ProducerAudit,
    ProducerName,
    Run,
    joined_runs,
)
from memq.core.audit.result import AuditResult
from memq.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from memq.core.audit.consumed_findings import ConsumerAudit
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


def _runs_of(belongs: Callable[[int], bool]) -> re.Pattern[bytes]:
    """What finds the runs of Messages whose state belongs to a class."""
    states = bytes(state for state in range(2 * _OLD) if belongs(state))
    return re.compile(b"[%b]+" % re.escape(states))


_first, _last = attrgetter("first"), attrgetter("last")

_PRODUCED = _runs_of(lambda state: state & _EXPECTED > 0)
_STORED = _runs_of(lambda state: state & (_EXPECTED | _FOUND) == _EXPECTED | _FOUND)
_SHORT = _runs_of(lambda state: state & (_EXPECTED | _FOUND) == _EXPECTED)
_UNSEEN = _runs_of(lambda state: state & ~_OLD == _EXPECTED)
_EXPIRED = _runs_of(lambda state: state == _EXPECTED | _OLD)
_LOST = _runs_of(
    lambda state: state & (_EXPECTED | _FOUND | _DAMAGED) == _EXPECTED and state != _EXPECTED | _OLD
)
_SPOILT = _runs_of(lambda state: state & (_EXPECTED | _FOUND | _DAMAGED) == _EXPECTED | _DAMAGED)
_RECOVERED = _runs_of(lambda state: state & (_EXPECTED | _FOUND) == _FOUND)
_DOUBLED = _runs_of(lambda state: state & _TWICE > 0)


class _Tally:
    """One report, and what was found of the Messages that it says were delivered.

    Attributes:
        report: the report.
        fresh: first of its sequences that no report before it covers.
        records: LogMessages found.
        shared_records: those of them in Messages before `fresh`.
        damaged_records: LogMessages known to be in damaged Messages.
        gone_records: LogMessages known to be in Messages whose object is gone.
        crc_sum: of the Messages found.
    """

    __slots__ = (
        "crc_sum",
        "damaged_records",
        "fresh",
        "gone_records",
        "records",
        "report",
        "shared_records",
    )

    def __init__(self, report: ProducedReport, fresh: int) -> None:
        self.report = report
        self.fresh = fresh
        self.records = 0
        self.shared_records = 0
        self.damaged_records = 0
        self.gone_records = 0
        self.crc_sum = 0

    def count(self, sequence: int, records: int, crc32c: int) -> None:
        """Count a Message of this report that was found."""
        failed = self.report.failed
        if failed:
            at = bisect_right(failed, sequence, key=lambda run: run[0]) - 1
            if at >= 0 and sequence <= failed[at][1]:
                return
        self.records += records
        self.crc_sum = (self.crc_sum + crc32c) % CRC_MODULUS
        if sequence < self.fresh:
            self.shared_records += records


class _Span:
    """Sequences without a gap, and the reports that cover them, sorted by where they begin."""

    def __init__(self, first: int, last: int, reports: Iterable[ProducedReport]) -> None:
        self.first = first
        self.last = last
        self._state = bytearray(last - first + 1)
        self._tallies: list[_Tally] = []
        self._reaches: list[int] = []  # last sequence of the reports up to each
        reach = first - 1
        for report in reports:
            self._tallies.append(_Tally(report, reach + 1))
            reach = max(reach, report.last)
            self._reaches.append(reach)
            self._expect(report)
        self._firsts = [tally.report.first for tally in self._tallies]

    def _expect(self, report: ProducedReport) -> None:
        """Mark what was delivered by this report; nothing else is marked yet."""
        begin = report.first
        for first, last in [*report.failed, (report.last + 1, report.last + 1)]:
            self._state[begin - self.first : first - self.first] = bytes([_EXPECTED]) * (
                first - begin
            )
            begin = last + 1

    def stored(self, sequence: int, records: int, crc32c: int) -> None:
        """A sound Message was found."""
        at = sequence - self.first
        if self._state[at] & _FOUND:
            self._state[at] |= _TWICE
            return
        self._state[at] |= _FOUND
        for tally in self._covering(sequence, sequence):
            tally.count(sequence, records, crc32c)

    def unreadable(self, run: Run, records: int, flag: int) -> None:
        """A copy of some Messages cannot be read."""
        for at in range(max(run.first, self.first), min(run.last, self.last) + 1):
            self._state[at - self.first] |= flag
        for tally in self._covering(*run):
            if tally.fresh <= run.first and run.last <= tally.report.last:
                if flag == _DAMAGED:
                    tally.damaged_records += records
                else:
                    tally.gone_records += records

    def expire(self, run: _Stretch) -> None:
        """Retention may have removed some Messages."""
        part = slice(max(run.first - self.first, 0), max(run.last - self.first + 1, 0))
        self._state[part] = self._state[part].translate(_MADE_OLD)

    def expired_reports(self) -> int:
        """How many reports name Messages that retention may have removed."""
        return sum(
            _EXPIRED.search(self._state, report.first - self.first, report.last - self.first + 1)
            is not None
            for report in (tally.report for tally in self._tallies)
        )

    def any_unseen(self) -> bool:
        """Whether a Message is expected that no Batch and no notification named."""
        return _UNSEEN.search(self._state) is not None

    def judge(self, audit: ProducerAudit) -> None:
        """Add the findings to the producer's."""
        audit.produced_messages += sum(run.messages for run in self._runs(_PRODUCED))
        audit.stored_messages += sum(run.messages for run in self._runs(_STORED))
        audit.lost += self._runs(_LOST)
        audit.damaged += self._runs(_SPOILT)
        audit.recovered += self._runs(_RECOVERED)
        audit.doubled += self._runs(_DOUBLED)
        audit.expired += self._runs(_EXPIRED)
        for tally in self._tallies:
            self._judge_report(tally, audit)

    def _judge_report(self, tally: _Tally, audit: ProducerAudit) -> None:
        report = tally.report
        begin, fresh, end = (
            sequence - self.first for sequence in (report.first, tally.fresh, report.last + 1)
        )
        missing_records = max(0, report.records - tally.records)
        shared_records = tally.shared_records
        if _SHORT.search(self._state, begin, end) is None:
            if (report.records, report.crc_sum) != (tally.records, tally.crc_sum):
                audit.changed.append(Run(report.first, report.last))
        elif _SHORT.search(self._state, fresh, end) is None:
            shared_records += missing_records  # an earlier report has named them
        else:
            self._share(tally, missing_records, audit)
        audit.produced_records += report.records - shared_records
        audit.stored_records += tally.records - tally.shared_records

    def _share(self, tally: _Tally, missing_records: int, audit: ProducerAudit) -> None:
        """Add what a report is short of to the findings of which there are some."""
        begin, end = tally.fresh - self.first, tally.report.last + 1 - self.first
        lost = _LOST.search(self._state, begin, end) is not None
        expired = _EXPIRED.search(self._state, begin, end) is not None
        damaged_records = missing_records
        if lost or expired:
            damaged_records = min(tally.damaged_records, missing_records)
        rest = missing_records - damaged_records
        lost_records = min(tally.gone_records, rest) if expired else rest
        audit.damaged_records += damaged_records
        audit.lost_records += lost_records
        audit.expired_records += rest - lost_records

    def _runs(self, states: re.Pattern[bytes]) -> list[Run]:
        return [
            Run(self.first + match.start(), self.first + match.end() - 1)
            for match in states.finditer(self._state)
        ]

    def _covering(self, first: int, last: int) -> Iterator[_Tally]:
        """The reports that have one of these sequences."""
        at = bisect_right(self._firsts, last) - 1
        while at >= 0 and self._reaches[at] >= first:
            if self._tallies[at].report.last >= first:
                yield self._tallies[at]
            at -= 1


class Reconciliation:
    """Compares reports with stored Messages; give it all reports, then all Messages.

    Args:
        topic: the topic.
        reports: those that are judged.
        others: those that are not; what they name is not unreported.

    Raises:
        InvalidRequestError: they name more than `MAX_MESSAGES`.
    """

    def __init__(
        self,
        topic: str,
        reports: Iterable[ProducedReport],
        *,
        others: Iterable[ProducedReport] = (),
    ) -> None:
        self._topic = topic
        judged = _by_name(reports)
        named = {name: _covered(group) for name, group in judged.items()}
        messages = sum(run.messages for runs in named.values() for run in runs)
        if messages > MAX_MESSAGES:
            raise InvalidRequestError(
                f"the reports about {topic!r} in this window name {messages} Messages; one audit "
                f"compares up to {MAX_MESSAGES}: choose a shorter window"
            )
        self._spans = {
            name: [_Span(run.first, run.last, group) for run, group in _split(runs, judged[name])]
            for name, runs in named.items()
        }
        everything = _by_name([*chain.from_iterable(judged.values()), *others])
        self._reported = {name: _covered(group) for name, group in everything.items()}
        self._unreported: dict[ProducerName, ProducerAudit] = {}

    def __repr__(self) -> str:
        spans = sum(map(len, self._spans.values()))
        return f"<Reconciliation {self._topic} [{len(self._spans)} producers, {spans} spans]>"

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
        name = _name(write_partition, run)
        if _overlapping(self._spans.get(name, ()), run):
            return True
        return in_window and not self._is_reported(name, run)

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
        name, part = _name(write_partition, run), Run(run.first, run.last)
        for span in _overlapping(self._spans.get(name, ()), run):
            span.unreadable(part, run.records, _GONE if gone else _DAMAGED)
        if not in_window:
            return
        reported = _overlapping(self._reported.get(name, ()), run)
        missing = _without(part, reported)
        if missing:
            audit = self._unreported_of(name)
            (audit.lost if gone else audit.damaged).extend(missing)
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
        one = Run(sequence, sequence)
        for span in _overlapping(self._spans.get(name, ()), one):
            span.stored(sequence, records, crc32c)
            return
        if in_window and not self._is_reported(name, one):
            audit = self._unreported_of(name)
            audit.unreported_messages += 1
            audit.unreported_records += records

    def any_unseen(self) -> bool:
        """Whether a Message is expected that nothing has named so far."""
        return any(span.any_unseen() for spans in self._spans.values() for span in spans)

    def result(
        self,
        *,
        damage: list[str],
        open_reports: int,
        old: Iterable[ProducedReport] = (),
        consumers: Sequence[ConsumerAudit] = (),
        beyond: Sequence[str] = (),
    ) -> AuditResult:
        """The findings.

        Args:
            damage: see `AuditResult`.
            open_reports: likewise.
            old: reports of which retention may have removed something.
            consumers: see `AuditResult`.
            beyond: likewise.
        """
        for report in old:
            for span in _overlapping(self._spans.get(report.name, ()), report):
                span.expire(report)
        spans = chain.from_iterable(self._spans.values())
        names = sorted(self._spans.keys() | self._unreported.keys())
        return AuditResult(
            topic=self._topic,
            producers=[self._audit(name) for name in names],
            damage=damage,
            open_reports=open_reports,
            expired_reports=sum(span.expired_reports() for span in spans),
            consumers=list(consumers),
            beyond=list(beyond),
        )

    def _audit(self, name: ProducerName) -> ProducerAudit:
        audit = copy.deepcopy(self._unreported.get(name)) or ProducerAudit(name)
        for span in self._spans.get(name, ()):
            span.judge(audit)
        audit.lost = joined_runs(sorted(audit.lost))
        audit.damaged = joined_runs(sorted(audit.damaged))
        return audit

    def _is_reported(self, name: ProducerName, part: _Stretch) -> bool:
        """Whether some report names all of it; what reports name has no gap where it touches."""
        reported = _overlapping(self._reported.get(name, ()), part)
        return any(known.first <= part.first and part.last <= known.last for known in reported)

    def _unreported_of(self, name: ProducerName) -> ProducerAudit:
        """What the Batches of the window hold, or held, that no report names."""
        return self._unreported.setdefault(name, ProducerAudit(name))


class _Stretch(Protocol):
    """What has a first and a last sequence."""

    @property
    def first(self) -> int: ...
    @property
    def last(self) -> int: ...


_S = TypeVar("_S", bound=_Stretch)


def _overlapping(stretches: Sequence[_S], part: _Stretch) -> Sequence[_S]:
    """Those of some sorted stretches, which are apart, that have a sequence of the part."""
    begin = bisect_left(stretches, part.first, key=_last)
    end = bisect_right(stretches, part.last, key=_first)
    return stretches[begin:end]


def _without(part: Run, covered: Iterable[Run]) -> list[Run]:
    """What of a run some sorted runs leave."""
    rest, begin = [], part.first
    for run in covered:
        if begin < run.first:
            rest.append(Run(begin, run.first - 1))
        begin = max(begin, run.last + 1)
    return [*rest, Run(begin, part.last)] if begin <= part.last else rest


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


def _covered(reports: Iterable[ProducedReport]) -> list[Run]:
    """The sequences that some sorted reports name."""
    return joined_runs(Run(report.first, report.last) for report in reports)


def _split(
    covered: Iterable[Run], reports: Iterable[ProducedReport]
) -> Iterator[tuple[Run, list[ProducedReport]]]:
    """Each covered run with the reports in it."""
    rest = deque(reports)
    for run in covered:
        group = []
        while rest and rest[0].last <= run.last:
            group.append(rest.popleft())
        yield run, group


def _name(write_partition: int, run: ProducerRun) -> ProducerName:
    return ProducerName(write_partition, run.producer_id, run.epoch)
