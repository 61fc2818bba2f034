"""A broker in the test process whose Batches are real files, one Message each."""

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

from memq.client.consumer.consumer import AsyncConsumer
from memq.core.notification import decode_notification
from memq.core.queue import Publication
from memq.storage.local import LocalStorage
from tests.fakes.queue import InMemoryQueue
from tests.integration.broker.support import broker, client

TIMEOUT_S = 20.0


async def queue_topic(queue, topic="t"):
    """The topic of the queue that holds the topic id that there is."""
    (found,) = [name for name in await queue.topics() if name.rpartition(".")[0] == topic]
    return found


class World:
    """A broker with a topic `t`, a client that writes to it, and what is behind it.

    Attributes:
        sent: values of each Message, by sequence.
    """

    def __init__(self, running, writer, queue, info):
        self.broker, self.writer, self.queue, self.info = running, writer, queue, info
        self.queue_topic = f"t.{info.topic_id}"
        self.sent = []

    @property
    def address(self):
        """Of the broker."""
        return self.broker.address

    async def write(self, *values, **fields):
        """Publish a Batch of one Message; returns partition and offset."""
        answer = await self.writer.write(len(self.sent), *values, **fields)
        self.sent.append(values)
        return answer.partition, answer.offset

    async def write_to(self, partition, *values):
        """Publish Batches until one lands in this partition; returns its offset."""
        while True:
            found, offset = await self.write(*values)
            if found == partition:
                return offset

    async def notification(self, partition, offset):
        """What the queue says about a Batch."""
        entries = await self.queue.fetch(
            self.queue_topic, partition, offset, max_entries=1, max_bytes=1
        )
        return decode_notification(entries[0].payload)

    async def path(self, partition, offset):
        """File of a Batch."""
        return Path(urlsplit((await self.notification(partition, offset)).uri).path)

    async def publish(self, partition, payload):
        """Publish something beside the broker; returns its offset."""
        publication = Publication(partition, payload, 0)
        return (await self.queue.publish(self.queue_topic, 0, [publication]))[0]

    def consumer(self, **options):
        """A consumer of the topic."""
        return AsyncConsumer(self.address, topic="t", **options)


@asynccontextmanager
async def world(tmp_path, *, queue=None, config=None, **options):
    """A broker with a topic; each acked write is a Batch of its own."""
    queue = queue or InMemoryQueue()
    storage = LocalStorage(tmp_path / "objects")
    async with (
        broker(tmp_path / "data", storage=storage, queue=queue, **config or {}) as running,
        client(running) as writer,
    ):
        info = await writer.create("t", **({"batch_age": "1ms"} | options))
        yield World(running, writer, queue, info)


async def forever(consumer):
    """Poll until something is raised; a Batch must not come."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            assert await consumer.poll(0.1) is None


async def take(consumer, count):
    """The next Batches that a consumer hands out."""
    found = []
    async with asyncio.timeout(TIMEOUT_S):
        while len(found) < count:
            batch = await consumer.poll(TIMEOUT_S)
            assert batch is not None
            found.append(batch)
    return found


async def drain(consumer):
    """What a consumer hands out until it has no lag."""
    found = []
    async with asyncio.timeout(TIMEOUT_S):
        while any((await consumer.lag()).values()):
            batch = await consumer.poll(0.05)
            found += [batch] if batch else []
    return found


def values(batches):
    """The values in some Batches, in order."""
    return [message.value for batch in batches for message in batch]
