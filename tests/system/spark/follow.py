"""A Spark job that follows a topic into Parquet files: a driver of its own, to be killed.

    python -m tests.system.spark.follow BOOTSTRAP TOPIC OUTPUT CHECKPOINT [OPTION=VALUE ...]

It prints the id of each micro-batch that is done. The source is found without being registered.
"""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from tests.system.spark.conftest import ROOT, builder
from tests.system.spark.reading import ROW


@contextmanager
def following(*arguments):
    """What the job prints, in a process group of its own: driver, JVM and workers are killed."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.system.spark.follow", *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process.stdout
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def start(spark, address, topic, folder, **options):
    """A query that follows a topic, with a file sink and a checkpoint in a folder."""
    reader = spark.readStream.format("memq").options(
        bootstrap=address, topic=topic, startingOffsets="earliest"
    )
    return (
        reader.options(**options)
        .load()
        .select(*ROW)
        .writeStream.format("parquet")
        .option("path", str(folder / "output"))
        .option("checkpointLocation", str(folder / "checkpoint"))
    )


def main(address, topic, folder, *options):
    """Follow until the end of time."""
    spark = builder().getOrCreate()
    given = dict(option.split("=", 1) for option in options)
    query = start(spark, address, topic, Path(folder), **given).start()
    last = -1
    while query.isActive:
        query.awaitTermination(0.05)
        progress = query.lastProgress
        if progress is not None and progress.batchId > last and progress.numInputRows:
            last = progress.batchId
            print("done", last, flush=True)  # noqa: T201 - for who waits
    raise SystemExit(str(query.exception()))


if __name__ == "__main__":
    main(*sys.argv[1:])
