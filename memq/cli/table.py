"""`memq table`: tables that ranges of topics are put into."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import click
import msgspec

from memq.cli.command import (
    Group,
    ParsedType,
    TopicType,
    connection_options,
    option,
    output_option,
    read_through_option,
    storage_options_option,
    table_options,
)
from memq.cli.output import show_json, show_rows
from memq.core.named_values import parse_catalog_options
from memq.core.options import Option, defaults, options_of, parse_options
from memq.core.units import DAY_MS, GIB, MIB, MINUTE_MS, counted, iso_ms, parse_time
from memq.errors import ConfigError

if TYPE_CHECKING:
    from memq.cli.output import Row
    from memq.tables.iceberg import CommittedRange, IcebergTable


class FollowOptions(NamedTuple):
    """How a topic is followed.

    Attributes:
        every_ms: How often to look for what is new: each time is a commit, and so a snapshot, for
            each read partition that has something new.
        max_bytes: Stored bytes after which a commit takes no more Batches.
        keep_snapshots_ms: Expire snapshots of the table that are older; without it, all are kept,
            and commits become slower with their number.
    """

    every_ms: Annotated[int, Option("duration", "1m", 100, DAY_MS)]
    max_bytes: Annotated[int, Option("size", "512MiB", MIB, 64 * GIB)]
    keep_snapshots_ms: Annotated[int | None, Option("duration", None, MINUTE_MS, 3650 * DAY_MS)]


catalog_option = option(
    "--catalog-options",
    default="",
    metavar="NAME=VALUE,…",
    help="Of the catalog, besides those of ~/.pyiceberg.yaml and PYICEBERG_CATALOG__….",
)


def _moment(text: str) -> datetime:
    """Parse a time; one so long ago would be another one after a restart.

    Raises:
        ConfigError: it is none.
    """
    found = parse_time(text, now=NEVER)
    if found <= NEVER:
        raise ConfigError(f"{text!r}: give a time that stays, such as 2025-06-30T12:00:00Z")
    return found


NEVER = datetime(1970, 1, 1, tzinfo=UTC)


@click.group(cls=Group)
def table() -> None:
    """Fill Iceberg tables with ranges of topics, and look into them.

    TABLE is namespace.table, or catalog:namespace.table.
    """


@table.command(
    "describe",
    epilog="""
memq table describe lake.clicks
memq table describe prod:lake.clicks --ranges -o json
""",
)
@click.argument("name", metavar="TABLE")
@option("--ranges", is_flag=True, help="Each range, as far as its snapshot has not expired.")
@catalog_option
@output_option
def describe(*, name: str, ranges: bool, catalog_options: str, output: str) -> None:
    """Show which offsets of which topics are in TABLE.

    A read partition has a line for each stretch of offsets: where there is more than one, those
    between are not in the table.
    """
    opened = _open(name, catalog_options)
    if ranges:
        rows = [_range_row(each) for each in opened.ranges()]
        show_rows(rows, [*_RANGE_COLUMNS], output)
    else:
        show_rows(_ledger_rows(opened), [*_LEDGER_COLUMNS], output)


@table.command(
    "check",
    epilog="""
memq table check lake.clicks
""",
)
@click.argument("name", metavar="TABLE")
@catalog_option
@output_option
def check(*, name: str, catalog_options: str, output: str) -> None:
    """Count the rows of TABLE, and compare them with what was put in.

    It reads four columns of the whole table. The exit code is 1 if rows are missing, are there
    twice, or have offsets that nobody put in.
    """
    from memq.tables.check import check_table  # noqa: PLC0415 - slow to load

    found = check_table(_open(name, catalog_options))
    if output == "json":
        show_json({"rows": found.rows, "findings": found.findings})
    else:
        for each in found.findings:
            click.echo(each)
        verdict = "are not what was put in" if found.findings else "are what was put in"
        click.echo(f"{counted(found.rows, 'row')}, which {verdict}")
    if found.findings:
        sys.exit(1)


@table.command(
    "put",
    epilog="""
memq table put clicks lake.clicks
memq table put clicks prod:lake.clicks -o json
""",
)
@click.argument("topic", type=TopicType())
@click.argument("name", metavar="TABLE")
@read_through_option
@storage_options_option
@connection_options
@catalog_option
@output_option
def put(*, topic: str, name: str, catalog_options: str, output: str, **reading: Any) -> None:
    """Put all of TOPIC into TABLE that is published now and not in it.

    It shows the ranges that it has put in, each with a commit of its own. The same command goes on
    after an interruption: nothing is put in twice.
    """
    from memq.cli.table_put import put_topic  # noqa: PLC0415 - slow to load

    done = put_topic(_open(name, catalog_options), topic, **reading)
    rows = list(map(msgspec.structs.asdict, done))
    show_rows(rows, [*_LEDGER_COLUMNS, "records"], output)


@table.command(
    "follow",
    epilog="""
memq table follow clicks prod:lake.clicks --every 2s -o json
memq table follow clicks lake.clicks --start 2025-06-30T00:00Z --until-caught-up
""",
)
@click.argument("topic", type=TopicType())
@click.argument("name", metavar="TABLE")
@table_options(options_of(FollowOptions))
@option(
    "--start",
    type=ParsedType("TIME", _moment),
    help="Leave out what was published before: ISO 8601 with its zone. [default: all]",
)
@option("--until-caught-up", is_flag=True, help="End with what is published at the start.")
@read_through_option
@storage_options_option
@connection_options
@catalog_option
@output_option
def follow(
    *, topic: str, name: str, given: dict[str, str], catalog_options: str, **others: Any
) -> None:
    """Put TOPIC into TABLE as it is published, until interrupted.

    Each range is in the table once, however often this is killed, and whoever else puts ranges in.
    What does not answer is waited for, which is said on stderr. SIGTERM and Ctrl-C let the present
    commit end.
    """
    from memq.cli.table_put import follow_topic  # noqa: PLC0415 - slow to load

    rows = options_of(FollowOptions)
    options = defaults(rows) | parse_options(rows, given)
    follow_topic(_open(name, catalog_options), topic, **options, **others)


_LEDGER_COLUMNS = ("topic", "topic_id", "partition", "start", "end")
_RANGE_COLUMNS = (*_LEDGER_COLUMNS, "records", "job", "committed", "snapshot")


def _open(name: str, catalog_options: str) -> IcebergTable:
    from memq.tables.iceberg import open_table  # noqa: PLC0415 - slow to load

    return open_table(name, parse_catalog_options(catalog_options))


def _ledger_rows(opened: IcebergTable) -> list[Row]:
    return [
        dict(zip(_LEDGER_COLUMNS, (*key, *interval), strict=True))
        for *key, held in opened.look().ledger.partitions()
        for interval in held.intervals
    ]


def _range_row(each: CommittedRange) -> Row:
    counts = ("batches", "messages", "records")
    return {name: getattr(each.range, name) for name in (*_LEDGER_COLUMNS, *counts)} | {
        "job": each.job,
        "committed": iso_ms(each.committed_ms),
        "snapshot": each.snapshot_id,
    }
