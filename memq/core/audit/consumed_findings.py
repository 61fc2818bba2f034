"""What the comparison of stored and consumed Messages finds (see `memq.core.audit.consumed`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from memq.core.audit.reports import ProducerName, Verdict, worst


class Part(NamedTuple):
    """Sequences of one producer, ends included, and where their Batches stand."""

    partition: int
    start: int
    end: int
    first: int
    last: int


@dataclass
class Amount:
    """How much there is of something; `parts` names it where it is a finding."""

    messages: int = 0
    records: int = 0
    parts: list[Part] = field(default_factory=list)


@dataclass
class ConsumedAudit:
    """The findings for one consumer and one producer in one write partition.

    What is stored is consumed, mismatched, missed, unreported or behind, and one of them only; see
    above.

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
    stored: Amount = field(default_factory=Amount)
    consumed: Amount = field(default_factory=Amount)
    missed: Amount = field(default_factory=Amount)
    mismatched: Amount = field(default_factory=Amount)
    unreported: Amount = field(default_factory=Amount)
    behind: Amount = field(default_factory=Amount)
    again: Amount = field(default_factory=Amount)

    @property
    def verdict(self) -> Verdict:
        """Unclean with anything missed or mismatched; what is unreported cannot be judged."""
        if self.missed.messages or self.mismatched.messages:
            return Verdict.UNCLEAN
        return Verdict.PARTLY if self.unreported.messages else Verdict.CLEAN

    @property
    def clean(self) -> bool:
        """All of it was judged, and nothing is wrong."""
        return self.verdict is Verdict.CLEAN


@dataclass
class ConsumerAudit:
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
    producers: list[ConsumedAudit] = field(default_factory=list)
    mismatches: list[str] = field(default_factory=list)
    unnamed_parts: int = 0

    @property
    def verdict(self) -> Verdict:
        """Unclean with anything missed or mismatched; without a report nothing is known."""
        if self.mismatches:
            return Verdict.UNCLEAN
        known = Verdict.CLEAN if self.reports else Verdict.PARTLY
        return worst([known, *(each.verdict for each in self.producers)])

    @property
    def clean(self) -> bool:
        """All of it was judged, and nothing is wrong."""
        return self.verdict is Verdict.CLEAN

    def total(self, finding: str) -> Amount:
        """What there is of a finding (`"missed"`), over all producers; without its parts."""
        amounts = [getattr(each, finding) for each in self.producers]
        return Amount(sum(each.messages for each in amounts), sum(each.records for each in amounts))
