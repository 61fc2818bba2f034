"""`MemqSparkConnectOperator` with a real server of Spark Connect."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.parquet as pq
import pyspark
import pytest
from airflow.sdk.exceptions import AirflowException

from airflow_provider_memq.operators.memq import MemqSparkConnectOperator
from airflow_provider_memq.ranges import range_key
from memq.core.ranges import OffsetRange
from memq.tables.check import check_table
from memq.tables.iceberg import open_table
from tests.harness.airflow.rest import until
from tests.harness.airflow.standalone import ROOT
from tests.integration.airflow.event_store import EventStore
from tests.integration.tables.lake import catalog_options
from tests.system.spark.conftest import SPARK_CONFIG

TOPIC = "clicks"
START = Path(pyspark.__file__).parent / "sbin" / "start-connect-server.sh"
STOP_S = 30

# Its task would take five minutes.
SLOW = """
import os, sys, time
from memq.spark.app import session

def slow(frames):
    with open({pid!r}, "w") as file:
        file.write(str(os.getpid()))
    time.sleep(300)
    yield from frames

spark = session("slow")
try:
    spark.range(1).mapInPandas(slow, "id long").collect()
finally:
    spark.stop()
"""


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
def operator(tmp_path, monkeypatch, clicks, server):
    """Makes a task that runs a program by the server."""
    monkeypatch.setenv("AIRFLOW_CONN_MEMQ_DEFAULT", f"memq://{clicks}")
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
    assert sorted(value.as_py() for value in rows) == [b"1", b"2"]
    assert (result["start"], result["end"], result["records"]) == (1, 3, 2)
    assert [each.name for each in folder.parent.iterdir()] == [folder.name]


@pytest.fixture
def by_server(clicks, server):
    """Runs one of our programs by the server, without `spark-submit`."""
    env = {"SPARK_REMOTE": f"sc://127.0.0.1:{server}", "MEMQ_BOOTSTRAP": clicks}

    def run(program, *arguments):
        done = subprocess.run(
            [sys.executable, "-m", f"memq.spark.apps.{program}", "--topic", TOPIC, *arguments],
            cwd=ROOT,
            env=os.environ | env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_a_range_gets_into_a_table_once_by_a_server(tmp_path, by_server):
    """Spark writes the files there, and the program commits them; a second one adds nothing."""
    options = catalog_options(tmp_path)
    places = {
        "--output": "local:lake.clicks",
        "--catalog-options": ",".join(f"{name}={value}" for name, value in options.items()),
        "--manifest": str(tmp_path / "m.json"),
    }
    wanted = ("--partition", "0", "--start", "1", "--end", "3", "--no-report")
    for _ in range(2):
        by_server("range_to_iceberg", *wanted, *(text for pair in places.items() for text in pair))

    table = open_table("local:lake.clicks", options)
    rows = table.load().scan().to_arrow()["value"].to_pylist()
    assert sorted(rows) == [b"1", b"2"]
    assert check_table(table).findings == []


def test_a_topic_is_compacted_and_audited_by_a_server(tmp_path, by_server):
    """The files have each record; every byte was looked at, in the server, and none is missing."""
    by_server("compact", "--output", f"{tmp_path}/compact", "--no-report")
    result = tmp_path / "result.json"
    by_server("audit_reconcile", "--deep", "--output", f"{tmp_path}/audit", "--result", str(result))

    files = (tmp_path / "compact").glob("memq_topic=*/*/*/memq_range=*/*.parquet")
    rows = [v for f in files for v in pq.ParquetFile(f).read()["value"].to_pylist()]
    assert sorted(rows) == [b"0", b"1", b"2", b"3"]
    (producer,) = json.loads(result.read_text())["producers"]
    assert (producer["stored_records"], producer["lost_records"]) == (4, 0)
    assert all(pq.read_table(tmp_path / "audit")["clean"].to_pylist())


def test_killing_the_task_ends_what_runs_in_the_server(tmp_path, operator):
    """The program ends, and the server ends the task that it was waiting for."""
    started, program = tmp_path / "pid", tmp_path / "slow.py"
    program.write_text(SLOW.format(pid=str(started)))
    task = operator(program)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(EventStore().run, task)
        pid = int(until(lambda: started.exists() and started.read_text(), "a task in the server"))
        assert _runs(pid)
        task.on_kill()
        with pytest.raises(AirflowException, match="ended with"):
            running.result()

    until(lambda: not _runs(pid), "the end of the task")


def _runs(pid):
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"
