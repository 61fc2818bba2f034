"""The notifications of a topic between two times or offsets, and work on them some steps ahead."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable

    from memq.client.topic import TopicClient
    from memq.core.wire.messages import NotificationEntry

T = TypeVar("T")
R = TypeVar("R")

PAGE_ENTRIES = 1_000  # asked for at a time, about 1 MB


class Stretch(NamedTuple):
    """Offsets of one read partition from `start` up to, not including, `end`."""

    partition: int
    start: int
    end: int

    @property
    def entries(self) -> int:
        """Notifications in it, at most: Kafka's offsets have gaps."""
        return self.end - self.start


async def stretches_between(
    queue: TopicClient, start_ms: int | None, end_ms: int | None
) -> list[Stretch]:
    """What was published from one time up to, not including, another one.

    Args:
        queue: of the topic.
        start_ms: milliseconds since 1970 UTC; None for all that is held.
        end_ms: likewise; None for all that is published by now.

    Raises:
        MemqError: the broker failed until the deadline.
    """
    begin = await queue.offsets(start_ms)
    finish = await queue.offsets(end_ms)
    return [
        Stretch(
            first.partition,
            first.start if first.at is None else first.at,
            last.end if last.at is None else last.at,
        )
        for first, last in zip(begin, finish, strict=True)
    ]


def stretches_beside(held: Iterable[Stretch], without: Iterable[Stretch]) -> list[Stretch]:
    """What of some stretches lies before or behind those of the same partition without."""
    inner = {stretch.partition: stretch for stretch in without}
    parts: list[Stretch] = []
    for partition, start, end in held:
        hole = inner[partition]
        parts.append(Stretch(partition, start, min(hole.start, end)))
        parts.append(Stretch(partition, max(hole.end, start), end))
    return [part for part in parts if part.entries > 0]


async def entries_of(
    queue: TopicClient, stretches: Iterable[Stretch]
) -> AsyncIterator[NotificationEntry]:
    """The notifications of some stretches, one stretch after the other.

    Raises:
        OffsetOutOfRangeError: retention has removed some of them.
        MemqError: the broker failed until the deadline.
    """
    for partition, start, end in stretches:
        offset = start
        while offset < end:
            page = await queue.page({partition: offset}, max_entries=PAGE_ENTRIES)
            if not page.entries:  # a gap at the end
                break
            for entry in page.entries:
                if entry.offset < end:
                    yield entry
            offset = page.entries[-1].offset + 1


async def map_ahead(
    work: Callable[[T], Awaitable[R]], items: AsyncIterator[T], most: int
) -> AsyncGenerator[tuple[T, R], None]:
    """Each item with the result of the work on it, in order; up to `most` are worked on at a time.

    Close it (`contextlib.aclosing`) when it is left before its end.
    """
    pending: deque[tuple[T, asyncio.Future[R]]] = deque()
    try:
        async for item in items:
            if len(pending) >= most:
                first, result = pending.popleft()
                yield first, await result
            pending.append((item, asyncio.ensure_future(work(item))))
        while pending:
            first, result = pending.popleft()
            yield first, await result
    finally:
        for _, result in pending:
            result.cancel()
