"""Fetching ahead: where a reader stood before each Batch, in a queue whose numbers have gaps."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from memq.client.consumer.fetcher import Fetcher
from memq.client.topic import Page
from memq.core.notification.notification import encode_notification
from memq.core.wire.messages import NotificationEntry
from tests.unit.audit.test_consumed import notification

OFFSETS = (2, 3, 7, 8)


class Queue:
    """A queue that has notifications at some offsets only."""

    topic = "t"

    async def page(self, positions, **_):
        entries = [
            NotificationEntry(0, offset, 0, encode_notification(notification(offset)))
            for offset in OFFSETS
            if offset >= positions[0]
        ]
        if not entries:
            await asyncio.Event().wait()
        return Page(entries, {0: OFFSETS[-1] + 1})


class Source:
    """Batches that are as good as any."""

    async def fetch(self, published):
        return SimpleNamespace(offset=published.offset, size_bytes=1)


async def test_a_gap_belongs_to_the_batch_after_it():
    """Each Batch is taken from where the one before ended; after a move from where that led."""
    woken = asyncio.Event()
    fetcher = Fetcher(
        Queue(),
        Source(),
        prefetch_bytes=100,
        concurrency=2,
        on_out_of_range="error",
        wake=woken.set,
    )
    taken = []

    async def take(count):
        while count:
            woken.clear()
            fetched = fetcher.take()
            if fetched is None:
                await woken.wait()
            else:
                taken.append((fetcher.taken_from, fetched.offset))
                count -= 1

    fetcher.move({0: 1})
    await take(3)
    fetcher.move({0: 3})
    await take(1)
    fetcher.move({0: 8})
    await take(1)
    await fetcher.close()
    assert taken == [(1, 2), (3, 3), (4, 7), (3, 3), (8, 8)]
