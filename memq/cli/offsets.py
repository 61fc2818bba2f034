"""`memq offsets`: what a topic has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from memq.cli.command import (
    Command,
    TimeType,
    connect_admin,
    connection_options,
    option,
    output_option,
)
from memq.cli.completion import TopicType
from memq.cli.output import show_rows
from memq.core.units import iso_ms

if TYPE_CHECKING:
    from datetime import datetime


@click.command(
    cls=Command,
    epilog="""
memq offsets clicks
memq offsets clicks --at 2025-06-30T12:00:00Z -o json
""",
)
@click.argument("topic", type=TopicType())
@option(
    "--at", type=TimeType(), help="Also show the first offset published since: ISO 8601, or 2h."
)
@connection_options
@output_option
def offsets(*, topic: str, at: datetime | None, bootstrap: str, token: str, output: str) -> None:
    """Show which offsets of TOPIC are retained, and its watermark.

    START is the first Batch retained, END is one past the last. Every LogMessage that was acked
    before the WATERMARK is in a Batch before END.
    """
    with connect_admin(bootstrap, token) as admin:
        # First the watermark: what it covers is then sure to lie before the ends.
        marks = admin.watermark(topic).read_partitions
        retained = admin.offsets(topic, at)
    rows = [
        {
            "topic": topic,
            "partition": each.partition,
            "start": each.start,
            "end": each.end,
            "watermark": iso_ms(marks[each.partition]),
        }
        | ({} if at is None else {"at": each.at})
        for each in retained
    ]
    columns = ["topic", "partition", "start", "end", "watermark"]
    show_rows(rows, columns if at is None else [*columns, "at"], output)
