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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

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


class Sums(NamedTuple):
    """What all engines must find alike."""

    rows: int
    different: int
    total: int


class Mover(threading.Thread):
    """Writes to a topic, and puts what was written into the table, until it is told to stop.

    Attributes:
        did: what it did, counted.
    """

    def __init__(self, lake: TopicLake, seed: int) -> None:
        super().__init__(name="mover")
        self.did: Counter[str] = Counter()
        self._lake, self._rng = lake, random.Random(seed)
        self._stop_wanted = threading.Event()
        self._failure: BaseException | None = None
        self._held = dict.fromkeys(range(PARTITIONS), 0)

    def run(self) -> None:
        try:
            while not self._stop_wanted.is_set():
                self._move()
        except BaseException as exc:  # noqa: BLE001 - raised where it is stopped
            self._failure = exc

    def stop(self) -> None:
        """End it, and raise what it failed with."""
        self._stop_wanted.set()
        self.join()
        if self._failure is not None:
            raise self._failure

    def _move(self) -> None:
        self._lake.produce(self._rng.randint(1, 4))
        self.did["produced"] += 1
        for partition, end in self._lake.ends().items():
            held = self._held[partition]
            new = end - BEHIND
            if new - held < 2:
                continue
            middle = self._rng.randint(held, new - 1)
            for start, stop in [(middle, new), (held, middle)]:  # a gap, for a moment
                if start < stop:
                    self._lake.put(start, stop, partition)
                    self.did["put in"] += 1
            self._held[partition] = new
        if self._rng.random() < 0.1:
            compact(self._lake.table)
            self.did["compacted"] += 1


def by_duckdb(_: SparkSession | None, lake: TopicLake, until: dict[int, int]) -> Sums:
    pinned = lake.scan(until=until)  # noqa: F841 - DuckDB finds it by its name
    found = duckdb.sql("select count(*), count(distinct n), coalesce(sum(n), 0) from pinned")
    return Sums(*map(int, found.fetchall()[0]))


def by_polars(_: SparkSession | None, lake: TopicLake, until: dict[int, int]) -> Sums:
    column = pl.DataFrame(lake.scan(until=until))["n"]
    return Sums(len(column), column.n_unique(), column.sum())


def by_spark(spark: SparkSession | None, lake: TopicLake, until: dict[int, int]) -> Sums:
    frame = spark_frame(spark, lake, until)
    n = F.col("n")
    row = frame.select(F.count("*"), F.count_distinct(n), F.coalesce(F.sum(n), F.lit(0))).first()
    return Sums(*row)


def spark_frame(
    spark: SparkSession | None, lake: TopicLake, until: dict[int, int] | None = None, **more: str
) -> DataFrame:
    return scan(
        spark, bootstrap=lake.address, topic=lake.topic, table=lake.table, until=until, **more
    )


Engine = Callable[["SparkSession | None", TopicLake, dict[int, int]], Sums]
ENGINES: list[Engine] = [by_duckdb, by_polars, by_spark]


def by_topic(lake: TopicLake, until: dict[int, int]) -> Sums:
    """From Batches alone, all of which are retained here."""
    numbers = [
        n
        for partition, end in until.items()
        for n in read_range(lake.address, topic=lake.topic, partition=partition, start=0, end=end)[
            "n"
        ].to_pylist()
    ]
    return Sums(len(numbers), len(set(numbers)), sum(numbers))


def pin_and_compare(
    spark: SparkSession | None,
    lake: TopicLake,
    pins: int,
    seed: int,
    engines: Sequence[Engine] = ENGINES,
) -> Counter[str]:
    """Compare so many times; what happened meanwhile, counted.

    Raises:
        AssertionError: an engine finds other rows.
    """
    rng = random.Random(seed)
    lake.produce(PARTITIONS)
    mover = Mover(lake, seed)
    mover.start()
    try:
        while not mover.did["put in"] and mover.is_alive():  # the first put makes the table
            mover.join(0.05)
        for number in range(pins):
            ends = lake.ends()
            until = (
                ends if number % 2 else {each: rng.randint(0, end) for each, end in ends.items()}
            )
            expected = by_topic(lake, until)
            for engine in rng.sample(engines, len(engines)):
                found = engine(spark, lake, until)
                assert found == expected, f"{engine.__name__} at {until}: {found}, not {expected}"
            assert expected.rows == expected.different == sum(until.values()) * ROWS
            mover.did["rows of the last pin"] = expected.rows
    finally:
        mover.stop()
    return mover.did


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
    print(  # noqa: T201
        f"ok: seed {given.seed}, {given.pins} pins, {dict(done)}; DuckDB, Polars and Spark agree"
    )
