"""`memq group`: consumer groups, how far they have read, and where they go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import click

from memq.cli.command import (
    Group,
    TimeType,
    confirm,
    connect_admin,
    connection_options,
    option,
    output_option,
    yes_option,
)
from memq.cli.completion import GroupType, TopicType
from memq.cli.lag import LAG_TITLES, lag_fields, notes, partition_row, total_fields
from memq.cli.output import notice, show_rows, table_text
from memq.core.units import counted
from memq.errors import CorruptDataError, InvalidRequestError, UnknownGroupError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from memq.cli.output import Row
    from memq.client.lag import GroupLag
    from memq.core.wire.messages import PartitionOffsets

How = Literal["earliest", "latest", "offset", "datetime", "shift"]

SHORT_ID = 8  # hex digits of a member's random name that a table shows; JSON has all of them

_TITLES = {"current_offset": "OFFSET", "log_end_offset": "END"} | LAG_TITLES
_COLUMNS = ["partition", *_TITLES, "member", "client"]

topic_argument = click.argument("topic", type=TopicType(), required=False)


@click.group(cls=Group)
def group() -> None:
    """Show consumer groups and where they are, move or delete them."""


@group.command("list", epilog="memq group list\nmemq group list clicks")
@topic_argument
@connection_options
@output_option
def list_(*, topic: str | None, bootstrap: str, token: str, output: str) -> None:
    """List groups that have stored offsets or live members."""
    with connect_admin(bootstrap, token) as admin:
        found = admin.groups(topic)
    rows: list[Row] = [
        {"group": each.group, "topic": each.topic, "members": len(each.members)} for each in found
    ]
    show_rows(rows, ["group", "topic", "members"], output)


@group.command(epilog="memq group describe reports\nmemq group describe reports clicks")
@click.argument("name", metavar="GROUP", type=GroupType())
@topic_argument
@connection_options
@output_option
def describe(*, name: str, topic: str | None, bootstrap: str, token: str, output: str) -> None:
    """Show how far GROUP has read, partition by partition.

    Without TOPIC, all its topics are shown.

    LAG counts Batches that are published and not committed by the group, RECORDS the LogMessages in
    them, SIZE their bytes; BEHIND is the age of the oldest of those LogMessages. What retention has
    removed is not counted, for nobody can read it any more; a line below the table names it.
    """
    with connect_admin(bootstrap, token) as admin:
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
    """A group in a topic: who reads, a row for each read partition, and all of it together."""
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
@connection_options
@output_option
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
    bootstrap: str,
    token: str,
    output: str,
) -> None:
    """Let GROUP go on elsewhere in TOPIC.

    The group must have no live members. Without --execute nothing is changed: the result shows what
    would be.
    """
    target = _target(to_earliest, to_latest, to_offset, to_datetime, shift_by)
    with connect_admin(bootstrap, token) as admin:
        retained = admin.offsets(topic, to_datetime)
        unknown = set(partitions) - {each.partition for each in retained}
        if unknown:
            raise InvalidRequestError(
                f"topic {topic!r} has no partition {min(unknown)}; it has 0 to {len(retained) - 1}"
            )
        wanted = [each for each in retained if not partitions or each.partition in partitions]
        moves = plan_moves(target, wanted, admin.committed(name, topic))
        if execute:
            admin.reset_offsets(name, topic, {move.partition: move.new for move in moves})
    rows: list[Row] = [
        {
            "group": name,
            "topic": topic,
            "partition": move.partition,
            "current_offset": move.current,
            "new_offset": move.new,
            "log_end_offset": move.end,
        }
        for move in moves
    ]
    show_rows(rows, list(rows[0]), output)
    if not execute:
        notice("nothing was changed; add --execute to do it")


def _target(
    earliest: bool,
    latest: bool,
    offset: int | None,
    moment: datetime | None,
    shift: int | None,
) -> Target:
    """The one rule that was asked for."""
    asked = [
        *([Target("earliest")] if earliest else []),
        *([Target("latest")] if latest else []),
        *([] if offset is None else [Target("offset", offset)]),
        *([] if moment is None else [Target("datetime")]),
        *([] if shift is None else [Target("shift", shift)]),
    ]
    if len(asked) != 1:
        raise click.UsageError(
            "give one of --to-earliest, --to-latest, --to-offset, --to-datetime and --shift-by"
        )
    return asked[0]


@group.command(
    epilog="""
memq group delete reports clicks
memq group delete reports clicks --yes -o json
""",
)
@click.argument("name", metavar="GROUP", type=GroupType())
@click.argument("topic", type=TopicType())
@yes_option
@connection_options
@output_option
def delete(*, name: str, topic: str, yes: bool, bootstrap: str, token: str, output: str) -> None:
    """Forget how far GROUP has read TOPIC.

    The group must have no live members. Asks first at a terminal; without one it needs --yes.
    Prints the offsets that were deleted.
    """
    with connect_admin(bootstrap, token) as admin:
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


# -- the plan of a reset --------------------------------------------------------------------


class Target(NamedTuple):
    """Where to go.

    Attributes:
        how: the rule.
        number: the offset, or by how much to shift; it has no meaning for the other rules.
    """

    how: How
    number: int = 0


class Move(NamedTuple):
    """What becomes of one partition.

    Attributes:
        partition: the read partition.
        current: stored offset of the group; None when it has none.
        new: offset to store.
        end: one past the last notification.
    """

    partition: int
    current: int | None
    new: int
    end: int


def plan_moves(
    target: Target, offsets: Iterable[PartitionOffsets], committed: Mapping[int, int]
) -> list[Move]:
    """One move per partition; an offset that is not retained becomes the nearest one that is.

    Args:
        target: where to go.
        offsets: of the topic's partitions that move; with `at` for the rule "datetime".
        committed: stored offsets of the group by partition.

    Raises:
        InvalidRequestError: a partition without a stored offset is to be shifted.
    """
    return [_move(target, partition, committed.get(partition.partition)) for partition in offsets]


def _move(target: Target, offsets: PartitionOffsets, current: int | None) -> Move:
    wanted = _wanted(target, offsets, current)
    new = max(offsets.start, min(wanted, offsets.end))
    return Move(offsets.partition, current, new, offsets.end)


def _wanted(target: Target, offsets: PartitionOffsets, current: int | None) -> int:
    match target.how:
        case "earliest":
            return offsets.start
        case "latest":
            return offsets.end
        case "offset":
            return target.number
        case "datetime":
            assert offsets.at is not None  # noqa: S101 - asked for with the time
            return offsets.at
        case "shift":
            if current is None:
                raise InvalidRequestError(
                    f"partition {offsets.partition} has no stored offset to shift; "
                    "use --to-offset, --to-earliest or --to-latest"
                )
            return current + target.number
