"""How much a micro-batch takes: at most so much, oldest first, and at least so much.

Batches are taken in the order of publication, over all topics. So no topic waits for ever: its next
Batch is the oldest in the end.
"""

from __future__ import annotations

import heapq
from itertools import repeat
from typing import TYPE_CHECKING

from memq.core.ranges import OffsetRange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from memq.core.notification import PublishedBatch
    from memq.spark.checkpoint import StreamPositions

    BatchesInOrder = Callable[[Iterable[OffsetRange]], Iterator[PublishedBatch]]


def admit(
    start: Mapping[str, StreamPositions],
    ends: Mapping[str, Mapping[int, int]],
    batches_in_order: Mapping[str, BatchesInOrder],
    *,
    max_offsets: int | None,
    max_bytes: int | None,
) -> dict[str, StreamPositions]:
    """Return the positions after the next micro-batch, by topic.

    Args:
        start: positions before it, by topic.
        ends: how far each read partition may be read, by topic.
        batches_in_order: of each topic the Batches of some ranges, in the order of publication.
        max_offsets: most Batches; None for no limit.
        max_bytes: most stored bytes, but always one Batch; None for no limit.
    """
    taken = {topic: dict(positions) for topic, positions in start.items()}
    ranges = {topic: _ranges(start[topic], ends[topic]) for topic in ends}
    if max_offsets is not None or max_bytes is not None:
        queues = [
            zip(repeat(topic), batches_in_order[topic](some)) for topic, some in ranges.items()
        ]
        size = 0
        ordered = heapq.merge(*queues, key=lambda each: each[1].timestamp_ms)
        for count, (topic, batch) in enumerate(ordered, start=1):
            size += batch.notification.size_bytes
            over = count > (max_offsets or count) or size > (max_bytes or size)
            if over and count > 1:
                return taken
            positions = taken[topic]
            positions[batch.partition] = positions[batch.partition]._replace(next=batch.offset + 1)
    for topic, some in ranges.items():  # offsets may end in a gap, which is read through here
        for each in some:
            taken[topic][each.partition] = taken[topic][each.partition]._replace(next=each.end)
    return taken


def available(start: Mapping[str, StreamPositions], ends: Mapping[str, Mapping[int, int]]) -> int:
    """Return how many offsets a micro-batch could take."""
    return sum(each.size for topic in ends for each in _ranges(start[topic], ends[topic]))


class Gate:
    """Holds a micro-batch back until there is enough for it, or it has waited long enough.

    The first one of a process is not held back: nobody knows how long it has waited.

    Args:
        min_offsets: so many are enough; None never holds.
        max_delay_s: how long after the one before it a micro-batch is held back at most.
        mono_s: the monotonic clock, in seconds.
    """

    def __init__(
        self, min_offsets: int | None, max_delay_s: float, mono_s: Callable[[], float]
    ) -> None:
        self._min_offsets = min_offsets
        self._max_delay_s = max_delay_s
        self._mono_s = mono_s
        self._opened_s: float | None = None

    def __repr__(self) -> str:
        return f"<Gate [{self._min_offsets} offsets or {self._max_delay_s} s]>"

    def holds(self, offsets: int) -> bool:
        """Tell whether a micro-batch of so many offsets is to wait; if not, it begins now."""
        if self._min_offsets is None or not offsets:
            return False
        now_s = self._mono_s()
        waited_s = None if self._opened_s is None else now_s - self._opened_s
        if offsets < self._min_offsets and waited_s is not None and waited_s < self._max_delay_s:
            return True
        self._opened_s = now_s
        return False


def _ranges(start: StreamPositions, ends: Mapping[int, int]) -> list[OffsetRange]:
    ranges = (OffsetRange(partition, start[partition].next, end) for partition, end in ends.items())
    return [each for each in ranges if each.size > 0]
