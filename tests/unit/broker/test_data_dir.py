"""When a broker says that its disks are full."""

import errno
import os

import pytest

from memq.broker.data_dir import DiskSpace, check_nothing_missing, lock_objects
from memq.errors import DataLossError, LockedError, StorageError


def test_each_disk_is_looked_at():
    """Whatever the ones before say: what is short or silent is named, and what is free is known."""
    free = {
        "new": FileNotFoundError(),
        "broken": OSError(errno.EIO, "Input/output error"),
        "full": 1,
        "roomy": 1_000,
    }

    def ask(folder):
        answer = free[folder]
        if isinstance(answer, OSError):
            raise answer
        return answer

    for folders in (list(free), [*reversed(free)]):
        disk = DiskSpace(folders, free=ask)
        with pytest.raises(StorageError) as error:
            disk.look(100)
        assert "the disk of broken does not answer" in str(error.value)
        assert "the disk of full has 1" in str(error.value)
        assert "roomy" not in str(error.value)
        assert disk.free_bytes == {"full": 1, "roomy": 1_000}


@pytest.mark.parametrize(
    ("topics", "queue", "missing"),
    [
        (None, None, ""),
        ([], [], ""),
        (["t.json"], ["t.1/"], ""),
        (["t.json"], [], "queue"),
        (["t.json"], None, "queue"),
        (["t.json"], ["stray"], "queue"),
        (["t.1.doomed"], [], ""),
        (["t.1.doomed"], ["t.1/"], ""),
        ([], ["t.1/"], "topics"),
        (None, ["t.1/"], "topics"),
        (["folder/"], ["t.1/"], "topics"),
    ],
)
def test_what_is_missing_is_told_by_what_is_there(tmp_path, topics, queue, missing):
    """A topic that is only being made or removed is a sign of a catalog, and of no queue."""
    for folder, names in (("topics", topics), ("queue/topics", queue)):
        for name in names or []:
            path = tmp_path / folder / name
            if name.endswith("/"):
                path.mkdir(parents=True)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
        if names is not None:
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    if missing:
        with pytest.raises(DataLossError, match=f"/{missing} is missing or empty"):
            check_nothing_missing(tmp_path)
    else:
        check_nothing_missing(tmp_path)


def test_objects_are_locked_against_copies_alone(tmp_path):
    """Another lineage may use them too; a copy may when the original has ended."""
    held = lock_objects(tmp_path / "objects", "one")
    other = lock_objects(tmp_path / "objects", "two")
    with pytest.raises(LockedError, match="on a copy of this data directory"):
        lock_objects(tmp_path / "objects", "one")
    os.close(held)
    os.close(lock_objects(tmp_path / "objects", "one"))
    os.close(other)
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot lock"):
        lock_objects(tmp_path / "file", "one")
