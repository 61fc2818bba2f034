"""How far time has come, saved for the next life of a broker (`memq.core.clock`)."""

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
        told_ms: no watermark was told that is later, here or before it came here.
    """

    def __init__(
        self, clock: BrokerClock, saved: SavedTimes, save: Callable[[SavedTimes], Awaitable[None]]
    ) -> None:
        self.clock = clock
        self.saved = saved
        self._save = save
        self.told_ms = saved.wall_ms
        self._lock = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<Timekeeper [{self.clock!r} | saved {self.saved}]>"

    async def promise(self, now: ClockReading) -> None:
        """See to it that a watermark up to now, and up to what was told, may be told.

        Raises:
            QueueError: it cannot be saved.
        """
        async with self._lock:
            if max(now.wall_ms, self.told_ms) > self.saved.wall_ms:
                # Ahead of the clock, and not of what was told, or brokers that take over from each
                # other would drive it ahead.
                await self._store(now, max(now.wall_ms + AHEAD_MS, self.told_ms))

    def told(self, wall_ms: int) -> None:
        """Record that a watermark was told, here or by another broker whose write partition came
        here.

        Another broker's may be later than what is saved here, until the next promise.
        """
        self.told_ms = max(self.told_ms, wall_ms)

    async def keep(self, now: ClockReading) -> None:
        """Save the time now.

        Raises:
            QueueError: it cannot be saved.
        """
        async with self._lock:
            await self._store(now, max(self.saved.wall_ms, self.told_ms, now.wall_ms))

    async def close(self, now: ClockReading) -> None:
        """Save the time now, and no more than was told: nobody is told anything any more.

        Raises:
            QueueError: it cannot be saved.
        """
        async with self._lock:
            await self._store(now, max(self.told_ms, now.wall_ms))

    async def _store(self, now: ClockReading, wall_ms: int) -> None:
        times = SavedTimes(now.mono_ms, wall_ms)
        await self._save(times)
        self.saved = times
