"""What a broker that drains still answers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from memq.core.wire import messages as m
from tests.integration.broker.support import GatedStorage, broker, client, until

if TYPE_CHECKING:
    from memq.testing.storage import InMemoryStorage


async def test_metadata_is_answered_while_the_broker_drains(tmp_path) -> None:
    """A client that asks where to go, while what was accepted is being stored, is told."""
    storage: InMemoryStorage = GatedStorage()
    async with broker(tmp_path, storage=storage) as b, client(b) as c:
        await c.create()
        address = b.address
        storage.gate.clear()
        writing = asyncio.ensure_future(c.write(0))
        await until(lambda: b.context.memory.used_bytes > 0)
        stopping = asyncio.ensure_future(b.stop())
        await until(lambda: not b.context.ready)
        answer = await c.ask(m.Metadata(topics=["t"]))
        storage.gate.set()
        assert [each.address for each in answer.brokers] == [address]
        assert answer.topics[0].hosts == [address]
        assert (await writing).offset == 0
        assert await stopping is True
