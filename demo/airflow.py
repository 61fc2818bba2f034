"""The main job as operators run it: Airflow plans exact ranges, Spark processes, a DAG audits."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow.parquet as pq

from demo.check import compare
from memq import AdminClient
from memq.core.format.reader import read_index
from tests.harness.airflow.rest import until
from tests.harness.airflow.standalone import Airflow

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from demo.check import Comparison

ROOT = Path(__file__).parents[1]
DAGS = ("memq_plan_ranges", "memq_process_ranges", "memq_audit")
JOB = "range_to_parquet"  # name of the Spark job, and of the group that follows what it has done


class Removed(NamedTuple):
    """A stored object that was removed on purpose, and what was in it.

    Attributes:
        path: where it was.
        records: LogMessages in it.
        sequences: its Messages, by producer id.
    """

    path: Path
    records: int
    sequences: dict[str, set[int]]

    def named_by(self, audit: dict[str, Any]) -> bool:
        """Whether an audit calls lost exactly what is gone, and nothing else wrong."""
        named: dict[str, set[int]] = {}
        for finding in audit["findings"]:
            if finding["finding"] != "lost":
                return False
            for first, last in finding["sequences"]:
                named.setdefault(finding["producer_id"], set()).update(range(first, last + 1))
        return named == self.sequences and audit["lost_records"] == self.records


class DemoAirflow:
    """An Airflow on the loopback that runs the DAGs of this repository, with settings of its own.

    Args:
        directory: where it keeps everything.
        broker: address of the broker.
        topic: that the DAGs follow.
        range_offsets: most offsets in a range.
        env: more variables, such as those with which an object store is reached.
    """

    def __init__(
        self,
        directory: Path,
        broker: str,
        topic: str,
        range_offsets: int,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._broker = broker
        self._topic = topic
        self._output = directory / "parquet"
        self.tables = directory / "audit"
        settings = {
            "topic": topic,
            "output": str(self._output),
            "audit_output": str(self.tables),
            "max_range_offsets": range_offsets,
            "range_linger": "0s",  # to see something soon
            "spark_apps": str(ROOT / "spark_apps"),
        }
        dags = directory / "dags"
        shutil.copytree(ROOT / "dags", dags, ignore=shutil.ignore_patterns("__pycache__"))
        (dags / "memq.yaml").write_text(json.dumps(settings))  # which is YAML as well
        self.airflow = Airflow(
            directory / "airflow",
            dags=dags,
            env={
                "AIRFLOW_CONN_MEMQ_DEFAULT": f"memq://{broker}",
                "SPARK_LOCAL_IP": "127.0.0.1",
                **(env or {}),
            },
        )

    @property
    def url(self) -> str:
        """Of its UI, where everybody is an administrator."""
        return self.airflow.url

    def start(self) -> None:
        """Start it; its planner watches the topic from now on."""
        self.airflow.start()
        for dag_id in DAGS:
            self.airflow.rest.wait_for_dag(dag_id)

    def stop(self) -> None:
        """End everything of it."""
        self.airflow.stop()

    def wait_until_processed(self) -> list[dict[str, Any]]:
        """Wait until every offset of the topic is processed; the runs that did it."""
        with AdminClient(self._broker) as admin:
            ends = {each.partition: each.end for each in admin.offsets(self._topic) if each.end}

            def look() -> bool:
                committed = admin.committed(JOB, self._topic)
                return all(committed.get(partition, 0) >= ends[partition] for partition in ends)

            until(look, f"offsets {ends} processed")
        return self.airflow.rest.runs("memq_process_ranges")

    def compare(self, lines: Sequence[bytes]) -> Comparison:
        """The Parquet files that Spark wrote, beside the input."""
        rows: list[tuple[bytes, bytes]] = []
        batches = 0
        for path in sorted(self._output.rglob("*.parquet")):
            table = pq.read_table(path, columns=["key", "value", "offset"])
            batches += len(set(table["offset"].to_pylist()))  # a range is of one partition
            rows += zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True)
        return compare(rows, batches, lines)

    def audit(self) -> tuple[str, dict[str, Any]]:
        """Run the audit DAG over the last hour: "success" or "failed", and its findings."""
        rest = self.airflow.rest
        run_id = rest.trigger("memq_audit", conf={"last": "1h"})
        state = str(rest.wait_for_run("memq_audit", run_id)["state"])
        return state, rest.xcom("memq_audit", run_id, "audit")


def remove_object(path: Path) -> Removed:
    """Remove a stored Batch, as a wrong lifecycle rule would."""
    data = path.read_bytes()
    index = read_index(lambda start, length: data[start : start + length], len(data))
    sequences: dict[str, set[int]] = {}
    for entry in index.entries:
        sequences.setdefault(entry.producer_id, set()).add(entry.sequence)
    path.unlink()
    return Removed(path, sum(entry.records for entry in index.entries), sequences)
