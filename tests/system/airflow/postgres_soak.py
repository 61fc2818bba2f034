"""Airflow as teams run it: on PostgreSQL, with two schedulers and two triggerers. Run it by hand.

    python -m tests.system.airflow.postgres_soak [--minutes 10] [--seed 7]

Producers write to three topics while schedulers, triggerers, tasks and the broker are killed with
SIGKILL in turn. Meanwhile a run of a range is marked as success by hand, a second planner and a run
with a key that nobody planned are triggered, and Airflow's database is put back to an older dump.
In the end each acked record is in the files once, the manifests of each topic cover all of its
offsets once, and what would have doubled rows was refused by name.

It needs PostgreSQL, as Debian's package `postgresql-15` brings it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote

import psycopg2
import pyarrow.parquet as pq

from airflow_provider_memq.planning.ranges import parse_key
from memq import AdminClient
from memq.core.manifest import decode_manifest
from memq.testing.broker import BrokerProcess
from tests.fakes import light_app
from tests.harness.airflow.guarded import fetch
from tests.harness.airflow.rest import ENDED, WaitError, asked, until
from tests.harness.airflow.standalone import BIN, ROOT, Airflow
from tests.harness.postgres import Postgres, PostgresMissingError
from tests.system.airflow.pipeline import Ledger, Writer
from tests.system.airflow.soak import say

TOPICS = ("clicks", "views", "orders")
SPARES = ("scheduler-2", "triggerer-2")
VICTIMS = ("scheduler", "scheduler-2", "triggerer", "triggerer-2", "broker", "task")
SECOND, BY_HAND = "second_planner", "00000:000000000001-000000000009"
DAGS = """
from airflow.sdk import DAG
from airflow_provider_memq.operators.memq import MemqPlanRangesOperator
from airflow_provider_memq.range_assets import ranges_asset

with DAG("second_planner", schedule=None, default_args={"retries": 3}):
    ranges = ranges_asset("clicks")
    MemqPlanRangesOperator(task_id="plan", topic="clicks", ranges=ranges, max_offsets=3)
"""
MARK, PLANNERS, DUMP, RESTORE = 0.15, 0.3, 0.4, 0.65  # of the time, when each happens
JOB_S = 3.0  # so long a job takes at least: some are always running
DRAIN_S = 1200.0  # in which all that was published is processed


def main() -> None:
    """Run it, and print what was counted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and leave nothing running
    folder = Path(tempfile.mkdtemp(prefix="memq-postgres-"))
    say(f"seed {given.seed}, in {folder}")
    try:
        postgres = Postgres(folder / "postgres", "airflow")
    except PostgresMissingError as exc:
        raise SystemExit(str(exc)) from exc
    with postgres, BrokerProcess(folder / "broker") as broker:
        team = Team(folder, broker, postgres, Random(given.seed))
        try:
            team.start()
            team.trouble(given.minutes * 60)
            team.drain()
            say(json.dumps(team.check()))
        finally:
            team.stop()
    shutil.rmtree(folder)
    say("all held: each acked record is in the files once")


class Team:
    """Three topics, their producers, and an Airflow that processes them.

    Args:
        folder: for everything.
        broker: of the topics.
        postgres: Airflow's database.
        random: decides what is killed.
    """

    def __init__(
        self, folder: Path, broker: BrokerProcess, postgres: Postgres, random: Random
    ) -> None:
        self.folder, self.broker, self.postgres, self.random = folder, broker, postgres, random
        self.output, self.counts = folder / "parquet", Counter[str]()
        self.ledgers = {topic: Ledger() for topic in TOPICS}
        self.writers: list[Writer] = []
        with AdminClient(broker.address) as admin:
            for topic in TOPICS:
                admin.create_topic(topic, batch_age="1s", write_partitions=2, read_partitions=2)
        apps, dags = folder / "light", folder / "dags"
        light_app.install(apps, delay_s=JOB_S)
        dags.mkdir()
        for name in ("memq_ranges.py", "memq_backfill.py"):
            shutil.copy(ROOT / "dags" / name, dags)
        (dags / "second.py").write_text(DAGS)
        settings = {
            "topics": dict.fromkeys(TOPICS),
            "output": str(self.output),
            "spark_apps": str(apps),
            "range_linger": "5s",
            "max_pending_ranges": 4,
            "missed_after": "20s",
            "retry_delay": "2s",
            "retries": 20,
        }
        (dags / "memq.yaml").write_text(json.dumps(settings))
        env = {
            "PATH": os.pathsep.join([str(apps), str(BIN), os.environ["PATH"]]),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": postgres.url,
            "AIRFLOW_CONN_MEMQ_DEFAULT": f"memq://{broker.address}",
            "AIRFLOW__MEMQ__POLL_INTERVAL": "2",
        }
        self.airflow = Airflow(folder / "airflow", dags=dags, env=env, spares=SPARES)
        del self.airflow.env["AIRFLOW__DATABASE__SQL_ALCHEMY_CONNECT_ARGS"]  # of SQLite
        self.rest = self.airflow.rest

    def start(self) -> None:
        """Start Airflow and the producers."""
        self.airflow.start()
        for topic in TOPICS:
            for name in ("plan_ranges", "process_ranges", "backfill"):
                self.rest.wait_for_dag(f"memq_{name}.{topic}")
        self.rest.wait_for_dag(SECOND)
        for topic, ledger in self.ledgers.items():
            self.writers.append(Writer(self.broker.address, ledger, 0.2, topic))
            self.writers[-1].start()
        until(lambda: all(map(self.planned, TOPICS)), "a first plan of each topic")

    def stop(self) -> None:
        """End everything."""
        for writer in self.writers:
            writer._stopped.set()
        self.airflow.stop()

    # -- trouble ----------------------------------------------------------------------------

    def trouble(self, seconds: float) -> None:
        """Kill in turn, and do at their times what people do."""
        begin = time.monotonic()
        todo = [
            (MARK, self.mark_by_hand),
            (PLANNERS, self.plan_twice),
            (DUMP, lambda: self.postgres.dump("older")),
            (RESTORE, self.restore),
        ]
        victims: list[str] = []
        while (at := (time.monotonic() - begin) / seconds) < 1:
            if todo and at >= todo[0][0]:
                todo.pop(0)[1]()
                continue
            victims = victims or self.random.sample(VICTIMS, len(VICTIMS))
            self.kill(victims.pop())
            time.sleep(self.random.uniform(5, 15))  # where it is killed is the point
        for _, left in todo:
            left()
        for writer in self.writers:
            writer.stop()
        say(f"{dict(self.counts)}; producers stopped")

    def kill(self, victim: str) -> None:
        """SIGKILL a part, and start it again as a supervisor would."""
        if victim == "broker":
            self.broker.restart()
        elif victim == "task":
            self.kill_task()
        else:
            self.airflow.restart(victim)
            self.airflow.wait_until_healthy()
        self.counts[f"{victim} killed"] += 1

    def kill_task(self) -> None:
        """SIGKILL some task that runs."""

        def look() -> bool:
            for dag_id in (f"memq_process_ranges.{topic}" for topic in TOPICS):
                for run in self.rest.runs(dag_id, state="running"):
                    for task, state in self.rest.tasks(dag_id, run["dag_run_id"]).items():
                        if state == "running" and self.airflow.kill_task(
                            dag_id, run["dag_run_id"], task
                        ):
                            return True
            return False

        with suppress(WaitError):  # now and then none runs
            until(look, "a task that runs", timeout_s=20, interval_s=0.2)

    def mark_by_hand(self) -> None:
        """Mark the run of a range as success before it has processed it, and process it later."""
        dag_id, topic = "memq_process_ranges.views", "views"

        def mark() -> str | None:
            for state in ("queued", "running"):
                for run in self.rest.runs(dag_id, state=state):
                    if "success" in self.rest.tasks(dag_id, run["dag_run_id"]).values():
                        continue
                    path = f"/dags/{dag_id}/dagRuns/{fetch_id(run)}"
                    self.rest.call("PATCH", path, {"state": "success"})
                    return str(run["partition_key"])
            return None

        key = until(mark, "a run to mark", interval_s=0.2)
        page = self.page(f"topics/{topic}/ranges/{key}")
        told = page["range"]["state"]
        say(f"{key} of {topic} was marked as success by hand: its page says {told!r}")
        assert told == "not confirmed" or key in self.done(topic), page
        missing = [each["why"] for each in self.page(f"topics/{topic}")["missing"]]
        assert told != "not confirmed" or any("no task has said" in each for each in missing)
        self.counts["marked by hand"] += 1
        self.backfill(topic, key)

    def plan_twice(self) -> None:
        """A second planner, and a run with a key that was not planned: both fail at once."""
        process = "memq_process_ranges.clicks"
        for dag_id, task, key, text in (
            (SECOND, "plan", None, "is planned by memq_plan_ranges.clicks.plan"),
            (process, "process", BY_HAND, "was not planned"),
        ):
            run_id = asked(
                lambda dag_id=dag_id, key=key: self.rest.trigger(dag_id, partition_key=key)
            )
            self.rest.wait_for_run(dag_id, run_id, states=["failed"])
            self.rest.wait_for_log(dag_id, run_id, task, text)
            tries = self.rest.task(dag_id, run_id, task)["try_number"]
            say(f"{dag_id}.{task} was refused in try {tries}: {text}")
            self.counts["refused by name"] += 1

    def restore(self) -> None:
        """Put Airflow's database back to the dump; planners are refused, and then take over."""
        before = {topic: self.planned(topic) for topic in TOPICS}
        self.airflow.stop()
        self.postgres.restore("older")
        self.airflow.start()
        now = {topic: self.planned(topic) for topic in TOPICS}
        say(f"Airflow's database is restored: ranges planned were {before}, and now are {now}")
        forgotten = [topic for topic in TOPICS if self.is_ahead(topic)]
        assert forgotten, "nothing was processed since the dump that Airflow has no plan of"
        for topic in forgotten:
            dag_id = f"memq_plan_ranges.{topic}"

            def refused(dag_id: str = dag_id) -> bool:
                run_id = asked(lambda: self.rest.trigger(dag_id))
                try:
                    self.rest.wait_for_run(dag_id, run_id, states=["failed"])
                except WaitError:  # with nothing new to plan it is skipped
                    return False
                self.rest.wait_for_log(dag_id, run_id, "plan", "Airflow has forgotten plans")
                return True

            until(refused, f"the planner of {topic} is refused")
            notes = self.page(f"topics/{topic}")["notes"]
            say(f"the planner of {topic} was refused by name; its page says {notes}")
            self.counts["refused by name"] += 1
            run_id = asked(
                lambda dag_id=dag_id: self.rest.trigger(dag_id, conf={"take_over": True})
            )
            self.rest.wait_for_run(dag_id, run_id, states=["success"])
            self.counts["taken over"] += 1

    # -- the end ----------------------------------------------------------------------------

    def drain(self) -> None:
        """Wait until all that was published is processed; what has failed is run by a backfill."""
        ends = {topic: self.ends(topic) for topic in TOPICS}

        def look() -> bool:
            left = False
            for topic in TOPICS:
                lacking = self.lacking(topic, ends[topic])
                if lacking and not self.is_busy(topic):
                    asked(lambda topic=topic: self.rest.trigger(f"memq_plan_ranges.{topic}"))
                left = left or bool(lacking) or self.is_busy(topic)
            return not left

        until(look, f"{ends} processed", timeout_s=DRAIN_S, interval_s=5.0)

    def is_busy(self, topic: str) -> bool:
        """Whether a run of a topic has not ended."""
        dag_ids = (f"memq_{name}.{topic}" for name in ("plan_ranges", "process_ranges"))
        runs = (run for dag_id in dag_ids for run in self.rest.runs(dag_id))
        return any(run["state"] not in ENDED for run in runs)

    def lacking(self, topic: str, ends: dict[int, int]) -> list[str]:
        """What no manifest has, in words."""
        found = []
        for partition, end in ends.items():
            at = 0
            for start, stop, _ in sorted(self.manifests(topic, partition)):
                if start > at:
                    break
                at = max(at, stop)
            if at < end:
                found.append(f"{topic}/{partition} from {at}")
        return found

    def check(self) -> dict[str, Any]:
        """Everything that must hold in the end; what was counted."""
        counted: dict[str, Any] = {}
        for topic, ledger in self.ledgers.items():
            records = 0
            for partition, end in self.ends(topic).items():
                found = sorted(self.manifests(topic, partition))
                offsets = [offset for start, stop, _ in found for offset in range(start, stop)]
                assert offsets == list(range(end)), (
                    f"gap or overlap in {topic}/{partition}: {found}"
                )
                records += sum(each for _, _, each in found)
            values = self.values(topic)
            doubled = [value for value, times in values.items() if times > 1]
            lost, unknown = ledger.acked - values.keys(), values.keys() - ledger.sent
            assert [doubled, lost, unknown] == [[], set(), set()], "doubled, lost, unknown"
            assert records == len(values)
            page = self.page(f"topics/{topic}")
            counted[topic] = {
                "acked": len(ledger.acked),
                "in the files": len(values),
                "in the manifests": records,
                "failed writes": len(ledger.failed),
                "lost": len(lost),
                "doubled": len(doubled),
                "missing by the page": [each["why"] for each in page["missing"]],
            }
        return {**self.counts, **counted}

    # -- looking ----------------------------------------------------------------------------

    def backfill(self, topic: str, key: str) -> None:
        """Process a range by a backfill."""
        dag_id = f"memq_backfill.{topic}"
        conf = {"range_keys": key, "again": True, "dry_run": False}
        run_id = asked(lambda: self.rest.trigger(dag_id, conf=conf))
        self.rest.wait_for_run(dag_id, run_id, states=["success"])
        assert key in self.done(topic)

    def is_ahead(self, topic: str) -> bool:
        """Whether a manifest lies beyond all that Airflow knows to be planned."""
        planned = [parse_key(key) for key in self.keys(f"memq_ranges.{topic}")]
        ends = {p: max((e.end for e in planned if e.partition == p), default=0) for p in (0, 1)}
        return any(end > ends[p] for p in ends for _, end, _ in self.manifests(topic, p))

    def ends(self, topic: str) -> dict[int, int]:
        """One past the last offset of each read partition."""
        with AdminClient(self.broker.address) as admin:
            return {each.partition: each.end for each in admin.offsets(topic)}

    def planned(self, topic: str) -> int:
        """How many ranges Airflow knows to be planned."""
        return len(self.keys(f"memq_ranges.{topic}"))

    def done(self, topic: str) -> set[str]:
        """Keys of the ranges that a task has said to be processed."""
        return {*self.keys(f"memq_processed.{topic}.range_to_parquet")}

    def keys(self, asset: str) -> list[str]:
        """Partition keys of the events of an asset. Airflow's API cannot tell while runs wait."""
        asked_for = (
            "SELECT partition_key FROM asset_event e JOIN asset a ON a.id = e.asset_id "
            "WHERE a.name = %s AND partition_key IS NOT NULL"
        )
        with closing(psycopg2.connect(self.postgres.address)) as connection:
            cursor = connection.cursor()
            cursor.execute(asked_for, [asset])
            return [key for (key,) in cursor.fetchall()]

    def page(self, path: str) -> dict[str, Any]:
        """What a page of the provider is made of."""
        reply = fetch(f"{self.airflow.url}/memq/{path}/index.json")
        assert reply.status == 200, reply
        return dict(json.loads(reply.text))

    def manifests(self, topic: str, partition: int) -> list[tuple[int, int, int]]:
        """Start, end and records of each manifest of a read partition."""
        where = f"_manifests/topic={topic}/incarnation=*/partition={partition}/*.json"
        manifests = (decode_manifest(each.read_bytes()) for each in self.output.glob(where))
        return [(each.start, each.end, each.records) for each in manifests]

    def values(self, topic: str) -> Counter[int]:
        """How often each value stands in the files."""
        found: Counter[int] = Counter()
        for path in self.output.glob(f"memq_topic={topic}/*/*/memq_range=*/*.parquet"):
            found.update(int(value) for value in pq.ParquetFile(path).read()["value"].to_pylist())
        return found


def fetch_id(run: dict[str, Any]) -> str:
    """The id of a run as a part of an address."""
    return quote(str(run["dag_run_id"]), safe="")


if __name__ == "__main__":
    main()
