"""The result of an audit in words, as rows of a table, and as plain JSON.

The command line, Airflow and Spark show these, each with the columns of its own table. Names of
columns and JSON fields are stored, and stay; the texts are for people.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from memq.core.audit.reports import SequenceRun
from memq.core.audit.result import (
    CONSUMER_FAULTS,
    CONSUMER_FINDINGS,
    PRODUCER_FAULTS,
    PRODUCER_FINDINGS,
    ProducerAudit,
    Verdict,
    worst,
)
from memq.core.units import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from memq.core.audit.reports import ProducerName
    from memq.core.audit.result import (
        AuditResult,
        ConsumedAudit,
        ConsumerAudit,
        LocatedRun,
        MessageCount,
    )

SHORT_ID = 8  # characters of a producer id that a table shows, where they tell it from the others
CONSUMER_COUNTS = ("stored", "consumed", *CONSUMER_FINDINGS, "behind", "again")

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
"""Of the CSV: a row with no consumer is about produced and stored, the others about one consumer of
what is stored."""

Row = dict[str, Any]

_STORED_NAMES = {each.name: each.encode_name for each in msgspec.structs.fields(ProducerAudit)}


class Fault(NamedTuple):
    """Something that is wrong: which sequences of whom, and for which consumer.

    Attributes:
        finding: attribute of `ProducerAudit`, or of `ConsumedAudit` where there is a consumer.
        consumer: empty between produced and stored.
        name: of the producer.
        runs: sequences, as many as are named; those of a consumer with their offsets.
        messages: how many there are.
        records: LogMessages in them; None where they are not counted.
    """

    finding: str
    consumer: str
    name: ProducerName
    runs: Sequence[SequenceRun | LocatedRun]
    messages: int
    records: int | None

    @property
    def sequences(self) -> list[SequenceRun]:
        """The sequences alone."""
        return [SequenceRun(each.first, each.last) for each in self.runs]

    def __str__(self) -> str:
        count = "" if self.records is None else f" ({counted(self.records, 'LogMessage')})"
        whom = f" by consumer {self.consumer!r}" if self.consumer else ""
        return (
            f"{self.finding}{whom}: producer {self.name.producer_id!r} epoch {self.name.epoch} "
            f"write partition {self.name.write_partition} sequences "
            f"{','.join(map(str, self.sequences))}{count}"
        )

    def to_json(self) -> Row:
        """As plain JSON."""
        return {
            "finding": _STORED_NAMES.get(self.finding, self.finding),
            "consumer": self.consumer or None,
            **self.name._asdict(),
            "sequences": [list(run) for run in self.sequences],
            "records": self.records,
        }


def faults(result: AuditResult) -> Iterator[Fault]:
    """All that is wrong, but for what cannot be read."""
    for producer in result.producers:
        for finding in PRODUCER_FAULTS:
            if runs := getattr(producer, finding):
                messages = sum(run.messages for run in runs)
                records = getattr(producer, f"{finding}_records", None)
                yield Fault(finding, "", producer.name, list(runs), messages, records)
    for consumer, audit in _consumed(result):
        for finding in CONSUMER_FAULTS:
            count: MessageCount = getattr(audit, finding)
            if count.messages:
                name, parts = consumer.consumer, count.parts
                yield Fault(finding, name, audit.name, parts, count.messages, count.records)


# -- in words -------------------------------------------------------------------------------


def unjudged(result: AuditResult) -> list[str]:
    """What could not be judged, in plain sentences; none when all was."""
    lines = list(result.beyond)
    if result.open_reports:
        lines.append(
            f"{counted(result.open_reports, 'report is', 'reports are')} not closed yet: Batches "
            "are still on their way. Audit again in a minute."
        )
    if result.expired_reports:
        lines.append(
            f"{counted(result.expired_reports, 'report names', 'reports name')} "
            f"{counted(result.total('expired_records'), 'LogMessage')} not stored any more, which "
            "retention has removed or may have removed."
        )
    if result.total("unreported_messages"):
        unreported = counted(result.total("unreported_records"), "LogMessage is", "LogMessages are")
        lines.append(
            f"{unreported} stored but in no report: the producer has not reported yet, or ended "
            "before it could."
        )
    for consumer in result.consumers:
        name, committed = consumer.consumer, consumer.total("unreported").records
        if not consumer.reports:
            lines.append(f"There is no report of {name!r}: nothing is known of it.")
        if committed:
            lines.append(
                f"{name} has committed {counted(committed, 'LogMessage')} without a report of it: "
                "a member ended before it could."
            )
    return lines


def notes(result: AuditResult) -> list[str]:
    """The lines below the tables: what cannot be read, what differs, what should be known."""
    lines = [f"cannot be read: {line}" for line in result.damage]
    if not result.total("produced_messages"):
        lines.append("No report in this window could be judged.")
    lines += [line for consumer in result.consumers for line in consumer.mismatches]
    for consumer in result.consumers:
        name, behind = consumer.consumer, consumer.total("behind").records
        if consumer.reports and behind:
            lines.append(f"{name} is {counted(behind, 'LogMessage')} behind.")
        if consumer.unnamed_parts:
            more = counted(consumer.unnamed_parts, "more finding is", "more findings are")
            lines.append(f"{name}: {more} not named.")
    return lines + unjudged(result)


def conclusion(result: AuditResult) -> str:
    """The last line: "clean", or what is wrong."""
    if result.verdict is Verdict.CLEAN:
        return "clean"
    if result.verdict is Verdict.PARTLY:
        return "PARTLY JUDGED: what could be judged is clean; the lines above say what could not"
    unread = counted(len(result.damage), "object or report", "objects or reports")
    parts = [f"{unread} cannot be read"] if result.damage else []
    order = (*PRODUCER_FAULTS, *CONSUMER_FAULTS)
    found = sorted(faults(result), key=lambda each: (each.consumer, order.index(each.finding)))
    for (consumer, finding), group in groupby(found, lambda each: (each.consumer, each.finding)):
        these = list(group)
        messages = sum(each.messages for each in these)
        if these[0].records is None:
            parts.append(f"{counted(messages, 'Message')} {finding}")
        else:
            records = sum(each.records or 0 for each in these)
            whom = f" by {consumer}" if consumer else ""
            what = f"{counted(records, 'LogMessage')} {finding}{whom}"
            parts.append(f"{what} in {counted(messages, 'Message')}")
    return "NOT CLEAN: " + "; ".join(parts)


def totals_in_words(result: AuditResult) -> list[str]:
    """How many producers there are, and how many of them are clean; likewise for each consumer."""
    lines = []
    if result.producers:
        counts = [f"{result.total(f'{name}_records')} {name}" for name in ("produced", "stored")]
        lines.append(f"{_tally(result.producers)}; LogMessages: {', '.join(counts)}")
    for consumer in result.consumers:
        if consumer.producers:
            names = ("stored", "consumed", "behind")
            counts = [f"{consumer.total(name).records} {name}" for name in names]
            tally = _tally(consumer.producers)
            lines.append(f"{consumer.consumer}: {tally}; LogMessages: {', '.join(counts)}")
    return lines


def _tally(audits: Sequence[ProducerAudit] | Sequence[ConsumedAudit]) -> str:
    """How many producers there are, and what they come to: "2 producers: 1 clean, 1 not clean"."""
    by_id: dict[str, list[Verdict]] = {}
    for audit in audits:
        by_id.setdefault(audit.name.producer_id, []).append(audit.verdict)
    found = Counter(map(worst, by_id.values()))
    kinds = ", ".join(f"{found[verdict]} {verdict.value}" for verdict in Verdict if found[verdict])
    return f"{counted(len(by_id), 'producer')}: {kinds}"


def faults_in_words(result: AuditResult, most: int) -> list[str]:
    """A sentence for each thing that is wrong; the last one counts what was left out."""
    lines = [str(fault) for fault in faults(result)]
    lines += [f"cannot be read: {damage}" for damage in result.damage]
    for consumer in result.consumers:
        lines += [f"consumer {consumer.consumer!r}: {text}" for text in consumer.mismatches]
    left = len(lines) - most
    return lines if left <= 0 else [*lines[:most], f"and {left} more, see the table"]


def late_in_words(result: AuditResult, consumers: Sequence[str]) -> list[str]:
    """A sentence for each of some consumers that has not come to the end of the window."""
    lines = []
    for each in result.consumers:
        behind = each.total("behind")
        if each.consumer in consumers and behind.messages:
            unknown = "" if each.reports else ": there is no report of it"
            lines.append(
                f"consumer {each.consumer!r} has not come to "
                f"{counted(behind.records, 'LogMessage')}{unknown}"
            )
    return lines


# -- as rows --------------------------------------------------------------------------------


def short_ids(result: AuditResult) -> dict[str, str]:
    """What a table shows of each producer id: as little as tells it from all others here."""
    ids = sorted({each.name.producer_id for each in result.producers} | {
        audit.name.producer_id for _, audit in _consumed(result)
    })  # fmt: skip
    shown = {}
    for position, producer_id in enumerate(ids):
        beside = (*ids[max(0, position - 1) : position], *ids[position + 1 : position + 2])
        length = SHORT_ID
        while any(each.startswith(producer_id[:length]) for each in beside):
            length += 1
            if length >= len(producer_id):
                break
        is_long = len(producer_id) > length + 1  # what is cut off is more than the mark for it
        shown[producer_id] = f"{producer_id[:length]}…" if is_long else producer_id
    return shown


def problems(result: AuditResult, most: int | None = None) -> list[Row]:
    """A row for each thing that is wrong, but for what cannot be read.

    Args:
        result: of the audit.
        most: so many runs of each are named; None for all.
    """
    return [
        {
            "problem": fault.finding,
            "consumer": fault.consumer or None,
            **fault.name._asdict(),
            "records": fault.records,
            "messages": fault.messages,
            "sequences": _runs_in_words(fault.runs, most),
        }
        for fault in faults(result)
    ]


def rows(result: AuditResult, most: int | None = None, *, faults_only: bool = False) -> list[Row]:
    """A row for each producer in a write partition, then one for each consumer of it.

    Each has counts, a verdict and what was found; those of producers have no consumer.

    Args:
        result: of the audit.
        most: so many runs of each finding are named; None for all.
        faults_only: a clean row names no findings.
    """
    found: list[Row] = []
    of_producers = PRODUCER_FAULTS if faults_only else PRODUCER_FINDINGS
    of_consumers = CONSUMER_FAULTS if faults_only else CONSUMER_FINDINGS
    for producer in result.producers:
        runs = {finding: getattr(producer, finding) for finding in of_producers}
        found.append({"consumer": None} | _counts(producer) | _judged(producer, runs, most))
    for consumer, audit in _consumed(result):
        parts = {finding: getattr(audit, finding).parts for finding in of_consumers}
        counts = _consumed_counts(audit)
        found.append({"consumer": consumer.consumer} | counts | _judged(audit, parts, most))
    return found


def _judged(
    audit: ProducerAudit | ConsumedAudit,
    findings: Mapping[str, Sequence[SequenceRun | LocatedRun]],
    most: int | None,
) -> Row:
    """The verdict, and what was found as "lost 1-2,4; expired 7"."""
    texts = []
    for finding, runs in findings.items():
        if runs:
            texts.append(f"{finding} {_runs_in_words(runs, most)}")
    return {"clean": audit.clean, "verdict": audit.verdict.value, "findings": "; ".join(texts)}


def _runs_in_words(runs: Sequence[SequenceRun | LocatedRun], most: int | None) -> str:
    """Runs as "1-2,4", or with their offsets as "1-2 in 0:7-9, 4 in 0:10-11"."""
    shown = list(map(str, runs[:most]))
    if len(shown) < len(runs):
        shown.append(f"{len(runs) - len(shown)} more")
    separator = "," if isinstance(runs[0], SequenceRun) else ", "
    return separator.join(shown)


def to_csv(result: AuditResult) -> str:
    """All rows, which any spreadsheet opens."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows(result, faults_only=True))
    return text.getvalue()


# -- as plain JSON --------------------------------------------------------------------------


def to_json(result: AuditResult) -> Row:
    """Everything that was found."""
    return {
        **_whole(result),
        "damage": result.damage,
        "producers": [
            _counts(producer)
            | {_STORED_NAMES[each]: getattr(producer, each) for each in PRODUCER_FINDINGS}
            for producer in result.producers
        ],
        "consumers": [
            {
                "consumer": consumer.consumer,
                "clean": consumer.clean,
                "reports": consumer.reports,
                "mismatches": consumer.mismatches,
                "unnamed_parts": consumer.unnamed_parts,
                "producers": [
                    _consumed_counts(audit)
                    | {
                        each: [part._asdict() for part in getattr(audit, each).parts]
                        for each in CONSUMER_FINDINGS
                    }
                    for audit in consumer.producers
                ],
            }
            for consumer in result.consumers
        ],
    }


def summary(result: AuditResult, most: int) -> Row:
    """The totals, and the first `most` faults, as an XCom holds them."""
    found = list(faults(result))
    totals = ("produced", "stored", "damaged", "unreported", "expired")
    return {
        **_whole(result),
        "producers": len(result.producers),
        **{f"{name}_records": result.total(f"{name}_records") for name in totals},
        "consumers": {
            each.consumer: {
                "clean": each.clean,
                "reports": each.reports,
                **{f"{name}_records": each.total(name).records for name in CONSUMER_COUNTS},
            }
            for each in result.consumers
        },
        "findings": [each.to_json() for each in found[:most]],
        "more_findings": max(0, len(found) - most),
        "damage": result.damage[:most],
    }


def _whole(result: AuditResult) -> Row:
    return {
        "topic": result.topic,
        "clean": result.clean,
        "verdict": result.verdict.value,
        "unjudged": unjudged(result),
        "lost_records": result.total("lost_records"),
        "open_reports": result.open_reports,
        "expired_reports": result.expired_reports,
    }


def _consumed(result: AuditResult) -> Iterator[tuple[ConsumerAudit, ConsumedAudit]]:
    return ((consumer, each) for consumer in result.consumers for each in consumer.producers)


def _counts(producer: ProducerAudit) -> Row:
    """Who it is, and how many Messages and LogMessages of each kind there are."""
    fields = msgspec.structs.asdict(producer)
    counts = {name: value for name, value in fields.items() if isinstance(value, int)}
    return producer.name._asdict() | counts


def _consumed_counts(audit: ConsumedAudit) -> Row:
    counts = {}
    for name in CONSUMER_COUNTS:
        count: MessageCount = getattr(audit, name)
        counts[f"{name}_messages"] = count.messages
        counts[f"{name}_records"] = count.records
    return audit.name._asdict() | counts
