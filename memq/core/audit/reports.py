"""The audit: what was produced against what is stored, per producer, down to the sequence; and what
is stored against what was consumed, down to the offset.

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
    expired     produced, and nowhere, but retention has come so far that it may have been removed:
                nobody can tell.

A report is judged only when it is *closed*: the topic's watermark has passed the time at which the
report itself was stored, so whatever it names that a broker received is published by now. Then all
that is still held of it is judged. Only where nothing is found, no object and no notification, does
it matter what retention has removed.

So there are three verdicts (`Verdict`). What could not be judged is named, and never called clean.

Reports may overlap. One whose ack was lost is sent again, joined to what came after it; a job that
is run again with its own producer id reports the same sequences again. A sequence is expected when
any report says that it was delivered.

Consumers and jobs report in the same way which offsets they are done with, and what they found
there (`ConsumedReport`); `memq.core.audit.consumed` says how that is judged.

Reports are JSON in LogMessages of the audit topic. The key says what a report is about
(`report_key`), and its field `kind` says so once more. A reader takes the keys that it knows and
leaves out kinds that it does not, so a new kind troubles no older reader.

This module holds the reports and the findings about producers; `memq.core.audit.produced` compares.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from memq.errors import CorruptDataError, InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Iterable


class Verdict(StrEnum):
    """What an audit comes to, the best first."""

    CLEAN = "clean"
    """All of it was judged, and nothing is wrong."""
    PARTLY = "partly judged"
    """Nothing is wrong with what could be judged; about the rest nothing can be said."""
    UNCLEAN = "not clean"
    """Something is wrong."""


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """What several parts come to as a whole."""
    return max(verdicts, key=list(Verdict).index, default=Verdict.CLEAN)


REPORT_VERSION = 1
MAX_REPORT_MESSAGES = 10_000_000  # of one report; each costs the audit one byte
MAX_FAILED_RUNS = 10_000  # of one joined report; about 20 bytes each, well within a Message
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
        repeats: how many acks said that the Message had been published before. It may have been
            before the window, by an earlier life of the producer.
        incarnation: of the topic; empty where the producer cannot tell.
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
    repeats: int = 0
    incarnation: str = ""
    client: str = ""

    @property
    def name(self) -> ProducerName:
        """Whose sequences these are."""
        return ProducerName(self.write_partition, self.producer_id, self.epoch)

    @property
    def messages(self) -> int:
        """Messages sealed in the window, those that were given up included."""
        return self.last - self.first + 1

    @property
    def weight(self) -> int:
        """How much memory it takes, in about 100 bytes."""
        return 1 + len(self.failed)

    def joined(self, following: ProducedReport) -> ProducedReport | None:
        """One report that says the same as this and the one behind it; None if it cannot be."""
        failed = joined_runs(Run(*run) for run in [*self.failed, *following.failed])
        too_many = following.last - self.first >= MAX_REPORT_MESSAGES
        if too_many or len(failed) > MAX_FAILED_RUNS or following.first != self.last + 1:
            return None
        return msgspec.structs.replace(
            self,
            last=following.last,
            records=self.records + following.records,
            size_bytes=self.size_bytes + following.size_bytes,
            crc_sum=(self.crc_sum + following.crc_sum) % CRC_MODULUS,
            failed=failed,
            repeats=self.repeats + following.repeats,
            window_end_ms=following.window_end_ms,
        )


class ConsumedReport(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="consumed"):
    """What one consumer is done with: a range of offsets of one read partition, without a gap.

    It counts what was really read: a Message that was dropped as a repeat is in `repeats` alone,
    and one that was skipped because it is damaged is nowhere.

    Attributes:
        version: of this format.
        topic: the topic.
        consumer: consumer group, or name of the job.
        partition: read partition.
        start: first offset.
        end: one past the last offset.
        batches: Batches that were read in the range.
        messages: Messages in them, without repeats.
        records: LogMessages in these Messages.
        repeats: Messages that were dropped as repeats.
        crc_sum: sum of the CRC32C of the Messages counted, modulo 2**64.
        window_start_ms: when the consumer began with the range, by its clock.
        window_end_ms: when it was done with it.
        skipped: how many offsets right before `start` it stepped over and did not read.
        final: it is a job that was given just this range, and a gap behind `end` is one that no
            job has read. A group goes on there: a gap means that a member could not report.
        incarnation: of the topic; empty where the consumer cannot tell.
        client: how the consumer names itself.
    """

    version: int = REPORT_VERSION
    topic: str
    consumer: str
    partition: int
    start: int
    end: int
    batches: int
    messages: int
    records: int
    repeats: int = 0
    crc_sum: int
    window_start_ms: int
    window_end_ms: int
    skipped: int = 0
    final: bool = True
    incarnation: str = ""
    client: str = ""

    @property
    def name(self) -> ReaderName:
        """Whose offsets these are."""
        return ReaderName(self.consumer, self.partition)

    @property
    def weight(self) -> int:
        """How much memory it takes, in about 100 bytes."""
        return 4

    def joined(self, following: ConsumedReport) -> ConsumedReport | None:
        """One report that says the same as this and the one behind it; None if it cannot be."""
        if self.final or following.start != self.end or following.skipped:
            return None
        return msgspec.structs.replace(
            self,
            end=following.end,
            batches=self.batches + following.batches,
            messages=self.messages + following.messages,
            records=self.records + following.records,
            repeats=self.repeats + following.repeats,
            crc_sum=(self.crc_sum + following.crc_sum) % CRC_MODULUS,
            window_end_ms=following.window_end_ms,
            final=following.final,
        )


class ReaderName(NamedTuple):
    """Whose offsets are reported: they count up for each of these on their own."""

    consumer: str
    partition: int


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


Report = ProducedReport | ConsumedReport


class _Kind(msgspec.Struct):
    """What a report says about its kind; those of producers say nothing."""

    kind: str = "produced"


_encode = msgspec.json.Encoder().encode
_decode_kind = msgspec.json.Decoder(_Kind).decode
_decode_produced = msgspec.json.Decoder(ProducedReport).decode
_decode_consumed = msgspec.json.Decoder(ConsumedReport).decode


def consumed_key(topic: str) -> bytes:
    """The key of reports about what was consumed; no topic can have it as its name."""
    return f"consumed:{topic}".encode()


def report_key(report: Report) -> bytes:
    """The key of a report in the audit topic."""
    if isinstance(report, ConsumedReport):
        return consumed_key(report.topic)
    return report.topic.encode()


def encode_report(report: Report) -> bytes:
    """The JSON of a report: the value of a LogMessage in the audit topic."""
    return _encode(report)


def decode_report(value: bytes) -> Report | None:
    """A report from its JSON; None where it is of a kind that this reader does not know.

    Raises:
        CorruptDataError: it is not a report, or of a version that this reader does not know.
    """
    try:
        kind = _decode_kind(value).kind
        if kind not in ("produced", "consumed"):
            return None
        produced = kind == "produced"
        report: Report = _decode_produced(value) if produced else _decode_consumed(value)
    except msgspec.MsgspecError as exc:
        raise CorruptDataError(f"not an audit report: {exc}: {value[:80]!r}") from exc
    if report.version != REPORT_VERSION:
        raise CorruptDataError(
            f"audit report of version {report.version}; this reader knows {REPORT_VERSION}: "
            "upgrade memq"
        )
    if not _makes_sense(report):
        raise CorruptDataError(f"audit report with numbers that make no sense: {value[:300]!r}")
    if isinstance(report, ProducedReport) and report.messages > MAX_REPORT_MESSAGES:
        raise CorruptDataError(
            f"audit report over {report.messages} Messages; the most is {MAX_REPORT_MESSAGES}"
        )
    return report


def check_consumed(report: ConsumedReport) -> None:
    """Refuse a report that no audit could read.

    Raises:
        InvalidRequestError: its numbers make no sense, or it has no name of a consumer.
    """
    if not report.consumer or not _makes_sense(report):
        raise InvalidRequestError(
            f"{report} cannot be: it must name its consumer, numbers must be 0 or more and end "
            "must not be before start"
        )


def _makes_sense(report: Report) -> bool:
    times = (report.window_start_ms, report.window_end_ms)
    if isinstance(report, ConsumedReport):
        numbers = (report.partition, report.start, report.end, report.batches)
        counts = (report.messages, report.records, report.repeats, report.skipped)
        in_order = (
            report.skipped <= report.start <= report.end and 0 <= report.crc_sum < CRC_MODULUS
        )
        return in_order and _in_bounds(*numbers, *counts, *times)
    return _in_order(report) and _in_bounds(
        report.write_partition, report.epoch, report.last, report.records, report.repeats, *times
    )


def _in_bounds(*numbers: int) -> bool:
    return min(numbers) >= 0 and max(numbers) <= MAX_NUMBER


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
    exact, unless reports overlap and say different things, or one report names both what is lost
    without a notification and what has expired: then they count as expired.

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
        expired: sequences that are nowhere, and that retention may have removed.
        expired_records: LogMessages in them.
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
    expired: list[Run] = field(default_factory=list)
    expired_records: int = 0
    unreported_messages: int = 0
    unreported_records: int = 0

    @property
    def verdict(self) -> Verdict:
        """Unclean with anything lost, damaged, doubled or changed."""
        if self.lost or self.damaged or self.doubled or self.changed:
            return Verdict.UNCLEAN
        return Verdict.PARTLY if self.expired or self.unreported_messages else Verdict.CLEAN

    @property
    def clean(self) -> bool:
        """All of it was judged, and nothing is wrong."""
        return self.verdict is Verdict.CLEAN


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
