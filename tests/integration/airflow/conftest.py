"""Settings of the tests of the Airflow provider against brokers."""

from __future__ import annotations

import pytest

import tests.unit.airflow.conftest  # noqa: F401 - keeps Airflow out of the user's own folder
from memq import AdminClient, Producer
from memq.testing.broker import BrokerProcess
from tests.fakes.spark_submit import closed_pipes


@pytest.fixture(autouse=True)
def _pipes(monkeypatch):
    with closed_pipes(monkeypatch):
        yield


@pytest.fixture(scope="module")
def clicks(tmp_path_factory):
    """Address of a broker whose topic `clicks` has one read partition, of four Batches.

    Each Batch has one record, which is its offset.
    """
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as broker:
        with AdminClient(broker.address) as admin:
            admin.create_topic("clicks", batch_age="10ms")
        with Producer(broker.address, topic="clicks", acks="all") as producer:
            for number in range(4):
                producer.write(b"%d" % number)
                producer.flush(timeout=30)
        yield broker.address
