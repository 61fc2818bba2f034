"""Lag: what is published after the offsets where readers stand, counted from notifications.

Theory of operation
-------------------
Offsets may have gaps and are never used again, so what lies between two of them cannot be told by
subtracting: it is counted. Nothing is counted before somebody asks. From then on a read partition
has a `Stretch`: what of it was read so far, summed up in blocks of some Batches each. A question
first reads what was published since the last one, and what lies before the stretch if it asks for
an earlier offset; then it adds up whole blocks, and reads the one block that the offset falls into
once more, from there on. So a question of a reader that keeps up costs what is new, and one of a
reader far behind costs its backlog the first time, and a block afterwards.

Retention needs no word from anybody: a question begins at the first offset retained at the least,
and the blocks before it are dropped. A topic that is recreated has other names in the queue, and
so other stretches.

Memory is bounded: `MAX_STRETCHES` of `MAX_BLOCKS` blocks of 40 bytes, about 20 MiB. With too many
blocks each two neighbours become one, so that a reader far behind costs more reading instead. With
too many stretches the one that was asked about least recently goes; so does one that nobody has
asked about for `IDLE_S`, and whoever asks again has it counted anew.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_left
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from memq.core.format.message import UNKNOWN_RANGE
from memq.core.notification import decode_counts
from memq.core.wire.messages import PartitionLag
from memq.errors import (
    CorruptDataError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    UnavailableError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from memq.broker.context import BrokerContext
    from memq.core.governor.topics import Topic
    from memq.core.wire.messages import PartitionOffset

MAX_POSITIONS = 4_096  # of one request: they fit its header, and their answer is small
MAX_STRETCHES = 1_000  # read partitions that are counted at a time
MAX_BLOCKS = 512  # of one read partition
BLOCK_BATCHES = 256  # of one block, until there are too many: about 0.5 ms to read again
IDLE_S = 600.0  # longer than dashboards wait; what came meanwhile is read in a second or less
PAGE_BYTES = 1 << 20  # notifications read at a time; others have their turn after each page
ATTEMPTS = 5  # to count while retention removes what is being read


class Backlog(NamedTuple):
    """So much to read.

    Attributes:
        batches: Batches.
        records: LogMessages in them.
        size_bytes: of their objects.
        oldest_us: least timestamp of their LogMessages, or the time of publication of a Batch whose
            LogMessages have none; None when there are none.
    """

    batches: int = 0
    records: int = 0
    size_bytes: int = 0
    oldest_us: int | None = None

    def plus(self, other: Backlog) -> Backlog:
        """Both together."""
        oldest = [each.oldest_us for each in (self, other) if each.oldest_us is not None]
        return Backlog(
            self.batches + other.batches,
            self.records + other.records,
            self.size_bytes + other.size_bytes,
            min(oldest, default=None),
        )


class Stretch:
    """What was counted of a read partition, from one offset up to another, in blocks.

    Args:
        start: where it begins; it is empty at first.

    Attributes:
        start: first offset that is counted; while it is empty it may begin anywhere.
        end: one past the last.
        asked_s: when it was asked about last, in monotonic seconds.
        lock: held while it is read on.
    """

    def __init__(self, start: int = 0) -> None:
        self.start = self.end = start
        self.asked_s = 0.0
        self.lock = asyncio.Lock()
        self._block_batches = BLOCK_BATCHES
        # Of each block: its first offset, and what is in it.
        self._firsts, self._batches, self._records, self._sizes, self._oldest = _no_blocks()

    def __repr__(self) -> str:
        return f"<Stretch {self.start} to {self.end} [{len(self._firsts)} blocks]>"

    def add(self, offset: int, found: Backlog) -> None:
        """Count a Batch at the end, of which `found` says how much it is."""
        assert found.oldest_us is not None  # noqa: S101 - of one Batch
        if not self._firsts or self._batches[-1] >= self._block_batches:
            if len(self._firsts) >= MAX_BLOCKS:
                self._join_neighbours()
            self._append(offset, found)
        else:
            self._batches[-1] += found.batches
            self._records[-1] += found.records
            self._sizes[-1] += found.size_bytes
            self._oldest[-1] = min(self._oldest[-1], found.oldest_us)
        self.end = offset + 1

    def put_before(self, earlier: Stretch) -> None:
        """Add what lies before: a stretch that ends where this one starts."""
        assert earlier.end <= self.start  # noqa: S101
        for ours, theirs in zip(self._columns(), earlier._columns(), strict=True):
            ours[:0] = theirs
        self.start = earlier.start
        self._block_batches = max(self._block_batches, earlier._block_batches)
        while len(self._firsts) > MAX_BLOCKS:
            self._join_neighbours()

    def forget_before(self, offset: int) -> None:
        """Drop the blocks that end before an offset."""
        gone = max(0, bisect_left(self._firsts, offset + 1) - 1)
        for column in self._columns():
            del column[:gone]
        if self._firsts:
            self.start = max(self.start, self._firsts[0])
        if offset >= self.end:
            self._firsts, self._batches, self._records, self._sizes, self._oldest = _no_blocks()
            self.start = self.end = offset

    def whole_blocks(self, offset: int) -> tuple[int, Backlog]:
        """What is in the blocks from an offset on, and where the first of these begins."""
        at = bisect_left(self._firsts, offset)
        if at == len(self._firsts):
            return self.end, Backlog()
        return self._firsts[at], Backlog(
            sum(self._batches[at:]),
            sum(self._records[at:]),
            sum(self._sizes[at:]),
            min(self._oldest[at:]),
        )

    def _append(self, first: int, found: Backlog) -> None:
        for column, value in zip(self._columns(), (first, *found), strict=True):
            column.append(value)  # type: ignore[arg-type]  # the oldest of a Batch is not None

    def _columns(self) -> tuple[array[int], ...]:
        return self._firsts, self._batches, self._records, self._sizes, self._oldest

    def _join_neighbours(self) -> None:
        """Make one block of each two, and new ones twice as large."""
        self._block_batches *= 2
        firsts, oldest = self._firsts, self._oldest
        pairs = range(0, len(firsts), 2)
        self._firsts = array("q", [firsts[at] for at in pairs])
        self._oldest = array("q", [min(oldest[at : at + 2]) for at in pairs])
        self._batches, self._records, self._sizes = (
            array("q", [sum(column[at : at + 2]) for at in pairs])
            for column in (self._batches, self._records, self._sizes)
        )


def _no_blocks() -> Iterator[array[int]]:
    return (array("q") for _ in range(5))


class LagCounter:
    """Counts what is published after offsets of a broker's topics.

    Args:
        context: of the broker.
    """

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._stretches: OrderedDict[tuple[str, int], Stretch] = OrderedDict()  # last asked last

    def __repr__(self) -> str:
        return f"<LagCounter [{len(self._stretches)} read partitions]>"

    async def lags(self, topic: Topic, positions: Sequence[PartitionOffset]) -> list[PartitionLag]:
        """What is published and retained from each of the positions on, in their order.

        Raises:
            InvalidRequestError: there are too many positions, or the topic has no such partition.
            UnavailableError: retention removed what was being counted, again and again.
            MemqError: the queue failed.
        """
        _check(topic, positions)
        found: dict[tuple[int, int], PartitionLag] = {}
        # The earliest first: it reads what all the others of its partition need as well.
        for partition, offset in sorted({(each.partition, each.offset) for each in positions}):
            found[partition, offset] = await self._lag(topic.queue_topic, partition, offset)
        return [found[each.partition, each.offset] for each in positions]

    async def _lag(self, queue_topic: str, partition: int, offset: int) -> PartitionLag:
        for _ in range(ATTEMPTS):
            stretch = self._stretch(queue_topic, partition)
            async with stretch.lock:
                start, end = await self._context.queue.offsets(queue_topic, partition)
                about = PartitionLag(partition=partition, offset=offset, start=start, end=end)
                stretch.forget_before(start)
                first = min(max(offset, start), end)
                try:
                    counted = await self._count(stretch, queue_topic, partition, first, end)
                except OffsetOutOfRangeError:  # retention was quicker
                    continue
                except CorruptDataError as exc:
                    # What lies after the damage can be counted, from a later offset on.
                    self._stretches.pop((queue_topic, partition), None)
                    return msgspec.structs.replace(about, error=str(exc))
                return msgspec.structs.replace(about, **counted._asdict())
        raise UnavailableError(
            f"{queue_topic!r}/{partition}: retention removes notifications faster than they are "
            "counted; try again"
        )

    def _stretch(self, queue_topic: str, partition: int) -> Stretch:
        """What is counted of the partition; an empty one when nobody has asked lately."""
        key, now_s = (queue_topic, partition), self._context.runtime.mono_s()
        for asked, stretch in list(self._stretches.items()):
            if stretch.asked_s + IDLE_S > now_s:
                break
            del self._stretches[asked]
        stretch = self._stretches.setdefault(key, Stretch())
        stretch.asked_s = now_s
        self._stretches.move_to_end(key)
        if len(self._stretches) > MAX_STRETCHES:
            self._stretches.popitem(last=False)
        return stretch

    async def _count(
        self, stretch: Stretch, queue_topic: str, partition: int, first: int, end: int
    ) -> Backlog:
        """What is between two offsets, both retained when this was begun."""
        if stretch.start == stretch.end:
            stretch.start = stretch.end = first
        async for offset, found in self._batches(queue_topic, partition, stretch.end, end):
            stretch.add(offset, found)
        stretch.end = max(stretch.end, end)  # it may end in a gap
        if first < stretch.start:
            earlier = Stretch(first)
            async for offset, found in self._batches(queue_topic, partition, first, stretch.start):
                earlier.add(offset, found)
            stretch.put_before(earlier)
        begin, backlog = stretch.whole_blocks(first)
        async for _, found in self._batches(queue_topic, partition, first, begin):
            backlog = backlog.plus(found)
        return backlog

    async def _batches(
        self, queue_topic: str, partition: int, start: int, end: int
    ) -> AsyncIterator[tuple[int, Backlog]]:
        """The Batches between two offsets, and how much each of them is.

        Raises:
            OffsetOutOfRangeError: retention has removed the first of them.
            CorruptDataError: a notification is damaged.
        """
        entries = self._context.entries(
            queue_topic, partition, start, end, at_once_bytes=PAGE_BYTES
        )
        async for entry in entries:
            try:
                counts = decode_counts(entry.payload)
            except CorruptDataError as exc:
                raise CorruptDataError(
                    f"{queue_topic}/{partition} offset {entry.offset}: {exc}"
                ) from exc
            oldest_us = counts.min_timestamp_us
            if (oldest_us, counts.max_timestamp_us) == UNKNOWN_RANGE:
                oldest_us = entry.timestamp_ms * 1_000
            yield entry.offset, Backlog(1, counts.records, counts.size_bytes, oldest_us)


def _check(topic: Topic, positions: Sequence[PartitionOffset]) -> None:
    if len(positions) > MAX_POSITIONS:
        raise InvalidRequestError(
            f"{len(positions)} positions asked about; ask about up to {MAX_POSITIONS} at a time"
        )
    count = topic.config.read_partitions
    for each in positions:
        if not 0 <= each.partition < count:
            raise InvalidRequestError(
                f"topic {topic.name!r} has no read partition {each.partition}; it has 0 to "
                f"{count - 1}"
            )
