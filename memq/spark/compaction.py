"""Many small Batches become few large Parquet files: range after range, without gap or overlap.

Theory of operation
-------------------
The folder has its own record: a manifest for each range that is done, under
`_manifests/topic-T/partition-N/`, where readers of the data do not look. The next range of a read
partition begins where its last manifest ends. Before a range is begun it is *intended*: a file with
its name is written. A run that finds an intention writes exactly that range first, again as a
whole (`memq.spark.outputs` replaces its folder), so a run that is killed at any point is completed
by the next one: nothing is left out, nothing is there twice. Once the manifest is written the
intention is deleted.

A record is about one topic id, which its manifests and intentions name. When the
topic was deleted and recreated, nothing of the new one is compacted into the record of the old
one.

One run at a time may work on a folder; a second one would write the same ranges.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from memq.core.manifest import decode_manifest
from memq.core.ranges import Interval, OffsetRange
from memq.errors import CorruptDataError, OffsetOutOfRangeError, TopicRecreatedError
from memq.spark import files
from memq.spark.outputs import Job, RangeJob, open_topic, range_to_parquet, settled

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from memq.client.topic import SyncTopicClient
    from memq.core.manifest import Manifest
    from memq.core.wire.messages import PartitionOffsets

log = logging.getLogger("memq.spark")

_PARTITION_NAME = re.compile(r"partition-([0-9]{1,9})")
_RANGE_NAME = re.compile(r"([0-9]{12,18})-([0-9]{12,18})\.(json|intended)")


@dataclass(frozen=True, kw_only=True)
class Compaction(Job):
    """A topic to compact; the record is kept in the output folder too.

    Attributes:
        partitions: read partitions; all when there are none.
        range_bytes: stored bytes that make a range, at most, but always one Batch.
        file_bytes: stored bytes that go into one file.
        min_bytes: what is less than this, at the end, is left for a later run.
    """

    partitions: Sequence[int] = ()
    range_bytes: int = 1 << 30
    file_bytes: int | None = 256 << 20
    min_bytes: int = 0

    @property
    def records(self) -> str:
        """Folder of the manifests of the topic."""
        return f"{self.output.rstrip('/')}/_manifests/topic-{self.topic}"

    def record(self, partition: int) -> str:
        """Folder of the manifests of a read partition."""
        return f"{self.records}/partition-{partition}"

    def range_job(self, wanted: OffsetRange) -> RangeJob:
        """Make the job that compacts a range."""
        common = {field.name: getattr(self, field.name) for field in fields(Job)}
        manifest = f"{self.record(wanted.partition)}/{_name(wanted.start, wanted.end)}.json"
        return RangeJob(range=wanted, manifest=manifest, **common)


class CompactionRecord(NamedTuple):
    """What is compacted of a read partition.

    Attributes:
        next: where the next range begins; None when there is none yet.
        intended: a range that was begun.
        topic_id: of the topic; None when there is no record yet.
    """

    next: int | None
    intended: Interval | None
    topic_id: str | None = None


def check_topic(job: Compaction) -> None:
    """Make sure that the topic is there, before Spark is started for it.

    Raises:
        OffsetOutOfRangeError: there is no such read partition.
        SchemaMismatchError: files cannot hold the topic's columns.
        MemqError: there is no such topic, or the brokers cannot be asked.
    """
    settled(job.range_job(OffsetRange(0, 0, 0)))
    with open_topic(job) as topic:
        _chosen(job, topic.offsets())


def compact(spark: SparkSession, job: Compaction) -> list[Manifest]:
    """Compact what is published by now; returns the manifests of the ranges done in this run.

    Raises:
        OffsetOutOfRangeError: retention has removed what was not compacted yet, or there is no such
            read partition.
        TopicRecreatedError: the record is of a topic that was deleted.
        CorruptDataError: the record is damaged, or has a gap or an overlap.
        MemqError: as `range_to_parquet`.
    """
    done: list[Manifest] = []
    with open_topic(job) as topic:
        chosen = _chosen(job, topic.offsets())
        records = _records(job, topic.topic_id)
        for retained in chosen:
            record = records.get(retained.partition, CompactionRecord(None, None))
            for interval in _intervals(topic, job, retained, record):
                wanted = OffsetRange(retained.partition, *interval, topic.topic_id)
                task = job.range_job(wanted)
                if interval != record.intended:  # one that is intended is never without it
                    files.write(_intention_of(task), wanted.topic_id.encode())
                done.append(range_to_parquet(spark, task))
                files.delete(_intention_of(task))
    return done


def read_record(folder: str) -> CompactionRecord:
    """Read the record of a read partition.

    Raises:
        CorruptDataError: it has a gap or an overlap, or several intentions, or is damaged.
    """
    found: dict[str, list[Interval]] = {"json": [], "intended": []}
    for name in files.names(folder):
        match = _RANGE_NAME.fullmatch(name)
        if match:
            found[match[3]].append(Interval(int(match[1]), int(match[2])))
    ranges = sorted(found["json"])
    for earlier, later in pairwise(ranges):
        if earlier.end != later.start:
            raise CorruptDataError(
                f"the record in {folder} goes from offset {earlier.end} to {later.start}; each "
                "range must begin where the one before it ends"
            )
    intended = [each for each in found["intended"] if each not in ranges]
    if len(intended) > 1 or (intended and ranges and intended[0].start != ranges[-1].end):
        raise CorruptDataError(
            f"the record in {folder} intends {', '.join(_name(*each) for each in intended)}, which "
            "does not follow it: did two runs work on this folder at a time?"
        )
    following = ranges[-1].end if ranges else None
    if intended:
        topic_id = files.read(f"{folder}/{_name(*intended[0])}.intended")
        return CompactionRecord(following, intended[0], topic_id.decode(errors="replace"))
    if not ranges:
        return CompactionRecord(None, None)
    manifest = decode_manifest(files.read(f"{folder}/{_name(*ranges[-1])}.json"))
    return CompactionRecord(following, None, manifest.topic_id)


def cut_ranges(
    sizes: Iterable[tuple[int, int]], start: int, end: int, range_bytes: int, min_bytes: int
) -> Iterator[Interval]:
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
            yield Interval(start, offset)
            start, size = offset, 0
        size += batch_bytes
    if start < end and size and size >= min_bytes:
        yield Interval(start, end)


def _chosen(job: Compaction, retained: list[PartitionOffsets]) -> list[PartitionOffsets]:
    known = {each.partition: each for each in retained}
    unknown = sorted(set(job.partitions) - set(known))
    if unknown:
        raise OffsetOutOfRangeError(
            f"topic {job.topic!r} has no partition {unknown[0]}; it has 0 to {len(retained) - 1}"
        )
    return [known[number] for number in sorted(set(job.partitions) or known)]


def _intervals(
    topic: SyncTopicClient, job: Compaction, retained: PartitionOffsets, record: CompactionRecord
) -> Iterator[Interval]:
    """Yield what is to be done of a read partition: first what was intended, then what follows."""
    partition, end = retained.partition, retained.end
    start = retained.start if record.next is None else record.next
    if record.intended is not None:
        log.info("%s/%d: finishing range %d-%d", job.topic, partition, *record.intended)
        yield record.intended
        start = record.intended.end
    if start < retained.start:
        raise OffsetOutOfRangeError(
            f"retention has removed offsets {start} to {retained.start - 1} of "
            f"{job.topic}/{partition} before they were compacted. Let retention be longer "
            "than the time between runs; to go on without them, use another --output"
        )
    if start > end:
        raise CorruptDataError(
            f"the record goes up to offset {start} of {job.topic}/{partition}, which ends at "
            f"{end}: its queue lost notifications. Use another --output"
        )
    batches = topic.batches([OffsetRange(partition, start, end)])
    sizes = ((batch.offset, batch.notification.size_bytes) for batch in batches)
    yield from cut_ranges(sizes, start, end, job.range_bytes, job.min_bytes)


def _records(job: Compaction, present: str) -> dict[int, CompactionRecord]:
    """Read the record of every read partition that has one, also of those that are not to be done.

    Raises:
        TopicRecreatedError: one of them is of another topic id than the present one.
    """
    records = {}
    for name in files.names(job.records):
        match = _PARTITION_NAME.fullmatch(name)
        if match is None:
            continue
        partition = int(match[1])
        found = records[partition] = read_record(job.record(partition))
        if found.topic_id not in {None, present}:
            raise TopicRecreatedError(
                f"topic {job.topic!r} was deleted and recreated: the record in "
                f"{job.record(partition)} is of topic id {found.topic_id}, and {present} is "
                "the present one, of which nothing is compacted. Use another --output for it"
            )
    return records


def _name(start: int, end: int) -> str:
    return f"{start:012d}-{end:012d}"


def _intention_of(task: RangeJob) -> str:
    return f"{task.manifest.removesuffix('.json')}.intended"
