"""Uploads of Batches: attempts, their time, hedges, and what is given back when they fail."""

import asyncio
import gc
import itertools
import logging
import threading
from collections import Counter
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
from tests.integration.broker.support import TIMEOUT_S, GatedStorage, broker, client, turns, until
from tests.unit.core.format.builders import add


class Gated(InMemoryStorage):
    """A storage each attempt of which waits for its gate."""

    remote = True

    def __init__(self) -> None:
        super().__init__()
        self.gates = [threading.Event() for _ in range(2)]
        self.attempts = itertools.count()

    def put(self, key, buffers, *, timeout_s):
        assert self.gates[next(self.attempts)].wait(TIMEOUT_S), "the test left it waiting"
        super().put(key, buffers, timeout_s=timeout_s)


@pytest.mark.parametrize("hedge_first", [False, True])
async def test_an_upload_is_over_when_each_of_its_threads_is(tmp_path, hedge_first) -> None:
    """Whichever of two attempts ends last: until then it reads the buffers, and stores the same."""
    storage = Gated()
    async with broker(tmp_path, storage=storage, upload_threads=3) as b:
        builder = BatchBuilder(b"schema", batch_id="b", topic="t", write_partition=0)
        add(builder, b"8 bytes.")
        batch = RingBatch("b", "s", ClockReading(0, 0), builder, key="k")
        batch.deadline_mono_ms = b.context.now().mono_ms + 70_000
        batch.sealed = builder.seal()
        content = b"".join(batch.sealed.buffers)
        hedging, upload = b.context.hedging, Upload(batch, b.context, "events")
        for _ in range(MIN_KNOWN):
            hedging.ended(hedging.began(batch.sealed.size_bytes), 0.0, succeeded=True)
        running = asyncio.ensure_future(upload.run())
        await until(lambda: len(upload.running()) == 2)
        over = []
        upload.when_over(lambda: over.append(1))
        first, last = storage.gates[::-1] if hedge_first else storage.gates
        first.set()
        await running
        batch.sealed.buffers.clear()  # the Batch forgets them once it is stored
        await until(lambda: len(upload.running()) == 1)
        await turns()
        assert over == []
        last.set()
        await until(lambda: over)
        assert [thread.exception() for thread in upload._threads] == [None, None]
        assert storage.get("k") == content
        assert over == [1]
        upload.when_over(lambda: over.append(2))
        assert over == [1, 2], "nothing is under way: at once"
        for _ in range(3):
            assert not b.context.upload_slots.locked()
            await b.context.upload_slots.acquire()


async def test_a_put_that_hangs_past_its_deadline_keeps_its_memory_until_it_ends(tmp_path) -> None:
    """The Messages fail in time; what a thread still reads is charged until the thread is done."""
    storage = GatedStorage()
    async with broker(tmp_path, storage=storage, upload_threads=1) as b, client(b) as c:
        await c.create("u", batch_messages=1, upload_deadline="100ms")
        await c.create(batch_messages=1, upload_deadline="500ms")
        storage.gate.clear()
        writes = [asyncio.ensure_future(c.write(0))]
        await until(b.topics.get("t").uploads)
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
    """Refuses the first Batch for good, once it is told to, and others once each."""

    def __init__(self) -> None:
        super().__init__()
        self.attempts: Counter[str] = Counter()
        self.refuses = threading.Event()

    def put(self, key, buffers, *, timeout_s):
        self.attempts[key] += 1
        if len(self.attempts) == 1:
            assert self.refuses.wait(TIMEOUT_S), "the test left the first one waiting"
            raise MemqError("never")
        if self.attempts[key] == 1:
            raise StorageError("once more, perhaps")
        super().put(key, buffers, timeout_s=timeout_s)


LARGE = bytes(1 << 20)  # its memory is lent by the broker, which counts what is lent


def nothing_is_lent(b):
    gc.collect()  # an error knows all that its callers knew
    return "| 0 blocks lent |" in repr(b.context.memory)


async def test_a_batch_that_was_taken_along_is_not_tried_again(tmp_path, caplog) -> None:
    """An upload that waits to try again ends with its Batch, and its bytes are let go of."""
    caplog.set_level(logging.CRITICAL)
    storage = Refusing()
    patient = replace(SYSTEM, random=lambda: 100.0)  # the longest back-off, and far longer
    async with broker(tmp_path, storage=storage, runtime=patient) as b, client(b) as c:
        await c.create(ordering="producer", batch_messages=1)
        writes = [asyncio.ensure_future(c.write(0, LARGE))]
        await until(lambda: len(storage.attempts) == 1)
        writes.append(asyncio.ensure_future(c.write(1, LARGE)))
        await until(lambda: len(storage.attempts) == 2)
        await until(lambda: len(b.topics.get("t").uploads()) == 1)
        await c.ask(m.FetchOffsets(topic="t"))  # by its answer the failure has had its effect
        storage.refuses.set()
        outcomes = await asyncio.gather(*writes, return_exceptions=True)
        assert [type(each) for each in outcomes] == [MemqError, SequenceGapError]
        await until(lambda: nothing_is_lent(b))
        assert b.context.memory.used_bytes == 0
        assert [*storage.attempts.values()] == [1, 1]
