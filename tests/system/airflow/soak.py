"""The long form of `test_pipeline`: run it by hand.

    python -m tests.system.airflow.soak [--ranges 30] [--kills 3] [--seconds 900] [--light]

Producers write all the time while triggerer, scheduler, a task's process and the broker are killed
with SIGKILL in turn, each at least `--kills` times. Then three minutes of the past are processed
again by `airflow backfill create`.
Without `--light` the jobs are real Spark (`spark-submit`, local[1]).
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

from airflow_provider_memq.planning.ranges import parse_key
from memq import read_range
from tests.harness.airflow.rest import ENDED, WaitError, until
from tests.system.airflow.pipeline import (
    PLAN,
    PROCESS,
    TOPIC,
    Pipeline,
)

HOURLY = "memq_hourly"
CREATE_TRIES = 5
VICTIMS = ("triggerer", "scheduler", "task", "broker")


def main() -> None:
    """Run it, and print what was counted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranges", type=int, default=30)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=1800, help="give up after this")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--light", action="store_true", help="a stand-in for Spark")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="memq-soak-"))
    say(f"in {folder}")
    settings = {
        "plan_every": "45s",  # so that Spark keeps up with the producers
        "hourly_output": str(folder / "hourly"),
        "hourly_cron": "* * * * *",
    }
    with Pipeline(
        folder,
        dags=("memq_ranges.py", "memq_hourly.py"),
        light=given.light,
        settings=settings,
        batch_age="500ms",
    ) as pipeline:
        for dag_id in (PLAN, PROCESS, HOURLY):
            pipeline.rest.wait_for_dag(dag_id)
        backfill(pipeline, kill_and_check(pipeline, given))
    say("all held")


def kill_and_check(pipeline: Pipeline, given: argparse.Namespace) -> datetime:
    """Kill in turn while producers write; then everything must be processed once.

    Returns:
        When the producers stopped.
    """
    randomness, kills = Random(given.seed), Counter()
    planned = len(VICTIMS) * given.kills  # spread over the ranges
    begin = time.monotonic()
    pipeline.start_writers(2, pause_s=0.2)
    while time.monotonic() - begin < given.seconds:
        done = len(pipeline.processed())
        if done >= given.ranges and all(kills[each] >= given.kills for each in VICTIMS):
            break
        if kills.total() < planned and done * planned >= kills.total() * given.ranges:
            victim = min(VICTIMS, key=lambda each: (kills[each], randomness.random()))
            kill(pipeline, victim)
            kills[victim] += 1
            say(f"killed {victim} for the {kills[victim]}. time; {done} ranges processed")
        time.sleep(randomness.uniform(1, 5))
    stopped = datetime.now(UTC)
    pipeline.stop_writers()
    say(f"{dict(kills)}; producers stopped, {len(pipeline.ledger.acked)} acked")
    pipeline.wait_until_processed(given.seconds)
    counted = pipeline.check()
    say(json.dumps({"kills": kills, **counted}))
    assert counted["ranges"] >= given.ranges
    assert min(kills[each] for each in VICTIMS) >= given.kills
    return stopped


def kill(pipeline: Pipeline, victim: str) -> None:
    """SIGKILL one part of the pipeline, and have it started again as a supervisor would."""
    if victim == "task":
        pipeline.kill_running_task()
    elif victim == "broker":
        pipeline.broker.restart()
    else:
        pipeline.airflow.restart(victim)
        pipeline.airflow.wait_until_healthy()


def backfill(pipeline: Pipeline, stopped: datetime) -> None:
    """Three minutes of the past by `airflow backfill create`: the rows of the ranges' own runs."""
    end = stopped.replace(second=0, microsecond=0)
    create_backfill(pipeline, end - timedelta(minutes=3), end - timedelta(minutes=1))
    runs = until(lambda: backfilled(pipeline, 3), "three backfill runs ended", interval_s=2)
    assert [run["state"] for run in runs] == ["success"] * 3
    keys = {key for r in runs for key in pipeline.rest.xcom(HOURLY, r["dag_run_id"], "window")}
    expected: Counter[int] = Counter()
    for each in map(parse_key, keys):
        partition, first, last = each
        table = read_range(
            pipeline.broker.address, topic=TOPIC, partition=partition, start=first, end=last
        )
        expected.update(int(value) for value in table["value"].to_pylist())
    names = {f"{each.start:012d}-{each.end:012d}" for each in map(parse_key, keys)}
    folder = pipeline.folder / "hourly"
    rows = pipeline.stored_values(folder, {f"memq_range={name}" for name in names})
    say(f"backfill of 3 minutes: {len(keys)} ranges, {rows.total()} rows")
    assert rows
    assert rows == expected
    assert not rows - pipeline.stored_values()


def create_backfill(pipeline: Pipeline, first: datetime, last: datetime) -> None:
    """`airflow backfill create`, which SQLite may refuse half-way while the scheduler writes: then
    what was created is cancelled, and created again.
    """
    asked = ("--from-date", first.isoformat(), "--to-date", last.isoformat())
    command = ("backfill", "create", "--dag-id", HOURLY, "--reprocess-behavior", "completed")
    for _ in range(CREATE_TRIES):
        try:
            pipeline.airflow.command(*command, *asked)
        except WaitError as exc:
            if "database is locked" not in str(exc):
                raise
            say("SQLite was locked: the backfill is created again")
            for each in pipeline.rest.get("/backfills", dag_id=HOURLY)["backfills"]:
                if each["completed_at"] is None:
                    pipeline.rest.call("PUT", f"/backfills/{each['id']}/cancel")
            until(lambda: backfilled(pipeline), "what was created has ended", interval_s=2)
        else:
            return
    raise AssertionError(f"no backfill could be created in {CREATE_TRIES} tries")


def backfilled(pipeline: Pipeline, count: int = 0) -> list[dict[str, Any]] | bool:
    """The backfill's runs, when there are so many and all have ended; True when there are none."""
    runs = [run for run in pipeline.rest.runs(HOURLY) if run["run_type"] == "backfill"]
    ended = len(runs) >= count and all(run["state"] in ENDED for run in runs)
    return ended and (runs or True)


def say(text: str) -> None:
    """A line with the time."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)  # noqa: T201 - that is its purpose


if __name__ == "__main__":
    main()
