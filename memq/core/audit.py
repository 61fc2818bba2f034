"""The audit: what was produced against what is stored, per producer, down to the sequence.

Theory of operation
-------------------
Every producer numbers its Messages per (producer id, epoch, write partition) without gaps. From
time to time, when everything up to then is settled, it reports what it sealed since its last
report: a range of sequences with counts and the sum of their CRC32Cs (`ProducedReport`). The
Batches say what is stored, Message by Message, in their indexes. Comparing the two sets of
sequences names every loss exactly:

    lost        produced, not given up, not stored. An acked one among them breaks a promise.
    recovered   given up by the producer (its deadline passed), yet stored: it was only the ack that
                was late. Nothing is wrong, but the application believes it failed.
    doubled     stored twice under one name. Must stay at zero.
    changed     all stored, but records or CRC sum differ from what was produced.
    unreported  stored, but in no report: the producer is alive and has not reported yet, or died
                before it could.

A report is judged only when it is *closed*: the topic's watermark has passed the time at which the
report itself was stored, so whatever it names that a broker received is published by now.

State is one byte for each Message that the reports name, and some hundred for each report.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from memq.errors import CorruptDataError

if TYPE_CHECKING:
    from collections.abc import Iterable

REPORT_VERSION = 1
MAX_REPORT_MESSAGES = 10_000_000  # of one report; each costs the audit one byte
_CRC_MODULUS = 2**64


class ProducedReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one producer sealed for one write partition in a window of time.

    Attributes:
        version: of this format.
        topic: the topic.
        write_partition: the write partition.
        producer_id: the producer.
        epoch: its epoch.
        first: first sequence sealed in the window.
        last: last sequence, included; all between are its own too.
        records: LogMessages in those that were not given up.
        size_bytes: of the same Messages.
        crc_sum: sum of the CRC32C of the same Messages, modulo 2**64.
        failed: runs of sequences, ends included, that were given up: the application was told
            that their delivery failed.
        window_start_ms: when the window began, by the producer's clock.
        window_end_ms: when it ended.
        client: how the producer names itself.
    """

    version: int
    topic: str
    write_partition: int
    producer_id: str
    epoch: int
    first: int
    last: int
    records: int
    size_bytes: int
    crc_sum: int
    failed: list[tuple[int, int]]
    window_start_ms: int
    window_end_ms: int
    client: str = ""


class ProducerName(NamedTuple):
    """Whose sequences are compared: they count up for each of these on their own."""

    write_partition: int
    producer_id: str
    epoch: int


class Run(NamedTuple):
    """Sequences from `first` to `last`, both included."""

    first: int
    last: int

    @property
    def messages(self) -> int:
        """How many they are."""
        return self.last - self.first + 1


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(ProducedReport).decode


def encode_report(report: ProducedReport) -> bytes:
    """The JSON of a report: the value of a LogMessage in the audit topic."""
    return _encode(report)


def decode_report(value: bytes) -> ProducedReport:
    """A report from its JSON.

    Raises:
        CorruptDataError: it is not a report, or of a version that this reader does not know.
    """
    try:
        report = _decode(value)
    except msgspec.MsgspecError as exc:
        raise CorruptDataError(f"not an audit report: {exc}: {value[:80]!r}") from exc
    if report.version != REPORT_VERSION:
        raise CorruptDataError(
            f"audit report of version {report.version}; this reader knows {REPORT_VERSION}: "
            "upgrade memq"
        )
    ranges = [(report.first, report.last), *report.failed]
    if not all(report.first <= first <= last <= report.last for first, last in ranges):
        raise CorruptDataError(f"audit report with ranges that make no sense: {value[:200]!r}")
    if report.last - report.first >= MAX_REPORT_MESSAGES:
        raise CorruptDataError(
            f"audit report over {report.last - report.first + 1} Messages; the most is "
            f"{MAX_REPORT_MESSAGES}"
        )
    return report


@dataclass
class ProducerAudit:
    """The findings for one producer in one write partition.

    Attributes:
        name: whose sequences these are.
        produced_messages: sealed and not given up, by the reports.
        produced_records: LogMessages in them.
        stored_messages: of those, found in Batches.
        stored_records: LogMessages in them.
        lost: sequences that are nowhere.
        lost_records: LogMessages that are nowhere.
        recovered: sequences given up, yet stored.
        doubled: sequences stored more than once.
        changed: reports whose Messages are all there, but not as they were produced.
    """

    name: ProducerName
    produced_messages: int = 0
    produced_records: int = 0
    stored_messages: int = 0
    stored_records: int = 0
    lost: list[Run] = field(default_factory=list)
    lost_records: int = 0
    recovered: list[Run] = field(default_factory=list)
    doubled: list[Run] = field(default_factory=list)
    changed: list[Run] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Nothing lost, doubled or changed."""
        return not (self.lost or self.doubled or self.changed)


@dataclass
class AuditResult:
    """The findings for one topic and window.

    Attributes:
        topic: the topic.
        producers: one for each producer and write partition with a report, sorted by name.
        unreported_messages: stored in the Batches that were read, but in no report.
        unreported_records: LogMessages in them.
        damage: what could not be read, in plain sentences: object, offset and cause.
        open_reports: reports that were left out because they are not closed yet.
    """

    topic: str
    producers: list[ProducerAudit]
    unreported_messages: int = 0
    unreported_records: int = 0
    damage: list[str] = field(default_factory=list)
    open_reports: int = 0

    @property
    def clean(self) -> bool:
        """Nothing lost, doubled, changed or damaged."""
        return not self.damage and all(producer.clean for producer in self.producers)

    @property
    def lost_records(self) -> int:
        """LogMessages that are nowhere, over all producers."""
        return sum(producer.lost_records for producer in self.producers)


class _Range:
    """One report and what was found of it.

    Attributes:
        report: the report.
        failed: sequences that it says were given up.
        times: how often each sequence was found, 2 for more than once.
        records: LogMessages found in Messages that were not given up.
        crc_sum: of these Messages.
    """

    __slots__ = ("crc_sum", "failed", "records", "report", "times")

    def __init__(self, report: ProducedReport) -> None:
        self.report = report
        self.failed = {s for first, last in report.failed for s in range(first, last + 1)}
        self.times = bytearray(report.last - report.first + 1)
        self.records = 0
        self.crc_sum = 0

    def count(self, sequence: int, records: int, crc32c: int) -> None:
        """Count one stored Message."""
        at = sequence - self.report.first
        self.times[at] = min(2, self.times[at] + 1)
        if self.times[at] == 1 and sequence not in self.failed:
            self.records += records
            self.crc_sum = (self.crc_sum + crc32c) % _CRC_MODULUS

    def judge(self, audit: ProducerAudit) -> None:
        """Add the findings to the producer's."""
        report = self.report
        missing = {report.first + at for at, times in enumerate(self.times) if times == 0}
        lost = missing - self.failed
        given = len(self.times) - len(self.failed)
        audit.produced_messages += given
        audit.produced_records += report.records
        audit.stored_messages += given - len(lost)
        audit.stored_records += self.records
        audit.lost += runs(lost)
        audit.recovered += runs(self.failed - missing)
        audit.doubled += runs(report.first + at for at, times in enumerate(self.times) if times > 1)
        if lost:
            audit.lost_records += report.records - self.records
        elif (report.records, report.crc_sum) != (self.records, self.crc_sum):
            audit.changed.append(Run(report.first, report.last))


class Reconciliation:
    """Compares reports with stored Messages; give it all reports, then all Messages.

    Args:
        topic: the topic.
        reports: the closed reports of the window.
    """

    def __init__(self, topic: str, reports: Iterable[ProducedReport]) -> None:
        self._topic = topic
        self._ranges: dict[ProducerName, list[_Range]] = {}
        for report in sorted(reports, key=lambda report: report.first):
            name = ProducerName(report.write_partition, report.producer_id, report.epoch)
            ranges = self._ranges.setdefault(name, [])
            # A report that was delivered twice says the same again.
            if not ranges or ranges[-1].report.last < report.first:
                ranges.append(_Range(report))
        self._firsts = {
            name: [each.report.first for each in ranges] for name, ranges in self._ranges.items()
        }
        self.unreported_messages = 0
        self.unreported_records = 0

    def stored(self, name: ProducerName, sequence: int, records: int, crc32c: int) -> None:
        """Count one stored Message."""
        firsts = self._firsts.get(name, ())
        at = bisect_right(firsts, sequence) - 1
        if at < 0 or self._ranges[name][at].report.last < sequence:
            self.unreported_messages += 1
            self.unreported_records += records
            return
        self._ranges[name][at].count(sequence, records, crc32c)

    def result(self, *, damage: list[str], open_reports: int) -> AuditResult:
        """The findings."""
        return AuditResult(
            topic=self._topic,
            producers=[self._audit(name, ranges) for name, ranges in sorted(self._ranges.items())],
            unreported_messages=self.unreported_messages,
            unreported_records=self.unreported_records,
            damage=damage,
            open_reports=open_reports,
        )

    def _audit(self, name: ProducerName, ranges: list[_Range]) -> ProducerAudit:
        audit = ProducerAudit(name)
        for each in ranges:
            each.judge(audit)
        return audit


def runs(sequences: Iterable[int]) -> list[Run]:
    """Sequences as runs, sorted."""
    result: list[Run] = []
    for sequence in sorted(sequences):
        if result and result[-1].last == sequence - 1:
            result[-1] = Run(result[-1].first, sequence)
        else:
            result.append(Run(sequence, sequence))
    return result
