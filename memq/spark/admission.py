"""How much a micro-batch takes: at most so much, shared among topics, and at least so much.

Each topic gives its Batches in the order of publication. The topic that has given least so far
gives the next one; of those that have given as much, the one whose next Batch is oldest. So a topic
with a long backlog leaves the others their share, and takes what they do not use. Even where there
is room for fewer Batches than there are topics none waits for ever: its Batch is the oldest in the
end.
"""

from __future__ import annotations

import heapq
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
    """The positions after the next micro-batch, by topic.

    Args:
        start: positions before it, by topic.
        ends: how far each read partition may be read, by topic.
        batches_in_order: of each topic the Batches of some ranges, in the order of publication.
        max_offsets: most Batches; None for no limit.
        max_bytes: most stored bytes, but always one Batch; None for no limit.
    """
    taken = {topic: dict(positions) for topic, positions in start.items()}
    ranges = {topic: _ranges(start[topic], ends[topic]) for topic in ends}
    if max_offsets is None and max_bytes is None:
        for topic, some in ranges.items():
            _take_all(taken[topic], some)
        return taken
    queues = [
        _Queue(topic, batches_in_order[topic](some), by_bytes=max_bytes is not None)
        for topic, some in ranges.items()
        if some
    ]
    waiting = [queue for queue in queues if queue.advance()]
    heapq.heapify(waiting)
    count = size = 0
    while waiting:
        queue = waiting[0]
        batch = queue.next
        count += 1
        size += batch.notification.size_bytes
        over = count > (max_offsets or count) or size > (max_bytes or size)
        if over and count > 1:
            break
        positions = taken[queue.topic]
        positions[batch.partition] = positions[batch.partition]._replace(next=batch.offset + 1)
        queue.given += batch.notification.size_bytes if queue.by_bytes else 1
        if queue.advance():
            heapq.heapreplace(waiting, queue)
        else:
            heapq.heappop(waiting)
    for queue in queues:
        if queue.empty:  # offsets of Kafka may end in a gap, which is read through here
            _take_all(taken[queue.topic], ranges[queue.topic])
    return taken


def available(start: Mapping[str, StreamPositions], ends: Mapping[str, Mapping[int, int]]) -> int:
    """How many offsets a micro-batch could take."""
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
        """Whether a micro-batch of so many offsets is to wait; if not, it begins now."""
        if self._min_offsets is None or not offsets:
            return False
        now_s = self._mono_s()
        waited_s = None if self._opened_s is None else now_s - self._opened_s
        if offsets < self._min_offsets and waited_s is not None and waited_s < self._max_delay_s:
            return True
        self._opened_s = now_s
        return False


class _Queue:
    """The Batches of a topic that no micro-batch has taken yet."""

    next: PublishedBatch

    def __init__(self, topic: str, batches: Iterator[PublishedBatch], *, by_bytes: bool) -> None:
        self.topic = topic
        self.by_bytes = by_bytes
        self.given = 0
        self.empty = False
        self._batches = batches

    def __lt__(self, other: _Queue) -> bool:
        return self._turn() < other._turn()

    def advance(self) -> bool:
        """Look at the next Batch, if there is one."""
        found = next(self._batches, None)
        self.empty = found is None
        if found is not None:
            self.next = found
        return found is not None

    def _turn(self) -> tuple[int, int, str]:
        return self.given, self.next.timestamp_ms, self.topic


def _ranges(start: StreamPositions, ends: Mapping[int, int]) -> list[OffsetRange]:
    ranges = (OffsetRange(partition, start[partition].next, end) for partition, end in ends.items())
    return [each for each in ranges if each.size > 0]


def _take_all(positions: StreamPositions, ranges: Iterable[OffsetRange]) -> None:
    for each in ranges:
        positions[each.partition] = positions[each.partition]._replace(next=each.end)
