"""Cutting what is published into ranges, and the record of what was compacted."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from dataclasses import replace
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.core.manifest import Manifest, encode_manifest
from memq.core.notification.notification import PublishedBatch
from memq.core.ranges import OffsetRange
from memq.core.wire.messages import PartitionOffsets
from memq.errors import (
    CorruptDataError,
    DataLossError,
    OffsetOutOfRangeError,
    TopicRecreatedError,
)
from memq.spark import compaction
from memq.spark.compaction import (
    Compaction,
    CompactionRecord,
    _records,
    compact,
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


def test_ranges_are_as_large_as_they_may_be():
    """Exactly as much as was asked for fits; what is larger by itself is one range."""
    sizes = enumerate([10, 10, 10, 99, 5, 5])

    assert [*cut_ranges(sizes, 0, 6, 20, 10)] == [(0, 2), (2, 3), (3, 4), (4, 6)]
    assert [*cut_ranges(enumerate([10, 10, 9]), 0, 3, 20, 10)] == [(0, 2)]
    assert [*cut_ranges([], 4, 4, 20, 0)] == [*cut_ranges([], 4, 9, 20, 0)] == []


class KilledError(Exception):
    """A run was killed."""


class Disk(dict):
    """Files by path; a run dies at its call of a number, before or after that is done."""

    def __init__(self):
        super().__init__()
        self.calls, self.dies, self.after = 0, None, False

    def _do(self, work):
        self.calls += 1
        dies = self.calls == self.dies
        if dies and not self.after:
            raise KilledError
        found = work()
        if dies:
            raise KilledError
        return found

    def names(self, folder):
        inside = [path[len(folder) + 1 :] for path in self if path.startswith(f"{folder}/")]
        return self._do(lambda: sorted({each.partition("/")[0] for each in inside}))

    def read(self, path):
        return self._do(lambda: self[path])

    def write(self, path, data):
        self._do(lambda: self.update({path: data}))

    def delete(self, path):
        self._do(lambda: self.pop(path, None))


class World:
    """A topic of two read partitions whose Batches have ten bytes, and what was compacted of it."""

    incarnation = LIFE

    def __init__(self, monkeypatch):
        self.disk = Disk()
        self.starts, self.ends = [2, 0], [7, 4]
        self.outputs = {}
        self.again = []
        monkeypatch.setattr(compaction, "folders_of", lambda _: self.disk)
        monkeypatch.setattr(compaction, "_connected", lambda _: nullcontext(self))
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
        assert task.range.incarnation == LIFE
        assert f"{task.manifest.removesuffix('.json')}.intended" in self.disk
        if task.manifest in self.disk:
            self.again.append(task.range)
        self.outputs[task.range] = True
        made = msgspec.structs.replace(MANIFEST, **task.range._asdict())
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
        assert sum(path.endswith(".json") for path in self.disk) == len(self.outputs)
        begun = [path for path in self.disk if path.endswith(".intended")]
        assert all(path.replace(".intended", ".json") in self.disk for path in begun)
        assert self.disk.dies or not begun


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


def test_a_run_that_is_killed_again_and_again(monkeypatch):
    """It comes to the end as well, with more published each time."""
    world = World(monkeypatch)
    for _ in range(60):
        world.disk.calls, world.disk.dies = 0, 9
        with suppress(KilledError):
            world.run()
            break
        world.ends = [min(12, world.ends[0] + 1), world.ends[1]]
    world.disk.dies = -1
    world.run()
    world.check()


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


def test_a_manifest_of_another_range_ends_the_run(monkeypatch):
    """Then what was intended is still to be done."""
    world = World(monkeypatch)

    def write_another(_, task):
        made = msgspec.structs.replace(MANIFEST, **task.range._replace(end=99)._asdict())
        world.disk.write(task.manifest, encode_manifest(made))
        return made

    monkeypatch.setattr(compaction, "range_to_parquet", write_another)
    with pytest.raises(DataLossError):
        world.run()
    assert sum(path.endswith(".intended") for path in world.disk) == 1
