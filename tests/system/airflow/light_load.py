"""How many DAG runs a light load makes in a real Airflow: run it by hand.

    python -m tests.system.airflow.light_load [--minutes 5] [--linger 0s 1m]

60 KB are published every ten seconds to two read partitions; jobs run by the stand-in for Spark.
For each `range_linger` it says how many runs of each DAG that made, and what that is for an hour.
Then everything must have been processed once.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from memq import Producer
from tests.system.airflow.pipeline import PLAN, PROCESS, TOPIC, Pipeline
from tests.system.airflow.soak import say

EVERY_S = 10.0
VALUES, VALUE_BYTES = 60, 1000


def main() -> None:
    """Run it for each linger, and print what was counted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--linger", nargs="+", default=["0s", "1m"])
    given = parser.parse_args()
    for linger in given.linger:
        folder = Path(tempfile.mkdtemp(prefix="memq-light-"))
        say(f"range_linger = {linger}, in {folder}")
        # Without a linger nothing waits at all, as long as there was neither.
        pending = "0" if linger == "0s" else "4"
        settings = {"range_linger": linger, "max_pending_ranges": pending}
        with Pipeline(folder, settings=settings) as pipeline:
            for dag_id in (PLAN, PROCESS):
                pipeline.rest.wait_for_dag(dag_id)
            measure(pipeline, given.minutes * 60)


def measure(pipeline: Pipeline, seconds: float) -> None:
    """Publish so long, count the runs, and check what came of it."""
    begin = time.monotonic()
    publications = 0
    while time.monotonic() - begin < seconds:
        publish(pipeline)
        publications += 1
        time.sleep(max(0.0, begin + publications * EVERY_S - time.monotonic()))
    runs = {dag_id: len(pipeline.rest.runs(dag_id)) for dag_id in (PLAN, PROCESS)}
    pipeline.wait_until_processed(600)
    found = pipeline.check()
    hourly = {dag_id: round(count * 3600 / seconds) for dag_id, count in runs.items()}
    say(f"{publications} publications, {found['ranges']} ranges, runs {runs}; an hour: {hourly}")


def publish(pipeline: Pipeline) -> None:
    """60 KB, and wait until they are stored."""
    with Producer(pipeline.broker.address, topic=TOPIC, acks="all") as producer:
        values = [pipeline.ledger.next() for _ in range(VALUES)]
        waiting = [(value, producer.write(b"%0*d" % (VALUE_BYTES, value))) for value in values]
        for value, delivery in waiting:
            delivery.result(60)
            pipeline.ledger.acked.add(value)


if __name__ == "__main__":
    main()
