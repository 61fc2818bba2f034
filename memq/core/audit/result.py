"""What an audit found for one topic and window, and its JSON, which other programs read back.

`memq.core.audit.reports` says what the findings mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import msgspec
from msgspec import field

from memq.core.audit.reports import ProducerName, SequenceRun
from memq.core.decoding import decode_stored
from memq.core.units import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Verdict(StrEnum):
    """What an audit comes to, the best first."""

    CLEAN = "clean"
    """All of it was judged, and nothing is wrong."""
    PARTLY = "partly judged"
    """Nothing is wrong with what could be judged; about the rest nothing can be said."""
    UNCLEAN = "not clean"
    """Something is wrong."""


_ORDER = list(Verdict)

PRODUCER_FINDINGS = {
    "lost": Verdict.UNCLEAN,
    "damaged": Verdict.UNCLEAN,
    "duplicated": Verdict.UNCLEAN,
    "changed": Verdict.UNCLEAN,
    "expired": Verdict.PARTLY,
    "recovered": Verdict.CLEAN,
}
"""What is named between produced and stored, and the verdict of each."""
CONSUMER_FINDINGS = {
    "missed": Verdict.UNCLEAN,
    "mismatched": Verdict.UNCLEAN,
    "unreported": Verdict.PARTLY,
}
"""What is named between stored and consumed, and the verdict of each."""
JSON_NAMES = {"duplicated": "doubled"}
"""Findings that have another name in JSON, which other programs read."""


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return what several parts come to as a whole."""
    return max(verdicts, key=_ORDER.index, default=Verdict.CLEAN)


class LocatedRun(NamedTuple):
    """Sequences of one producer, `first` to `last`, and the offsets of their Batches."""

    partition: int
    start: int
    end: int
    first: int
    last: int

    def __str__(self) -> str:
        sequences = SequenceRun(self.first, self.last)
        return f"{sequences} in {self.partition}:{self.start}-{self.end}"


Runs = Sequence[SequenceRun] | Sequence[LocatedRun]


class Finding(NamedTuple):
    """A kind of finding about one producer in one write partition.

    Attributes:
        kind: attribute of `ProducerAudit`, or of `ConsumedAudit` where there is a consumer.
        verdict: of this kind.
        name: of the producer.
        runs: sequences, as many as are named; those of a consumer with their offsets.
        messages: how many there are.
        records: LogMessages in them; None where they are not counted.
        consumer: empty between produced and stored.
    """

    kind: str
    verdict: Verdict
    name: ProducerName
    runs: Runs
    messages: int
    records: int | None
    consumer: str = ""

    @property
    def sequences(self) -> list[SequenceRun]:
        """The sequences alone."""
        return [SequenceRun(each.first, each.last) for each in self.runs]

    def __str__(self) -> str:
        count = "" if self.records is None else f" ({counted(self.records, 'LogMessage')})"
        whom = f" by consumer {self.consumer!r}" if self.consumer else ""
        return (
            f"{self.kind}{whom}: producer {self.name.producer_id!r} epoch {self.name.epoch} "
            f"write partition {self.name.write_partition} sequences "
            f"{','.join(map(str, self.sequences))}{count}"
        )


class MessageCount(msgspec.Struct):
    """How many Messages and LogMessages there are; `parts` names them where they are a finding."""

    messages: int = 0
    records: int = 0
    parts: list[LocatedRun] = []


class _Judged(msgspec.Struct):
    """What has a verdict."""

    @property
    def verdict(self) -> Verdict:
        """What it comes to."""
        raise NotImplementedError

    @property
    def clean(self) -> bool:
        """All of it was judged, and nothing is wrong."""
        return self.verdict is Verdict.CLEAN


class _Audit(_Judged):
    """The findings for one producer in one write partition.

    Attributes:
        kinds: which there may be.
        name: whose sequences these are.
    """

    kinds: ClassVar[dict[str, Verdict]] = {}
    name: ProducerName

    def found(self, kind: str) -> tuple[int, int | None, Runs]:
        """Return Messages, LogMessages where they are counted, and sequences of a finding."""
        found: MessageCount | list[SequenceRun] = getattr(self, kind)
        if isinstance(found, MessageCount):
            return found.messages, found.records, found.parts
        return sum(run.messages for run in found), getattr(self, f"{kind}_records", None), found

    def findings(self) -> Iterator[Finding]:
        """Return what there is of each kind."""
        for kind, verdict in self.kinds.items():
            messages, records, runs = self.found(kind)
            if messages:
                yield Finding(kind, verdict, self.name, runs, messages, records)

    @property
    def verdict(self) -> Verdict:
        """The worst of the findings."""
        return worst(each.verdict for each in self.findings())


class ProducerAudit(_Audit):
    """What differs between produced and stored.

    LogMessages of lost and damaged Messages are counted as what is short of the reports. That is
    exact, unless reports overlap and say different things, or one report names both what is lost
    without a notification and what has expired: then they count as expired.

    Attributes:
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
        duplicated: sequences stored more than once.
        changed: reports whose Messages are all there, but not as they were produced.
        expired: sequences that are nowhere, and that retention may have removed.
        expired_records: LogMessages in them.
        unreported_messages: stored in the window, but in no report.
        unreported_records: LogMessages in them.
    """

    kinds = PRODUCER_FINDINGS
    produced_messages: int = 0
    produced_records: int = 0
    stored_messages: int = 0
    stored_records: int = 0
    lost: list[SequenceRun] = []
    lost_records: int = 0
    damaged: list[SequenceRun] = []
    damaged_records: int = 0
    recovered: list[SequenceRun] = []
    duplicated: list[SequenceRun] = field(name=JSON_NAMES["duplicated"], default_factory=list)
    changed: list[SequenceRun] = []
    expired: list[SequenceRun] = []
    expired_records: int = 0
    unreported_messages: int = 0
    unreported_records: int = 0

    @property
    def verdict(self) -> Verdict:
        """The worst of the findings; what no report names cannot be judged."""
        unreported = Verdict.PARTLY if self.unreported_messages else Verdict.CLEAN
        return worst([unreported, super().verdict])


class ConsumedAudit(_Audit):
    """What a consumer did with what is stored.

    What is stored is consumed, mismatched, missed, unreported or behind, and one of them only; see
    `memq.core.audit.consumed`.

    Attributes:
        stored: in the Batches of the window that the consumer answers for.
        again: of those consumed, the ones that were consumed more than once.
    """

    kinds = CONSUMER_FINDINGS
    stored: MessageCount = field(default_factory=MessageCount)
    consumed: MessageCount = field(default_factory=MessageCount)
    missed: MessageCount = field(default_factory=MessageCount)
    mismatched: MessageCount = field(default_factory=MessageCount)
    unreported: MessageCount = field(default_factory=MessageCount)
    behind: MessageCount = field(default_factory=MessageCount)
    again: MessageCount = field(default_factory=MessageCount)


class ConsumerAudit(_Judged):
    """The findings for one consumer.

    Attributes:
        consumer: consumer group, or name of the job.
        reports: how many reports of it were read.
        producers: one for each producer and write partition, sorted by name.
        mismatches: which reports differ, and how, in plain sentences.
        unnamed_parts: findings whose parts were left out because there are too many.
    """

    consumer: str
    reports: int
    producers: list[ConsumedAudit] = []
    mismatches: list[str] = []
    unnamed_parts: int = 0

    @property
    def verdict(self) -> Verdict:
        """Unclean with anything missed or mismatched; without a report nothing is known."""
        if self.mismatches:
            return Verdict.UNCLEAN
        known = Verdict.CLEAN if self.reports else Verdict.PARTLY
        return worst([known, *(each.verdict for each in self.producers)])

    def total(self, finding: str) -> MessageCount:
        """Count a finding (`"missed"`) over all producers; without its parts."""
        counts = [getattr(each, finding) for each in self.producers]
        return MessageCount(
            sum(each.messages for each in counts), sum(each.records for each in counts)
        )


class AuditResult(_Judged):
    """The findings for one topic and window.

    Attributes:
        topic: the topic.
        producers: one for each producer and write partition, sorted by name.
        damage: what could not be read, in plain sentences: object, place and cause.
        open_reports: reports that were left out because they are not closed yet.
        expired_reports: reports that name Messages which are nowhere, and which retention may have
            removed.
        consumers: one for each consumer, sorted by name.
        beyond: which parts of the window are out of reach, in plain sentences: not retained any
            more, or not over yet.
    """

    topic: str
    producers: list[ProducerAudit]
    damage: list[str] = []
    open_reports: int = 0
    expired_reports: int = 0
    consumers: list[ConsumerAudit] = []
    beyond: list[str] = []

    def __repr__(self) -> str:
        # A short one: `asyncio.run` makes that of what it returns, and there may be a million rows.
        return f"<AuditResult {self.topic} [{len(self.producers)} producers]>"

    @property
    def verdict(self) -> Verdict:
        """Unclean with anything lost, damaged, duplicated, changed, missed or mismatched."""
        if self.damage:
            return Verdict.UNCLEAN
        partly = self.open_reports or self.expired_reports or self.beyond
        window = Verdict.PARTLY if partly else Verdict.CLEAN
        return worst([window, *(each.verdict for each in [*self.producers, *self.consumers])])

    def audits(self) -> Iterator[tuple[str, ProducerAudit | ConsumedAudit]]:
        """Return what was found about each producer, then about what each consumer read of it.

        With it comes the name of the consumer, which is empty between produced and stored.
        """
        yield from (("", each) for each in self.producers)
        for consumer in self.consumers:
            yield from ((consumer.consumer, each) for each in consumer.producers)

    def faults(self) -> Iterator[Finding]:
        """Return all that is wrong, except what cannot be read."""
        for consumer, audit in self.audits():
            for each in audit.findings():
                if each.verdict is Verdict.UNCLEAN:
                    yield each._replace(consumer=consumer)

    def total(self, count: str) -> int:
        """Sum a count (`"lost_records"`) over all producers."""
        return sum(getattr(producer, count) for producer in self.producers)


_decode = msgspec.json.Decoder(AuditResult).decode


def encode_result(result: AuditResult) -> bytes:
    """Encode a result as JSON, with every finding."""
    return msgspec.json.encode(result)


def decode_result(payload: bytes) -> AuditResult:
    """Decode a result from its JSON.

    Raises:
        CorruptDataError: it is none.
    """
    return decode_stored(_decode, payload, "the result of an audit")
