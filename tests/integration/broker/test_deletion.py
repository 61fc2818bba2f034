"""Removing deleted topics, with a list of doomed topics and a clock that the test has."""

from __future__ import annotations

import itertools
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import replace

import msgspec
import pytest

from memq.broker.retention import LANDING_S, Deletions
from memq.core.topic import TopicConfig
from memq.errors import QueueError, StorageError, UnavailableError
from memq.runtime.system import SYSTEM
from memq.storage.keys import BatchKey, object_key
from memq.testing.storage import InMemoryStorage
from tests.integration.broker.support import broker


class Doomed:
    """The doomed topics; remembers what is done with them, in order."""

    def __init__(self, *topics) -> None:
        self.topics = {topic.name: topic for topic in topics}
        self.alive: set[str] = set()
        self.fails: dict[str, Exception] = {}
        self.done: list[str] = []

    async def doomed(self):
        if "" in self.fails:
            raise self.fails[""]
        return list(self.topics.values())

    async def withdraw(self, topic):
        self.done.append(f"withdraw {topic.name}")
        if topic.name in self.fails:
            raise self.fails[topic.name]
        return topic.name not in self.alive

    async def forget(self, topic):
        self.done.append(f"forget {topic.name}")
        del self.topics[topic.name]


class Storage(InMemoryStorage):
    """Keeps the keys of each deletion, and fails to delete of some topics."""

    def __init__(self) -> None:
        super().__init__()
        self.deleted: list[list[str]] = []
        self.fails = "nothing"

    def delete(self, *keys):
        if any(f"/{self.fails}/" in key for key in keys):
            raise StorageError("no")
        self.deleted.append([*keys])
        super().delete(*keys)


class Place:
    """A broker with doomed topics, each with a topic in the queue and objects."""

    def __init__(self, b, names) -> None:
        self.b, self.now_s = b, 1_000.0
        b.context.runtime = replace(SYSTEM, mono_s=lambda: self.now_s, random=lambda: 0.0)
        like = b.topics.get("_memq_audit").topic
        self.topics = [
            msgspec.structs.replace(
                like, config=TopicConfig.create(name, read_partitions=2), topic_id=f"{n:016x}"
            )
            for n, name in enumerate(names)
        ]
        self.doomed = Doomed(*self.topics)
        self.deletions = Deletions(self.doomed, b.context)

    async def fill(self):
        for topic in self.topics:
            await self.b.context.queue.create_topic(topic.queue_topic, 2)
            for number in range(3):
                self.put(topic, number)

    def put(self, topic, number):
        key = object_key(
            BatchKey(
                cluster_id=self.b.context.config.cluster_id,
                topic=topic.name,
                topic_id=topic.topic_id,
                write_partition=0,
                sealed_ms=number,
                batch_id=f"{number:028x}",
                running_ms=number,
            )
        )
        self.b.context.storage.put(key, [b"x"], timeout_s=1)

    async def left(self):
        """Names of topics of which the queue has something, and of which there are objects."""
        queue = {each.rpartition(".")[0] for each in await self.b.context.queue.topics()}
        keys = [info.key for info in self.b.context.storage.list("")]
        objects = {t.name for t in self.topics if any(f"/{t.name}/" in key for key in keys)}
        return sorted(queue - {"_memq_audit"}), sorted(objects)


@asynccontextmanager
async def place(tmp_path, names="abcdef"):
    async with broker(tmp_path, storage=Storage()) as b:
        found = Place(b, names)
        await found.fill()
        yield found


TROUBLES = ["uploading", "alive", "withdraw", "queue", "storage"]


@pytest.mark.parametrize("first", range(len(TROUBLES)))
async def test_what_cannot_be_removed_yet_holds_up_no_other_topic(tmp_path, first) -> None:
    """Whatever is in the way of one, wherever it stands, those after it are removed."""
    order = TROUBLES[first:] + TROUBLES[:first]
    async with place(tmp_path, ["free", *order, "also"]) as p:
        upload, delete_topic = Future(), p.b.context.queue.delete_topic

        async def delete(topic):
            if topic.startswith("queue.") and p.doomed.fails:
                raise QueueError("no")
            await delete_topic(topic)

        p.b.context.queue.delete_topic = delete
        for topic in p.topics:
            uploads = [Future(), upload] if topic.name == "uploading" else []
            if uploads:
                uploads[0].set_result(None)
            p.deletions.add(topic, uploads)
        p.doomed.alive.add("alive")
        p.doomed.fails["withdraw"] = UnavailableError("ask again")
        p.b.context.storage.fails = "storage"
        assert not await p.deletions._remove_all()
        assert sorted(p.doomed.topics) == sorted(TROUBLES)
        queue, objects = await p.left()
        assert queue == ["alive", "queue", "uploading", "withdraw"]
        assert objects == sorted(TROUBLES)
        p.doomed.fails.clear()
        p.b.context.storage.fails = "nothing"
        assert not await p.deletions._remove_all(), "one is still uploading"
        assert sorted(p.doomed.topics) == ["alive", "uploading"]
        upload.set_result(None)
        assert await p.deletions._remove_all(), "what has come to exist is not waited for"
        assert await p.left() == (["alive"], ["alive"])


@pytest.mark.parametrize(("remote", "shared"), [*itertools.product([False, True], repeat=2)])
async def test_what_may_still_be_stored_is_waited_for(tmp_path, remote, shared) -> None:
    """Where a put may be carried out late, a topic is removed a minute later, not before."""
    async with place(tmp_path, "ab") as p:
        p.b.context.storage.remote, p.b.context.shared = remote, shared
        late = remote or shared
        assert await p.deletions._remove_all() is not late
        assert await p.left() == ((["a", "b"], ["a", "b"]) if late else ([], []))
        p.now_s += LANDING_S - 0.1
        p.put(p.topics[0], 7)
        assert await p.deletions._remove_all() is not late
        p.now_s += 0.1
        assert await p.deletions._remove_all()
        assert p.doomed.topics == {}
        assert await p.left() == ([], [] if late else ["a"])
        assert not p.deletions._seen_s
        assert not p.deletions._uploads
        p.b.context.shared = False
