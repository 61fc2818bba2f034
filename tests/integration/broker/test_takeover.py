"""What a broker knows of what was published before it."""

from __future__ import annotations

import pytest

from memq.testing.storage import InMemoryStorage
from tests.fakes.queue import InMemoryQueue
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
