"""One exact range of offsets becomes rows of an Iceberg table, once.

The files are written by Spark, each attempt's to a folder of its own below the table's location,
and committed by pyiceberg, on the driver, which alone needs it. How a range comes to be in the
table once is in `memq.tables.commit`. A job that runs again finds the range there, writes
nothing, and gets the same manifest but for its files.
"""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's documentation has it
from pyspark.sql.pandas.types import to_arrow_schema

from memq.core.units import counted
from memq.errors import RangeConflictError
from memq.spark.outputs import write_files, write_range
from memq.tables.check import count_rows
from memq.tables.commit import Written, commit_range
from memq.tables.fitting import NAMING_COLUMNS, widened
from memq.tables.iceberg import open_table
from memq.tables.ledger import TopicRange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from memq.core.manifest import Manifest
    from memq.spark.outputs import RangeJob
    from memq.tables.iceberg import IcebergTable

log = logging.getLogger("memq.spark")

_, TOPIC_ID_COLUMN, _, _ = NAMING_COLUMNS


def range_to_iceberg(spark: SparkSession, job: RangeJob) -> Manifest:
    """Put the range into the table, unless it is there; returns the manifest that was written.

    The table is made when there is none. Of the session it sets how Parquet files hold times,
    which Iceberg wants in microseconds.

    Raises:
        RangeConflictError: some of the range is in the table, and some is not.
        SchemaMismatchError: the rows do not fit the table.
        TableConflictError: others have changed the table each time, or it takes no commit.
        ConfigError: there is no such catalog.
        MemqError: as `memq.spark.outputs.write_range`.
    """
    return write_range(spark, job, _to_table, NAMING_COLUMNS)


def _to_table(
    spark: SparkSession, job: RangeJob, manifest: Manifest, rows: DataFrame
) -> tuple[str, list[str]]:
    table = open_table(job.output, job.catalog_options)
    rows = rows.withColumn(TOPIC_ID_COLUMN, F.lit(job.range.topic_id))
    made = to_arrow_schema(rows.schema, timezone="UTC")
    table.create(pa.schema([each.with_type(widened(each.type)) for each in made]))
    attempt = uuid.uuid4().hex
    location = table.location
    wanted = TopicRange.of(manifest)

    def write() -> Written:
        if not wanted.records:
            return Written(wanted, [])
        spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        folder = wanted.folder(location, attempt)
        names = write_files(spark, manifest, rows, for_spark(folder))
        log.info("%s: %s written; committing", job.name, counted(wanted.records, "record"))
        return Written(wanted, [f"{folder}/{name}" for name in names])

    outcome = commit_range(table, wanted, write, attempt=attempt, job=job.name)
    if outcome.committed and outcome.written is not None:
        files = [path.removeprefix(f"{location}/") for path in outcome.written.files]
        return location, files
    if wanted.offsets.size:
        log.info("%s: table %s has the range already", job.name, table.identifier)
        _check_found(table, wanted)
    return location, []


def _check_found(table: IcebergTable, expected: TopicRange) -> None:
    """Make sure that a range that was there before holds what it must.

    It is compared with what its snapshot says. Where there is none, as it has expired or the
    offsets were put in by ranges with other bounds, rows are counted.

    Raises:
        RangeConflictError: it holds other Messages: some were damaged or gone then, or are now.
    """
    base = table.load()
    found = next((e for e in table.ranges(base) if e.range.offsets == expected.offsets), None)
    if found is not None:
        if found.range != expected:
            raise RangeConflictError(
                f"{expected} is in table {table.identifier} with {_content(found.range)}, put in "
                f"by job {found.job!r}, and would now give {_content(expected)}: Messages were "
                "left out then, or are now. Roll the table back to before that snapshot, and put "
                "the range in again"
            )
        return
    records = count_rows(table, base, expected)
    if records != expected.records:
        raise RangeConflictError(
            f"{expected} is in table {table.identifier} with {counted(records, 'record')}, and "
            f"would now give {counted(expected.records, 'record')}: Messages were left out then, "
            "or are now; or rows were removed or added by others. Compare the two, and put the "
            "topic into a new table if rows are missing"
        )


def _content(range_: TopicRange) -> str:
    records, messages = counted(range_.records, "record"), counted(range_.messages, "Message")
    return f"{records} of {messages}, CRC sum {range_.crc_sum}"


def for_spark(location: str) -> str:
    """Spell a location as Hadoop's file systems do."""
    scheme, separator, rest = location.partition("://")
    return f"s3a://{rest}" if separator and scheme in ("s3", "s3n") else location
