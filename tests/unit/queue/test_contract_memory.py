"""The queue contract, in memory."""

from __future__ import annotations

import pytest

from tests.contracts.queue import *  # noqa: F403 - the suite is the module
from tests.fakes.faulty_queue import FaultyQueue
from tests.fakes.queue import InMemoryQueue


@pytest.fixture
def memory():
    """Where the entries are, whoever asks for them."""
    return InMemoryQueue()


@pytest.fixture(params=["memory", "faulty without faults"])
async def queue(request, memory):
    """An empty queue; one that injects no faults is as good."""
    found = memory if request.param == "memory" else FaultyQueue(memory, [])
    yield found
    await found.close()


@pytest.fixture
def next_process(memory):
    """Another process on the same notifications, while the first one lives."""

    async def take_over():
        return memory.another_process()

    return take_over
