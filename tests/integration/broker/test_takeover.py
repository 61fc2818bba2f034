"""What a broker knows of what was published before it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from memq.broker.context import SCAN_BYTES
from memq.broker.hosted_topic import take_over
from memq.core.clock import ClockReading
from memq.core.format.batch import ProducerRun
from memq.core.queue import QueueEntry
from memq.core.topic import TopicConfig
from memq.storage.keys import batch_id_at
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


class Published:
    """What a take-over asks of a broker, and what it is told; all of it in its order.

    Attributes:
        done: what it has done.
        pages: by read partition: batch id, write partition and when it was sealed.
    """

    clocks_differ_ms = 7

    def __init__(self, pages):
        self.done, self.pages, self.queue = [], pages, self

    def now(self):
        return ClockReading(mono_ms=10_000_000, wall_ms=1)

    async def fence(self, topic, *write_partitions):
        self.done.append(("fence", topic, write_partitions))

    async def notifications_since(self, topic, partition, since_ms, *, at_once_bytes):
        self.done.append(("read", topic, partition, since_ms, at_once_bytes))
        for offset, (batch_id, write_partition, sealed_ms) in enumerate(self.pages[partition]):
            self.done.append(batch_id)
            run = ProducerRun(
                producer_id="p", epoch=0, first=offset, last=offset, records=1, crc_sum=0
            )
            yield (
                QueueEntry(offset, 9_999_999, b""),
                SimpleNamespace(
                    batch_id=batch_id,
                    write_partition=write_partition,
                    sealed_ms=sealed_ms,
                    producers=[run],
                ),
            )


async def test_a_take_over_reads_what_was_published_in_its_order() -> None:
    """After the fence, since the window and what clocks may differ; each latest time is kept."""
    config = TopicConfig.create("t", read_partitions=2, write_partitions=3, dedup_window="1h")
    topic = SimpleNamespace(config=config, queue_topic="t.1")
    ids = [batch_id_at(ms, "0" * 16) for ms in range(6)]
    context = Published(
        [
            [(ids[0], 0, 50), (ids[2], 1, 90), (ids[5], 0, 30)],
            [(ids[1], 2, 99), (ids[3], 0, 40), (ids[4], 1, 10)],
        ]
    )
    rebuilt = await take_over(topic, [0, 1], context)
    since_ms = 10_000_000 - 3_600_000 - 7
    assert context.done[0] == ("fence", "t.1", (0, 1))
    assert [each for each in context.done if each[0] == "read"] == [
        ("read", "t.1", number, since_ms, SCAN_BYTES // 2) for number in (0, 1)
    ]
    assert sorted(rebuilt) == [0, 1]
    told = {n: (each.batches, each.written_ms, each.opened_ms) for n, each in rebuilt.items()}
    assert told == {0: (3, 50, 5), 1: (2, 90, 4)}
    context.done.clear()
    assert await take_over(topic, [], context) == {}
    assert context.done == []
