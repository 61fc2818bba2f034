"""`memq topic`: make, show, change and delete topics."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from memq.cli.command import Command, Group
from memq.cli.options import connection_options, option, output_option, table_options
from memq.cli.output import show_one, show_rows
from memq.core.topic import TOPIC_OPTIONS

if TYPE_CHECKING:
    from memq.cli.output import Row
    from memq.core.wire.messages import TopicInfo

schema_option = option(
    "--schema",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Parquet or Arrow IPC file with the schema of a typed topic.",
)


@click.group(cls=Group)
def topic() -> None:
    """Make, show, change and delete topics."""


@topic.command(
    cls=Command,
    epilog="""
memq topic create clicks
memq topic create clicks --read-partitions 4 --write-partitions 2 --batch-age 1s
memq topic create rides --schema rides.parquet
""",
)
@click.argument("name")
@table_options(TOPIC_OPTIONS)
@schema_option
@connection_options
@output_option
def create(
    *,
    name: str,
    given: dict[str, str],
    schema: Path | None,
    bootstrap: str,
    token: str,
    output: str,
) -> None:
    """Make the topic NAME."""
    from memq import AdminClient  # noqa: PLC0415 - loads Arrow

    with AdminClient(bootstrap, token=token) as admin:
        _show(admin.create_topic(name, schema=_read_schema(schema), **given), output)


@topic.command("list", cls=Command, epilog="memq topic list -o json")
@connection_options
@output_option
def list_(*, bootstrap: str, token: str, output: str) -> None:
    """List all topics, those of MemQ itself included."""
    from memq import AdminClient  # noqa: PLC0415 - loads Arrow

    with AdminClient(bootstrap, token=token) as admin:
        rows = [_row(info) for info in admin.list_topics()]
    columns = ["topic", "write_partitions", "read_partitions", "ordering", "retention", "typed"]
    show_rows(rows, columns, output)


@topic.command(cls=Command, epilog="memq topic describe clicks")
@click.argument("name")
@connection_options
@output_option
def describe(*, name: str, bootstrap: str, token: str, output: str) -> None:
    """Show the options of topic NAME, its schema, and where it lives."""
    from memq import AdminClient  # noqa: PLC0415 - loads Arrow

    with AdminClient(bootstrap, token=token) as admin:
        _show(admin.describe_topic(name), output)
