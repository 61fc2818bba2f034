"""Peak memory of the broker under twice the load that it can store."""

from __future__ import annotations

import os
import threading
import time

from benchmarks.broker import broker_process, resident_bytes, scratch_directory
from memq import AdminClient, Producer
from memq.errors import MemqError

TOPIC = "memory"
STORE_BYTES_S = 100 << 20
LOAD = 2
BOUND = "256MiB"
BOUND_BYTES = 256 << 20
PROCESS_BYTES = 200 << 20  # interpreter, Arrow and buffers of the kernel's making
SECONDS = 15
PRODUCERS = 4
CHUNK_BYTES = 64 << 10


def blast(address: str, stop: float) -> None:
    """Write at this producer's share of twice what can be stored."""
    value = os.urandom(CHUNK_BYTES)
    rate = LOAD * STORE_BYTES_S / PRODUCERS / CHUNK_BYTES
    options = {"acks": "all", "buffer_bytes": "32MiB", "max_block": "60s"}
    producer = Producer(address, topic=TOPIC, **options)
    start, sent = time.perf_counter(), 0
    try:
        while time.perf_counter() < stop:
            producer.write(value)
            sent += 1
            time.sleep(max(0.0, start + sent / rate - time.perf_counter()))
        producer.close(timeout=30)
    except MemqError as exc:
        print(f"memory: a producer ended early: {exc}")


def run() -> list[tuple[str, str, str]]:
    """Rows of (name, figure, note)."""
    with (
        scratch_directory() as directory,
        broker_process(f"narrow:{STORE_BYTES_S}", directory, memory_bytes=BOUND) as (address, pid),
    ):
        with AdminClient(address) as admin:
            admin.create_topic(TOPIC, ring_slots=64, audited=False)
        idle = peak = resident_bytes(pid)
        stop = time.perf_counter() + SECONDS
        threads = [threading.Thread(target=blast, args=(address, stop)) for _ in range(PRODUCERS)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            peak = max(peak, resident_bytes(pid))
            time.sleep(0.02)
    within = "yes" if peak <= BOUND_BYTES + PROCESS_BYTES else "NO"
    return [
        (
            f"memory under {LOAD}x the load that can be stored ({STORE_BYTES_S >> 20} MiB/s)",
            f"peak {peak >> 20} MiB, idle {idle >> 20} MiB",
            f"within memory_bytes {BOUND} + {PROCESS_BYTES >> 20} MiB for the process: {within}",
        )
    ]


if __name__ == "__main__":
    for row in run():
        print(*row, sep=" | ")
