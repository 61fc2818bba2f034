"""Retention, orphans, and damage that stays where it is."""

import asyncio

import msgspec
import pytest

from memq.broker.retention import expire
from memq.core.clock import ClockReading
from memq.core.wire import messages as m
from memq.errors import QueueError
from memq.queue.kafka.queue import KafkaQueue
from memq.testing.storage import InMemoryStorage
from tests.fakes.kafka import InMemoryKafka
from tests.integration.broker.support import broker, client, until
from tests.topics.reading import queue_topic

SHORT = {"retention": "10s", "dedup_window": "10s", "upload_deadline": "1s"}


def later(b, seconds: float) -> None:
    """Let the broker's clock stand later from now on."""
    real = b.context.now
    b.context.now = lambda: ClockReading(*(ms + round(seconds * 1000) for ms in real()))


async def retained_since_ms(c) -> int:
    """From which time on nothing was removed, as a client is told."""
    return (await c.ask(m.FetchWatermark(topic="t"))).retained_since_ms


async def test_a_truncation_that_fails_half_way_is_told_of(tmp_path) -> None:
    """From the moment on that a Batch may be forgotten nobody is told that it is retained."""
    async with broker(tmp_path) as b, client(b) as c:
        await c.create(**SHORT)
        await c.write(0)
        queue, since_ms = b.context.queue, []
        topic, truncate = await queue_topic(queue), queue.truncate
        (entry,) = await queue.fetch(topic, 0, 0, max_entries=1, max_bytes=1)

        async def half_way(*arguments) -> None:
            await truncate(*arguments)
            since_ms.append(await retained_since_ms(c))
            raise QueueError("cannot delete a page")

        queue.truncate = half_way
        real = b.context.now  # set back by as much time as passes now
        b.context.now = lambda: real()._replace(mono_ms=real().mono_ms + 11_000)
        assert await retained_since_ms(c) <= entry.timestamp_ms
        with pytest.raises(QueueError, match="cannot delete"):
            await expire(b.topics.get("t"), b.context)
        assert since_ms == [entry.timestamp_ms + 1] == [await retained_since_ms(c)]


async def test_who_stands_in_a_gap_has_missed_nothing(tmp_path) -> None:
    """A reader at the end goes on after retention, also where offsets were left out meanwhile."""
    kafka = InMemoryKafka()
    queue = KafkaQueue(kafka.client(), cluster_id="memq", broker_id="broker-1")
    await queue.start()
    async with broker(tmp_path, storage=InMemoryStorage(), queue=queue) as b, client(b) as c:
        await c.create(**SHORT)
        old = (await c.write(0)).offset
        later(b, 11)
        new = (await c.write(1)).offset
        assert new > old + 1
        assert await expire(b.topics.get("t"), b.context) == 1
        assert await queue.offsets(await queue_topic(queue), 0) == (old + 1, new + 1)
        at = [m.PartitionOffset(0, old + 1)]
        _, body = await c.connection.request(
            m.FetchNotifications(topic="t", positions=at), timeout_s=9
        )
        found = msgspec.msgpack.decode(body, type=list[m.NotificationEntry])
        assert [each.offset for each in found] == [new]
        assert await expire(b.topics.get("t"), b.context) == 0


async def test_an_object_outlives_its_notification(tmp_path) -> None:
    """When an object is deleted no reader can be given its notification any more."""
    storage, starts = InMemoryStorage(), []
    async with (
        broker(tmp_path, storage=storage, retention_interval="100ms") as b,
        client(b) as c,
    ):
        await c.create(**SHORT)
        await c.write(0)
        loop, queue = asyncio.get_running_loop(), b.context.queue
        topic, delete = await queue_topic(queue), storage.delete

        def deleted(key):
            ask = asyncio.run_coroutine_threadsafe(queue.offsets(topic, 0), loop)
            starts.append(ask.result(9)[0])
            delete(key)

        storage.delete = deleted
        later(b, 11)
        await until(lambda: starts)
        assert starts == [1]
