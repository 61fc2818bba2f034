"""The lag of groups on /metrics."""

from __future__ import annotations

import asyncio

import aiohttp

from memq.broker import group_lag
from memq.core.notification.embedded import EmbeddedQueue
from memq.core.wire import messages as m
from memq.errors import QueueError
from tests.fakes.queue import InMemoryQueue
from tests.integration.broker.support import broker, client, until

LAG = "memq_group_lag_"


async def scrape(b):
    """What /metrics says of lag, by series."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{b.admin_port}/metrics") as answer,
    ):
        lines = (await answer.text()).splitlines()
    return {
        name: float(value)
        for name, _, value in (line.rpartition(" ") for line in lines)
        if name.startswith("memq_group_")
    }


async def commit(c, group, topic, offset):
    """Commit for a group."""
    offsets = [m.PartitionOffset(0, offset)]
    await c.ask(m.CommitOffsets(group=group, topic=topic, member_id="", offsets=offsets))


async def test_lag_is_on_metrics_and_vanishes(tmp_path) -> None:
    """A group's lag has five series for each partition, gone with the group and with the topic."""
    async with broker(tmp_path) as b, client(b) as c:
        await c.create(batch_age="1ms")
        now_us = b.context.now().wall_ms * 1_000
        for number in range(3):
            await c.write(number, b"a", b"b", min_timestamp_us=now_us - 30_000_000)
        await commit(c, "g", "t", 1)
        await commit(c, "h", "t", 3)

        found = await scrape(b)

        ours = next(name for name in found if 'group="g"' in name)[len(LAG + "batches") :]
        assert found[f"{LAG}batches{ours}"] == 2
        assert found[f"{LAG}records{ours}"] == 4
        assert found[f"{LAG}bytes{ours}"] > 100
        assert 30 <= found[f"{LAG}seconds{ours}"] < 60
        assert found[f"memq_group_removed{ours}"] == 0
        assert found[f"{LAG}left_out"] == 0
        await b.context.queue.truncate(b.topics.get("t").topic.queue_topic, 0, 2)
        found = await scrape(b)
        assert (found[f"{LAG}batches{ours}"], found[f"memq_group_removed{ours}"]) == (1, 1)
        await c.ask(m.DeleteGroup(group="g", topic="t"))
        assert not any('group="g"' in name for name in await scrape(b))
        await c.ask(m.DeleteTopic(topic="t"))
        assert await scrape(b) == {f"{LAG}left_out": 0}


async def test_series_are_bounded(tmp_path, monkeypatch) -> None:
    """Groups beyond the limit are left out whole, and counted."""
    monkeypatch.setattr(group_lag, "MAX_LAG_ROWS", 2)
    async with broker(tmp_path) as b, client(b) as c:
        await c.create()
        for number in range(5):
            await commit(c, f"g{number}", "t", 0)

        found = await scrape(b)

        assert sum(name.startswith(f"{LAG}batches") for name in found) == 2
        assert found[f"{LAG}left_out"] == 3


async def test_a_queue_that_fails_costs_no_scrape(tmp_path, caplog) -> None:
    """While the queue fails the other metrics are there, and the log says what is missing."""

    class Failing(InMemoryQueue):
        fails = False

        async def groups(self, topic):
            if self.fails:
                raise QueueError("the disk is on fire")
            return await super().groups(topic)

    queue = Failing()
    async with broker(tmp_path, queue=queue) as b, client(b) as c:
        await c.create()
        await commit(c, "g", "t", 0)
        queue.fails = True
        assert await scrape(b) == {f"{LAG}left_out": 0}
    assert "t: lag is not known: the disk is on fire" in caplog.text


async def test_a_damaged_group_costs_no_other(tmp_path, caplog) -> None:
    """The lag of those before and after it is told, and the log names the one."""
    queue = EmbeddedQueue(tmp_path / "queue")
    async with broker(tmp_path, queue=queue) as b, client(b) as c:
        await c.create()
        for group in ("f", "g", "h"):
            await commit(c, group, "t", 0)
        (file,) = tmp_path.glob("queue/topics/*/groups/g.json")
        file.write_bytes(b"{")
        found = await scrape(b)
    told = [group for group in "fgh" for name in found if f'batches{{group="{group}"' in name]
    assert told == ["f", "h"]
    assert "t: lag of g is not known" in caplog.text


async def test_a_scrape_waits_for_so_long_only(tmp_path, monkeypatch) -> None:
    """While a look takes long a scrape is answered with what is known; looks do not pile up."""
    monkeypatch.setattr(group_lag, "SCRAPE_WAIT_S", 0.01)
    gate = asyncio.Event()
    looks = []

    class Slow(InMemoryQueue):
        async def groups(self, topic):
            looks.append(topic)
            await gate.wait()
            return await super().groups(topic)

    async with broker(tmp_path, queue=Slow()) as b, client(b) as c:
        await c.create()
        await commit(c, "g", "t", 0)
        for _ in range(3):
            assert await scrape(b) == {f"{LAG}left_out": 0}
        assert len(looks) == 1
        gate.set()
        await until(lambda: b.context.metrics.lag.rows)
        assert any("lag_batches" in name for name in await scrape(b))
        gate.clear()
        await scrape(b)  # a look is under way when the broker stops
