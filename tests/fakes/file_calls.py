"""The calls of this process that change files, and the disks that are told of them.

A file belongs to a disk by its device and inode number, which is asked of the kernel at each call;
paths and descriptor numbers are not remembered, so nothing goes wrong where they are used again.
Folders are read in the order of their names, on a disk and elsewhere, so that runs can be repeated.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import stat
from typing import TYPE_CHECKING, Any, Self

from tests.fakes.durable import real

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fakes.disk import ForgetfulDisk
    from tests.fakes.durable import Inode

Found = tuple["ForgetfulDisk", "Inode"]

_disks: list[ForgetfulDisk] = []
_real_open = io.open


def install(disk: ForgetfulDisk) -> None:
    """Tell a disk of the calls."""
    if not _disks:
        for name, call in _CALLS.items():
            setattr(os, name, call)
        builtins.open = io.open = _open_file  # type: ignore[assignment]
    _disks.append(disk)


def uninstall(disk: ForgetfulDisk) -> None:
    """Tell it no more."""
    _disks.remove(disk)
    if not _disks:
        for name in _CALLS:
            setattr(os, name, getattr(real, name))
        builtins.open = io.open = _real_open


def key_of(fd: int) -> tuple[int, int] | None:
    """Device and inode of a descriptor; None when it is not open."""
    try:
        found = real.fstat(fd)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _find(key: tuple[int, int] | None) -> Found | None:
    for disk in _disks:
        inode = disk.inodes.get(key)
        if inode is not None:
            return disk, inode
    return None


def _at(path: Any, dir_fd: int | None = None) -> tuple[Found | None, os.stat_result | None]:
    """What is at a path."""
    try:
        found = real.stat(path, dir_fd=dir_fd, follow_symlinks=False)
    except OSError:
        return None, None
    return _find((found.st_dev, found.st_ino)), found


def _place(path: Any, dir_fd: int | None = None) -> tuple[Found | None, str]:
    """The folder that a path lies in, if it is on a disk, and the name there."""
    head, name = os.path.split(os.fsdecode(path).rstrip("/"))
    try:
        found = real.stat(head or ".", dir_fd=dir_fd)
    except OSError:
        return None, name
    return _find((found.st_dev, found.st_ino)), name


def _of(fd: int) -> str:
    """A path by which the file of a descriptor can be opened."""
    return f"/proc/self/fd/{fd}"


# -- opening ------------------------------------------------------------------------------------


def _open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
    hidden = bool(flags & os.O_RDWR)
    folder, name = _place(path, dir_fd) if flags & os.O_CREAT else (None, "")
    there, found = _at(path, dir_fd)
    if folder is not None and found is None:
        disk, inode = folder
        with disk.lock:
            disk.step("create", path)
            _claim_name(disk)
            fd = real.open(path, flags, mode, dir_fd=dir_fd)
            made = disk.new_inode(folder=False)
            made.hidden_writes = hidden
            disk.inodes[key_of(fd)] = made
            disk.change((inode, name, made))
            disk.stamp(fd)
    elif there is not None:
        disk, inode = there
        with disk.lock:
            disk.step("truncate" if flags & os.O_TRUNC else "open", path)
            if flags & (os.O_WRONLY | os.O_RDWR):
                disk.writable(inode, path, hidden=hidden)
            fd = real.open(path, flags, mode, dir_fd=dir_fd)
    else:
        return real.open(path, flags, mode, dir_fd=dir_fd)
    disk.opened(fd, key_of(fd))
    return fd


def _open_for_file(path: Any, flags: int) -> int:
    return _open(path, flags, 0o666)


def _open_file(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
    opener = {} if isinstance(file, int) else {"opener": _open_for_file}
    opened = _real_open(file, mode, *args, **opener | kwargs)
    fd = opened.fileno()
    found = _find(key_of(fd))
    if found is not None:
        disk, inode = found
        if not {"w", "x", "a", "+"}.isdisjoint(mode):
            disk.writable(inode, _of(fd), hidden=True)
        disk.closed(fd)  # the file closes it
        disk.opened_file(opened)
    return opened


def _close(fd: int) -> None:
    for disk in _disks:
        disk.closed(fd)
    real.close(fd)


# -- content ------------------------------------------------------------------------------------


def _of_file(name: str, step: str, change: Callable[..., Any]) -> Callable[..., Any]:
    """Return a call with a descriptor, which is a step of the disk that has the file."""
    call = getattr(real, name)

    def called(fd: int, *args: Any) -> Any:
        found = _find(key_of(fd))
        if found is None:
            return call(fd, *args)
        disk, inode = found
        is_folder = inode.names is not None
        with disk.lock:
            disk.step("sync_folder" if step == "sync" and is_folder else step, _of(fd))
            return change(disk, inode, fd, *args)

    return called


def _written(disk: ForgetfulDisk, inode: Inode, fd: int, data: Any, *offset: int) -> int:
    view = memoryview(data).cast("B")
    view = view[: disk.claim(view.nbytes, partly=True)]
    disk.writable(inode, _of(fd), hidden=False)
    written = real.pwrite(fd, view, *offset) if offset else real.write(fd, view)
    disk.stamp(fd)
    return written


def _truncated(disk: ForgetfulDisk, inode: Inode, fd: int, length: int) -> None:
    disk.writable(inode, _of(fd), hidden=False)
    real.ftruncate(fd, length)
    disk.stamp(fd)


def _allocated(disk: ForgetfulDisk, inode: Inode, fd: int, offset: int, length: int) -> None:
    more = offset + length - real.fstat(fd).st_size
    if more > 0:
        disk.claim(more)
        _truncated(disk, inode, fd, offset + length)


_WRITES = {
    "write": _of_file("write", "write", _written),
    "pwrite": _of_file("pwrite", "write", _written),
    "writev": _of_file(
        "writev",
        "write",
        lambda disk, inode, fd, buffers: _written(disk, inode, fd, b"".join(buffers)),
    ),
    "ftruncate": _of_file("ftruncate", "truncate", _truncated),
    "posix_fallocate": _of_file("posix_fallocate", "allocate", _allocated),
}
_SYNCS = {
    name: _of_file(name, "sync", lambda disk, inode, fd: disk.sync(inode, _of(fd)))
    for name in ("fsync", "fdatasync")
}
_READS = {
    name: _of_file(name, "read", lambda _disk, _inode, *args, name=name: getattr(real, name)(*args))
    for name in ("read", "pread", "preadv")
}


# -- names --------------------------------------------------------------------------------------


def _claim_name(disk: ForgetfulDisk) -> None:
    """Refuse a name on a disk that is full."""
    disk.claim(0 if disk.room_bytes is None else 1)


def _link(src: Any, dst: Any) -> None:
    folder, name = _place(dst)
    if folder is None:
        real.link(src, dst)
        return
    disk, inode = folder
    with disk.lock:
        disk.step("link", dst)
        _claim_name(disk)
        there, _ = _at(src)
        if there is None or there[0] is not disk:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), src, None, dst)
        real.link(src, dst)
        disk.change((inode, name, there[1]))


def _rename(src: Any, dst: Any) -> None:
    old, old_name = _place(src)
    new, new_name = _place(dst)
    if old is None and new is None:
        real.rename(src, dst)
        return
    if old is None or new is None or old[0] is not new[0]:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), src, None, dst)
    disk = old[0]
    with disk.lock:
        disk.step("rename", dst)
        moved, _ = _at(src)
        replaced, found = _at(dst)
        if replaced is None:
            _claim_name(disk)
        else:
            _keep_if_last(replaced, found, dst, None)
        real.rename(src, dst)
        if moved != replaced:
            disk.change((old[1], old_name, None), (new[1], new_name, moved[1]))


def _unlink(path: Any, *, dir_fd: int | None = None) -> None:
    folder, name = _place(path, dir_fd)
    there, found = _at(path, dir_fd)
    if folder is None or there is None:
        real.unlink(path, dir_fd=dir_fd)
        return
    disk, inode = folder
    with disk.lock:
        disk.step("unlink", path)
        _keep_if_last(there, found, path, dir_fd)
        real.unlink(path, dir_fd=dir_fd)
        disk.change((inode, name, None))


def _keep_if_last(there: Found, found: os.stat_result, path: Any, dir_fd: int | None) -> None:
    if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
        there[0].keep(there[1], path, dir_fd)


def _mkdir(path: Any, mode: int = 0o777) -> None:
    folder, name = _place(path)
    if folder is None or _at(path)[1] is not None:
        real.mkdir(path, mode)
        return
    disk, inode = folder
    with disk.lock:
        disk.step("mkdir", path)
        _claim_name(disk)
        real.mkdir(path, mode)
        made = disk.new_inode(folder=True)
        found = real.stat(path)
        disk.inodes[found.st_dev, found.st_ino] = made
        disk.change((inode, name, made))


def _rmdir(path: Any, *, dir_fd: int | None = None) -> None:
    folder, name = _place(path, dir_fd)
    if folder is None:
        real.rmdir(path, dir_fd=dir_fd)
        return
    disk, inode = folder
    with disk.lock:
        disk.step("rmdir", path)
        _, found = _at(path, dir_fd)
        real.rmdir(path, dir_fd=dir_fd)
        if found is not None:
            disk.inodes.pop((found.st_dev, found.st_ino), None)
        disk.change((inode, name, None))


# -- folders are read in order ------------------------------------------------------------------


class _Entries(list[os.DirEntry[str]]):
    """What `os.scandir` gives, in the order of names."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing: the folder was read."""

    def close(self) -> None:
        """Nothing, likewise."""


def _scandir(path: Any = ".") -> _Entries:
    with real.scandir(path) as entries:
        return _Entries(sorted(entries, key=lambda entry: entry.name))


def _listdir(path: Any = ".") -> list[Any]:
    return sorted(real.listdir(path))


_CALLS: dict[str, Callable[..., Any]] = {
    "open": _open,
    "close": _close,
    **_READS,
    **_WRITES,
    **_SYNCS,
    "link": _link,
    "rename": _rename,
    "replace": _rename,
    "unlink": _unlink,
    "remove": _unlink,
    "mkdir": _mkdir,
    "rmdir": _rmdir,
    "scandir": _scandir,
    "listdir": _listdir,
}
