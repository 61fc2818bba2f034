"""A publish of which nobody knows whether it took place."""

from __future__ import annotations

import asyncio
import threading

import pytest

from memq.core.write_partition_effects import BatchState
from memq.errors import PublishUncertainError, QueueError, QueueFailedError
from memq.testing.storage import InMemoryStorage
from tests.fakes.queue import InMemoryQueue
from tests.integration.broker.support import broker, client, until
from tests.integration.broker.test_clocks import Machine
from tests.integration.broker.test_writes import notifications


class Outage(InMemoryQueue):
    """Publishes once with or without effect, says neither, and can then not be asked for a time."""

    def __init__(self, published: bool) -> None:
        super().__init__()
        self.down = False
        self.asked = 0
        self._published = published

    async def publish(self, topic, write_partition, publications):
        if not topic.startswith("t.") or self.asked:
            return await super().publish(topic, write_partition, publications)
        if self._published:
            await super().publish(topic, write_partition, publications)
        self.down = True
        raise PublishUncertainError("who knows")

    async def fence(self, topic, *write_partitions, again=False):
        if self.down:
            self.asked += 1
            raise QueueError("down")
        await super().fence(topic, *write_partitions, again=again)


class Together(InMemoryStorage):
    """The first Batch is stored only when `first` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.puts = 0
        self.first = threading.Event()

    def put(self, key, buffers, *, timeout_s):
        self.puts += 1
        if self.puts == 1:
            assert self.first.wait(20)
        super().put(key, buffers, timeout_s=timeout_s)


async def test_every_batch_of_an_uncertain_publish_is_found_again(tmp_path) -> None:
    """Batches that were sealed long before the last one of the call are looked for as well."""
    machine, queue, storage = Machine(), Outage(published=True), Together()
    async with (
        broker(tmp_path, queue=queue, storage=storage, runtime=machine.runtime) as b,
        client(b) as c,
    ):
        await c.create(batch_messages=1, upload_deadline="2m")
        writing = [asyncio.ensure_future(c.write(0))]
        await until(lambda: storage.puts)
        machine.pass_time(90)
        writing.append(asyncio.ensure_future(c.write(1)))
        ring = b.topics.get("t").partitions[0].processor._ring
        await until(lambda: [batch.state for batch in ring][1:] == [BatchState.STORED])
        storage.first.set()  # now both are published in one call
        await until(lambda: queue.asked)
        queue.down = False
        assert [answer.offset for answer in await asyncio.gather(*writing)] == [0, 1]
        assert len(await notifications(c)) == 2


class Refusing(InMemoryQueue):
    """Takes nothing of the topic, for a reason that stays; counts how often it is asked."""

    refused = 0

    async def publish(self, topic, write_partition, publications):
        if topic.startswith("t."):
            self.refused += 1
            raise QueueFailedError("not authorised")
        return await super().publish(topic, write_partition, publications)


async def test_what_will_not_pass_is_answered_at_once(tmp_path) -> None:
    """A refusal that stays is told when it comes, not when the Batch's deadline does."""
    machine, queue = Machine(), Refusing()
    async with broker(tmp_path, queue=queue, runtime=machine.runtime) as b, client(b) as c:
        await c.create(upload_deadline="10m", batch_age="1ms")
        for number in (1, 2):
            with pytest.raises(QueueFailedError, match="not authorised"):
                await c.write(0)
            assert queue.refused == number
        assert b.topics.get("t").partitions[0].processor.idle
