"""Producers of a run: they write until they are told to stop, whatever the broker does."""

import asyncio
import random
from collections.abc import Iterator

import pyarrow as pa

from memq.client.cluster import ClusterArguments
from memq.client.producer.producer import AsyncProducer
from memq.core.format.schema import DEFAULT_SCHEMA
from memq.errors import MemqError
from tests.system.ledger import Ledger, Name, Row, Written, row_of
from tests.system.plan import ProducerPlan

CLOSE_TIMEOUT_S = 90.0  # services may be away, and come back one after the other
MAX_BACKLOG = 30  # Messages
STABLE = "stable-"  # that ids of their own choice begin with


async def produce(
    plan: ProducerPlan,
    address: str,
    ledger: Ledger,
    stop: asyncio.Event,
    *,
    ordered: bool,
    given: ClusterArguments,
) -> None:
    """Write as planned. An automatic producer goes on until `stop`, a stable one to its end."""
    written = ledger.written[plan.label] = Written(plan.topic, plan.sizes)
    for life, steps in enumerate((*plan.abandoned_after, None)):
        producer = AsyncProducer(
            address,
            topic=plan.topic,
            producer_id=f"{STABLE}{plan.label}" if plan.stable else None,
            **plan.options,
            **given,
        )
        await producer.start()
        ledger.watch(producer, f"{plan.label} life {life}", ordered=ordered)
        try:
            await _write(producer, plan, written, _steps(plan, stop, steps, life))
        finally:
            await _close(producer, abandon=steps is not None, ledger=ledger)


async def _close(producer: AsyncProducer, *, abandon: bool, ledger: Ledger) -> None:
    try:
        await producer.close(timeout=0 if abandon else CLOSE_TIMEOUT_S)
    except MemqError as exc:
        if not abandon:
            ledger.refused.append(f"close: {type(exc).__name__}: {exc}")


def _steps(
    plan: ProducerPlan, stop: asyncio.Event, limit: int | None, life: int
) -> Iterator[tuple[str, int, float]]:
    """What to do, how many LogMessages with it, and how long to pause.

    A stable producer does the same each time it is run, but for the pauses. It is abandoned only
    when no Message is open, since closing sends that as it is, and the next life would cut it
    elsewhere.
    """
    rng, pauses = random.Random(plan.seed), random.Random(life)
    done, how = 0, "flush"
    while done < plan.steps if plan.stable else not stop.is_set():
        if limit is not None and done >= limit and how != "write":
            return
        done += 1
        how = rng.choice(("write", "write", "write", "table", "flush"))
        yield how, rng.randint(1, 20 if max(plan.sizes) < 10_000 else 4), pauses.uniform(0, 0.05)


async def _write(
    producer: AsyncProducer,
    plan: ProducerPlan,
    written: Written,
    steps: Iterator[tuple[str, int, float]],
) -> None:
    number = 0
    for how, count, pause_s in steps:
        if how == "flush":
            await producer.flush(CLOSE_TIMEOUT_S)
            await asyncio.sleep(pause_s)
            continue
        names = [Name(plan.label, n) for n in range(number, number + count)]
        number += count
        written.count = max(written.count, number)
        rows = [row_of(name, plan.sizes) for name in names]
        if how == "table":
            await producer.write_table(_table(rows))
        else:
            for row in rows:
                await producer.write(row.value, row.key, row.headers, row.timestamp_us)
        await asyncio.sleep(pause_s)
        # A slow topic must not make a run long.
        while producer.stats.unsettled > MAX_BACKLOG:
            await asyncio.sleep(0.01)


def _table(rows: list[Row]) -> pa.Table:
    columns = zip(*rows, strict=True)
    arrays = [
        pa.array(column, field.type) for column, field in zip(columns, DEFAULT_SCHEMA, strict=True)
    ]
    return pa.table(arrays, schema=DEFAULT_SCHEMA)
