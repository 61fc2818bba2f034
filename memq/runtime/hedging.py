"""Hedging: when a request that takes long is made a second time, in parallel.

An object store answers most requests within some tenths of a second, and about one in a thousand
after seconds: a connection or a server of many has stalled, and a second request meets another.
Whichever succeeds first counts. Two puts write the same bytes under the same key, two reads read
the same. The rule, after Dean and Barroso, *The Tail at Scale* (Communications of the ACM 56:2,
2013):

- A request is *overdue* when it takes longer than 97 in 100 of the latest ones of about its size
  did. Only then is it hedged, so hedges are rare by themselves.
- They are bounded all the same: each request earns a twentieth of a hedge, and a few can be saved.
- While the store slows down as a whole, a hedge meets the same queue and makes it longer. So there
  is none while more than a fifth of the latest requests, and of those under way, are overdue or
  failed.

What is measured of a request whose hedge came first is a lower bound of what it would have taken.
It is above the delay, so the share above the delay stays true, which is all that is asked.

It holds for storages whose requests meet different servers (`StorageHandler.remote`); one disk is
only made slower.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

QUANTILE = 0.97  # so that ordinary requests leave some of the hedges for those that stall
EXTRA_SHARE = 0.05  # of all requests; what hedging may cost
MAX_SAVED = 5.0  # hedges that may follow upon each other at once
WINDOW = 256  # latest requests of a size class, of which the quantile is taken
MIN_KNOWN = 20  # requests below which there is no quantile to speak of
REFRESH = 8  # requests after which it is taken again
RECENT = 20  # latest requests of all sizes that tell how the store is doing
SLOW_SHARE = 0.2  # of these, overdue: the store slows down; by chance it is 1 in 400


class _SizeClass:
    """The latest requests of about one size.

    Attributes:
        delay_s: after which one is overdue; None while too little is known.
    """

    def __init__(self) -> None:
        self.delay_s: float | None = None
        self._latest: deque[float] = deque(maxlen=WINDOW)
        self._since_refresh = 0

    def add(self, seconds: float) -> None:
        self._latest.append(seconds)
        self._since_refresh += 1
        known = len(self._latest)
        if known >= MIN_KNOWN and (self.delay_s is None or self._since_refresh >= REFRESH):
            self.delay_s = sorted(self._latest)[int(known * QUANTILE)]
            self._since_refresh = 0


class Hedged:
    """A request under way, as `Hedging` knows it."""

    __slots__ = ("delay_s", "overdue", "size_class")

    def __init__(self, size_class: _SizeClass) -> None:
        self.size_class = size_class
        self.delay_s = size_class.delay_s
        self.overdue = False


class Hedging:
    """The rule, for all requests of one kind to one storage. It measures nothing itself.

    Call `began` for each; wait for its `delay_s`, if it has one; while it is still under way, ask
    `overdue` whether to hedge, each time so long after; call `ended` once for each. `first_success`
    does so.

    Attributes:
        requests: how many have begun.
        hedges: how many of them were hedged.
    """

    def __init__(self) -> None:
        self.requests = 0
        self.hedges = 0
        self._saved = 0.0
        self._classes: dict[int, _SizeClass] = {}
        self._recent: deque[bool] = deque(maxlen=RECENT)  # overdue or failed
        self._under_way = 0
        self._overdue = 0

    def __repr__(self) -> str:
        return (
            f"<Hedging [{self.hedges} of {self.requests} hedged | {self._overdue} of "
            f"{self._under_way} under way overdue]>"
        )

    def began(self, size_bytes: int) -> Hedged:
        """Begin a request for so many bytes."""
        self.requests += 1
        self._under_way += 1
        self._saved = min(MAX_SAVED, self._saved + EXTRA_SHARE)
        # Classes end between powers of two: those are the sizes that Batches have.
        number = (size_bytes + size_bytes // 2).bit_length()
        return Hedged(self._classes.setdefault(number, _SizeClass()))

    def overdue(self, request: Hedged) -> bool:
        """It has taken its `delay_s`, and is under way; whether to make it a second time.

        After a no, ask again when as much time has passed once more.
        """
        self._overdue += not request.overdue
        request.overdue = True
        if self._saved < 1 or self._store_is_slow():
            return False
        self._saved -= 1
        self.hedges += 1
        return True

    def ended(self, request: Hedged, seconds: float, *, succeeded: bool) -> None:
        """It has ended, after so many seconds, by itself or by its hedge."""
        self._under_way -= 1
        self._overdue -= request.overdue
        self._recent.append(request.overdue or not succeeded)
        if succeeded:
            request.size_class.add(seconds)

    def _store_is_slow(self) -> bool:
        slow = sum(self._recent) + self._overdue
        return slow > 1 and slow > SLOW_SHARE * (len(self._recent) + self._under_way)


async def first_success(
    attempt: Callable[[], asyncio.Future[T]],
    hedging: Hedging,
    size_bytes: int,
    clock_s: Callable[[], float],
    *,
    may_hedge: bool = True,
) -> T:
    """Return the result of an attempt, or of a second one that begins when it is overdue.

    Attempts that are still under way then are left to the caller.

    Args:
        attempt: begins one.
        hedging: the rule.
        size_bytes: of the request.
        clock_s: the monotonic clock.
        may_hedge: whether there may be a second one.

    Raises:
        Exception: that of the attempt begun last, when all have failed.
    """
    request, began_s, succeeded = hedging.began(size_bytes), clock_s(), False
    try:
        attempts = [attempt()]
        while True:
            waits = may_hedge and len(attempts) == 1
            await asyncio.wait(
                [each for each in attempts if not each.done()],
                timeout=request.delay_s if waits else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            for each in attempts:
                if each.done() and each.exception() is None:
                    succeeded = True
                    return each.result()
            if all(each.done() for each in attempts):
                return attempts[-1].result()
            if waits and not attempts[0].done() and hedging.overdue(request):
                attempts.append(attempt())
    finally:
        hedging.ended(request, clock_s() - began_s, succeeded=succeeded)
