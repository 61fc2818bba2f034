"""Lag: what is published after the offsets where readers stand, counted from notifications.

Theory of operation
-------------------
Offsets may have gaps and are never used again, so what lies between two of them cannot be told by
subtracting: it is counted, in blocks of `BLOCK` offsets. A range of offsets is the same data for
ever, so whatever was counted is kept. A question reads the rest of the block that it begins in and
what is new, and adds up the blocks between them. So a reader that keeps up costs what is new, and
one far behind costs its backlog the first time.

Memory is bounded: of more than `MAX_COUNTS` counts the one used least recently is forgotten, and
counted again when it is needed.

*Metrics.* A scrape looks at all groups for `SCRAPE_WAIT_S`. When that is too short, it shows what
an earlier scrape has found, and the next one continues from the counts that are kept.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from memq.broker.metrics import GroupLagRow
from memq.core.format.message import UNKNOWN_RANGE
from memq.core.notification import decode_notification
from memq.core.wire.messages import PartitionLag, PartitionOffset
from memq.errors import (
    CorruptDataError,
    InvalidRequestError,
    MemqError,
    OffsetOutOfRangeError,
    UnavailableError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memq.broker.context import BrokerContext
    from memq.broker.topics import Topics
    from memq.core.governor.topics import Topic

log = logging.getLogger(__name__)

MAX_POSITIONS = 4_096  # of one request: they fit its header, and their answer is small
BLOCK = 512  # offsets that are counted together: about 1 ms
MAX_COUNTS = 100_000  # that are kept: about 25 MiB, for 50 million Batches
PAGE_BYTES = 1 << 20  # notifications read at a time; others have their turn after each page
ATTEMPTS = 5  # to count while retention removes what is being read
SCRAPE_WAIT_S = 1.0  # Prometheus gives up after 10 s by default
MAX_LAG_ROWS = 1_000  # groups times read partitions that are shown: five series each


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


class LagCounter:
    """Counts what is published after offsets of a broker's topics.

    Args:
        context: of the broker.
    """

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        # By topic of the queue, read partition, start and end; the last used one is last.
        self._counts: OrderedDict[tuple[str, int, int, int], Backlog] = OrderedDict()

    def __repr__(self) -> str:
        return f"<LagCounter [{len(self._counts)} counts]>"

    async def lags(self, topic: Topic, positions: Sequence[PartitionOffset]) -> list[PartitionLag]:
        """Count what is published and retained from each of the positions on, in their order.

        Raises:
            InvalidRequestError: there are too many positions, or the topic has no such partition.
            UnavailableError: retention removed what was being counted, again and again.
            MemqError: the queue failed.
        """
        _check(topic, positions)
        found: dict[tuple[int, int], PartitionLag] = {}
        for partition, offset in sorted({(each.partition, each.offset) for each in positions}):
            found[partition, offset] = await self._lag(topic.queue_topic, partition, offset)
        return [found[each.partition, each.offset] for each in positions]

    async def _lag(self, queue_topic: str, partition: int, offset: int) -> PartitionLag:
        for _ in range(ATTEMPTS):
            start, end = await self._context.queue.offsets(queue_topic, partition)
            about = PartitionLag(partition=partition, offset=offset, start=start, end=end)
            first = min(max(offset, start), end)
            try:
                counted = await self._count(queue_topic, partition, first, end)
            except OffsetOutOfRangeError:  # retention was quicker
                continue
            except CorruptDataError as exc:
                # What lies after the damage can be counted, from a later offset on.
                return msgspec.structs.replace(about, error=str(exc))
            return msgspec.structs.replace(about, **counted._asdict())
        raise UnavailableError(
            f"{queue_topic!r}/{partition}: retention removes notifications faster than they are "
            "counted; try again"
        )

    async def _count(self, queue_topic: str, partition: int, first: int, end: int) -> Backlog:
        """Count what is between two offsets, both retained when this was begun."""
        total = Backlog()
        while first < end:
            stop = min(end, first - first % BLOCK + BLOCK)
            place = (queue_topic, partition, first, stop)
            counted = self._counts.pop(place, None)
            if counted is None:
                counted = await self._read(*place)
            self._counts[place] = counted
            if len(self._counts) > MAX_COUNTS:
                self._counts.popitem(last=False)
            total, first = total.plus(counted), stop
        return total

    async def _read(self, queue_topic: str, partition: int, start: int, end: int) -> Backlog:
        """Count the Batches between two offsets, one by one.

        Raises:
            OffsetOutOfRangeError: retention has removed the first of them.
            CorruptDataError: a notification is damaged.
        """
        backlog = Backlog()
        entries = self._context.entries(
            queue_topic, partition, start, end, at_once_bytes=PAGE_BYTES
        )
        async for entry in entries:
            try:
                counts = decode_notification(entry.payload)
            except CorruptDataError as exc:
                raise CorruptDataError(
                    f"{queue_topic}/{partition} offset {entry.offset}: {exc}"
                ) from exc
            oldest_us = counts.min_timestamp_us
            if (oldest_us, counts.max_timestamp_us) == UNKNOWN_RANGE:
                oldest_us = entry.timestamp_ms * 1_000
            backlog = backlog.plus(Backlog(1, counts.records, counts.size_bytes, oldest_us))
        return backlog


def _check(topic: Topic, positions: Sequence[PartitionOffset]) -> None:
    if len(positions) > MAX_POSITIONS:
        raise InvalidRequestError(
            f"{len(positions)} positions asked about; ask about up to {MAX_POSITIONS} at a time"
        )
    for each in positions:
        check_read_partition(topic, each.partition)


def check_read_partition(topic: Topic, partition: int) -> None:
    """Refuse a number that no read partition of the topic has.

    Raises:
        InvalidRequestError: naming those that there are.
    """
    count = topic.config.read_partitions
    if not 0 <= partition < count:
        raise InvalidRequestError(
            f"topic {topic.name!r} has no read partition {partition}; it has 0 to {count - 1}"
        )


class GroupLags:
    """Looks up how far every group is from the end.

    Args:
        context: of the broker.
        topics: that it hosts.
        counter: counts what is published after offsets.
    """

    def __init__(self, context: BrokerContext, topics: Topics, counter: LagCounter) -> None:
        self._context = context
        self._topics = topics
        self._counter = counter

    def __repr__(self) -> str:
        shown = self._context.metrics.lag
        return f"<GroupLags [{len(shown.rows)} shown | {shown.left_out} groups left out]>"

    async def refresh(self) -> None:
        """Look up the lag of all groups; what takes too long is continued by the next call."""
        try:
            async with asyncio.timeout(SCRAPE_WAIT_S):
                await self._look()
        except TimeoutError:
            log.info("the lag of groups is still being counted; metrics show an earlier one")
        except Exception:  # it only reads: a bug here costs these metrics and no more
            log.exception("unexpected error looking up the lag of groups")

    async def _look(self) -> None:
        """Find the lag of all groups, as many as are shown."""
        rows: list[GroupLagRow] = []
        left_out = 0
        for hosted in self._topics.hosted():
            if not hosted.coordinated:
                continue  # another broker shows them
            try:
                left_out += await self._look_at(hosted.topic, rows)
            except MemqError as exc:
                if hosted in self._topics.hosted():  # else it was deleted meanwhile
                    self._context.warn("lag", f"{hosted.topic.name}: lag is not known: {exc}")
        shown = self._context.metrics.lag
        shown.rows, shown.left_out = rows, left_out

    async def _look_at(self, topic: Topic, rows: list[GroupLagRow]) -> int:
        """Add the groups of a topic; returns how many of them there is no room for."""
        queue = self._context.queue
        groups = await queue.groups(topic.queue_topic)
        for done, group in enumerate(groups):
            try:
                offsets = await queue.committed(group, topic.queue_topic)
            except CorruptDataError as exc:
                self._context.warn("lag", f"{topic.name}: lag of {group} is not known: {exc}")
                continue
            if len(rows) + len(offsets) > MAX_LAG_ROWS:
                return len(groups) - done
            positions = [PartitionOffset(*each) for each in sorted(offsets.items())]
            for lag in await self._counter.lags(topic, positions):
                if lag.error:
                    self._context.warn("lag", f"{topic.name}: lag is not known: {lag.error}")
                else:
                    rows.append(GroupLagRow(group, topic.name, lag))
        return 0
