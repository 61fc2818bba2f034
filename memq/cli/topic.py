"""`memq topic` and `memq offsets`: make, show, change and delete topics."""

from __future__ import annotations

import contextlib
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click
import msgspec

from memq.cli.command import (
    Command,
    Group,
    TimeType,
    TopicType,
    admin_options,
    confirm,
    option,
    table_options,
    yes_option,
)
from memq.cli.output import notice, show_one, show_rows
from memq.core.topic import TOPIC_OPTIONS
from memq.core.units import counted, iso_ms, parse_time
from memq.errors import CorruptDataError, InvalidRequestError, UnknownTopicError

if TYPE_CHECKING:
    from memq import AdminClient
    from memq.cli.output import Row
    from memq.core.wire.messages import TopicInfo

schema_option = option(
    "--schema",
    metavar="TEXT|FILE",
    help="Columns of a typed topic: a text such as id:int64,name:string? where ? allows nulls, or "
    "a Parquet, Arrow IPC or JSON file, as `memq topic describe -o json` prints it.",
)


@click.group(cls=Group)
def topic() -> None:
    """Make, show, change and delete topics."""


@topic.command(
    epilog="""
memq topic create clicks
memq topic create clicks --read-partitions 4 --write-partitions 2 --batch-age 1s
memq topic create rides --schema 'id:int64,at:timestamp[us, tz=UTC],city:string?'
memq topic create more --schema rides.parquet
""",
)
@click.argument("name")
@table_options(TOPIC_OPTIONS)
@schema_option
@admin_options
def create(
    *, name: str, given: dict[str, str], schema: str | None, admin: AdminClient, output: str
) -> None:
    """Make the topic NAME."""
    _show(admin.create_topic(name, schema=_schema(schema), **given), output)


@topic.command("list", epilog="memq topic list -o json")
@admin_options
def list_(*, admin: AdminClient, output: str) -> None:
    """List all topics, those of MemQ itself included."""
    rows = [_row(info) for info in admin.list_topics()]
    columns = ["topic", "write_partitions", "read_partitions", "ordering", "retention_ms", "typed"]
    show_rows(rows, columns, output)


@topic.command(epilog="memq topic describe clicks")
@click.argument("name", type=TopicType())
@admin_options
def describe(*, name: str, admin: AdminClient, output: str) -> None:
    """Show the options of topic NAME, its schema, and where it lives."""
    _show(admin.describe_topic(name), output)


@topic.command(
    epilog="""
memq topic alter clicks --retention 30d --batch-age 500ms
memq topic alter rides --schema 'id:int64,at:timestamp[us, tz=UTC],city:string?,tip:double?'
""",
)
@click.argument("name", type=TopicType())
@table_options(TOPIC_OPTIONS, show_default=False)
@schema_option
@admin_options
def alter(
    *, name: str, given: dict[str, str], schema: str | None, admin: AdminClient, output: str
) -> None:
    """Change options of topic NAME; others stay as they are.

    A new schema must be the old one with more nullable columns at its end; `memq topic describe`
    shows the old one as it is to be written here.
    """
    if not given and schema is None:
        raise click.UsageError("nothing to change; give an option such as --retention 30d")
    _show(admin.alter_topic(name, schema=_schema(schema), **given), output)


@topic.command(
    epilog="""
memq topic delete clicks
memq topic delete clicks --yes -o json
""",
)
@click.argument("name", type=TopicType())
@yes_option
@admin_options
def delete(*, name: str, yes: bool, admin: AdminClient, output: str) -> None:
    """Delete topic NAME and its data.

    Its Batches, its notifications and the offsets of its groups are deleted. Asks first at a
    terminal; without one it needs --yes. Prints what was deleted.
    """
    info = admin.describe_topic(name)
    batches: int | None
    try:
        batches = sum(each.end - each.start for each in admin.offsets(name))
    except CorruptDataError as exc:
        notice(f"memq: {exc}")
        batches = None
    partitions = info.config.read_partitions
    count = "damaged Batches" if batches is None else counted(batches, "Batch")
    question = f"Delete topic {name} with {count} in {counted(partitions, 'partition')}?"
    confirm(question, yes=yes)
    # The one that was asked about, and no later one. Gone is gone, even if another deleted it.
    with contextlib.suppress(UnknownTopicError):
        admin.delete_topic(name, topic_id=info.topic_id)
    row: Row = {
        "topic": name,
        "topic_id": info.topic_id,
        "partitions": partitions,
        "batches": batches,
    }
    show_rows([row], list(row), output)


@topic.command(
    epilog="""
memq topic trim clicks --before 2025-06-30T12:00:00Z
memq topic trim clicks --before 1200 --partition 0 --execute
""",
)
@click.argument("name", type=TopicType())
@option("--before", required=True, metavar="OFFSET|TIME", help="What stays: an offset, or a time.")
@option("--partition", type=click.IntRange(min=0), help="Only this read partition.")
@option("--execute", is_flag=True, help="Remove; without it, only show what would be.")
@admin_options
def trim(
    *, name: str, before: str, partition: int | None, execute: bool, admin: AdminClient, output: str
) -> None:
    """Remove the oldest Batches of topic NAME now, as retention would.

    Those younger than the topic's dedup_window stay. START is the first offset that is retained,
    STAYS the first one after this. Without --execute nothing is changed.
    """
    number = int(before) if re.fullmatch("[0-9]{1,18}", before) else None
    at = parse_time(before, datetime.now(UTC)) if number is None else None
    found = [each for each in admin.offsets(name, at) if partition in (None, each.partition)]
    wanted = {each.partition: each.end if each.at is None else each.at for each in found}
    if not wanted:
        raise InvalidRequestError(f"topic {name!r} has no partition {partition}")
    if number is not None:
        wanted = dict.fromkeys(wanted, number)
    stays = admin.trim_topic(name, wanted, execute=execute)
    columns = ("topic", "partition", "start", "end", "stays")
    places = [(name, each.partition, each.start, each.end) for each in found]
    rows = [dict(zip(columns, (*each, stays[each[1]]), strict=True)) for each in places]
    show_rows(rows, columns, output)
    if not execute:
        notice("memq: nothing was changed; add --execute")


def _schema(given: str | None) -> bytes | None:
    if given is None:
        return None
    from memq.cli.schema import read_schema  # noqa: PLC0415 - loads Arrow

    return read_schema(given)


def _row(info: TopicInfo) -> Row:
    """Return a topic's options for programs: plain numbers, the unit in the name."""
    config = msgspec.to_builtins(info.config)
    return {
        "topic": config.pop("name"),
        "typed": config.pop("schema") is not None,
        **config,
        "schema_id": info.schema_id,
        "topic_id": info.topic_id,
        "named_partitions": info.named_partitions,
        "hosts": info.hosts,
        "queue_address": info.queue_address,
    }


def _show(info: TopicInfo, output: str) -> None:
    from memq.cli.schema import schema_text, type_text  # noqa: PLC0415 - loads Arrow
    from memq.core.format.schema import deserialize_schema  # noqa: PLC0415

    row = _row(info)
    schema = deserialize_schema(info.schemas[info.schema_id])
    if output == "table":
        # As people would write them in `memq topic alter`.
        texts = {each.name: each.show(row.pop(each.field)) for each in TOPIC_OPTIONS}
        row = {"topic": row.pop("topic")} | texts | row
        row["schema"] = schema_text(schema)
        row["hosts"] = sorted({*info.hosts} - {""})  # nobody owns those
    else:
        row["schema"] = [
            {"name": field.name, "type": type_text(field.type), "nullable": field.nullable}
            for field in schema
        ]
    show_one(row, output)


# -- offsets --------------------------------------------------------------------------------


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
@admin_options
def offsets(*, topic: str, at: datetime | None, admin: AdminClient, output: str) -> None:
    """Show which offsets of TOPIC are retained, and its watermark.

    START is the first Batch retained, END is one past the last. Every LogMessage that was acked
    before the WATERMARK is in a Batch before END.
    """
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
