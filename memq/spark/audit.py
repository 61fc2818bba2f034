"""The deep audit on a cluster, and its findings as a table.

The audit itself is `memq.client.audit.audit`, on the driver; but looking at every byte of every
Batch is done by tasks, a range of notifications at a time, with the very function that
`memq audit --deep` uses. So the findings are the same.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.types import (
    BooleanType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from memq.client.audit.objects import Inspection, ObjectReader, inspect
from memq.client.cluster import Cluster
from memq.client.topic import TopicClient
from memq.core.audit.reports import Verdict
from memq.core.audit.result import unjudged
from memq.core.notification.notification import decode_notification, encode_notification

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator

    from pyspark.sql import SparkSession

    from memq.client.audit.batches import InspectBatches, Seen
    from memq.core.audit.consumed_findings import ConsumedAudit
    from memq.core.audit.reports import ProducerAudit
    from memq.core.audit.result import AuditResult

log = logging.getLogger("memq.spark")

BATCHES_A_JOB = 2_000  # what is found in them, up to some 10 MB, comes back to the driver at a time
TASKS_A_SLOT = 3  # Batches differ in size; smaller tasks even that out
READS = 4  # objects that a task reads at a time

_NUMBERS = (
    "epoch",
    "write_partition",
    "produced_messages",
    "produced_records",
    "stored_messages",
    "stored_records",
    "consumed_messages",
    "consumed_records",
    "lost_records",
    "damaged_records",
    "unreported_records",
    "missed_records",
    "mismatched_records",
    "behind_records",
    "expired_records",
)

FINDINGS = StructType(
    [
        StructField("audited_ms", LongType(), nullable=False),
        StructField("topic", StringType(), nullable=False),
        StructField("start_ms", LongType()),
        StructField("end_ms", LongType()),
        StructField("deep", BooleanType(), nullable=False),
        StructField("consumer", StringType()),
        StructField("producer_id", StringType()),
        *(StructField(name, LongType()) for name in _NUMBERS),
        StructField("clean", BooleanType(), nullable=False),
        StructField("verdict", StringType(), nullable=False),
        StructField("detail", StringType()),
    ]
)
"""Columns of the findings: one row for each producer, epoch and write partition; with `consumer`
one for what that consumer read of it; and rows without a producer for what cannot be read or cannot
be judged."""


class Place(NamedTuple):
    """Where the tasks find the brokers."""

    bootstrap: str
    topic: str
    token: str


def deep_on(spark: SparkSession, place: Place) -> InspectBatches:
    """Looks deep into Batches by tasks of Spark; for `audit_topic`."""

    async def inspect_batches(
        batches: AsyncIterator[Seen],
    ) -> AsyncGenerator[tuple[Seen, Inspection], None]:
        some: list[Seen] = []
        async for seen in batches:
            some.append(seen)
            if len(some) == BATCHES_A_JOB:
                for pair in await asyncio.to_thread(_job, spark, place, some):
                    yield pair
                some = []
        for pair in await asyncio.to_thread(_job, spark, place, some) if some else ():
            yield pair

    return inspect_batches


def findings(
    result: AuditResult,
    *,
    audited_ms: int,
    start_ms: int | None,
    end_ms: int | None,
    deep: bool,
) -> list[tuple[Any, ...]]:
    """The findings of an audit as rows of `FINDINGS`."""
    common = {
        "audited_ms": audited_ms,
        "topic": result.topic,
        "start_ms": start_ms,
        "end_ms": end_ms,
        "deep": deep,
    }
    rows = [_produced(producer) for producer in result.producers]
    for consumer in result.consumers:
        rows += [_consumed(consumer.consumer, each) for each in consumer.producers]
        rows += [
            {"consumer": consumer.consumer, "verdict": Verdict.UNCLEAN, "detail": line}
            for line in consumer.mismatches
        ]
    rows += [{"verdict": Verdict.UNCLEAN, "detail": line} for line in result.damage]
    rows += [{"verdict": Verdict.PARTLY, "detail": line} for line in unjudged(result)]
    for row in rows:
        row["clean"] = row["verdict"] is Verdict.CLEAN
        row["verdict"] = row["verdict"].value
    return [tuple((common | row).get(name) for name in FINDINGS.names) for row in rows]


def _job(spark: SparkSession, place: Place, some: list[Seen]) -> list[tuple[Seen, Inspection]]:
    context = spark.sparkContext
    tasks = min(len(some), TASKS_A_SLOT * context.defaultParallelism)
    log.info("looking at every byte of %d Batches in %d tasks", len(some), tasks)
    payloads = [encode_notification(seen.notification) for seen in some]
    found = context.parallelize(payloads, tasks).mapPartitions(partial(_task, place)).collect()
    return list(zip(some, found, strict=True))


def _task(place: Place, payloads: Iterable[bytes]) -> Iterator[Inspection]:
    return iter(asyncio.run(_inspect(place, list(payloads))))


async def _inspect(place: Place, payloads: list[bytes]) -> list[Inspection]:
    cluster = Cluster(place.bootstrap, client="memq.spark", token=place.token)
    loop = asyncio.get_running_loop()
    objects = ObjectReader(TopicClient(cluster, place.topic), loop)
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


def _produced(found: ProducerAudit) -> dict[str, Any]:
    names = ("lost", "damaged", "doubled", "changed", "expired", "recovered")
    sequences = [
        f"{name} {', '.join(f'{run.first}-{run.last}' for run in runs)}"
        for name in names
        if (runs := getattr(found, name))
    ]
    return found.name._asdict() | {
        "produced_messages": found.produced_messages,
        "produced_records": found.produced_records,
        "stored_messages": found.stored_messages,
        "stored_records": found.stored_records,
        "lost_records": found.lost_records,
        "damaged_records": found.damaged_records,
        "unreported_records": found.unreported_records,
        "expired_records": found.expired_records,
        "verdict": found.verdict,
        "detail": "; ".join(sequences) or None,
    }


def _consumed(consumer: str, found: ConsumedAudit) -> dict[str, Any]:
    names = ("missed", "mismatched")
    sequences = [
        f"{name} "
        + ", ".join(
            f"{part.first}-{part.last} at {part.partition}:{part.start}-{part.end}"
            for part in amount.parts
        )
        for name in names
        if (amount := getattr(found, name)).messages
    ]
    return found.name._asdict() | {
        "consumer": consumer,
        "stored_messages": found.stored.messages,
        "stored_records": found.stored.records,
        "consumed_messages": found.consumed.messages,
        "consumed_records": found.consumed.records,
        "missed_records": found.missed.records,
        "mismatched_records": found.mismatched.records,
        "unreported_records": found.unreported.records,
        "behind_records": found.behind.records,
        "verdict": found.verdict,
        "detail": "; ".join(sequences) or None,
    }
