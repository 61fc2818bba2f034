"""Settings of the Airflow tests, and a fixture that gives one a folder of DAGs."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from memq import AdminClient, Producer
from memq.testing.broker import BrokerProcess
from tests.harness.airflow.rest import BACKSTOP_S
from tests.harness.airflow.standalone import Airflow

# Airflow makes this folder when it is first imported: it must not be the one of the user.
if "AIRFLOW_HOME" not in os.environ:
    os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="airflow-")
    atexit.register(shutil.rmtree, os.environ["AIRFLOW_HOME"], ignore_errors=True)


def pytest_collection_modifyitems(items):
    """No test here is given up before its waits are, which end by what happens."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(2 * BACKSTOP_S))


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


@pytest.fixture(scope="session")
def start_airflow(tmp_path_factory):
    """Starts an Airflow with DAG files, given as texts by name; all are stopped at the end."""
    running: list[Airflow] = []

    def start(dag_files: dict[str, str], env: dict[str, str] | None = None) -> Airflow:
        folder = tmp_path_factory.mktemp("airflow")
        dags = folder / "dags"
        dags.mkdir()
        for name, text in dag_files.items():
            (dags / name).write_text(text)
        airflow = Airflow(folder / "home", dags=dags, env=env)
        airflow.start()
        running.append(airflow)
        return airflow

    yield start
    for airflow in running:
        airflow.stop()
