"""Put an exact range of offsets into an Iceberg table, once, whatever is tried again.

Run it with `spark-submit spark_apps/range_to_iceberg.py …` or with
`python -m memq.spark.apps.range_to_iceberg …`; `--help` says more.
"""

from __future__ import annotations

import sys
from typing import Any

import click

from memq.cli.command import Command
from memq.spark.app import job_options, range_options, run, run_range, topic_options


@click.command(
    "range_to_iceberg",
    cls=Command,
    epilog="""
spark-submit spark_apps/range_to_iceberg.py --topic clicks --partition 0 \\
    --start 0 --end 500 --output prod:lake.clicks --manifest s3a://lake/manifests/clicks-0-500.json
python -m memq.spark.apps.range_to_iceberg --topic clicks --partition 0 --start 0 --end 500 \\
    --output lake.clicks --manifest /tmp/clicks-0-500.json
""",
)
@topic_options
@range_options
@click.option(
    "--output",
    required=True,
    metavar="TABLE",
    help="The table: namespace.table, or catalog:namespace.table. It is made when there is none.",
)
@click.option(
    "--catalog-options",
    default="",
    metavar="NAME=VALUE,…",
    help="Of the catalog, besides those of ~/.pyiceberg.yaml and PYICEBERG_CATALOG__….",
)
@job_options("range_to_iceberg")
def main(**arguments: Any) -> None:
    """Put the Batches of a read partition from offset START up to, not including, END into TABLE.

    The table says itself which ranges it has, so a range is in it once: a program that runs
    again, or at the same time, finds it there and adds nothing. A range that is there in part is
    an error. The manifest is that of range_to_parquet. The driver needs pyiceberg (memq[iceberg]).
    """
    from memq.spark.iceberg import range_to_iceberg  # noqa: PLC0415 - needs an extra

    run_range(range_to_iceberg, **arguments)


if __name__ == "__main__":
    sys.exit(run(main))
