"""The audit: what was produced against what is stored, per producer, down to the sequence; and what
is stored against what was consumed, down to the offset.

Theory of operation
-------------------
Every producer numbers its Messages per (producer id, epoch, write partition) without gaps. From
time to time, when all up to then was acked or has failed, it reports what it sealed since its last
report: a range of sequences with counts and the sum of their CRC32Cs (`ProducedReport`). The
Batches say what is stored, Message by Message, in their indexes. Comparing the two sets of
sequences names every loss exactly:

    lost        produced, not given up, not stored. An acked one among them breaks a promise.
    damaged     stored, but what is there cannot be read, or is not what was sent.
    recovered   given up by the producer (its deadline passed), yet stored: it was only the ack that
                was late. Nothing is wrong, but the application believes it failed.
    duplicated  stored twice under one name. Must stay at zero.
    changed     all stored, but records or CRC sum differ from what was produced.
    unreported  stored, but in no report: the producer is alive and has not reported yet, or died
                before it could.
    expired     produced, and nowhere, but retention has come so far that it may have been removed:
                nobody can tell.

A report is judged only when it is *closed*: the topic's watermark has passed the time at which the
report itself was stored, so whatever it names that a broker received is published by now. Then all
that is still retained of it is judged. Only where nothing is found, no object and no notification,
does it matter what retention has removed.

So there are three verdicts (`memq.core.audit.result.Verdict`). What could not be judged is named,
and never called clean.

Reports may overlap. One whose ack was lost is sent again, joined to what came after it; a job that
is run again with its own producer id reports the same sequences again. A sequence is expected when
any report says that it was delivered.

Consumers and jobs report in the same way which offsets they are done with, and what they found
there (`ConsumedReport`); `memq.core.audit.consumed` says how that is judged.

Reports are JSON in LogMessages of the audit topic; what a producer says about several write
partitions at once is one of them. The key says what a report is about
(`report_key`), and its field `kind` says so once more. A reader takes the keys that it knows and
leaves out kinds that it does not, so a new kind troubles no older reader.

This module holds the reports, `memq.core.audit.produced` and `memq.core.audit.consumed` compare
them, `memq.core.audit.result` holds what they find, and `memq.core.audit.render` shows it.
"""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, Generic, NamedTuple, TypeVar

import msgspec

from memq.core.decoding import check_version, decode_stored
from memq.core.ranges import Interval, union
from memq.errors import CorruptDataError, InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

REPORT_VERSION = 2
MAX_REPORT_MESSAGES = 10_000_000  # of one report; more is a mistake, not a load
MAX_FAILED_RUNS = 10_000  # of one joined report; about 20 bytes each, well within a Message
CRC_MODULUS = 2**64  # of the sums of CRC32Cs

Number = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
"""A sequence, count or time; what is made of them fits the wire's 64 bits."""
CrcSum = Annotated[int, msgspec.Meta(ge=0)]
Name = Annotated[str, msgspec.Meta(min_length=1)]


class ProducerName(NamedTuple):
    """Whose sequences are compared: they count up for each of these on their own."""

    write_partition: int
    producer_id: str
    epoch: int


class ReaderName(NamedTuple):
    """Whose offsets are reported: they count up for each of these on their own."""

    consumer: str
    partition: int


class SequenceRun(NamedTuple):
    """Sequences from `first` to `last`, both included."""

    first: int
    last: int

    @classmethod
    def of(cls, interval: Interval) -> SequenceRun:
        """Return the sequences of an interval."""
        return cls(interval.start, interval.end - 1)

    @property
    def interval(self) -> Interval:
        """The same sequences, with the end not included."""
        return Interval(self.first, self.last + 1)

    @property
    def messages(self) -> int:
        """How many there are."""
        return self.last - self.first + 1

    def __str__(self) -> str:
        return f"{self.first}-{self.last}" if self.first < self.last else str(self.first)


def merged_runs(runs: Iterable[SequenceRun]) -> list[SequenceRun]:
    """Runs that meet or overlap, merged; they come sorted by their first sequence."""
    return [SequenceRun.of(each) for each in union(run.interval for run in runs)]


def runs_of(sequences: Iterable[int]) -> list[SequenceRun]:
    """Sequences as runs, sorted."""
    return merged_runs(SequenceRun(sequence, sequence) for sequence in sorted(sequences))


Part = tuple[Number, Number, Number, Number, Number, CrcSum, list[SequenceRun], Number]
"""What `ProducedReport` says of another write partition: `write_partition`, `first`, `last`,
`records`, `size_bytes`, `crc_sum`, `failed`, `duplicates`."""
_COUNTS = ("records", "size_bytes", "crc_sum", "failed", "duplicates")
_PART = ("write_partition", "first", "last", *_COUNTS)


class ProducedReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
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
        duplicates: how many acks said that the Message had been published before. It may have been
            before the window, by an earlier life of the producer.
        topic_id: of the topic; empty where the producer cannot tell.
        client: how the producer names itself.
        also: the same of other write partitions, while it is JSON.
    """

    version: int
    topic: str
    write_partition: Number
    producer_id: str
    epoch: Number
    first: Number
    last: Number
    records: Number
    size_bytes: Number
    crc_sum: CrcSum
    failed: list[SequenceRun]
    window_start_ms: Number
    window_end_ms: Number
    duplicates: Number = msgspec.field(name="repeats", default=0)
    topic_id: str = ""
    client: str = ""
    also: list[Part] = []

    @property
    def name(self) -> ProducerName:
        """Whose sequences these are."""
        return ProducerName(self.write_partition, self.producer_id, self.epoch)

    @property
    def interval(self) -> Interval:
        """The sequences sealed in the window."""
        return Interval(self.first, self.last + 1)

    @property
    def messages(self) -> int:
        """Messages sealed in the window, those that were given up included."""
        return self.last - self.first + 1

    @property
    def weight(self) -> int:
        """How much memory it takes, in about 100 bytes."""
        return 1 + len(self.failed)

    @property
    def makes_sense(self) -> bool:
        """Whether failed runs are sorted, apart and within the range, which is not too long."""
        free = self.first
        for first, last in self.failed:
            if not free <= first <= last:
                return False
            free = last + 1
        return free <= self.last + 1 and 0 < self.messages <= MAX_REPORT_MESSAGES

    def joined(self, following: ProducedReport) -> ProducedReport | None:
        """Join this report and the next one into one that says the same; None if it cannot be."""
        failed = merged_runs([*self.failed, *following.failed])
        too_many = following.last - self.first >= MAX_REPORT_MESSAGES
        if too_many or len(failed) > MAX_FAILED_RUNS or following.first != self.last + 1:
            return None
        sums = ("records", "size_bytes", "crc_sum", "duplicates")
        return _joined(self, following, sums, last=following.last, failed=failed)


class ConsumedReport(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="consumed"):
    """What one consumer is done with: a range of offsets of one read partition, without a gap.

    It counts what was really read: a Message that was skipped because it is damaged is nowhere.

    Attributes:
        version: of this format.
        topic: the topic.
        consumer: consumer group, or name of the job.
        partition: read partition.
        start: first offset.
        end: one past the last offset.
        batches: Batches that were read in the range.
        messages: Messages in them.
        records: LogMessages in these Messages.
        crc_sum: sum of the CRC32C of the Messages counted, modulo 2**64.
        window_start_ms: when the consumer began with the range, by its clock.
        window_end_ms: when it was done with it.
        skipped: how many offsets right before `start` it stepped over and did not read.
        began: the group had committed nothing in the partition before: what lies below was never
            meant for it.
        moved: an administrator put the group here. That alone says nothing of its members.
        final: it is a job that was given just this range, and a gap after `end` is one that no
            job has read. A group goes on there: a gap means that a member could not report.
        topic_id: of the topic; empty where the consumer cannot tell.
        client: how the consumer names itself.
    """

    version: int = REPORT_VERSION
    topic: str
    consumer: Name
    partition: Number
    start: Number
    end: Number
    batches: Number = 0
    messages: Number = 0
    records: Number = 0
    crc_sum: CrcSum = 0
    window_start_ms: Number
    window_end_ms: Number
    skipped: Number = 0
    began: bool = False
    moved: bool = False
    final: bool = True
    topic_id: str = ""
    client: str = ""

    @property
    def name(self) -> ReaderName:
        """Whose offsets these are."""
        return ReaderName(self.consumer, self.partition)

    @property
    def interval(self) -> Interval:
        """The offsets that it covers."""
        return Interval(self.start, self.end)

    @property
    def weight(self) -> int:
        """How much memory it takes, in about 100 bytes."""
        return 4

    @property
    def makes_sense(self) -> bool:
        """Whether its offsets are in order."""
        return self.skipped <= self.start <= self.end

    def joined(self, following: ConsumedReport) -> ConsumedReport | None:
        """Join this report and the next one into one that says the same; None if it cannot be."""
        begins = following.began and not self.began
        if self.final or following.start != self.end or following.skipped or begins:
            return None
        sums = ("batches", "messages", "records", "crc_sum")
        return _joined(self, following, sums, end=following.end, final=following.final)


Report = ProducedReport | ConsumedReport
R = TypeVar("R", ProducedReport, ConsumedReport)


def _joined(report: R, following: R, sums: Iterable[str], **fields: Any) -> R:
    """Return a report with the sums of two, and other fields."""
    for name in sums:
        fields[name] = getattr(report, name) + getattr(following, name)
    fields["crc_sum"] %= CRC_MODULUS
    return msgspec.structs.replace(report, window_end_ms=following.window_end_ms, **fields)


class StoredReport(NamedTuple, Generic[R]):
    """A report, and when the Batch that holds it was published, by the brokers' clock."""

    report: R
    stored_ms: int


class _Kind(msgspec.Struct):
    """What a report says about its kind; those of producers say nothing."""

    kind: str = "produced"


_encode = msgspec.json.Encoder().encode
_decode_kind = msgspec.json.Decoder(_Kind).decode
_decode_produced = msgspec.json.Decoder(ProducedReport).decode
_decode_consumed = msgspec.json.Decoder(ConsumedReport).decode
_part = attrgetter(*_PART)
_common = attrgetter(*({*ProducedReport.__struct_fields__} - {*_PART, "also"}))


def consumed_key(topic: str) -> bytes:
    """Return the key of reports about what was consumed; no topic can have it as its name."""
    return f"consumed:{topic}".encode()


def report_key(report: Report) -> bytes:
    """Return the key of a report in the audit topic."""
    if isinstance(report, ConsumedReport):
        return consumed_key(report.topic)
    return report.topic.encode()


def encode_report(report: Report) -> bytes:
    """Encode a report as JSON: the value of a LogMessage in the audit topic."""
    return _encode(report)


def encode_reports(reports: Iterable[Report]) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values; those of one producer about the same window are one value."""
    for _, group in groupby(reports, _window):
        first, *others = group
        if others:
            first = msgspec.structs.replace(first, also=list(map(_part, others)))
        yield report_key(first), encode_report(first)


def _window(report: Report) -> object:
    return _common(report) if isinstance(report, ProducedReport) else id(report)


def decode_reports(value: bytes) -> list[Report]:
    """Reports from their JSON; none where it is of a kind that this reader does not know.

    Raises:
        CorruptDataError: it is no report, or of a version that this reader does not know.
    """
    reports = decode_stored(_decode, value, "an audit report")
    for report in reports:
        check_version(report.version, REPORT_VERSION, "audit report")
        if not report.makes_sense:
            raise CorruptDataError(f"audit report with numbers that make no sense: {value[:300]!r}")
    return reports


def _decode(value: bytes) -> list[Report]:
    match _decode_kind(value).kind:
        case "consumed":
            return [_decode_consumed(value)]
        case "produced":
            first = _decode_produced(value)
            parts = [dict(zip(_PART, part, strict=True)) for part in first.also]
            return [msgspec.structs.replace(first, also=[], **part) for part in ({}, *parts)]
    return []


def check_consumed(report: ConsumedReport) -> None:
    """Refuse a report that no audit could read.

    Raises:
        InvalidRequestError: its numbers make no sense, or it has no name of a consumer.
    """
    try:
        decode_reports(encode_report(report))
    except CorruptDataError as exc:
        raise InvalidRequestError(
            f"{report} cannot be: it must name its consumer, numbers must be 0 or more and end "
            f"must not be before start; {exc}"
        ) from exc
