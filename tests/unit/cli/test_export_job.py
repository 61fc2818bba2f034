"""Exports to files and folders: what is left when something fails, and what the next run says."""

import contextlib
import os
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyarrow import csv

from memq.cli.export_job import STARTED, SUCCESS, ExportJob, export_file, export_folder
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

    def __init__(self, before=lambda _: None, pieces=PIECES):
        self.before, self.pieces = before, pieces
        self.closed = False
        self.read, self.planned = [], []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.closed = True

    def plan(self, selection, *, piece_bytes=0):
        self.planned.append((selection, piece_bytes))
        return ReadPlan(times=None, pieces=self.pieces, incomplete_before_ms=7.0)

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


class Run:
    """One run of an export, and what it showed."""

    def __init__(self, reader=None):
        self.reader = reader or Reader()
        self.opened, self.sizes, self.done = 0, [], []
        self.selection = Selection()
        self.job = ExportJob(
            form="csv",
            selection=self.selection,
            open_reader=self._open,
            progress=self._progress,
            file_bytes=99,
        )

    def _open(self):
        self.opened += 1
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
    """A file for each piece, by its name, and sums of all; the same again is refused at once."""
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
    assert outcome == (24, 8, 4, 100, written, "1970-01-01T00:00:00.007Z")
    assert run.reader.planned == [(run.selection, 99)]
    assert (run.sizes, sum(run.done)) == ([100], 100)
    assert run.reader.closed
    again = Run()
    with pytest.raises(ConfigError, match=f"holds {SUCCESS}; name a folder that is new or empty"):
        export_folder(tmp_path / "all", again.job)
    assert again.opened == 0


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
def test_whatever_fails_at_a_file_the_folder_is_not_called_whole(tmp_path, number, error):
    """Files before it are whole, none after it is begun, and the next run refuses the folder."""
    folder = tmp_path / "all"
    fails(export_folder, folder, error, PIECES[number].range)
    assert [rows(each) for each in shown(folder)] == EXPECTED[:number]
    hidden = {each.name for each in folder.iterdir()} - {each.name for each in shown(folder)}
    assert hidden == {STARTED}
    with pytest.raises(ConfigError, match="An export without _SUCCESS is running, or was interr"):
        export_folder(folder, Run().job)


def test_a_folder_of_another_run_is_left_alone(tmp_path):
    """One that began, or ended, while this one planned keeps what it has; nothing is added."""
    folder = tmp_path / "all"
    for name, error in ((STARTED, LockedError), (SUCCESS, ConfigError)):

        class Late(Reader):
            """Plans while another run takes the folder."""

            def plan(self, *arguments, took=name, **options):
                folder.mkdir(exist_ok=True)
                (folder / took).touch()
                return super().plan(*arguments, **options)

        run = Run(Late())
        with pytest.raises(error):
            export_folder(folder, run.job)
        assert run.reader.read == []
        assert shown(folder) == []
        for each in folder.iterdir():
            each.unlink()


# -- one file -------------------------------------------------------------------------------


def test_a_file_and_what_is_said_of_it(tmp_path):
    """All pieces are in it, in their order, and its sums are theirs."""
    run = Run()
    outcome = export_file(tmp_path / "x.csv", run.job)
    assert rows(tmp_path / "x.csv") == ALL
    size = (tmp_path / "x.csv").stat().st_size
    assert outcome == (24, 8, 1, 100, size, "1970-01-01T00:00:00.007Z")
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
