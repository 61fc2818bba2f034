"""`MemqSparkConnectOperator` with a real server of Spark Connect."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pyspark
import pytest

from airflow_provider_memq.operators.memq import MemqSparkConnectOperator
from airflow_provider_memq.planning.ranges import range_key
from memq.core.ranges import OffsetRange
from tests.harness.airflow.rest import BACKSTOP_S, until
from tests.harness.airflow.standalone import ROOT
from tests.integration.airflow.event_store import EventStore
from tests.system.spark.conftest import SPARK_CONFIG

pytestmark = pytest.mark.timeout(2 * BACKSTOP_S)  # its waits end by what happens

TOPIC = "clicks"
START = Path(pyspark.__file__).parent / "sbin" / "start-connect-server.sh"
STOP_S = 30


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server of Spark Connect; its port."""
    folder = tmp_path_factory.mktemp("connect")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = SPARK_CONFIG | {
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.grpc.binding.address": "127.0.0.1",
    }
    environment = {
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_LOG_DIR": str(folder),
        "SPARK_PID_DIR": str(folder),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
    }
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [str(START), *(part for item in config.items() for part in ("--conf", "=".join(item)))],
            env=os.environ | environment,
            cwd=folder,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        until(lambda: process.poll() is not None or _answers(port), "a server")
        assert process.poll() is None, (folder / "log").read_text()
        yield port
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(STOP_S)


def _answers(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def operator(tmp_path, monkeypatch, broker, server):
    """Makes a task that runs a program by the server."""
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_CONNECT_DEFAULT", f"spark-connect://127.0.0.1:{server}")

    def make(application):
        return MemqSparkConnectOperator(
            task_id="process",
            topic=TOPIC,
            range_key=range_key(OffsetRange(0, 1, 3)),
            application=str(application),
            output_dir=str(tmp_path / "out"),
            env_vars={"PYTHONPATH": str(ROOT)},
        )

    return make


def test_a_range_is_written_by_a_server(operator):
    """The rows are those of the range, in one whole folder; nothing else is left."""
    result = EventStore().run(operator(ROOT / "spark_apps" / "range_to_parquet.py"))

    folder = Path(result["output"])
    rows = [v for f in folder.glob("*.parquet") for v in pq.ParquetFile(f).read()["value"]]
    assert sorted(value.as_py() for value in rows) == [b"value 1", b"value 2"]
    assert (result["start"], result["end"], result["records"]) == (1, 3, 2)
    assert [each.name for each in folder.parent.iterdir()] == [folder.name]
