"""Exports to files and folders: what is left when something fails, and how the next run goes on."""

import contextlib
import json
import os
from types import SimpleNamespace

import msgspec
import pyarrow as pa
import pytest
from pyarrow import csv

from memq.cli.export_job import (
    LOCK,
    MANIFEST,
    ExportJob,
    ExportManifest,
    ExportRequest,
    export_file,
    export_folder,
)
from memq.core.manifest import Totals
from memq.core.ranges import OffsetRange
from memq.errors import ConfigError, CorruptDataError, LockedError, StorageError, UnavailableError
from memq.reading.plan import Piece, ReadPlan, Selection
from memq.runtime.files import lock_exclusively

PIECES = [
    Piece(OffsetRange(partition, start, start + 2, "i"), Totals(batches=2, bytes=size))
    for partition, start, size in ((0, 0, 10), (0, 2, 20), (1, 0, 30), (1, 5, 40))
]


class Reader:
    """Reads the pieces from nowhere; what `before` raises comes instead of a piece."""

    schema = pa.schema([("partition", pa.int64()), ("offset", pa.int64())])
    schema_id, topic_id = "s", "i"

    def __init__(self, before=lambda _: None, pieces=PIECES):
        self.before, self.pieces = before, pieces
        self.closed = False
        self.checked, self.read, self.planned = [], [], []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.closed = True

    def plan(self, selection, *, piece_bytes=0):
        self.planned.append((selection, piece_bytes))
        return ReadPlan(times=None, pieces=self.pieces, incomplete_before_ms=7.0)

    def check_retained(self, pieces):
        self.checked.append([each.range for each in pieces])

    def rows(self, _plan, pieces):
        for piece in pieces:
            self.before(piece)
            self.read.append(piece.range)
            partition, start, end, _ = piece.range
            for offset in range(start, end):
                batch = SimpleNamespace(
                    notification=SimpleNamespace(size_bytes=piece.contents.bytes // 2)
                )
                rows = pa.record_batch([[partition] * 3, [offset] * 3], schema=self.schema)
                yield SimpleNamespace(batch=batch, rows=[rows.slice(0, 1), rows.slice(1)])


REQUEST = ExportRequest(
    topic="t",
    format="csv",
    columns=None,
    metadata=False,
    range="",
    start="",
    end="",
    start_us=None,
    end_us=None,
)


class Run:
    """One run of an export, and what it said and showed."""

    def __init__(self, reader=None, **request):
        self.reader = reader or Reader()
        self.said, self.opened, self.sizes, self.done = [], [], [], []
        self.selection = Selection(partition=request.pop("partition", None))
        self.job = ExportJob(
            request=msgspec.structs.replace(REQUEST, **request),
            selection=self.selection,
            open_reader=self._open,
            progress=self._progress,
            say=self.said.append,
            file_bytes=99,
        )

    def _open(self, *arguments):
        self.opened.append(arguments)
        return self.reader

    @contextlib.contextmanager
    def _progress(self, size_bytes):
        self.sizes.append(size_bytes)
        yield self.done.append


def shown(folder):
    """The files that readers of folders take."""
    return sorted(each for each in folder.glob("*") if each.name[0] not in "._")


def rows(path):
    """Partition and offset of each row."""
    table = csv.read_csv(path)
    return list(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))


EXPECTED = [
    [(p.range.partition, offset) for offset in range(p.range.start, p.range.end) for _ in range(3)]
    for p in PIECES
]
ALL = [row for rows_of_one in EXPECTED for row in rows_of_one]


# -- a folder -------------------------------------------------------------------------------


def test_a_folder_and_what_is_said_of_it(tmp_path):
    """A file for each piece, by its name, and sums of all; the same again reads nothing."""
    run = Run()
    outcome = export_folder(tmp_path / "all", run.job)
    assert [rows(each) for each in shown(tmp_path / "all")] == EXPECTED
    assert [each.name for each in shown(tmp_path / "all")] == [
        "partition-00000-000000000000-000000000002.csv",
        "partition-00000-000000000002-000000000004.csv",
        "partition-00001-000000000000-000000000002.csv",
        "partition-00001-000000000005-000000000007.csv",
    ]
    written = sum(each.stat().st_size for each in shown(tmp_path / "all"))
    expected = (24, 8, 4, 0, 100, written, "1970-01-01T00:00:00.007Z")
    assert outcome == expected
    assert run.reader.planned == [(run.selection, 99)]
    assert (run.sizes, sum(run.done), run.said) == ([100], 100, [])
    assert run.opened == [("", "")]
    assert run.reader.closed
    again = Run()
    assert export_folder(tmp_path / "all", again.job) == outcome._replace(resumed_files=4)
    assert again.opened == []
    assert "all is there already of the export planned at 20" in again.said[0]


ERRORS = [
    UnavailableError("away"),
    CorruptDataError("damaged"),
    OSError(28, "No space left"),
    ZeroDivisionError("a bug"),
    KeyboardInterrupt(),
]


def fails(export, path, error, where):
    """Export while a piece cannot be read; the run."""

    def before(piece):
        if piece.range == where:
            raise error

    run = Run(Reader(before))
    with pytest.raises(StorageError if isinstance(error, OSError) else type(error)) as raised:
        export(path, run.job)
    assert raised.value is error or raised.value.__cause__ is error
    assert run.reader.closed
    return run


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("number", range(len(PIECES)))
def test_whatever_fails_at_a_file_the_next_run_goes_on_with_it(tmp_path, number, error):
    """Those before it are whole and stay, none after it is begun, and nothing is there twice."""
    folder = tmp_path / "all"
    fails(export_folder, folder, error, PIECES[number].range)
    manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=ExportManifest)
    assert [part.records is not None for part in manifest.parts] == [n < number for n in range(4)]
    assert [rows(each) for each in shown(folder)] == EXPECTED[:number]
    stamps = [each.stat().st_mtime_ns for each in shown(folder)]

    again = Run()
    outcome = export_folder(folder, again.job)
    assert [rows(each) for each in shown(folder)] == EXPECTED
    assert (outcome.records, outcome.files, outcome.resumed_files) == (24, 4, number)
    assert [each.stat().st_mtime_ns for each in shown(folder)][:number] == stamps
    assert again.opened == [("i", "s")]
    left = [each.range for each in PIECES[number:]]
    assert again.reader.checked == [left]
    assert again.reader.read == left
    assert again.reader.planned == []
    assert again.sizes == [sum(each.contents.bytes for each in PIECES[number:])]
    assert [f"{number} are there" in each for each in again.said] == [True] * bool(number)
    assert not list(folder.glob("*.tmp"))


def test_files_that_are_gone_or_cut_are_refused(tmp_path):
    """Somebody has them elsewhere, or has changed them; nothing is touched."""
    folder = tmp_path / "all"
    export_folder(folder, Run().job)
    first, *others = shown(folder)
    for spoil, found in ((lambda: first.write_bytes(b"mine"), 4), (first.unlink, None)):
        spoil()
        with pytest.raises(ConfigError, match=rf"{first.name} has {found} bytes .* another folder"):
            export_folder(folder, Run().job)
    assert shown(folder) == others


def test_a_folder_in_use_is_left_alone(tmp_path):
    """A second run is refused before it reads; the lock is free when the first has ended."""
    folder = tmp_path / "all"
    folder.mkdir()
    (folder / f"{MANIFEST}.tmp").write_bytes(b"what a crash left")
    run = Run()
    lock = lock_exclusively(folder / LOCK)
    with pytest.raises(LockedError):
        export_folder(folder, run.job)
    assert run.reader.read == []
    assert not (folder / MANIFEST).exists()
    os.close(lock)
    export_folder(folder, run.job)
    os.close(lock_exclusively(folder / LOCK))


def test_a_manifest_of_another_version_is_refused(tmp_path):
    """Nothing of it is touched."""
    folder = tmp_path / "all"
    export_folder(folder, Run().job)
    found = json.loads((folder / MANIFEST).read_bytes())
    for changes in ({"version": 2}, {"version": 0}, {"more": 1}, {"parts": [{}]}):
        (folder / MANIFEST).write_text(json.dumps(found | changes))
        with pytest.raises(CorruptDataError, match="name another folder"):
            export_folder(folder, Run().job)
    (folder / MANIFEST).write_bytes(b"\xff{")
    with pytest.raises(CorruptDataError, match="is no manifest of an export"):
        export_folder(folder, Run().job)
    assert len(shown(folder)) == 4


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"topic": "u"}, False),
        ({"format": "parquet"}, False),
        ({"columns": ["a"]}, False),
        ({"metadata": True}, False),
        ({"range": "0:1-2"}, False),
        ({"start": "2h"}, False),
        ({"end": "2h"}, False),
        ({"start_us": 9, "end_us": 9}, True),  # an hour ago is the hour before the first run
    ],
)
def test_another_request_is_refused(tmp_path, changes, same):
    """Each thing that was asked for counts, as it was written."""
    export_folder(tmp_path / "all", Run().job)
    if same:
        export_folder(tmp_path / "all", Run(**changes).job)
    else:
        with pytest.raises(ConfigError, match="holds the export 't --format csv', and this one is"):
            export_folder(tmp_path / "all", Run(**changes).job)


# -- one file -------------------------------------------------------------------------------


def test_a_file_and_what_is_said_of_it(tmp_path):
    """All pieces are in it, in their order, and its sums are theirs."""
    run = Run()
    outcome = export_file(tmp_path / "x.csv", run.job)
    assert rows(tmp_path / "x.csv") == ALL
    size = (tmp_path / "x.csv").stat().st_size
    assert outcome == (24, 8, 1, 0, 100, size, "1970-01-01T00:00:00.007Z")
    assert (run.sizes, sum(run.done)) == ([100], 100)
    assert run.reader.planned == [(run.selection, 0)]
    with pytest.raises(ConfigError, match=r"x\.csv exists"):
        export_file(tmp_path / "x.csv", Run().job)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_file_that_fails_leaves_nothing(tmp_path, error):
    """Neither under its name nor under the hidden one; the error is what it was."""
    fails(export_file, tmp_path / "x.csv", error, PIECES[2].range)
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_use_is_left_to_who_writes_it(tmp_path):
    """The second run takes away nothing of what the first has written."""
    hidden = tmp_path / ".x.csv.tmp"
    lock = lock_exclusively(hidden)
    with pytest.raises(LockedError, match="another export is writing"):
        export_file(tmp_path / "x.csv", Run().job)
    assert hidden.read_bytes() == b"%d" % os.getpid()
    os.close(lock)
