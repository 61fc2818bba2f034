"""Retention, orphans, and damage that stays where it is."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from memq.broker.retention import delete_expired, expire, scan_orphans
from memq.core.clock import ClockReading
from memq.core.notification.embedded import EmbeddedQueue
from memq.core.notification.kafka.queue import KafkaQueue
from memq.core.wire import messages as m
from memq.errors import CorruptDataError, OffsetOutOfRangeError, QueueError
from memq.testing.storage import InMemoryStorage
from tests.fakes.kafka import InMemoryKafka
from tests.fakes.queue import InMemoryQueue
from tests.integration.broker.support import broker, client
from tests.topics.reading import queue_topic

SHORT = {"retention": "10s", "dedup_window": "10s", "upload_deadline": "1s"}


def later(b, seconds: float) -> None:
    """Let the broker's clock stand later from now on."""
    real = b.context.now
    b.context.now = lambda: ClockReading(*(ms + round(seconds * 1000) for ms in real()))


def later_but_set_back(b, seconds: float) -> None:
    """Let the broker's clock be set back by as much time as passes now."""
    real = b.context.now
    b.context.now = lambda: real()._replace(mono_ms=real().mono_ms + round(seconds * 1000))


async def retained_since_ms(c) -> int:
    """From which time on nothing was removed, as a client is told."""
    return (await c.ask(m.FetchWatermark(topic="t"))).retained_since_ms


async def test_expired_batches_are_forgotten_first_and_deleted_then(tmp_path) -> None:
    """What is older than retention is gone from queue and storage; the rest stays."""
    storage = InMemoryStorage()
    async with broker(tmp_path, storage=storage) as b, client(b) as c:
        await c.create(**SHORT)
        await c.write(0)
        later(b, 11)
        await c.write(1)
        assert await expire(b.topics.get("t"), b.context) == 1
        assert len(list(storage.list(""))) == 1
        assert await b.context.queue.offsets(await queue_topic(b.context.queue), 0) == (1, 2)
        with pytest.raises(
            OffsetOutOfRangeError,
            match="offset 0 of t/0 is not retained; retained is only offset 1",
        ):
            await c.ask(m.FetchNotifications(topic="t", positions=[m.PartitionOffset(0, 0)]))


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
        later_but_set_back(b, 11)
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
    storage = InMemoryStorage()
    starts = []
    async with broker(tmp_path, storage=storage) as b, client(b) as c:
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
        assert await expire(b.topics.get("t"), b.context) == 1
        assert starts == [1]


async def test_orphan_is_reported_and_kept_until_it_is_as_old_as_retention(tmp_path) -> None:
    """An object that nothing names is never deleted sooner than acked data would be."""
    storage = InMemoryStorage()
    async with broker(tmp_path, storage=storage) as b, client(b) as c:
        await c.create(**SHORT)
        await c.write(0)
        queue, topic = b.context.queue, await queue_topic(b.context.queue)
        await queue.delete_topic(topic)  # the queue has lost everything
        await queue.create_topic(topic, 1)
        later(b, 9)
        report = await scan_orphans(b.topics.get("t"), b.context)
        assert (report.found, report.expired) == (1, [])
        later(b, 2)
        report = await scan_orphans(b.topics.get("t"), b.context)
        assert (report.found, len(report.expired)) == (1, 1)
        await delete_expired(report.expired, b.context)
        assert list(storage.list("")) == []


async def test_batch_on_its_way_is_no_orphan(tmp_path) -> None:
    """An object that is stored and not yet notified is left alone, however long that takes."""
    storage, queue = InMemoryStorage(), InMemoryQueue()
    async with broker(tmp_path, storage=storage, queue=queue) as b, client(b) as c:
        await c.create(**SHORT, batch_age="1ms")
        publish, gate = queue.publish, asyncio.Event()

        async def held(*arguments):
            await gate.wait()
            return await publish(*arguments)

        queue.publish = held
        waiting = asyncio.ensure_future(c.write(0))
        while not list(storage.list("")):
            await asyncio.sleep(0.001)
        later(b, 20)
        assert (await scan_orphans(b.topics.get("t"), b.context)).found == 0
        gate.set()
        assert (await waiting).offset == 0


async def test_damaged_notification_takes_only_its_own_topic_out(tmp_path) -> None:
    """A topic whose notifications cannot be read is not served, by name; the others are."""
    storage, queue = InMemoryStorage(), InMemoryQueue()
    async with broker(tmp_path, storage=storage, queue=queue) as b, client(b) as c:
        for topic in ("bad", "good"):
            await c.create(topic)
            await c.write(0, topic=topic)
        successor = queue.another_process()
        await queue.publish(await queue_topic(queue, "bad"), 0, [_publication(b"{damaged")])
    async with broker(tmp_path, storage=storage, queue=successor) as b, client(b) as c:
        c.schema_id = (await c.ask(m.Metadata(topics=["good"]))).topics[0].schema_id
        assert (await c.write(0, topic="good")).duplicate
        with pytest.raises(CorruptDataError, match="topic 'bad' is not served: not a notification"):
            await c.write(1, topic="bad")


async def test_damaged_notification_does_not_stop_retention(tmp_path) -> None:
    """An expired notification that cannot be read is forgotten like the others."""
    async with broker(tmp_path) as b, client(b) as c:
        await c.create(**SHORT)
        await c.write(0)
        queue = b.context.queue
        await queue.publish(await queue_topic(queue), 0, [_publication(b"{damaged")])
        later(b, 11)
        assert await expire(b.topics.get("t"), b.context) == 1
        assert await b.context.queue.offsets(await queue_topic(b.context.queue), 0) == (2, 2)


@pytest.mark.parametrize("damaged", range(4))
async def test_damage_in_the_queue_does_not_stop_retention(tmp_path, damaged) -> None:
    """What is expired is forgotten, and told as gone, with what the queue cannot read of it."""
    queue = EmbeddedQueue(tmp_path / "queue")
    async with broker(tmp_path, queue=queue) as b, client(b) as c:
        await c.create(**SHORT)
        for number in range(5):
            await c.write(number)
        topic = await queue_topic(queue)
        payload = (await queue.fetch(topic, 0, damaged, max_entries=1, max_bytes=1))[0].payload
        with (tmp_path / f"queue/topics/{topic}/0/data/000000000000.page").open("r+b") as page:
            page.seek(page.read().index(payload))
            page.write(b"damaged")
        (last,) = await queue.fetch(topic, 0, 4, max_entries=1, max_bytes=1)
        later_but_set_back(b, 11)
        assert await expire(b.topics.get("t"), b.context) == damaged
        assert await queue.offsets(topic, 0) == (5, 5)
        assert await retained_since_ms(c) > last.timestamp_ms


def _publication(payload: bytes):
    from memq.core.notification.queue import Publication

    return Publication(0, payload, 0)
