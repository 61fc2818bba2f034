"""A Spark job that follows a topic into Parquet files: a driver of its own, to be killed.

    python -m tests.system.spark.follow BOOTSTRAP TOPIC OUTPUT CHECKPOINT [OPTION=VALUE ...]

It prints the id of each micro-batch that is done. The source is found without being registered.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from tests.system.spark.conftest import SPARK_CONFIG
from tests.system.spark.reading import ROW

ROOT = Path(__file__).parents[3]


class Follower:
    """The job in a process group of its own.

    Args:
        arguments: of the job.
    """

    def __init__(self, *arguments):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.system.spark.follow", *map(str, arguments)],
            cwd=ROOT,
            env=os.environ | {"PYSPARK_PYTHON": sys.executable},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.kill()

    def wait_for_batches(self, count):
        """Return when this many micro-batches are done; another one is under way by then."""
        for _ in range(count):
            line = self._process.stdout.readline()
            assert line.startswith("done "), f"the job ended: {line!r}"

    def kill(self):
        """End driver, JVM and workers with SIGKILL."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process.stdout.close()


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
    builder = SparkSession.builder
    for name, value in SPARK_CONFIG.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    given = dict(option.split("=", 1) for option in options)
    query = start(spark, address, topic, Path(folder), **given).start()
    last = -1
    while query.isActive:
        query.awaitTermination(0.05)
        progress = query.lastProgress
        if progress is not None and progress.batchId > last and progress.numInputRows:
            last = progress.batchId
            print("done", last, flush=True)  # noqa: T201 - read by `wait_for_batches`
    raise SystemExit(str(query.exception()))


if __name__ == "__main__":
    main(*sys.argv[1:])
