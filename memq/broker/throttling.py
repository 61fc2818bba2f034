"""Quotas of a broker's connections: who has to wait, and for how long.

Nothing is refused but a connection too many; an answer says how long to wait (`throttle_ms`).

- A client that sends too much (bytes, requests) is not read for that long, but for `MAX_PAUSE_S`
  at most: its heartbeats come by the same connection. Then `REQUESTS_A_PAUSE` are served, however
  small the quota. Its changes wait by themselves, and one is made in that time.
- One that was sent too much waits before it asks for notifications or a Batch again. What it asks
  for too early is answered at once: with nothing, and when to ask again. What may be sent is
  reserved before it is read, so connections that ask at the same time get no more together.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING

from memq.core.access.quotas import (
    BYTES_IN,
    CLIENT,
    CONNECTIONS,
    GROUP,
    MUTATIONS,
    REQUESTS,
    USER,
    Quotas,
    TokenBucket,
    limits_of,
)
from memq.core.access.rules import ANY, MAX_NAME_CHARS
from memq.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterator

    import prometheus_client

    from memq.core.access.rules import Access

MAX_BUCKETS = 10_000  # beyond, those that are full go; else newcomers of a principal share one

MAX_PAUSE_S = 2.0  # clients take a broker that is silent for 5 s for dead
REQUESTS_A_PAUSE = 16  # more than a client that is alive needs, with its heartbeats

_IN = frozenset((BYTES_IN, MUTATIONS, REQUESTS))

_Holder = tuple[str, str, str]  # whose it is where each principal has its own, kind, name


class Throttling:
    """The quotas of all connections of a broker.

    Args:
        waited: counts the seconds for which clients had to wait, by quota and limit.

    Attributes:
        quotas: that hold now.
        waited: as given.
    """

    def __init__(self, waited: prometheus_client.Counter) -> None:
        self.quotas: Quotas = {}
        self.waited = waited
        self._buckets: dict[tuple[_Holder, str], TokenBucket] = {}
        self._swept_s = -math.inf
        self._open: Counter[_Holder] = Counter()

    def __repr__(self) -> str:
        return f"<Throttling [{len(self.quotas)} quotas | {len(self._buckets)} buckets]>"

    def bucket(self, holder: _Holder, limit: str, value: int, now_s: float) -> TokenBucket:
        """Return what is left of a limit, for all connections that it is about.

        It is looked up each time: two that were kept apart would each have the whole limit.
        """
        key = (holder, limit)
        found = self._buckets.get(key)
        if found is None:
            if len(self._buckets) >= MAX_BUCKETS and now_s > self._swept_s + 1:
                self._swept_s = now_s
                for name in [name for name, each in self._buckets.items() if each.is_full(now_s)]:
                    del self._buckets[name]
            if len(self._buckets) >= MAX_BUCKETS:
                key = ((holder[0], holder[1], ANY), limit)
            found = self._buckets.setdefault(key, TokenBucket(value, now_s))
        found.rate = value
        return found

    def connected(self, holders: list[_Holder]) -> None:
        """Count a connection.

        Raises:
            UnavailableError: it is one too many; it counts all the same until it is gone.
        """
        self._open.update(holders)
        for holder in holders:
            for quota, limit, value in limits_of(self.quotas, *holder[1:]):
                if limit == CONNECTIONS and self._open[holder] > value:
                    raise UnavailableError(
                        f"the quota of {quota} allows {value} connections at a time to a broker: "
                        "close others, or raise it with `memq quota set`"
                    )

    def disconnected(self, holders: list[_Holder]) -> None:
        """Count it no more."""
        for holder in holders:
            self._open[holder] -= 1
            if not self._open[holder]:
                del self._open[holder]

    def waited_s(self) -> dict[str, dict[str, float]]:
        """Return for how long clients had to wait, by quota and limit."""
        found: dict[str, dict[str, float]] = {}
        for family in self.waited.collect():
            for sample in family.samples:
                labels = sample.labels
                found.setdefault(labels["quota"], {})[labels["limit"]] = sample.value
        return found


class Throttle:
    """The quotas of one connection.

    Args:
        throttling: of the broker.
        stop_reading: called when nothing is to be read any more.
        read_on: called when it is again.

    Attributes:
        untold_ms: how long the client has to wait, which no answer has said yet.
        waited_s: for how long it had to wait so far.
    """

    def __init__(
        self,
        throttling: Throttling,
        *,
        stop_reading: Callable[[], None],
        read_on: Callable[[], None],
    ) -> None:
        self.untold_ms = 0
        self.waited_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._throttling = throttling
        self._stop_reading, self._read_on = stop_reading, read_on
        self._until_s: dict[str, float] = {}  # when the client has waited long enough, by limit
        self._read_at_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._changing, self._sending = asyncio.Lock(), asyncio.Lock()
        self._counted: list[_Holder] = []
        self._limits: dict[str, list[tuple[str, _Holder, int]]] = {}

    def __repr__(self) -> str:
        return f"<Throttle [{', '.join(self._limits) or 'no limit'}]>"

    def __bool__(self) -> bool:
        """Return whether anything is limited."""
        return bool(self._limits)

    @property
    def pausing(self) -> bool:
        """Whether nothing is to be read now."""
        return self._timer is not None

    def follow(self, access: Access, client: str, group: str) -> None:
        """Hold to the quotas of now; what is owed by earlier connections is waited for.

        Args:
            access: says who the client is, and whether it may be in the group: nobody uses up the
                quota of a group of others.
            client: as the client calls itself.
            group: that it says it is in; empty for none.
        """
        self._limits = {}
        for holder in _holders(access, client, group):
            for quota, limit, value in limits_of(self._throttling.quotas, *holder[1:]):
                if limit != CONNECTIONS:
                    self._limits.setdefault(limit, []).append((quota, holder, value))
        for limit in (BYTES_IN, REQUESTS):
            self.take(limit, 0)

    def count(self, access: Access, client: str) -> None:
        """Count the connection.

        Raises:
            UnavailableError: it is one too many.
        """
        if not self._counted:
            self._counted = [*_holders(access, client, "")]
            self._throttling.connected(self._counted)

    def take(self, limit: str, amount: int) -> None:
        """Count what the client has sent; where that is too much, it is not read for a while."""
        wait_s = min(self._owed_s(limit, amount), MAX_PAUSE_S)
        if not wait_s:
            return
        self._read_at_s = max(self._read_at_s, self._loop.time() + wait_s)
        if self._timer is None:
            self._stop_reading()
        else:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._read_at_s, self._over)

    def _over(self) -> None:
        self._timer = None
        self._read_on()

    async def may_change(self) -> None:
        """Count a change, and wait until it may be made; one waits at a time."""
        if MUTATIONS in self._limits:
            async with self._changing:
                await asyncio.sleep(min(self._owed_s(MUTATIONS, 1), MAX_PAUSE_S))

    @asynccontextmanager
    async def sending(
        self, limits: Collection[str], amount: int
    ) -> AsyncIterator[Callable[[int], None] | None]:
        """Wait until something may be sent, and let others wait for what it may take.

        Args:
            limits: that it counts for.
            amount: bytes that may be sent; 0 where that is not known, and one waits at a time.

        Yields:
            What is to be called with the bytes that are sent; None when nothing may be sent for
            more than `MAX_PAUSE_S`, and the client is to ask again.
        """
        async with nullcontext() if amount else self._sending:
            owed_s = max(self._owed_s(limit, 0) for limit in limits)
            if owed_s > MAX_PAUSE_S:
                yield None
                return
            reserved = [each for limit in limits for _, each in self._buckets(limit)]
            for bucket in reserved:
                bucket.reserve(amount)

            def sent(sent_bytes: int) -> None:
                while reserved:
                    reserved.pop().reserve(-amount)
                self.untold_ms = 0  # it has waited for what was owed before
                for limit in limits:
                    self._owed_s(limit, sent_bytes)

            try:
                await asyncio.sleep(owed_s)
                yield sent
            finally:
                if reserved:
                    sent(0)

    @property
    def later_ms(self) -> int:
        """For how long nothing may be sent."""
        until_s = max(each for limit, each in self._until_s.items() if limit not in _IN)
        return max(1, math.ceil((until_s - self._loop.time()) * 1000))

    def _owed_s(self, limit: str, amount: int) -> float:
        """Take from a limit; return for how long the client has to wait, and have it told."""
        now_s, owed_s = self._loop.time(), 0.0
        for quota, bucket in self._buckets(limit):
            wait_s = bucket.take(amount, now_s)
            owed_s = max(owed_s, wait_s)
            shown_s = min(wait_s, MAX_PAUSE_S) if limit in _IN else wait_s
            before_s = max(now_s, self._until_s.get(limit, now_s))
            self.untold_ms = max(self.untold_ms, math.ceil(shown_s * 1000))
            if now_s + shown_s > before_s:
                self._until_s[limit] = now_s + shown_s
                self.waited_s += now_s + shown_s - before_s
                self._throttling.waited.labels(quota, limit).inc(now_s + shown_s - before_s)
        return owed_s

    def _buckets(self, limit: str) -> Iterator[tuple[str, TokenBucket]]:
        now_s = self._loop.time()
        for quota, holder, value in self._limits.get(limit, ()):
            yield quota, self._throttling.bucket(holder, limit, value, now_s)

    def close(self) -> None:
        """Count the connection no more."""
        self._throttling.disconnected(self._counted)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _holders(access: Access, client: str, group: str) -> Iterator[_Holder]:
    principal = access.principal
    yield "", USER, principal.partition(":")[2]
    if client:
        yield principal, CLIENT, client[:MAX_NAME_CHARS]
    if group and access.may("read", "group", group):
        yield "", GROUP, group[:MAX_NAME_CHARS]
