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

from memq.errors import StorageError
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
