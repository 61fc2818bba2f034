"""One Spark and one broker for all of these tests: both take seconds to start."""

import itertools
import logging
import os
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from memq import AdminClient
from memq.spark import MemqDataSource
from memq.testing.broker import BrokerProcess

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent
TASK_ATTEMPTS = 4  # as on a cluster; without, local Spark fails at the first

SPARK_CONFIG = {
    "spark.master": f"local[2,{TASK_ATTEMPTS}]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.log.level": "ERROR",
}


def pytest_collection_modifyitems(items):
    """PySpark leaves sockets and files to the garbage collector."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(
                pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
            )


def builder():
    """Of a local Spark; its workers import this tree."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    return SparkSession.builder.config(map=SPARK_CONFIG)


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    """The one Spark of these tests, with the data source, and tables in a folder."""
    warehouse = str(tmp_path_factory.mktemp("warehouse"))
    session = builder().config("spark.sql.warehouse.dir", warehouse).getOrCreate()
    session.dataSource.register(MemqDataSource)
    yield session
    session.stop()
    # Its last connections are closed when the interpreter ends, and pytest's streams are gone.
    logging.getLogger("py4j").setLevel(logging.WARNING)


@pytest.fixture(scope="session")
def broker(tmp_path_factory):
    """A broker on the embedded defaults."""
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as running:
        yield running


_names = (f"topic-{number}" for number in itertools.count())


@pytest.fixture
def make_topic(broker):
    """Makes a topic of its own; returns its name."""

    def make(**options):
        name = next(_names)
        with AdminClient(broker.address) as admin:
            admin.create_topic(name, **{"batch_age": "10ms"} | options)
        return name

    return make
