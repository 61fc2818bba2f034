"""Uploads that are made twice at a time."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from memq.core.hedging import MIN_KNOWN
from memq.errors import StorageError
from memq.testing.storage import InMemoryStorage
from tests.integration.broker.support import TIMEOUT_S, broker, client, until


class StallingStorage(InMemoryStorage):
    """A storage one attempt of which stalls, once it is told to.

    Attributes:
        stalls: set while the next attempt is to stall.
        stalled: set once it does.
        gate: lets it go on.
        fails: it fails then.
    """

    remote = True

    def __init__(self) -> None:
        super().__init__()
        self.attempts: Counter[str] = Counter()
        self.stalls, self.stalled, self.gate = (threading.Event() for _ in range(3))
        self.fails = self.hedge_fails = False

    def put(self, key, buffers, *, timeout_s):
        self.attempts[key] += 1
        if self.stalls.is_set():
            self.stalls.clear()
            self.stalled.set()
            assert self.gate.wait(TIMEOUT_S), "the test left it waiting"
            if self.fails:
                raise StorageError("it stalled, and failed")
        elif self.hedge_fails and self.attempts[key] == 2:
            raise StorageError("the hedge failed")
        super().put(key, buffers, timeout_s=timeout_s)


async def usual(c, count=MIN_KNOWN, first=0):
    """So many Batches that nothing happens to; by default the most of which none can be hedged."""
    for sequence in range(first, first + count):
        await c.write(sequence)
    return first + count


@pytest.mark.parametrize("fails", [False, True])
async def test_a_put_that_stalls_is_made_again_beside_it(tmp_path, fails):
    """The ack comes by the second attempt; what the first one comes to changes nothing."""
    storage = StallingStorage()
    storage.fails = fails
    async with broker(tmp_path, storage=storage) as b, client(b) as c:
        await c.create(batch_messages=1)
        following = await usual(c)
        storage.stalls.set()
        stalled = await c.write(following)
        assert storage.stalled.is_set()
        assert not storage.gate.is_set()
        assert (b.context.hedging.hedges, max(storage.attempts.values())) == (1, 2)
        assert b.context.memory.used_bytes > 0, "the first attempt still has the buffers"
        assert (await c.write(following + 1)).offset == stalled.offset + 1
        storage.gate.set()
        await until(lambda: b.context.memory.used_bytes == 0)
        assert len(list(storage.list(""))) == following + 2
        repeated = await c.write(following)
        assert (repeated.duplicate, repeated.offset) == (True, stalled.offset)
        assert not b.context.fatal_errors.failure.done()


class LateStorage(StallingStorage):
    """A storage that knows no conditional put; a hedge reads its buffers once the gate is open."""

    def put(self, key, buffers, *, timeout_s):
        self.attempts[key] += 1
        if self.stalls.is_set() and self.attempts[key] == 2:
            self.stalls.clear()
            self.stalled.set()
            assert self.gate.wait(TIMEOUT_S), "the test left it waiting"
        elif self.stalls.is_set():
            assert self.stalled.wait(TIMEOUT_S), "there was no hedge"
        with self._lock:
            self._objects[key] = b"".join(buffers), 0


async def test_a_hedge_that_comes_late_writes_the_same_bytes(tmp_path):
    """A hedge that reads its buffers after the ack does not replace the object by anything else."""
    storage = LateStorage()
    async with broker(tmp_path, storage=storage) as b, client(b) as c:
        await c.create(batch_messages=1)
        following = await usual(c)
        storage.stalls.set()
        await c.write(following)
        (key,) = [key for key, attempts in storage.attempts.items() if attempts == 2]
        stored = storage.get(key)
        storage.gate.set()
        await until(lambda: not b.topics.get("t").uploads())
        assert len(stored) > 0
        assert storage.get(key) == stored
