"""Settings of the tests of the Airflow provider against brokers."""

import pytest

import tests.unit.airflow.conftest  # noqa: F401 - keeps Airflow out of the user's own folder
from memq import AdminClient, Producer
from memq.storage.local import LocalStorage
from memq.testing.broker import BrokerProcess
from tests.fakes.spark_submit import closed_pipes
from tests.integration.airflow.here import World
from tests.integration.broker.support import broker as running_broker
from tests.integration.broker.support import client


@pytest.fixture(autouse=True)
def _pipes(monkeypatch):
    with closed_pipes(monkeypatch):
        yield


@pytest.fixture
async def here(tmp_path, monkeypatch):
    """A broker in this process with a topic, and Airflow's memory beside it."""
    storage = LocalStorage(tmp_path / "objects")  # where the programs of tasks can read it too
    async with (
        running_broker(tmp_path / "data", storage=storage) as running,
        client(running) as writer,
    ):
        monkeypatch.setenv("AIRFLOW_CONN_MEMQ_DEFAULT", f"memq://{running.address}")
        world = World(running, writer)
        await world.create()
        yield world


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    """A broker that the connection names.

    Its topic `clicks` has one read partition, of four Batches; each has one record, which says its
    offset.
    """
    with (
        BrokerProcess(tmp_path_factory.mktemp("broker")) as process,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("AIRFLOW_CONN_MEMQ_DEFAULT", f"memq://{process.address}")
        with AdminClient(process.address) as admin:
            admin.create_topic("clicks", batch_age="10ms")
        with Producer(process.address, topic="clicks", acks="all") as producer:
            for number in range(4):
                producer.write(b"value %d" % number)
                producer.flush(timeout=30)
        yield process
