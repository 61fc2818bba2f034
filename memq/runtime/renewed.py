"""A value that is good for a while, and is asked for again before that is over."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Generic, TypeVar

from memq.errors import MemqError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

AGAIN_S = 10.0  # after a refusal, or a renewal that failed while the value is still good


class Renewed(Generic[T]):
    """The value. Of all who want it at a time one asks, and what it hears is for all.

    Where a renewal fails in a way that may pass, the value is given out as long as it is good. A
    refusal is repeated for `AGAIN_S`. Who does not wait any more ends no renewal: the next who
    comes waits for the same one.

    Args:
        clock_s: monotonic, in seconds.
        share: of its time, after which it is renewed.
    """

    def __init__(self, clock_s: Callable[[], float], share: float) -> None:
        self._clock_s, self._share = clock_s, share
        self._value: T
        self._end_s = self._renew_s = -math.inf
        self._error: MemqError | None = None
        self._asking: asyncio.Task[None] | None = None

    async def get(self, ask: Callable[[float], Awaitable[tuple[T, float]]]) -> tuple[T, float]:
        """Return the value that is good now, and for how many seconds.

        Args:
            ask: for another one, and its time; told for how long there is one, 0 for not at all.

        Raises:
            MemqError: as `ask`.
        """
        if self._clock_s() >= self._renew_s:
            if self._asking is None:
                self._asking = asyncio.get_running_loop().create_task(self._renew(ask))
            await asyncio.shield(self._asking)
        if self._error is not None:
            raise type(self._error)(str(self._error))
        return self._value, self._left_s()

    async def _renew(self, ask: Callable[[float], Awaitable[tuple[T, float]]]) -> None:
        asked_s, self._error = self._clock_s(), None
        try:
            self._value, time_s = await ask(self._left_s())
        except MemqError as exc:
            if not exc.retriable or self._left_s() == 0:
                self._error = exc
            wait_s = AGAIN_S if not exc.retriable else min(AGAIN_S, self._left_s())
            self._renew_s = self._clock_s() + wait_s
        else:
            self._end_s, self._renew_s = asked_s + time_s, asked_s + time_s * self._share
        finally:
            self._asking = None

    def _left_s(self) -> float:
        return max(0.0, self._end_s - self._clock_s())
