"""Cutting what is published into ranges, and the record of what was compacted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.core.manifest import Manifest, encode_manifest
from memq.core.ranges import OffsetRange
from memq.errors import CorruptDataError, TopicRecreatedError
from memq.spark.compaction import (
    Compaction,
    CompactionRecord,
    _records,
    cut_ranges,
    read_record,
)
from memq.spark.options import parse_read_options
from memq.spark.parquet import RangeJob
from memq.spark.plan import task_count

LIFE = "0123456789abcdef"
MANIFEST = Manifest(
    job="j",
    topic="t",
    incarnation=LIFE,
    partition=0,
    start=0,
    end=0,
    batches=0,
    messages=0,
    records=0,
    bytes=0,
    crc_sum=0,
    output="/lake",
    files=[],
    started_ms=0,
    finished_ms=0,
)


class Names:
    """A folder with files of these names: manifests, and intentions of this text."""

    def __init__(self, *names, intention=LIFE):
        self._names = names
        self._intention = intention.encode()

    def names(self, folder):
        return sorted(self._names)

    def read(self, path):
        return self._intention if path.endswith(".intended") else encode_manifest(MANIFEST)


class Lake:
    """A folder with a record of some read partitions, each a manifest of this incarnation."""

    def __init__(self, *partitions):
        self._partitions = partitions

    def names(self, folder):
        if folder.endswith("topic-t"):
            return [f"partition-{number}" for number in self._partitions]
        number = int(folder.rpartition("-")[2])
        return [f"{0:012d}-{5:012d}.json"] if number in self._partitions else []

    def read(self, path):
        return encode_manifest(MANIFEST)


JOB = Compaction(name="j", topic="t", output="/lake", bootstrap="b:1")


def test_all_records_of_a_topic_are_of_one_incarnation():
    """A record of a topic that was deleted is found whichever read partition it is of."""
    assert _records(Lake(), JOB, LIFE) == {}
    assert list(_records(Lake(0, 3), JOB, LIFE)) == [0, 3]
    with pytest.raises(TopicRecreatedError, match="Use another --output"):
        _records(Lake(3), JOB, "fedcba9876543210")


@given(
    sizes=st.lists(st.integers(1, 100), max_size=20),
    start=st.integers(0, 5),
    range_bytes=st.integers(1, 150),
    min_bytes=st.integers(0, 150),
)
def test_ranges_follow_each_other_and_keep_to_their_size(sizes, start, range_bytes, min_bytes):
    """Ranges cover all Batches in order without gap or overlap, but for a small end."""
    batches = [(start + number, size) for number, size in enumerate(sizes)]
    end = start + len(sizes)
    ranges = list(cut_ranges(batches, start, end, range_bytes, min_bytes))

    edges = [start, *(stop for _, stop in ranges)]
    assert [begin for begin, _ in ranges] == edges[:-1]
    for begin, stop in ranges:
        inside = [size for offset, size in batches if begin <= offset < stop]
        assert inside
        assert len(inside) == 1 or sum(inside) <= range_bytes
    left = [size for offset, size in batches if offset >= edges[-1]]
    assert sum(left) < max(1, min_bytes)


def test_a_compacted_range_has_files_of_the_size_asked_for():
    """A gigabyte becomes four files of 256 MiB, however many processors the driver has."""
    job = RangeJob(
        name="j",
        topic="t",
        range=OffsetRange(0, 0, 9, LIFE),
        output="/lake",
        manifest="/m.json",
        bootstrap="b:1",
        file_bytes=256 << 20,
    )
    options = parse_read_options(job.read_options())

    tasks = task_count(1 << 30, options.max_bytes_per_partition, options.min_partitions, slots=64)

    assert tasks == 4


def test_a_record_says_where_to_go_on():
    """The next range begins where the last manifest ends; an open intention is told."""
    one, two = "000000000000-000000000005", "000000000005-000000000009"
    assert read_record(Names(), "r") == CompactionRecord(None, None)
    assert read_record(Names(f"{one}.json", f"{one}.intended"), "r") == CompactionRecord(
        5, None, LIFE
    )
    assert read_record(Names(f"{one}.json", f"{two}.intended"), "r") == CompactionRecord(
        5, (5, 9), LIFE
    )
    assert read_record(Names(f"{one}.json", f"{two}.json", ".tmp"), "r") == CompactionRecord(
        9, None, LIFE
    )


def test_an_intention_names_the_topic_that_it_is_about():
    """What does not name an incarnation is no intention of a compaction."""
    with pytest.raises(CorruptDataError, match="names no incarnation"):
        read_record(Names("000000000000-000000000005.intended", intention=""), "r")


@pytest.mark.parametrize(
    "names",
    [
        ("000000000000-000000000005.json", "000000000006-000000000009.json"),
        ("000000000000-000000000005.json", "000000000004-000000000009.json"),
        ("000000000000-000000000005.json", "000000000007-000000000009.intended"),
        ("000000000000-000000000005.intended", "000000000005-000000000009.intended"),
    ],
)
def test_a_record_with_a_gap_or_an_overlap_is_refused(names):
    """What cannot come from runs one after the other is an error."""
    with pytest.raises(CorruptDataError):
        read_record(Names(*names), "r")
