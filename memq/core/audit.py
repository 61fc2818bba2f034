"""The audit: what was produced against what is stored, per producer, down to the sequence.

Theory of operation
-------------------
Every producer numbers its Messages per (producer id, epoch, write partition) without gaps. From
time to time, when everything up to then is settled, it reports what it sealed since its last
report: a range of sequences with counts and the sum of their CRC32Cs (`ProducedReport`). The
Batches say what is stored, Message by Message, in their indexes. Comparing the two sets of
sequences names every loss exactly:

    lost        produced, not given up, not stored. An acked one among them breaks a promise.
    damaged     stored, but what is there can not be read, or is not what was sent.
    recovered   given up by the producer (its deadline passed), yet stored: it was only the ack that
                was late. Nothing is wrong, but the application believes it failed.
    doubled     stored twice under one name. Must stay at zero.
    changed     all stored, but records or CRC sum differ from what was produced.
    unreported  stored, but in no report: the producer is alive and has not reported yet, or died
                before it could.

A report is judged only when it is *closed*: the topic's watermark has passed the time at which the
report itself was stored, so whatever it names that a broker received is published by now.

Reports may overlap. One whose ack was lost is sent again, joined to what came after it; a job that
is run again with its own producer id reports the same sequences again. A sequence is expected when
any report says that it was delivered.

This module holds the reports and the findings; `memq.core.reconciliation` compares.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from memq.errors import CorruptDataError

if TYPE_CHECKING:
    from collections.abc import Iterable

REPORT_VERSION = 1
MAX_REPORT_MESSAGES = 10_000_000  # of one report; each costs the audit one byte
MAX_NUMBER = 2**62  # of any sequence, count or time; what is made of them fits the wire's 64 bits
CRC_MODULUS = 2**64  # of the sums of CRC32Cs


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
            that their delivery failed. Sorted, and apart from each other.
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

    @property
    def name(self) -> ProducerName:
        """Whose sequences these are."""
        return ProducerName(self.write_partition, self.producer_id, self.epoch)

    @property
    def messages(self) -> int:
        """Messages sealed in the window, those that were given up included."""
        return self.last - self.first + 1


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
    numbers = (report.write_partition, report.epoch, report.last, report.records)
    times = (report.window_start_ms, report.window_end_ms)
    if min(*numbers, *times) < 0 or max(*numbers, *times) > MAX_NUMBER or not _in_order(report):
        raise CorruptDataError(f"audit report with numbers that make no sense: {value[:200]!r}")
    if report.messages > MAX_REPORT_MESSAGES:
        raise CorruptDataError(
            f"audit report over {report.messages} Messages; the most is {MAX_REPORT_MESSAGES}"
        )
    return report


def _in_order(report: ProducedReport) -> bool:
    """Whether the failed runs are sorted, apart, and within the range of the report."""
    free = report.first
    for first, last in report.failed:
        if not free <= first <= last:
            return False
        free = last + 1
    return 0 <= report.first <= report.last and free <= report.last + 1


@dataclass
class ProducerAudit:
    """The findings for one producer in one write partition.

    LogMessages of lost and damaged Messages are counted as what is short of the reports. That is
    exact, unless reports overlap and say different things.

    Attributes:
        name: whose sequences these are.
        produced_messages: sealed and not given up, by the reports.
        produced_records: LogMessages in them.
        stored_messages: of those, found in Batches.
        stored_records: LogMessages in them.
        lost: sequences that are nowhere.
        lost_records: LogMessages in them.
        damaged: sequences that are stored, but not as they were sent, or in a Batch that cannot be
            read.
        damaged_records: LogMessages in them.
        recovered: sequences given up, yet stored.
        doubled: sequences stored more than once.
        changed: reports whose Messages are all there, but not as they were produced.
        unreported_messages: stored in the window, but in no report.
        unreported_records: LogMessages in them.
    """

    name: ProducerName
    produced_messages: int = 0
    produced_records: int = 0
    stored_messages: int = 0
    stored_records: int = 0
    lost: list[Run] = field(default_factory=list)
    lost_records: int = 0
    damaged: list[Run] = field(default_factory=list)
    damaged_records: int = 0
    recovered: list[Run] = field(default_factory=list)
    doubled: list[Run] = field(default_factory=list)
    changed: list[Run] = field(default_factory=list)
    unreported_messages: int = 0
    unreported_records: int = 0

    @property
    def clean(self) -> bool:
        """Nothing lost, damaged, doubled or changed."""
        return not (self.lost or self.damaged or self.doubled or self.changed)


@dataclass
class AuditResult:
    """The findings for one topic and window.

    Attributes:
        topic: the topic.
        producers: one for each producer and write partition, sorted by name.
        damage: what could not be read, in plain sentences: object, place and cause.
        open_reports: reports that were left out because they are not closed yet.
        expired_reports: reports that were left out because retention removes their Messages.
    """

    topic: str
    producers: list[ProducerAudit]
    damage: list[str] = field(default_factory=list)
    open_reports: int = 0
    expired_reports: int = 0

    @property
    def clean(self) -> bool:
        """Nothing lost, damaged, doubled or changed."""
        return not self.damage and all(producer.clean for producer in self.producers)

    @property
    def lost_records(self) -> int:
        """LogMessages that are nowhere, over all producers."""
        return sum(producer.lost_records for producer in self.producers)

    @property
    def unreported_messages(self) -> int:
        """Messages stored in the window but in no report, over all producers."""
        return sum(producer.unreported_messages for producer in self.producers)

    @property
    def unreported_records(self) -> int:
        """LogMessages in them."""
        return sum(producer.unreported_records for producer in self.producers)


def runs(sequences: Iterable[int]) -> list[Run]:
    """Sequences as runs, sorted."""
    return joined_runs(Run(sequence, sequence) for sequence in sorted(sequences))


def joined_runs(parts: Iterable[Run]) -> list[Run]:
    """Runs that touch or overlap, joined; they must come sorted by their first sequence."""
    result: list[Run] = []
    for first, last in parts:
        if result and first <= result[-1].last + 1:
            result[-1] = Run(result[-1].first, max(last, result[-1].last))
        else:
            result.append(Run(first, last))
    return result
