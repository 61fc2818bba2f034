"""What a broker keeps about time for its next life; see `memq.core.clock`.

Running time is saved every so often, so that a topic to which nobody writes grows old as well; what
a crash loses of it only makes things be kept for longer.

A watermark that was told closes a stretch of time for good, so the next life must not write
anything down as earlier, whatever its wall clock shows. Therefore the wall time is saved before a
watermark is told, a little ahead, so that it costs one flush a second at most however many ask.
After a crash, what comes within that little is written down as that much later.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from memq.core.clock import AHEAD_MS, SavedTimes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from memq.core.clock import BrokerClock, ClockReading


class Timekeeper:
    """Saves how far time has come.

    Args:
        clock: the broker's.
        saved: by the life before.
        save: keeps times durably.

    Attributes:
        clock: as given.
        saved: what was saved last; no watermark may be told that is later.
    """

    def __init__(
        self, clock: BrokerClock, saved: SavedTimes, save: Callable[[SavedTimes], Awaitable[None]]
    ) -> None:
        self.clock = clock
        self.saved = saved
        self._save = save
        self._told_ms = saved.wall_ms
        self._lock = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<Timekeeper [{self.clock!r} | saved {self.saved}]>"

    async def promise(self, now: ClockReading) -> None:
        """See to it that a watermark up to now may be told.

        Raises:
            QueueError: it cannot be saved.
        """
        async with self._lock:
            if now.wall_ms > self.saved.wall_ms:
                await self._store(now, now.wall_ms + AHEAD_MS)

    def told(self, wall_ms: int) -> None:
        """A watermark was told; it is not later than what is saved."""
        self._told_ms = max(self._told_ms, wall_ms)

    async def keep(self, now: ClockReading) -> None:
        """Save the time now.

        Raises:
            QueueError: it cannot be saved.
        """
        async with self._lock:
            await self._store(now, max(self.saved.wall_ms, now.wall_ms))

    async def close(self, now: ClockReading) -> None:
        """Save the time now, and no more than was told: nobody is told anything any more.

        Raises:
            QueueError: it cannot be saved.
        """
        async with self._lock:
            await self._store(now, max(self._told_ms, now.wall_ms))

    async def _store(self, now: ClockReading, wall_ms: int) -> None:
        times = SavedTimes(now.mono_ms, wall_ms)
        await self._save(times)
        self.saved = times
