"""The consumed half of what `memq audit` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memq.cli.output import Row
    from memq.core.audit.consumed_findings import Amount, ConsumedAudit, ConsumerAudit, Part

MAX_PARTS_SHOWN = 3  # of each finding in a cell of the table; JSON has all
FAULTS = ("missed", "mismatched")
NAMED = (*FAULTS, "unreported")
AMOUNTS = ("stored", "consumed", *NAMED, "behind", "again")
COLUMNS = ("consumer", "producer", "epoch", "write_partition", *AMOUNTS, "sequences")


def consumer_rows(consumers: Sequence[ConsumerAudit]) -> list[Row]:
    """The rows of the table: one for each consumer and producer in a write partition."""
    return [_row(consumer, each) for consumer in consumers for each in consumer.producers]


def consumer_notes(consumers: Sequence[ConsumerAudit]) -> list[str]:
    """What is no fault, but should be known; and which reports differ."""
    notes = [line for consumer in consumers for line in consumer.mismatches]
    for consumer in consumers:
        name, behind = consumer.consumer, consumer.total("behind").records
        if consumer.reports and behind:
            notes.append(f"{name} is {behind} LogMessages behind.")
        if consumer.unnamed_parts:
            notes.append(f"{name}: {consumer.unnamed_parts} more findings are not named.")
    return notes


def consumer_faults(consumers: Sequence[ConsumerAudit]) -> list[str]:
    """What is wrong, for the last line."""
    faults = []
    for consumer in consumers:
        for finding in FAULTS:
            amount = consumer.total(finding)
            if amount.messages:
                faults.append(
                    f"{amount.records} LogMessages {finding} by {consumer.consumer} in "
                    f"{amount.messages} Messages"
                )
    return faults


def consumers_json(consumers: Sequence[ConsumerAudit]) -> list[Row]:
    """All of it, for programs."""
    return [
        {
            "consumer": consumer.consumer,
            "clean": consumer.clean,
            "reports": consumer.reports,
            "mismatches": consumer.mismatches,
            "unnamed_parts": consumer.unnamed_parts,
            "producers": [_producer_json(each) for each in consumer.producers],
        }
        for consumer in consumers
    ]


def _row(consumer: ConsumerAudit, each: ConsumedAudit) -> Row:
    named = [(finding, _amount(each, finding).parts) for finding in NAMED]
    return {
        "consumer": consumer.consumer,
        "producer": each.name.producer_id,
        "epoch": each.name.epoch,
        "write_partition": each.name.write_partition,
        **{finding: _amount(each, finding).records for finding in AMOUNTS},
        "sequences": "; ".join(f"{finding} {_shown(parts)}" for finding, parts in named if parts),
    }


def _shown(parts: Sequence[Part]) -> str:
    """Sequences, and where they are: ranges as `memq consume --range` takes them."""
    shown = [
        f"{_run(part)} in {part.partition}:{part.start}-{part.end}"
        for part in parts[:MAX_PARTS_SHOWN]
    ]
    more = [f"{len(parts) - MAX_PARTS_SHOWN} more"] if len(parts) > MAX_PARTS_SHOWN else []
    return ", ".join([*shown, *more])


def _run(part: Part) -> str:
    return str(part.first) if part.first == part.last else f"{part.first}-{part.last}"


def _producer_json(each: ConsumedAudit) -> Row:
    counts: dict[str, Any] = {}
    for finding in AMOUNTS:
        amount = _amount(each, finding)
        counts[f"{finding}_messages"] = amount.messages
        counts[f"{finding}_records"] = amount.records
    parts = {
        finding: [part._asdict() for part in _amount(each, finding).parts] for finding in NAMED
    }
    return {**each.name._asdict(), **counts, **parts}


def _amount(each: ConsumedAudit, finding: str) -> Amount:
    amount: Amount = getattr(each, finding)
    return amount
