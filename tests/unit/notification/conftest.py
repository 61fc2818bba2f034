"""Queues in a model of Kafka for the tests of this folder."""

from __future__ import annotations

import pytest

from memq.core.notification.kafka.queue import KafkaQueue

# Assertions inside the shared contract are explained like those of a test module.
pytest.register_assert_rewrite("tests.contracts.queue")


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
