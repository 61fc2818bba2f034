"""The findings of an audit as rows of a table, as plain JSON, and in words."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any, NamedTuple

from memq.core.audit.reports import ProducerName, Run
from memq.core.audit.result import unjudged

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from memq.core.audit.consumed_findings import Amount, ConsumedAudit, ConsumerAudit
    from memq.core.audit.reports import ProducerAudit
    from memq.core.audit.result import AuditResult

FAULTS = ("lost", "damaged", "doubled", "changed")
"""What is wrong between produced and stored."""
CONSUMER_FAULTS = ("missed", "mismatched")
"""What is wrong between stored and consumed."""
COUNTED = ("lost", "damaged")  # of these LogMessages are counted, too

COLUMNS = (
    "consumer",
    "producer_id",
    "epoch",
    "write_partition",
    "produced_records",
    "stored_records",
    "consumed_records",
    "lost_records",
    "damaged_records",
    "missed_records",
    "mismatched_records",
    "unreported_records",
    "behind_records",
    "expired_records",
    "clean",
    "verdict",
    "findings",
)
"""Of the table: a row with no consumer is about produced and stored, the others about one consumer
of what is stored."""


class Finding(NamedTuple):
    """Something that is wrong: which sequences of whom, and for which consumer."""

    what: str
    consumer: str
    name: ProducerName
    runs: list[Run]
    records: int | None

    def __str__(self) -> str:
        count = "" if self.records is None else f" ({self.records} LogMessages)"
        whom = f" by consumer {self.consumer!r}" if self.consumer else ""
        return (
            f"{self.what}{whom}: producer {self.name.producer_id!r} epoch {self.name.epoch} write "
            f"partition {self.name.write_partition} sequences {_runs(self.runs)}{count}"
        )

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return {
            "finding": self.what,
            "consumer": self.consumer or None,
            **self.name._asdict(),
            "sequences": [list(run) for run in self.runs],
            "records": self.records,
        }


def findings_of(result: AuditResult) -> list[Finding]:
    """All that is wrong."""
    found: list[Finding] = []
    for producer in result.producers:
        found += _producer_findings(producer)
    for consumer in result.consumers:
        for each in consumer.producers:
            found += _consumer_findings(consumer.consumer, each)
    return found


def _producer_findings(producer: ProducerAudit) -> Iterator[Finding]:
    for what in FAULTS:
        if runs := getattr(producer, what):
            records = getattr(producer, f"{what}_records") if what in COUNTED else None
            yield Finding(what, "", producer.name, list(runs), records)


def _consumer_findings(consumer: str, audit: ConsumedAudit) -> Iterator[Finding]:
    for what in CONSUMER_FAULTS:
        amount: Amount = getattr(audit, what)
        if amount.messages:
            runs = [Run(part.first, part.last) for part in amount.parts]
            yield Finding(what, consumer, audit.name, runs, amount.records)


# -- for people -----------------------------------------------------------------------------


def in_words(result: AuditResult, most: int) -> list[str]:
    """A sentence for each thing that is wrong; the last one counts what was left out."""
    lines = [str(finding) for finding in findings_of(result)]
    lines += [f"cannot be read: {damage}" for damage in result.damage]
    for consumer in result.consumers:
        lines += [f"consumer {consumer.consumer!r}: {text}" for text in consumer.mismatches]
    left = len(lines) - most
    return lines if left <= 0 else [*lines[:most], f"and {left} more, see the table"]


def late_in_words(result: AuditResult, consumers: Sequence[str]) -> list[str]:
    """A sentence for each of some consumers that has not come to the end of the window."""
    return [_lateness(each) for each in result.consumers if _is_late(each, consumers)]


def _is_late(consumer: ConsumerAudit, consumers: Sequence[str]) -> bool:
    return consumer.consumer in consumers and bool(consumer.total("behind").messages)


def _lateness(consumer: ConsumerAudit) -> str:
    behind = consumer.total("behind").records
    text = f"consumer {consumer.consumer!r} has not come to {behind} LogMessages"
    return text if consumer.reports else f"{text}: there is no report of it"


def to_csv(rows: Iterable[dict[str, Any]]) -> str:
    """The table as CSV, which any spreadsheet opens."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


# -- for programs ---------------------------------------------------------------------------


def to_rows(result: AuditResult) -> list[dict[str, Any]]:
    """The table: one row for each producer, epoch and write partition, and again per consumer."""
    rows = [_producer_row(each) for each in result.producers]
    for consumer in result.consumers:
        rows += [_consumer_row(consumer, each) for each in consumer.producers]
    return rows


def _producer_row(producer: ProducerAudit) -> dict[str, Any]:
    return {
        "consumer": "",
        **producer.name._asdict(),
        "produced_records": producer.produced_records,
        "stored_records": producer.stored_records,
        "lost_records": producer.lost_records,
        "damaged_records": producer.damaged_records,
        "unreported_records": producer.unreported_records,
        "expired_records": producer.expired_records,
        "clean": producer.clean,
        "verdict": producer.verdict,
        "findings": _text(_producer_findings(producer)),
    }


def _consumer_row(consumer: ConsumerAudit, audit: ConsumedAudit) -> dict[str, Any]:
    return {
        "consumer": consumer.consumer,
        **audit.name._asdict(),
        "stored_records": audit.stored.records,
        "consumed_records": audit.consumed.records,
        "missed_records": audit.missed.records,
        "mismatched_records": audit.mismatched.records,
        "unreported_records": audit.unreported.records,
        "behind_records": audit.behind.records,
        "clean": audit.clean,
        "verdict": audit.verdict,
        "findings": _text(_consumer_findings(consumer.consumer, audit)),
    }


def _text(findings: Iterable[Finding]) -> str:
    return "; ".join(f"{each.what} {_runs(each.runs)}" for each in findings)


def _runs(runs: Sequence[Run]) -> str:
    return ",".join(f"{r.first}-{r.last}" if r.last > r.first else f"{r.first}" for r in runs)


def to_json(result: AuditResult, most: int) -> dict[str, Any]:
    """The totals, and the first `most` findings, as an XCom holds them."""
    findings = findings_of(result)
    return {
        "topic": result.topic,
        "clean": result.clean,
        "verdict": result.verdict.value,
        "unjudged": unjudged(result),
        "producers": len(result.producers),
        "produced_records": sum(each.produced_records for each in result.producers),
        "stored_records": sum(each.stored_records for each in result.producers),
        "lost_records": result.lost_records,
        "damaged_records": sum(each.damaged_records for each in result.producers),
        "unreported_records": result.unreported_records,
        "open_reports": result.open_reports,
        "expired_reports": result.expired_reports,
        "expired_records": result.expired_records,
        "consumers": {each.consumer: _consumer_json(each) for each in result.consumers},
        "findings": [each.to_json() for each in findings[:most]],
        "more_findings": max(0, len(findings) - most),
        "damage": result.damage[:most],
    }


def _consumer_json(consumer: ConsumerAudit) -> dict[str, Any]:
    names = ("stored", "consumed", *CONSUMER_FAULTS, "unreported", "behind", "again")
    counts = {f"{name}_records": consumer.total(name).records for name in names}
    return {"clean": consumer.clean, "reports": consumer.reports, **counts}
