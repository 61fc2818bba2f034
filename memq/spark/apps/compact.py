"""Turn the many small Batches of a topic into few large Parquet files; run it again to go on.

Run it with `spark-submit spark_apps/compact.py …` or with
`python -m memq.spark.apps.compact …`; `--help` says more.
"""

from __future__ import annotations

import sys
from typing import Any

import click

from memq.cli.command import Command, SizeType
from memq.core.units import counted
from memq.spark.app import job_options, run, session, topic_options
from memq.spark.compaction import Compaction, check_topic, compact


@click.command(
    "compact",
    cls=Command,
    epilog="""
spark-submit spark_apps/compact.py --topic clicks --output s3a://lake/clicks
python spark_apps/compact.py --topic clicks --output /tmp/lake --range-bytes 64MiB \\
    --min-bytes 1MiB
""",
)
@topic_options
@click.option(
    "--output",
    required=True,
    metavar="DIR",
    help="Folder, or URI that Spark can write to, for the files and the record of what is done.",
)
@click.option(
    "--partition",
    "partitions",
    multiple=True,
    type=click.IntRange(0),
    help="Read partition; may be given several times. All when it is left out.",
)
@click.option(
    "--range-bytes",
    type=SizeType(),
    default="1GiB",
    show_default=True,
    help="Stored bytes that are compacted at a time.",
)
@click.option(
    "--file-bytes",
    type=SizeType(),
    default="256MiB",
    show_default=True,
    help="Stored bytes that go into one file: with fewer files, fewer processors work.",
)
@click.option(
    "--min-bytes",
    type=SizeType(),
    default="0B",
    show_default=True,
    help="Leave what is less than this for a later run.",
)
@job_options("compact")
def main(*, file_bytes: int, **job: Any) -> None:
    """Compact all that is published of a topic by now into Parquet files below DIR.

    Each run goes on where the last one ended, range after range; one that was killed is completed
    by the next one. Nothing is left out and nothing is there twice. The record is in
    DIR/_manifests: a manifest for each range. Run one at a time.
    """
    task = Compaction(file_bytes=max(1, file_bytes), **job)
    check_topic(task)
    with session(task.name) as spark:
        done = compact(spark, task)
    records, files = sum(each.records for each in done), sum(len(each.files) for each in done)
    click.echo(
        f"{counted(records, 'record')} in {counted(len(done), 'range')}, {counted(files, 'file')}"
    )


if __name__ == "__main__":
    sys.exit(run(main))
