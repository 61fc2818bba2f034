"""`memq batch`: look into stored Batches."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from memq.cli.command import Command, Group
from memq.cli.options import RangeType, connection_options, option, output_option
from memq.cli.output import show_rows, write_whole
from memq.core.units import iso_ms, iso_us

if TYPE_CHECKING:
    from memq.cli.output import Row
    from memq.cli.published import Published
    from memq.cli.ranges import Range
    from memq.cli.verify import Findings
    from memq.core.format.index import IndexEntry
    from memq.core.format.reader import BatchReader

range_option = option("--range", "wanted", type=RangeType(), help="Only these offsets.")


@click.group(cls=Group)
def batch() -> None:
    """List stored Batches, check them, print what is in them."""


# -- list -----------------------------------------------------------------------------------


@batch.command(
    "list",
    cls=Command,
    epilog="""
memq batch list clicks --last 10
memq batch list clicks --range 0:100-200 -o json
""",
)
@click.argument("topic")
@range_option
@option(
    "--last",
    type=click.IntRange(min=1),
    default=1_000,
    help="At most so many of each partition, the newest.",
)
@connection_options
@output_option
def list_(
    *, topic: str, wanted: Range | None, last: int, bootstrap: str, token: str, output: str
) -> None:
    """List the Batches of TOPIC by their notifications."""
    from memq.cli.published import published_batches  # noqa: PLC0415 - loads Arrow

    with published_batches(bootstrap, token, topic, wanted) as batches:
        batches.ranges = [
            each._replace(start=max(each.start, each.end - last)) for each in batches.ranges
        ]
        rows = [_batch_row(each) for each in batches]
    columns = ["partition", "offset", "sealed", "messages", "records", "size_bytes", "uri"]
    show_rows(rows, columns, output)


def _batch_row(published: Published) -> Row:
    about = published.notification
    return {
        "partition": published.partition,
        "offset": published.offset,
        "batch_id": about.batch_id,
        "write_partition": about.write_partition,
        "broker_id": about.broker_id,
        "sealed": iso_ms(about.sealed_ms),
        "messages": about.messages,
        "records": about.records,
        "size_bytes": about.size_bytes,
        "min_timestamp": iso_us(about.min_timestamp_us),
        "max_timestamp": iso_us(about.max_timestamp_us),
        "producers": len({run.producer_id for run in about.producers}),
        "schema_id": about.schema_id,
        "uri": about.uri,
    }


# -- verify ---------------------------------------------------------------------------------


@batch.command(
    cls=Command,
    epilog="""
memq batch verify clicks
memq batch verify clicks --range 0:100-200
memq batch verify memq-data/objects/3f/memq/topics/clicks/0/1751284800000-0197.arrows
""",
)
@click.argument("target")
@range_option
@connection_options
@output_option
def verify(*, target: str, wanted: Range | None, bootstrap: str, token: str, output: str) -> None:
    """Check every byte of stored Batches.

    TARGET is a topic, or one object: a URI, or a path that has a '/' or ends in .arrows. Every
    CRC32C is computed anew and every LogMessage decoded; for a topic each Batch is also compared
    with its notification. Ends with 1 and names what is damaged.
    """
    uri = _object_uri(target)
    if uri is not None and wanted is not None:
        raise click.UsageError("--range is for a topic, not for one object")
    from memq.cli.verify import Findings  # noqa: PLC0415 - loads Arrow

    found = Findings()
    if uri is not None:
        found.check(uri)
    else:
        _verify_topic(target, wanted, bootstrap, token, found)
    found.show(output)


def _verify_topic(
    topic: str, wanted: Range | None, bootstrap: str, token: str, found: Findings
) -> None:
    from memq.cli.published import published_batches  # noqa: PLC0415 - loads Arrow

    with published_batches(bootstrap, token, topic, wanted) as batches:
        with click.progressbar(
            batches,
            length=len(batches),
            label="Batches",
            file=sys.stderr,
            hidden=not sys.stderr.isatty(),
        ) as bar:
            for published in bar:
                found.check(published.notification.uri, published)
        found.forget_expired({each.partition: each.start for each in batches.held()})


# -- cat ------------------------------------------------------------------------------------


@batch.command(
    cls=Command,
    epilog="""
memq batch cat batch.arrows
memq batch cat --messages file:///var/lib/memq/objects/3f/memq/topics/clicks/0/1751-01.arrows
""",
)
@click.argument("target", metavar="OBJECT")
@option("--messages", is_flag=True, help="List its Messages, as the index has them.")
@output_option
def cat(*, target: str, messages: bool, output: str) -> None:
    """Print the LogMessages of one object, a JSON object a line.

    OBJECT is a URI or a path. To read Batches by offset, use memq consume --range.
    """
    from memq.core.format.reader import BatchReader  # noqa: PLC0415 - loads Arrow
    from memq.core.storage.open import open_uri  # noqa: PLC0415

    storage, key = open_uri(_object_uri(target) or Path(target).absolute().as_uri())
    reader = BatchReader(storage.get(key))
    if messages:
        rows = [_message_row(entry) for entry in reader.entries]
        show_rows(rows, list(rows[0]), output)
    else:
        _print_records(reader)


def _object_uri(target: str) -> str | None:
    """The URI of a target that is an object; None for a topic."""
    if "://" in target:
        return target
    if "/" in target or target.endswith(".arrows"):
        return Path(target).absolute().as_uri()
    return None


def _message_row(entry: IndexEntry) -> Row:
    return {
        "producer_id": entry.producer_id,
        "epoch": entry.epoch,
        "sequence": entry.sequence,
        "position": entry.offset,
        "size_bytes": entry.length,
        "records": entry.records,
        "min_timestamp": iso_us(entry.min_timestamp_us),
        "max_timestamp": iso_us(entry.max_timestamp_us),
        "crc32c": f"{entry.crc32c:08x}",
    }


def _print_records(reader: BatchReader) -> None:
    from memq.cli.lines import json_lines, object_records  # noqa: PLC0415 - loads Arrow

    for piece in json_lines(object_records(reader)):
        write_whole(sys.stdout.buffer, piece)
