"""How fast the big queue is, beside the published Big Queue: `python -m benchmarks.bigqueue`.

Figures are MB/s (10^6) of item bytes, the best of some repetitions, so that what else the machine
does shows least. "Concurrent" is two producer and two consumer threads on one queue, bytes that
went through divided by wall time; "sequential" enqueues everything and then dequeues everything.
Nothing is flushed to the device, as in the published figures. The physical limit is what copying
the same bytes into fresh mapped pages of the same file system takes, in the same run.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memq.bigqueue import BigQueue
from memq.bigqueue.layout import DEFAULT_PAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

# Published for the Java Big Queue with items of 1 KB.
PUBLISHED_CONCURRENT_MB_S = 166
PUBLISHED_SEQUENTIAL_MB_S = 333
PUBLISHED_ITEM_BYTES = 1024
# The aims: one item at a time, and with the batch calls.
CONCURRENT_AIM, SEQUENTIAL_AIM, BATCH_AIM = 2.0, 1.5, 3.0

SIZES = {1024: 150_000, 100: 300_000}  # bytes of an item: items in a run
BATCH_ITEMS = 500
REPETITIONS = 3
# How long a consumer that found the queue empty waits: a producer needs the interpreter meanwhile.
IDLE_S = 0.0005

Figure = tuple[str, str, str]
Figures = list[Figure]


def mapped_copy_s(folder: Path, total_bytes: int) -> float:
    """Seconds to copy so many bytes, 1 MiB at a time, into fresh preallocated mapped files."""
    piece = os.urandom(1 << 20)
    elapsed_s = 0.0
    for number in range(-(-total_bytes // DEFAULT_PAGE_BYTES)):
        file = folder / f"{number}.copy"
        fd = os.open(file, os.O_RDWR | os.O_CREAT)
        os.posix_fallocate(fd, 0, DEFAULT_PAGE_BYTES)
        with mmap.mmap(fd, DEFAULT_PAGE_BYTES) as mapped:
            size = min(DEFAULT_PAGE_BYTES, total_bytes - number * DEFAULT_PAGE_BYTES)
            start = time.perf_counter()
            for offset in range(0, size, len(piece)):
                mapped[offset : offset + len(piece)] = piece
            elapsed_s += time.perf_counter() - start
        os.close(fd)
        file.unlink()
    return elapsed_s


def sequential(folder: Path, item: bytes, count: int, batch: int) -> tuple[float, float]:
    """Seconds to enqueue everything, and to dequeue everything."""
    items = [item] * batch
    with BigQueue(folder) as queue:
        start = time.perf_counter()
        if batch == 1:
            for _ in range(count):
                queue.enqueue(item)
        else:
            for _ in range(count // batch):
                queue.enqueue_many(items)
        middle = time.perf_counter()
        taken = drain(queue, batch)
        end = time.perf_counter()
    assert taken == count
    return middle - start, end - middle


def concurrent(folder: Path, item: bytes, count: int, batch: int) -> float:
    """Seconds for all items to go from two producers to two consumers."""
    taken: list[int] = []
    produced = threading.Event()

    def produce(queue: BigQueue) -> None:
        items = [item] * batch
        for _ in range(count // 2 // batch):
            if batch == 1:
                queue.enqueue(item)
            else:
                queue.enqueue_many(items)

    def consume(queue: BigQueue) -> None:
        own, last = 0, False
        while not last:
            last = produced.is_set()
            own += drain(queue, batch)
            time.sleep(IDLE_S)
        taken.append(own)

    with BigQueue(folder) as queue:
        producers = [threading.Thread(target=produce, args=(queue,)) for _ in range(2)]
        consumers = [threading.Thread(target=consume, args=(queue,)) for _ in range(2)]
        start = time.perf_counter()
        for thread in producers + consumers:
            thread.start()
        for thread in producers:
            thread.join()
        produced.set()
        for thread in consumers:
            thread.join()
        elapsed_s = time.perf_counter() - start
    assert sum(taken) == count
    return elapsed_s


def drain(queue: BigQueue, batch: int) -> int:
    """Take items until the queue is empty; returns how many there were."""
    taken = 0
    if batch == 1:
        while queue.dequeue() is not None:
            taken += 1
    else:
        while items := queue.dequeue_many(batch):
            taken += len(items)
    return taken


def repeated(measure: Callable[[Path], Any]) -> list[Any]:
    """The results of all repetitions, each in a fresh folder."""
    results = []
    for _ in range(REPETITIONS):
        with tempfile.TemporaryDirectory(prefix="memq-bench-") as folder:
            results.append(measure(Path(folder)))
    return results


def figures_of(size: int, count: int) -> Figures:
    """All figures for items of one size."""
    item, total_bytes = b"x" * size, size * count
    limit_s = min(repeated(lambda folder: mapped_copy_s(folder, total_bytes)))
    figures = [row(f"{size} B, physical limit: copy into maps", total_bytes, count, limit_s, "")]
    for batch, calls in ((1, "one at a time"), (BATCH_ITEMS, f"batches of {BATCH_ITEMS}")):
        both = repeated(lambda folder, batch=batch: sequential(folder, item, count, batch))
        through = repeated(lambda folder, batch=batch: concurrent(folder, item, count, batch))
        timed = (
            ("sequential enqueue", min(enqueue_s for enqueue_s, _ in both)),
            ("sequential dequeue", min(dequeue_s for _, dequeue_s in both)),
            ("concurrent 2 + 2", min(through)),
        )
        for name, elapsed_s in timed:
            note = f"{limit_s / elapsed_s:4.0%} of the limit"
            if size == PUBLISHED_ITEM_BYTES:
                note = compared(name, total_bytes / elapsed_s / 1e6, batch) + ", " + note
            label = f"{size} B, {name}, {calls}"
            figures.append(row(label, total_bytes, count, elapsed_s, note))
    return figures


def row(name: str, total_bytes: int, count: int, elapsed_s: float, note: str) -> Figure:
    """One line of the table."""
    rate = f"{total_bytes / elapsed_s / 1e6:,.0f} MB/s = {count / elapsed_s / 1e6:.2f} M/s"
    return name, rate, note


def compared(name: str, megabytes_s: float, batch: int) -> str:
    """The ratio to the published figure, with the aim."""
    published, aim = (
        (PUBLISHED_CONCURRENT_MB_S, CONCURRENT_AIM)
        if name.startswith("concurrent")
        else (PUBLISHED_SEQUENTIAL_MB_S, SEQUENTIAL_AIM)
    )
    aim = aim if batch == 1 else BATCH_AIM
    return f"{megabytes_s / published:.1f} x {published} MB/s (aim {aim:g} x)"


def run() -> Figures:
    """Name, figure and ratio of each measurement."""
    return [line for size, count in SIZES.items() for line in figures_of(size, count)]


if __name__ == "__main__":
    for name, figure, remark in run():
        print(f"{name:48} {figure:>24}  {remark}")
