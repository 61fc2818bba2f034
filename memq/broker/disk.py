"""Room on the disks: whether the broker can store what it would accept.

Two signs, as neither sees everything. Free space below what the next Batch may take says so before
anything fails; a write that failed for want of room says so where free space does not, as with a
quota. Both pass by themselves.
"""

from __future__ import annotations

import errno
import logging
import os
from typing import TYPE_CHECKING

from memq.core.units import format_size_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

log = logging.getLogger(__name__)

HOLD_MS = 10_000  # how long a failed write counts: longer than the pause between two attempts
_NO_ROOM = frozenset((errno.ENOSPC, errno.EDQUOT))


def free_bytes(folder: Path) -> int:
    """What a user may still write on the file system of a folder. Raises OSError."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


class DiskRoom:
    """What is known of the room on the disks of one broker.

    Args:
        folders: on the disks that it writes to; those of seams that are elsewhere are left out.
        free: bytes that are free at a folder.
    """

    def __init__(
        self, folders: Sequence[Path] = (), *, free: Callable[[Path], int] = free_bytes
    ) -> None:
        self._folders = folders
        self._free = free
        self._short: list[str] = []
        self._failure = ""
        self._failed_ms: int | None = None

    def __repr__(self) -> str:
        return f"<DiskRoom [{'; '.join(self._short) or 'enough'}] {self._failure}>"

    def look(self, needed_bytes: int) -> list[str]:
        """Where less than that is free, in words. It asks the file system, which may hang."""
        short = []
        for folder in self._folders:
            try:
                free = self._free(folder)
            except FileNotFoundError:
                continue  # made by the first write
            except OSError as exc:
                short.append(f"the disk of {folder} does not answer: {exc.strerror or exc}")
                continue
            if free < needed_bytes:
                short.append(
                    f"the disk of {folder} has {format_size_bytes(free)} free, and the next Batch "
                    f"may need {format_size_bytes(needed_bytes)}: free some space"
                )
        return short

    def seen(self, short: list[str]) -> None:
        """Take over what `look` has found."""
        if short and not self._short:
            log.error("not ready, as room is short: %s", "; ".join(short))
        elif self._short and not short:
            log.warning("there is room on the disks again")
        self._short = short

    def failed(self, error: BaseException, now_ms: int) -> None:
        """A write has failed; it counts when that was for want of room."""
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, OSError) and cause.errno in _NO_ROOM:
                self._failure, self._failed_ms = f"a write failed: {error}", now_ms
            cause = cause.__cause__

    def reasons(self, now_ms: int) -> list[str]:
        """Why the broker should be given nothing to store; none when there is room."""
        failed = self._failed_ms is not None and now_ms - self._failed_ms < HOLD_MS
        return [*self._short, *([self._failure] if failed else [])]
