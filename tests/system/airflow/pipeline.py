"""A whole pipeline under test: producers, a broker, Airflow with our DAGs, and what must hold.

It uses the DAG files of `dags/` unchanged; settings are in `memq.yaml`, as a user writes them.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_memq.planning.ranges import parse_key
from airflow_provider_memq.range_assets import processed_asset, ranges_asset
from memq import AdminClient, Producer
from memq.core.format.reader import BatchReader
from memq.errors import MemqError
from memq.testing.broker import BrokerProcess
from tests.fakes import light_app
from tests.harness.airflow.rest import BACKSTOP_S, ENDED, until
from tests.harness.airflow.standalone import BIN, ROOT, Airflow

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Self

TOPIC = "clicks"
JOB = "range_to_parquet"
PLAN, PROCESS = "memq_plan_ranges", "memq_process_ranges"
SPARES = ("scheduler-2", "triggerer-2")


class Ledger:
    """What was sent, and what was acked of it; threads share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.sent: set[int] = set()
        self.acked: set[int] = set()
        self.failed: list[str] = []

    def next(self) -> int:
        """A value that was never sent."""
        with self._lock:
            value = len(self.sent)
            self.sent.add(value)
            return value


class Writer(threading.Thread):
    """A producer that writes all the time until `stop`, and waits for every ack."""

    def __init__(self, address: str, ledger: Ledger, pause_s: float) -> None:
        super().__init__(daemon=True)
        self.address, self.ledger, self.pause_s = address, ledger, pause_s
        self._stopped = threading.Event()

    def run(self) -> None:
        options = {"acks": "all", "delivery_timeout": "120s"}
        with Producer(self.address, topic=TOPIC, **options) as producer:
            waiting = []
            while not self._stopped.is_set():
                value = self.ledger.next()
                try:
                    waiting.append((value, producer.write(b"%d" % value)))
                except MemqError as exc:
                    self.ledger.failed.append(str(exc))
                self._stopped.wait(self.pause_s)
            for value, delivery in waiting:
                try:
                    delivery.result(150)
                except MemqError as exc:
                    self.ledger.failed.append(str(exc))
                else:
                    self.ledger.acked.add(value)

    def stop(self) -> None:
        """Write no more, and wait for the last ack."""
        self._stopped.set()
        self.join(200)
        assert not self.is_alive()


class Pipeline:
    """A broker with a topic, and an Airflow with DAG files of ours.

    Args:
        folder: for everything it keeps.
        dags: names of the files in `dags/`.
        light: jobs run by a stand-in for Spark.
        settings: more settings of the DAGs by name.
        batch_age: of the topic.
        env: more environment for Airflow.
        database: URL of Airflow's, which then has two schedulers and triggerers; SQLite if empty.
    """

    def __init__(
        self,
        folder: Path,
        *,
        dags: Sequence[str] = ("memq_ranges.py",),
        light: bool = True,
        settings: Mapping[str, str] | None = None,
        batch_age: str = "200ms",
        env: Mapping[str, str] | None = None,
        database: str = "",
    ) -> None:
        self.folder = folder
        self.output = folder / "parquet"
        self.broker = BrokerProcess(folder / "broker")
        self.writers: list[Writer] = []
        self.ledger = Ledger()
        with AdminClient(self.broker.address) as admin:
            admin.create_topic(TOPIC, batch_age=batch_age, write_partitions=2, read_partitions=2)
        (folder / "dags").mkdir(exist_ok=True)
        for name in dags:
            shutil.copy(ROOT / "dags" / name, folder / "dags" / name)
        apps = ROOT / "spark_apps"
        env = {**(env or {}), "PATH": os.pathsep.join([str(BIN), os.environ["PATH"]])}
        if light:
            apps = folder / "light"
            light_app.install(apps)
            env["PATH"] = os.pathsep.join([str(apps), env["PATH"]])
        written = {
            "topic": TOPIC,
            "output": str(self.output),
            "spark_apps": str(apps),
            "range_linger": "0s",  # small ranges, soon
            "max_pending_ranges": "0",
            **(settings or {}),
        }
        (folder / "dags" / "memq.yaml").write_text(json.dumps(written))  # which is YAML as well
        env["AIRFLOW_CONN_MEMQ_DEFAULT"] = f"memq://{self.broker.address}"
        env["AIRFLOW__MEMQ__POLL_INTERVAL"] = "1"
        if database:
            env["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] = database
        self.airflow = Airflow(
            folder / "airflow", dags=folder / "dags", env=env, spares=SPARES if database else ()
        )
        self.rest = self.airflow.rest

    def __enter__(self) -> Self:
        try:
            self.airflow.start()
        except BaseException:
            self.broker.close()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for writer in self.writers:
            writer._stopped.set()
        try:
            self.airflow.stop()
        finally:
            self.broker.close()

    # -- doing ------------------------------------------------------------------------------

    def start_writers(self, count: int, pause_s: float) -> None:
        """Producers that write until `stop_writers`."""
        self.writers = [Writer(self.broker.address, self.ledger, pause_s) for _ in range(count)]
        for writer in self.writers:
            writer.start()

    def stop_writers(self) -> None:
        """End the producers when all they sent is acked or failed."""
        for writer in self.writers:
            writer.stop()
        self.writers = []

    def burst(self, batches: int) -> float:
        """Publish so many Batches as fast as it goes, and say within how many seconds they came.

        Each value fills a Message, and for a while each Message is a Batch.
        """
        before = sum(self.ends().values())
        with AdminClient(self.broker.address) as admin:
            usual = admin.describe_topic(TOPIC).config.batch_messages
            admin.alter_topic(TOPIC, batch_messages=1)
        with Producer(
            self.broker.address, topic=TOPIC, acks="all", message_bytes="1KiB", linger="0ms"
        ) as producer:
            values = [self.ledger.next() for _ in range(batches)]
            begin = time.monotonic()
            waiting = [(value, producer.write(b"%02000d" % value)) for value in values]
            for value, delivery in waiting:
                delivery.result(60)
                self.ledger.acked.add(value)
            took_s = time.monotonic() - begin
        with AdminClient(self.broker.address) as admin:
            admin.alter_topic(TOPIC, batch_messages=usual)
        assert sum(self.ends().values()) - before == batches
        return took_s

    def kill_running_task(
        self, dag_ids: Sequence[str] = (PROCESS, PLAN), timeout_s: float = BACKSTOP_S
    ) -> str:
        """SIGKILL the process of some task of DAGs that runs; its name.

        Raises:
            WaitError: none runs within the time.
        """

        def look() -> str | None:
            for dag_id in dag_ids:
                for run in self.rest.runs(dag_id, state="running"):
                    for task, state in self.rest.tasks(dag_id, run["dag_run_id"]).items():
                        if state == "running" and self.airflow.kill_task(
                            dag_id, run["dag_run_id"], task
                        ):
                            return f"{dag_id}.{task}"
            return None

        return until(look, "a task that runs", timeout_s=timeout_s, interval_s=0.05)

    # -- looking ----------------------------------------------------------------------------

    def ends(self) -> dict[int, int]:
        """One past the last offset of each read partition."""
        with AdminClient(self.broker.address) as admin:
            return {each.partition: each.end for each in admin.offsets(TOPIC)}

    def keys(self, asset: Any) -> list[str]:
        """Partition keys of an asset's events, oldest first."""
        events = self.rest.asset_events(asset.name)
        return [each["partition_key"] for each in events if each["partition_key"]]

    def planned(self) -> list[str]:
        """Keys of all ranges that were planned."""
        return self.keys(ranges_asset(TOPIC))

    def processed(self) -> set[str]:
        """Keys of all ranges that were processed."""
        return set(self.keys(processed_asset(TOPIC, JOB)))

    def committed(self) -> dict[int, int]:
        """Offsets of the group that follows."""
        with AdminClient(self.broker.address) as admin:
            return admin.committed(JOB, TOPIC)

    def wait_until_processed(self, timeout_s: float = BACKSTOP_S) -> None:
        """Wait until all that is published now is processed, and no run is left."""
        ends = self.ends()

        def look() -> bool:
            reached = dict.fromkeys(ends, 0)
            for each in map(parse_key, self.processed()):
                reached[each.partition] = max(reached[each.partition], each.end)
            return all(reached[p] >= end for p, end in ends.items()) and not self.open_runs()

        until(look, f"ranges up to {ends} processed", timeout_s=timeout_s, interval_s=1.0)

    def open_runs(self) -> list[str]:
        """DAG runs that have not ended."""
        return [
            f"{dag_id}/{run['dag_run_id']}"
            for dag_id in (PLAN, PROCESS)
            for run in self.rest.runs(dag_id)
            if run["state"] not in ENDED
        ]

    def stored_values(
        self, output: Path | None = None, folders: Collection[str] = ()
    ) -> Counter[int]:
        """How often each value stands in the Parquet files, or in those of some folders."""
        files = (output or self.output).glob("memq_topic=*/*/*/memq_range=*/*.parquet")
        found: Counter[int] = Counter()
        for path in files:
            if folders and path.parent.name not in folders:
                continue
            found.update(int(value) for value in pq.ParquetFile(path).read()["value"].to_pylist())
        return found

    def objects(self) -> list[Path]:
        """The objects of the topic, sorted."""
        return sorted((self.folder / "broker/objects").glob(f"*/*/topics/{TOPIC}/*/*/*.arrows"))

    # -- what must hold ---------------------------------------------------------------------

    def check(self) -> dict[str, Any]:
        """Everything that must hold when all is processed; returns what was counted."""
        ends = self.ends()
        processed = self.processed()
        runs_of = Counter(run["partition_key"] for run in self.rest.runs(PROCESS))
        assert sorted(set(self.planned())) == sorted(processed), "a range was not processed"
        assert runs_of == Counter(processed), "a range has no run, or several"
        for partition, end in ends.items():
            ranges = sorted(r for r in map(parse_key, processed) if r.partition == partition)
            offsets = [offset for each in ranges for offset in range(each.start, each.end)]
            assert offsets == list(range(end)), f"gap or overlap in partition {partition}"
        stored = self.stored_values()
        doubled = [value for value, times in stored.items() if times > 1]
        lost = self.ledger.acked - set(stored)
        unknown = set(stored) - self.ledger.sent
        wrong = [len(doubled), len(lost), len(unknown)]
        assert wrong == [0, 0, 0], "doubled, lost, unknown"
        assert self.committed() == ends
        runs = {dag_id: self.rest.runs(dag_id) for dag_id in (PLAN, PROCESS)}
        states = {
            dag_id: dict(Counter(run["state"] for run in found)) for dag_id, found in runs.items()
        }
        assert all(set(found) <= {"success", "failed"} for found in states.values()), states
        return {
            "ranges": len(processed),
            "offsets": sum(ends.values()),
            "acked": len(self.ledger.acked),
            "stored": len(stored),
            "failed_writes": len(self.ledger.failed),
            "lost": len(lost),
            "doubled": len(doubled),
            "runs": states,
        }


def contents_of(objects: Sequence[Path]) -> tuple[set[tuple[int, str, int, int]], int]:
    """The Messages in some objects, by what names them, and how many LogMessages they have."""
    names, records = set(), 0
    for path in objects:
        reader = BatchReader(pa.py_buffer(path.read_bytes()))
        for entry in reader.entries:
            write_partition = reader.metadata.write_partition
            names.add((write_partition, entry.producer_id, entry.epoch, entry.sequence))
            records += entry.records
    return names, records


def named_by(found: dict[str, Any]) -> tuple[set[tuple[int, str, int, int]], int]:
    """The Messages that an audit's result calls lost or damaged, and how many LogMessages."""
    named = [each for each in found["findings"] if each["finding"] in ("lost", "damaged")]
    names = {
        (each["write_partition"], each["producer_id"], each["epoch"], sequence)
        for each in named
        for first, last in each["sequences"]
        for sequence in range(first, last + 1)
    }
    return names, sum(each["records"] for each in named)
