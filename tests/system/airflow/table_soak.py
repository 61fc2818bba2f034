"""Kill Airflow's tasks that put ranges into a table, and check.

`python -m tests.system.airflow.table_soak --kills 30 [--spark]`.

While Batches are published and planned, tasks that put ranges into one table are killed with
SIGKILL, with the programs that they started, and now and then scheduler or triggerer; Airflow tries
the tasks again. In the end the table has each record once, and the ledger that is rebuilt from the
table alone is what Airflow says: the ranges of its runs, each with one that succeeded. Without
`--spark` the programs commit to the table as the real ones do, and write the files without Spark.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random

from airflow_provider_memq.planning.ranges import parse_key
from memq.core.ranges import Interval
from memq.errors import ConfigError
from memq.tables.check import check_table
from tests.harness.airflow.rest import asked
from tests.harness.airflow.standalone import ROOT
from tests.system.airflow import orders
from tests.system.airflow.pipeline import Pipeline

BATCHES = 4  # published before each kill; a range has two
AFTER_S = {"light": 3.0, "spark": 20.0}  # a task is killed so long after it began, at most
AIRFLOW_TOO = 8  # once in so many kills, scheduler or triggerer is killed as well
TRIES = {
    "AIRFLOW__CORE__DEFAULT_TASK_RETRIES": "50",
    "AIRFLOW__CORE__DEFAULT_TASK_RETRY_DELAY": "1",
}


def main() -> None:
    """Run it, and print what was counted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--spark", action="store_true", help="the programs are real ones")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="memq-table-") as name:
        folder = Path(name)
        env = {**orders.prepare(folder), **TRIES, "MEMQ_CONFIG": os.devnull}
        with Pipeline(folder, dags=(), env=env) as pipeline:
            if given.spark:
                program = folder / "light" / "range_to_iceberg.py"
                program.write_text((ROOT / "spark_apps" / "range_to_iceberg.py").read_text())
                (folder / "light" / "spark-submit").unlink()
            pipeline.rest.wait_for_dag(orders.TABLE)
            longest_s = AFTER_S["spark" if given.spark else "light"]
            counts = kill(pipeline, given.kills, Random(given.seed), longest_s)
            counts += check(pipeline)
    print(f"ok: seed {given.seed}, {dict(counts)}; the table is what Airflow says")  # noqa: T201


def kill(pipeline: Pipeline, kills: int, random: Random, longest_s: float) -> Counter[str]:
    """Publish, plan and kill until so many tasks were killed while they write; what happened."""
    counts: Counter[str] = Counter()
    killed = f"{orders.TABLE}.table killed"
    while counts[killed] < kills:
        orders.publish(pipeline, BATCHES)
        counts["Batches"] += BATCHES
        pipeline.rest.wait_for_run(orders.PLAN, asked(lambda: pipeline.rest.trigger(orders.PLAN)))
        before = ranges_in(pipeline)
        time.sleep(random.random() * longest_s)  # where it is killed is the point
        counts[f"{pipeline.kill_running_task([orders.TABLE])} killed"] += 1
        counts["ranges put in meanwhile"] += ranges_in(pipeline) - before
        if random.random() < 1 / AIRFLOW_TOO:
            victim = random.choice(["scheduler", "triggerer"])
            pipeline.airflow.restart(victim)
            pipeline.airflow.wait_until_healthy()
            counts[f"{victim}s killed"] += 1
    orders.plan(pipeline)
    return counts


def ranges_in(pipeline: Pipeline) -> int:
    """How many ranges the table has; none before there is one."""
    try:
        return len(orders.table(pipeline).ranges())
    except ConfigError:
        return 0


def check(pipeline: Pipeline) -> Counter[str]:
    """Everything that must hold in the end; what was counted."""
    table, end = orders.table(pipeline), orders.end(pipeline)
    assert check_table(table).findings == []
    assert table.load().scan().count() == end
    ((_, _, _, held),) = table.look().ledger.partitions()
    assert (held.intervals, held.records) == ([Interval(0, end)], end)
    runs = pipeline.rest.runs(orders.TABLE)
    succeeded = Counter(each["partition_key"] for each in runs if each["state"] == "success")
    rebuilt = [each.range.offsets for each in table.ranges()]
    assert sorted(map(parse_key, succeeded)) == sorted(rebuilt)
    assert set(succeeded.values()) == {1}
    tries = sum(
        pipeline.rest.task(orders.TABLE, each["dag_run_id"], "table")["try_number"] for each in runs
    )
    return Counter({"ranges": len(rebuilt), "runs": len(runs), "tries": tries})


if __name__ == "__main__":
    main()
