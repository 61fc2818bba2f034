"""`memq lag`: how far consumer groups are from the end, once or again and again."""

from __future__ import annotations

import json
import shutil
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from memq.cli.command import Command, connect_admin, connection_options, option, output_option
from memq.cli.completion import GroupType, TopicType
from memq.cli.output import notice, show_json, table_text
from memq.core.ranges import OffsetRange
from memq.errors import MemqError, UnknownGroupError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memq import AdminClient
    from memq.cli.output import Row
    from memq.client.lag import GroupLag, GroupPartition, Lag

LAG_TITLES = {
    "lag": "LAG",
    "lag_records": "RECORDS",
    "lag_bytes": "SIZE",
    "lag_seconds": "BEHIND",
}
"""How tables call the columns of a lag, which is one of Batches unless they say otherwise."""

NAMED = 8  # read partitions that a line below a table names; JSON has all of them

_COLUMNS = ["group", "topic", "members", *LAG_TITLES]
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"


@click.command(
    cls=Command,
    epilog="""
memq lag
memq lag clicks --watch
memq lag --group reports -o json
""",
)
@click.argument("topic", type=TopicType(), required=False)
@option("--group", type=GroupType(), help="Only this group, in every topic that it reads.")
@option("--watch", is_flag=True, help="Show it again and again, until interrupted.")
@option(
    "--interval",
    "interval_s",
    type=click.FloatRange(0.1, 86_400),
    default=2.0,
    help="Seconds between two looks with --watch.",
)
@connection_options
@output_option
def lag(
    *,
    topic: str | None,
    group: str | None,
    watch: bool,
    interval_s: float,
    bootstrap: str,
    token: str,
    output: str,
) -> None:
    """Show how much groups have not read, of TOPIC or of all topics.

    LAG counts Batches that are published and not committed, RECORDS the LogMessages in them, SIZE
    their bytes; BEHIND is the age of the oldest of those LogMessages. `memq group describe` shows
    the read partitions of a group.
    """
    with connect_admin(bootstrap, token) as admin:
        if not watch:
            found = admin.lag(topic, group)
            if group is not None and not found:
                raise UnknownGroupError(f"no group {group!r}; see `memq group list`")
            if output == "json":
                show_json([lag_row(each) for each in found])
            else:
                click.echo(_table(found))
            return
        screen = sys.stdout.isatty() and output == "table"
        if screen:
            click.clear()
        while True:
            _show_round(admin, topic, group, output, screen=screen)
            time.sleep(interval_s)


def _show_round(
    admin: AdminClient, topic: str | None, group: str | None, output: str, *, screen: bool
) -> None:
    """One look. An outage is told and ends nothing: brokers that restart come back."""
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    try:
        found = admin.lag(topic, group)
    except MemqError as exc:
        if not exc.retriable:
            raise
        notice(f"memq: {now}: no answer, looking again: {exc}")
        return
    if output == "json":
        click.echo(json.dumps({"at": now, "groups": [lag_row(each) for each in found]}))
    elif screen:
        lines = [now, "", *_table(found).splitlines()]
        height = shutil.get_terminal_size().lines - 1  # what scrolled out could not be redrawn
        if len(lines) > height:
            lines = [*lines[: height - 1], "… more than fit here"]
        click.echo(
            _HOME + "".join(f"{line}{_CLEAR_LINE}\n" for line in lines) + _CLEAR_BELOW, nl=False
        )
    else:
        click.echo(f"{now}\n{_table(found)}\n")
    sys.stdout.flush()


def _table(found: Sequence[GroupLag]) -> str:
    if not found:
        return "no group has committed offsets or live members"
    rows = [lag_row(each) for each in found]
    return "\n".join([table_text(rows, _COLUMNS, LAG_TITLES), *notes(found)])


# -- what rows say --------------------------------------------------------------------------


def lag_fields(lag: Lag | None) -> Row:
    """A lag as part of a row; all None where it is not known."""
    batches, records, size_bytes, seconds = lag or (None, None, None, None)
    return {
        "lag": batches,
        "lag_records": records,
        "lag_bytes": size_bytes,
        "lag_seconds": None if seconds is None else round(seconds, 3),
    }


def total_fields(found: GroupLag) -> Row:
    """The lag over all read partitions as part of a row; all None where none of it is known."""
    known = any(each.lag is not None for each in found.partitions)
    return lag_fields(found.total if known else None)


def lag_row(found: GroupLag) -> Row:
    """A group and a topic, with all read partitions together."""
    return {
        "group": found.group,
        "topic": found.topic,
        "members": len(found.members),
        **total_fields(found),
        "removed": found.removed,
        "partitions": [partition_row(each) for each in found.partitions],
    }


def partition_row(each: GroupPartition) -> Row:
    """Where a group stands in a read partition."""
    return {
        "partition": each.partition,
        "current_offset": each.committed,
        "log_start_offset": each.start,
        "log_end_offset": each.end,
        **lag_fields(each.lag),
        "removed": each.removed,
        "error": each.error or None,
        "consumer_id": each.member.member_id if each.member else None,
        "client": each.member.client if each.member else None,
    }


def notes(found: Sequence[GroupLag]) -> list[str]:
    """What a table has no column for: Batches that retention took first, and damage."""
    lines = []
    for each in found:
        removed = [part for part in each.partitions if part.removed]
        if removed:
            named = [
                str(OffsetRange(part.partition, part.committed or 0, part.start))
                for part in removed[:NAMED]
            ]
            if len(removed) > NAMED:
                named.append(f"and {len(removed) - NAMED} more partitions")
            lines.append(
                f"{each.group}: retention removed Batches of {each.topic} that it had not read: "
                f"{'; '.join(named)}"
            )
        lines += [f"{each.group}: {part.error}" for part in each.partitions if part.error]
    return lines and ["", *lines]
