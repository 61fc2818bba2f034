"""One exact range of offsets is written once, to files or to a table, and a manifest says so.

Theory of operation
-------------------
A range of offsets names the same Batches forever. `write_range` does for every output:

1. What the range must give is counted from its notifications; with `permissive` every Message that
   cannot be read, and so is left out, is named (`memq.spark.examine`).
2. The sink writes the rows where no reader looks, counts the rows of the finished files, and gives
   them their place; unless they are as many as they must be, the job fails and changes nothing.
3. The consumed range is reported, and the manifest is written, last.

The sink of this module is a folder of Parquet files for each range,
`memq_topic=T/memq_topic_id=I/memq_partition=N/memq_range=<start>-<end>`; that of tables is
`memq.spark.iceberg`. A second run replaces the folder of its range and nothing else. A job that is
killed leaves at most a hidden folder, which the next run of the range deletes. A job that only
seemed dead loses its hidden folder in the same way, and fails: a folder is taken by a rename, so a
part of one can never become the folder of the range.

Spark and others take a folder `name=value` for a column, and its value for that of every row below,
even where the files have a column of that name, in upper or lower case. So all columns are in the
files, including those that say where a row comes from, and the names of the folders begin with
`memq_`; a topic that has a column with one of these names is refused before anything is written.
Where a topic has a column with the name of an origin, the files have the topic's column.
"""

from __future__ import annotations

import json
import logging
import re
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias
from uuid import uuid4

import msgspec

from memq.client.audit.reporter import report_consumed
from memq.client.topic import SyncTopicClient
from memq.core.audit.reports import ConsumedReport
from memq.core.format.schema import RANGE_COLUMNS, deserialize_schema
from memq.core.manifest import Manifest, describe_left_out, encode_manifest
from memq.core.named_values import NO_VALUES
from memq.core.units import counted
from memq.errors import DataLossError
from memq.spark import files
from memq.spark.columns import ORIGINS
from memq.spark.examine import examine
from memq.spark.topic import REQUEST_TIMEOUT_S, AdvisingLoop
from memq.tables.fitting import NAMING_COLUMNS, check_columns, folded

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pyspark.sql import DataFrame, SparkSession

    from memq.core.named_values import GivenValues
    from memq.core.ranges import OffsetRange

log = logging.getLogger("memq.spark")

_COUNTS = ("batches", "messages", "records", "crc_sum")
_PATTERN = re.compile(r"[]{}[*?\\]")


@dataclass(frozen=True, kw_only=True)
class Job:
    """What all jobs that write a topic are told.

    Attributes:
        name: of the job; it is also the consumer that the audit knows.
        topic: the topic.
        output: folder under which each range gets its own; or the table,
            "[catalog:]namespace.table".
        bootstrap: some brokers.
        mode: "failfast", or "permissive" to leave out what is damaged or gone.
        token: credential; empty where the brokers ask for none.
        report: tell the audit what was consumed.
        file_bytes: stored bytes that go into one file, as few files as that makes; None for as
            many files as tasks that read the range fast.
    """

    name: str
    topic: str
    output: str
    bootstrap: str
    mode: str = "failfast"
    token: str = ""
    report: bool = True
    file_bytes: int | None = None

    def read_options(self) -> dict[str, str]:
        """Return the options of a read."""
        options = {"bootstrap": self.bootstrap, "topic": self.topic, "mode": self.mode}
        options["maps"] = "map"  # files keep a key that is there twice
        if self.file_bytes is not None:  # else small ranges are cut finer, to use every processor
            options |= {"maxBytesPerPartition": str(self.file_bytes), "minPartitions": "1"}
        return options | ({"token": self.token} if self.token else {})


@dataclass(frozen=True, kw_only=True)
class RangeJob(Job):
    """A range to write.

    Attributes:
        range: the offsets; with a topic id, the topic must be that one.
        manifest: file to write at the end.
        catalog_options: of the table's catalog, besides those of this machine.
    """

    range: OffsetRange
    manifest: str
    catalog_options: GivenValues = NO_VALUES

    @property
    def parent(self) -> str:
        """Folder of the ranges of the read partition, once the topic id is known."""
        topic, topic_id, partition, _ = RANGE_COLUMNS
        parent = f"{self.output.rstrip('/')}/{topic}={self.topic}"
        return f"{parent}/{topic_id}={self.range.topic_id}/{partition}={self.range.partition}"

    @property
    def folder_name(self) -> str:
        """Name of the folder of the range."""
        return f"{RANGE_COLUMNS[-1]}={self.range.start:012d}-{self.range.end:012d}"

    def read_options(self) -> dict[str, str]:
        """Return the options of a read of exactly this range."""
        partition, start, end, topic_id = self.range
        options = super().read_options() | {
            "startingOffsets": json.dumps({partition: start}),
            "endingOffsets": json.dumps({partition: end}),
        }
        return options | ({"topicId": topic_id} if topic_id else {})


Placed: TypeAlias = tuple[str, list[str]]
"""The folder of files, or the table, and the names of the files."""
Sink: TypeAlias = "Callable[[SparkSession, RangeJob, Manifest, DataFrame], Placed]"
"""Puts the rows of a range in their place; the manifest says what they must be."""


def open_topic(job: Job, topic_id: str = "") -> SyncTopicClient:
    """Open a client of the topic that a job is about; close it.

    Args:
        job: the job.
        topic_id: of the topic; empty for whichever there is.
    """
    return SyncTopicClient(
        job.bootstrap,
        job.topic,
        topic_id=topic_id,
        token=job.token,
        client="memq.spark",
        request_timeout_s=REQUEST_TIMEOUT_S,
        loop=AdvisingLoop,
    )


def check_retained(job: RangeJob) -> None:
    """Make sure that the range is there, before Spark is started for it.

    Raises:
        TopicRecreatedError: the topic is another one than the range was planned for.
        OffsetOutOfRangeError: some of it is not retained.
        InvalidRequestError: there is no such read partition.
        MemqError: there is no such topic, or the brokers cannot be asked.
    """
    with open_topic(job, job.range.topic_id) as topic:
        topic.check_retained(job.range)


def range_to_parquet(spark: SparkSession, job: RangeJob) -> Manifest:
    """Write the range to its folder; returns the manifest that was written.

    Raises:
        MemqError: as `write_range`.
    """
    return write_range(spark, job, _to_folder, RANGE_COLUMNS)


def write_range(
    spark: SparkSession, job: RangeJob, sink: Sink, reserved: Collection[str]
) -> Manifest:
    """Write the range, see above; returns the manifest that was written.

    Args:
        spark: the session.
        job: what to write.
        sink: where to.
        reserved: names of columns that the output has besides those of the topic.

    Raises:
        TopicRecreatedError: the topic is another one than the range was planned for, or became
            another one meanwhile.
        SchemaMismatchError: the output cannot hold a column of the topic.
        OffsetOutOfRangeError: some of the range is not retained.
        DataLossError: an object is gone, or Spark wrote other than what the range must give.
        CorruptDataError: an object is damaged.
        ConfigError: a path has no scheme, and Spark's default file system is not this machine's.
        StorageError: files cannot be written or renamed.
        MemqError: brokers or storage failed.
        PySparkException: Spark failed; errors of tasks come as such as well.
    """
    started_ms = time.time_ns() // 1_000_000
    files.check_scheme(spark, job.manifest)
    job, columns = settled(job, reserved)
    log.info("%s: topic %s, %s, into %s", job.name, job.topic, job.range, job.output)
    manifest = _expected(spark, job, started_ms)
    records, batches = counted(manifest.records, "record"), counted(manifest.batches, "Batch")
    log.info("expecting %s in %s", records, batches)
    allow_times(spark)
    rows = spark.read.format("memq").options(**job.read_options(), columns=",".join(columns))
    output, names = sink(spark, job, manifest, rows.load())
    manifest = msgspec.structs.replace(
        manifest, output=output, files=sorted(names), finished_ms=time.time_ns() // 1_000_000
    )
    if left_out := describe_left_out(manifest):
        log.warning("%s: %s", job.name, left_out)
    if job.report:
        report_consumed(job.bootstrap, [consumed(manifest)], token=job.token)
    files.write(job.manifest, encode_manifest(manifest))
    log.info("wrote %s to %s in %s", records, counted(len(names), "file"), output)
    return manifest


def _expected(spark: SparkSession, job: RangeJob, started_ms: int) -> Manifest:
    """Make the manifest of a range before it is written."""
    with open_topic(job, job.range.topic_id) as topic:
        account = examine(spark, topic, job.range, job.read_options())
    return Manifest(
        job=job.name,
        topic=job.topic,
        **job.range._asdict(),
        **account.read._asdict(),
        batches=account.published.batches,
        bytes=account.published.bytes,
        skipped_messages=account.skipped.messages,
        skipped_records=account.skipped.records,
        left_out=account.left_out,
        unnamed_messages=account.unnamed_messages,
        left_out_crc_sum=account.skipped.crc_sum,
        output="",
        files=[],
        started_ms=started_ms,
        finished_ms=started_ms,
    )


def _to_folder(
    spark: SparkSession, job: RangeJob, manifest: Manifest, rows: DataFrame
) -> tuple[str, list[str]]:
    """Write rows to a hidden folder, which takes the place of that of the range."""
    files.check_scheme(spark, job.output)
    mark = f".{job.folder_name}-"
    hidden = f"{job.parent}/{mark}{uuid4().hex}"
    for stale in files.names(job.parent):
        if stale.startswith(mark):
            log.info("deleting %s, left by a run that did not finish", stale)
            files.discard(f"{job.parent}/{stale}", aside=f"{hidden}-stale")
    names = write_files(spark, manifest, rows, hidden)
    folder = f"{job.parent}/{job.folder_name}"
    files.replace(hidden, folder, aside=f"{hidden}-old")
    return folder, names


def write_files(spark: SparkSession, manifest: Manifest, rows: DataFrame, folder: str) -> list[str]:
    """Write rows to Parquet files in a folder, and count them; returns the names of the files.

    Raises:
        DataLossError: they are not as many as they must be.
        PySparkException: Spark failed.
    """
    rows.write.option("compression", "zstd").mode("overwrite").parquet(folder)
    written = spark.read.parquet(literal(folder)).count()
    if written != manifest.records:
        raise DataLossError(
            f"topic {manifest.topic!r} partition {manifest.partition} [{manifest.start}, "
            f"{manifest.end}) must give {counted(manifest.records, 'record')}, but {folder} has "
            f"{written} and is left there; nothing else was changed. Run the job again"
        )
    return [each for each in files.names(folder) if re.fullmatch(r"[^.].*\.parquet", each)]


def consumed(manifest: Manifest) -> ConsumedReport:
    """Make the report to the audit about a finished range."""
    names = ("topic", "topic_id", "partition", "start", "end", *_COUNTS)
    return ConsumedReport(
        **{name: getattr(manifest, name) for name in names},
        consumer=manifest.job,
        window_start_ms=manifest.started_ms,
        window_end_ms=manifest.finished_ms,
        client="spark",
    )


def settled(job: RangeJob, reserved: Collection[str] = RANGE_COLUMNS) -> tuple[RangeJob, list[str]]:
    """Return the job with the topic id that it is about, and the columns of the files.

    Args:
        job: the job.
        reserved: names of columns that the output has besides those of the topic.

    Raises:
        SchemaMismatchError: the topic has a column of a reserved name, two that Spark takes for
            one, or one that files cannot hold.
        MemqError: as `check_retained`.
    """
    with open_topic(job, job.range.topic_id) as topic:
        topic.check_retained(job.range)
        info = topic.info()
    own = deserialize_schema(info.schemas[info.schema_id])
    check_columns(own, job.topic, reserved, table=reserved is NAMING_COLUMNS)
    taken = set(map(folded, own.names))
    columns = [*own.names, *(name for name in ORIGINS if name not in taken)]
    return replace(job, range=job.range._replace(topic_id=info.topic_id)), columns


def literal(path: str) -> str:
    """Return the path as Spark reads it, which takes a name for a pattern."""
    return _PATTERN.sub(r"\\\g<0>", path)


def allow_times(spark: SparkSession) -> None:
    """Let Spark write and read times of day in Parquet, which it can do and has switched off."""
    spark.conf.set("spark.sql.timeType.enabled", "true")
