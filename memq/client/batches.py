"""Batches as people look at them: rows of a list, and whether one is sound."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

from memq.client.audit.stored import inspect
from memq.core.ranges import OffsetRange
from memq.core.units import iso_ms, iso_us
from memq.errors import LimitReachedError, OffsetOutOfRangeError
from memq.reading.objects import read_broker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memq.client.topic import TopicClient
    from memq.core.notification import PublishedBatch

MAX_LOOKED_BYTES = 64 << 20  # of an object that is looked into as a whole, in memory


def batch_row(published: PublishedBatch) -> dict[str, Any]:
    """Make the row of a Batch, by its notification."""
    about = published.notification
    return {
        "partition": published.partition,
        "offset": published.offset,
        "batch_id": about.batch_id,
        "write_partition": about.write_partition,
        "broker_id": about.broker_id,
        "sealed": iso_ms(about.sealed_ms),
        "messages": about.messages,
        "records": about.records,
        "size_bytes": about.size_bytes,
        "min_timestamp": iso_us(about.min_timestamp_us),
        "max_timestamp": iso_us(about.max_timestamp_us),
        "producers": len({run.producer_id for run in about.producers}),
        "schema_id": about.schema_id,
        "uri": about.uri,
    }


async def batch_at(topic: TopicClient, partition: int, offset: int) -> PublishedBatch:
    """Look up the Batch at an offset.

    Raises:
        OffsetOutOfRangeError: there is none; retention removed it, or it is a gap.
        MemqError: as `TopicClient.ask`.
    """
    place = OffsetRange(partition, offset, offset + 1)
    await topic.check_retained(place)
    async with aclosing(topic.batches([place])) as batches:
        async for each in batches:
            return each
    raise OffsetOutOfRangeError(
        f"there is no Batch at offset {offset} of {topic.topic}/{partition}: offsets may have gaps"
    )


def check_looked_into(published: PublishedBatch) -> None:
    """Refuse to take a large object into memory.

    Raises:
        LimitReachedError: it is one; the message says how to look into it.
    """
    size_bytes = published.notification.size_bytes
    if size_bytes > MAX_LOOKED_BYTES:
        place = f"{published.partition}:{published.offset}-{published.offset + 1}"
        topic = published.notification.topic
        raise LimitReachedError(
            f"the Batch has {size_bytes} bytes, and up to {MAX_LOOKED_BYTES} are looked into here: "
            f"use `memq consume {topic} --range {place}`, or `memq batch verify`"
        )


async def verify_batch(topic: TopicClient, published: PublishedBatch) -> Sequence[str]:
    """Check every byte of a Batch, read through a broker; return what does not hold.

    Raises:
        LimitReachedError: it is too large for here.
        MemqError: as `TopicClient.read`.
    """
    check_looked_into(published)
    about = published.notification
    data = memoryview(await read_broker(topic, about.uri, 0, about.size_bytes + 1))
    look = partial(inspect, about, lambda start, length: data[start : start + length], deep=True)
    return (await asyncio.get_running_loop().run_in_executor(None, look)).findings
