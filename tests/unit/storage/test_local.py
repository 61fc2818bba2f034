"""What is special to objects in files: leftovers, crashes, full disks, foreign files."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from memq.errors import StorageError
from memq.runtime.system import Runtime
from memq.storage.local import LocalStorage

ROOT = Path(__file__).parents[3]


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


KILLED_IN_A_PUT = """
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
"""


@pytest.mark.parametrize("system_calls", range(5))
def test_a_kill_in_a_put_leaves_no_half_object(tmp_path, system_calls):
    """Killed between any two writes, after the last or after the fsync: nothing is visible."""
    command = [sys.executable, "-c", KILLED_IN_A_PUT, str(tmp_path), str(system_calls)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    storage = LocalStorage(tmp_path)
    assert list(storage.list("")) == []
    assert len(leftovers(tmp_path)) == 1
    assert storage.clean_temporary(older_than_ms=-1, now_ms=1 << 50) == 1
    storage.put("a/b", [b"whole"], timeout_s=30)
    assert bytes(storage.get("a/b")) == b"whole"
