"""Kill Spark programs that put ranges into a table, and check.

`python -m tests.system.spark.table_kills --kills 30`.

Two programs at a time put the same ranges in, each in an order of its own, and are killed with
SIGKILL at any moment. In the end the table has each record once.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

from memq import AdminClient, Producer
from memq.core.ranges import Interval
from memq.tables.check import check_table
from memq.tables.iceberg import open_table
from memq.testing.broker import BrokerProcess
from tests.integration.tables.lake import catalog_options

ROOT = Path(__file__).parents[3]
BATCHES = 8
RECORDS = 50
RUN_S = 240
TOPIC = "clicks"
TABLE = "local:lake.clicks"
KNOWN = {
    "PYTHONPATH": str(ROOT),
    "PYSPARK_PYTHON": sys.executable,
    "SPARK_LOCAL_IP": "127.0.0.1",
}


def program(address: str, folder: Path, start: int, end: int) -> subprocess.Popen:
    """Start the program over a range."""
    options = ",".join(f"{name}={value}" for name, value in catalog_options(folder).items())
    manifest = f"{folder}/{start}-{end}.{time.monotonic_ns()}.json"
    arguments = {
        "--bootstrap": address,
        "--topic": TOPIC,
        "--partition": "0",
        "--start": str(start),
        "--end": str(end),
        "--output": TABLE,
        "--catalog-options": options,
        "--manifest": manifest,
    }
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "memq.spark.apps.range_to_iceberg",
            *(text for pair in arguments.items() for text in pair),
        ],
        cwd=ROOT,
        env=os.environ | KNOWN,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # the JVM is killed with it
    )


def kill_at(process: subprocess.Popen, line: str, after_s: float) -> str:
    """Kill a program some time after it has said something; what it said until then."""
    said = ""
    for each in process.stdout:
        said += each
        if line in each:
            time.sleep(after_s)  # where it is killed is the point, and it says no more
            break
    if process.poll() is None:
        os.killpg(process.pid, 9)
    process.wait()
    process.stdout.close()
    return said


def kill_and_finish(folder: Path, kills: int, seed: int, cuts: tuple[int, ...]) -> Counter:
    """Kill so many programs; let those after them end; check. What happened, counted."""
    rng, counts = random.Random(seed), Counter()
    ranges = list(pairwise(cuts))
    with BrokerProcess(folder / "broker") as broker:
        with AdminClient(broker.address) as admin:
            admin.create_topic(TOPIC, batch_age="10ms", read_partitions=1)
        with Producer(broker.address, topic=TOPIC, acks="all") as producer:
            for number in range(BATCHES * RECORDS):
                producer.write(b"%d" % number)
                if number % RECORDS == RECORDS - 1:
                    producer.flush(timeout=60)
        while counts["killed"] < kills:
            at = rng.choice(["expecting", "committing", "committing"])
            after_s = rng.choice([0.0, rng.random() * 0.3, rng.random() * 3])
            said = kill_at(program(broker.address, folder, *rng.choice(ranges)), at, after_s)
            counts["killed"] += 1
            counts["killed while it commits"] += "committing" in said
            counts["the range was there"] += "has the range already" in said
        for start, end in rng.sample(ranges, len(ranges)):
            both = [program(broker.address, folder, start, end) for _ in range(2)]
            for each in both:
                out, _ = each.communicate(timeout=RUN_S)
                assert each.returncode == 0, out
                counts["ended"] += 1
    check(folder)
    return counts


def check(folder: Path) -> None:
    """The table has each record once, and its ledger says so."""
    table = open_table(TABLE, catalog_options(folder))
    values = sorted(int(each) for each in table.load().scan().to_arrow()["value"].to_pylist())
    assert values == list(range(BATCHES * RECORDS))
    ((_, _, _, held),) = table.look().ledger.partitions()
    assert held.intervals == [Interval(0, BATCHES)]
    assert held.records == BATCHES * RECORDS
    assert check_table(table).findings == []


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        found = kill_and_finish(Path(temporary), given.kills, given.seed, (0, 2, 3, 6, BATCHES))
    print(f"ok: seed {given.seed}, {dict(found)}; each record is in the table once")  # noqa: T201
