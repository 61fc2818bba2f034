"""`memq audit`: is everything stored that producers sent, and consumed what is stored?"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import click

from memq.cli import consumed
from memq.cli.command import Command, RowType, TimeType, connection_options, option, output_option
from memq.cli.output import show_one, show_rows
from memq.core.audit.result import unjudged
from memq.core.options import Option
from memq.core.units import DAY_MS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from memq.cli.output import Row
    from memq.client.audit.audit import Progress
    from memq.core.audit.reports import ProducerAudit, Run
    from memq.core.audit.result import AuditResult

MAX_RUNS_SHOWN = 5  # of each finding in a cell of the table; JSON has all
FINDINGS = ("lost", "damaged", "doubled", "changed", "expired", "recovered")
COLUMNS = (
    "producer",
    "epoch",
    "write_partition",
    "produced",
    "stored",
    "lost",
    "damaged",
    "unreported",
    "sequences",
)
GRACE = Option(
    "duration",
    "1m",
    0,
    30 * DAY_MS,  # reports are kept no longer
    name="grace",
    doc="What a consumer left out is judged only when it reported something behind it so long ago. "
    "As long as a job takes, where jobs run side by side.",
)


@click.command(
    cls=Command,
    epilog="""
memq audit clicks --from 2h
memq audit clicks --from 2025-06-30T12:00:00Z --to 2025-06-30T13:00:00Z --deep
memq audit clicks --from 1d --consumer dashboards --consumer range_to_parquet
memq audit clicks --from 1d -o json | jq '.producers[].lost'
""",
)
@click.argument("topic")
@option("--from", "start", type=TimeType(), help="Reports since this time: ISO 8601, or 2h.")
@option("--to", "end", type=TimeType(), help="Reports before this time.")
@option("--deep", is_flag=True, help="Read every byte of the Batches, not only their indexes.")
@option(
    "--consumer",
    "consumers",
    multiple=True,
    metavar="NAME",
    show_default=False,
    help="Judge this group or job; may be given again. [default: all that reported]",
)
@option("--grace", type=RowType(GRACE), default=GRACE.default_text, help=GRACE.doc)
@connection_options
@output_option
@click.pass_context
def audit(
    ctx: click.Context,
    *,
    topic: str,
    start: datetime | None,
    end: datetime | None,
    deep: bool,
    consumers: tuple[str, ...],
    grace: str,
    bootstrap: str,
    token: str,
    output: str,
) -> None:
    """Compare what the producers of TOPIC reported with what is stored and what was consumed.

    Each line of the first table is a producer in a write partition, each of the second a consumer
    and such a producer. Numbers are LogMessages; SEQUENCES names Messages, and those of a consumer
    with their offsets, as P:START-END. The last line is "clean", or what is wrong; then the exit
    code is 1. Where nothing is wrong but not all could be judged, it says so, and the exit code is
    3.
    """
    from memq.client.audit.audit import audit_topic  # noqa: PLC0415 - loads Arrow
    from memq.client.start import time_ms  # noqa: PLC0415

    with click.progressbar(
        length=0, label="Batches", file=sys.stderr, hidden=not sys.stderr.isatty()
    ) as bar:
        result = asyncio.run(
            audit_topic(
                bootstrap,
                topic,
                start_ms=None if start is None else time_ms(start),
                end_ms=None if end is None else time_ms(end),
                deep=deep,
                consumers=consumers,
                grace_ms=GRACE.parse(grace),
                token=token,
                progress=_progress(bar),
            )
        )
    if output == "json":
        show_one(_json(result), output)
    else:
        show_table(result)
    ctx.exit(exit_code(result))


def exit_code(result: AuditResult) -> int:
    """0 when all is clean, 1 when something is wrong, 3 when not all could be judged.

    2 is that of a wrong command line.
    """
    return {"clean": 0, "not clean": 1, "partly judged": 3}[result.verdict]


def _progress(bar: Any) -> Progress:
    def show(done: int, total: int) -> None:
        bar.length = total
        bar.update(done - bar.pos)

    return show


# -- for people -----------------------------------------------------------------------------


def show_table(result: AuditResult) -> None:
    """Print the findings for people."""
    if result.producers:
        show_rows([_row(producer) for producer in result.producers], COLUMNS, "table")
        click.echo()
    if rows := consumed.consumer_rows(result.consumers):
        show_rows(rows, consumed.COLUMNS, "table")
        click.echo()
    for line in result.damage:
        click.echo(f"cannot be read: {line}")
    for line in [*_notes(result), *consumed.consumer_notes(result.consumers), *unjudged(result)]:
        click.echo(line)
    click.echo(_last_line(result))


def _row(producer: ProducerAudit) -> Row:
    return {
        "producer": producer.name.producer_id,
        "epoch": producer.name.epoch,
        "write_partition": producer.name.write_partition,
        "produced": producer.produced_records,
        "stored": producer.stored_records,
        "lost": producer.lost_records,
        "damaged": producer.damaged_records,
        "unreported": producer.unreported_records,
        "sequences": "; ".join(
            f"{finding} {_shown(found)}"
            for finding in FINDINGS
            if (found := getattr(producer, finding))
        ),
    }


def _shown(runs: Sequence[Run]) -> str:
    parts = [
        str(run.first) if run.first == run.last else f"{run.first}-{run.last}"
        for run in runs[:MAX_RUNS_SHOWN]
    ]
    more = [f"{len(runs) - MAX_RUNS_SHOWN} more"] if len(runs) > MAX_RUNS_SHOWN else []
    return ",".join([*parts, *more])


def _notes(result: AuditResult) -> list[str]:
    """What is no fault, but should be known."""
    if any(producer.produced_messages for producer in result.producers):
        return []
    return ["No report in this window could be judged."]


def _last_line(result: AuditResult) -> str:
    if result.verdict == "clean":
        return "clean"
    if result.verdict == "partly judged":
        return "PARTLY JUDGED: what could be judged is clean; the lines above say what could not"
    parts = [f"{len(result.damage)} objects or reports cannot be read"] if result.damage else []
    for finding in ("lost", "damaged"):
        messages = _messages(result, finding)
        if messages:
            records = sum(getattr(each, f"{finding}_records") for each in result.producers)
            parts.append(f"{records} LogMessages {finding} in {messages} Messages")
    for finding in ("doubled", "changed"):
        messages = _messages(result, finding)
        if messages:
            parts.append(f"{messages} Messages {finding}")
    parts += consumed.consumer_faults(result.consumers)
    return "NOT CLEAN: " + "; ".join(parts)


def _messages(result: AuditResult, finding: str) -> int:
    return sum(run.messages for producer in result.producers for run in getattr(producer, finding))


# -- for programs ---------------------------------------------------------------------------


def _json(result: AuditResult) -> Row:
    return {
        "topic": result.topic,
        "clean": result.clean,
        "verdict": result.verdict,
        "unjudged": unjudged(result),
        "lost_records": result.lost_records,
        "open_reports": result.open_reports,
        "expired_reports": result.expired_reports,
        "damage": result.damage,
        "producers": [_producer_json(producer) for producer in result.producers],
        "consumers": consumed.consumers_json(result.consumers),
    }


def _producer_json(producer: ProducerAudit) -> Row:
    return {
        **producer.name._asdict(),
        "produced_messages": producer.produced_messages,
        "produced_records": producer.produced_records,
        "stored_messages": producer.stored_messages,
        "stored_records": producer.stored_records,
        "lost_records": producer.lost_records,
        "damaged_records": producer.damaged_records,
        "expired_records": producer.expired_records,
        "unreported_messages": producer.unreported_messages,
        "unreported_records": producer.unreported_records,
        **{finding: getattr(producer, finding) for finding in FINDINGS},
    }
