"""The result of an audit in words, as rows of a table, and as plain JSON.

The command line, Airflow and Spark show these, each with the columns of its own table. Names of
columns and JSON fields are stored, and stay; the texts are for people.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, Any

import msgspec

from memq.core.audit.reports import SequenceRun
from memq.core.audit.result import (
    CONSUMER_FINDINGS,
    JSON_NAMES,
    PRODUCER_FINDINGS,
    LocatedRun,
    MessageCount,
    Verdict,
    worst,
)
from memq.core.units import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memq.core.audit.result import (
        AuditResult,
        ConsumedAudit,
        ConsumerAudit,
        Finding,
        ProducerAudit,
        Runs,
    )

CONSUMER_COUNTS = ("stored", "consumed", *CONSUMER_FINDINGS, "behind", "again")
SHORT_ID = 8  # characters of a producer id that a table shows, where they tell it from the others
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


# -- in words -------------------------------------------------------------------------------


def unjudged(result: AuditResult) -> list[str]:
    """List what could not be judged, in plain sentences; none when all was."""
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
    """List the lines below the tables: what cannot be read, what differs, what should be known."""
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
    """Return the last line: "clean", or what is wrong."""
    if result.verdict is Verdict.CLEAN:
        return "clean"
    if result.verdict is Verdict.PARTLY:
        return "PARTLY JUDGED: what could be judged is clean; the lines above say what could not"
    unread = counted(len(result.damage), "object or report", "objects or reports")
    parts = [f"{unread} cannot be read"] if result.damage else []
    found = groupby(sorted(result.faults(), key=_place), _place)
    return "NOT CLEAN: " + "; ".join([*parts, *(_total(list(same)) for _, same in found)])


def _place(fault: Finding) -> tuple[str, int]:
    """Return where a finding comes in the last line."""
    return fault.consumer, [*PRODUCER_FINDINGS, *CONSUMER_FINDINGS].index(fault.kind)


def _total(faults: Sequence[Finding]) -> str:
    """Say how much there is of one kind: "30 LogMessages lost in 3 Messages"."""
    first = faults[0]
    whom = f" by {first.consumer}" if first.consumer else ""
    messages = counted(sum(each.messages for each in faults), "Message")
    if first.records is None:
        return f"{messages} {first.kind}{whom}"
    records = counted(sum(each.records or 0 for each in faults), "LogMessage")
    return f"{records} {first.kind}{whom} in {messages}"


def totals_in_words(result: AuditResult) -> list[str]:
    """Count the producers, and the clean ones, in words; also for each consumer."""
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
    """Count the producers in words, and what they come to: "2 producers: 1 clean, 1 not clean"."""
    by_id: dict[str, list[Verdict]] = {}
    for audit in audits:
        by_id.setdefault(audit.name.producer_id, []).append(audit.verdict)
    found = Counter(map(worst, by_id.values()))
    kinds = ", ".join(f"{found[verdict]} {verdict.value}" for verdict in Verdict if found[verdict])
    return f"{counted(len(by_id), 'producer')}: {kinds}"


def faults_in_words(result: AuditResult, most: int) -> list[str]:
    """Return a sentence for each fault; the last one counts what was left out."""
    lines = [str(fault) for fault in result.faults()]
    lines += [f"cannot be read: {damage}" for damage in result.damage]
    for consumer in result.consumers:
        lines += [f"consumer {consumer.consumer!r}: {text}" for text in consumer.mismatches]
    left = len(lines) - most
    return lines if left <= 0 else [*lines[:most], f"and {left} more, see the table"]


def late_in_words(result: AuditResult, consumers: Sequence[str]) -> list[str]:
    """Return a sentence for each consumer that has not reached the end of the window."""
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
    """Shorten producer ids for a table: as little as tells all of them apart."""
    ids = {audit.name.producer_id for _, audit in result.audits()}
    length = SHORT_ID
    while len({each[:length] for each in ids}) < len(ids):
        length += 1
    # What is cut off is more than the mark for it.
    return {each: f"{each[:length]}…" if len(each) > length + 1 else each for each in sorted(ids)}


def rows(result: AuditResult, most: int | None = None) -> list[Row]:
    """Make a row for each producer in a write partition, then one for each consumer of it.

    Each has counts, a verdict and what was found, as "lost 1-2,4; expired 7"; those of producers
    have no consumer.

    Args:
        result: of the audit.
        most: so many runs of each finding are named; None for all.
    """
    return [
        {"consumer": consumer or None}
        | _counts(audit)
        | {
            "clean": audit.clean,
            "verdict": audit.verdict.value,
            "findings": "; ".join(
                f"{each.kind} {runs_in_words(each.runs, most)}" for each in audit.findings()
            ),
        }
        for consumer, audit in result.audits()
    ]


def runs_in_words(runs: Runs, most: int | None) -> str:
    """Runs as "1-2,4", or with their offsets as "1-2 in 0:7-9, 4 in 0:10-11"."""
    shown = list(map(str, runs[:most]))
    if len(shown) < len(runs):
        shown.append(f"{len(runs) - len(shown)} more")
    return ("," if isinstance(runs[0], SequenceRun) else ", ").join(shown)


def to_csv(result: AuditResult) -> str:
    """Format all rows as CSV for any spreadsheet."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows(result))
    return text.getvalue()


# -- as plain JSON --------------------------------------------------------------------------


def to_json(result: AuditResult) -> Row:
    """Everything that was found."""
    return {
        **_whole(result),
        "damage": result.damage,
        "producers": [_counts(each) | _named(each) for each in result.producers],
        "consumers": [
            {
                **_reported(consumer),
                "consumer": consumer.consumer,
                "mismatches": consumer.mismatches,
                "unnamed_parts": consumer.unnamed_parts,
                "producers": [_counts(each) | _named(each) for each in consumer.producers],
            }
            for consumer in result.consumers
        ],
    }


def summary(result: AuditResult, most: int) -> Row:
    """Return the totals, and the first `most` faults, as an XCom holds them."""
    found = list(result.faults())
    totals = ("produced", "stored", "damaged", "unreported", "expired")
    return {
        **_whole(result),
        "producers": len(result.producers),
        **{f"{name}_records": result.total(f"{name}_records") for name in totals},
        "consumers": {
            each.consumer: _reported(each)
            | {f"{name}_records": each.total(name).records for name in CONSUMER_COUNTS}
            for each in result.consumers
        },
        "findings": [
            {
                "finding": JSON_NAMES.get(each.kind, each.kind),
                "consumer": each.consumer or None,
                **each.name._asdict(),
                "sequences": [list(run) for run in each.sequences],
                "records": each.records,
            }
            for each in found[:most]
        ],
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


def _reported(consumer: ConsumerAudit) -> Row:
    return {"clean": consumer.clean, "reports": consumer.reports}


def _counts(audit: ProducerAudit | ConsumedAudit) -> Row:
    """Return the producer's row: how many Messages and LogMessages there are of each kind."""
    row: Row = audit.name._asdict()
    for name, value in msgspec.structs.asdict(audit).items():
        if isinstance(value, int):
            row[name] = value
        elif isinstance(value, MessageCount):
            row |= {f"{name}_messages": value.messages, f"{name}_records": value.records}
    return row


def _named(audit: ProducerAudit | ConsumedAudit) -> Row:
    """Return the sequences of each finding."""
    return {JSON_NAMES.get(kind, kind): _plain(audit.found(kind)[-1]) for kind in audit.kinds}


def _plain(runs: Runs) -> list[Any]:
    return [each._asdict() if isinstance(each, LocatedRun) else each for each in runs]
