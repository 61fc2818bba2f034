"""Write an exact range of offsets to Parquet, once: a second run replaces its own output.

Run it with `spark-submit spark_apps/range_to_parquet.py …` or with
`python -m memq.spark.apps.range_to_parquet …`; `--help` says more.
"""

from __future__ import annotations

import sys
from typing import Any

import click

from memq.cli.command import Command
from memq.spark.app import job_options, range_options, run, run_range, topic_options
from memq.spark.outputs import range_to_parquet


@click.command(
    "range_to_parquet",
    cls=Command,
    epilog="""
spark-submit spark_apps/range_to_parquet.py --topic clicks --partition 0 \\
    --start 0 --end 500 --output s3a://lake/clicks --manifest clicks-0-500.json
python spark_apps/range_to_parquet.py --topic clicks --partition 0 --start 0 --end 500 \\
    --output /tmp/lake --manifest /tmp/clicks-0-500.json
""",
)
@topic_options
@range_options
@click.option(
    "--output",
    required=True,
    metavar="DIR",
    help="Folder, or URI that Spark can write to. The range gets its own folder in it.",
)
@job_options("range_to_parquet")
def main(**arguments: Any) -> None:
    """Write the Batches of a read partition from offset START up to, not including, END to Parquet.

    The files go to a folder of the range below DIR. A second run, also after one that was killed,
    replaces this folder and nothing else. The manifest is JSON with the range, Batches, Messages,
    records, bytes and the sum of the checksums, and with what was left out; it is written only when
    the files have as many records as the range must give.
    """
    run_range(range_to_parquet, **arguments)


if __name__ == "__main__":
    sys.exit(run(main))
