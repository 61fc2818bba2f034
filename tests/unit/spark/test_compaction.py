"""Cutting what is published into ranges, and the record of what was compacted."""

from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.core.manifest import Manifest, encode_manifest
from memq.core.notification import PublishedBatch
from memq.core.ranges import Interval, OffsetRange
from memq.core.wire.messages import PartitionOffsets
from memq.errors import CorruptDataError, OffsetOutOfRangeError, TopicRecreatedError
from memq.spark import compaction
from memq.spark.compaction import Compaction, compact, cut_ranges, read_record
from tests.unit.spark.dying_disk import DyingDisk, KilledError

LIFE = "0123456789abcdef"
JOB = Compaction(name="j", topic="t", output="/lake", bootstrap="b:1")


def manifest_of(wanted):
    counts = dict.fromkeys(("batches", "messages", "records", "bytes", "crc_sum"), 0)
    times = {"started_ms": 0, "finished_ms": 0}
    return Manifest(job="j", topic="t", **wanted._asdict(), **counts, output="/", files=[], **times)


def record(monkeypatch, *names):
    """The record of a read partition with files of these names."""
    manifest = encode_manifest(manifest_of(OffsetRange(0, 0, 5, LIFE)))
    files = {
        f"r/{name}": LIFE.encode() if name.endswith(".intended") else manifest for name in names
    }
    DyingDisk(**files).replaces(monkeypatch)
    return read_record("r")


@given(
    sizes=st.lists(st.integers(1, 100), max_size=20),
    start=st.integers(0, 5),
    range_bytes=st.integers(1, 150),
    min_bytes=st.integers(0, 150),
)
def test_ranges_follow_each_other_and_are_as_large_as_they_may_be(
    sizes, start, range_bytes, min_bytes
):
    """Ranges cover all Batches in order without gap or overlap, but for a small end."""
    end = start + len(sizes)
    ranges = [*cut_ranges(enumerate(sizes, start), start, end, range_bytes, min_bytes)]

    reached = ranges[-1].end if ranges else start
    edges = [start, *(each.end for each in ranges)]
    assert [Interval(*each) for each in pairwise(edges)] == ranges
    for begin, stop in ranges:
        inside = sizes[begin - start : stop - start]
        assert inside
        assert len(inside) == 1 or sum(inside) <= range_bytes
        assert stop == end or sum(inside) + sizes[stop - start] > range_bytes
    left = sum(sizes[reached - start :])
    assert left < max(1, min_bytes)
    assert not left or left <= range_bytes or reached == end - 1


@pytest.mark.parametrize(
    "names",
    [
        ("000000000000-000000000005.json", "000000000006-000000000009.json"),
        ("000000000000-000000000005.json", "000000000004-000000000009.json"),
        ("000000000000-000000000005.json", "000000000007-000000000009.intended"),
        ("000000000000-000000000005.intended", "000000000005-000000000009.intended"),
    ],
)
def test_a_record_with_a_gap_or_an_overlap_is_refused(monkeypatch, names):
    """What cannot come from runs one after the other is an error."""
    with pytest.raises(CorruptDataError):
        record(monkeypatch, *names)


class World:
    """A topic of two read partitions whose Batches have ten bytes, and what was compacted of it."""

    def __init__(self, monkeypatch):
        self.disk = DyingDisk().replaces(monkeypatch)
        self.topic_id = LIFE
        self.starts, self.ends = [2, 0], [7, 4]
        self.outputs = {}
        self.again = []
        monkeypatch.setattr(compaction, "open_topic", lambda _: nullcontext(self))
        monkeypatch.setattr(compaction, "settled", lambda job: (job, []))
        monkeypatch.setattr(compaction, "range_to_parquet", self.write)

    def offsets(self):
        bounds = zip(self.starts, self.ends, strict=True)
        return [PartitionOffsets(partition=p, start=s, end=e) for p, (s, e) in enumerate(bounds)]

    def batches(self, ranges):
        for partition, start, end, _ in ranges:
            for offset in range(start, end):
                yield PublishedBatch(partition, offset, 0, SimpleNamespace(size_bytes=10))

    def write(self, _, task):
        """As `range_to_parquet`: the folder of the range is replaced, then its manifest written."""
        assert task.range.topic_id == LIFE
        assert f"{task.manifest.removesuffix('.json')}.intended" in self.disk.files
        if task.manifest in self.disk.files:
            self.again.append(task.range)
        self.outputs[task.range] = True
        made = manifest_of(task.range)
        self.disk.write(task.manifest, encode_manifest(made))
        return made

    def run(self, **options):
        given = {"range_bytes": 30, "min_bytes": 0} | options
        return compact(None, replace(JOB, **given))

    def check(self, partitions=(0, 1)):
        """All is compacted: ranges meet, and each has its manifest; an intention may be left."""
        for partition in partitions:
            found = sorted(each for each in self.outputs if each.partition == partition)
            edges = [self.starts[partition], *(each.end for each in found)]
            assert [each.start for each in found] == edges[:-1]
            assert edges[-1] == self.ends[partition]
        assert self.again == []
        assert len(self.ending_with(".json")) == len(self.outputs)
        begun = self.ending_with(".intended")
        assert all(path.replace(".intended", ".json") in self.disk.files for path in begun)
        assert self.disk.dies or not begun

    def ending_with(self, suffix):
        return [path for path in self.disk.files if path.endswith(suffix)]


@pytest.mark.parametrize("after", [False, True])
def test_a_run_that_is_killed_is_completed_by_the_next_one(monkeypatch, after):
    """At any moment, though more is published meanwhile: nothing is left out or there twice."""
    for dies in range(1, 99):
        world = World(monkeypatch)
        world.disk.dies, world.disk.after = dies, after
        try:
            world.run()
        except KilledError:
            world.ends = [11, 9]
            world.run()
            world.check()
        else:
            assert dies > 10
            world.disk.dies = None
            world.check()
            return
    raise AssertionError("it never comes to its end")


def test_a_run_of_some_read_partitions(monkeypatch):
    """Others are left alone; one that there is not is refused before anything is done."""
    world = World(monkeypatch)
    with pytest.raises(OffsetOutOfRangeError, match="no partition 2; it has 0 to 1"):
        world.run(partitions=[0, 2])
    assert world.outputs == {}

    assert [each.partition for each in world.run(partitions=[1, 1])] == [1, 1]
    world.check([1])
    assert {each.partition for each in world.run()} == {0}
    world.check()


def test_what_the_topic_has_no_longer(monkeypatch):
    """What retention removed before it was compacted, and what the queue has lost, are errors; to
    have come to the very start, or the very end, is none.
    """
    world = World(monkeypatch)
    world.run()
    world.starts = [7, 4]
    assert world.run() == []
    world.starts, world.ends = [8, 4], [9, 4]
    with pytest.raises(OffsetOutOfRangeError, match="removed offsets 7 to 7 of t/0 before"):
        world.run()
    world.starts, world.ends = [2, 0], [7, 3]
    with pytest.raises(CorruptDataError, match="goes up to offset 4 of t/1, which ends at 3"):
        world.run()


def test_nothing_of_a_topic_made_again_is_compacted(monkeypatch):
    """Whichever read partition the record is of that names the topic before."""
    world = World(monkeypatch)
    world.run(partitions=[1])
    done = dict(world.outputs)
    world.topic_id = "fedcba9876543210"

    with pytest.raises(TopicRecreatedError, match="Use another --output"):
        world.run(partitions=[0])
    assert world.outputs == done
