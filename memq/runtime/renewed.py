"""A value that is good for a while, and is asked for again before that is over."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Generic, TypeVar

from memq.errors import MemqError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

AGAIN_S = 10.0  # after a renewal that failed, while the value is still good


class Renewed(Generic[T]):
    """The value. Of all who want it at a time one asks, and what it hears is for all.

    Where a renewal fails in a way that may pass, the value is given out as long as it is good.

    Args:
        clock_s: monotonic, in seconds.
        share: of its time, after which it is renewed.
    """

    def __init__(self, clock_s: Callable[[], float], share: float) -> None:
        self._clock_s, self._share = clock_s, share
        self._lock = asyncio.Lock()
        self._value: T
        self._end_s = self._renew_s = self._failed_s = -math.inf
        self._error: MemqError

    async def get(self, ask: Callable[[float], Awaitable[tuple[T, float]]]) -> tuple[T, float]:
        """Return the value that is good now, and for how many seconds.

        Args:
            ask: for another one, and its time; told for how long there is one, 0 for not at all.

        Raises:
            MemqError: as `ask`.
        """
        began_s = self._clock_s()
        async with self._lock:
            if self._failed_s > began_s:
                raise type(self._error)(str(self._error))
            if self._clock_s() >= self._renew_s:
                await self._renew(ask)
            return self._value, self._left_s()

    async def _renew(self, ask: Callable[[float], Awaitable[tuple[T, float]]]) -> None:
        asked_s = self._clock_s()
        try:
            self._value, time_s = await ask(self._left_s())
        except MemqError as exc:
            if not exc.retriable or self._left_s() == 0:
                self._error, self._failed_s = exc, self._clock_s()
                raise
            self._renew_s = self._clock_s() + min(AGAIN_S, self._left_s())
        else:
            self._end_s, self._renew_s = asked_s + time_s, asked_s + time_s * self._share

    def _left_s(self) -> float:
        return max(0.0, self._end_s - self._clock_s())
