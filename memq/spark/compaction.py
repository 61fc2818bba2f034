"""Many small Batches become few large Parquet files: range after range, without gap or overlap.

Theory of operation
-------------------
The folder holds its own record: a manifest for each range that is done, under
`_manifests/topic=T/partition=N/`, where readers of the data do not look. The next range of a read
partition begins where its last manifest ends. Before a range is begun it is *intended*: an empty
file with its name is written. A run that finds an intention does just that range first, again as a
whole (`memq.spark.parquet` replaces its folder), so that a run that is killed at any point is
completed by the next one: nothing is left out, nothing is there twice. When the manifest is there
the intention is deleted.

One run at a time may work on a folder; a second one would do the same ranges at the same time.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from memq.core.manifest import check_manifest, decode_manifest
from memq.errors import CorruptDataError, OffsetOutOfRangeError
from memq.spark.driver import Driver
from memq.spark.folders import Folders
from memq.spark.options import ReadOptions, parse_read_options
from memq.spark.parquet import RangeJob, range_to_parquet

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from memq.core.manifest import Manifest
    from memq.core.wire.messages import PartitionOffsets

log = logging.getLogger("memq.spark")

_RANGE_NAME = re.compile(r"([0-9]{12,18})-([0-9]{12,18})\.(json|intended)")


@dataclass(frozen=True)
class Compaction:
    """What to do.

    Attributes:
        name: of the job; it is also the consumer that the audit knows.
        topic: the topic.
        output: folder for the files and the record.
        bootstrap: some brokers.
        partitions: read partitions; all when there are none.
        range_bytes: stored bytes that make a range, at most, but always one Batch.
        file_bytes: stored bytes that go into one file.
        min_bytes: what is less than this, at the end, is left for a later run.
        mode: "failfast", or "permissive" to leave out what is damaged or gone.
        token: credential; empty where the brokers ask for none.
        report: tell the audit what was consumed.
    """

    name: str
    topic: str
    output: str
    bootstrap: str
    partitions: Sequence[int] = ()
    range_bytes: int = 1 << 30
    file_bytes: int = 256 << 20
    min_bytes: int = 0
    mode: str = "failfast"
    token: str = ""
    report: bool = True

    def record(self, partition: int) -> str:
        """Folder of the manifests of a read partition."""
        return f"{self.output.rstrip('/')}/_manifests/topic={self.topic}/partition={partition}"

    def read_options(self) -> ReadOptions:
        """Options to ask the brokers with."""
        given = {"bootstrap": self.bootstrap, "topic": self.topic}
        return parse_read_options(given | ({"token": self.token} if self.token else {}))


class Record(NamedTuple):
    """What was done of a read partition.

    Attributes:
        next: where the next range begins; None when there is none yet.
        intended: a range that was begun.
    """

    next: int | None
    intended: tuple[int, int] | None


def check_topic(job: Compaction) -> None:
    """Make sure that the topic is there, before Spark is started for it.

    Raises:
        OffsetOutOfRangeError: there is no such read partition.
        MemqError: there is no such topic, or the brokers cannot be asked.
    """
    with Driver(job.read_options()) as driver:
        _chosen(job, driver.offsets())


def compact(spark: SparkSession, job: Compaction) -> list[Manifest]:
    """Compact what is published by now; returns the manifests of the ranges done in this run.

    Raises:
        OffsetOutOfRangeError: retention has removed what was not compacted yet, or there is no such
            read partition.
        CorruptDataError: the record is damaged, or has a gap or an overlap.
        MemqError: as `range_to_parquet`.
    """
    folders = Folders(spark)
    done: list[Manifest] = []
    with Driver(job.read_options()) as driver:
        for held in _chosen(job, driver.offsets()):
            record = read_record(folders, job.record(held.partition))
            for start, end in _ranges(driver, job, held, record):
                if (start, end) != record.intended:  # one that is intended is never without it
                    folders.write(f"{_record_name(job, held.partition, start, end)}.intended", b"")
                done.append(_compact_range(spark, folders, job, held.partition, start, end))
    return done


def read_record(folders: Folders, folder: str) -> Record:
    """The record of a read partition.

    Raises:
        CorruptDataError: it has a gap or an overlap, or several intentions.
    """
    found: dict[str, list[tuple[int, int]]] = {"json": [], "intended": []}
    for name in folders.names(folder):
        match = _RANGE_NAME.fullmatch(name)
        if match:
            found[match[3]].append((int(match[1]), int(match[2])))
    ranges = sorted(found["json"])
    for earlier, later in pairwise(ranges):
        if earlier[1] != later[0]:
            raise CorruptDataError(
                f"the record in {folder} goes from offset {earlier[1]} to {later[0]}; each range "
                "must begin where the one before it ends"
            )
    intended = [each for each in found["intended"] if each not in ranges]
    if len(intended) > 1 or (intended and ranges and intended[0][0] != ranges[-1][1]):
        raise CorruptDataError(
            f"the record in {folder} intends {intended}, which does not follow it: did two runs "
            "work on this folder at a time?"
        )
    return Record(ranges[-1][1] if ranges else None, intended[0] if intended else None)


def cut_ranges(
    sizes: Iterable[tuple[int, int]], start: int, end: int, range_bytes: int, min_bytes: int
) -> Iterator[tuple[int, int]]:
    """Ranges that follow each other from `start` up to `end`, or less.

    Args:
        sizes: offset and bytes of each Batch, in order; offsets may have gaps.
        start: where the first begins.
        end: where the last ends.
        range_bytes: most bytes of one; a larger Batch is one by itself.
        min_bytes: a last one of less is left out.
    """
    size = 0
    for offset, batch_bytes in sizes:
        if size and size + batch_bytes > range_bytes:
            yield start, offset
            start, size = offset, 0
        size += batch_bytes
    if start < end and size and size >= min_bytes:
        yield start, end


def _chosen(job: Compaction, held: list[PartitionOffsets]) -> list[PartitionOffsets]:
    known = {each.partition: each for each in held}
    unknown = sorted(set(job.partitions) - set(known))
    if unknown:
        raise OffsetOutOfRangeError(
            f"topic {job.topic!r} has no partition {unknown[0]}; it has 0 to {len(held) - 1}"
        )
    return [known[number] for number in sorted(set(job.partitions) or known)]


def _ranges(
    driver: Driver, job: Compaction, held: PartitionOffsets, record: Record
) -> Iterator[tuple[int, int]]:
    """What is to be done of a read partition: first what was intended, then what follows."""
    start = held.start if record.next is None else record.next
    if record.intended is not None:
        log.info("%s/%d: finishing range %d-%d", job.topic, held.partition, *record.intended)
        yield record.intended
        start = record.intended[1]
    if start < held.start:
        raise OffsetOutOfRangeError(
            f"retention has removed offsets {start} to {held.start - 1} of "
            f"{job.topic}/{held.partition} before they were compacted. Let retention be longer "
            "than the time between runs; to go on without them, use another --output"
        )
    if start > held.end:
        raise CorruptDataError(
            f"the record goes up to offset {start} of {job.topic}/{held.partition}, which ends at "
            f"{held.end}: the topic was made anew since. Use another --output"
        )
    sizes = (
        (entry.offset, notification.size_bytes)
        for entry, notification in driver.notifications(held.partition, start, held.end)
    )
    yield from cut_ranges(sizes, start, held.end, job.range_bytes, job.min_bytes)


def _record_name(job: Compaction, partition: int, start: int, end: int) -> str:
    return f"{job.record(partition)}/{start:012d}-{end:012d}"


def _compact_range(  # noqa: PLR0917 - a range is three numbers
    spark: SparkSession, folders: Folders, job: Compaction, partition: int, start: int, end: int
) -> Manifest:
    name = _record_name(job, partition, start, end)
    manifest = range_to_parquet(
        spark,
        RangeJob(
            name=job.name,
            topic=job.topic,
            partition=partition,
            start=start,
            end=end,
            output=job.output,
            manifest=f"{name}.json",
            bootstrap=job.bootstrap,
            mode=job.mode,
            token=job.token,
            report=job.report,
            file_bytes=job.file_bytes,
        ),
    )
    written = decode_manifest(folders.read(f"{name}.json"))
    check_manifest(written, topic=job.topic, partition=partition, start=start, end=end)
    folders.delete(f"{name}.intended")
    return manifest
