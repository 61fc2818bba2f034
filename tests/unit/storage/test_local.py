"""What is special to objects in files: leftovers, crashes, full disks, foreign files."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from memq.errors import ObjectNotFoundError, StorageError
from memq.runtime.files import sync_folder
from memq.runtime.system import Runtime
from memq.storage import local
from memq.storage.local import LocalStorage

ROOT = Path(__file__).parents[3]


def run_child(script, *arguments):
    """Run a Python program of a few lines; it sees its arguments in `sys.argv`."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def leftovers(root):
    """Names in the folder of unfinished writes."""
    return [path.name for path in (root / ".tmp").glob("*")]


def test_a_put_past_its_deadline_leaves_nothing(tmp_path):
    """Wherever in the put the deadline passes, it fails and there is neither object nor rest."""
    for calls_in_time in range(4):
        times_s = iter([0.0] * (calls_in_time + 1) + [11.0] * 10)
        runtime = Runtime(mono_s=lambda times_s=times_s: next(times_s))
        storage = LocalStorage(tmp_path, runtime=runtime)
        if calls_in_time == 3:
            storage.put("a", [b"x"], timeout_s=10)
            continue
        with pytest.raises(StorageError, match="deadline passed"):
            storage.put("a", [b"x"], timeout_s=10)
        assert list(storage.list("")) == []
        assert leftovers(tmp_path) == []
    assert bytes(storage.get("a")) == b"x"


@pytest.mark.parametrize("removed", ["a/b", "a", ".tmp", "."])
def test_a_storage_continues_after_its_folders_were_removed(tmp_path, removed):
    """When somebody removes a folder by hand, one put may fail, and the next one makes it anew."""
    storage = LocalStorage(tmp_path / "objects")
    storage.put("a/b/c", [b"x"], timeout_s=30)
    shutil.rmtree(tmp_path / "objects" / removed)
    with pytest.raises(StorageError):
        storage.put("a/b/d", [b"x"], timeout_s=30)
    storage.put("a/b/d", [b"x"], timeout_s=30)
    assert bytes(storage.get("a/b/d")) == b"x"


def test_a_leftover_is_removed_once_it_is_older_than_asked(tmp_path):
    """To the millisecond, as the longest put may take just as long."""
    storage = LocalStorage(tmp_path)
    (tmp_path / ".tmp").mkdir()
    (tmp_path / ".tmp/half").write_bytes(b"half")
    os.utime(tmp_path / ".tmp/half", (1_000, 1_000))
    assert storage.clean_temporary(older_than_ms=60_000, now_ms=1_060_000) == 0
    assert storage.clean_temporary(older_than_ms=60_000, now_ms=1_060_001) == 1


@pytest.mark.parametrize("moment", ["before", "after"])
def test_files_may_vanish_while_they_are_looked_at(tmp_path, monkeypatch, moment):
    """A leftover that its writer removes, or an object that another process does, is no error."""
    storage = LocalStorage(tmp_path)
    for key in ("a/1", "a/2", "a/3"):
        storage.put(key, [b"x"], timeout_s=30)
    (tmp_path / ".tmp/half").write_bytes(b"half")
    look = local._stat

    def vanishing(entry):
        if entry.name not in ("2", "half"):
            return look(entry)
        found = look(entry) if moment == "after" else None
        Path(entry.path).unlink()
        return found or look(entry)

    monkeypatch.setattr(local, "_stat", vanishing)
    storage.clean_temporary(older_than_ms=-1, now_ms=1 << 50)
    assert leftovers(tmp_path) == []
    found = {info.key for info in storage.list("")}
    assert found - {"a/2"} == {"a/1", "a/3"}
    assert ("a/2" in found) is (moment == "after")


@pytest.fixture
def syncing(monkeypatch):
    """Names of the folders that are synced; those in `refused` are not."""

    def sync(folder):
        if folder.name in refused:
            raise OSError(errno.EIO, "bad sector")
        synced.append(folder.name)
        sync_folder(folder)

    synced, refused = [], set()
    monkeypatch.setattr(local, "sync_folder", sync)
    return synced, refused


def test_a_removal_that_was_not_synced_is_synced_before_a_listing_says_so(tmp_path, syncing):
    """Else an object that is not listed could come back; what is durable is not synced again."""
    synced, refused = syncing
    storage = LocalStorage(tmp_path)
    for key in ("a/1", "b/1", "c/1", "d/1"):
        storage.put(key, [b"x"], timeout_s=30)
    refused.add("b")
    with pytest.raises(StorageError, match=r"cannot delete 'b/1'.*bad sector"):
        storage.delete("a/1", "b/1", "c/1")
    with pytest.raises(StorageError, match="cannot list"):
        list(storage.list("d/"))
    refused.clear()
    synced.clear()
    for _ in range(2):
        assert {info.key for info in storage.list("")} == {"c/1", "d/1"}
    assert synced == ["b"]
    storage.delete("c/1")
    assert [info.key for info in storage.list("")] == ["d/1"]
    assert synced == ["b", "c"]


def test_an_object_that_is_there_already_is_made_durable(tmp_path, syncing, monkeypatch):
    """Bytes, name and folders: whoever wrote it may not have come so far."""
    synced, refused = syncing
    folder = tmp_path / "objects/a/b"
    folder.mkdir(parents=True)
    (folder / "1").write_bytes(b"x")
    files, fsync = [], os.fsync

    def sync_file(fd):
        if refused == {"1"}:
            raise OSError(errno.EIO, "bad sector")
        files.append(os.fstat(fd).st_ino)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", sync_file)
    storage = LocalStorage(tmp_path / "objects")
    for name in ("1", "b", "a", "objects"):
        refused |= {name}
        with pytest.raises(StorageError, match="bad sector"):
            storage.put("a/b/1", [b"x"], timeout_s=30)
        refused.clear()
    synced.clear()
    files.clear()
    storage.put("a/b/1", [b"x"], timeout_s=30)
    assert (folder / "1").stat().st_ino in files
    assert {"objects", "a", "b"} <= set(synced)


def test_below_an_object_there_is_none(tmp_path):
    """A key whose folder is a file is not there; to delete it is fine, and deletes nothing else."""
    storage = LocalStorage(tmp_path)
    for key in ("a", "b"):
        storage.put(key, [b"x"], timeout_s=30)
    for key in ("a/b", "a/b/c"):
        with pytest.raises(ObjectNotFoundError, match=f"'{key}'"):
            storage.get(key)
        with pytest.raises(ObjectNotFoundError, match=f"'{key}'"):
            storage.get_range(key, 0, 1)
    storage.delete("a/b", "a/b/c", "b")
    assert [info.key for info in storage.list("")] == ["a"]
    assert list(storage.list("a/", "a/b/")) == []


def test_a_file_size_limit_is_a_typed_error(tmp_path):
    """When the system refuses to write more, the put fails with the way out and leaves nothing."""
    done = run_child(
        """
        import pathlib, resource, sys
        from memq.storage.local import LocalStorage
        from memq.errors import StorageError
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        storage = LocalStorage(pathlib.Path(sys.argv[1]))
        try:
            storage.put("a", [b"x" * 60_000, b"y" * 60_000], timeout_s=30)
        except StorageError as exc:
            print(exc)
        storage.put("b", [b"x" * 60_000], timeout_s=30)
        print([info.key for info in storage.list("")])
        """,
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "File too large" in done.stdout
    assert "ulimit -f" in done.stdout
    assert "['b']" in done.stdout
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("system_calls", range(5))
def test_a_kill_in_a_put_leaves_no_half_object(tmp_path, system_calls):
    """Killed between any two writes, after the last or after the fsync: nothing is visible."""
    done = run_child(
        """
        import itertools, os, pathlib, signal, sys
        from memq.runtime.system import Runtime
        from memq.storage.local import LocalStorage
        calls = itertools.count()
        def clock_s():
            # The clock is read once at the start and then between system calls.
            if next(calls) == int(sys.argv[2]) + 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return 0.0
        storage = LocalStorage(pathlib.Path(sys.argv[1]), runtime=Runtime(mono_s=clock_s))
        buffers = [b"x" * 100] * (2 * os.sysconf("SC_IOV_MAX") + 1)  # three writes
        storage.put("a/b", buffers, timeout_s=30)
        """,
        tmp_path,
        system_calls,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    storage = LocalStorage(tmp_path)
    assert list(storage.list("")) == []
    assert len(leftovers(tmp_path)) == 1
    assert storage.clean_temporary(older_than_ms=-1, now_ms=1 << 50) == 1
    storage.put("a/b", [b"whole"], timeout_s=30)
    assert bytes(storage.get("a/b")) == b"whole"
