"""`memq export`: records become files of Parquet, CSV, JSON lines or Arrow."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from memq.cli.command import (
    Command,
    SizeType,
    TimeType,
    TopicType,
    check_reachable,
    connection_options,
    option,
    output_option,
    range_option,
    read_through_option,
    storage_options_option,
    zone_option,
)
from memq.cli.output import progress_bar, show_one
from memq.errors import ConfigError

if TYPE_CHECKING:
    from datetime import datetime

    from memq.cli.formats import FileFormat
    from memq.client.read_range import TopicReader
    from memq.core.ranges import OffsetRange

FORMATS = ("parquet", "csv", "jsonl", "arrow")


@click.command(
    cls=Command,
    epilog="""
memq export clicks clicks/ --from 2025-06-30T10:00Z --to 2025-06-30T11:00Z
memq export clicks clicks.csv --from 1h
memq export clicks batches/ --range 0:100-200 --format jsonl
""",
)
@click.argument("topic", type=TopicType())
@click.argument("target", metavar="FOLDER|FILE", type=click.Path(path_type=Path))
@option("--from", "start", type=TimeType(), help="Records of this time or later.")
@option("--to", "end", type=TimeType(), help="Records from before this time.")
@range_option(help="Exactly these Batches.")
@option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    show_default="that of the file's name, or else parquet",
    help="Of the files.",
)
@option("--columns", metavar="NAME[,…]", help="Only these columns.")
@option("--metadata", is_flag=True, help="Add partition, offset and what else names a record.")
@option(
    "--file-bytes",
    type=SizeType(),
    default="64MiB",
    help="Stored bytes after which a folder gets another file.",
)
@read_through_option
@storage_options_option
@zone_option
@connection_options
@output_option
def export(
    *,
    topic: str,
    target: Path,
    start: datetime | None,
    end: datetime | None,
    wanted: OffsetRange | None,
    form: FileFormat | None,
    columns: str | None,
    metadata: bool,
    file_bytes: int,
    bootstrap: str,
    output: str,
    **reading: Any,
) -> None:
    """Write the records of TOPIC that are retained now to files.

    A FILE, which ends with .parquet, .csv, .jsonl or .arrow, is written whole or not at all. A
    FOLDER, which must be new or empty, gets a file for each read partition and so many bytes, and
    the file _SUCCESS when all are there.
    """
    from memq.cli import export_job as job  # noqa: PLC0415 - loads Arrow
    from memq.client.read_range import AsyncTopicReader, TopicReader  # noqa: PLC0415
    from memq.reading.plan import Selection  # noqa: PLC0415

    is_file, kind = _target(target, form)
    names = None if columns is None else [name.strip() for name in columns.split(",")]
    if names and len(set(names)) < len(names):
        raise ConfigError(f"--columns {columns} names a column more than once; name each once")
    selection = Selection(start_time=start, end_time=end)
    if wanted:
        selection = selection._replace(
            partition=wanted.partition, start=wanted.start, end=wanted.end
        )
    selection.check(topic)

    def open_reader() -> TopicReader:
        check_reachable(bootstrap)
        asked = AsyncTopicReader(
            bootstrap,
            topic=topic,
            columns=names,
            metadata=metadata,
            client="memq export",
            **reading,
        )
        return TopicReader(asked)

    started_s = time.monotonic()
    run = job.export_file if is_file else job.export_folder
    what = job.ExportJob(
        form=kind,
        selection=selection,
        open_reader=open_reader,
        progress=partial(progress_bar, f"memq export {topic}"),
        file_bytes=file_bytes,
    )
    outcome = run(target, what)
    row = {"topic": topic, "target": str(target), "format": kind, **outcome._asdict()}
    if output == "table" and outcome.incomplete_before is None:
        del row["incomplete_before"]
    show_one(row | {"seconds": round(time.monotonic() - started_s, 3)}, output)


def _target(target: Path, form: FileFormat | None) -> tuple[bool, FileFormat]:
    """Parse whether the target is a file, and the format.

    Raises:
        ConfigError: the name of the file says no format, or another one.
    """
    from memq.cli.formats import SUFFIXES  # noqa: PLC0415 - loads Arrow

    said = SUFFIXES.get(target.suffix.lower())
    if target.is_dir() or said is None:
        if not target.is_dir() and (target.exists() or target.suffix or target.name == "-"):
            raise ConfigError(
                f"{target} looks like a file, and its name says no format; name one that ends with "
                f"{', '.join(f'.{each}' for each in FORMATS)}, or make the folder {target} first"
            )
        return False, form or "parquet"
    if form not in (None, said):
        raise ConfigError(f"{target} is to be a file of {said}, not {form}; name it otherwise")
    return True, said
