"""`memq batch`: look into stored Batches."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from memq.cli.command import (
    Group,
    TopicType,
    check_reachable,
    connection_options,
    option,
    output_option,
    profile_option,
    range_option,
    storage_options_option,
)
from memq.cli.output import progress_bar, show_one, show_rows, write_whole
from memq.core.units import counted, iso_us
from memq.errors import CorruptDataError, InvalidRequestError, MemqError, ObjectNotFoundError

if TYPE_CHECKING:
    from memq.cli.output import Row
    from memq.client.topic import SyncTopicClient
    from memq.core.format.index import IndexEntry
    from memq.core.format.reader import BatchReader
    from memq.core.named_values import NamedValues
    from memq.core.ranges import OffsetRange


@click.group(cls=Group)
def batch() -> None:
    """List stored Batches, check them, print what is in them."""


# -- list -----------------------------------------------------------------------------------


@batch.command(
    "list",
    epilog="""
memq batch list clicks --last 10
memq batch list clicks --range 0:100-200 -o json
""",
)
@click.argument("topic", type=TopicType())
@range_option(help="Only these offsets.")
@option(
    "--last",
    type=click.IntRange(min=1),
    default=1_000,
    help="At most so many of each partition, the newest.",
)
@connection_options
@output_option
def list_(
    *, topic: str, wanted: OffsetRange | None, last: int, output: str, **brokers: Any
) -> None:
    """List the Batches of TOPIC by their notifications."""
    from memq.client.batches import batch_row  # noqa: PLC0415 - loads Arrow

    with _open(topic, brokers) as client:
        ranges = _ranges(client, wanted)
        newest = [each._replace(start=max(each.start, each.end - last)) for each in ranges]
        rows = [batch_row(each) for each in client.batches(newest)]
    columns = ["partition", "offset", "sealed", "messages", "records", "size_bytes", "uri"]
    show_rows(rows, columns, output)


def _open(topic: str, brokers: dict[str, Any]) -> SyncTopicClient:
    from memq.client.topic import SyncTopicClient  # noqa: PLC0415 - loads the client

    check_reachable(brokers["bootstrap"])
    return SyncTopicClient(topic=topic, client="memq batch", **brokers)


def _ranges(client: SyncTopicClient, wanted: OffsetRange | None) -> list[OffsetRange]:
    """Return all that is retained, or the one range that was asked for."""
    if wanted is None:
        return client.ranges_between(None, None)
    client.check_retained(wanted)
    return [wanted]


# -- verify ---------------------------------------------------------------------------------


@batch.command(
    epilog="""
memq batch verify clicks
memq batch verify clicks --range 0:100-200
memq batch verify memq-data/objects/3f/memq/topics/clicks/0/1751284800000-0197.arrows
""",
)
@click.argument("target")
@range_option(help="Only these offsets.")
@storage_options_option
@connection_options
@output_option
def verify(
    *,
    target: str,
    wanted: OffsetRange | None,
    storage_options: NamedValues,
    output: str,
    **brokers: Any,
) -> None:
    """Check every byte of stored Batches.

    TARGET is a topic, or one object: a URI, or a path that has a '/' or ends in .arrows. Every
    CRC32C is computed again and every LogMessage decoded; for a topic each Batch is also compared
    with its notification. Ends with 1 and names what is damaged.
    """
    uri = _object_uri(target)
    if uri is None:
        totals, damaged = _verify_topic(target, wanted, brokers, storage_options)
    elif wanted is None:
        totals, damaged = _verify_object(target, uri, storage_options)
    else:
        raise click.UsageError("--range is for a topic, not for one object")
    if output == "json":
        show_one(totals | {"damaged": damaged}, output)
    else:
        if damaged:
            show_rows(damaged, ["partition", "offset", "finding", "uri"], output)
        show_one(totals, output)
    if damaged:
        count = len({row["uri"] for row in damaged})
        raise CorruptDataError(f"damaged: {count} of {counted(totals['batches'], 'Batch')}")


def _verify_object(
    target: str, uri: str, storage_options: NamedValues
) -> tuple[dict[str, int], list[Row]]:
    """Return what is in an object, and a row for each finding."""
    from memq.core.format.verify import verify as verify_bytes  # noqa: PLC0415 - loads Arrow

    report = verify_bytes(_read_object(target, storage_options))
    totals = {"batches": 1} | {name: getattr(report, name) for name in _COUNTS}
    return totals, [
        {"partition": None, "offset": None, "uri": uri, "finding": each} for each in report.findings
    ]


def _verify_topic(
    topic: str, wanted: OffsetRange | None, brokers: dict[str, Any], storage_options: NamedValues
) -> tuple[dict[str, int], list[Row]]:
    """Return what the notifications of a topic say there is, and a row for each finding."""
    from memq.client.audit.stored import inspect  # noqa: PLC0415 - loads Arrow
    from memq.storage.open import open_uri  # noqa: PLC0415

    totals = dict.fromkeys(("batches", *_COUNTS), 0)
    damaged: list[Row] = []
    with _open(topic, brokers | {"storage_options": storage_options}) as client:
        ranges = _ranges(client, wanted)
        with progress_bar("Batches", sum(each.size for each in ranges)) as advance:
            for partition, offset, _, told in client.batches(ranges):
                storage, key = open_uri(told.uri, client.options_for(told.uri))
                place = {"partition": partition, "offset": offset, "uri": told.uri}
                found = inspect(told, partial(storage.get_range, key), deep=True)
                damaged += [place | {"finding": each} for each in found.findings]
                totals["batches"] += 1
                for name in _COUNTS:
                    totals[name] += getattr(told, name)
                advance(1)
        starts = (
            client.starts()
        )  # what retention has removed by now may have gone while it was read
    return totals, [row for row in damaged if row["offset"] >= starts[row["partition"]]]


_COUNTS = ("messages", "records", "size_bytes")


# -- cat ------------------------------------------------------------------------------------


@batch.command(
    epilog="""
memq batch cat batch.arrows
memq batch cat --messages file:///var/lib/memq/objects/3f/memq/topics/clicks/0/1751-01.arrows
""",
)
@click.argument("target", metavar="OBJECT")
@option("--messages", is_flag=True, help="List its Messages, as the index has them.")
@storage_options_option
@profile_option
@output_option
def cat(*, target: str, messages: bool, storage_options: NamedValues, output: str) -> None:
    """Print the LogMessages of one object, a JSON object a line.

    OBJECT is a URI or a path. To read Batches by offset, use memq consume --range.
    """
    from memq.core.format.reader import BatchReader  # noqa: PLC0415 - loads Arrow

    data = _read_object(target, storage_options)
    try:
        reader = BatchReader(data)
    except MemqError as exc:
        raise type(exc)(f"{target} is damaged: {exc}; `memq batch verify` names all of it") from exc
    if messages:
        rows = [_message_row(entry) for entry in reader.entries]
        show_rows(rows, list(rows[0]), output)
    else:
        _print_records(reader)


def _read_object(target: str, storage_options: NamedValues) -> Any:
    """Read the bytes of an object that somebody has named.

    Raises:
        ObjectNotFoundError: there is none, or it is a folder.
        MemqError: it cannot be read.
    """
    from memq.storage.open import local_folder, open_uri  # noqa: PLC0415 - loads Arrow

    uri = _object_uri(target) or _file_uri(target)
    storage, key = open_uri(uri, storage_options)
    try:
        return storage.get(key)
    except ObjectNotFoundError as exc:
        folder = local_folder(uri)
        if folder is not None and folder.is_dir():
            raise ObjectNotFoundError(
                f"{target} is a folder; name an object in it, or a topic for all of its Batches"
            ) from exc
        raise ObjectNotFoundError(
            f"there is no object {target}; name one that `memq batch list TOPIC` shows"
        ) from exc


def _object_uri(target: str) -> str | None:
    """Return the URI of a target that is an object; None for a topic."""
    if "://" in target:
        return target
    if "/" in target or target.endswith(".arrows"):
        return _file_uri(target)
    return None


def _file_uri(path: str) -> str:
    """Return the URI of a path, which may lead through `..`; no key of an object does."""
    if "\0" in path:
        raise InvalidRequestError(f"{path!r} is no path: it has a NUL")
    return Path(os.path.abspath(path)).as_uri()  # noqa: PTH100 - a symbolic link stays one


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
    from memq.cli.formats import json_lines, object_records  # noqa: PLC0415 - loads Arrow

    for piece in json_lines(object_records(reader)):
        write_whole(sys.stdout.buffer, piece)
