"""`memq audit`: is everything stored that producers sent, and consumed what is stored?"""

from __future__ import annotations

import sys
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from memq.cli.command import (
    Command,
    GroupType,
    RowType,
    TimeType,
    TopicType,
    check_reachable,
    connection_options,
    option,
    output_option,
    storage_options_option,
)
from memq.cli.output import show_one, table_text
from memq.core.audit import render
from memq.core.options import Option
from memq.core.units import DAY_MS
from memq.reading.start import time_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from memq.cli.output import Row
    from memq.client.audit.audit import Progress
    from memq.core.audit.result import AuditResult

MAX_RUNS_SHOWN = 5  # of each finding in a cell of the table; JSON has all
PRODUCER = ("producer_id", "epoch", "write_partition")
COUNTS = [f"{name}_records" for name in ("produced", "stored", "lost", "damaged", "unreported")]
CONSUMER_COUNTS = [f"{name}_records" for name in render.CONSUMER_COUNTS]
TITLES = {"producer_id": "PRODUCER", "findings": "SEQUENCES"}
GRACE = Option(
    "duration",
    "1m",
    0,
    30 * DAY_MS,  # reports are kept no longer
    name="grace",
    doc="What a consumer left out is judged only when it reported something after it so long ago. "
    "As long as a job takes, where jobs run side by side.",
)


def audit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of what is judged, and how much is shown: the arguments `start_ms`, `end_ms`,
    `deep`, `consumers`, `grace_ms` and `every`.
    """

    @option("--from", "start", type=TimeType(), help="Reports since this time: ISO 8601, or 2h.")
    @option("--to", "end", type=TimeType(), help="Reports before this time.")
    @option("--deep", is_flag=True, help="Read every byte of the Batches, not only their indexes.")
    @option(
        "--consumer",
        "consumers",
        type=GroupType(),
        multiple=True,
        metavar="NAME",
        show_default=False,
        help="Judge this group or job; may be given again. [default: all that reported]",
    )
    @option("--grace", type=RowType(GRACE), default=GRACE.default_text, help=GRACE.doc)
    @option("--all", "every", is_flag=True, help="Show every producer and consumer, also if clean.")
    @wraps(command)
    def with_units(start: datetime | None, end: datetime | None, grace: str, **others: Any) -> Any:
        return command(
            start_ms=None if start is None else time_ms(start),
            end_ms=None if end is None else time_ms(end),
            grace_ms=GRACE.parse(grace),
            **others,
        )

    return with_units


@click.command(
    cls=Command,
    epilog="""
memq audit clicks --from 2h
memq audit clicks --from 2025-06-30T12:00:00Z --to 2025-06-30T13:00:00Z --deep
memq audit clicks --from 1d --consumer dashboards --consumer range_to_parquet
memq audit clicks --from 1d --all
memq audit clicks --from 1d -o json | jq '.producers[].lost'
""",
)
@click.argument("topic", type=TopicType())
@audit_options
@storage_options_option
@connection_options
@output_option
def audit(*, topic: str, every: bool, bootstrap: str, output: str, **asked: Any) -> None:
    """Name what of TOPIC was lost, and what was not consumed.

    Compares what producers reported with what is stored, and that with what consumers reported.
    Each line of the table is a problem; with --all, there is one for each producer in a write
    partition, then one for each consumer and such a producer. Numbers are LogMessages; SEQUENCES
    names Messages, and those of a consumer with their offsets, as P:START-END. Producer ids are
    shortened; -o json has them in full. The last line is "clean", or what is wrong; then the exit
    code is 1. Where nothing is wrong but not all could be judged, it says so, and the exit code is
    3.
    """
    import asyncio  # noqa: PLC0415 - slow to load

    from memq.client.audit.audit import audit_topic  # noqa: PLC0415 - loads Arrow

    check_reachable(bootstrap)
    with click.progressbar(
        length=0, label="Batches", file=sys.stderr, hidden=not sys.stderr.isatty()
    ) as bar:
        result = asyncio.run(
            audit_topic(
                bootstrap,
                topic,
                progress=_progress(bar),
                **asked,
            )
        )
    if output == "json":
        show_one(render.to_json(result), output)
    else:
        show_table(result, every=every)
    click.get_current_context().exit(exit_code(result))


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


def show_table(result: AuditResult, *, every: bool) -> None:
    """Print the findings for people: what is wrong, or with `every` each producer and consumer."""
    short = render.short_ids(result)
    if every:
        rows = render.rows(result, MAX_RUNS_SHOWN)
        _show([each for each in rows if not each["consumer"]], [*PRODUCER, *COUNTS], short)
        of_consumers = [each for each in rows if each["consumer"]]
        _show(of_consumers, ["consumer", *PRODUCER, *CONSUMER_COUNTS], short)
    else:
        problems = [
            {
                "problem": each.kind,
                "consumer": each.consumer or None,
                **each.name._asdict(),
                "logmessages": each.records,
                "findings": render.runs_in_words(each.runs, MAX_RUNS_SHOWN),
            }
            for each in result.faults()
        ]
        _show(problems, ["problem", "consumer", *PRODUCER, "logmessages"], short)
    lines = [*render.notes(result), *render.totals_in_words(result), render.conclusion(result)]
    for line in lines:
        click.echo(line)


def _show(rows: Sequence[Row], columns: Sequence[str], short: Mapping[str, str]) -> None:
    """Print a table, if it has rows, with shortened producer ids; what it counts is LogMessages."""
    if rows:
        shown = [each | {"producer_id": short[each["producer_id"]]} for each in rows]
        titles = {name: name.removesuffix("_records").upper() for name in COUNTS + CONSUMER_COUNTS}
        click.echo(table_text(shown, [*columns, "findings"], TITLES | titles))
        click.echo()
