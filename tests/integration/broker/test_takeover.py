"""What a broker knows of what was published before it."""

from __future__ import annotations

import dataclasses

import pytest

from memq.broker.takeover import take_over
from memq.testing.queue import InMemoryQueue
from memq.testing.storage import InMemoryStorage
from tests.integration.broker.support import broker, client
from tests.integration.broker.test_clocks import Machine

TOPIC = {"dedup_window": "1h", "batch_messages": 1, "read_partitions": 4}


@pytest.mark.parametrize("ordering", ["none", "producer"])
async def test_every_message_of_the_window_is_known(tmp_path, ordering) -> None:
    """Whichever read partition it is in, and however long ago within the window, it is a repeat."""
    machine, queue, storage = Machine(), InMemoryQueue(), InMemoryStorage()
    seams = {"storage": storage, "runtime": machine.runtime}
    async with broker(tmp_path, queue=queue, **seams) as b, client(b) as c:
        await c.create(**TOPIC, ordering=ordering)
        schema_id = c.schema_id
        for producer in "abcdefgh":
            await c.write(0, producer_id=producer)
            machine.pass_time(440)
        successor = queue.another_process()
    async with broker(tmp_path, queue=successor, **seams) as b, client(b) as c:
        c.schema_id = schema_id
        for producer in "abcdefgh":
            assert (await c.write(0, producer_id=producer)).duplicate


class Overtaken(InMemoryQueue):
    """The owner before publishes once more at the last moment, when it is about to be fenced."""

    async def fence(self, topic, *write_partitions, again=False):
        late, self.late = self.late, None
        if late is not None:
            await late()
        await super().fence(topic, *write_partitions, again=again)


async def test_what_is_published_up_to_the_fence_is_known(tmp_path) -> None:
    """A take-over looks only after the owner before can publish no more."""
    machine, queue = Machine(), InMemoryQueue()
    async with broker(tmp_path, queue=queue, runtime=machine.runtime) as b, client(b) as c:
        await c.create(**TOPIC)
        await c.write(0)
        topic = b.topics.get("t").topic
        successor = Overtaken()
        successor._attach(queue._shared)
        successor.late = lambda: c.write(1)
        context = dataclasses.replace(b.context, queue=successor)
        window = (await take_over(topic, range(1), context))[0].window
        await successor.close()
        assert window.is_published("p", 0, 0)
        assert window.is_published("p", 0, 1)


async def test_many_gaps_that_never_were_do_not_settle_anything(tmp_path, monkeypatch) -> None:
    """A producer without gaps has none after a restart, though each read partition shows many."""
    monkeypatch.setattr("memq.core.deduplication.MAX_INTERVALS", 4)
    queue, storage = InMemoryQueue(), InMemoryStorage()
    async with broker(tmp_path, queue=queue, storage=storage) as b, client(b) as c:
        await c.create(**TOPIC)
        schema_id = c.schema_id
        for sequence in [*range(40), 41]:
            await c.write(sequence)
        successor = queue.another_process()
    async with broker(tmp_path, queue=successor, storage=storage) as b, client(b) as c:
        c.schema_id = schema_id
        for sequence in range(42):
            assert (await c.write(sequence)).duplicate == (sequence != 40)


async def test_batches_of_a_later_owner_sort_after_those_of_the_one_before(tmp_path) -> None:
    """Also when its running time is behind, as that of another broker of a cluster may be."""
    ahead, behind, queue, storage = Machine(), Machine(), InMemoryQueue(), InMemoryStorage()
    seams = {"storage": storage}
    async with broker(tmp_path, queue=queue, runtime=ahead.runtime, **seams) as b, client(b) as c:
        await c.create(**TOPIC)
        ahead.pass_time(1_000)
        schema_id, before = c.schema_id, (await c.write(0)).batch_id
        successor = queue.another_process()
    successor.times = InMemoryQueue().times  # as if nothing had been saved
    async with (
        broker(tmp_path, queue=successor, runtime=behind.runtime, **seams) as b,
        client(b) as c,
    ):
        c.schema_id = schema_id
        after = [(await c.write(sequence)).batch_id for sequence in (1, 2)]
    assert sorted([*after, before]) == [before, *after]
