"""A topic that is deleted and recreated is another topic: nothing of the one reaches the other."""

from __future__ import annotations

import asyncio

import pytest

from memq.broker import deletion
from memq.client.admin import AsyncAdminClient
from memq.client.consumer.consumer import AsyncConsumer
from memq.client.producer.producer import AsyncProducer
from memq.core.wire import messages as m
from memq.errors import (
    StorageError,
    TopicRecreatedError,
)
from memq.testing import InMemoryStorage
from tests.advice import follows
from tests.fakes.faults import Fault
from tests.fakes.faulty_storage import FaultyStorage
from tests.fakes.queue import InMemoryQueue
from tests.integration.broker.support import GatedStorage, broker, client, until

FAST = {"batch_age": "5ms"}


async def write_some(address: str, first: int, count: int) -> None:
    """Write records, each in a Batch of its own."""
    async with AsyncProducer(address, topic="t") as producer:
        for number in range(first, first + count):
            await (await producer.write(b"%d" % number))


async def read_all(address: str, count: int) -> list[int]:
    """Values from the beginning on."""
    values: list[int] = []
    async with AsyncConsumer(address, topic="t", start="earliest", read_through="broker") as reader:
        while len(values) < count:
            batch = await reader.poll(10)
            assert batch is not None, f"only {len(values)} of {count}"
            values += [int(message.value) for message in batch]
    return sorted(values)


class GatedDeletes(GatedStorage):
    """Storage that waits at the gate before it deletes."""

    def put(self, key, buffers, *, timeout_s):
        InMemoryStorage.put(self, key, buffers, timeout_s=timeout_s)

    def delete(self, *keys):
        assert self.gate.wait(20)
        super().delete(*keys)


async def test_what_is_deleted_late_is_of_the_topic_that_was_deleted(tmp_path, monkeypatch):
    """Objects of the old topic are deleted while the new one is written; none of its own is."""
    monkeypatch.setattr(deletion, "DELETE_AT_ONCE", 20)  # of fifty
    storage = GatedDeletes()
    async with broker(tmp_path, storage=storage) as b, AsyncAdminClient(b.address) as admin:
        old = await admin.create_topic("t", **FAST)
        await write_some(b.address, 0, 50)
        storage.gate.clear()
        await admin.delete_topic("t")
        new = await admin.create_topic("t", **FAST)
        await write_some(b.address, 100, 50)
        storage.gate.set()
        await until(
            lambda: (
                not any(old.incarnation in info.key for info in storage.list(""))
                and not any("doomed" in path.name for path in tmp_path.glob("topics/*"))
            )
        )
        assert old.incarnation != new.incarnation
        assert await read_all(b.address, 50) == list(range(100, 150))


async def test_a_put_that_hangs_beyond_its_deadline_leaves_nothing_of_a_deleted_topic(tmp_path):
    """Its Batch has failed; the deletion waits for the thread all the same."""
    storage = GatedStorage()
    async with broker(tmp_path, storage=storage) as b, client(b) as c:
        made = await c.create(**FAST, upload_deadline="500ms")
        storage.gate.clear()
        with pytest.raises(StorageError, match="still hangs"):
            await c.write(0)
        (upload,) = b.topics.get("t").uploads()
        await c.ask(m.DeleteTopic(topic="t"))
        storage.gate.set()
        await until(upload.done)
        await until(lambda: not b.topics._catalog.doomed())
        assert not any(made.incarnation in info.key for info in storage.list(""))
        assert b.context.memory.used_bytes == 0


async def test_a_bug_in_a_change_whose_client_has_gone_stops_the_broker(tmp_path, monkeypatch):
    """Nobody waits for the change any more, and it is known all the same that it broke."""
    async with broker(tmp_path) as b:
        async with client(b) as c:
            await c.create(**FAST)
            begun, go_on = asyncio.Event(), asyncio.Event()

            async def broken(*args):
                begun.set()
                await go_on.wait()
                raise ValueError("planned")

            monkeypatch.setattr(b.topics, "_alter", broken)
            asking = asyncio.ensure_future(
                c.ask(m.AlterTopic(topic="t", options={"batch_age": "1s"}))
            )
            await begun.wait()
            asking.cancel()
        await until(lambda: not b.connections)
        go_on.set()
        await until(b.context.fatal_errors.failure.done)
        assert str(b.context.fatal_errors.failure.result()) == "planned"


@follows("Open the client anew, and begin at 'earliest' to miss nothing")
async def test_clients_of_the_old_topic_do_not_go_on_in_the_new_one(tmp_path):
    """Consumer, group member and producer of the old topic get an error that says how to go on."""
    async with broker(tmp_path) as b, AsyncAdminClient(b.address) as admin:
        await admin.create_topic("t", **FAST)
        await write_some(b.address, 0, 3)
        reader = AsyncConsumer(b.address, topic="t", start="earliest", read_through="broker")
        member = AsyncConsumer(
            b.address, topic="t", group="g", start="earliest", read_through="broker"
        )
        producer = AsyncProducer(b.address, topic="t")
        async with reader, member:
            await producer.start()
            for consumer in (reader, member):
                assert await consumer.poll(10) is not None
            await admin.delete_topic("t")
            await admin.create_topic("t", **FAST)
            await write_some(b.address, 100, 3)
            for consumer in (reader, member):
                with pytest.raises(TopicRecreatedError, match="earliest"):
                    async with asyncio.timeout(60):
                        while True:
                            batch = await consumer.poll(1)
                            assert batch is None or int(next(iter(batch)).value) < 100
            with pytest.raises(TopicRecreatedError):
                await member.commit({0: 1})
            with pytest.raises(TopicRecreatedError):
                await (await producer.write(b"x"))
            await producer.close()
        assert await admin.committed("g", "t") == {}
        assert await read_all(b.address, 3) == [100, 101, 102]


async def test_a_deletion_that_fails_goes_on_after_a_restart(tmp_path):
    """What storage refused to delete is gone after the next start."""
    inner, queue = InMemoryStorage(), InMemoryQueue()
    storage = FaultyStorage(inner, [Fault("delete", "fail", times=None)], seed=1)
    async with broker(tmp_path, storage=storage, queue=queue.another_process()) as b:
        async with AsyncAdminClient(b.address) as admin:
            made = await admin.create_topic("t", **FAST)
            await write_some(b.address, 0, 3)
            await admin.delete_topic("t")
        assert any(made.incarnation in info.key for info in inner.list(""))
    async with broker(tmp_path, storage=inner, queue=queue.another_process()) as b:
        await until(lambda: not b.topics._catalog.doomed())
        assert not any(made.incarnation in info.key for info in inner.list(""))
        assert made.config.name not in b.topics.names()


async def test_a_group_of_the_new_topic_is_not_forgotten_with_the_old_one(tmp_path):
    """A deletion that ends late takes no member out of the group of the topic made since."""
    storage = GatedStorage()
    async with broker(tmp_path, storage=storage) as b, client(b) as c:
        await c.create(**FAST)
        storage.gate.clear()
        header, body = c.message(0)
        writing = asyncio.ensure_future(c.ask(header, body))  # the deletion waits for this
        await until(lambda: b.topics.get("t").uploads())
        deleting = asyncio.ensure_future(c.ask(m.DeleteTopic(topic="t")))
        await until(lambda: "t" not in b.topics.names())
        making = asyncio.ensure_future(c.create(**FAST))
        storage.gate.set()
        await deleting
        made = await making
        beat = m.GroupHeartbeat(group="g", topic="t", member_id="m", sequence=1)
        assert (await c.ask(beat)).assigned == [0]
        assert b.groups.members("g", "t", b.context.now().mono_ms) != []
        assert made.incarnation
        await asyncio.gather(writing, return_exceptions=True)
