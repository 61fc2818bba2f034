"""The file system calls that mapped pages need beside `memq.runtime.files`."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from memq.errors import QueueError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def sync_file(path: Path) -> None:
    """Flush what any process has written to `path`, through maps as well, to the device.

    On Linux this covers pages dirtied through a shared mapping, even one unmapped since, and
    unlike `msync` from Python it lets other threads run meanwhile.
    """
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fdatasync(fd)
    finally:
        os.close(fd)


def preallocate(path: Path, size_bytes: int) -> bool:
    """Give `path` at least `size_bytes` of real blocks, creating it if need be.

    A write to a mapped block that the disk cannot supply kills the process with SIGBUS, so every
    block is claimed here, where a full disk is an `OSError`. When that happens the file is put
    back as it was.

    Returns:
        True when the file is new or grew.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        size_before = os.fstat(fd).st_size
        try:
            os.posix_fallocate(fd, 0, size_bytes)
        except OSError:
            os.ftruncate(fd, size_before)
            if size_before == 0:
                path.unlink()
            raise
        return size_before < size_bytes
    finally:
        os.close(fd)


@contextmanager
def translated(doing: str, path: Path) -> Iterator[None]:
    """Raise a `QueueError` for an `OSError` met while `doing` something to `path`."""
    try:
        yield
    except OSError as exc:
        raise QueueError(
            f"cannot {doing} {path}: {exc.strerror or exc}; nothing was changed. "
            "Check space, limits and permissions there, then try again"
        ) from exc
