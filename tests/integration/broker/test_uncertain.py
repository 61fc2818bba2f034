"""A publish of which nobody knows whether it took place."""

from __future__ import annotations

import asyncio

import pytest

from memq.errors import PublishUncertainError, QueueError
from memq.testing.queue import InMemoryQueue
from tests.integration.broker.support import broker, client, until
from tests.integration.broker.test_writes import notifications


class Outage(InMemoryQueue):
    """Publishes once with or without effect, says neither, and can then not be asked for a time."""

    def __init__(self, published: bool) -> None:
        super().__init__()
        self.down = False
        self.asked = 0
        self._published = published

    async def publish(self, topic, write_partition, publications):
        if topic != "t" or self.asked:
            return await super().publish(topic, write_partition, publications)
        if self._published:
            await super().publish(topic, write_partition, publications)
        self.down = True
        raise PublishUncertainError("who knows")

    async def fence(self, topic, write_partition):
        if self.down:
            self.asked += 1
            raise QueueError("down")
        await super().fence(topic, write_partition)


@pytest.mark.parametrize("published", [True, False])
async def test_uncertain_publish_is_found_again_after_a_long_outage(tmp_path, published) -> None:
    """However long the queue could not be asked, what it holds is not published a second time."""
    queue = Outage(published)
    async with broker(tmp_path, queue=queue) as b, client(b) as c:
        await c.create()
        now = b.services.now
        writing = asyncio.ensure_future(c.write(0))
        await until(lambda: queue.asked)
        b.services.now = lambda: now()._replace(wall_ms=now().wall_ms + 3_600_000)
        queue.down = False
        assert (await writing).offset == 0
        assert len(await notifications(c)) == 1
