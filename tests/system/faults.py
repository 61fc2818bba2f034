"""Storage and queues with faults: such as the broker must withstand, and bugs that must be found.

The *flaky* ones stay within the contract of their seam: slow, refusing, or leaving open what
happened. The *planted* ones break it, each in one way, as a bug in the broker or below it would.
They show that the checker finds such bugs.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING

from memq.core.notification.embedded import EmbeddedQueue
from memq.core.storage.local import LocalStorage
from memq.errors import PublishUncertainError, QueueError, StorageError

if TYPE_CHECKING:
    from pathlib import Path

SLOW_S = 0.03  # up to this; longer than most Batches are open, so that puts overtake each other


class FlakyStorage(LocalStorage):
    """Puts take uneven times, and one in eight fails, half of those with the object stored."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._rng = random.Random()

    def put(self, key, buffers, *, timeout_s):
        time.sleep(self._rng.uniform(0, SLOW_S))
        fate = self._rng.randrange(16)
        if fate == 0:
            raise StorageError(f"{key}: refused by the test")
        super().put(key, buffers, timeout_s=timeout_s)
        if fate == 1:
            raise StorageError(f"{key}: stored, but the answer was lost by the test")


class FlakyQueue(EmbeddedQueue):
    """One publish in four fails: refused, or uncertain, half of those published."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._rng = random.Random()

    async def publish(self, topic, write_partition, publications):
        fate = self._rng.randrange(12)
        if fate == 0:
            raise QueueError("refused by the test")
        if fate == 1:
            raise PublishUncertainError("not published, says the test, but who knows")
        offsets = await super().publish(topic, write_partition, publications)
        if fate == 2:
            raise PublishUncertainError("published, says the test, but who knows")
        await asyncio.sleep(self._rng.uniform(0, SLOW_S / 3))
        return offsets


# -- planted bugs ---------------------------------------------------------------------------

DAY_S = 86_400
ONE_IN = 10  # Batches that a planted bug strikes, so that there are sound ones around it


class DroppingStorage(LocalStorage):
    """Says of a put that it is durable, and has stored nothing: an ack before the put."""

    def put(self, key, buffers, *, timeout_s):
        if random.randrange(ONE_IN):
            super().put(key, buffers, timeout_s=timeout_s)


class DamagingStorage(LocalStorage):
    """Stores a Batch with one bit flipped."""

    def put(self, key, buffers, *, timeout_s):
        content = bytearray(b"".join(buffers))
        if not random.randrange(ONE_IN):
            content[random.randrange(len(content))] ^= 1 << random.randrange(8)
        super().put(key, [content], timeout_s=timeout_s)


class SwappingStorage(LocalStorage):
    """Stores a Batch of before under the key of a new one."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._before = None

    def put(self, key, buffers, *, timeout_s):
        if self._before is not None and not random.randrange(ONE_IN):
            buffers = self._before
        self._before = [b"".join(buffers)]
        super().put(key, buffers, timeout_s=timeout_s)


class DoublingQueue(EmbeddedQueue):
    """Publishes a Batch twice, as a retry without a look into the queue would."""

    async def publish(self, topic, write_partition, publications):
        offsets = await super().publish(topic, write_partition, publications)
        if not random.randrange(ONE_IN):
            await super().publish(topic, write_partition, publications)
        return offsets


class LosingQueue(EmbeddedQueue):
    """Acks a publish that it keeps in memory only, so that the next life has lost it."""

    async def publish(self, topic, write_partition, publications):
        if not random.randrange(ONE_IN):
            _, end = await self.offsets(topic, publications[0].partition)
            return [end] * len(publications)
        return await super().publish(topic, write_partition, publications)


class ReversingQueue(EmbeddedQueue):
    """Publishes Batches that were stored in the meantime in the wrong order."""

    async def publish(self, topic, write_partition, publications):
        offsets = await super().publish(topic, write_partition, publications[::-1])
        return offsets[::-1]


class ForgettingQueue(EmbeddedQueue):
    """Hides from a broker that takes over what was published before: it forgets what it acked."""

    async def offset_at(self, topic, partition, timestamp_ms):
        if timestamp_ms < (time.time() - DAY_S) * 1_000:  # retention asks; leave it alone
            return await super().offset_at(topic, partition, timestamp_ms)
        _, end = await self.offsets(topic, partition)
        return end


class ForgettingCommits(EmbeddedQueue):
    """Acks a commit that it does not store."""

    async def commit(self, group, topic, offsets):
        if random.randrange(ONE_IN):
            await super().commit(group, topic, offsets)
