"""Hedging: when a put that takes long is made a second time, beside the first.

An object store answers most puts within some tenths of a second, and about one in a thousand after
seconds: a connection or a server of many has stalled, and a second request meets another. Whichever
ends first counts; both write the same bytes under the same key. The rule, after Dean and Barroso,
*The Tail at Scale* (Communications of the ACM 56:2, 2013):

- A put is *overdue* when it takes longer than 97 in 100 of the latest puts of about its size did.
  Only then is it hedged, so hedges are rare by themselves.
- They are bounded all the same: each put earns a twentieth of a hedge, and a few can be saved up.
- While the store slows down as a whole, a hedge meets the same queue and makes it longer. So there
  is none while more than a fifth of the latest puts, and of those under way, are overdue or failed.

What is measured of a put whose hedge came first is a lower bound of what it would have taken. It is
above the delay, so the share of puts above the delay stays true, which is all that is asked.

It holds for storages whose puts meet different servers (`StorageHandler.remote`); one disk is only
made slower.
"""

from __future__ import annotations

from collections import deque

QUANTILE = 0.97  # so that ordinary puts leave some of the hedges for those that stall
EXTRA_SHARE = 0.05  # of all puts; what hedging may cost
MAX_SAVED = 5.0  # hedges that may follow upon each other at once
WINDOW = 256  # latest puts of a size class, of which the quantile is taken
MIN_KNOWN = 20  # puts below which there is no quantile to speak of
REFRESH = 8  # puts after which it is taken anew
RECENT = 20  # latest puts of all sizes that tell how the store is doing
SLOW_SHARE = 0.2  # of these, overdue: the store slows down; by chance it is 1 in 400


class _SizeClass:
    """The latest puts of about one size.

    Attributes:
        delay_s: after which a put is overdue; None while too little is known.
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


class Put:
    """A put under way, as `Hedging` knows it."""

    __slots__ = ("delay_s", "overdue", "size_class")

    def __init__(self, size_class: _SizeClass) -> None:
        self.size_class = size_class
        self.delay_s = size_class.delay_s
        self.overdue = False


class Hedging:
    """The rule, for all puts of one storage. It measures nothing itself.

    Call `began` for each put; wait for `Put.delay_s`, if it has one; while the put is still under
    way, ask `overdue` whether to hedge, each time so long after; call `ended` once for each put.

    Attributes:
        puts: how many have begun.
        hedges: how many of them were hedged.
    """

    def __init__(self) -> None:
        self.puts = 0
        self.hedges = 0
        self._saved = 0.0
        self._classes: dict[int, _SizeClass] = {}
        self._recent: deque[bool] = deque(maxlen=RECENT)  # overdue or failed
        self._under_way = 0
        self._overdue = 0

    def __repr__(self) -> str:
        return (
            f"<Hedging [{self.hedges} of {self.puts} puts hedged | {self._overdue} of "
            f"{self._under_way} under way overdue]>"
        )

    def began(self, size_bytes: int) -> Put:
        """A put of so many bytes begins."""
        self.puts += 1
        self._under_way += 1
        self._saved = min(MAX_SAVED, self._saved + EXTRA_SHARE)
        # Classes end between powers of two: those are the sizes that Batches have.
        number = (size_bytes + size_bytes // 2).bit_length()
        return Put(self._classes.setdefault(number, _SizeClass()))

    def overdue(self, put: Put) -> bool:
        """The put has taken its `delay_s`, and is under way; whether to make it a second time.

        After a no, ask again when as much time has passed once more.
        """
        self._overdue += not put.overdue
        put.overdue = True
        if self._saved < 1 or self._store_is_slow():
            return False
        self._saved -= 1
        self.hedges += 1
        return True

    def ended(self, put: Put, seconds: float, *, stored: bool) -> None:
        """The put has ended, after so many seconds, by itself or by its hedge."""
        self._under_way -= 1
        self._overdue -= put.overdue
        self._recent.append(put.overdue or not stored)
        if stored:
            put.size_class.add(seconds)

    def _store_is_slow(self) -> bool:
        slow = sum(self._recent) + self._overdue
        return slow > 1 and slow > SLOW_SHARE * (len(self._recent) + self._under_way)
