"""What commands, jobs and operators write beside the core is whole or absent after a power cut."""

import contextlib
import random
import shutil
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest

from airflow_provider_memq.launch import files as airflow_files
from memq.cli.export_job import STARTED, SUCCESS, ExportJob, export_file, export_folder
from memq.core.manifest import Totals
from memq.core.ranges import OffsetRange
from memq.errors import MemqError
from memq.reading.plan import Piece, ReadPlan, Selection
from memq.runtime.files import make_folders, replace_durably
from memq.spark import files as spark_files
from tests.fakes.disk import ForgetfulDisk, PowerCut
from tests.simulation.crashes import PLANS, STATES, Crashes

OLD, NEW = b"old " * 2_000, b"new! " * 3_000
ROWS = 500
PIECES = [
    Piece(OffsetRange(partition, 10 * number, 10 * number + 10, "i"), Totals(batches=10))
    for partition, number in ((0, 0), (0, 1), (1, 0), (1, 1), (1, 2))
]

WRITERS = {
    "a small file": replace_durably,
    "a result of an operator": lambda path, data: airflow_files.write(str(path), data),
    "a result, by its URI": lambda path, data: airflow_files.write(f"file://{path}", data),
    "a manifest of Spark": lambda path, data: spark_files.write(str(path), data),
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("before", [None, OLD], ids=["new", "in place of another"])
def test_a_small_file_is_whole_or_absent(memory_path, name, before):
    """Before it is written it is what it was, afterwards it is new; never anything else."""
    write, seen = WRITERS[name], Counter()
    for seed in range(3 * PLANS):
        scratch = memory_path / str(seed)
        scratch.mkdir()
        rng = random.Random(seed)
        with ForgetfulDisk(scratch / "live", rng, write_back=0.3) as disk:
            path = disk.root / "folder" / "file"
            make_folders(path.parent)
            if before is not None:
                replace_durably(path, before)
            crashes = Crashes(disk, scratch / "crashed", seed, limit=4 * STATES)
            write(path, NEW)
            for crashed in crashes.take():
                found = crashed.folder / "folder" / "file"
                content = found.read_bytes() if found.exists() else None
                assert content in (before, NEW), f"seed {seed}, before {crashed.step}"
                seen[content] += 1
            disk.on_step = None
            disk.crash()
            assert path.read_bytes() == NEW, f"seed {seed}: it was written, and is gone"
    assert seen[before] > 3


def rows_of(pieces):
    """The rows of some pieces, so many from each."""
    numbers = [
        (piece.range.partition, piece.range.start * ROWS + number)
        for piece in pieces
        for number in range(ROWS)
    ]
    return pa.record_batch(
        {
            "partition": pa.array([each for each, _ in numbers], pa.int64()),
            "number": pa.array([each for _, each in numbers], pa.int64()),
        }
    )


class Reader:
    """Reads the pieces from nowhere."""

    schema = rows_of([]).schema

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Nothing is open."""

    def plan(self, _selection, *, piece_bytes=0):
        return ReadPlan(times=None, pieces=PIECES if piece_bytes else PIECES[:])

    def rows(self, _plan, pieces):
        for piece in pieces:
            batch = SimpleNamespace(notification=SimpleNamespace(size_bytes=1))
            yield SimpleNamespace(batch=batch, rows=[rows_of([piece])])


def job(form):
    """An export of the pieces."""

    @contextlib.contextmanager
    def progress(_size_bytes):
        yield lambda _: None

    return ExportJob(
        form=form,
        selection=Selection(),
        open_reader=Reader,
        progress=progress,
        file_bytes=1,
    )


def table(path):
    """The rows of a file, which must be whole."""
    read = {
        ".parquet": pyarrow.parquet.read_table,
        ".arrow": pyarrow.feather.read_table,
        ".csv": pyarrow.csv.read_csv,
    }[path.suffix]
    return read(path)


def seen_by_others(folder):
    """The files that readers of folders take."""
    return sorted(each for each in folder.glob("*") if each.name[0] not in "._")


FORMATS = ("parquet", "arrow", "csv")


@pytest.mark.parametrize("form", FORMATS)
def test_a_file_that_is_exported_is_whole_or_absent(memory_path, form):
    """It has its name when all of it is durable; and a run after the cut makes it."""
    suffix = {"parquet": ".parquet", "arrow": ".arrow", "csv": ".csv"}[form]
    expected = pa.Table.from_batches([rows_of(PIECES)])
    for seed in range(PLANS):
        scratch = memory_path / str(seed)
        scratch.mkdir()
        with ForgetfulDisk(scratch / "live", random.Random(seed), write_back=0.3) as disk:
            crashes = Crashes(disk, scratch / "crashed", seed, limit=STATES)
            export_file(disk.root / f"all{suffix}", job(form))
            for crashed in crashes.take():
                path = crashed.folder / f"all{suffix}"
                if not path.exists():
                    export_file(path, job(form))
                assert table(path).equals(expected), f"seed {seed}, before {crashed.step}"
                assert [each.name for each in crashed.folder.iterdir()] == [path.name]
            disk.on_step = None
            disk.crash()
            assert table(disk.root / f"all{suffix}").equals(expected)


@pytest.mark.parametrize("form", FORMATS)
def test_a_folder_that_is_exported_says_when_it_is_whole(memory_path, form):
    """Each file that others see is whole, and after a power cut `_SUCCESS` is not there sooner
    than all of them; a run in the place of what was cut makes the whole.
    """
    each_piece = [pa.Table.from_batches([rows_of([piece])]) for piece in PIECES]
    ended = 0
    for seed in range(3 * PLANS):
        scratch = memory_path / str(seed)
        scratch.mkdir()
        with ForgetfulDisk(scratch / "live", random.Random(seed), write_back=0.3) as disk:
            crashes = Crashes(disk, scratch / "crashed", seed, limit=STATES)
            assert export_folder(disk.root / "all", job(form)).files == len(PIECES)
            for crashed in crashes.take():
                _look(crashed.folder / "all", each_piece)
                shutil.rmtree(crashed.folder / "all", ignore_errors=True)
                done = export_folder(crashed.folder / "all", job(form))
                assert done.records == ROWS * len(PIECES), f"seed {seed}, before {crashed.step}"
                found = [table(path) for path in seen_by_others(crashed.folder / "all")]
                assert all(a.equals(b) for a, b in zip(found, each_piece, strict=True))
                ended += 1
            disk.on_step = None
            disk.crash()
            _look(disk.root / "all", each_piece)
            assert (disk.root / "all" / SUCCESS).exists()
    assert ended > 100


def _look(folder, each_piece):
    """What is there of an export is whole, and all of it is there when that is said."""
    names = {each.name for each in folder.iterdir()} if folder.exists() else set()
    seen = seen_by_others(folder)
    for path in seen:
        assert any(table(path).equals(each) for each in each_piece), f"{path.name} is not whole"
    if SUCCESS in names:
        assert len(seen) == len(PIECES), names
    others = names - {STARTED, SUCCESS} - {each.name for each in seen}
    assert all(name.endswith(".tmp") for name in others), names


def test_a_disk_that_fails_leaves_no_half_of_an_export(memory_path):
    """An export ends with a typed error, and the next one with the whole."""
    calls = ("sync", "write", "create", "rename", "sync_folder", "mkdir")
    for seed in range(20 * PLANS):
        rng = random.Random(seed)
        with ForgetfulDisk(memory_path / str(seed), rng, write_back=0.3) as disk:
            disk.fail(rng.choice(calls), skip=rng.randrange(9))
            with contextlib.suppress(MemqError, PowerCut):
                export_folder(disk.root / "all", job("csv"))
            disk.mend()
            shutil.rmtree(disk.root / "all", ignore_errors=True)
            done = export_folder(disk.root / "all", job("csv"))
            assert done.records == ROWS * len(PIECES)
            disk.fail(rng.choice(calls), skip=rng.randrange(4))
            with contextlib.suppress(MemqError, PowerCut):
                export_file(disk.root / "one.csv", job("csv"))
            disk.mend()
            assert not (disk.root / ".one.csv.tmp").exists(), "it takes its room with it"
            (disk.root / "one.csv").unlink(missing_ok=True)  # where only its name was in doubt
            export_file(disk.root / "one.csv", job("csv"))
            disk.crash()
            assert len(seen_by_others(Path(disk.root) / "all")) == len(PIECES)
            assert table(disk.root / "one.csv").num_rows == ROWS * len(PIECES)
