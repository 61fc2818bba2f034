"""Uploads of Batches: attempts, their time, hedges, and what is given back when they fail."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from memq.broker.upload import Upload
from memq.core.clock import ClockReading
from memq.core.format.batch import BatchBuilder
from memq.core.wire import messages as m
from memq.core.write_partition import RingBatch
from memq.errors import MemqError, SequenceGapError, StorageError
from memq.runtime.hedging import MIN_KNOWN
from memq.runtime.system import SYSTEM
from memq.testing.storage import InMemoryStorage
from tests.integration.broker.support import TIMEOUT_S, GatedStorage, broker, client, until
from tests.unit.core.format.builders import add

DEADLINE_MS = 70_000


class Storage(InMemoryStorage):
    """A storage each attempt of which does what the test has in store for it.

    Attributes:
        plan: for each attempt an error, `None` to store, or an event to wait for first.
        times_s: how much time each attempt was given.
    """

    remote = True

    def __init__(self, *plan) -> None:
        super().__init__()
        self.plan = list(plan)
        self.times_s: list[float] = []
        self.passes = lambda: None

    def put(self, key, buffers, *, timeout_s):
        step = self.plan.pop(0) if self.plan else None
        self.times_s.append(timeout_s)
        self.passes()
        if isinstance(step, threading.Event):
            assert step.wait(TIMEOUT_S), "the test left it waiting"
        elif step is not None:
            raise step
        super().put(key, buffers, timeout_s=timeout_s)


def batch_of(b, deadline_ms: int = DEADLINE_MS) -> RingBatch:
    builder = BatchBuilder(b"schema", batch_id="b", topic="t", write_partition=0)
    add(builder, b"8 bytes.")
    batch = RingBatch("b", "s", ClockReading(0, 0), builder, key="k")
    batch.deadline_mono_ms = b.context.now().mono_ms + deadline_ms
    batch.sealed = builder.seal()
    return batch


@asynccontextmanager
async def storing(tmp_path, *plan, slots=2):
    """A broker whose clock stands still, and an upload; every turn is given back in the end."""
    storage = Storage(*plan)
    async with broker(tmp_path, storage=storage, upload_threads=slots) as b:
        clock = [b.context.now()]
        b.context.now = lambda: clock[0]
        mono_s = clock[0].mono_ms / 1000
        b.context.runtime = replace(
            SYSTEM, random=lambda: 0.0, mono_s=lambda: mono_s + clock[0].mono_ms / 1000
        )

        def pass_ms(ms):
            clock[0] = clock[0]._replace(mono_ms=clock[0].mono_ms + ms)

        b.pass_ms = pass_ms
        yield b, storage, Upload(batch_of(b), b.context)
        for _ in range(slots):
            assert not b.context.upload_slots.locked()
            await b.context.upload_slots.acquire()
        for _ in range(slots):
            b.context.upload_slots.release()
        assert not b.context.fatal_errors.failure.done()


@pytest.mark.parametrize("hedge_first", [False, True])
async def test_an_upload_is_over_when_each_of_its_threads_is(tmp_path, hedge_first) -> None:
    """Whichever of two attempts ends last: until then it reads the buffers, and stores the same."""
    gates = [threading.Event() for _ in range(2)]
    async with storing(tmp_path, *gates, slots=3) as (b, storage, upload):
        content = b"".join(upload._buffers)
        for _ in range(MIN_KNOWN):
            b.context.hedging.ended(
                b.context.hedging.began(upload._size_bytes), 0.0, succeeded=True
            )
        running = asyncio.ensure_future(upload.run())
        await until(lambda: len(storage.times_s) == 2)
        over = []
        order = [1, 0] if hedge_first else [0, 1]
        upload.when_over(lambda: over.append(1))
        gates[order[0]].set()
        await running
        upload._batch.sealed.buffers.clear()  # the Batch forgets them once it is stored
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert (over, len(upload.running())) == ([], 1)
        gates[order[1]].set()
        await until(lambda: over)
        assert [thread.exception() for thread in upload._threads] == [None, None]
        assert storage.get("k") == content
        assert over == [1]
        upload.when_over(lambda: over.append(2))
        assert over == [1, 2], "nothing is under way: at once"


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
