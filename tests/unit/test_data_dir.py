"""When a broker says that its disks are full."""

from __future__ import annotations

import errno

import pytest

from memq.broker.data_dir import HOLD_MS, DiskSpace
from memq.errors import QueueError, StorageError


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
    disk.seen(disk.look(100))
    [reason] = disk.reasons(0)
    assert reason.startswith("the disk of objects has 99")
    disk.seen(disk.look(100))
    assert disk.reasons(0) == []


def test_a_disk_that_does_not_answer_is_not_ready():
    """An error of the file system is a reason; a folder that is not made yet is none."""
    disk = room(OSError(errno.EIO, "Input/output error"), FileNotFoundError())
    disk.seen(disk.look(1))
    assert disk.reasons(0) == ["the disk of objects does not answer: Input/output error"]
    disk.seen(disk.look(1))
    assert disk.reasons(0) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("error", [StorageError, QueueError])
def test_a_write_that_found_no_room_counts_for_a_while(number, error):
    """A quota is seen by its errors alone, behind whatever names them, and is forgotten."""
    disk = DiskSpace()
    failure = error("cannot write")
    failure.__cause__ = QueueError("because of")
    failure.__cause__.__cause__ = OSError(number, "no room")
    disk.failed(failure, 1_000)
    assert disk.reasons(1_000) == ["a write failed: cannot write"]
    assert disk.reasons(1_000 + HOLD_MS) == []


def test_other_failures_are_no_sign_of_a_full_disk():
    """An error that is not about room changes nothing."""
    disk = DiskSpace()
    failure = StorageError("cannot write")
    failure.__cause__ = OSError(errno.EIO, "broken")
    disk.failed(failure, 0)
    assert disk.reasons(0) == []
