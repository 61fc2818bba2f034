"""Kill Spark programs that put ranges into a table, and check.

`python -m tests.system.spark.table_kills --kills 30`.

Programs that put ranges into one table, in any order, are killed with SIGKILL at any moment. In the
end two programs at a time run for each range that is missing. Then the table has each record once.
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
from pathlib import Path

from memq import AdminClient, Producer
from memq.core.ranges import Interval
from memq.errors import ConfigError
from memq.tables.check import check_table
from memq.tables.iceberg import open_table
from memq.testing.broker import BrokerProcess
from tests.integration.tables.lake import catalog_options

ROOT = Path(__file__).parents[3]
RECORDS = 50  # of a Batch, and each Batch is a range
RUN_S = 900  # on a busy machine
TOPIC, TABLE = "clicks", "local:lake.clicks"
KNOWN = {
    "PYTHONPATH": str(ROOT),
    "PYSPARK_PYTHON": sys.executable,
    "SPARK_LOCAL_IP": "127.0.0.1",
}


def program(address: str, folder: Path, offset: int) -> subprocess.Popen:
    """Start the program over a range."""
    arguments = {
        "bootstrap": address,
        "topic": TOPIC,
        "partition": 0,
        "start": offset,
        "end": offset + 1,
        "output": TABLE,
        "catalog-options": ",".join(f"{n}={value}" for n, value in catalog_options(folder).items()),
        "manifest": f"{folder}/{offset}.{time.monotonic_ns()}.json",
    }
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "memq.spark.apps.range_to_iceberg"),
            *(f"--{name}={value}" for name, value in arguments.items()),
        ],
        cwd=ROOT,
        env=os.environ | KNOWN,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # the JVM is killed with it
    )


def kill_at(process: subprocess.Popen, line: str, after_s: float) -> None:
    """Kill a program some time after it has said something."""
    for each in process.stdout:
        if line in each:
            time.sleep(after_s)  # where it is killed is the point, and it says no more
            break
    if process.poll() is None:
        os.killpg(process.pid, 9)
    process.wait()
    process.stdout.close()


def held(folder: Path) -> set[int]:
    """The offsets that are in the table, by what it says itself."""
    try:
        partitions = open_table(TABLE, catalog_options(folder)).look().ledger.partitions()
    except ConfigError:  # there is no table yet
        return set()
    intervals = [each for *_, there in partitions for each in there.intervals]
    return {offset for start, end in intervals for offset in range(start, end)}


def kill_and_finish(folder: Path, kills: int, seed: int) -> Counter:
    """Kill so many programs; let those after them end; check. What happened, counted."""
    rng, counts, ranges = random.Random(seed), Counter(), range(kills)
    with BrokerProcess(folder / "broker") as broker:
        with AdminClient(broker.address) as admin:
            admin.create_topic(TOPIC, batch_age="10ms", read_partitions=1)
        with Producer(broker.address, topic=TOPIC, acks="all") as producer:
            for batch in ranges:
                for number in range(RECORDS):
                    producer.write(b"%d" % (batch * RECORDS + number))
                producer.flush(timeout=60)
        for _ in range(kills):
            at = rng.choice(["expecting", "committing", "committing"])
            after_s = rng.choice([0.0, rng.random() * 0.3, rng.random() * 3])
            kill_at(program(broker.address, folder, rng.choice(ranges)), at, after_s)
            counts["killed"] += 1
        for offset in sorted({*ranges} - held(folder)) or [0]:
            for each in [program(broker.address, folder, offset) for _ in range(2)]:
                out, _ = each.communicate(timeout=RUN_S)
                assert each.returncode == 0, out
                counts["ended"] += 1
    check(folder, len(ranges))
    return counts


def check(folder: Path, end: int) -> None:
    """The table has each record once, and its ledger says so."""
    table = open_table(TABLE, catalog_options(folder))
    values = sorted(int(each) for each in table.load().scan().to_arrow()["value"].to_pylist())
    assert values == list(range(end * RECORDS))
    ((_, _, _, there),) = table.look().ledger.partitions()
    assert (there.intervals, there.records) == ([Interval(0, end)], end * RECORDS)
    assert check_table(table).findings == []


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        found = kill_and_finish(Path(temporary), given.kills, given.seed)
    print(f"ok: seed {given.seed}, {dict(found)}; each record is in the table once")  # noqa: T201
