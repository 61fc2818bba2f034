"""Local storage beside a bare loop of write and fsync: `python -m benchmarks.storage`.

A disk's speed changes from second to second, more so on a shared machine. So objects are written
by both in turn, one by one, and the median times are compared.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from memq.storage.local import LocalStorage

if TYPE_CHECKING:
    from collections.abc import Callable

BUFFERS = [os.urandom(1 << 20) for _ in range(8)]  # an object of 8 MiB, as a Batch comes
OBJECT_BYTES = sum(map(len, BUFFERS))
FOLDERS = 16  # over which the objects are spread
SECONDS = 6.0
MAX_OBJECTS = 300  # of each: 5 GB on disk in all

Figures = list[tuple[str, str, str]]


def bare_put(folder: Path, number: int) -> None:
    """What no storage can do without: the bytes in a file, flushed."""
    fd = os.open(folder / str(number), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for buffer in BUFFERS:
        os.write(fd, buffer)
    os.fsync(fd)
    os.close(fd)


def key_of(number: int) -> str:
    """A key in one of the folders."""
    return f"{number % FOLDERS:02x}/c/topics/t/0/{number:013d}-b.arrows"


def seconds_of(work: Callable[[], object]) -> float:
    """How long it took."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def run() -> Figures:
    """Name, figure and note of each measurement."""
    folder = Path(tempfile.mkdtemp(prefix="memq-bench-"))
    try:
        return measure(folder)
    finally:
        shutil.rmtree(folder)


def measure(folder: Path) -> Figures:
    """Write objects by both in turn, then read them back."""
    bare_folder = folder / "bare"
    bare_folder.mkdir()
    storage = LocalStorage(folder / "objects")
    for number in range(FOLDERS):  # makes the folders
        storage.put(key_of(number), BUFFERS, timeout_s=60)
    bare_s, put_s, until = [], [], time.perf_counter() + SECONDS
    while time.perf_counter() < until and len(bare_s) < MAX_OBJECTS:
        number = FOLDERS + len(bare_s)
        bare_s.append(seconds_of(lambda number=number: bare_put(bare_folder, number)))
        put_s.append(
            seconds_of(lambda number=number: storage.put(key_of(number), BUFFERS, timeout_s=60))
        )
    get_s = [seconds_of(lambda: storage.get(key_of(len(bare_s)))) for _ in range(100)]
    bare, put, get = (statistics.median(times) for times in (bare_s, put_s, get_s))
    note = f"{OBJECT_BYTES >> 20} MiB from {len(BUFFERS)} buffers, median of {len(bare_s)}"
    return [
        ("bare write + fsync", f"{OBJECT_BYTES / bare / 1e9:.2f} GB/s", note),
        ("LocalStorage.put", f"{OBJECT_BYTES / put / 1e9:.2f} GB/s", f"{bare / put:.2f} of bare"),
        ("LocalStorage.get", f"{OBJECT_BYTES / get / 1e9:.1f} GB/s", "from the page cache"),
    ]


if __name__ == "__main__":
    for name, figure, remark in run():
        print(f"{name:24} {figure:>12}  {remark}")
