"""A deduplication window of many producers: `python -m benchmarks.dedup --producers 200000`.

Each producer has published one Message in one write partition. A broker starts, rebuilds the window
from the notifications, and must know every one of them: a second Message of the same name, with
other content, is refused. What the window takes is the memory of the broker beyond that of one
which has nothing to rebuild.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from benchmarks.audit import DAY_S, TOPIC, Day, Row
from memq import AdminClient
from memq.client.cluster import Cluster
from memq.client.topic import TopicClient
from memq.core.checksum import crc32c
from memq.core.format.message import encode_message, encode_records
from memq.core.topic import AUDIT_TOPIC
from memq.core.wire.messages import Write
from memq.errors import SequenceConflictError
from memq.testing.broker import BrokerProcess

AT_ONCE = 500
START_S = 900.0


def run(producers: int = 20_000, asked: int = 5_000) -> list[Row]:
    """The figures.

    Args:
        producers: how many there are.
        asked: of how many it is asked whether they are known, spread over all.
    """
    with tempfile.TemporaryDirectory(prefix="memq-bench-") as name:
        with BrokerProcess(name) as broker, AdminClient(broker.address) as admin:
            admin.create_topic(TOPIC, dedup_window="1d")
            topics = {each: admin.describe_topic(each) for each in (TOPIC, AUDIT_TOPIC)}
        with BrokerProcess(name) as broker:
            before_kib = rss_kib(broker.pid)
        now_ms = time.time_ns() // 1_000_000
        day = Day(Path(name), topics, now_ms, producers, DAY_S)
        asyncio.run(day.write())
        begun_s = time.perf_counter()
        with BrokerProcess(name, start_timeout_s=START_S) as broker:
            seconds = time.perf_counter() - begun_s
            taken_kib = rss_kib(broker.pid) - before_kib
            names = day.names[:: max(1, producers // asked)]
            known, new = asyncio.run(ask(broker.address, names))
        return [
            (
                f"window of {producers:,} producers, rebuilt at a start",
                f"{seconds:.1f} s, {taken_kib / 1024:.0f} MiB",
                f"{known:,} of {len(names):,} asked are known; a new one is "
                + ("accepted" if new else "refused"),
            )
        ]


async def ask(address: str, names: list[str]) -> tuple[int, bool]:
    """How many of some producers are known, and whether a new one is accepted."""
    cluster = Cluster(address, request_timeout_s=120)
    try:
        topic = TopicClient(cluster, TOPIC)
        schema_id = (await cluster.topic(TOPIC)).schema_id
        body = encode_message(encode_records(None, [b"other content"], None, [1]))

        async def is_known(name: str) -> bool:
            header = Write(
                topic=TOPIC,
                write_partition=0,
                producer_id=name,
                epoch=0,
                sequence=0,
                first_unsettled=0,
                acks=-1,
                schema_id=schema_id,
                records=1,
                min_timestamp_us=1,
                max_timestamp_us=1,
            )
            try:
                await topic.write(header, body, crc32c(body), timeout_s=120)
            except SequenceConflictError:
                return True
            return False

        known = 0
        for first in range(0, len(names), AT_ONCE):
            some = names[first : first + AT_ONCE]
            known += sum(await asyncio.gather(*map(is_known, some)))
        return known, not await is_known("new")
    finally:
        await cluster.close()


def rss_kib(pid: int) -> int:
    """The memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--producers", type=int, default=200_000)
    for row in run(parser.parse_args().producers):
        print(*row, sep="\n    ")
