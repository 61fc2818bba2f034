"""`memq group` and `memq lag`: consumer groups, how far they have read, and where they go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from memq.cli.command import (
    Command,
    Group,
    GroupType,
    TimeType,
    TopicType,
    admin_options,
    confirm,
    option,
    yes_option,
)
from memq.cli.output import notice, show_json, show_rows, some_of, table_text
from memq.core.ranges import OffsetRange
from memq.core.units import counted
from memq.errors import CorruptDataError, UnknownGroupError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from memq import AdminClient
    from memq.cli.output import Row
    from memq.client.lag import GroupLag, GroupPartition, Lag
    from memq.client.resets import Target

SHORT_ID = 8  # hex digits of a member's random name that a table shows; JSON has all of them

LAG_TITLES = {
    "lag": "LAG",
    "lag_records": "RECORDS",
    "lag_bytes": "SIZE",
    "lag_seconds": "BEHIND",
}
"""How tables call the columns of a lag, which is one of Batches unless they say otherwise."""

_LAG_COLUMNS = ["group", "topic", "members", *LAG_TITLES]
_TITLES = {"current_offset": "OFFSET", "log_end_offset": "END"} | LAG_TITLES
_COLUMNS = ["partition", *_TITLES, "member", "client"]

topic_argument = click.argument("topic", type=TopicType(), required=False)


@click.group(cls=Group)
def group() -> None:
    """Show consumer groups and where they are, move or delete them."""


@group.command("list", epilog="memq group list\nmemq group list clicks")
@topic_argument
@admin_options
def list_(*, topic: str | None, admin: AdminClient, output: str) -> None:
    """List groups that have stored offsets or live members."""
    found = admin.groups(topic)
    rows: list[Row] = [
        {"group": each.group, "topic": each.topic, "members": len(each.members)} for each in found
    ]
    show_rows(rows, ["group", "topic", "members"], output)


@group.command(epilog="memq group describe reports\nmemq group describe reports clicks")
@click.argument("name", metavar="GROUP", type=GroupType())
@topic_argument
@admin_options
def describe(*, name: str, topic: str | None, admin: AdminClient, output: str) -> None:
    """Show how far GROUP has read, partition by partition.

    Without TOPIC, all its topics are shown.

    LAG counts Batches that are published and not committed by the group, RECORDS the LogMessages in
    them, SIZE their bytes; BEHIND is the age of the oldest of those LogMessages. What retention has
    removed is not counted, for nobody can read it any more; a line below the table names it.
    """
    found = admin.lag(topic, name)
    if not found:
        raise UnknownGroupError(f"no group {name[:250]!r}; see `memq group list`")
    if output == "json":
        show_rows([row for each in found for row in _described(each)], [], output)
    else:
        click.echo("\n\n".join(_describe(each) for each in found))


def _described(found: GroupLag) -> list[Row]:
    about = {"group": found.group, "topic": found.topic}
    return [about | partition_row(each) for each in found.partitions]


def _describe(found: GroupLag) -> str:
    """Describe a group in a topic: who reads, a row for each read partition, and the total."""
    rows = [partition_row(each) for each in found.partitions]
    for row in rows:
        row["member"] = row["consumer_id"] and row["consumer_id"][:SHORT_ID]
    total = total_fields(found) | dict.fromkeys(rows[0].keys() - lag_fields(None).keys())
    if len(rows) > 1:
        rows.append(total | {"partition": "total"})
    members = counted(len(found.members), "member")
    heading = f"{found.group} reads {found.topic} with {members}"
    return "\n".join([heading, table_text(rows, _COLUMNS, _TITLES), *notes([found])])


@group.command(
    "reset-offsets",
    epilog="""
memq group reset-offsets reports clicks --to-earliest
memq group reset-offsets reports clicks --to-datetime 2025-06-30T12:00:00Z --execute
memq group reset-offsets reports clicks --shift-by -10 --partition 0 --execute
""",
)
@click.argument("name", metavar="GROUP", type=GroupType())
@click.argument("topic", type=TopicType())
@option("--to-earliest", is_flag=True, help="Go to the first Batch retained.")
@option("--to-latest", is_flag=True, help="Go past the last Batch.")
@option("--to-offset", type=int, help="Go to an offset, or the nearest that is retained.")
@option("--to-datetime", type=TimeType(), help="Go to what was published since: ISO 8601, or 2h.")
@option("--shift-by", type=int, help="Go forward by so many Batches; back, when negative.")
@option(
    "--partition", "partitions", type=int, multiple=True, help="Only these; may be given again."
)
@option("--execute", is_flag=True, help="Do it; without this flag the result is only shown.")
@admin_options
def reset_offsets(
    *,
    name: str,
    topic: str,
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_datetime: datetime | None,
    shift_by: int | None,
    partitions: tuple[int, ...],
    execute: bool,
    admin: AdminClient,
    output: str,
) -> None:
    """Let GROUP go on elsewhere in TOPIC.

    The group must have no live members. Without --execute nothing is changed: the result shows what
    would be.
    """
    targets: dict[Target, bool] = {
        ("earliest", 0): to_earliest,
        ("latest", 0): to_latest,
        ("offset", to_offset or 0): to_offset is not None,
        ("datetime", 0): to_datetime is not None,
        ("shift", shift_by or 0): shift_by is not None,
    }
    asked = [target for target, is_asked in targets.items() if is_asked]
    if len(asked) != 1:
        raise click.UsageError(
            "give one of --to-earliest, --to-latest, --to-offset, --to-datetime and --shift-by"
        )
    planned = admin.plan_reset(name, topic, asked[0], partitions, at=to_datetime)
    rows: list[Row] = [{"group": name, "topic": topic, **each._asdict()} for each in planned]
    if execute:
        admin.reset_offsets(name, topic, {each.partition: each.new_offset for each in planned})
    show_rows(rows, list(rows[0]), output)
    if not execute:
        notice("nothing was changed; add --execute to do it")


@group.command(
    epilog="""
memq group delete reports clicks
memq group delete reports clicks --yes -o json
""",
)
@click.argument("name", metavar="GROUP", type=GroupType())
@click.argument("topic", type=TopicType())
@yes_option
@admin_options
def delete(*, name: str, topic: str, yes: bool, admin: AdminClient, output: str) -> None:
    """Forget how far GROUP has read TOPIC.

    The group must have no live members. Asks first at a terminal; without one it needs --yes.
    Prints the offsets that were deleted.
    """
    offsets: dict[int, int] | None
    try:
        offsets = admin.committed(name, topic)
    except CorruptDataError as exc:
        notice(f"memq: {exc}")
        offsets = None
    # A group that has none either is not there or has live members: the broker says which.
    if offsets is None or offsets:
        places = "damaged" if offsets is None else f"in {counted(len(offsets), 'partition')}"
        confirm(f"Delete group {name} of topic {topic} with its offsets, {places}?", yes=yes)
    admin.delete_group(name, topic)
    rows: list[Row] = [
        {"group": name, "topic": topic, "partition": partition, "deleted_offset": offset}
        for partition, offset in sorted((offsets or {}).items())
    ]
    show_rows(rows, ["group", "topic", "partition", "deleted_offset"], output)


# -- lag ------------------------------------------------------------------------------------


@click.command(
    cls=Command,
    epilog="""
memq lag
memq lag --group reports -o json
watch memq lag clicks
""",
)
@click.argument("topic", type=TopicType(), required=False)
@option("--group", type=GroupType(), help="Only this group, in every topic that it reads.")
@admin_options
def lag(*, topic: str | None, group: str | None, admin: AdminClient, output: str) -> None:
    """Show how much groups have not read, of TOPIC or of all topics.

    LAG counts Batches that are published and not committed, RECORDS the LogMessages in them, SIZE
    their bytes; BEHIND is the age of the oldest of those LogMessages. `memq group describe` shows
    the read partitions of a group.
    """
    found = admin.lag(topic, group)
    if group is not None and not found:
        raise UnknownGroupError(f"no group {group!r}; see `memq group list`")
    if output == "json":
        show_json([lag_row(each) for each in found])
    else:
        click.echo(_lag_table(found))


def _lag_table(found: Sequence[GroupLag]) -> str:
    if not found:
        return "no group has committed offsets or live members"
    rows = [lag_row(each) for each in found]
    return "\n".join([table_text(rows, _LAG_COLUMNS, LAG_TITLES), *notes(found)])


# -- what rows say --------------------------------------------------------------------------


def lag_fields(lag: Lag | None) -> Row:
    """Return a lag as part of a row; all None where it is not known."""
    batches, records, size_bytes, seconds = lag or (None, None, None, None)
    return {
        "lag": batches,
        "lag_records": records,
        "lag_bytes": size_bytes,
        "lag_seconds": None if seconds is None else round(seconds, 3),
    }


def total_fields(found: GroupLag) -> Row:
    """Return the lag over all read partitions as part of a row; None where it is not known."""
    known = any(each.lag is not None for each in found.partitions)
    return lag_fields(found.total if known else None)


def lag_row(found: GroupLag) -> Row:
    """Make the row of a group and a topic, with all read partitions together."""
    return {
        "group": found.group,
        "topic": found.topic,
        "members": len(found.members),
        **total_fields(found),
        "removed": found.removed,
        "partitions": [partition_row(each) for each in found.partitions],
    }


def partition_row(each: GroupPartition) -> Row:
    """Make the row of where a group stands in a read partition."""
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
    """List what a table has no column for: Batches that retention took first, and damage."""
    lines = []
    for each in found:
        removed = [part for part in each.partitions if part.removed]
        if removed:
            spans = [OffsetRange(one.partition, one.committed or 0, one.start) for one in removed]
            lines.append(
                f"{each.group}: retention removed Batches of {each.topic} that it had not read: "
                f"{some_of(spans)}"
            )
        lines += [f"{each.group}: {part.error}" for part in each.partitions if part.error]
    return lines and ["", *lines]
