"""Queues in Kafka for the tests of this folder."""

import secrets

import pytest

from memq.queue.kafka.client import log_failure
from memq.queue.kafka.confluent import ConfluentClient
from memq.queue.kafka.queue import KafkaQueue
from memq.runtime.system import SYSTEM

pytest.register_assert_rewrite("tests.contracts.queue")


@pytest.fixture
def cluster():
    """Name of a cluster that has nothing in Kafka."""
    return f"c-{secrets.token_hex(6)}"


@pytest.fixture
async def process(kafka_server, cluster):
    """Gives the queue of the cluster as another process has it; all are closed in the end."""
    opened = []

    async def start(broker_id="b", port=None, on_failure=log_failure, **options):
        address = f"127.0.0.1:{port or kafka_server.port}"
        client = ConfluentClient(address, options, SYSTEM, on_failure)
        found = KafkaQueue(client, cluster_id=cluster, broker_id=broker_id, on_failure=on_failure)
        opened.append(found)
        await found.start()
        return found

    yield start
    for queue in opened:
        await queue.close()
