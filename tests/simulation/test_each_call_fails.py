"""Whichever call of the file system fails once: nothing is half done, and may be tried again."""

import asyncio
import contextlib
import random

import pytest

from memq.bigqueue import FanOutQueue
from memq.core.clock import SavedTimes
from memq.core.queue import Holding, Publication
from memq.errors import (
    CorruptDataError,
    FencedError,
    MemqError,
    PublishUncertainError,
    QueueFailedError,
    UnknownTopicError,
)
from memq.queue.embedded.queue import EmbeddedQueue
from tests.fakes.disk import ForgetfulDisk
from tests.fakes.queue import InMemoryQueue
from tests.harness.descriptors import open_files

SMALL = {"page_bytes": 4096, "index_page_items": 8}
CALLS = ("create", "allocate", "rename", "unlink", "mkdir", "sync_folder", "open", "read")
MANY = 1 << 10
STRIDES = {"open": 9, "sync_folder": 4, "mkdir": 3, "create": 3}  # of the queue, which takes longer


# -- the fan-out queue ------------------------------------------------------------------------


ACTS = [
    ("create_front", "a"),
    ("create_front", "b"),
    ("enqueue_many", [b"%02d" % n * 450 for n in range(12)]),
    ("dequeue", "a"),
    ("dequeue_many", "a", 8),
    ("set_position", "b", 6),
    ("gc",),
    ("delete_front", "b"),
    ("enqueue", b"x" * 3000),
    ("create_front", "b", 7),
    ("truncate_front", 11),
    ("reset_front", "a"),
    ("dequeue", "a"),
    ("sync",),
]


def state_of(queue):
    """All that a fan-out queue holds."""
    fronts = {name: queue.position(name) for name in queue.fronts()}
    return queue.get_many(queue.start, 99), queue.start, fronts


class FanOut:
    """A fan-out queue that is opened again where that is what helps."""

    def __init__(self, path):
        self.path, self.queue, self.failures = path, None, []

    def ask(self, name, arguments, model):
        """Let it do something, if need be more than once; it is done or not, after each attempt."""
        before = state_of(model)
        expected = getattr(model, name)(*arguments)
        after = state_of(model)
        for _ in range(3):
            try:
                self.open()
                found = getattr(self.queue, name)(*arguments)
            except (PublishUncertainError, QueueFailedError) as exc:
                self.failures.append(repr(exc))
                self.close()
                self.open()
                if state_of(self.queue) == after != before:
                    return
                assert state_of(self.queue) == before
            except MemqError as exc:
                self.failures.append(repr(exc))
                assert exc.retriable, exc
                if self.queue is not None:
                    state = self.state()
                    if name in ("create_front", "delete_front"):
                        assert state in (before, after)
                    elif name not in ("gc", "truncate_front"):  # which forget all the same
                        assert state == before
            else:
                assert found == expected
                assert self.state() == after
                return
        raise AssertionError(f"{name} fails again and again: {self.failures}")

    def state(self):
        """What it shows now; a front may be there whose file is gone, and the other way round."""
        positions = {name: front.position for name, front in self.queue._fronts.items()}
        return self.queue.get_many(self.queue.start, 99), self.queue.start, positions

    def open(self):
        if self.queue is None:
            self.queue = FanOutQueue(self.path, sync="each", **SMALL)

    def close(self):
        if self.queue is not None:
            queue, self.queue = self.queue, None
            with contextlib.suppress(MemqError):
                queue.close()


@pytest.mark.parametrize("call", CALLS)
def test_a_fan_out_queue_whose_call_fails_once(memory_path, call):
    """Its error may be tried again; items and positions are as before, or as they shall be."""
    for skip in range(MANY):
        with ForgetfulDisk(memory_path / str(skip), random.Random(skip)) as disk:
            disk.fail(call, skip=skip)
            model = FanOutQueue(memory_path / f"model {skip}", **SMALL)  # where no call fails
            fan_out = FanOut(disk.root / "queue")
            for name, *arguments in ACTS:
                fan_out.ask(name, arguments, model)
            failed = bool(fan_out.failures)
            disk.mend()
            fan_out.ask("set_position", ("b", 12), model)
            fan_out.close()
            disk.crash()
            with FanOutQueue(disk.root / "queue") as after:
                items, start, fronts = state_of(after)
                assert start <= model.start
                assert (items[model.start - start :], fronts) == state_of(model)[::2]
            model.close()
        assert open_files(memory_path) == []
        if not failed:
            break
    assert not failed


# -- the embedded queue -----------------------------------------------------------------------


async def all_of(queue):
    """All that a queue holds."""
    found = {}
    for topic in await queue.topics():
        entries, starts = [], []
        for partition in range(2 if topic == "t" else 1):
            start, _ = await queue.offsets(topic, partition)
            page = await queue.fetch(topic, partition, start, max_entries=99, max_bytes=1 << 20)
            entries.append([each.payload for each in page])
            starts.append(start)
        groups = {each: await queue.committed(each, topic) for each in await queue.groups(topic)}
        held = await queue.holdings(topic)
        found[topic] = entries, starts, groups, held
    return found, await queue.times()


def publications(*partitions):
    """A large one for each of these."""
    return [Publication(each, b"%d" % each * 2500, 1) for each in partitions]


CALLS_OF_TOPICS = [
    ("create_topic", "t", 2),
    ("create_topic", "u", 1),
    ("publish", "t", 0, publications(0, 0)),
    ("publish", "t", 0, publications(1)),
    ("commit", "g", "t", {0: 2, 1: 1}),
    ("hold", "g", "t", {"m": Holding(1_000, [0])}),
    ("save_times", SavedTimes(5, 7)),
    ("publish", "u", 0, publications(0)),
    ("commit", "g", "u", {0: 1}),
    ("commit", "g", "t", {1: 0}),
    ("truncate", "t", 0, 2),
    ("delete_topic", "u"),
    ("create_topic", "u", 1),
    ("publish", "t", 0, publications(1)),
    ("hold", "g", "t", {}),
    ("commit", "h", "t", {0: 1}),
    ("delete_group", "g", "t"),
    ("publish", "u", 0, publications(0, 0)),
]


class Embedded:
    """An embedded queue that is fenced, or opened again, where that is what helps."""

    def __init__(self, path):
        self.path, self.queue, self.failures = path, None, []

    async def ask(self, name, arguments, model):
        """Let it do something, if need be more than once; it is done or not, after each attempt."""
        owned = name in ("publish", "commit", "hold", "delete_group")
        topic = arguments[name != "publish"] if owned else ""
        if owned:
            await model.fence(topic, 0)
        await getattr(model, name)(*arguments)
        after = await all_of(model)
        for _ in range(6):
            try:
                await self.open()
                if owned and (not self.queue.owns(topic, 0) or self.last is not None):
                    await self.queue.fence(topic, 0)
                doubtful = name == "publish" and self.last is PublishUncertainError
                if doubtful and await all_of(self.queue) == after:
                    return
                self.last = None
                await getattr(self.queue, name)(*arguments)
            except (CorruptDataError, UnknownTopicError, FencedError):
                raise
            except MemqError as exc:
                self.last = type(exc)
                self.failures.append(repr(exc))
                assert isinstance(exc, PublishUncertainError) or exc.retriable
            else:
                assert await self.shown() == after
                return
        raise AssertionError(f"{name} fails again and again: {self.failures}")

    async def shown(self):
        """All that it holds; a second look meets no failure."""
        try:
            return await all_of(self.queue)
        except MemqError as exc:
            self.failures.append(repr(exc))
            assert exc.retriable
            return await all_of(self.queue)

    async def open(self):
        if self.queue is None:
            self.last = None
            self.queue = EmbeddedQueue(self.path, **SMALL)


@pytest.mark.parametrize("call", CALLS)
def test_an_embedded_queue_whose_call_fails_once(memory_path, call):
    """Its error may be tried again; what it holds is as before, or as it shall be, and durable."""

    async def run(disk):
        model, embedded = InMemoryQueue(), Embedded(disk.root / "queue")
        for name, *arguments in CALLS_OF_TOPICS:
            await embedded.ask(name, arguments, model)
        disk.mend()
        await embedded.queue.close()
        disk.crash()
        after = EmbeddedQueue(disk.root / "queue")
        found, times = await all_of(after)
        held = {topic: each[:3] for topic, each in found.items()}
        expected, expected_times = await all_of(model)
        assert (held, times) == ({t: each[:3] for t, each in expected.items()}, expected_times)
        await after.close()
        return embedded.failures

    for skip in range(0, MANY, STRIDES.get(call, 1)):
        with ForgetfulDisk(memory_path / str(skip), random.Random(skip)) as disk:
            disk.fail(call, skip=skip)
            failed = asyncio.run(run(disk))
        assert open_files(memory_path) == []
        if not failed:
            break
    assert not failed
