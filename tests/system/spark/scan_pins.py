"""Read a table and its topic at pinned offsets while both move, with three engines, and compare.

`python -m tests.system.spark.scan_pins --pins 50`.

A producer writes, ranges are put into the table, in order and out of order, and the table is
compacted. Meanwhile DuckDB, Polars and Spark each read up to the same offsets, at other moments,
and must count and sum the same rows, those of the topic itself.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import polars as pl
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's documentation has it

from memq import read_range
from memq.spark import scan
from memq.testing.broker import BrokerProcess
from tests.integration.tables.lake import compact
from tests.integration.tables.topic_lake import ROWS, TopicLake
from tests.system.spark.conftest import start_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 2
BEHIND = 3
"""Offsets of a read partition that are not in the table, at least; so both sides are read."""


def move(lake: TopicLake, rng: random.Random, stop: threading.Event, did: Counter[str]) -> None:
    """Write to a topic, and put what was written into the table, until told to stop."""
    held = Counter[int]()
    while not stop.is_set():
        lake.produce(rng.randint(1, 4))
        for partition, end in lake.ends().items():
            new = end - BEHIND
            if new - held[partition] < 2:
                continue
            middle = rng.randint(held[partition], new - 1)
            # A gap, for a moment.
            for start, end_of_range in [(middle, new), (held[partition], middle)]:
                if start < end_of_range:
                    lake.put(start, end_of_range, partition)
                    did["put in"] += 1
            held[partition] = new
        if rng.random() < 0.1:
            compact(lake.table)
            did["compacted"] += 1


def by_duckdb(_, lake, until):
    """Rows, different numbers, and their sum: what all engines must find alike."""
    pinned = lake.scan(until=until)  # noqa: F841 - DuckDB finds it by its name
    found = duckdb.sql("select count(*), count(distinct n), coalesce(sum(n), 0) from pinned")
    return tuple(map(int, found.fetchall()[0]))


def by_polars(_, lake, until):
    column = pl.DataFrame(lake.scan(until=until))["n"]
    return len(column), column.n_unique(), column.sum()


def by_spark(spark, lake, until):
    n = F.col("n")
    found = spark_frame(spark, lake, until).select(
        F.count("*"), F.count_distinct(n), F.coalesce(F.sum(n), F.lit(0))
    )
    return tuple(found.first())


def by_topic(lake, until):
    """From Batches alone, all of which are retained here."""
    numbers = [
        n
        for partition, end in until.items()
        for n in read_range(lake.address, topic=lake.topic, partition=partition, start=0, end=end)[
            "n"
        ].to_pylist()
    ]
    return len(numbers), len(set(numbers)), sum(numbers)


def spark_frame(spark: SparkSession | None, lake, until=None, **more: str) -> DataFrame:
    return scan(
        spark, bootstrap=lake.address, topic=lake.topic, table=lake.table, until=until, **more
    )


def pin_and_compare(spark, lake, pins, seed, engines=(by_duckdb, by_polars, by_spark)):
    """Compare so many times; what happened meanwhile, counted."""
    rng, stop, did = random.Random(seed), threading.Event(), Counter()
    lake.produce(PARTITIONS)
    with ThreadPoolExecutor(1, "mover") as executor:
        mover = executor.submit(move, lake, random.Random(seed), stop, did)
        try:
            while not did["put in"] and not mover.done():  # the first put makes the table
                stop.wait(0.05)
            for number in range(pins):
                ends = lake.ends()
                until = ends if number % 2 else {p: rng.randint(0, end) for p, end in ends.items()}
                expected = by_topic(lake, until)
                for engine in rng.sample(engines, len(engines)):
                    found = engine(spark, lake, until)
                    assert found == expected, f"{engine.__name__} at {until}"
                assert expected[:2] == (sum(until.values()) * ROWS,) * 2
        finally:
            stop.set()
        mover.result()
    return did


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pins", type=int, default=50)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as temporary,
        BrokerProcess(Path(temporary) / "broker") as broker,
    ):
        session = start_session(Path(temporary) / "warehouse")
        moving = TopicLake(broker.address, Path(temporary), partitions=PARTITIONS)
        done = pin_and_compare(session, moving, given.pins, given.seed)
        session.stop()
    print(f"ok: seed {given.seed}, {given.pins} pins, {dict(done)}: engines agree")  # noqa: T201
