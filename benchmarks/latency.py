"""End-to-end latency at a tenth of the peak load, from `write` to the consumer's poll.

With a Batch age of 100 ms, on local storage and with the put latency of an object store.
"""

from __future__ import annotations

import multiprocessing
import time

from benchmarks.broker import broker_process, scratch_directory
from memq import AdminClient, Consumer, Producer

TOPIC = "latency"
RECORD_BYTES = 1024
PEAK_RECORDS_S = 400_000  # 1 KiB records, end to end on two cores: see end_to_end
RATE_RECORDS_S = PEAK_RECORDS_S // 10
SECONDS = 10
STEP_S = 0.005


def consume(address: str, records: int, ready: object, result: object) -> None:
    """Read so many records and report their latencies; every record says when it was written."""
    latencies: list[float] = []
    with Consumer(address, topic=TOPIC, start="earliest") as consumer:
        consumer.poll(timeout=0.01)
        ready.set()
        while len(latencies) < records:
            batch = consumer.poll(timeout=30)
            assert batch is not None, f"{records - len(latencies)} records did not come"
            now_us = time.time_ns() // 1000
            written_us = batch.to_arrow()["timestamp"].cast("int64").to_pylist()
            latencies += [(now_us - us) / 1000 for us in written_us]
    latencies.sort()
    result.put([latencies[min(len(latencies) - 1, int(len(latencies) * q))] for q in QUANTILES])


QUANTILES = (0.5, 0.99, 1.0)


def produce(address: str) -> None:
    """Write at a steady rate."""
    value = bytes(RECORD_BYTES)
    step_records = int(RATE_RECORDS_S * STEP_S)
    with Producer(address, topic=TOPIC, acks="all", linger="5ms") as producer:
        start = time.perf_counter()
        for step in range(int(SECONDS / STEP_S)):
            for _ in range(step_records):
                producer.write(value)
            time.sleep(max(0.0, start + (step + 1) * STEP_S - time.perf_counter()))
        producer.flush(timeout=60)


def measure(storage: str) -> list[float]:
    """p50, p99 and p100 in milliseconds."""
    context = multiprocessing.get_context("spawn")
    with scratch_directory() as directory, broker_process(storage, directory) as (address, _):
        with AdminClient(address) as admin:
            admin.create_topic(TOPIC, batch_age="100ms", ring_slots=16, audited=False)
        ready, result = context.Event(), context.Queue()
        records = int(SECONDS / STEP_S) * int(RATE_RECORDS_S * STEP_S)
        reader = context.Process(target=consume, args=(address, records, ready, result))
        reader.start()
        ready.wait()
        produce(address)
        quantiles: list[float] = result.get(timeout=60)
        reader.join()
    return quantiles


def run() -> list[tuple[str, str, str]]:
    """Rows of (name, figure, note)."""
    rows = []
    for storage, name, limit_ms in (
        ("local", "local storage, fsync", 250),
        ("slow", "puts of 100 to 400 ms", 1_000),
    ):
        p50, p99, p100 = measure(storage)
        rows.append(
            (
                f"latency, {RATE_RECORDS_S:,} records/s of 1 KiB, batch age 100 ms, {name}",
                f"p50 {p50:.0f} ms, p99 {p99:.0f} ms, p100 {p100:.0f} ms",
                f"p99 under {limit_ms} ms: {'yes' if p99 < limit_ms else 'NO'}; linger 5 ms",
            )
        )
    return rows


if __name__ == "__main__":
    for row in run():
        print(*row, sep=" | ")
