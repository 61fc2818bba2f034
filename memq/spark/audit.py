"""The deep audit on a cluster, and its findings as a table.

The audit itself is `memq.client.audit.audit`, on the driver; but looking at every byte of every
Batch is done by tasks, a range of notifications at a time, with the very function that
`memq audit --deep` uses. So the findings are the same.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from memq.client.audit.stored import Inspection, inspect
from memq.client.cluster import Cluster
from memq.client.topic import TopicClient
from memq.core.audit import render
from memq.core.audit.result import Verdict
from memq.core.named_values import NO_VALUES
from memq.core.notification import decode_notification, encode_notification
from memq.core.units import counted
from memq.reading.objects import FallbackReader
from memq.spark import is_remote

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping

    from pyspark.sql import SparkSession

    from memq.client.audit.stored import InspectBatches
    from memq.core.audit.result import AuditResult
    from memq.core.named_values import NamedValues
    from memq.core.notification import PublishedBatch

log = logging.getLogger("memq.spark")

BATCHES_A_JOB = 2_000  # what is found in them, up to some 10 MB, comes back to the driver at a time
TASKS_A_SLOT = 3  # Batches differ in size; smaller tasks even that out
READS = 4  # objects that a task reads at a time
FOUND = "number long, inspection binary"  # what tasks give back

_NUMBERS = (
    "epoch",
    "write_partition",
    "produced_messages",
    "stored_messages",
    "consumed_messages",
    *(name for name in render.COLUMNS if name.endswith("_records")),
)

FINDINGS = {
    "audited_ms": "bigint NOT NULL",
    "topic": "string NOT NULL",
    "start_ms": "bigint",
    "end_ms": "bigint",
    "deep": "boolean NOT NULL",
    "consumer": "string",
    "producer_id": "string",
    **dict.fromkeys(_NUMBERS, "bigint"),
    "clean": "boolean NOT NULL",
    "verdict": "string NOT NULL",
    "detail": "string",
}
"""Columns of the findings: one row for each producer, epoch and write partition; with `consumer`
one for what that consumer read of it; and rows without a producer for what cannot be read or cannot
be judged."""


class TopicAddress(NamedTuple):
    """Where the tasks find the brokers, and how they read the storage."""

    bootstrap: str
    topic: str
    token: str
    storage_options: NamedValues = NO_VALUES
    security: NamedValues = NO_VALUES

    def __repr__(self) -> str:
        return f"<TopicAddress {self.topic} at {self.bootstrap}>"  # never the token


def deep_on(spark: SparkSession, address: TopicAddress) -> InspectBatches:
    """Looks deep into Batches by tasks of Spark; for `audit_topic`."""

    async def inspect_batches(
        batches: AsyncIterator[PublishedBatch],
    ) -> AsyncGenerator[tuple[PublishedBatch, Inspection], None]:
        some: list[PublishedBatch] = []
        async for batch in batches:
            some.append(batch)
            if len(some) == BATCHES_A_JOB:
                for pair in await asyncio.to_thread(_job, spark, address, some):
                    yield pair
                some = []
        for pair in await asyncio.to_thread(_job, spark, address, some) if some else ():
            yield pair

    return inspect_batches


def add_findings(spark: SparkSession, rows: list[tuple[Any, ...]], output: str) -> None:
    """Add rows of `FINDINGS` to a Parquet table, as one file."""
    columns = ", ".join(f"{name} {kind}" for name, kind in FINDINGS.items())
    spark.createDataFrame(rows, columns).coalesce(1).write.mode("append").parquet(output)


def findings(result: AuditResult, run: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """Return the findings of an audit as rows of `FINDINGS`.

    Args:
        result: of the audit.
        run: columns that say when the audit was made, of which window and how deeply.
    """
    rows = render.rows(result)
    for consumer in result.consumers:
        rows += [
            _sentence(Verdict.UNCLEAN, line, consumer.consumer) for line in consumer.mismatches
        ]
    rows += [_sentence(Verdict.UNCLEAN, line) for line in result.damage]
    rows += [_sentence(Verdict.PARTLY, line) for line in render.unjudged(result)]
    common = {"topic": result.topic, **run}
    rows = [common | row | {"detail": row["findings"] or None} for row in rows]
    return [tuple(row.get(name) for name in FINDINGS) for row in rows]


def _sentence(verdict: Verdict, line: str, consumer: str | None = None) -> render.Row:
    return {"consumer": consumer, "clean": False, "verdict": verdict.value, "findings": line}


def _job(
    spark: SparkSession, address: TopicAddress, some: list[PublishedBatch]
) -> list[tuple[PublishedBatch, Inspection]]:
    tasks = min(len(some), TASKS_A_SLOT * _slots(spark))
    log.info(
        "looking at every byte of %s in %s",
        counted(len(some), "Batch"),
        counted(tasks, "task"),
    )
    payloads = [encode_notification(batch.notification) for batch in some]
    rows = spark.createDataFrame(pa.table({"number": range(len(some)), "payload": payloads}))
    found = rows.repartition(tasks).mapInArrow(partial(_task, address), FOUND).collect()
    inspections = {row.number: pickle.loads(row.inspection) for row in found}  # noqa: S301 - our own
    return [(batch, inspections[number]) for number, batch in enumerate(some)]


def _slots(spark: SparkSession) -> int:
    """About how many tasks run at a time; a server of Spark Connect does not say."""
    if is_remote(spark):
        return int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
    return int(spark.sparkContext.defaultParallelism)


def _task(address: TopicAddress, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        found = asyncio.run(_inspect(address, batch["payload"].to_pylist()))
        inspections = pa.array(map(pickle.dumps, found), pa.binary())
        yield pa.record_batch({"number": batch["number"], "inspection": inspections})


async def _inspect(address: TopicAddress, payloads: list[bytes]) -> list[Inspection]:
    cluster = Cluster(
        address.bootstrap,
        client="memq.spark",
        token=address.token,
        storage_options=address.storage_options,
        security=address.security,
    )
    loop = asyncio.get_running_loop()
    objects = FallbackReader(TopicClient(cluster, address.topic), loop)
    executor = ThreadPoolExecutor(READS, "memq-audit")

    def look(payload: bytes) -> Inspection:
        notification = decode_notification(payload)
        return inspect(notification, partial(objects.get_range, notification.uri), deep=True)

    try:
        return await asyncio.gather(
            *(loop.run_in_executor(executor, look, payload) for payload in payloads)
        )
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
        await cluster.close()
