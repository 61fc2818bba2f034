"""How much of a window can be judged at all.

Its end must have passed: a topic is stored through a time, and before that more may come. Its start
must still be held. What lies beyond is named, so that nobody takes it for judged.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, NamedTuple

from memq.client.held import retained_since
from memq.core.units import iso_ms

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memq.client.held import RetainedSince
    from memq.client.topic import TopicClient
    from memq.core.wire.messages import WatermarkAnswer

CLOSING_S = 5.0  # a window up to now is over as soon as the Batches are stored that are open now
LOOK_S = 0.1


class Marks(NamedTuple):
    """How far a topic and the reports about it are stored."""

    topic: WatermarkAnswer
    reports: WatermarkAnswer

    @property
    def stored_through_ms(self) -> int:
        """Both are complete up to here."""
        return min(self.topic.stored_through_ms, self.reports.stored_through_ms)


async def marks_past(queue: TopicClient, audit_queue: TopicClient, end_ms: int | None) -> Marks:
    """How far the topic and its reports are stored; waits a little until both are past a time.

    Args:
        queue: of the topic.
        audit_queue: of the audit topic.
        end_ms: milliseconds since 1970 UTC; None for no time, without waiting.

    Raises:
        MemqError: the broker failed until the deadline.
    """
    clock = asyncio.get_running_loop().time
    deadline_s = clock() + CLOSING_S
    while True:
        marks = Marks(await queue.watermark(), await audit_queue.watermark())
        behind_s = 0.0 if end_ms is None else (end_ms - marks.stored_through_ms) / 1_000
        if behind_s <= 0 or clock() + min(behind_s, LOOK_S) > deadline_s or behind_s > CLOSING_S:
            return marks
        await asyncio.sleep(LOOK_S)


def not_over(marks: Marks, topic: str, end_ms: int | None) -> list[str]:
    """A sentence when a window is not over."""
    if end_ms is None or end_ms <= marks.stored_through_ms:
        return []
    line = (
        f"The window ends at {iso_ms(end_ms)}, and {topic!r} and the reports about it are stored "
        f"through {iso_ms(marks.stored_through_ms)} only. Audit again when it is over."
    )
    return [line]


class Held(NamedTuple):
    """Since when a topic and the reports about it are held, by read partition."""

    topic: list[RetainedSince]
    reports: list[RetainedSince]

    @property
    def since_ms(self) -> float:
        """All that was published to the topic at this time or later is held."""
        return max(each.since_ms for each in self.topic)


async def held(queue: TopicClient, audit_queue: TopicClient) -> Held:
    """Since when the topic and the reports about it are held.

    Raises:
        OffsetOutOfRangeError: retention removed Batches meanwhile.
        MemqError: the broker failed until the deadline.
    """
    return Held(await retained_since(queue), await retained_since(audit_queue))


def not_held(found: Held, topic: str, audit_topic: str, start_ms: int | None) -> list[str]:
    """A sentence for each of the two topics that is not held since a window began."""
    begin_ms = -math.inf if start_ms is None else start_ms
    return [
        *_not_held(found.topic, topic, begin_ms),
        *_not_held(found.reports, audit_topic, begin_ms),
    ]


def _not_held(found: Iterable[RetainedSince], topic: str, begin_ms: float) -> list[str]:
    last = max(found, key=lambda each: each.since_ms)
    if last.since_ms <= begin_ms:
        return []
    line = (
        f"Retention has removed what was published to read partition {last.partition} of {topic!r} "
        f"before {iso_ms(int(last.since_ms))}; a window that begins then can be judged whole."
    )
    return [line]
