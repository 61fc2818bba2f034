"""`memq topic`: make, show, change and delete topics."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from memq.cli.command import (
    Group,
    connect_admin,
    connection_options,
    option,
    output_option,
    table_options,
)
from memq.cli.completion import TopicType
from memq.cli.output import show_one, show_rows
from memq.core.topic import TOPIC_OPTIONS
from memq.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from memq.cli.output import Row
    from memq.core.wire.messages import TopicInfo

_MAGIC_BYTES = 6

schema_option = option(
    "--schema",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Parquet or Arrow IPC file with the schema of a typed topic.",
)


@click.group(cls=Group)
def topic() -> None:
    """Make, show, change and delete topics."""


@topic.command(
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
    with connect_admin(bootstrap, token) as admin:
        _show(admin.create_topic(name, schema=schema and read_schema_file(schema), **given), output)


@topic.command("list", epilog="memq topic list -o json")
@connection_options
@output_option
def list_(*, bootstrap: str, token: str, output: str) -> None:
    """List all topics, those of MemQ itself included."""
    with connect_admin(bootstrap, token) as admin:
        rows = [_row(info) for info in admin.list_topics()]
    columns = ["topic", "write_partitions", "read_partitions", "ordering", "retention_ms", "typed"]
    show_rows(rows, columns, output)


@topic.command(epilog="memq topic describe clicks")
@click.argument("name", type=TopicType())
@connection_options
@output_option
def describe(*, name: str, bootstrap: str, token: str, output: str) -> None:
    """Show the options of topic NAME, its schema, and where it lives."""
    with connect_admin(bootstrap, token) as admin:
        _show(admin.describe_topic(name), output)


@topic.command(
    epilog="""
memq topic alter clicks --retention 30d --batch-age 500ms
memq topic alter rides --schema rides-with-tips.parquet
""",
)
@click.argument("name", type=TopicType())
@table_options(TOPIC_OPTIONS, show_default=False)
@schema_option
@connection_options
@output_option
def alter(
    *,
    name: str,
    given: dict[str, str],
    schema: Path | None,
    bootstrap: str,
    token: str,
    output: str,
) -> None:
    """Change options of topic NAME; those that are not given stay as they are.

    A new schema must be the old one with more nullable columns at its end.
    """
    if not given and schema is None:
        raise click.UsageError("nothing to change; give an option such as --retention 30d")
    with connect_admin(bootstrap, token) as admin:
        _show(admin.alter_topic(name, schema=schema and read_schema_file(schema), **given), output)


@topic.command(epilog="memq topic delete clicks")
@click.argument("name", type=TopicType())
@connection_options
def delete(*, name: str, bootstrap: str, token: str) -> None:
    """Delete topic NAME with its Batches, its notifications and the offsets of its groups."""
    with connect_admin(bootstrap, token) as admin:
        admin.delete_topic(name)


def read_schema_file(path: Path) -> bytes:
    """The serialized schema of a Parquet file, an Arrow IPC file or an Arrow IPC stream.

    Raises:
        ConfigError: the file cannot be read, or is none of these.
        SchemaMismatchError: no topic can have the schema.
    """
    from memq.core.format.envelope import ARROW_ERRORS  # noqa: PLC0415 - loads Arrow
    from memq.core.format.schema import serialize_schema  # noqa: PLC0415

    try:
        schema = _schema_in(path)
    except ARROW_ERRORS as exc:
        raise ConfigError(
            f"{path} gives no schema; a Parquet or Arrow IPC file is expected: {exc}"
        ) from exc
    return serialize_schema(schema)


def _schema_in(path: Path) -> pa.Schema:
    import pyarrow as pa  # noqa: PLC0415 - slow to load
    from pyarrow import parquet  # noqa: PLC0415

    with path.open("rb") as file:
        magic = file.read(_MAGIC_BYTES)
        file.seek(0)
        if magic.startswith(b"PAR1"):
            return parquet.read_schema(file)
        reader = pa.ipc.open_file if magic == b"ARROW1" else pa.ipc.open_stream
        return reader(file).schema


def _row(info: TopicInfo) -> Row:
    """A topic's options as programs want them: plain numbers, the unit in the name."""
    config = msgspec.to_builtins(info.config)
    return {
        "topic": config.pop("name"),
        "typed": config.pop("schema") is not None,
        **config,
        "schema_id": info.schema_id,
        "incarnation": info.incarnation,
        "named_partitions": info.named_partitions,
        "hosts": info.hosts,
        "queue_address": info.queue_address,
    }


def _show(info: TopicInfo, output: str) -> None:
    from memq.core.format.schema import deserialize_schema  # noqa: PLC0415 - loads Arrow

    row = _row(info)
    fields = list(deserialize_schema(info.schemas[info.schema_id]))
    if output == "table":
        # As people would write them in `memq topic alter`.
        texts = {each.name: each.show(row.pop(each.field)) for each in TOPIC_OPTIONS}
        row = {"topic": row.pop("topic")} | texts | row
        row["schema"] = [
            f"{field.name}: {field.type}{'' if field.nullable else ' not null'}" for field in fields
        ]
    else:
        row["schema"] = [
            {"name": field.name, "type": str(field.type), "nullable": field.nullable}
            for field in fields
        ]
    show_one(row, output)
