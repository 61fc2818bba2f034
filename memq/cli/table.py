"""`memq table`: tables that ranges of topics are put into."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from memq.cli.command import Group, option, output_option
from memq.cli.output import show_json, show_rows
from memq.core.named_values import parse_catalog_options
from memq.core.units import counted, iso_ms

if TYPE_CHECKING:
    from memq.cli.output import Row
    from memq.tables.iceberg import CommittedRange, IcebergTable

catalog_option = option(
    "--catalog-options",
    default="",
    metavar="NAME=VALUE,…",
    help="Of the catalog, beside those of ~/.pyiceberg.yaml and PYICEBERG_CATALOG__….",
)


@click.group(cls=Group)
def table() -> None:
    """Look into Iceberg tables that ranges of topics are put into.

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

    It reads four columns of the whole table. The exit code is 1 when rows are missing, are there
    twice, or are of offsets that nobody put in.
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


_LEDGER_COLUMNS = ("topic", "incarnation", "partition", "start", "end")
_RANGE_COLUMNS = (*_LEDGER_COLUMNS, "records", "job", "committed", "snapshot")


def _open(name: str, catalog_options: str) -> IcebergTable:
    from memq.tables.iceberg import open_table  # noqa: PLC0415 - slow to load

    return open_table(name, parse_catalog_options(catalog_options))


def _ledger_rows(opened: IcebergTable) -> list[Row]:
    return [
        {
            "topic": topic,
            "incarnation": incarnation,
            "partition": partition,
            "start": start,
            "end": end,
        }
        for topic, incarnation, partition, held in opened.look().ledger.partitions()
        for start, end in held.intervals
    ]


def _range_row(each: CommittedRange) -> Row:
    added = each.range
    return {
        "topic": added.topic,
        "incarnation": added.incarnation,
        "partition": added.partition,
        "start": added.start,
        "end": added.end,
        "batches": added.batches,
        "messages": added.messages,
        "records": added.records,
        "job": each.job,
        "committed": iso_ms(each.committed_ms),
        "snapshot": each.snapshot_id,
    }
