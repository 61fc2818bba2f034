"""A whole pipeline under test: producers, a broker, Airflow with our DAGs, and what must hold.

It uses the DAG files of `dags/` unchanged; settings are in `memq.yaml`, as a user writes them.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import threading
from collections import Counter
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from airflow_provider_memq.range_assets import ranges_asset
from memq import AdminClient, Producer
from memq.core.manifest import decode_manifest
from memq.errors import MemqError
from memq.testing.broker import BrokerProcess
from tests.fakes import light_app
from tests.harness.airflow.rest import ENDED, asked, until
from tests.harness.airflow.standalone import BIN, ROOT, Airflow

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

TOPIC = "clicks"
JOB = "range_to_parquet"
PLAN, PROCESS = "memq_plan_ranges", "memq_process_ranges"
SPARES = ("scheduler-2", "triggerer-2")


@contextmanager
def running_pipeline(
    folder: Path,
    *,
    dags: Sequence[str],
    settings: Mapping[str, str],
    topic: Mapping[str, Any],
    light: bool = True,
    env: Mapping[str, str] | None = None,
    database: str = "",
) -> Iterator[Pipeline]:
    """Run a broker with a topic, and an Airflow with DAG files of ours.

    Args:
        folder: for everything it keeps.
        dags: names of the files in `dags/`.
        settings: more settings of the DAGs by name.
        topic: settings of the topic.
        light: jobs run by a stand-in for Spark.
        env: more environment for Airflow.
        database: URL of Airflow's, which then has two schedulers and triggerers; SQLite if empty.
    """
    with BrokerProcess(folder / "broker") as broker:
        with AdminClient(broker.address) as admin:
            admin.create_topic(TOPIC, write_partitions=2, read_partitions=2, **topic)
        (folder / "dags").mkdir(exist_ok=True)
        for name in dags:
            shutil.copy(ROOT / "dags" / name, folder / "dags" / name)
        apps = ROOT / "spark_apps"
        env = {**(env or {}), "AIRFLOW_CONN_MEMQ_DEFAULT": f"memq://{broker.address}"}
        env["AIRFLOW__MEMQ__POLL_INTERVAL"] = "1"
        if light:
            apps = folder / "light"
            light_app.install(apps)
            env["PATH"] = os.pathsep.join([str(apps), str(BIN), os.environ["PATH"]])
        if database:
            env["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] = database
        written = {"topic": TOPIC, "output": str(folder / "parquet"), "spark_apps": str(apps)}
        (folder / "dags" / "memq.yaml").write_text(json.dumps(written | dict(settings)))  # is YAML
        spares = SPARES if database else ()
        with Airflow(folder / "airflow", dags=folder / "dags", env=env, spares=spares) as airflow:
            yield Pipeline(folder, broker, airflow)


class Pipeline:
    """A pipeline that runs.

    Args:
        folder: with everything it keeps.
        broker: with the topic.
        airflow: with the DAGs.
    """

    def __init__(self, folder: Path, broker: BrokerProcess, airflow: Airflow) -> None:
        self.folder, self.broker, self.airflow = folder, broker, airflow
        self.output, self.rest = folder / "parquet", airflow.rest
        self.numbers, self.stopped = itertools.count(), threading.Event()
        self.sent: set[int] = set()
        self.acked: set[int] = set()

    # -- doing ------------------------------------------------------------------------------

    def write(self, pause_s: float) -> None:
        """Write all the time until `stopped`, and wait for every ack: what a thread may do."""
        options = {"acks": "all", "delivery_timeout": "120s"}
        with Producer(self.broker.address, topic=TOPIC, **options) as producer:
            waiting = {}
            while not self.stopped.wait(pause_s):
                value = next(self.numbers)
                self.sent.add(value)
                with suppress(MemqError):
                    waiting[value] = producer.write(b"%d" % value)
            for value, delivery in waiting.items():
                with suppress(MemqError):
                    delivery.result(150)
                    self.acked.add(value)

    def burst(self, messages: int) -> None:
        """Publish so many Messages as fast as it goes; each value fills one."""
        with Producer(
            self.broker.address, topic=TOPIC, acks="all", message_bytes="1KiB", linger="0ms"
        ) as producer:
            values = [*itertools.islice(self.numbers, messages)]
            self.sent.update(values)
            for delivery in [producer.write(b"%02000d" % value) for value in values]:
                delivery.result(60)
            self.acked.update(values)

    # -- looking ----------------------------------------------------------------------------

    def ends(self) -> dict[int, int]:
        """One past the last offset of each read partition."""
        with AdminClient(self.broker.address) as admin:
            return {each.partition: each.end for each in admin.offsets(TOPIC)}

    def committed(self) -> dict[int, int]:
        """Offsets of the group that follows."""
        with AdminClient(self.broker.address) as admin:
            return admin.committed(JOB, TOPIC)

    def keys(self, asset: Any) -> list[str]:
        """Partition keys of an asset's events, oldest first."""
        events = self.rest.asset_events(asset.name)
        return [each["partition_key"] for each in events if each["partition_key"]]

    def planned(self) -> list[str]:
        """Keys of all ranges that were planned."""
        return self.keys(ranges_asset(TOPIC))

    def open_runs(self) -> list[str]:
        """DAG runs that have not ended."""
        return [
            f"{dag_id}/{run['dag_run_id']}"
            for dag_id in (PLAN, PROCESS)
            for run in self.rest.runs(dag_id)
            if run["state"] not in ENDED
        ]

    def page(self, path: str = f"topics/{TOPIC}/") -> dict[str, Any]:
        """What a page of the provider is made of."""
        return dict(self.rest.call("GET", f"{path}index.json", root="/memq/"))

    def manifests(self) -> dict[tuple[int, int, int], int]:
        """Records of each manifest, by read partition, start and end."""
        files = self.output.glob(f"_manifests/topic={TOPIC}/*/*/*.json")
        found = (decode_manifest(each.read_bytes()) for each in files)
        return {(each.partition, each.start, each.end): each.records for each in found}

    def covered(self) -> dict[int, int]:
        """Up to where manifests meet, by read partition; none may overlap another."""
        reached = dict.fromkeys(self.ends(), 0)
        for partition, start, end in sorted(self.manifests()):
            assert start >= reached[partition], f"overlap in partition {partition} at {start}"
            reached[partition] = end if start == reached[partition] else reached[partition]
        return reached

    # -- what must hold ---------------------------------------------------------------------

    def wait_until_processed(self, *, wake: bool = False) -> None:
        """Wait until all that is published now is processed, and no run is left.

        Args:
            wake: start a plan where none runs.
        """
        ends = self.ends()

        def look() -> bool:
            is_busy, covered = self.open_runs(), self.covered()
            if wake and not is_busy and covered != ends:
                asked(lambda: self.rest.trigger(PLAN))
            return not is_busy and covered == ends

        until(look, f"ranges up to {ends} processed", interval_s=1.0)

    def check(self) -> dict[str, int]:
        """Everything that must hold when all is processed; returns what was counted."""
        values = values_in(self.output.glob("memq_topic=*/*/*/memq_range=*/*.parquet"))
        doubled = [value for value, times in values.items() if times > 1]
        lost, unknown = self.acked - values.keys(), values.keys() - self.sent
        assert [doubled, lost, unknown] == [[], set(), set()], "doubled, lost, unknown"
        manifests = self.manifests()
        assert sum(manifests.values()) == len(values)
        return {"acked": len(self.acked), "in the files": len(values), "ranges": len(manifests)}


def values_in(files: Iterable[Path]) -> Counter[int]:
    """How often each value stands in Parquet files."""
    found: Counter[int] = Counter()
    for path in files:
        found.update(int(value) for value in pq.ParquetFile(path).read()["value"].to_pylist())
    return found
