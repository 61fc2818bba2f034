"""A tiny mapped file of 64-bit words: how positions are published to other processes.

Each word is stored with one aligned 8-byte store, so another process reads the old value or the new
one, never a mixture, and a killed process leaves the last value stored. The first word is a magic
number that tells a formatted file from one that was zeroed or cut.
"""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

from memq.bigqueue.files import preallocate, translated
from memq.errors import CorruptDataError

if TYPE_CHECKING:
    from pathlib import Path

# A page of memory, so that the kernel never shares the block with anything else.
FILE_BYTES = 4096


class Words:
    """The words of one file; `cells[1]` onwards are the values.

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
