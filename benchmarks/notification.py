"""The embedded notification queue: `python -m benchmarks.notification`.

Every publish and every commit here is durable when it is counted.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from memq.core.queue import Publication
from memq.queue.embedded.queue import EmbeddedQueue

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

PAYLOAD = b"x" * 700  # a Notification of a Batch with a few producers
SECONDS_PER_FIGURE = 1.0
WRITERS = 64
PARTITIONS = 16

Figures = list[tuple[str, str, str]]


def run() -> Figures:
    """Name, figure and note of each measurement."""
    with tempfile.TemporaryDirectory(prefix="memq-bench-") as directory:
        return asyncio.run(measure(Path(directory)))


async def latencies_s(call: Callable[[int], Awaitable[object]]) -> list[float]:
    """How long each call took, one after the other for about a second."""
    found, until = [], time.perf_counter() + SECONDS_PER_FIGURE
    while (started := time.perf_counter()) < until:
        await call(len(found))
        found.append(time.perf_counter() - started)
    return found


async def measure(directory: Path) -> Figures:
    """One caller at a time, then many that share their flushes, then reading back."""
    queue = EmbeddedQueue(directory)
    await queue.create_topic("t", PARTITIONS)
    for write_partition in range(WRITERS):
        await queue.fence("t", write_partition)

    async def publish(write_partition: int, partition: int) -> None:
        await queue.publish("t", write_partition, [Publication(partition, PAYLOAD, 1)])

    one = await latencies_s(lambda _: publish(0, 0))
    shared = await together(lambda writer, _: publish(writer, 0))
    spread = await together(lambda writer, _: publish(writer, writer % PARTITIONS))
    commit = await latencies_s(lambda count: queue.commit("g", "t", {0: count}))
    fetch = await latencies_s(lambda _: queue.fetch("t", 0, 0, max_entries=500, max_bytes=1 << 20))
    await queue.close()
    return [
        ("publish, one at a time", milliseconds(one), "durable; median and p99"),
        (f"publish, {WRITERS} writers", f"{shared:,.0f} /s", "1 read partition"),
        (f"publish, {WRITERS} writers", f"{spread:,.0f} /s", f"{PARTITIONS} read partitions"),
        ("commit of a group", milliseconds(commit), "durable; median and p99"),
        ("fetch of 500", milliseconds(fetch), f"{len(PAYLOAD)} B each; median and p99"),
    ]


async def together(call: Callable[[int, int], Awaitable[object]]) -> float:
    """Calls a second when many writers make one after the other, each on its own."""
    counts = await asyncio.gather(
        *(latencies_s(lambda n, writer=writer: call(writer, n)) for writer in range(WRITERS))
    )
    return sum(map(len, counts)) / SECONDS_PER_FIGURE


def milliseconds(durations_s: list[float]) -> str:
    """Median and p99."""
    ordered = sorted(durations_s)
    high = ordered[int(len(ordered) * 0.99)]
    return f"{statistics.median(ordered) * 1e3:.2f} / {high * 1e3:.2f} ms"


if __name__ == "__main__":
    for name, figure, remark in run():
        print(f"{name:24} {figure:>18}  {remark}")
