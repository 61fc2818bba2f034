"""Put the shipped lines into an Iceberg table, and read them there with DuckDB and `memq.scan`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb

from demo.check import compare
from memq import AdminClient, OffsetRange, scan
from memq.spark.iceberg import range_to_iceberg
from memq.spark.outputs import RangeJob
from memq.tables.iceberg import open_table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from demo.check import Comparison

NAME = "demo:lake.lines"
COLUMNS = ("key", "value", "partition", "offset")
QUERY = """
SELECT key, value, partition, "offset" FROM read_parquet($files)
WHERE topic = $topic AND memq_topic_id = $topic_id
"""


class DemoLake:
    """A table of a topic, in a catalog of its own: a folder, and a file of SQLite.

    Args:
        directory: where it keeps everything.
        address: of the broker.
        topic: the topic.
        lines: that were shipped.
    """

    def __init__(self, directory: Path, address: str, topic: str, lines: Sequence[bytes]) -> None:
        self._directory = directory / "lake"
        self._directory.mkdir()
        self._address, self._topic, self._lines = address, topic, lines
        self._catalog = {
            "type": "sql",
            "uri": f"sqlite:///{self._directory}/catalog.db",
            "warehouse": f"file://{self._directory}/warehouse",
        }

    def fill(self, spark: SparkSession) -> Comparison:
        """Put each read partition in; what `memq.scan` reads when the first one is."""
        with AdminClient(self._address) as admin:
            found = admin.offsets(self._topic)
        first, *others = [OffsetRange(each.partition, each.start, each.end) for each in found]
        self._put(spark, first)
        halfway = self.by_scan()
        for each in others:
            self._put(spark, each)
        return halfway

    def _put(self, spark: SparkSession, range_: OffsetRange) -> None:
        job = RangeJob(
            name="range_to_iceberg",
            topic=self._topic,
            range=range_,
            bootstrap=self._address,
            output=NAME,
            catalog_options=self._catalog,
            manifest=f"file://{self._directory}/{range_.partition}.json",
            report=False,
        )
        range_to_iceberg(spark, job)

    def by_scan(self) -> Comparison:
        """What the table has from the table, the rest from Batches."""
        rows = scan(
            self._address,
            topic=self._topic,
            table=NAME,
            catalog_options=self._catalog,
            columns=COLUMNS,
            metadata=True,
        )
        return self._compared(rows.read_all())

    def by_duckdb(self) -> Comparison:
        """The Parquet files of the table, by a program that knows nothing of MemQ."""
        with AdminClient(self._address) as admin:
            topic_id = admin.describe_topic(self._topic).topic_id
        table = open_table(NAME, self._catalog)
        naming = {"topic": self._topic, "memq_topic_id": topic_id}
        files = table.plain_files(table.load(), naming, [*naming, *COLUMNS])
        wanted = {"files": files, "topic": self._topic, "topic_id": topic_id}
        return self._compared(duckdb.sql(QUERY, params=wanted).to_arrow_table())

    def _compared(self, rows: pa.Table) -> Comparison:
        keys, values, *places = (rows[name].to_pylist() for name in COLUMNS)
        batches = len(set(zip(*places, strict=True)))
        return compare(zip(keys, values, strict=True), batches, self._lines)
