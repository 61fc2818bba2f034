"""Since when a topic is held in full, as far as its notifications and its brokers tell.

Retention removes what is older than some time, so of each read partition a first part is gone and
the rest is held. Nobody remembers when the last removed Batch was published. It was before the
first one that is left, and before the time that the broker says retention has come to.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from memq.client.topic import TopicClient


class RetainedSince(NamedTuple):
    """Since when all that was published to a read partition is held.

    Attributes:
        partition: read partition.
        since_ms: what was published at this time or later is held, milliseconds since 1970 UTC;
            minus infinity where nothing was ever removed.
    """

    partition: int
    since_ms: float


async def retained_since(queue: TopicClient) -> list[RetainedSince]:
    """Since when each read partition of a topic is held in full.

    Raises:
        OffsetOutOfRangeError: retention removed Batches meanwhile; ask again.
        MemqError: the broker failed until the deadline.
    """
    offsets = await queue.offsets()
    firsts_ms = [
        -math.inf if held.start == 0 else await _first_ms(queue, held.partition, held.start)
        for held in offsets
    ]
    # Asked last, so it covers all that was removed before.
    retained_since_ms = (await queue.watermark()).retained_since_ms
    return [
        RetainedSince(held.partition, min(first_ms, retained_since_ms))
        for held, first_ms in zip(offsets, firsts_ms, strict=True)
    ]


async def _first_ms(queue: TopicClient, partition: int, start: int) -> float:
    """When the first Batch that is left was published; infinity when none is left."""
    page = await queue.page({partition: start}, max_entries=1)
    return page.entries[0].timestamp_ms if page.entries else math.inf
