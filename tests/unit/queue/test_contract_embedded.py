"""The queue contract, in files."""

import pytest

from memq.queue.embedded.queue import EmbeddedQueue
from tests.contracts.queue import *  # noqa: F403 - the suite is the module


@pytest.fixture
async def queue(tmp_path):
    """An empty queue in a directory of its own."""
    found = EmbeddedQueue(tmp_path / "queue")
    yield found
    await found.close()


@pytest.fixture
async def next_process(queue, tmp_path):
    """The queue as it is found after the process that had it has closed it."""
    opened = []

    async def take_over():
        await queue.close()
        opened.append(EmbeddedQueue(tmp_path / "queue"))
        return opened[-1]

    yield take_over
    for successor in opened:
        await successor.close()
