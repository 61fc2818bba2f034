"""Files that survive a power cut, and the plain system calls around them.

Functions raise OSError unless they say otherwise; callers tell in their own words what failed and
let `explain` add the cause and the way out.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from typing import TYPE_CHECKING

from memq.errors import LockedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa

_IOV_MAX = os.sysconf("SC_IOV_MAX")  # most buffers that one writev takes
# Bytes that one writev takes: for more of them the kernel takes larger pages for its cache, and
# those are slow to come by in a virtual machine; writing 8 MiB at once was four times slower.
_WRITE_BYTES = 64 << 10

_WAY_OUT = {
    errno.ENOSPC: "free some space on that disk",
    errno.EDQUOT: "free some space or raise the disk quota",
    errno.EFBIG: "raise the limit on file sizes (ulimit -f)",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENFILE: "raise the system's limit on open files (fs.file-max)",
    errno.EACCES: "let this user read and write there",
    errno.EPERM: "let this user write there, on a file system that supports hard links",
    errno.EOPNOTSUPP: "use a file system that supports hard links",
    errno.EROFS: "mount the file system for writing",
    errno.EIO: "check the disk and the system log",
    errno.ESTALE: "mount the network file system again",
}


def explain(exc: OSError) -> str:
    """Name the cause of an error of the system and, where one is known, the way out."""
    cause = exc.strerror or str(exc)
    way_out = _WAY_OUT.get(exc.errno or 0)
    return f"{cause}; {way_out}" if way_out else cause


def write_durably(
    path: Path,
    views: Sequence[memoryview],
    check: Callable[[], None] = lambda: None,
    *,
    mode: int = 0o666,
) -> None:
    """Write a new file and fsync it. Its name needs `sync_folder` to survive as well.

    Args:
        path: of the file, which must not exist.
        views: of bytes, none of them empty, in the order to write.
        check: called between system calls; it raises to give up.
        mode: of the file, without what the process's mask takes away.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        pending, position = list(views), 0
        while position < len(pending):
            check()
            position = _write_some(fd, pending, position)
        check()
        os.fsync(fd)
        check()
    finally:
        os.close(fd)


def replace_durably(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Give a small file new content: whatever crashes, it has the old one or the new one."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)
    write_durably(temporary, [memoryview(content)], mode=mode)
    temporary.replace(path)
    sync_folder(path.parent)


def lock_exclusively(path: Path) -> int:
    """Take the lock file `path` for this process; closing the descriptor returned releases it.

    The kernel releases it when the process ends in whatever way, so no lock is ever stale.

    Raises:
        LockedError: it is taken; the message names the folder and the holder's process id.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"%d" % os.getpid(), 0)
    except BlockingIOError as exc:
        holder = os.pread(fd, 20, 0).decode("ascii", "replace") or "unknown"
        os.close(fd)
        raise LockedError(
            f"{path.parent} is in use by process {holder}; stop that one, or use another folder"
        ) from exc
    except OSError:
        os.close(fd)
        raise
    return fd


def make_folders(folder: Path) -> None:
    """Make a folder, and those above it that are missing, so that they survive a power cut.

    One that exists may have been made by a process that died, or was refused, before it could sync
    it: so its name is synced all the same, where this user may.
    """
    if folder.is_dir():
        with contextlib.suppress(PermissionError):
            sync_folder(folder.parent)
        return
    make_folders(folder.parent)
    with contextlib.suppress(FileExistsError):
        folder.mkdir()
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[tuple[int, int]]:
    """Open a regular file for reading: its descriptor, and its size in bytes."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, "not a regular file")
        yield fd, found.st_size
    finally:
        os.close(fd)


def read_exactly(fd: int, start: int, length: int) -> pa.Buffer:
    """`length` bytes from `start`, in memory of Arrow's pool.

    The pool reuses memory: 6 to 12 GB/s from the page cache, where fresh memory costs a page fault
    for every 4 KiB (2 GB/s at 64 MiB). A memory map would be faster still, but kills the process
    with SIGBUS when the file shrinks or its disk fails.
    """
    import pyarrow as pa  # noqa: PLC0415 - commands that only write files start without it

    buffer = pa.allocate_buffer(length)
    view, done = memoryview(buffer), 0
    while done < length:
        count = os.preadv(fd, [view[done:]], start + done)
        if count == 0:
            raise OSError(errno.EIO, "the file ended early")
        done += count
    return buffer


def _write_some(fd: int, pending: list[memoryview], position: int) -> int:
    """Write from the buffer at `position` on; the new position, its buffer cut to what is left."""
    some: list[memoryview] = []
    room = _WRITE_BYTES
    for view in pending[position : position + _IOV_MAX]:
        some.append(view[:room])
        room -= some[-1].nbytes
        if not room:
            break
    written = os.writev(fd, some)
    while position < len(pending) and written >= pending[position].nbytes:
        written -= pending[position].nbytes
        position += 1
    if written:
        pending[position] = pending[position][written:]
    return position
