"""Where a stream stands, how a checkpoint has it, and how far the next micro-batch goes.

The position in a topic is JSON: `{"topic_id": I, "partitions": {"0": {"from": F, "next": N}}}`.
In read partition 0 the stream began at F and reads on at N. The offsets are those of topic id I
of the topic, and mean nothing in another one. A stream that reports to the audit also keeps how far
it has `told` it.

A stream of the option `topic` keeps just that, a stream of several topics has one for each:
`{"topics": {"clicks": {"topic_id": …}, …}}`. Both read both: a topic id says which topic it
is of.

A micro-batch takes Batches in the order of publication, over all topics. So no topic waits for
ever: its next Batch is the oldest in the end.
"""

from __future__ import annotations

import heapq
from itertools import repeat
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from memq.core.decoding import UNDECODABLE
from memq.core.ranges import OffsetRange
from memq.core.topic import check_topic_id
from memq.errors import CorruptDataError, InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from memq.core.notification import PublishedBatch

    BatchesByTime = Callable[[Sequence[OffsetRange]], Iterator[PublishedBatch]]


class StreamPosition(msgspec.Struct, frozen=True, omit_defaults=True, rename={"began": "from"}):
    """Where a stream stands in a read partition.

    Attributes:
        began: its first offset.
        next: the offset at which it reads on.
        told: up to where it has reported to the audit; None where it does not.
    """

    began: int
    next: int
    told: int | None = None


StreamPositions = dict[int, StreamPosition]
"""By read partition."""


class TopicPosition(msgspec.Struct, frozen=True):
    """Where a stream stands in a topic.

    Attributes:
        topic_id: of the topic.
        partitions: by read partition.
    """

    topic_id: str
    partitions: StreamPositions


# -- a checkpoint ---------------------------------------------------------------------------


def decode_topics(
    offset: Mapping[str, Any], names: Mapping[str, str], one: str
) -> dict[str, TopicPosition]:
    """Return what a checkpoint says of all topics, by name.

    Args:
        offset: from the checkpoint.
        names: of the topics that are read, by topic id.
        one: name of a topic that stands in the checkpoint without it and is none of these; empty
            for streams of several, in which it cannot be known.

    Raises:
        CorruptDataError: it was written by something else.
    """
    try:
        if "topics" in offset:
            found = msgspec.convert(offset["topics"], dict[str, TopicPosition], str_keys=True)
        else:
            position = msgspec.convert(offset, TopicPosition, str_keys=True)
            found = {names.get(position.topic_id, one): position}
        for each in found.values():
            check_topic_id(each.topic_id)
    except (TypeError, InvalidRequestError, *UNDECODABLE) as exc:
        raise CorruptDataError(
            f"the checkpoint says {offset!r}, which is not a position of a memq stream; it may "
            "belong to another source"
        ) from exc
    return found


def encode_topics(topics: Mapping[str, TopicPosition], one: str) -> dict[str, Any]:
    """Return what to write into a checkpoint; Spark compares it as text, so it is sorted.

    Args:
        topics: where the stream stands, by name.
        one: the topic of a stream that reads only one; empty for others.
    """
    found = {
        name: replace(each, partitions=dict(sorted(each.partitions.items())))
        for name, each in sorted(topics.items())
    }
    encoded: dict[str, Any] = msgspec.to_builtins(found, str_keys=True)
    return encoded[one] if one else {"topics": encoded}


# -- a micro-batch --------------------------------------------------------------------------


def admit(
    start: Mapping[str, StreamPositions],
    ends: Mapping[str, Mapping[int, int]],
    batches_by_time: Mapping[str, BatchesByTime],
    *,
    max_offsets: int | None,
    max_bytes: int | None,
) -> dict[str, StreamPositions]:
    """Return the positions after the next micro-batch, by topic.

    Args:
        start: positions before it, by topic.
        ends: how far each read partition may be read, by topic.
        batches_by_time: of each topic the Batches of some ranges, in the order of publication.
        max_offsets: most Batches; None for no limit.
        max_bytes: most stored bytes, but always one Batch; None for no limit.
    """
    taken = {topic: dict(positions) for topic, positions in start.items()}
    ranges = {topic: _ranges(start[topic], ends[topic]) for topic in ends}
    if max_offsets is not None or max_bytes is not None:
        queues = [
            zip(repeat(topic), batches_by_time[topic](some)) for topic, some in ranges.items()
        ]
        size = 0
        ordered = heapq.merge(*queues, key=lambda each: each[1].timestamp_ms)
        for count, (topic, batch) in enumerate(ordered, start=1):
            size += batch.notification.size_bytes
            over = count > (max_offsets or count) or size > (max_bytes or size)
            if over and count > 1:
                return taken
            positions = taken[topic]
            positions[batch.partition] = replace(positions[batch.partition], next=batch.offset + 1)
    for topic, some in ranges.items():  # offsets may end in a gap, which is read through here
        for each in some:
            taken[topic][each.partition] = replace(taken[topic][each.partition], next=each.end)
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
