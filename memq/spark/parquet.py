"""One exact range of offsets becomes a folder of Parquet files, and a manifest that says so.

Theory of operation
-------------------
A range of offsets names the same Batches for ever, so its rows are written to a folder of its own,
`topic=T/partition=N/range=<start>-<end>`, and a run that is repeated replaces that folder and
nothing else. In order:

1. What the range must give is counted from its notifications.
2. The rows are written to a hidden folder beside the right one.
3. The rows of the finished files are counted; unless they are as many as they must be, the job
   fails here.
4. The folder takes its place, the consumed range is reported, and the manifest is written, last.

A job that is killed leaves at most the hidden folder, which the next run of the range deletes. One
that was only thought dead loses its hidden folder to the next run in the same way, and fails: a
folder changes hands by a rename, so no part of one can take the place.
Columns `topic` and `partition` are not in the files: they stand in the path, from where Spark and
others take them.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's documentation has it

from memq.client.consumed import report_consumed
from memq.core.audit import ConsumedReport
from memq.core.format.schema import deserialize_schema
from memq.core.manifest import Manifest, encode_manifest
from memq.errors import DataLossError
from memq.spark.batch import FOR_EVER_MS
from memq.spark.columns import ORIGINS
from memq.spark.driver import Driver
from memq.spark.folders import Folders
from memq.spark.messages import OK, REPEAT
from memq.spark.options import parse_read_options
from memq.spark.ranges import resolve
from memq.spark.seen import History, Names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("memq.spark")

IN_THE_PATH = ("topic", "partition")
CRC_MODULUS = 2**64


@dataclass(frozen=True)
class RangeJob:
    """What to do.

    Attributes:
        name: of the job; it is also the consumer that the audit knows.
        topic: the topic.
        partition: read partition.
        start: first offset.
        end: one past the last offset.
        output: folder under which the range gets its own.
        manifest: file to write at the end.
        bootstrap: some brokers.
        mode: "failfast", or "permissive" to leave out what is damaged or gone.
        token: credential; empty where the brokers ask for none.
        report: tell the audit what was consumed.
        file_bytes: stored bytes that go into one file, as few files as that makes; None for as
            many files as tasks that read the range fast.
    """

    name: str
    topic: str
    partition: int
    start: int
    end: int
    output: str
    manifest: str
    bootstrap: str
    mode: str = "failfast"
    token: str = ""
    report: bool = True
    file_bytes: int | None = None

    @property
    def parent(self) -> str:
        """Folder of the ranges of the read partition."""
        return f"{self.output.rstrip('/')}/topic={self.topic}/partition={self.partition}"

    @property
    def folder_name(self) -> str:
        """Name of the folder of the range."""
        return f"range={self.start:012d}-{self.end:012d}"

    def read_options(self) -> dict[str, str]:
        """Options of a read of exactly this range."""
        options = {
            "bootstrap": self.bootstrap,
            "topic": self.topic,
            "startingOffsets": json.dumps({self.partition: self.start}),
            "endingOffsets": json.dumps({self.partition: self.end}),
            "mode": self.mode,
        }
        if self.file_bytes is not None:  # else small ranges are cut finer, to use every processor
            options |= {"maxBytesPerPartition": str(self.file_bytes), "minPartitions": "1"}
        return options | ({"token": self.token} if self.token else {})


class Counts(NamedTuple):
    """What a range gives."""

    batches: int
    bytes: int
    messages: int
    records: int
    crc_sum: int
    repeats: int = 0
    skipped: int = 0


def check_held(job: RangeJob) -> None:
    """Make sure that the range is there, before Spark is started for it.

    Raises:
        OffsetOutOfRangeError: some of it is not held.
        ConfigError: there is no such read partition.
        MemqError: there is no such topic, or the brokers cannot be asked.
    """
    options = parse_read_options(job.read_options())
    with Driver(options) as driver:
        resolve(driver, options)


def range_to_parquet(spark: SparkSession, job: RangeJob) -> Manifest:
    """Write the range, see above; returns the manifest that was written.

    Raises:
        OffsetOutOfRangeError: some of the range is not held.
        DataLossError: an object is gone, or Spark wrote other than what the range must give.
        CorruptDataError: an object is damaged.
        StorageError: files cannot be written or renamed.
        MemqError: brokers or storage failed.
        PySparkException: Spark failed; errors of tasks come as such as well.
    """
    started_ms = time.time_ns() // 1_000_000
    log.info("%s: %s/%d [%d, %d)", job.name, job.topic, job.partition, job.start, job.end)
    counts, columns = _look(spark, job)
    log.info("expecting %d records in %d Batches", counts.records, counts.batches)
    folders = Folders(spark)
    mark = f".{job.folder_name}-"
    hidden = f"{job.parent}/{mark}{spark.sparkContext.applicationId}"
    for stale in folders.names(job.parent):
        if stale.startswith(mark):
            log.info("deleting %s, left by a run that did not finish", stale)
            folders.discard(f"{job.parent}/{stale}", aside=f"{hidden}-stale")
    rows = spark.read.format("memq").options(**job.read_options(), columns=",".join(columns))
    rows.load().write.option("compression", "zstd").mode("overwrite").parquet(hidden)
    _check(spark, job, hidden, counts)
    folder = f"{job.parent}/{job.folder_name}"
    folders.replace(hidden, folder, aside=f"{hidden}-old")
    files = [name for name in folders.names(folder) if name.endswith(".parquet")]
    manifest = Manifest(
        job=job.name,
        topic=job.topic,
        partition=job.partition,
        start=job.start,
        end=job.end,
        batches=counts.batches,
        messages=counts.messages,
        records=counts.records,
        bytes=counts.bytes,
        repeats=counts.repeats,
        skipped_messages=counts.skipped,
        crc_sum=counts.crc_sum,
        output=folder,
        files=[name for name in files if not name.startswith(".")],
        started_ms=started_ms,
        finished_ms=time.time_ns() // 1_000_000,
    )
    if job.report:
        report_consumed(job.bootstrap, [consumed(manifest)], token=job.token)
    folders.write(job.manifest, encode_manifest(manifest))
    log.info("wrote %d records to %d files in %s", counts.records, len(manifest.files), folder)
    return manifest


def consumed(manifest: Manifest) -> ConsumedReport:
    """What the audit is told about a finished range."""
    return ConsumedReport(
        topic=manifest.topic,
        consumer=manifest.job,
        partition=manifest.partition,
        start=manifest.start,
        end=manifest.end,
        batches=manifest.batches,
        messages=manifest.messages,
        records=manifest.records,
        repeats=manifest.repeats,
        crc_sum=manifest.crc_sum,
        window_start_ms=manifest.started_ms,
        window_end_ms=manifest.finished_ms,
        client="spark",
    )


def _look(spark: SparkSession, job: RangeJob) -> tuple[Counts, list[str]]:
    """What the range must give, and the columns to read."""
    options = parse_read_options(job.read_options())
    seen, history = Names(), History(FOR_EVER_MS)
    batches = size = messages = records = crc_sum = 0
    with Driver(options) as driver:
        topic = driver.topic()
        own = deserialize_schema(topic.schemas[topic.schema_id]).names
        for stretch in resolve(driver, options):
            for entry, notification in driver.notifications(*stretch):
                history.add(notification, entry.timestamp_ms, seen)
                batches += 1
                size += notification.size_bytes
                messages += notification.messages
                records += notification.records
                crc_sum += sum(run.crc_sum for run in notification.producers)
    columns = [*own, *(name for name in ORIGINS if name not in {*own, *IN_THE_PATH})]
    counts = Counts(batches, size, messages, records, crc_sum % CRC_MODULUS)
    if seen or options.permissive:
        counts = _examined(spark, job, counts)
    return counts, columns


def _examined(spark: SparkSession, job: RangeJob, counts: Counts) -> Counts:
    """The counts after a look at every Message: some may be repeats, or cannot be read."""
    view: DataFrame = (
        spark.read.format("memq").options(**job.read_options(), view="messages").load()
    )
    found = {
        row["status"]: row
        for row in view.groupBy("status")
        .agg(
            F.count("*").alias("messages"),
            F.sum("records").alias("records"),
            F.sum("crc32c").alias("crc_sum"),
        )
        .collect()
    }
    total = sum(row["messages"] for row in found.values())
    sound = found.get(OK)
    repeats = found[REPEAT]["messages"] if REPEAT in found else 0
    return counts._replace(
        messages=sound["messages"] if sound else 0,
        records=sound["records"] if sound else 0,
        crc_sum=sound["crc_sum"] % CRC_MODULUS if sound else 0,
        repeats=repeats,
        skipped=total - repeats - (sound["messages"] if sound else 0),
    )


def _check(spark: SparkSession, job: RangeJob, folder: str, counts: Counts) -> None:
    written = spark.read.parquet(folder).count()
    if written != counts.records:
        raise DataLossError(
            f"{job.topic}/{job.partition} [{job.start}, {job.end}) must give {counts.records} "
            f"records, but {written} were written to {folder}, which is left there; nothing else "
            "was changed. Run the job again"
        )
