"""The few file system calls that durability rests on. They raise `OSError`; callers translate."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING, BinaryIO

from memq.errors import LockedError, QueueError

if TYPE_CHECKING:
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


def sync_directory(path: Path) -> None:
    """Make the creation, renaming and removal of files in the folder `path` durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_directories(path: Path) -> None:
    """Make the folder `path`, and those above it that are missing, durably."""
    if not path.is_dir():
        make_directories(path.parent)
        path.mkdir(exist_ok=True)
        sync_directory(path.parent)


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


def write_whole(path: Path, content: bytes) -> None:
    """Put `content` at `path` durably: a crash leaves the old file or the new one, never a part."""
    temporary = path.with_name(path.name + ".tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    with os.fdopen(fd, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)


def lock_for_writing(path: Path) -> BinaryIO:
    """Take the writer's lock on the file `path`; closing the returned file releases it.

    The kernel releases it when the process dies, so a crash never leaves a stale lock.

    Raises:
        LockedError: another array object, here or in another process, holds it.
    """
    file = path.open("a+b", buffering=0)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.truncate(0)
        file.write(str(os.getpid()).encode())
    except BlockingIOError as exc:
        file.seek(0)
        holder = file.read(20).decode("ascii", "replace") or "unknown"
        file.close()
        raise LockedError(
            f"{path.parent} has a writer already (process {holder}); "
            "close that one first, or open with read_only=True"
        ) from exc
    except OSError:
        file.close()
        raise
    return file


def failure(doing: str, path: Path, exc: OSError) -> QueueError:
    """The typed error for an `OSError` met while `doing` something to `path`."""
    return QueueError(
        f"cannot {doing} {path}: {exc.strerror or exc}; nothing was changed. "
        "Check space, limits and permissions there, then try again"
    )
