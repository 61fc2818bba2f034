"""Queues in a model of Kafka, and calls of any queue, for the tests of this folder."""

import asyncio
import random

import pytest

from memq.core.queue import Publication
from memq.queue.kafka.queue import KafkaQueue
from tests.fakes.kafka import InMemoryKafka

# Assertions inside the shared contract are explained like those of a test module.
pytest.register_assert_rewrite("tests.contracts.queue")


async def publish(queue, *payloads, write_partition=0, partition=0, topic="t"):
    """Publish payloads; gives their offsets."""
    publications = [Publication(partition, payload, 1) for payload in payloads]
    return await queue.publish(topic, write_partition, publications)


async def payloads(queue, partition=0, offset=None):
    """The payloads of a partition of "t" from an offset on; from its start, if none is given."""
    start, _ = await queue.offsets("t", partition)
    offset = start if offset is None else offset
    found = await queue.fetch("t", partition, offset, max_entries=10_000, max_bytes=1 << 30)
    return [entry.payload for entry in found]


@pytest.fixture
def kafka():
    """A Kafka that has nothing and takes no time."""
    return InMemoryKafka(rng=random.Random(1))


@pytest.fixture
async def process(kafka):
    """Gives the queue as another process has it; all are closed in the end."""
    opened = []

    async def start(broker_id="b", cluster_id="c", **options):
        client = kafka.client()
        opened.append(KafkaQueue(client, cluster_id=cluster_id, broker_id=broker_id, **options))
        await opened[-1].start()
        return opened[-1]

    yield start
    for queue in opened:
        await queue.close()


@pytest.fixture
async def queue(process):
    """A queue with the topic "t" of two read partitions, of which write partition 0 is owned."""
    found = await process()
    await found.create_topic("t", 2)
    await found.fence("t", 0, 1)
    return found


@pytest.fixture
async def unheard():
    """What the event loop was told of: errors that nobody has asked for."""
    found = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: found.append(context))
    return found
