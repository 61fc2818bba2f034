"""Readers cost others nothing: answers are bounded, and requests are served in fair turns."""

from __future__ import annotations

import asyncio
import threading

from memq.broker.fair_queuing import ClientFlows
from memq.broker.handlers import BATCH_READS
from memq.core.wire import messages as m
from memq.testing.storage import InMemoryStorage
from tests.integration.broker.support import TIMEOUT_S, broker, client, until


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
