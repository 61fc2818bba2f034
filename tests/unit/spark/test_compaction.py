"""Cutting what is published into ranges, and the record of what was compacted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.errors import CorruptDataError
from memq.spark.compaction import Record, cut_ranges, read_record
from memq.spark.options import parse_read_options
from memq.spark.parquet import RangeJob
from memq.spark.plan import task_count


class Names:
    """A folder with files of these names."""

    def __init__(self, *names):
        self._names = names

    def names(self, folder):
        return sorted(self._names)


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
    job = RangeJob("j", "t", 0, 0, 9, "/lake", "/m.json", "b:1", file_bytes=256 << 20)
    options = parse_read_options(job.read_options())

    tasks = task_count(1 << 30, options.max_bytes_per_partition, options.min_partitions, slots=64)

    assert tasks == 4


def test_a_record_says_where_to_go_on():
    """The next range begins where the last manifest ends; an open intention is told."""
    one, two = "000000000000-000000000005", "000000000005-000000000009"
    assert read_record(Names(), "r") == Record(None, None)
    assert read_record(Names(f"{one}.json", f"{one}.intended"), "r") == Record(5, None)
    assert read_record(Names(f"{one}.json", f"{two}.intended"), "r") == Record(5, (5, 9))
    assert read_record(Names(f"{one}.json", f"{two}.json", ".tmp"), "r") == Record(9, None)


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
