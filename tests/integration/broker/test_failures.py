"""Batches that fail, and those that they take along."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

import pytest

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
        await c.create(batch_messages=1, upload_deadline="100ms")
        storage.gate.clear()
        writes = [asyncio.ensure_future(c.write(sequence)) for sequence in range(2)]
        outcomes = await asyncio.gather(*writes, return_exceptions=True)
        assert [type(each) for each in outcomes] == [StorageError, StorageError]
        assert "the attempt still hangs" in str(outcomes[0])
        assert "its turn did not come within its deadline" in str(outcomes[1])
        _, body = c.message(0)
        assert b.context.memory.used_bytes == len(body), "of the second nobody has the bytes"
        storage.gate.set()
        await until(lambda: b.context.memory.used_bytes == 0)
        assert (await c.write(2)).offset == 0
