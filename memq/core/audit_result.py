"""What an audit found for one topic and window, and its JSON, which other programs read back."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from memq.core.audit import ProducerAudit  # noqa: TC001 - msgspec reads the annotations
from memq.core.consumption_findings import ConsumerAudit  # noqa: TC001 - likewise
from memq.errors import CorruptDataError


@dataclass
class AuditResult:
    """The findings for one topic and window.

    Attributes:
        topic: the topic.
        producers: one for each producer and write partition, sorted by name.
        damage: what could not be read, in plain sentences: object, place and cause.
        open_reports: reports that were left out because they are not closed yet.
        expired_reports: reports that were left out because retention removes their Messages.
        consumers: one for each consumer, sorted by name.
    """

    topic: str
    producers: list[ProducerAudit]
    damage: list[str] = field(default_factory=list)
    open_reports: int = 0
    expired_reports: int = 0
    consumers: list[ConsumerAudit] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Nothing lost, damaged, doubled or changed; nothing missed or mismatched."""
        produced = all(producer.clean for producer in self.producers)
        consumed = all(consumer.clean for consumer in self.consumers)
        return not self.damage and produced and consumed

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
