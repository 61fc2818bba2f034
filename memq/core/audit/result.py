"""What an audit found for one topic and window, and its JSON, which other programs read back.

`memq.core.audit.reports` says what the findings mean.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec import field

from memq.core.audit.reports import ProducerName, SequenceRun
from memq.core.decoding import UNDECODABLE
from memq.errors import CorruptDataError

if TYPE_CHECKING:
    from collections.abc import Iterable


PRODUCER_FAULTS = ("lost", "damaged", "duplicated", "changed")
"""What is wrong between produced and stored."""
CONSUMER_FAULTS = ("missed", "mismatched")
"""What is wrong between stored and consumed."""
PRODUCER_FINDINGS = (*PRODUCER_FAULTS, "expired", "recovered")
CONSUMER_FINDINGS = (*CONSUMER_FAULTS, "unreported")
"""What is named, fault or not: attributes of `ProducerAudit` and `ConsumedAudit`."""


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


class ProducerAudit(_Judged):
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
        duplicated: sequences stored more than once.
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
    lost: list[SequenceRun] = []
    lost_records: int = 0
    damaged: list[SequenceRun] = []
    damaged_records: int = 0
    recovered: list[SequenceRun] = []
    duplicated: list[SequenceRun] = field(name="doubled", default_factory=list)
    changed: list[SequenceRun] = []
    expired: list[SequenceRun] = []
    expired_records: int = 0
    unreported_messages: int = 0
    unreported_records: int = 0

    @property
    def verdict(self) -> Verdict:
        """Unclean with anything lost, damaged, duplicated or changed."""
        if any(getattr(self, finding) for finding in PRODUCER_FAULTS):
            return Verdict.UNCLEAN
        return Verdict.PARTLY if self.expired or self.unreported_messages else Verdict.CLEAN


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


class MessageCount(msgspec.Struct):
    """How many Messages and LogMessages there are; `parts` names them where they are a finding."""

    messages: int = 0
    records: int = 0
    parts: list[LocatedRun] = []


class ConsumedAudit(_Judged):
    """The findings for one consumer and one producer in one write partition.

    What is stored is consumed, mismatched, missed, unreported or behind, and one of them only; see
    `memq.core.audit.consumed`.

    Attributes:
        name: whose sequences these are.
        stored: in the Batches of the window that the consumer answers for.
        consumed: of these.
        missed: likewise, named.
        mismatched: likewise, named.
        unreported: likewise, named.
        behind: likewise.
        again: of those consumed, the ones that were consumed more than once.
    """

    name: ProducerName
    stored: MessageCount = field(default_factory=MessageCount)
    consumed: MessageCount = field(default_factory=MessageCount)
    missed: MessageCount = field(default_factory=MessageCount)
    mismatched: MessageCount = field(default_factory=MessageCount)
    unreported: MessageCount = field(default_factory=MessageCount)
    behind: MessageCount = field(default_factory=MessageCount)
    again: MessageCount = field(default_factory=MessageCount)

    @property
    def verdict(self) -> Verdict:
        """Unclean with anything missed or mismatched; what is unreported cannot be judged."""
        if any(getattr(self, finding).messages for finding in CONSUMER_FAULTS):
            return Verdict.UNCLEAN
        return Verdict.PARTLY if self.unreported.messages else Verdict.CLEAN


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
        """What there is of a finding (`"missed"`), over all producers; without its parts."""
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

    def total(self, count: str) -> int:
        """A count (`"lost_records"`) over all producers."""
        return sum(getattr(producer, count) for producer in self.producers)


def encode_result(result: AuditResult) -> bytes:
    """The JSON of a result, with every finding."""
    return msgspec.json.encode(result)


def decode_result(payload: bytes) -> AuditResult:
    """A result from its JSON.

    Raises:
        CorruptDataError: it is none.
    """
    try:
        return msgspec.json.decode(payload, type=AuditResult)
    except UNDECODABLE as exc:
        raise CorruptDataError(f"not the result of an audit: {exc}: {payload[:80]!r}") from exc
