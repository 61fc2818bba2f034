"""An object store beside what obstore alone reaches there: `python -m benchmarks.object_store`.

The server is S3Proxy on this machine, which takes more of the processor than both clients; so what
counts is the ratio of ours to obstore alone, by turns in one run. Payloads are not signed. Requests
for a gigabyte that a broker takes in, and for one that a consumer reads, are counted: stores bill
them.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.broker import broker_process
from benchmarks.ingest import TOPIC, Loader, body_of
from memq import Consumer
from memq.storage import object_store
from memq.storage.object_store import ObjectStorage
from memq.storage.object_store_client import open_store
from memq.storage.open import open_uri
from tests.harness.services.process import free_ports
from tests.harness.services.s3proxy import S3Proxy

if TYPE_CHECKING:
    from collections.abc import Callable

BUCKET = "s3://bench"
MIB = 1 << 20
BUFFERS = [os.urandom(MIB) for _ in range(8)]  # an object of 8 MiB, as a Batch comes
PUTS = 24  # in a round
AT_A_TIME = 8
LARGE_BYTES = 64 * MIB  # an object that is read by several requests
ROUNDS = 5
OPTIONS = {"unsigned_payload": "true"}
INGEST_BYTES = 1024 * MIB
INGEST_ROUNDS = 3
RING_SLOTS, IN_FLIGHT = 16, 128  # so that the store always has eight Batches to take at a time
MESSAGE_BYTES = MIB

Figures = list[tuple[str, str, str]]

_numbers = count()


def seconds_of(work: Callable[[], object]) -> float:
    """How long it took."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def median_rates(
    works: dict[str, Callable[[], object]], size_bytes: int, rounds: int = ROUNDS
) -> dict[str, float]:
    """Bytes a second of each, median over rounds in which all have their turn."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            seconds[name].append(seconds_of(work))
    return {name: size_bytes / statistics.median(each) for name, each in seconds.items()}


def all_at_once(pool: ThreadPoolExecutor, work: Callable[[str], object]) -> None:
    """Put so many objects, some at a time."""
    list(pool.map(work, [f"{next(_numbers):08d}" for _ in range(PUTS)]))


def puts(pool: ThreadPoolExecutor) -> Figures:
    """Objects of 8 MiB, from threads."""
    bare, ours = open_store(BUCKET, OPTIONS).store, ObjectStorage(BUCKET, "ours", OPTIONS)
    rates = median_rates(
        {
            "obstore": lambda: all_at_once(
                pool, lambda key: obstore.put(bare, key, BUFFERS, use_multipart=False)
            ),
            "ours": lambda: all_at_once(pool, lambda key: ours.put(key, BUFFERS, timeout_s=60)),
        },
        PUTS * len(BUFFERS) * MIB,
    )
    return [
        (
            f"put, 8 MiB, {AT_A_TIME} at a time",
            f"{rates['ours'] / 1e6:.0f} MB/s",
            f"{rates['ours'] / rates['obstore']:.2f} of obstore alone, "
            f"{rates['obstore'] / 1e6:.0f} MB/s",
        )
    ]


def gets() -> Figures:
    """One large object, by one request at a time and by several."""
    bare, ours = open_store(BUCKET, OPTIONS).store, ObjectStorage(BUCKET, "ours", OPTIONS)
    ours.put("large", BUFFERS * (LARGE_BYTES // len(BUFFERS) // MIB), timeout_s=60)
    part = object_store.PART_BYTES
    starts = list(range(0, LARGE_BYTES, part))
    found = []
    for parts in (1, object_store.PARTS_AT_A_TIME):

        def bare_get(parts: int = parts) -> None:
            for first in range(0, len(starts), parts):
                some = starts[first : first + parts]
                obstore.get_ranges(
                    bare, "ours/large", starts=some, lengths=[part] * len(some), coalesce=0
                )

        def our_get(parts: int = parts) -> None:
            usual, object_store.PARTS_AT_A_TIME = object_store.PARTS_AT_A_TIME, parts
            try:
                ours.get_range("large", 0, LARGE_BYTES)
            finally:
                object_store.PARTS_AT_A_TIME = usual

        rates = median_rates({"obstore": bare_get, "ours": our_get}, LARGE_BYTES)
        found.append(
            (
                f"get, 64 MiB, {parts} at a time",
                f"{rates['ours'] / 1e6:.0f} MB/s",
                f"{rates['ours'] / rates['obstore']:.2f} of obstore alone, "
                f"{rates['obstore'] / 1e6:.0f} MB/s",
            )
        )
    return found


def ingest(folder: Path, pool: ThreadPoolExecutor) -> Figures:
    """Messages of 1 MiB through a broker, each acked when its Batch is stored and notified."""
    bare = open_store(BUCKET, OPTIONS).store
    objects = INGEST_BYTES // (len(BUFFERS) * MIB)
    body = body_of(MESSAGE_BYTES)
    (port,) = free_ports(1)
    options = {
        "storage": f"{BUCKET}/ingest",
        "storage_options": "unsigned_payload=true",
        "admin_port": str(port),
    }
    with broker_process("configured", folder / "broker", **options) as (address, _):
        loader = Loader(address)
        # The last Batch waits for its age; while Messages come they are sealed by their size.
        schema_id = loader.create(batch_bytes="8MiB", batch_age="50ms", ring_slots=str(RING_SLOTS))
        rates = median_rates(
            {
                "obstore": lambda: list(
                    pool.map(
                        lambda _: obstore.put(
                            bare, f"{next(_numbers):08d}", BUFFERS, use_multipart=False
                        ),
                        range(objects),
                    )
                ),
                "broker": lambda: loader.write(
                    body, INGEST_BYTES // MESSAGE_BYTES, schema_id, acks=-1, window=IN_FLIGHT
                ),
            },
            INGEST_BYTES,
            INGEST_ROUNDS,
        )
        loader.socket.close()
        asked = asked_for(address, port)
    return [
        (
            "broker, Messages of 1 MiB, acks=all, Batches of 8 MiB",
            f"{rates['broker'] / 1e6:.0f} MB/s",
            f"{rates['broker'] / rates['obstore']:.2f} of obstore alone putting such objects, "
            f"{rates['obstore'] / 1e6:.0f} MB/s",
        ),
        *asked,
    ]


def metric(port: int, name: str, **labels: str) -> float:
    """One value of a broker's metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        metrics = [*text_string_to_metric_families(answer.read().decode())]
    samples = next(each for each in metrics if each.name == name).samples
    return next(each.value for each in samples if each.labels == labels)


def asked_for(address: str, port: int) -> Figures:
    """Requests for each gigabyte: of the broker that takes it in, and of who reads it."""
    puts = metric(port, "memq_storage_requests", kind="put")
    cpu_s = metric(port, "process_cpu_seconds")
    storage, _ = open_uri(BUCKET)  # the one that consumers of this process share
    assert isinstance(storage, ObjectStorage)
    taken = INGEST_ROUNDS * INGEST_BYTES
    gigabytes, left = taken / 1e9, taken // MESSAGE_BYTES
    with Consumer(address, topic=TOPIC, start="earliest") as consumer:
        while left:
            batch = consumer.poll(timeout=30)
            assert batch is not None, f"{left} Messages did not come"
            left -= batch.notification.messages
    whole = 1e9 / (len(BUFFERS) * MIB)
    figures = [
        (
            "taken in for each second of a broker's processor",
            f"{taken / 1e6 / cpu_s:.0f} MB",
            f"{cpu_s:.1f} s for {gigabytes:.1f} GB, its start too",
        )
    ]
    return figures + [
        (
            f"{what}, Batches of 8 MiB",
            f"{count / gigabytes:.0f}",
            f"{count:.0f} for {gigabytes:.1f} GB, second ones of hedging too; one for each 8 MiB "
            f"would be {whole:.0f}",
        )
        for what, count in (
            ("puts for each GB that a broker takes in", puts),
            ("gets for each GB that a consumer reads", storage.requests["get"]),
        )
    ]


def run() -> Figures:
    """Name, figure and note of each measurement."""
    with (
        tempfile.TemporaryDirectory(prefix="memq-bench-") as name,
        S3Proxy(Path(name) / "s3") as server,
        ThreadPoolExecutor(AT_A_TIME) as pool,
    ):
        server.make_bucket("bench")
        os.environ |= server.environment
        return [*puts(pool), *gets(), *ingest(Path(name), pool)]


if __name__ == "__main__":
    for row in run():
        print(*row, sep="\n    ")
