"""A local Spark, and the same exact offset ranges once more, read with its SQL."""

from __future__ import annotations

import json
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from demo.check import compare
from memq import AdminClient
from memq.spark import MemqDataSource

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from demo.check import Comparison

ROOT = Path(__file__).parents[1]
CONFIG = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",
}
QUERY = "SELECT key, value, partition, offset FROM topic"


def by_spark(spark: SparkSession, address: str, topic: str, lines: Sequence[bytes]) -> Comparison:
    """Read exact offset ranges with a Spark query; what is collected is what Spark's tasks read."""
    with AdminClient(address) as admin:
        partitions = admin.offsets(topic)
    frame = (
        spark.read.format("memq")
        .option("bootstrap", address)
        .option("topic", topic)
        .option("startingOffsets", json.dumps({str(p.partition): p.start for p in partitions}))
        .option("endingOffsets", json.dumps({str(p.partition): p.end for p in partitions}))
        .load()
    )
    frame.createOrReplaceTempView("topic")
    rows = spark.sql(QUERY).toArrow()
    batches = len(
        set(zip(*(rows[name].to_pylist() for name in ("partition", "offset")), strict=True))
    )
    pairs = zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True)
    return compare(pairs, batches, lines)


@contextmanager
def session() -> Iterator[SparkSession]:
    """A local Spark, for a while."""
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable  # workers import this tree, as the driver does
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    builder = SparkSession.builder.appName("memq-demo")
    for name, value in CONFIG.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.dataSource.register(MemqDataSource)
    try:
        yield spark
    finally:
        spark.stop()
