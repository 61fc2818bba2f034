"""How fresh a read over a table and its topic is: `python -m benchmarks scan`.

A program writes all the time and puts what it wrote into the table, twice a second. Another one
writes a record, waits for the ack, and then reads table and topic as one until it meets the record.
It must be in the first read; how long that takes, from the ack on, is how stale a reader is. What
the table has is read before it, so that counts as well.
"""

from __future__ import annotations

import multiprocessing
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.broker import broker_process, scratch_directory
from memq import AdminClient, Producer, read_range, scan
from memq.tables.commit import Written, commit_range
from memq.tables.iceberg import IcebergTable, open_table
from memq.tables.ledger import TopicRange

if TYPE_CHECKING:
    from collections.abc import Sequence

TOPIC = "clicks"
SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])
TABLE_ROWS = 100_000  # in the table when it begins
STEP_ROWS = 500
STEP_S = 0.5
BEHIND = 2  # offsets that are left to Batches each time
SAMPLES = 200
LIMIT_S = 1.0

Row = tuple[str, str, str]


class Place(NamedTuple):
    """Where topic and table are."""

    address: str
    folder: str

    @property
    def table(self) -> IcebergTable:
        """The table."""
        catalog = {
            "type": "sql",
            "uri": f"sqlite:///{self.folder}/catalog.db",
            "warehouse": f"file://{self.folder}/lake",
        }
        return open_table("bench:lake.clicks", catalog)


def rows(numbers: Sequence[int]) -> pa.Table:
    """Rows of about 100 bytes."""
    return pa.table([numbers, [f"{n:>92}" for n in numbers]], schema=SCHEMA)


def put(place: Place, start: int, end: int) -> None:
    """Put a range into the table."""
    with AdminClient(place.address) as admin:
        topic_id = admin.describe_topic(TOPIC).topic_id
    read = read_range(place.address, topic=TOPIC, partition=0, start=start, end=end, metadata=True)
    for name, value in (("topic", TOPIC), ("memq_topic_id", topic_id)):
        read = read.append_column(name, pa.repeat(pa.scalar(value), len(read)))
    table = place.table
    table.create(read.schema)
    wanted = TopicRange(
        topic=TOPIC, topic_id=topic_id, partition=0, start=start, end=end, records=len(read)
    )
    path = Path(place.folder) / f"{uuid.uuid4().hex}.parquet"

    def write() -> Written:
        pq.write_table(read, path)
        return Written(wanted, [f"file://{path}"])

    commit_range(table, wanted, write, attempt=uuid.uuid4().hex, job="bench")


def end_of(place: Place) -> int:
    """Where the topic ends."""
    with AdminClient(place.address) as admin:
        return admin.offsets(TOPIC)[0].end


def move(place: Place, held: int, stop: Any, commits: Any) -> None:
    """Write, and put what was written into the table, until told to stop."""
    with Producer(place.address, topic=TOPIC, acks="all") as producer:
        while not stop.wait(STEP_S):
            producer.write_table(rows(range(STEP_ROWS)))
            producer.flush(timeout=60)
            if (new := end_of(place) - BEHIND) > held:
                put(place, held, new)
                held = new
                with commits.get_lock():
                    commits.value += 1


def sample(place: Place, producer: Producer, number: int) -> tuple[float, float]:
    """Seconds from the ack of a record until a read is settled, and until it has given it."""
    producer.write_table(rows([-number]))
    producer.flush(timeout=60)
    acked_s = time.perf_counter()
    reader = scan(place.address, topic=TOPIC, table=place.table)
    settled_s = time.perf_counter()
    met = sum(pc.sum(pc.equal(batch["n"], -number)).as_py() or 0 for batch in reader)
    assert met == 1, f"record {number} is there {met} times"
    return settled_s - acked_s, time.perf_counter() - acked_s


def measure(folder: Path, address: str) -> tuple[list[tuple[float, float]], int, int]:
    """The samples, how often the table was committed to meanwhile, and the rows at the end."""
    place = Place(address, str(folder))
    with AdminClient(address) as admin:
        admin.create_topic(TOPIC, schema=SCHEMA, batch_age="10ms", read_partitions=1)
    with Producer(address, topic=TOPIC, acks="all") as producer:
        producer.write_table(rows(range(TABLE_ROWS)))
        producer.flush(timeout=60)
        held = end_of(place)
        put(place, 0, held)
        context = multiprocessing.get_context("spawn")
        stop, commits = context.Event(), context.Value("i", 0)
        mover = context.Process(target=move, args=(place, held, stop, commits))
        mover.start()
        try:
            while not commits.value and mover.is_alive():
                mover.join(0.05)
            sample(place, producer, SAMPLES + 1)  # the first loads what it needs
            samples = [sample(place, producer, number) for number in range(1, SAMPLES + 1)]
        finally:
            stop.set()
            mover.join()
    assert mover.exitcode == 0, "the other program failed"
    total = sum(batch.num_rows for batch in scan(address, topic=TOPIC, table=place.table))
    return samples, commits.value, total


def run() -> list[Row]:
    """Rows of (name, figure, note)."""
    with scratch_directory() as folder, broker_process("local", folder) as (address, _):
        samples, commits, total = measure(folder, address)
    found = []
    for number, name in enumerate(
        (
            "from an ack until a read over table and topic is settled, with the record in it",
            "from an ack until the record was read, after all rows of the table",
        )
    ):
        seconds = sorted(each[number] for each in samples)
        p50, p99 = (seconds[min(len(seconds) - 1, int(len(seconds) * q))] for q in (0.5, 0.99))
        note = f"p99 under {LIMIT_S:g} s: {'yes' if p99 < LIMIT_S else 'NO'}; {SAMPLES} records, "
        note += f"each in the first read; {commits} commits to the table, {total:,} rows at the end"
        figure = f"p50 {1e3 * p50:.0f} ms, p99 {1e3 * p99:.0f} ms, p100 {1e3 * seconds[-1]:.0f} ms"
        found.append((name, figure, note))
    return found


if __name__ == "__main__":
    for row in run():
        print(*row, sep=" | ")
