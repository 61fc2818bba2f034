"""Durable files: the parts that a storage test cannot reach."""

import errno
import itertools
import os

import pytest

from memq.errors import LockedError
from memq.runtime import files
from memq.runtime.files import opened, read_exactly, write_durably
from tests.harness.descriptors import open_files


def test_a_file_that_shrank_is_an_error_not_a_crash(tmp_path):
    """Reading past the end of a file that was cut after it was opened raises."""
    write_durably(tmp_path / "f", [memoryview(b"x" * 10_000)])
    with opened(tmp_path / "f") as (fd, size_bytes):
        os.truncate(tmp_path / "f", 5_000)
        with pytest.raises(OSError, match="ended early"):
            read_exactly(fd, 0, size_bytes)


def _opens(path):
    with files.opened(path / "there") as (fd, size):
        files.read_exactly(fd, 0, size)


WORK = {
    "write": lambda path: files.write_durably(path / "new", [memoryview(b"a"), memoryview(b"b")]),
    "replace": lambda path: files.replace_durably(path / "there", b"new"),
    "lock": lambda path: os.close(files.lock_exclusively(path / "lock")),
    "folders": lambda path: files.make_folders(path / "a" / "b"),
    "open": _opens,
}
CALLS = ("fsync", "writev", "ftruncate", "pwrite", "fstat", "preadv", "mkdir", "replace", "unlink")


@pytest.mark.parametrize("work", WORK)
def test_whichever_call_fails_is_told_and_no_file_stays_open(tmp_path, monkeypatch, work):
    """Each call of each function is made to fail; what stood there before is whole."""
    for failing in itertools.count():
        folder = tmp_path / f"{failing}"
        folder.mkdir()
        (folder / "there").write_bytes(b"old")
        count = itertools.count()
        with monkeypatch.context() as patched:
            for name in CALLS:
                call = getattr(os, name)

                def once(*args, call=call, count=count, failing=failing, **options):
                    if next(count) == failing:
                        raise OSError(errno.EIO, "the disk fails")
                    return call(*args, **options)

                patched.setattr(os, name, once)
            try:
                WORK[work](folder)
                failed = False
            except OSError as exc:
                assert exc.errno == errno.EIO
                failed = True
            assert open_files(folder) == []
        reached = next(count) > failing
        assert failed == reached
        assert (folder / "there").read_bytes() in (
            (b"old", b"new") if work == "replace" else (b"old",)
        )
        if not reached:
            break
    assert failing > 0


def test_a_lock_is_one_processes(tmp_path):
    """The error names the folder and who has it; when that one lets go it is free."""
    path = tmp_path / "lock"
    path.write_bytes(b"12345678901")
    fd = files.lock_exclusively(path)
    assert path.read_bytes() == b"%d" % os.getpid()
    with pytest.raises(LockedError, match=f"{tmp_path} is in use by process {os.getpid()};"):
        files.lock_exclusively(path)
    assert open_files(tmp_path) == [path]
    assert path.read_bytes() == b"%d" % os.getpid()
    os.close(fd)
    os.close(files.lock_exclusively(path))


def test_what_a_killed_process_left_half_written_is_replaced(tmp_path):
    """Its temporary file is in nobody's way, and nothing of it is left."""
    path = tmp_path / "x"
    (tmp_path / "x.tmp").write_bytes(b"a longer half of something")
    files.replace_durably(path, b"new")
    assert [each.name for each in tmp_path.iterdir()] == ["x"]
    assert path.read_bytes() == b"new"
