"""Since when a topic is held in full, as far as its notifications tell.

Retention removes what is older than some time, so of each read partition a first part is gone and
the rest is held. Nobody remembers when the last removed Batch was published: only that it was
before the first one that is left.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from memq.client.queue import QueueClient


class HeldSince(NamedTuple):
    """Since when all that was published to a read partition is held.

    Attributes:
        partition: read partition.
        since_ms: what was published at this time or later is held, milliseconds since 1970 UTC;
            minus infinity where nothing was ever removed. Where nothing is left it is how far
            retention has come by now, which is too early for as long as a retention that was made
            longer has not come back to where it was.
    """

    partition: int
    since_ms: float


async def held_since(queue: QueueClient, retention_ms: int, newest_ms: int) -> list[HeldSince]:
    """Since when each read partition of a topic is held in full.

    Args:
        queue: of the topic.
        retention_ms: of the topic.
        newest_ms: the brokers' clock, or a little less: the newest watermark of a write partition.

    Raises:
        OffsetOutOfRangeError: retention removed Batches meanwhile; ask again.
        MemqError: the broker failed until the deadline.
    """
    return [
        HeldSince(held.partition, -math.inf)
        if held.start == 0
        else await _since(queue, held.partition, held.start, newest_ms - retention_ms)
        for held in await queue.offsets()
    ]


async def _since(queue: QueueClient, partition: int, start: int, reached_ms: int) -> HeldSince:
    """Since when a read partition is held of which something was removed."""
    page = await queue.page({partition: start}, max_entries=1)
    if page.entries:
        return HeldSince(partition, page.entries[0].timestamp_ms)
    return HeldSince(partition, reached_ms)
