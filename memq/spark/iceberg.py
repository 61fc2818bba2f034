"""One exact range of offsets becomes rows of an Iceberg table, once.

The files are written by Spark, each attempt's to a folder of its own below the table's location,
and committed by pyiceberg, on the driver, which alone needs it. How a range comes to be in the
table once is in `memq.tables.commit`. Whoever runs the job again finds the range there, writes
nothing, and gets the same manifest but for its files.
"""

from __future__ import annotations

import logging
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's documentation has it
from pyspark.sql.pandas.types import to_arrow_schema

from memq.core.named_values import NO_VALUES
from memq.core.units import counted
from memq.errors import RangeConflictError
from memq.spark.client_folders import folders_of
from memq.spark.examine import examine
from memq.spark.parquet import (
    RangeJob,
    allow_times,
    check_count,
    finish,
    manifest_of,
    parquet_files,
    settled,
)
from memq.tables.check import count_rows
from memq.tables.commit import Written, commit_range
from memq.tables.fitting import NAMING_COLUMNS, widened
from memq.tables.iceberg import open_table
from memq.tables.ledger import TopicRange

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from memq.core.manifest import Manifest
    from memq.core.named_values import GivenValues
    from memq.spark.examine import RangeAccount
    from memq.tables.iceberg import IcebergTable

log = logging.getLogger("memq.spark")

_, INCARNATION_COLUMN, _, _ = NAMING_COLUMNS


@dataclass(frozen=True, kw_only=True)
class IcebergJob(RangeJob):
    """A range to put into a table.

    Attributes:
        output: the table, "[catalog:]namespace.table".
        catalog_options: of the catalog, beside those of this machine.
    """

    catalog_options: GivenValues = NO_VALUES


def range_to_iceberg(spark: SparkSession, job: IcebergJob) -> Manifest:
    """Put the range into the table, unless it is there; returns the manifest that was written.

    The table is made when there is none. Of the session it sets how Parquet files hold times,
    which Iceberg wants in microseconds.

    Raises:
        RangeConflictError: some of the range is in the table, and some is not.
        SchemaMismatchError: the rows do not fit the table.
        TableConflictError: others have changed the table each time, or it takes no commit.
        ConfigError: there is no such catalog.
        MemqError: as `memq.spark.parquet.range_to_parquet`.
        PySparkException: Spark failed; errors of tasks come as such as well.
    """
    started_ms = time.time_ns() // 1_000_000
    job, columns = settled(job, NAMING_COLUMNS)
    table = open_table(job.output, job.catalog_options)
    log.info("%s: topic %s, %s, into %s", job.name, job.topic, job.range, table.identifier)
    account = examine(spark, job.read_options())
    reading = spark.read.format("memq").options(**job.read_options(), columns=",".join(columns))
    rows = reading.load().withColumn(INCARNATION_COLUMN, F.lit(job.range.incarnation))
    made = to_arrow_schema(rows.schema, timezone="UTC")
    table.create(pa.schema([each.with_type(widened(each.type)) for each in made]))
    attempt = uuid.uuid4().hex
    location = table.location

    wanted = _counts(job, account)

    def write() -> Written:
        return _write(spark, job, account, rows, wanted.folder(location, attempt))

    outcome = commit_range(table, wanted, write, attempt=attempt, job=job.name)
    files: Sequence[str] = ()
    if outcome.committed and outcome.written is not None:
        files = outcome.written.files
    elif wanted.offsets.size:
        log.info("%s: table %s has the range already", job.name, table.identifier)
        _check_found(table, wanted)
    names = sorted(path.removeprefix(f"{location}/") for path in files)
    manifest = manifest_of(job, account, started_ms, location, names)
    finish(job, manifest, folders_of(spark))
    return manifest


def _write(
    spark: SparkSession, job: IcebergJob, account: RangeAccount, rows: DataFrame, folder: str
) -> Written:
    """Write the rows to a folder that only this attempt knows."""
    counts = _counts(job, account)
    if not counts.records:
        return Written(counts, [])
    allow_times(spark)
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    path = for_spark(folder)
    rows.write.option("compression", "zstd").parquet(path)
    check_count(spark, job, path, counts.records)
    log.info("%s: %s written; committing", job.name, counted(counts.records, "record"))
    return Written(counts, [f"{folder}/{name}" for name in parquet_files(folders_of(spark), path)])


def _counts(job: IcebergJob, account: RangeAccount) -> TopicRange:
    return TopicRange(
        topic=job.topic,
        **job.range._asdict(),
        batches=account.published.batches,
        messages=account.read.messages,
        records=account.read.records,
        crc_sum=account.read.crc_sum,
    )


def _check_found(table: IcebergTable, expected: TopicRange) -> None:
    """Make sure that a range that was there before holds what it must.

    It is compared with what its snapshot says. Where there is none, as it has expired or the
    offsets were put in by ranges with other bounds, rows are counted.

    Raises:
        RangeConflictError: it holds other Messages: some were damaged or gone then, or are now.
    """
    base = table.load()
    for found in table.ranges(base):
        if found.range.offsets != expected.offsets:
            continue
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
    """A location as Hadoop's file systems spell it."""
    scheme, separator, rest = location.partition("://")
    return f"s3a://{rest}" if separator and scheme in ("s3", "s3n") else location
