"""End to end, `acks=all` on synced local storage: produce → stored → notified → consumed as Arrow.

Producer, broker and consumer are processes of their own. The limit is the same disk taking the same
bytes in files of the same size, each written and synced, measured right before and after.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from typing import TYPE_CHECKING

import pyarrow as pa

from benchmarks.broker import broker_process, scratch_directory
from memq import AdminClient, Consumer, Producer
from memq.core.format.message import encode_records

if TYPE_CHECKING:
    from pathlib import Path

TOPIC = "end-to-end"
RECORD_BYTES = 1024
TABLE_RECORDS = 4096
BATCH_BYTES = 16 << 20
TOTAL_BYTES = 2 << 30
BATCH = "batch 16 MiB, Messages 4 MiB"


def consume(address: str, records: int, ready: object, done: object) -> None:
    """Read so many records as Arrow; tells when it is ready and when the last one is there."""
    with Consumer(address, topic=TOPIC, start="earliest") as consumer:
        consumer.poll(timeout=0.01)
        ready.set()
        left = records
        while left:
            batch = consumer.poll(timeout=10)
            assert batch is not None, f"{left} records did not come"
            left -= batch.to_arrow().num_rows
    done.put(time.time())


def produce(address: str) -> tuple[int, float, float]:
    """Write tables; records written, and when the first began and the last was acked."""
    value = os.urandom(RECORD_BYTES)
    table = pa.Table.from_batches(
        [encode_records(None, [value] * TABLE_RECORDS, None, [1] * TABLE_RECORDS)]
    )
    tables = TOTAL_BYTES // (RECORD_BYTES * TABLE_RECORDS)
    options = {"acks": "all", "message_bytes": "4MiB", "buffer_bytes": "128MiB"}
    with Producer(address, topic=TOPIC, **options) as producer:
        start = time.time()
        deliveries = [d for _ in range(tables) for d in producer.write_table(table)]
        producer.flush(timeout=120)
        end = time.time()
        for delivery in deliveries:
            delivery.result(0)
    return tables * TABLE_RECORDS, start, end


def write_and_sync(directory: Path, size_bytes: int, count: int) -> float:
    """Bytes a second of `count` files of that size, each written and synced."""
    data = os.urandom(size_bytes)
    start = time.perf_counter()
    for number in range(count):
        file = os.open(directory / f"limit-{number}", os.O_CREAT | os.O_WRONLY)
        os.write(file, data)
        os.fsync(file)
        os.close(file)
    took = time.perf_counter() - start
    for number in range(count):
        (directory / f"limit-{number}").unlink()
    return size_bytes * count / took


def run() -> list[tuple[str, str, str]]:
    """Rows of (name, figure, note)."""
    context = multiprocessing.get_context("spawn")
    with scratch_directory() as directory, broker_process("local", directory) as (address, _):
        with AdminClient(address) as admin:
            admin.create_topic(
                TOPIC,
                batch_bytes="16MiB",
                message_bytes="8MiB",
                batch_age="1s",
                audited=False,
                retention="1d",
            )
        ready, done = context.Event(), context.Queue()
        records = TOTAL_BYTES // RECORD_BYTES
        reader = context.Process(target=consume, args=(address, records, ready, done))
        reader.start()
        ready.wait()
        count = TOTAL_BYTES // BATCH_BYTES
        before = write_and_sync(directory, BATCH_BYTES, count)
        written, start, acked = produce(address)
        consumed = done.get(timeout=120)
        reader.join()
        after = write_and_sync(directory, BATCH_BYTES, count)
    assert written == records
    limit = (before + after) / 2
    rate = written * RECORD_BYTES / (consumed - start)
    return [
        (
            f"end to end, acks=all, fsync, {RECORD_BYTES} B records, {BATCH}",
            f"{rate / 1e6:,.0f} MB/s, {written / (consumed - start):,.0f} records/s",
            f"{rate / limit:.2f} of write+fsync ({before / 1e6:,.0f} and {after / 1e6:,.0f} MB/s); "
            f"last ack {1e3 * (consumed - acked):.0f} ms before the last record was read",
        )
    ]


if __name__ == "__main__":
    for row in run():
        print(*row, sep=" | ")
