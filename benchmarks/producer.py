"""How fast a producer takes records: `python -m benchmarks.producer`.

First alone: what `write` and `write_table` cost up to the sealed Message, whose memory is given
back at once. Then with its broker, a process of its own on the other core, from the first call to
the last ack. The limits beside them: a loop that does no more than append each value to a list, and
copying the same bytes once.
"""

from __future__ import annotations

import os
import time
from functools import cache
from typing import TYPE_CHECKING

import pyarrow as pa

from benchmarks.broker import broker_process, scratch_directory
from memq import AdminClient, Producer
from memq.client.producer.accumulator import Accumulator
from memq.client.producer.memory import ByteBudget
from memq.client.producer.tables import to_batches
from memq.core.format.schema import DEFAULT_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable

VALUE = b"x" * 100
RECORDS = 300_000
REPETITIONS = 5
SENT_RECORDS = 4_000_000
SENT_ROWS = 20_000_000
TABLE_ROWS = 1_000_000
WRITE_AIM, TABLE_AIM = 1e6, 10e6  # records/s at 100 B, with the broker

Row = tuple[str, str, str]


@cache
def values(rows: int) -> pa.Table:
    """A table of so many rows, made once."""
    return pa.table({"value": pa.array([VALUE] * rows, pa.binary())})


def accumulator() -> Accumulator:
    """One whose Messages are settled as soon as they are sealed."""
    budget = ByteBudget(64 << 20)
    return Accumulator(
        budget,
        message_bytes=1 << 20,
        max_message_bytes=4 << 20,
        linger_s=0.01,
        compression=None,
        schema_id="default",
        on_sealed=lambda message: budget.give(message.size_bytes),
        on_ready=lambda: None,
        on_wake=lambda: None,
    )


def best(work: Callable[[], object], count: int) -> float:
    """The best rate of some repetitions, in records/s."""
    rates = []
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        work()
        rates.append(count / (time.perf_counter() - start))
    return max(rates)


def appending() -> float:
    """Records/s of a loop that appends each value to a list."""

    def work() -> None:
        append = [].append
        for _ in range(RECORDS):
            append(VALUE)

    return best(work, RECORDS)


def writing(**arguments: bytes) -> float:
    """Records/s of `write` up to the sealed Message."""
    write = accumulator().write

    def work() -> None:
        for _ in range(RECORDS):
            write(VALUE, **arguments)

    return best(work, RECORDS)


def cutting(table: pa.Table) -> float:
    """Records/s of a table up to its sealed Messages."""
    target = accumulator()

    def work() -> None:
        for batch in to_batches(
            table,
            DEFAULT_SCHEMA,
            "t",
            now_us=1,
            message_bytes=1 << 20,
            max_message_bytes=4 << 20,
        ):
            target.write_batch(batch, "default")

    return best(work, table.num_rows)


def copying(table: pa.Table) -> float:
    """Records/s of copying the bytes of a table once."""
    source = memoryview(table.column("value").chunk(0).buffers()[2])
    return best(lambda: bytearray(source), table.num_rows)


def alone() -> list[Row]:
    """The producer's own cost."""
    table = values(RECORDS)
    append, copy = appending(), copying(table)
    rows = []
    for name, rate in (
        ("write()", writing()),
        ("write() with a key of 8 B", writing(key=b"12345678")),
    ):
        note = f"1/{append / rate:.1f} of appending to a list ({append / 1e6:.0f} M/s)"
        rows.append((f"{name}, 100 B, alone", f"{rate / 1e6:.2f} M records/s", note))
    rate = cutting(table)
    note = f"1/{copy / rate:.1f} of copying the values once ({copy / 1e6:.0f} M/s)"
    rows.append(("write_table(), 100 B, alone", f"{rate / 1e6:.1f} M records/s", note))
    return rows


def sent(storage: str, acks: str | int) -> list[Row]:
    """From the first call to the last ack."""
    rows = []
    values(TABLE_ROWS)
    with scratch_directory() as directory, broker_process(storage, directory) as (address, _):
        with AdminClient(address) as admin:
            admin.create_topic("t")
        with Producer(address, topic="t", acks=acks) as producer:
            for name, count, aim, write in (
                ("write()", SENT_RECORDS, WRITE_AIM, write_records),
                ("write_table()", SENT_ROWS, TABLE_AIM, write_table),
            ):
                cpu, start = os.times(), time.perf_counter()
                write(producer, count)
                producer.flush(timeout=120)
                took, used = time.perf_counter() - start, os.times()
                cost = (used.user + used.system - cpu.user - cpu.system) / count
                rows.append(
                    (
                        f"{name}, 100 B, acks={acks}, {storage} storage",
                        f"{count / took / 1e6:.2f} M records/s",
                        f"{count / took / aim:.0%} of the aim; {cost * 1e9:.0f} ns of this "
                        "process's CPU a record",
                    )
                )
    return rows


def write_records(producer: Producer, count: int) -> None:
    """One record at a time."""
    write = producer.write
    for _ in range(count):
        write(VALUE)


def write_table(producer: Producer, count: int) -> None:
    """The same table again and again."""
    table = values(TABLE_ROWS)
    for _ in range(count // TABLE_ROWS):
        producer.write_table(table)


def run() -> list[Row]:
    """Rows of (name, figure, note)."""
    return [*alone(), *sent("discard", "all"), *sent("local", "all"), *sent("local", 1)]


if __name__ == "__main__":
    for row in run():
        print(" | ".join(row), flush=True)
