"""The queue contract, in Kafka."""

import pytest

from tests.contracts.queue import *  # noqa: F403 - the suite is the module


@pytest.fixture
async def queue(process):
    """An empty queue."""
    return await process("first")


@pytest.fixture
def next_process(process):
    """Another process on the same notifications, while the first one lives."""
    return lambda: process("second")
