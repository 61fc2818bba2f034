"""What an audit found for one topic and window, and its JSON, which other programs read back."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from memq.core.audit.consumed_findings import ConsumerAudit  # noqa: TC001 - likewise
from memq.core.audit.reports import ProducerAudit, Verdict, worst
from memq.errors import CorruptDataError


@dataclass
class AuditResult:
    """The findings for one topic and window.

    Attributes:
        topic: the topic.
        producers: one for each producer and write partition, sorted by name.
        damage: what could not be read, in plain sentences: object, place and cause.
        open_reports: reports that were left out because they are not closed yet.
        expired_reports: reports that name Messages which are nowhere, and which retention may have
            removed.
        consumers: one for each consumer, sorted by name.
        beyond: which parts of the window are out of reach, in plain sentences: not held any more,
            or not over yet.
    """

    topic: str
    producers: list[ProducerAudit]
    damage: list[str] = field(default_factory=list)
    open_reports: int = 0
    expired_reports: int = 0
    consumers: list[ConsumerAudit] = field(default_factory=list)
    beyond: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> Verdict:
        """Unclean with anything lost, damaged, doubled, changed, missed or mismatched."""
        if self.damage:
            return Verdict.UNCLEAN
        partly = self.open_reports or self.expired_reports or self.beyond
        window = Verdict.PARTLY if partly else Verdict.CLEAN
        producers = worst(each.verdict for each in self.producers)
        consumers = worst(each.verdict for each in self.consumers)
        return worst([window, producers, consumers])

    @property
    def clean(self) -> bool:
        """All of the window was judged, and nothing is wrong."""
        return self.verdict is Verdict.CLEAN

    @property
    def expired_records(self) -> int:
        """LogMessages that are nowhere and may have been removed by retention."""
        return sum(producer.expired_records for producer in self.producers)

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


def unjudged(result: AuditResult) -> list[str]:
    """What could not be judged, in plain sentences; none when all was."""
    lines = list(result.beyond)
    if result.open_reports:
        lines.append(
            f"{result.open_reports} reports are not closed yet: Batches are still on their way. "
            "Audit again in a while."
        )
    if result.expired_reports:
        lines.append(
            f"{result.expired_reports} reports name {result.expired_records} LogMessages that are "
            "nowhere, and that retention has removed or may have removed."
        )
    if result.unreported_messages:
        lines.append(
            f"{result.unreported_records} LogMessages are stored but in no report: their producers "
            "have not reported yet, or ended before they could."
        )
    for consumer in result.consumers:
        name, unreported = consumer.consumer, consumer.total("unreported").records
        if not consumer.reports:
            lines.append(f"There is no report of {name!r}: nothing is known of it.")
        if unreported:
            lines.append(
                f"{name} has committed {unreported} LogMessages without a report of it: a member "
                "ended before it could."
            )
    return lines


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
    except msgspec.MsgspecError as exc:
        raise CorruptDataError(f"not the result of an audit: {exc}: {payload[:80]!r}") from exc
