"""Batches put into storage and queue without the broker: copies, gaps, and many of them."""

import asyncio
import time
from pathlib import Path
from urllib.parse import urlsplit

from memq import AdminClient
from memq.core.notification import Notification, encode_notification
from memq.core.queue import Publication
from memq.queue.embedded.queue import EmbeddedQueue
from memq.storage.local import LocalStorage
from memq.testing.broker import BrokerProcess
from tests.topics.reading import queue_topic
from tests.unit.reading.batches import notify, seal


class Stored:
    """A broker of a test's own with a topic `t`, and what it stores.

    Args:
        folder: for all of its data.
        partitions: read partitions of the topic.
    """

    def __init__(self, folder, partitions=1):
        self.folder = folder
        self.broker = BrokerProcess(folder / "data")
        self.storage = LocalStorage(folder / "objects")
        with AdminClient(self.broker.address) as admin:
            admin.create_topic("t", read_partitions=partitions, batch_age="10ms")

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.broker.close()

    @property
    def address(self):
        return self.broker.address

    def batch(self, *messages, batch_id) -> Notification:
        """Store a Batch as an object; what the queue would say of it."""
        sealed = seal(*messages, batch_id=batch_id)
        self.storage.put(batch_id, sealed.buffers, timeout_s=10)
        return notify(sealed, uri=self.storage.uri(batch_id))

    def publish(self, *placed):
        """Publish pairs of read partition and notification, while the broker is down."""
        now_ms = int(time.time() * 1000)
        publications = [
            Publication(partition, encode_notification(notification), now_ms + number)
            for number, (partition, notification) in enumerate(placed)
        ]

        async def publish():
            queue = EmbeddedQueue(self.folder / "data" / "queue")
            try:
                topic = await queue_topic(queue)
                await queue.fence(topic, 0)
                await queue.publish(topic, 0, publications)
            finally:
                await queue.close()

        self.broker.terminate()
        asyncio.run(publish())
        self.broker.restart()

    def path(self, notification) -> Path:
        """File of a Batch."""
        return Path(urlsplit(notification.uri).path)


def change_byte(path, at):
    """Damage one byte of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 0x40
    path.write_bytes(data)
