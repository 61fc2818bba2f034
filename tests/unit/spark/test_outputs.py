"""What a job makes of a range whatever dies, and what it tells the audit about it."""

from types import SimpleNamespace

import pytest

from memq.core.manifest import Totals, encode_manifest
from memq.core.ranges import OffsetRange
from memq.errors import DataLossError
from memq.spark import outputs
from memq.spark.examine import MessageTotals, RangeAccount
from memq.spark.outputs import RangeJob, range_to_parquet
from tests.unit.spark.dying_disk import DyingDisk, KilledError

RANGE_NAME = "memq_range=000000000003-000000000009"
FOLDER = f"/lake/memq_topic=t/memq_topic_id={'a' * 16}/memq_partition=0"
WHOLE = RangeJob(
    name="j",
    topic="t",
    range=OffsetRange(0, 3, 9, "a" * 16),
    output="/lake",
    manifest="/manifests/m.json",
    bootstrap="b:1",
)


class Session:
    """As much of Spark as the job uses: each write of the range makes two files of its number."""

    def __init__(self, disk):
        self.disk, self.rows, self.writes = disk, 5, 0
        self.conf = SimpleNamespace(set=lambda *_: None)
        self.read = self.write = self

    def option(self, *_, **__):
        return self

    options = format = mode = load = option

    def parquet(self, path):
        if self.disk.below(path):
            return SimpleNamespace(count=lambda: self.rows)
        self.writes += 1
        for name in ("part-0.parquet", "part-1.parquet", "_SUCCESS", ".part-0.parquet.crc"):
            self.disk.write(f"{path}/{name}", self.writes)
        return None


class Job:
    """A job of offsets 3 to 8, run as often as wanted; what it has told the audit."""

    def __init__(self, monkeypatch):
        self.disk = DyingDisk().replaces(monkeypatch)
        self.spark = Session(self.disk)
        self.reports = []
        read = MessageTotals(messages=2, records=5, crc_sum=7)
        account = RangeAccount(Totals(6, 2, 5, 100, 7), read)
        monkeypatch.setattr(outputs, "settled", lambda job, _: (job, ["value"]))
        monkeypatch.setattr(outputs, "examine", lambda *_: account)
        monkeypatch.setattr(outputs, "report_consumed", self.report)

    def report(self, bootstrap, reports, *, token):
        assert self.disk.below(f"{FOLDER}/{RANGE_NAME}")
        self.reports += reports

    def run(self):
        return range_to_parquet(self.spark, WHOLE)

    @property
    def has_manifest(self):
        return WHOLE.manifest in self.disk.files

    def whole(self):
        """The number of the write that is in the place of the range; None for nothing."""
        files = self.disk.below(f"{FOLDER}/{RANGE_NAME}")
        written = {self.disk.files[each] for each in files}
        assert len(files) in (0, 4)
        assert len(written) <= 1
        return min(written, default=None)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("before", [0, 1])
def test_a_job_that_is_killed_leaves_a_whole_folder_or_none(monkeypatch, before, after):
    """At any moment, the first time and when it is run again; the next run puts all in its place,
    and deletes what was left, but nothing of others.
    """
    others = [
        f"{FOLDER}/{name}/part-0.parquet"
        for name in (".memq_range=000000000003-000000000010-ab", "memq_range=000000000009-12")
    ]
    for dies in range(1, 99):
        job = Job(monkeypatch)
        job.disk.files |= dict.fromkeys(others, 0)
        for _ in range(before):
            job.run()
        told = len(job.reports)
        job.disk.calls, job.disk.dies, job.disk.after = 0, dies, after
        try:
            job.run()
        except KilledError:
            job.whole()
            if job.has_manifest and not before:
                assert job.whole() == job.spark.writes
                assert len(job.reports) > told
            job.disk.dies = None
            manifest = job.run()
        else:
            assert dies > 5
            return
        assert job.whole() == job.spark.writes
        assert len(job.disk.names(FOLDER)) == 1 + len(others)
        assert {*others} <= {*job.disk.files}
        assert manifest.files == ["part-0.parquet", "part-1.parquet"]
        assert job.disk.files[WHOLE.manifest] == encode_manifest(manifest)
        assert (manifest.output, manifest.records) == (f"{FOLDER}/{RANGE_NAME}", 5)
        assert [(each.start, each.end, each.records) for each in job.reports[-1:]] == [(3, 9, 5)]
    raise AssertionError("it never comes to its end")


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("rows", [4, 6])
def test_other_rows_than_there_must_be_change_nothing(monkeypatch, before, rows):
    """One too few or too many: what was there stays, and nobody is told of anything."""
    job = Job(monkeypatch)
    for _ in range(before):
        job.run()
    job.spark.rows = rows

    with pytest.raises(DataLossError, match=f"must give 5 records, but .* has {rows} and is left"):
        job.run()

    assert job.whole() == (before or None)
    assert len(job.reports) == before
    assert job.has_manifest == bool(before)
