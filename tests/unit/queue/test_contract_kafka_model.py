"""The queue contract, by the queue in Kafka on a model of Kafka."""

import random

import pytest

from tests.contracts.queue import *  # noqa: F403 - the suite is the module
from tests.fakes.kafka import InMemoryKafka


@pytest.fixture(params=["at once", "after a while", "told late"])
def kafka(request):
    """A Kafka that has nothing: one that takes no time, one of which requests cross, and one that
    tells late, a few records at a time.
    """
    found = InMemoryKafka(rng=random.Random(request.param))
    if request.param != "at once":
        found.latency_s, found.marker_s = (0.0001, 0.003), (0.0001, 0.01)
    if request.param == "told late":
        found.told_s, found.cuts = (0.01, 0.1), 0.1
    return found


@pytest.fixture
async def queue(process):
    """An empty queue."""
    return await process("first")


@pytest.fixture
def next_process(process):
    """Another process on the same notifications, while the first one lives."""
    return lambda: process("second")
