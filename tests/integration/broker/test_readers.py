"""Readers cost others nothing: answers are bounded, and requests are served in fair turns."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.request
from contextlib import asynccontextmanager
from pathlib import Path

from memq.broker.fair_queuing import ClientFlows
from memq.broker.handlers import BATCH_READS
from memq.client.connection import BrokerConnection
from memq.core.wire import messages as m
from memq.testing.broker import BrokerProcess
from memq.testing.storage import InMemoryStorage
from tests.integration.broker.support import TIMEOUT_S, Bare, Client, bare, broker, client, until

UNREAD_BYTES = 42_000
GROWTH_BYTES = 16 << 20
"""What a broker of 8 MiB may grow by when answers are not read: 2 MiB of answers, as much again
while they are made, and allocators. Without a bound it is 400 MiB within seconds."""


@asynccontextmanager
async def connected(address: str):
    """A client of a broker in another process."""
    connection = await BrokerConnection.open(
        address, client="test", token="", connect_timeout_s=TIMEOUT_S
    )
    try:
        yield Client(connection)
    finally:
        await connection.close()


async def fill(c: Client) -> None:
    """Notifications of some 2 MiB in few Batches: each names 100 producers with long names."""
    await c.create(batch_messages=100, batch_age="1s")
    names = [f"{number:0200}" for number in range(100)]
    for sequence in range(80):
        await asyncio.gather(*(c.write(sequence, producer_id=name) for name in names))


def fetches(raw: Bare, size_bytes: int) -> bytes:
    """So many bytes of requests for all notifications."""
    data = bytearray()
    request = m.FetchNotifications(
        topic="t", positions=[m.PartitionOffset(0, 0)], max_bytes=16 << 20
    )
    while len(data) < size_bytes:
        data += raw.request(request)
    return bytes(data)


def memory_of(pid: int, what: str) -> int:
    """`VmRSS` or `VmHWM` of a process, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(what))


async def ask_admin(process: BrokerProcess, path: str) -> str:
    """An answer of the admin HTTP."""

    def ask() -> str:
        with urllib.request.urlopen(f"{process.admin}{path}", timeout=TIMEOUT_S) as answer:  # noqa: S310 - HTTP
            return answer.read().decode()

    return await asyncio.to_thread(ask)


async def test_answers_that_nobody_reads_take_bounded_memory(tmp_path) -> None:
    """Pipelined fetches, never read: the broker hardly grows, serves others, and ends it."""
    with BrokerProcess(tmp_path, memory_bytes="8MiB", stall_timeout="3s") as process:
        async with connected(process.address) as c:
            await fill(c)
            before = memory_of(process.pid, "VmRSS")
            async with bare(process.address) as raw:
                raw.writer.transport.pause_reading()
                raw.writer.write(fetches(raw, UNREAD_BYTES))
                request = m.FetchNotifications(topic="t", positions=[m.PartitionOffset(0, 0)])
                async with asyncio.timeout(TIMEOUT_S):
                    while json.loads(await ask_admin(process, "/status"))["connections"] > 1:
                        assert (await c.ask(request)).ends == [m.PartitionOffset(0, 80)]
            metrics = await ask_admin(process, "/metrics")
            assert 'memq_connections_closed_total{reason="unread"} 1.0' in metrics
            assert "memq_answer_bytes 0.0" in metrics
            assert memory_of(process.pid, "VmHWM") - before < GROWTH_BYTES


async def test_requests_pass_those_that_wait(tmp_path) -> None:
    """Long polls and large answers of a connection hold up none of its small requests."""
    async with broker(tmp_path, memory_bytes="8MiB") as b, client(b) as c:
        await c.create()
        turns, line = b.context.scheduler, ClientFlows()
        turns.charge(line, turns.limit_bytes)  # another connection's, which does not read
        news = m.FetchNotifications(
            topic="t", positions=[m.PartitionOffset(0, 0)], max_wait_ms=60_000
        )
        polls = [asyncio.ensure_future(c.ask(news)) for _ in range(20)]
        await until(lambda: "[20 waiting]" in repr(b.context.queue._waiters))
        assert turns.used_bytes == turns.limit_bytes, "a long poll holds nothing"
        large = asyncio.ensure_future(c.ask(m.ListGroups()))
        await until(lambda: turns.full)
        await c.ask(m.GroupHeartbeat(group="g", topic="t", member_id="a", sequence=1))
        await c.ask(m.CommitOffsets(group="g", topic="t", member_id="a", offsets=[]))
        assert not large.done()
        turns.charge(line, -turns.limit_bytes)
        assert [group.group for group in (await large).groups] == ["g"]
        await c.write(0)
        assert all(
            answer.ends == [m.PartitionOffset(0, 1)] for answer in await asyncio.gather(*polls)
        )
        await until(lambda: not turns.used_bytes)


class SilentReads(InMemoryStorage):
    """A storage whose reads wait until they are let go on."""

    def __init__(self) -> None:
        super().__init__()
        self.reads, self.gate = 0, threading.Event()

    def get_range(self, key, start, length):
        self.reads += 1
        assert self.gate.wait(TIMEOUT_S), "the test left it waiting"
        return super().get_range(key, start, length)


async def test_reads_that_hang_take_no_thread_of_uploads(tmp_path) -> None:
    """More reads than there may be uploads hang, and Messages are stored beside them."""
    storage = SilentReads()
    async with broker(tmp_path, storage=storage, upload_threads=1) as b, client(b) as c:
        await c.create(batch_messages=1)
        await c.write(0)
        (key,) = [info.key for info in storage.list("") if "/t/" in info.key]
        ask = m.FetchBatch(topic="t", uri=storage.uri(key), start=0, length=8)
        reads = [asyncio.ensure_future(c.ask(ask)) for _ in range(BATCH_READS)]
        await until(lambda: storage.reads >= 2)  # as many threads as one upload and its hedge have
        header, body = c.message(1)
        assert (await c.ask(header, body, timeout_s=5)).offset == 1
        storage.gate.set()
        await asyncio.gather(*reads)
