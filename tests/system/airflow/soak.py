"""The long form of `test_pipeline`, on PostgreSQL with two schedulers and two triggerers.

    python -m tests.system.airflow.soak [--minutes 10] [--seed 7] [--light]

Producers write while schedulers, triggerers, tasks and the broker are killed with SIGKILL in turn.
Meanwhile a run of a range is marked as success by hand, and Airflow's database is put back to an
older dump. In the end each acked record is in the files once, and the manifests cover all offsets
once. Then three minutes are processed again by `airflow backfill create`.

Without `--light` the jobs are real Spark (`spark-submit`, local[1]). It needs PostgreSQL, as
Debian's package `postgresql-15` brings it.
"""

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any
from urllib.parse import quote

from airflow_provider_memq.planning.ranges import parse_key
from memq import read_range
from tests.harness.airflow.rest import ENDED, WaitError, asked, until
from tests.harness.postgres import Postgres, PostgresMissingError
from tests.system.airflow.pipeline import (
    PLAN,
    PROCESS,
    TOPIC,
    Pipeline,
    running_pipeline,
    values_in,
)

HOURLY, BACKFILL = "memq_hourly", "memq_backfill"
DAGS = ("memq_ranges.py", "memq_backfill.py", "memq_hourly.py")
VICTIMS = ("scheduler", "scheduler-2", "triggerer", "triggerer-2", "broker", "task")
MARK, DUMP, RESTORE = 0.15, 0.4, 0.65  # of the time, when each happens


def main() -> None:
    """Run it, and print what was counted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--light", action="store_true", help="a stand-in for Spark")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and leave nothing running
    folder = Path(tempfile.mkdtemp(prefix="memq-soak-"))
    say(f"seed {given.seed}, in {folder}")
    settings = {
        "range_linger": "0s",  # small ranges, soon
        "max_pending_ranges": "4",
        "missed_after": "20s",
        "retry_delay": "2s",
        "retries": "20",
        "hourly_output": str(folder / "hourly"),
        "hourly_cron": "* * * * *",
    }
    try:
        postgres = Postgres(folder / "postgres", "airflow")
    except PostgresMissingError as exc:
        raise SystemExit(str(exc)) from exc
    options = {"dags": DAGS, "light": given.light, "settings": settings, "database": postgres.url}
    with (
        postgres,
        running_pipeline(folder, topic={"batch_age": "1s"}, **options) as pipeline,
    ):
        team = Team(pipeline, postgres, Random(given.seed))
        team.trouble(given.minutes * 60)
        pipeline.wait_until_processed(wake=True)
        missing = [each["why"] for each in pipeline.page()["missing"]]
        say(json.dumps({**team.counts, **pipeline.check(), "missing by the page": missing}))
        team.backfill_minutes(datetime.now(UTC))
    shutil.rmtree(folder)
    say("all held: each acked record is in the files once")


class Team:
    """A pipeline, and what people and machines do to it.

    Args:
        pipeline: with the DAGs of `DAGS`.
        postgres: Airflow's database.
        random: decides what is killed.
    """

    def __init__(self, pipeline: Pipeline, postgres: Postgres, random: Random) -> None:
        self.pipeline, self.postgres, self.random = pipeline, postgres, random
        self.rest, self.counts = pipeline.rest, Counter[str]()
        self.dumped: dict[int, int] = {}

    # -- trouble ----------------------------------------------------------------------------

    def trouble(self, seconds: float) -> None:
        """Kill in turn, and do at their times what people do."""
        for dag_id in (PLAN, PROCESS, BACKFILL, HOURLY):
            self.rest.wait_for_dag(dag_id)
        writers = [Thread(target=self.pipeline.write, args=(0.2,), daemon=True) for _ in range(2)]
        for each in writers:
            each.start()
        until(self.pipeline.manifests, "a first range")
        begin = time.monotonic()
        todo = [(MARK, self.mark_by_hand), (DUMP, self.dump), (RESTORE, self.restore)]
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
        self.pipeline.stopped.set()
        for each in writers:
            each.join()
        say(f"{dict(self.counts)}; producers stopped")

    def kill(self, victim: str) -> None:
        """SIGKILL a part, and start it again as a supervisor would."""
        if victim == "broker":
            self.pipeline.broker.restart()
        elif victim == "task":
            with suppress(WaitError):  # now and then none runs
                until(self.kill_task, "a task that runs", timeout_s=20, interval_s=0.05)
        else:
            self.pipeline.airflow.restart(victim)
            self.pipeline.airflow.wait_until_healthy()
        self.counts[f"{victim} killed"] += 1

    def kill_task(self) -> bool:
        """SIGKILL the process of some task that runs; whether there was one."""
        return any(
            self.pipeline.airflow.kill_task(dag_id, run["dag_run_id"], task)
            for dag_id in (PROCESS, PLAN)
            for run in self.rest.runs(dag_id, state="running")
            for task, state in self.rest.tasks(dag_id, run["dag_run_id"]).items()
            if state == "running"
        )

    def mark_by_hand(self) -> None:
        """Mark the run of a range as success before it has processed it, and process it later."""

        def mark() -> str | None:
            for state in ("queued", "running"):
                for run in self.rest.runs(PROCESS, state=state):
                    if "success" in self.rest.tasks(PROCESS, run["dag_run_id"]).values():
                        continue
                    run_id = quote(str(run["dag_run_id"]), safe="")
                    self.rest.call(
                        "PATCH", f"/dags/{PROCESS}/dagRuns/{run_id}", {"state": "success"}
                    )
                    return str(run["partition_key"])
            return None

        key = until(mark, "a run to mark", interval_s=0.2)
        told = self.pipeline.page(f"topics/{TOPIC}/ranges/{key}/")["range"]["state"]
        say(f"{key} was marked as success by hand: its page says {told!r}")
        assert told == "not confirmed" or parse_key(key)[:3] in self.pipeline.manifests()
        conf = {"range_keys": key, "again": True, "dry_run": False}
        run_id = asked(lambda: self.rest.trigger(BACKFILL, conf=conf))
        self.rest.wait_for_run(BACKFILL, run_id, states=["success"])
        self.counts["marked by hand"] += 1

    def dump(self) -> None:
        """Dump Airflow's database, as a backup does."""
        self.postgres.dump("older")
        self.dumped = self.pipeline.ends()

    def restore(self) -> None:
        """Put Airflow's database back to the dump; the planner is refused, and then takes over."""

        def is_ahead() -> bool:  # Airflow's API cannot tell of events while runs wait
            return any(
                end > self.dumped[partition] for partition, _, end in self.pipeline.manifests()
            )

        until(is_ahead, "a range processed that was planned after the dump")
        self.pipeline.airflow.stop()
        self.postgres.restore("older")
        self.pipeline.airflow.start()

        def look() -> bool:
            run_id = asked(lambda: self.rest.trigger(PLAN))
            with suppress(WaitError):  # with nothing new to plan it is skipped
                self.rest.wait_for_run(PLAN, run_id, states=["failed"])
                self.rest.wait_for_log(PLAN, run_id, "plan", "Airflow has forgotten plans")
                return True
            return False

        until(look, "the planner is refused")
        run_id = asked(lambda: self.rest.trigger(PLAN, conf={"take_over": True}))
        self.rest.wait_for_run(PLAN, run_id, states=["success"])
        self.counts["taken over"] += 1

    # -- the end ----------------------------------------------------------------------------

    def backfill_minutes(self, stopped: datetime) -> None:
        """Three minutes of the past by `airflow backfill create`: the rows of their ranges."""
        last = stopped.replace(second=0, microsecond=0) - timedelta(minutes=1)
        minutes = {last - timedelta(minutes=each) for each in range(3)}

        def are_done() -> bool:  # a backfill leaves out those whose own run has not ended
            over = [run for run in self.rest.runs(HOURLY) if run["state"] in ENDED]
            return minutes <= {datetime.fromisoformat(run["logical_date"]) for run in over}

        until(are_done, "the runs of these minutes ended", interval_s=2)
        asked_for = ["--from-date", min(minutes).isoformat()]
        asked_for += ["--to-date", last.isoformat(), "--reprocess-behavior", "completed"]
        self.pipeline.airflow.command("backfill", "create", "--dag-id", HOURLY, *asked_for)

        def look() -> list[dict[str, Any]] | None:
            runs = [run for run in self.rest.runs(HOURLY) if run["run_type"] == "backfill"]
            return runs if len(runs) == 3 and all(r["state"] in ENDED for r in runs) else None

        runs = until(look, "three backfill runs ended", interval_s=2)
        assert [run["state"] for run in runs] == ["success"] * 3
        keys = {key for run in runs for key in self.rest.xcom(HOURLY, run["dag_run_id"], "window")}
        for partition, start, end, _ in map(parse_key, keys):
            where = {"topic": TOPIC, "partition": partition, "start": start, "end": end}
            rows = read_range(self.pipeline.broker.address, **where)["value"].to_pylist()
            name = f"memq_partition={partition}/memq_range={start:012d}-{end:012d}"
            files = self.pipeline.folder.glob(f"hourly/memq_topic=*/*/{name}/*.parquet")
            assert values_in(files) == Counter(map(int, rows))


def say(text: str) -> None:
    """A line with the time."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)  # noqa: T201 - that is its purpose


if __name__ == "__main__":
    main()
