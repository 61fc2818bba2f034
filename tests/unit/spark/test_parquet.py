"""What a job makes of a range whatever dies, and what it tells the audit about it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from memq.core.manifest import Totals, encode_manifest
from memq.core.ranges import OffsetRange
from memq.errors import DataLossError, UnavailableError
from memq.spark import parquet
from memq.spark.examine import MessageTotals, RangeAccount
from memq.spark.folders import Folders
from memq.spark.parquet import RangeJob, consumed, range_to_parquet
from tests.unit.core.test_manifest import MANIFEST


def test_a_report_says_what_the_manifest_says():
    """It names the incarnation that was read, so that nothing of a later topic counts as read."""
    report = consumed(MANIFEST)
    same = ("topic", "incarnation", "partition", "start", "end", "batches", "messages", "records")
    assert [getattr(report, name) for name in same] == [getattr(MANIFEST, name) for name in same]
    assert (report.consumer, report.crc_sum) == (MANIFEST.job, MANIFEST.crc_sum)


class KilledError(Exception):
    """A job was killed."""


class Disk(Folders):
    """Files by path; a job dies at its change of a number, before or after that is done."""

    def __init__(self):
        self.files = {}
        self.changes, self.dies, self.after = 0, None, False

    def _change(self, work):
        self.changes += 1
        dies = self.changes == self.dies
        if dies and not self.after:
            raise KilledError
        work()
        if dies:
            raise KilledError

    def _below(self, path):
        return [each for each in self.files if each == path or each.startswith(f"{path}/")]

    def names(self, folder):
        inside = (each.removeprefix(f"{folder}/") for each in self._below(folder))
        return sorted({each.partition("/")[0] for each in inside})

    def exists(self, path):
        return bool(self._below(path))

    def delete(self, path):
        for each in self._below(path):  # which may end half-way
            self._change(lambda each=each: self.files.pop(each))

    def rename(self, old, new):
        assert self._below(old), f"{old} is not there"
        assert not self._below(new), f"{new} is there"
        moved = {each: new + each.removeprefix(old) for each in self._below(old)}
        self._change(
            lambda: self.files.update({to: self.files.pop(of) for of, to in moved.items()})
        )

    def write(self, path, data):
        self._change(lambda: self.files.update({path: data}))


class Session:
    """As much of Spark as the job uses: each write of the range makes two files of its number."""

    def __init__(self, disk, rows=5):
        self.disk, self.rows, self.writes = disk, rows, 0
        self.conf = SimpleNamespace(set=lambda *_: None)
        self.read = self.write = self

    def option(self, *_, **__):
        return self

    options = format = mode = option

    def load(self):
        return self

    def parquet(self, path):
        files = self.disk._below(path)
        if files:
            return SimpleNamespace(count=lambda: self.rows)
        self.writes += 1
        for name in ("part-0.parquet", "part-1.parquet", "_SUCCESS", ".part-0.parquet.crc"):
            self.disk.write(f"{path}/{name}", self.writes)
        return None


class Job:
    """A job of offsets 3 to 8, run as often as wanted; what it has told the audit."""

    FOLDER = f"/lake/memq_topic=t/memq_incarnation={'a' * 16}/memq_partition=0"
    RANGE = f"{FOLDER}/memq_range=000000000003-000000000009"
    MANIFEST = "/manifests/m.json"

    def __init__(self, monkeypatch, rows=5):
        self.disk = Disk()
        self.spark = Session(self.disk, rows)
        self.reports, self.fails = [], None
        of = OffsetRange(0, 3, 9, "a" * 16)
        self.job = RangeJob(
            name="j", topic="t", range=of, output="/lake", manifest=self.MANIFEST, bootstrap="b:1"
        )
        read = MessageTotals(messages=2, records=5, crc_sum=7)
        account = RangeAccount(Totals(6, 2, 5, 100, 7), read)
        monkeypatch.setattr(parquet, "settled", lambda job: (job, ["value"]))
        monkeypatch.setattr(parquet, "examine", lambda *_: account)
        monkeypatch.setattr(parquet, "folders_of", lambda _: self.disk)
        monkeypatch.setattr(parquet, "report_consumed", self.report)

    def report(self, bootstrap, reports, *, token):
        assert self.disk.exists(self.RANGE)
        if self.fails is not None:
            raise self.fails
        self.reports += reports

    def run(self, **options):
        return range_to_parquet(self.spark, replace(self.job, **options))

    def whole(self):
        """The number of the write that is in the place of the range; None for nothing."""
        written = {self.disk.files[each] for each in self.disk._below(self.RANGE)}
        assert len(self.disk._below(self.RANGE)) in (0, 4)
        assert len(written) <= 1
        return min(written, default=None)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("before", [0, 1])
def test_a_job_that_is_killed_leaves_a_whole_folder_or_none(monkeypatch, before, after):
    """At any moment, the first time and when it is run again; the next run puts all in its place,
    and deletes what was left.
    """
    for dies in range(1, 99):
        job = Job(monkeypatch)
        for _ in range(before):
            job.run()
        told = len(job.reports)
        job.disk.changes, job.disk.dies, job.disk.after = 0, dies, after
        try:
            job.run()
        except KilledError:
            job.whole()
            if job.MANIFEST in job.disk.files and not before:
                assert job.whole() == job.spark.writes
                assert len(job.reports) > told
            job.disk.dies = None
            manifest = job.run()
        else:
            assert dies > 5
            return
        assert job.whole() == job.spark.writes
        assert job.disk.names(job.FOLDER) == ["memq_range=000000000003-000000000009"]
        assert manifest.files == ["part-0.parquet", "part-1.parquet"]
        assert job.disk.files[job.MANIFEST] == encode_manifest(manifest)
        assert (manifest.output, manifest.records) == (job.RANGE, 5)
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
    assert (job.MANIFEST in job.disk.files) == bool(before)


def test_a_range_that_the_audit_was_not_told_of_is_not_done(monkeypatch):
    """It has no manifest; a job that is not to tell has one all the same."""
    job = Job(monkeypatch)
    job.fails = UnavailableError("no audit")

    with pytest.raises(UnavailableError):
        job.run()
    assert job.MANIFEST not in job.disk.files
    job.run(report=False)
    assert job.MANIFEST in job.disk.files


def test_only_what_an_earlier_run_of_the_range_left_is_deleted(monkeypatch):
    """Folders of others, hidden or not, are left alone."""
    job = Job(monkeypatch)
    others = [
        f"{job.FOLDER}/{name}/part-0.parquet"
        for name in (
            ".memq_range=000000000009-000000000012-ab",
            ".memq_range=000000000003-000000000010-ab",
            "memq_range=000000000009-000000000012",
        )
    ]
    stale = f"{job.FOLDER}/.memq_range=000000000003-000000000009-ab/part-0.parquet"
    job.disk.files |= dict.fromkeys([*others, stale], 0)

    job.run()

    assert stale not in job.disk.files
    assert {*others} <= {*job.disk.files}
