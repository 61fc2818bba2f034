"""When a broker says that its disks are full."""

from __future__ import annotations

import errno

import pytest

from memq.broker.data_dir import DiskSpace
from memq.errors import StorageError


def room(*free):
    """The room on a disk that has so much free, one number a look, or does not answer."""
    answers = iter(free)

    def ask(_):
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return answer

    return DiskSpace(["objects"], free=ask)


def test_free_space_is_compared_with_what_is_needed():
    """Too little is named with place and numbers, and passes when there is enough."""
    disk = room(99, 100)
    with pytest.raises(StorageError, match="the disk of objects has 99"):
        disk.look(100)
    disk.look(100)
    assert disk.free_bytes == {"objects": 100}


def test_a_disk_that_does_not_answer_is_not_ready():
    """An error of the file system is a reason; a folder that is not made yet is none."""
    disk = room(OSError(errno.EIO, "Input/output error"), FileNotFoundError())
    with pytest.raises(StorageError, match="the disk of objects does not answer: Input/output"):
        disk.look(1)
    disk.look(1)
