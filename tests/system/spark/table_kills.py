"""Kill Spark programs that put ranges into a table, and check.

`python -m tests.system.spark.table_kills --kills 30`.

Programs that put ranges into one table, in any order, are killed with SIGKILL at any moment; most
of them while their range is not in it yet. As ranges get in nevertheless, more data is produced. In
the end two programs at a time run for each range that is missing. Then the table has each record
once.
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
MOST_BATCHES = 3  # of a range
AGAIN = 0.2  # of the kills, of a program whose range is in the table
RECORDS = 50
RUN_S = 900  # on a busy machine
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


class Lake:
    """A topic, the ranges that are wanted of it, and what of them is in the table.

    Args:
        address: of the broker.
        folder: for the catalog and the table.
        rng: chance.
    """

    def __init__(self, address: str, folder: Path, rng: random.Random) -> None:
        self.address, self.folder, self.ranges = address, folder, []
        self._rng = rng
        with AdminClient(address) as admin:
            admin.create_topic(TOPIC, batch_age="10ms", read_partitions=1)

    @property
    def end(self) -> int:
        """One past the last offset."""
        return self.ranges[-1][1] if self.ranges else 0

    def grow(self) -> None:
        """Produce another range."""
        end = self.end + self._rng.randint(1, MOST_BATCHES)
        with Producer(self.address, topic=TOPIC, acks="all") as producer:
            for batch in range(self.end, end):
                for number in range(RECORDS):
                    producer.write(b"%d" % (batch * RECORDS + number))
                producer.flush(timeout=60)
        self.ranges.append((self.end, end))

    def is_in(self, wanted: tuple[int, int]) -> bool:
        """Whether a range is in the table, by what the table says itself."""
        try:
            partitions = open_table(TABLE, catalog_options(self.folder)).look().ledger.partitions()
        except ConfigError:  # there is no table yet
            return False
        intervals = [each for _, _, _, held in partitions for each in held.intervals]
        return any(each.start <= wanted[0] and wanted[1] <= each.end for each in intervals)


def kill_and_finish(folder: Path, kills: int, seed: int) -> Counter:
    """Kill so many programs; let those after them end; check. What happened, counted."""
    rng, counts = random.Random(seed), Counter()
    with BrokerProcess(folder / "broker") as broker:
        lake = Lake(broker.address, folder, rng)
        while counts["killed"] < kills:
            missing = [each for each in lake.ranges if not lake.is_in(each)]
            if not missing or rng.random() < 1 / len(lake.ranges):
                lake.grow()
                missing.append(lake.ranges[-1])
            there = [each for each in lake.ranges if each not in missing]
            wanted = rng.choice(there if there and rng.random() < AGAIN else missing)
            at = rng.choice(["expecting", "committing", "committing"])
            after_s = rng.choice([0.0, rng.random() * 0.3, rng.random() * 3])
            said = kill_at(program(broker.address, folder, *wanted), at, after_s)
            counts["killed"] += 1
            counts["killed while it commits"] += "committing" in said
            counts["killed when it was in"] += wanted in missing and lake.is_in(wanted)
            counts["the range was there"] += wanted in there
        missing = [each for each in lake.ranges if not lake.is_in(each)]
        for start, end in rng.sample(missing, len(missing)) or lake.ranges[:1]:
            both = [program(broker.address, folder, start, end) for _ in range(2)]
            for each in both:
                out, _ = each.communicate(timeout=RUN_S)
                assert each.returncode == 0, out
                counts["ended"] += 1
        counts["ranges"] = len(lake.ranges)
        check(folder, lake.end)
    return counts


def check(folder: Path, end: int) -> None:
    """The table has each record once, and its ledger says so."""
    table = open_table(TABLE, catalog_options(folder))
    values = sorted(int(each) for each in table.load().scan().to_arrow()["value"].to_pylist())
    assert values == list(range(end * RECORDS))
    ((_, _, _, held),) = table.look().ledger.partitions()
    assert held.intervals == [Interval(0, end)]
    assert held.records == end * RECORDS
    assert check_table(table).findings == []


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        found = kill_and_finish(Path(temporary), given.kills, given.seed)
    print(f"ok: seed {given.seed}, {dict(found)}; each record is in the table once")  # noqa: T201
