"""Lineage of Airflow and of Spark, told by their own integrations, in one graph."""

from __future__ import annotations

import json
import os
import subprocess
from typing import NamedTuple

import pytest

from airflow_provider_memq.lineage import name_of_folder
from airflow_provider_memq.ranges import range_key
from memq import AdminClient, Producer
from memq.core.ranges import OffsetRange
from memq.testing.broker import BrokerProcess
from tests.harness.airflow.standalone import BIN, ROOT
from tests.unit.airflow.test_lineage import FOLDERS

TOPIC = "clicks"
RECORDS = 5

DAG_FILE = """
from airflow.sdk import DAG
from airflow_provider_memq.operators.memq import MemqAuditOperator, MemqSparkSubmitOperator

with DAG("lineage", schedule=None):
    process = MemqSparkSubmitOperator(
        task_id="process",
        topic={topic!r},
        application={application!r},
        output_dir={output!r},
        range_key={key!r},
        default_master="local[1]",
        conf={conf!r},
        openlineage_inject_parent_job_info=True,
    )
    process >> MemqAuditOperator(task_id="audit", topic={topic!r}, last="1h", allow_partly=True)
"""

# Another team's job, which knows nothing of MemQ. What Spark calls folders, it asks Spark.
READER = """
import json
import sys

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("reader").getOrCreate()
spark.read.parquet(sys.argv[1]).select("value").write.parquet(sys.argv[2])
names = spark._jvm.io.openlineage.client.utils.filesystem.FilesystemDatasetUtils
uri = spark._jvm.java.net.URI
found = {each: names.fromLocation(uri(each)) for each in json.loads(sys.argv[3])}
print("NAMES", json.dumps({k: [v.getNamespace(), v.getName()] for k, v in found.items()}))
"""


class Told(NamedTuple):
    """What the integrations said.

    Attributes:
        events: the completed runs, as OpenLineage has them.
        names: what Spark's calls each folder.
        output: the folder that the task wrote to.
        derived: the folder that the other job wrote to.
    """

    events: list[dict]
    names: dict[str, tuple[str, str]]
    output: str
    derived: str

    def edges(self) -> set[tuple[str, str]]:
        """Which dataset, or job, leads to which."""
        found = set()
        for event in self.events:
            job = f"{event['job']['namespace']}/{event['job']['name']}"
            found |= {(node(each), job) for each in event["inputs"]}
            found |= {(job, node(each)) for each in event["outputs"]}
        return found

    def reachable(self, start: str) -> set[str]:
        """Everything that a dataset leads to."""
        seen, todo, edges = set(), [start], self.edges()
        while todo:
            here = todo.pop()
            todo += [there for at, there in edges if at == here and there not in seen]
            seen |= {there for at, there in edges if at == here}
        return seen


def node(dataset: dict) -> str:
    return f"{dataset['namespace']} {dataset['name']}"


@pytest.fixture(scope="module")
def told(tmp_path_factory, openlineage_jar):
    """A DAG with a range and an audit, and a job after it, run once, with all that was told."""
    folder = tmp_path_factory.mktemp("lineage")
    output, derived, told_to = folder / "out", folder / "derived", folder / "events.json"
    conf = {
        "spark.jars": str(openlineage_jar),
        "spark.extraListeners": "io.openlineage.spark.agent.OpenLineageSparkListener",
        "spark.openlineage.transport.type": "file",
        "spark.openlineage.transport.location": str(told_to),
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",  # which serves its jars to the executor
    }
    with BrokerProcess(folder / "broker") as broker:
        with AdminClient(broker.address) as admin:
            admin.create_topic(TOPIC, batch_age="10ms")
        with Producer(broker.address, topic=TOPIC, acks="all") as producer:
            for number in range(RECORDS):
                producer.write(b"%d" % number)
        dags = folder / "dags"
        dags.mkdir()
        (dags / "lineage.py").write_text(
            DAG_FILE.format(
                topic=TOPIC,
                application=str(ROOT / "spark_apps" / "range_to_parquet.py"),
                output=str(output),
                key=range_key(OffsetRange(0, 0, 1)),
                conf=conf,
            )
        )
        transport = {"type": "file", "log_file_path": str(told_to), "append": True}
        env = os.environ | {
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "AIRFLOW_HOME": str(folder / "home"),
            "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__OPENLINEAGE__NAMESPACE": "airflow",
            "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(transport),
            "AIRFLOW_CONN_MEMQ_DEFAULT": f"memq://{broker.address}?cluster=prod",
        }
        run([BIN / "airflow", "db", "migrate"], env)
        run([BIN / "airflow", "dags", "test", "lineage"], env)
    reader = folder / "reader.py"
    reader.write_text(READER)
    options = [text for each in conf.items() for text in ("--conf", "=".join(each))]
    job = [reader, output, derived, json.dumps(list(FOLDERS))]
    said = run([BIN / "spark-submit", "--master", "local[1]", *options, *job], env)
    (line,) = [each for each in said.splitlines() if each.startswith("NAMES ")]
    names = {key: tuple(each) for key, each in json.loads(line.removeprefix("NAMES ")).items()}
    events = [json.loads(each) for each in told_to.read_text().splitlines()]
    done = [each for each in events if each.get("eventType") == "COMPLETE"]
    return Told(done, names, str(output), str(derived))


def run(command: list[object], env: dict[str, str]) -> str:
    """Run a program to its end; what it printed."""
    done = subprocess.run(
        [str(each) for each in command], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def test_spark_and_airflow_name_one_graph(told):
    """From the topic one gets by Airflow's task to the folder, and by a job of Spark on from it."""
    reached = told.reachable(f"memq://prod {TOPIC}")

    assert {"airflow/lineage.process", f"file {told.output}", f"file {told.derived}"} <= reached
    writers = {at for at, there in told.edges() if there == f"file {told.output}"}
    assert len(writers) == 2  # the task, and the program that it submitted


def test_the_program_is_a_child_of_the_task(told):
    """The run of Spark that wrote the folder names the run of the task as its parent's root."""
    by_run = {each["run"]["runId"]: each for each in told.events}
    (task,) = [each for each in told.events if each["job"]["name"] == "lineage.process"]
    written = [
        each
        for each in told.events
        if each is not task and f"file {told.output}" in map(node, each["outputs"])
    ]
    assert written
    for each in written:
        above = each["run"]["facets"]["parent"]["run"]["runId"]
        if above != task["run"]["runId"]:  # by the application
            above = by_run[above]["run"]["facets"]["parent"]["run"]["runId"]
        assert above == task["run"]["runId"]


def test_the_task_tells_offsets_and_rows(told):
    """Exact offsets stand with the topic, and the number of rows with the folder."""
    (task,) = [each for each in told.events if each["job"]["name"] == "lineage.process"]

    (source,), (target,) = task["inputs"], task["outputs"]
    assert source["inputFacets"]["memq_ranges"]["ranges"] == [
        {"partition": 0, "start": 0, "end": 1}
    ]
    assert target["outputFacets"]["outputStatistics"]["rowCount"] == RECORDS


def test_the_audit_is_an_assertion(told):
    """What the audit found stands with the topic."""
    (audit,) = [each for each in told.events if each["job"]["name"] == "lineage.audit"]

    (source,) = audit["inputs"]
    (found,) = source["inputFacets"]["dataQualityAssertions"]["assertions"]
    assert (found["assertion"], found["success"]) == ("audit", True)


@pytest.mark.parametrize("folder", FOLDERS)
def test_folders_are_called_what_spark_calls_them(told, folder):
    """The name is that of Spark's own integration, letter by letter."""
    assert name_of_folder(folder) == told.names[folder]
