"""Batches that fail, and those that they take along."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections import Counter
from dataclasses import replace

import pytest

from memq.core.runtime import SYSTEM
from memq.core.wire import messages as m
from memq.errors import MemqError, SequenceGapError, StorageError
from memq.testing.storage import InMemoryStorage
from tests.integration.broker.support import TIMEOUT_S, GatedStorage, broker, client, until


class FirstRefused(InMemoryStorage):
    """Refuses the first Batch for good; lets the second one wait, and then end as it is told."""

    def __init__(self, second_fails: bool) -> None:
        super().__init__()
        self.attempts: Counter[str] = Counter()
        self.gate = threading.Event()
        self._second_fails = second_fails

    def put(self, key, buffers, *, timeout_s):
        number = list(self.attempts).index(key) if key in self.attempts else len(self.attempts)
        self.attempts[key] += 1
        if number == 0:
            assert _until_true(lambda: len(self.attempts) == 2)
            raise MemqError("never")
        if number == 1:
            assert self.gate.wait(TIMEOUT_S)
            if self._second_fails:
                raise StorageError("once more, perhaps")
        super().put(key, buffers, timeout_s=timeout_s)


def _until_true(condition) -> bool:
    waiting = threading.Event()
    return any(condition() or waiting.wait(0.001) for _ in range(10_000))


@pytest.mark.parametrize("second_fails", [False, True])
async def test_upload_that_ends_after_its_batch_was_given_up_changes_nothing(
    tmp_path, second_fails
) -> None:
    """In an ordered topic a failed Batch takes the next along, whose upload then ends in peace."""
    storage = FirstRefused(second_fails)
    async with broker(tmp_path, storage=storage) as b, client(b) as c:
        await c.create(ordering="producer", batch_messages=1)
        writes = [asyncio.ensure_future(c.write(sequence)) for sequence in range(2)]
        outcomes = await asyncio.gather(*writes, return_exceptions=True)
        assert [type(each) for each in outcomes] == [MemqError, SequenceGapError]
        held = b.context.memory.used_bytes
        storage.gate.set()
        await until(lambda: b.context.memory.used_bytes == 0)
        assert held > 0, "a thread still has the buffers"
        assert (await c.write(0)).offset == 0
        assert list(storage.attempts.values()) == [1, 1, 1]
        assert not b.context.fatal_errors.failure.done()


async def test_a_put_that_hangs_past_its_deadline_keeps_its_memory_until_it_ends(tmp_path) -> None:
    """The Messages fail in time; what a thread still reads is charged until the thread is done."""
    storage = GatedStorage()
    async with broker(tmp_path, storage=storage, upload_threads=1) as b, client(b) as c:
        await c.create("u", batch_messages=1, upload_deadline="100ms")
        await c.create(batch_messages=1, upload_deadline="500ms")
        storage.gate.clear()
        writes = [asyncio.ensure_future(c.write(0))]
        await sealed(b, "t", 1)
        writes.append(asyncio.ensure_future(c.write(1, topic="u")))
        outcomes = await asyncio.gather(*writes, return_exceptions=True)
        assert [type(each) for each in outcomes] == [StorageError, StorageError]
        assert "the attempt still hangs" in str(outcomes[0])
        assert "its turn did not come within its deadline" in str(outcomes[1])
        _, body = c.message(0)
        assert b.context.memory.used_bytes == len(body), "of the second nobody has the bytes"
        storage.gate.set()
        await until(lambda: b.context.memory.used_bytes == 0)
        assert (await c.write(2)).offset == 0


class Refusing(InMemoryStorage):
    """Refuses the first Batch of topic `t` for good, once it is told to, and others once each."""

    def __init__(self, *, others_fail: bool = False) -> None:
        super().__init__()
        self.attempts: Counter[str] = Counter()
        self.refuses, self.gate = threading.Event(), threading.Event()
        self._others_fail = others_fail

    def of(self, topic: str) -> list[int]:
        """How often each Batch of a topic was attempted."""
        return [count for key, count in self.attempts.items() if f"/{topic}/" in key]

    def put(self, key, buffers, *, timeout_s):
        self.attempts[key] += 1
        if "/u/" in key:
            assert self.gate.wait(TIMEOUT_S), "the test left the gate shut"
        elif len(self.of("t")) == 1:
            assert self.refuses.wait(TIMEOUT_S), "the test left the first one waiting"
            raise MemqError("never")
        elif self._others_fail and self.attempts[key] == 1:
            raise StorageError("once more, perhaps")
        super().put(key, buffers, timeout_s=timeout_s)


async def sealed(b, topic, count):
    """Wait until so many Batches of a topic are on their way."""
    await until(lambda: len(b.topics.get(topic).partitions[0].processor.batch_ids) == count)


LARGE = bytes(1 << 20)  # its memory is lent by the broker, which counts what is lent


def nothing_is_lent(b):
    gc.collect()  # an error knows all that its callers knew
    return "| 0 blocks lent |" in repr(b.context.memory)


async def test_a_batch_that_was_taken_along_holds_no_memory_until_its_turn(
    tmp_path, caplog
) -> None:
    """Where others are before it in the line, its bytes are let go of all the same."""
    caplog.set_level(logging.CRITICAL)  # what is logged is kept, with errors and all they know
    storage = Refusing()
    async with broker(tmp_path, storage=storage, upload_threads=2) as b, client(b) as c:
        await c.create("u", batch_messages=1)
        await c.create(ordering="producer", batch_messages=1)
        others = [asyncio.ensure_future(c.write(0, topic="u"))]
        await until(lambda: storage.of("u") == [1])
        writes = [asyncio.ensure_future(c.write(0, LARGE))]
        await until(lambda: storage.of("t") == [1])
        others.append(asyncio.ensure_future(c.write(1, topic="u")))
        await sealed(b, "u", 2)
        writes.append(asyncio.ensure_future(c.write(1, LARGE)))
        await sealed(b, "t", 2)
        storage.refuses.set()
        await asyncio.gather(*writes, return_exceptions=True)
        await until(lambda: nothing_is_lent(b))
        assert storage.of("u") == [1, 1], "they still have all the turns"
        assert b.context.memory.used_bytes == sum(len(c.message(n)[1]) for n in range(2))
        storage.gate.set()
        await asyncio.gather(*others)
        assert storage.of("t") == [1]


async def test_a_batch_that_was_taken_along_is_not_tried_again(tmp_path, caplog) -> None:
    """An upload that waits to try again ends with its Batch, and its bytes are let go of."""
    caplog.set_level(logging.CRITICAL)
    storage = Refusing(others_fail=True)
    patient = replace(SYSTEM, random=lambda: 100.0)  # the longest back-off, and far longer
    async with broker(tmp_path, storage=storage, runtime=patient) as b, client(b) as c:
        await c.create(ordering="producer", batch_messages=1)
        writes = [asyncio.ensure_future(c.write(0, LARGE))]
        await until(lambda: storage.of("t") == [1])
        writes.append(asyncio.ensure_future(c.write(1, LARGE)))
        await until(lambda: storage.of("t") == [1, 1])
        await until(lambda: len(b.topics.get("t").uploads()) == 1)
        await c.ask(m.FetchOffsets(topic="t"))  # by its answer the failure has had its effect
        storage.refuses.set()
        outcomes = await asyncio.gather(*writes, return_exceptions=True)
        assert [type(each) for each in outcomes] == [MemqError, SequenceGapError]
        await until(lambda: nothing_is_lent(b))
        assert b.context.memory.used_bytes == 0
        assert storage.of("t") == [1, 1]
