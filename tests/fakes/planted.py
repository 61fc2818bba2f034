"""Storage and queues with faults: such as the broker must withstand, and bugs that must be found.

The *flaky* ones stay within the contract of their seam: slow, refusing, or leaving open what
happened. The *planted* ones break it, each in one way, as a bug in the broker or below it would.
They show that the checker finds such bugs.
"""

import itertools
import os
from pathlib import Path

from memq.broker.access_control import FILE
from memq.queue.embedded.queue import EmbeddedQueue
from memq.storage.local import LocalStorage
from tests.fakes.faults import Fault
from tests.fakes.faulty_queue import FaultyQueue
from tests.fakes.faulty_storage import FaultyStorage

SLOW_MS = (0, 1, 5, 30)  # longer than most Batches are open: puts overtake each other
FLAKY_STORAGE = (
    Fault("put", "delay", times=None, delays_ms=SLOW_MS),
    Fault("put", "fail", times=None, probability=1 / 16),
    Fault("put", "lose_answer", times=None, probability=1 / 16),
)
FLAKY_QUEUE = (
    Fault("publish", "delay", times=None, delays_ms=SLOW_MS),
    Fault("publish", "fail", times=None, probability=1 / 12),
    Fault("publish", "uncertain", times=None, probability=1 / 12),
    Fault("publish", "partial", times=None, probability=1 / 12),
    Fault("publish", "lose_answer", times=None, probability=1 / 12),
)


def flaky_storage(root: Path) -> FaultyStorage:
    """Puts take uneven times and fail now and then, with or without the object stored."""
    return FaultyStorage(LocalStorage(root), FLAKY_STORAGE, seed=os.getpid())


def flaky_queue(directory: Path) -> FaultyQueue:
    """A publish in three fails: refused, or uncertain, with all, some or none published."""
    return FaultyQueue(EmbeddedQueue(directory), FLAKY_QUEUE, seed=os.getpid())


# -- planted bugs ---------------------------------------------------------------------------

EACH = 7  # call that a planted bug strikes, so that there are sound ones around it


class _Struck:
    """Says which calls are struck."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._calls = itertools.count(1)

    def _strikes(self) -> bool:
        return next(self._calls) % EACH == 0


class DroppingStorage(_Struck, LocalStorage):
    """Says of a put that it is durable, and has stored nothing: an ack before the put."""

    def put(self, key, buffers, *, timeout_s):
        if not self._strikes():
            super().put(key, buffers, timeout_s=timeout_s)


class DoublingQueue(_Struck, EmbeddedQueue):
    """Publishes a Batch twice, as a retry without a look into the queue would."""

    async def publish(self, topic, write_partition, publications):
        offsets = await super().publish(topic, write_partition, publications)
        if self._strikes():
            await super().publish(topic, write_partition, publications)
        return offsets


class ForgettingQueue(EmbeddedQueue):
    """Users and rules are gone when a broker starts, which were kept in memory only."""

    def __init__(self, folder: Path) -> None:
        (folder.parent / FILE).unlink(missing_ok=True)
        super().__init__(folder)


class LosingQueue(_Struck, EmbeddedQueue):
    """Acks a publish that it keeps in memory only, so that the next life has lost it."""

    async def publish(self, topic, write_partition, publications):
        if self._strikes():
            _, end = await self.offsets(topic, publications[0].partition)
            return [end] * len(publications)
        return await super().publish(topic, write_partition, publications)
