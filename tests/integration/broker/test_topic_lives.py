"""A topic that is deleted and recreated is another topic: nothing of the one reaches the other."""

from __future__ import annotations

import asyncio

import pytest

from memq.broker import deletion
from memq.client.admin import AsyncAdminClient
from memq.client.cluster import Cluster
from memq.client.consumer.consumer import AsyncConsumer
from memq.client.producer.producer import AsyncProducer
from memq.client.topic import TopicClient
from memq.core.governor.catalog import Catalog
from memq.core.retry import Backoff
from memq.core.topic import TopicConfig
from memq.core.wire import messages as m
from memq.errors import (
    MemqError,
    QueueError,
    StorageError,
    TopicExistsError,
    TopicRecreatedError,
    UnavailableError,
    UnknownTopicError,
)
from memq.testing import InMemoryStorage
from tests.advice import follows
from tests.fakes.faults import Fault
from tests.fakes.faulty_queue import FaultyQueue
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


async def test_what_lands_after_a_deletion_is_removed_as_well(tmp_path, monkeypatch, caplog):
    """An object store may carry out a put that was given up after its topic was deleted; so it is
    looked through twice, and then the topic is forgotten.
    """
    caplog.set_level("INFO")
    monkeypatch.setattr(deletion, "LANDING_S", 3.0)
    monkeypatch.setattr(deletion, "BACKOFF", Backoff(0.1, 0.1))
    storage = InMemoryStorage()
    storage.remote = True
    async with broker(tmp_path, storage=storage) as b, AsyncAdminClient(b.address) as admin:
        old = await admin.create_topic("t", **FAST)
        await write_some(b.address, 0, 5)
        key = next(info.key for info in storage.list("") if old.incarnation in info.key)
        content = storage.get(key)
        await admin.delete_topic("t")
        await until(lambda: not any(old.incarnation in info.key for info in storage.list("")))
        storage.put(key, [content], timeout_s=1)
        await until(lambda: not any(old.incarnation in info.key for info in storage.list("")))
        await until(lambda: not b.topics._catalog.doomed())
        await until(lambda: "0 topics may land" in repr(b.topics._deletions))
        assert [text.rpartition(", ")[2] for text in caplog.messages if "is removed" in text] == [
            "5 objects",
            "1 object",
        ]


async def test_a_deletion_deletes_no_later_topic(tmp_path):
    """A deletion that is sent again after the topic was made anew leaves the new one alone."""
    async with broker(tmp_path) as b, AsyncAdminClient(b.address) as admin:
        old = await admin.create_topic("t", **FAST)
        await admin.delete_topic("t", incarnation=old.incarnation)
        new = await admin.create_topic("t", **FAST)
        with pytest.raises(TopicRecreatedError, match=old.incarnation):
            await admin.delete_topic("t", incarnation=old.incarnation)
        assert (await admin.describe_topic("t")).incarnation == new.incarnation


async def test_a_deletion_whose_answer_is_lost_has_deleted(tmp_path, monkeypatch):
    """When the topic is gone at the second try of a deletion, the caller is told no error."""
    async with broker(tmp_path) as b, AsyncAdminClient(b.address) as admin:
        await admin.create_topic("t", **FAST)
        delete = b.topics.delete

        async def lost(*args):
            monkeypatch.undo()
            await delete(*args)
            raise UnavailableError("the answer is lost")

        monkeypatch.setattr(b.topics, "delete", lost)
        await admin.delete_topic("t")
        with pytest.raises(UnknownTopicError):
            await admin.delete_topic("t")


async def test_a_put_that_hangs_beyond_the_deletion_leaves_nothing(tmp_path):
    """An object that is stored only after its topic was deleted is removed as well."""
    storage = GatedStorage()
    async with broker(tmp_path, storage=storage) as b, client(b) as c:
        made = await c.create(**FAST)
        storage.gate.clear()
        header, body = c.message(0)
        writing = asyncio.ensure_future(c.ask(header, body))
        await until(lambda: b.topics.get("t").uploads())
        (upload,) = b.topics.get("t").uploads()
        await c.ask(m.DeleteTopic(topic="t"))
        storage.gate.set()
        await until(upload.done)
        await until(lambda: not b.topics._catalog.doomed())
        assert not any(made.incarnation in info.key for info in storage.list(""))
        writing.cancel()


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


async def test_a_topic_that_is_deleted_while_storage_hangs_gives_its_memory_back(tmp_path):
    """What was not stored is nacked, and its memory is free when the puts have ended."""
    storage = GatedStorage()
    async with broker(tmp_path, storage=storage) as b, client(b) as c:
        await c.create(**FAST)
        storage.gate.clear()
        header, body = c.message(0)
        writing = asyncio.ensure_future(c.ask(header, body))
        await until(lambda: b.topics.get("t").uploads())
        await c.ask(m.DeleteTopic(topic="t"))
        with pytest.raises(MemqError):
            await writing
        storage.gate.set()
        await until(lambda: b.context.memory.used_bytes == 0)


async def test_nothing_is_made_while_the_broker_drains(tmp_path):
    """A topic that is made behind the drain would lose what it takes."""
    async with broker(tmp_path) as b, client(b) as c:
        await c.create(**FAST)
        await b.topics.stop(1)
        for change in (
            m.CreateTopic(config=TopicConfig.create("new")),
            m.AlterTopic(topic="t", options={"write_partitions": "2"}),
            m.DeleteTopic(topic="t"),
        ):
            with pytest.raises(UnavailableError, match="draining"):
                await c.ask(change)


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


async def test_a_request_under_way_while_its_topic_is_recreated_is_told_so(tmp_path, monkeypatch):
    """It may meet the moment in which there is none; what it is told is how things stand now."""
    async with broker(tmp_path) as b, AsyncAdminClient(b.address) as admin:
        await admin.create_topic("t", **FAST)
        async with TopicClient(Cluster(b.address), "t") as topic:
            await topic.offsets()
            attempt = topic.cluster.attempt

            async def meets_the_moment(*args, **kwargs):
                monkeypatch.setattr(topic.cluster, "attempt", attempt)
                await admin.delete_topic("t")
                await admin.create_topic("t", **FAST)
                raise UnknownTopicError("the queue has no topic 't'")

            monkeypatch.setattr(topic.cluster, "attempt", meets_the_moment)
            with pytest.raises(TopicRecreatedError, match="earliest"):
                await topic.offsets()


async def test_an_administrator_who_remembers_the_old_topic_means_the_new_one(tmp_path):
    """A client that only asks for what there is now meets the new topic, without an error."""
    async with broker(tmp_path) as b, AsyncAdminClient(b.address) as admin:
        await admin.create_topic("t", **FAST)
        await write_some(b.address, 0, 3)
        assert (await admin.offsets("t"))[0].end > 0
        async with AsyncAdminClient(b.address) as other:
            await other.delete_topic("t")
            await other.create_topic("t", **FAST)
        assert (await admin.offsets("t"))[0].end == 0
        await admin.reset_offsets("g", "t", "earliest")
        assert await admin.committed("g", "t") == {0: 0}


async def test_a_creation_sent_again_is_answered_with_what_it_made(tmp_path):
    """The same request gets the same topic; another one is told that it exists."""
    async with broker(tmp_path) as b, client(b) as c:
        config = TopicConfig.create("t")
        first = await c.ask(m.CreateTopic(config=config, request_id="r1"))
        again = await c.ask(m.CreateTopic(config=config, request_id="r1"))
        assert again.topic.incarnation == first.topic.incarnation
        for other in ("r2", ""):
            with pytest.raises(TopicExistsError):
                await c.ask(m.CreateTopic(config=config, request_id=other))


async def test_producers_that_make_a_topic_at_once_all_write_to_it(tmp_path):
    """Twelve first producers of a topic that is made at its first use all get their acks."""
    async with broker(tmp_path, auto_create_topics=True) as b:

        async def one(number: int) -> None:
            async with AsyncProducer(b.address, topic="t") as producer:
                await (await producer.write(b"%d" % number))

        await asyncio.gather(*(one(number) for number in range(12)))
        assert await read_all(b.address, 12) == list(range(12))


async def test_who_makes_a_topic_at_its_first_use_may_be_the_second(tmp_path):
    """Another client that is a little quicker is no error."""
    slow = [Fault("create_topic", "delay", first=2, delays_ms=(50,))]  # 1: audit
    queue = FaultyQueue(InMemoryQueue(), slow, seed=1)
    async with (
        broker(tmp_path, queue=queue, auto_create_topics=True) as b,
        client(b) as one,
        client(b) as other,
    ):
        asked = (each.ask(m.Metadata(topics=["t"], create=True)) for each in (one, other))
        (made,), (found,) = [answer.topics for answer in await asyncio.gather(*asked)]
        assert made.incarnation == found.incarnation


@pytest.mark.parametrize("operation", ["create_topic", "fence"])
async def test_a_creation_that_fails_leaves_nothing_and_can_be_repeated(tmp_path, operation):
    """After an error of the queue there is no topic, and the next attempt makes it."""
    queue = FaultyQueue(InMemoryQueue(), [Fault(operation, "fail", first=2)], seed=1)  # 1: audit
    async with broker(tmp_path, queue=queue) as b, AsyncAdminClient(b.address) as admin:
        with pytest.raises(QueueError):
            await b.topics.create(TopicConfig.create("t"))
        with pytest.raises(UnknownTopicError):
            await admin.describe_topic("t")
        await until(lambda: not b.topics._catalog.doomed())
        assert [name for name in await queue.topics() if name.startswith("t.")] == []
        await admin.create_topic("t", **FAST)
        await write_some(b.address, 0, 3)
        assert await read_all(b.address, 3) == [0, 1, 2]


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


def test_a_crash_between_the_steps_leaves_a_topic_or_nothing(tmp_path):
    """What was announced and not saved is doomed; what was saved exists, announced or not."""
    catalog = Catalog(tmp_path)
    made, half = (
        catalog.new(TopicConfig.create(name), now_ms=1, incarnation=digit * 16, request_id="")
        for name, digit in (("made", "1"), ("half", "2"))
    )
    for topic in (made, half):
        catalog.announce(topic)
    catalog.save(made)
    again = Catalog(tmp_path)
    assert (again.names(), again.doomed()) == (["made"], [half])
    again.delete("made")
    again.doom(made)
    assert again.doomed() == [half, made]
    assert (Catalog(tmp_path).names(), len(Catalog(tmp_path).doomed())) == ([], 2)
    again.forget(made)
    again.forget(half)
    assert Catalog(tmp_path).doomed() == []


def test_a_topic_whose_file_is_damaged_is_not_taken_for_one_that_was_given_up(tmp_path):
    """An announcement dooms nothing while the topic's own file may be that of the same topic."""
    catalog = Catalog(tmp_path)
    topic = catalog.new(TopicConfig.create("t"), now_ms=1, incarnation="1" * 16, request_id="")
    catalog.announce(topic)
    catalog.save(topic)  # and a crash before the announcement is removed
    sound = (tmp_path / "t.json").read_bytes()
    (tmp_path / "t.json").write_bytes(sound[:-20])
    assert Catalog(tmp_path).doomed() == []
    (tmp_path / "t.json").write_bytes(sound)
    assert Catalog(tmp_path).names() == ["t"]
    assert [path.name for path in tmp_path.iterdir()] == ["t.json"]


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
