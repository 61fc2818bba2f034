"""Retention, orphans, and damage that stays where it is."""

import asyncio
import logging

import msgspec
import pytest

from memq.broker.retention import expire, scan_orphans
from memq.core.clock import ClockReading
from memq.core.wire import messages as m
from memq.errors import InvalidRequestError, QueueError, StorageError, TopicRecreatedError
from memq.queue.kafka.queue import KafkaQueue
from memq.storage.keys import BatchKey, object_key, parse_object_key
from memq.testing.storage import InMemoryStorage
from tests.fakes.kafka import InMemoryKafka
from tests.fakes.queue import InMemoryQueue
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


def put_orphan(storage, topic: m.TopicInfo) -> str:
    """Store a Batch that nothing names, sealed when the broker's time began; its key."""
    key = object_key(BatchKey("memq", topic.config.name, topic.topic_id, 0, 1, "never-acked"))
    storage.put(key, [b"x"], timeout_s=9)
    return key


async def test_a_topic_that_is_recreated_during_a_scan_keeps_its_objects(tmp_path, caplog) -> None:
    """Neither what the earlier one left is called an orphan, nor what the later one has."""
    storage = InMemoryStorage()
    async with broker(tmp_path, storage=storage) as b, client(b) as c:
        orphan = put_orphan(storage, await c.create(**SHORT))
        await c.write(0)
        earlier, listing = b.topics.get("t"), storage.list
        loop, later_id = asyncio.get_running_loop(), ""

        async def recreate() -> None:
            nonlocal later_id
            await c.ask(m.DeleteTopic(topic="t"))
            later_id = (await c.create(**SHORT)).topic_id
            await c.write(0)

        def listed(*prefixes):
            storage.list, before = listing, list(listing(*prefixes))
            asyncio.run_coroutine_threadsafe(recreate(), loop).result(30)
            return iter([*before, *listing(*prefixes)])  # meanwhile, both can be seen

        storage.list = listed
        real = b.context.now
        b.context.now = lambda: real()._replace(mono_ms=real().mono_ms + 3_600_000)
        assert await scan_orphans([earlier], b.context) == []
        assert "no notification names" not in caplog.text
        await until(lambda: orphan not in [info.key for info in listing("")])  # with its topic
        left = [parse_object_key(info.key) for info in listing("")]
        assert [each.topic_id for each in left if each.topic == "t"] == [later_id]


class Scanned(InMemoryStorage):
    """Counts the listings of the whole cluster; refuses the first ones."""

    def __init__(self, refused: int = 0) -> None:
        super().__init__()
        self.scans, self._refused = 0, refused

    def list(self, *prefixes):
        if len(prefixes) == 256:
            self.scans += 1
            if self.scans <= self._refused:
                raise StorageError("503 SlowDown")
        return super().list(*prefixes)


async def test_a_scan_that_failed_is_repeated_until_it_succeeds(tmp_path, caplog) -> None:
    """And then there is none for `orphan_interval`; what is old is deleted by it."""
    caplog.set_level(logging.WARNING)
    storage = Scanned(refused=2)
    options = {"retention_interval": "100ms", "orphan_interval": "30d"}
    async with broker(tmp_path, storage=storage, **options) as b, client(b) as c:
        await c.create(**SHORT)
        await until(lambda: storage.scans == 3)
        assert caplog.text.count("orphans were not looked for, retrying: 503 SlowDown") == 2
        saved = b.context.times.saved
        await until(lambda: b.context.times.saved is not saved)  # it has kept house again
        assert storage.scans == 3


async def test_what_a_size_may_remove_is_not_promised(tmp_path) -> None:
    """Nobody is told that something is retained that another life of the broker has removed."""
    storage, queue = InMemoryStorage(), InMemoryQueue()
    async with broker(tmp_path, storage=storage, queue=queue) as b, client(b) as c:
        await c.create(retention="1h", dedup_window="10s", upload_deadline="1s")
        await c.write(0)
        whole_ms = await retained_since_ms(c)
        await c.ask(m.AlterTopic(topic="t", options={"retention_bytes": "1B"}))
        later(b, 11)
        assert await expire(b.topics.get("t"), b.context) == 1
        assert list(storage.list("")) == []
        since_ms = await retained_since_ms(c)
        assert since_ms > whole_ms + 3_000_000
        await c.ask(m.AlterTopic(topic="t", options={"retention_bytes": "0B"}))
        b.topics.get("t").expired_before_ms = 0  # as after a start
        assert await retained_since_ms(c) >= since_ms


async def test_a_trim(tmp_path) -> None:
    """Only shown, then done: notifications and objects go, and that is promised no more, also in
    the next life of the broker.
    """
    storage, queue = InMemoryStorage(), InMemoryQueue()
    async with broker(tmp_path, storage=storage, queue=queue) as b, client(b) as c:
        await c.create(dedup_window="10s", upload_deadline="1s")
        for sequence in range(3):
            await c.write(sequence)
        later(b, 11)
        young = await c.write(3)
        (entry,) = await queue.fetch(await queue_topic(queue), 0, 2, max_entries=1, max_bytes=1)
        at = [m.PartitionOffset(0, 4)]
        for _ in range(2):
            shown = await c.ask(m.TrimTopic(topic="t", offsets=at))
            assert shown.offsets == [m.PartitionOffset(0, 3)]
            assert len(list(storage.list(""))) == 4
        since_ms = await retained_since_ms(c)
        assert since_ms < entry.timestamp_ms
        done = await c.ask(m.TrimTopic(topic="t", offsets=at, execute=True))
        assert done.offsets == [m.PartitionOffset(0, young.offset)]
        await until(lambda: len(list(storage.list(""))) == 1)
        b.topics.get("t").expired_before_ms = 0  # as after a start
        assert await retained_since_ms(c) == entry.timestamp_ms + 1
        again = await c.ask(m.TrimTopic(topic="t", offsets=at, execute=True))
        assert again.offsets == [m.PartitionOffset(0, 3)]
        assert (await c.ask(m.TrimTopic(topic="t", offsets=[], execute=True))).offsets == []
        for wrong in (m.PartitionOffset(0, 5), m.PartitionOffset(1, 0), m.PartitionOffset(0, -1)):
            with pytest.raises(InvalidRequestError):
                await c.ask(m.TrimTopic(topic="t", offsets=[wrong], execute=True))
        with pytest.raises(TopicRecreatedError):
            await c.ask(m.TrimTopic(topic="t", topic_id="0" * 16, offsets=at, execute=True))
