"""Load for `memq bench`: what is written, what is read, and how long it took."""

from __future__ import annotations

import os
import threading
import time
from functools import partial
from itertools import cycle, islice
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from memq.cli.tally import Tally
from memq.errors import RequestTimeoutError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memq import Consumer, Producer
    from memq.client.batch import Batch
    from memq.client.producer.delivery import Delivery

DISTINCT_VALUES = 4_096  # so that compression finds no more in a Message than in real data
TICK_S = 0.01  # how evenly a rate is kept
POLL_S = 0.2
PATIENCE_S = 60.0  # more than any Batch takes to be sealed and stored


class Latencies:
    """Latencies in microseconds, as they come. Added to from one thread at a time."""

    def __init__(self) -> None:
        self._chunks: list[pa.Array] = []

    def add(self, microseconds: pa.Array) -> None:
        """Some more."""
        self._chunks.append(microseconds)

    def quantiles_ms(self) -> dict[str, float | None]:
        """Median, 99th percentile and the greatest, in milliseconds."""
        found = pc.quantile(pa.chunked_array(self._chunks, pa.int64()), q=[0.5, 0.99, 1.0])
        names = ("latency_p50_ms", "latency_p99_ms", "latency_p100_ms")
        return {
            name: None if value is None else round(value / 1_000, 3)
            for name, value in zip(names, found.to_pylist(), strict=True)
        }


def random_values(records: int, value_bytes: int) -> Iterator[bytes]:
    """So many values of that size, which no compression makes smaller."""
    some = [os.urandom(value_bytes) for _ in range(min(records, DISTINCT_VALUES))]
    return islice(cycle(some), records)


def write_all(producer: Producer, records: int, value_bytes: int, latencies: Latencies) -> Tally:
    """Write as fast as the producer takes it and wait for the acks.

    A latency is that of one Message, from its first record to its ack.
    """
    tally = Tally()
    took_us: list[int] = []

    def ended(started_ns: int, _: Delivery) -> None:
        took_us.append((time.perf_counter_ns() - started_ns) // 1_000)

    delivery = None
    count = 0
    for value in random_values(records, value_bytes):
        latest = producer.write(value)
        if latest is not delivery:
            if delivery is not None:
                tally.add(delivery, count)
            delivery, count = latest, 0
            latest.add_done_callback(partial(ended, time.perf_counter_ns()))
        count += 1
    if delivery is not None:
        tally.add(delivery, count)
    tally.finish()
    producer.flush()  # the last callback has been called when this returns
    latencies.add(pa.array(took_us, pa.int64()))
    return tally


class PacedWriter(threading.Thread):
    """Writes at a steady rate, each record with the time at which it is written.

    Args:
        producer: to write with.
        rate: records a second.
        seconds: for how long.
        value_bytes: size of each value.
    """

    def __init__(self, producer: Producer, *, rate: int, seconds: float, value_bytes: int) -> None:
        super().__init__(name="memq-bench-writer", daemon=True)
        self.records = max(1, round(rate * seconds))
        self.error: BaseException | None = None
        self._producer = producer
        self._rate = rate
        self._values = random_values(self.records, value_bytes)

    def run(self) -> None:
        """Write all records; an error is kept for the one who waits for them."""
        try:
            self._write()
        except BaseException as exc:  # noqa: BLE001 - raised by read_all
            self.error = exc

    def _write(self) -> None:
        started_s = time.monotonic()
        sent = 0
        while sent < self.records:
            due = min(self.records, int((time.monotonic() - started_s) * self._rate) + 1)
            now_us = time.time_ns() // 1_000
            for value in islice(self._values, due - sent):
                self._producer.write(value, timestamp=now_us)
            sent = due
            time.sleep(TICK_S)
        self._producer.flush()


def read_all(consumer: Consumer, writer: PacedWriter, latencies: Latencies) -> None:
    """Read what the writer writes; a latency is that of one record, from write to here.

    Raises:
        RequestTimeoutError: nothing came for a long time.
        MemqError: the writer failed.
    """
    read = 0
    last_s = time.monotonic()
    while read < writer.records:
        batch = consumer.poll(POLL_S)
        if writer.error is not None:
            raise writer.error
        if batch is not None:
            latencies.add(_ages_us(batch))
            read += len(batch)
            last_s = time.monotonic()
        elif time.monotonic() - last_s > PATIENCE_S:
            raise RequestTimeoutError(
                f"nothing came for {PATIENCE_S:g} s; {read} of {writer.records} records did"
            )


def _ages_us(batch: Batch) -> pa.Array:
    now = pa.scalar(time.time_ns() // 1_000, pa.int64())
    return pc.subtract(now, batch.to_arrow()["timestamp"].cast(pa.int64())).combine_chunks()
