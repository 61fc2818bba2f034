"""What mapped pages need of files besides `memq.runtime.files`, and the smallest mapped file."""

from __future__ import annotations

import mmap
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from memq.errors import CorruptDataError, QueueError
from memq.runtime.files import explain

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# A page of memory, so that the kernel never shares the block with anything else.
FILE_BYTES = 4096


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
        raise QueueError(f"cannot {doing} {path}: {explain(exc)}") from exc


class Words:
    """A tiny mapped file of 64-bit words: how positions are published to other processes.

    Each word is stored with one aligned 8-byte store, so another process reads the old value or the
    new one, never a mixture, and a killed process leaves the last value stored. The first word is a
    magic number that tells a formatted file from one that was zeroed or cut; `cells[1]` onwards are
    the values.

    Attributes:
        cells: the mapped words, index 0 being the magic number. Reads and stores are atomic.
        path: the file.
    """

    def __init__(self, path: Path, magic: bytes, *, writable: bool) -> None:
        self.path = path
        self._magic = int.from_bytes(magic, "little")
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        try:
            with translated("map", path):
                if writable:
                    preallocate(path, FILE_BYTES)
                with path.open("r+b" if writable else "rb") as file:
                    self._map = mmap.mmap(file.fileno(), FILE_BYTES, access=access)
        except ValueError as exc:
            raise CorruptDataError(
                f"{path} is shorter than {FILE_BYTES} bytes; open for writing once to repair it"
            ) from exc
        self.cells = memoryview(self._map).cast("Q")

    @property
    def formatted(self) -> bool:
        """Whether the file carries its magic number, so that its values mean something."""
        return self.cells[0] == self._magic

    def format(self, *values: int) -> None:
        """Store the values and then the magic number."""
        for position, value in enumerate(values, start=1):
            self.cells[position] = value
        self.cells[0] = self._magic

    def close(self) -> None:
        """Unmap the file. Using `cells` afterwards raises ValueError."""
        self.cells.release()
        self._map.close()

    def __repr__(self) -> str:
        return f"<Words {self.path}>"
