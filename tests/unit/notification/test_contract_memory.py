"""The queue contract, in memory."""

from __future__ import annotations

import pytest

from memq.testing import InMemoryQueue
from tests.contracts.queue import *  # noqa: F403 - the suite is the module


@pytest.fixture
async def queue():
    """An empty queue."""
    found = InMemoryQueue()
    yield found
    await found.close()


@pytest.fixture
def next_process(queue):
    """Another process on the same notifications, while the first one lives."""

    async def take_over():
        return queue.another_process()

    return take_over
