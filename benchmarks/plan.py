"""Plans over 100,000 notifications: `python -m benchmarks.plan`.

The topic has four read partitions; each notification names ten producers, as those of busy topics
do. A plan is what Spark's driver waits for at `load()`: fetch all notifications from the broker,
look at every one, cut the tasks. `read_range`, `scan` and `memq export` plan as
well: all of the topic, or the Batches of a second by the times of their records. Beside them stands
the mere fetch of the same notifications, which nothing can be quicker than.
"""

from __future__ import annotations

import asyncio
import resource
import tempfile
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.broker import broker_process
from memq import AdminClient
from memq.client.cluster import Cluster
from memq.client.read_range import AsyncTopicReader, TopicReader
from memq.client.topic import TopicClient
from memq.core.format.batch import ProducerRun
from memq.core.notification import NOTIFICATION_VERSION, Notification, encode_notification
from memq.core.queue import Publication
from memq.core.ranges import OffsetRange
from memq.queue.embedded.queue import EmbeddedQueue
from memq.reading.plan import Selection
from memq.spark import MemqDataSource

if TYPE_CHECKING:
    from collections.abc import Callable

COUNT = 100_000
PARTITIONS = 4
PRODUCERS = 10
ROUNDS = 3
AIM_S = 5
TOPIC = "t"

Row = tuple[str, str, str]


def notification(number: int, now_ms: int) -> bytes:
    """What a Batch of 8 MiB says."""
    return encode_notification(
        Notification(
            version=NOTIFICATION_VERSION,
            topic=TOPIC,
            topic_id="0" * 16,
            write_partition=0,
            batch_id=f"{number:026d}",
            uri=f"s3://bucket/ab/memq/topics/{TOPIC}/0/{now_ms}-{number:026d}.arrows",
            size_bytes=8 << 20,
            index_offset=8_380_000,
            messages=PRODUCERS,
            records=1_000,
            min_timestamp_us=now_ms * 1_000,
            max_timestamp_us=now_ms * 1_000 + 999,
            producers=[
                ProducerRun(f"producer-{n}", 0, number, number, 100, number)
                for n in range(PRODUCERS)
            ],
            schema_id="0" * 16,
            broker_id="broker-1",
            sealed_ms=now_ms,
            stored_through_ms=now_ms,
        )
    )


async def publish(folder: Path) -> int:
    """Put all notifications into the files of a broker that is down; the time of the first."""
    queue, first_ms = EmbeddedQueue(folder), time.time_ns() // 1_000_000 - COUNT
    try:
        (topic,) = [name for name in await queue.topics() if name.startswith(f"{TOPIC}.")]
        await queue.fence(topic, 0)
        for at in range(0, COUNT, 1_000):
            numbers = range(at, at + 1_000)
            await queue.publish(
                topic,
                0,
                [
                    Publication(n % PARTITIONS, notification(n, first_ms + n), first_ms + n)
                    for n in numbers
                ],
            )
    finally:
        await queue.close()
    return first_ms


def plan(address: str) -> int:
    """Plan a read of the whole topic; how many Batches it has."""
    source = MemqDataSource({"bootstrap": address, "topic": TOPIC})
    inputs = source.reader(source.schema()).partitions()
    return sum(len(each.ranges) for each in inputs)


def plan_all(address: str) -> int:
    """Plan a scan of the whole topic; how many Batches it has."""
    return planned(address, Selection())


def plan_second(first_ms: int, address: str) -> int:
    """Plan a scan of a second in the middle; how many notifications were looked at."""
    middle = datetime.fromtimestamp((first_ms + COUNT / 2) / 1_000, UTC)
    found = planned(address, Selection(start_time=middle, end_time=middle + timedelta(seconds=1)))
    assert 900 < found < 1_100, found
    return COUNT


def planned(address: str, selection: Selection) -> int:
    """How many Batches a plan has."""
    with TopicReader(AsyncTopicReader(address, topic=TOPIC)) as reader:
        return sum(piece.contents.batches for piece in reader.plan(selection).pieces)


def fetch(address: str) -> int:
    """Fetch the same notifications, and look at none."""

    async def run() -> int:
        cluster = Cluster(address, client="benchmark")
        try:
            ranges = [OffsetRange(each, 0, COUNT // PARTITIONS) for each in range(PARTITIONS)]
            return sum([1 async for _ in TopicClient(cluster, TOPIC).entries(ranges)])
        finally:
            await cluster.close()

    return asyncio.run(run())


def best_s(work: Callable[[str], int], address: str) -> float:
    """Seconds of the quickest round."""
    found = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        assert work(address) == COUNT
        found.append(time.perf_counter() - start)
    return min(found)


def run() -> list[Row]:
    """Measure both."""
    with tempfile.TemporaryDirectory(prefix="memq-bench-") as name:
        folder = Path(name)
        with broker_process("local", folder) as (address, _), AdminClient(address) as admin:
            admin.create_topic(TOPIC, read_partitions=PARTITIONS)
        first_ms = asyncio.run(publish(folder / "queue"))
        with broker_process("local", folder) as (address, _):
            fetch_s = best_s(fetch, address)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            plan_s = best_s(plan, address)
            scan_s = {
                plan_all: best_s(plan_all, address),
                plan_second: best_s(partial(plan_second, first_ms), address),
            }
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return [
        (
            f"plan over {COUNT:,} notifications",
            f"{plan_s:.2f} s (aim: at most {AIM_S}), peak memory + {grown / 1024:.0f} MiB",
            f"{fetch_s / plan_s:.2f} of the mere fetch of them ({fetch_s:.2f} s)",
        ),
        *(
            (
                f"plan of {what} over the same",
                f"{scan_s[work]:.2f} s",
                f"{fetch_s / scan_s[work]:.2f} of the mere fetch of them",
            )
            for work, what in ((plan_all, "a scan of all"), (plan_second, "a scan of a second"))
        ),
    ]


if __name__ == "__main__":
    for row in run():
        print(*row, sep="\n    ")
