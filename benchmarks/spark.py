"""Full scans by Spark: `python -m benchmarks.spark [--megabytes N]`, 1,000 of each kind by default.

The same rows lie in a topic (1 MiB Messages, zstd), in Parquet (zstd) and in JSON lines, written by
this run. Spark with as many slots as processors reads them in turn, and the best of some rounds
counts. The scan is `sum(length(value))`; "to Parquet" writes all four columns of the rows to
Parquet (zstd). Every reader is told the columns that the scan needs, as a user would. Every reader
finds the same sum, or the run fails.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks.broker import broker_process
from memq import AdminClient, Producer

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

MEGABYTES = 1_000  # of values, of each size
ROUNDS = 5
ROUNDS_WRITING = 3
CHUNK_BYTES = 16 << 20
AIMS = {1024: (1.3, 0.5, 1.3), 100: (2.5, 0.5, None)}
"""By value size: scan against Parquet, scan against JSON, to Parquet against from Parquet."""

ROW = "key binary, value binary, headers map<string,binary>, timestamp timestamp"
WORDS = [
    bytes(random.Random(seed).choices(b"abcdefghijklmnopqrstuvwxyz", k=7)) for seed in range(4096)
]

Row = tuple[str, str, str]


class Place(NamedTuple):
    """Where the rows lie.

    Attributes:
        address: of the broker.
        folder: of the files.
        value_bytes: of a value.
    """

    address: str
    folder: Path
    value_bytes: int

    @property
    def topic(self) -> str:
        """The topic."""
        return f"values-{self.value_bytes}"


def session() -> SparkSession:
    """A local Spark on all processors."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.master": f"local[{os.cpu_count()}]",
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.sql.session.timeZone": "UTC",
    }
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def values(value_bytes: int, count: int, seed: int) -> list[bytes]:
    """Values like text: words, of which zstd makes about a third; lengths differ by 15 %."""
    source = random.Random(seed)
    text = b" ".join(source.choices(WORDS, k=count * value_bytes // 8 + value_bytes))
    lengths = source.choices(range(value_bytes * 85 // 100, value_bytes * 115 // 100), k=count)
    found, at = [], 0
    for length in lengths:
        found.append(text[at : at + length])
        at += length * 7 // 8
    return found


def fill(place: Place, megabytes: int) -> None:
    """Produce the rows."""
    with AdminClient(place.address) as admin:
        admin.create_topic(place.topic, batch_bytes="16MiB", batch_age="1s")
    per_chunk = CHUNK_BYTES // place.value_bytes
    with Producer(
        place.address,
        topic=place.topic,
        acks="all",
        compression="zstd",
        message_bytes=1 << 20,
    ) as producer:
        for number in range(max(1, megabytes * 1_000_000 // CHUNK_BYTES)):
            table = pa.table(
                {
                    "key": pa.array([b"key-%08d" % n for n in range(per_chunk)], pa.binary()),
                    "value": pa.array(values(place.value_bytes, per_chunk, number), pa.binary()),
                }
            )
            producer.write_table(table)
        producer.flush(timeout=300)


def read_memq(spark: SparkSession, place: Place, schema: str) -> DataFrame:
    """The rows in the topic."""
    reader = spark.read.format("memq").schema(schema)
    return reader.options(bootstrap=place.address, topic=place.topic).load()


def read_parquet(spark: SparkSession, place: Place, schema: str) -> DataFrame:
    """The same in Parquet."""
    return spark.read.schema(schema).parquet(str(place.folder / "parquet"))


def read_json(spark: SparkSession, place: Place, schema: str) -> DataFrame:
    """The same in JSON lines."""
    texts = schema.replace("value binary", "value string")
    return spark.read.schema(texts).json(str(place.folder / "json"))


def copy(spark: SparkSession, place: Place) -> None:
    """Write the rows of the topic to Parquet and to JSON lines."""
    rows = read_memq(spark, place, ROW)
    rows.write.parquet(str(place.folder / "parquet"))
    texts = rows.selectExpr("cast(key as string) key", "cast(value as string) value", "timestamp")
    texts.write.option("compression", "none").json(str(place.folder / "json"))


def scan(rows: DataFrame) -> int:
    """Total length of the values."""
    return int(rows.selectExpr("sum(length(value))").first()[0])


def best_s(
    works: dict[str, Callable[[], object]], rounds: int, expected: object
) -> dict[str, float]:
    """Seconds of the quickest round of each; they take turns, for the machine may be busy."""
    found: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            start = time.perf_counter()
            assert work() == expected, name
            found[name].append(time.perf_counter() - start)
    return {name: min(times) for name, times in found.items()}


def rewrite(rows: DataFrame, folder: Path) -> None:
    """Write rows to Parquet."""
    rows.write.mode("overwrite").parquet(str(folder / "rewritten"))


def measure(spark: SparkSession, place: Place) -> list[Row]:
    """Scans and copies of one kind of rows."""
    total = scan(read_parquet(spark, place, "value binary"))
    scans = best_s(
        {
            "memq": lambda: scan(read_memq(spark, place, "value binary")),
            "parquet": lambda: scan(read_parquet(spark, place, "value binary")),
            "json": lambda: scan(read_json(spark, place, "value binary")),
            "whole": lambda: scan(read_memq(spark, place, ROW)),
        },
        ROUNDS,
        total,
    )
    copies = best_s(
        {
            "memq": lambda: rewrite(read_memq(spark, place, ROW), place.folder),
            "parquet": lambda: rewrite(read_parquet(spark, place, ROW), place.folder),
        },
        ROUNDS_WRITING,
        None,
    )
    size = f"{place.value_bytes} B values"
    against_parquet, against_json, copy_aim = AIMS[place.value_bytes]
    rate = f"{scans['memq']:.2f} s, {total / scans['memq'] / 1e6:,.0f} MB/s"
    return [
        (
            f"{size}, scan of {total / 1e6:,.0f} MB",
            rate,
            f"{ratio(scans['memq'], scans['parquet'], against_parquet)} of Parquet "
            f"({scans['parquet']:.2f} s); {ratio(scans['memq'], scans['json'], against_json)} of "
            f"JSON lines ({scans['json']:.2f} s)",
        ),
        (
            f"{size}, scan with all four columns moved",
            f"{scans['whole']:.2f} s",
            "Spark does not tell the source which ones a query needs",
        ),
        (
            f"{size}, to Parquet",
            f"{copies['memq']:.2f} s",
            f"{ratio(copies['memq'], copies['parquet'], copy_aim)} of from Parquet "
            f"({copies['parquet']:.2f} s)",
        ),
    ]


def ratio(found_s: float, other_s: float, aim: float | None) -> str:
    """How many times as long, and the aim."""
    return f"{found_s / other_s:.2f} x" + (f" (aim: at most {aim})" if aim else "")


def run(megabytes: int = MEGABYTES) -> list[Row]:
    """Measure all."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="memq-bench-") as name:
        folder = Path(name)
        spark = session()
        try:
            with broker_process("local", folder / "data") as (address, _):
                for value_bytes in AIMS:
                    place = Place(address, folder / str(value_bytes), value_bytes)
                    fill(place, megabytes)
                    copy(spark, place)
                    rows += measure(spark, place)
                    shutil.rmtree(place.folder)
        finally:
            spark.stop()
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="benchmarks.spark", description=__doc__)
    parser.add_argument("--megabytes", type=int, default=MEGABYTES, help="of values, of each size")
    for row in run(parser.parse_args().megabytes):
        print(*row, sep="\n    ")
