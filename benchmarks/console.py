"""How long pages of the console take, at 1,000 topics and a million Batches.

    python -m benchmarks.console [--topics 1000] [--batches 1000] [--rounds 20]

The broker runs in a process of its own, on an embedded queue that is filled before it starts; its
objects do not exist, so pages that look into a Batch are measured at a topic that has real ones.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp

from memq import AsyncProducer
from memq.broker.config import BrokerConfig
from memq.broker.server import Broker
from memq.client.admin import AsyncAdminClient
from memq.client.figures import topic_figures
from memq.core.notification import NOTIFICATION_VERSION, Notification, encode_notification
from memq.core.queue import Publication
from memq.storage.keys import batch_id_at
from memq.testing.broker import BrokerProcess

if TYPE_CHECKING:
    from memq.core.clock import ClockReading

PAGES = {
    "overview": "/",
    "topics": "/topics",
    "topics by lag": "/topics?sort=lag_records&down=1",
    "groups": "/groups",
    "topic": "/topics/t0005",
    "group": "/topics/t0005/groups/g",
    "batch": "/topics/real/batches/0/0",
    "batch, filtered": "/topics/real/batches/0/0?filter=value+contains+%22999%22",
    "batch, verified": "/topics/real/batches/0/0?verify=1",
    "audit, an hour": "/topics/real/audit",
    "brokers": "/brokers",
    "options": "/brokers/broker-1",
    "clients": "/clients",
    "access log": "/access-log",
}
AT_ONCE = 1_000  # notifications published together


async def fill(folder: Path, topics: int, batches: int) -> None:
    """Make topics with notifications, each with a group half-way, and one with real Batches."""
    config = BrokerConfig.create(
        {"data_dir": str(folder), "port": 0, "admin_port": 0, "orphan_interval": "30d"}
    )
    broker = Broker(config, admin_http=False)
    await broker.start()
    names = [f"t{number:04}" for number in range(topics)]
    async with AsyncAdminClient(broker.address) as admin:
        for name in names:
            await admin.create_topic(name)
        await admin.create_topic("real")
        async with AsyncProducer(broker.address, topic="real") as producer:
            for number in range(100_000):
                await producer.write(b"value %d" % number)
        now = broker.context.now()
        for name in names:
            topic = broker.topics.get(name).topic
            payload = encode_notification(made(topic.name, topic.topic_id, now))
            each = Publication(0, payload, now.wall_ms, now.mono_ms)
            for start in range(0, batches, AT_ONCE):
                count = min(AT_ONCE, batches - start)
                await broker.context.queue.publish(topic.queue_topic, 0, [each] * count)
            await broker.context.queue.commit("g", topic.queue_topic, {0: batches // 2})
    await broker.stop()


def made(topic: str, topic_id: str, now: ClockReading) -> Notification:
    """A notification of a Batch that is nowhere."""
    now_ms = now.wall_ms
    return Notification(
        version=NOTIFICATION_VERSION,
        batch_id=batch_id_at(now.mono_ms, "0" * 16),
        topic=topic,
        topic_id=topic_id,
        write_partition=0,
        uri="file:///nowhere/00/memq/topics/t/0/0-0.arrows",
        size_bytes=1 << 20,
        index_offset=1 << 19,
        messages=10,
        records=1_000,
        min_timestamp_us=now_ms * 1_000,
        max_timestamp_us=now_ms * 1_000,
        schema_id="0",
        broker_id="broker-1",
        sealed_ms=now_ms,
        producers=[],
        stored_through_ms=now_ms,
    )


async def measure(admin_url: str, rounds: int) -> None:
    """Ask for each page again and again, and print percentiles."""
    print(f"{'page':<20}{'p50 ms':>10}{'p95 ms':>10}{'bytes':>12}")
    async with aiohttp.ClientSession() as session:
        for name, path in PAGES.items():
            took_ms: list[float] = []
            for _ in range(rounds):
                started_s = time.perf_counter()
                async with session.get(f"{admin_url}/console{path}") as answer:
                    body = await answer.read()
                    assert answer.status == 200, (path, answer.status)
                took_ms.append((time.perf_counter() - started_s) * 1_000)
            p50, p95 = (statistics.quantiles(took_ms, n=20)[at] for at in (9, 18))
            print(f"{name:<20}{p50:>10.1f}{p95:>10.1f}{len(body):>12,}")


async def known(address: str) -> float:
    """Wait until the broker has looked at all topics; return for how long."""
    started_s = time.perf_counter()
    async with AsyncAdminClient(address) as admin:
        while True:
            rows = (await topic_figures(admin.cluster)).rows
            if all(each.records is not None for each in rows):
                break
            await asyncio.sleep(0.2)
    return time.perf_counter() - started_s


def main() -> None:
    """Fill a broker, start it, measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=1_000)
    parser.add_argument("--batches", type=int, default=1_000, help="of each topic")
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        started_s = time.perf_counter()
        asyncio.run(fill(data, given.topics, given.batches))
        print(f"filled in {time.perf_counter() - started_s:.0f} s")
        with BrokerProcess(
            data, access_log=str(Path(folder) / "access.log"), start_timeout_s=300
        ) as broker:
            print(f"first look took {asyncio.run(known(broker.address)):.1f} s")
            asyncio.run(measure(broker.admin, given.rounds))


if __name__ == "__main__":
    main()
