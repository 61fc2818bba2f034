"""Quotas of a broker's connections: who has to wait, and for how long.

Nothing is refused but a connection too many; an answer says how long to wait (`throttle_ms`).

- A client that sends too much (bytes, requests, changes) is not read for that long, but for
  `MAX_PAUSE_S` at most: its heartbeats come by the same connection. So each connection gets through
  one request in that time, however small the quota.
- One that is sent too much waits before it asks for notifications or a Batch again, and its other
  requests are served. If it does not wait, the broker lets it, and answers one by one.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from typing import TYPE_CHECKING

from memq.core.access.quotas import (
    BYTES_OUT,
    CLIENT,
    CONNECTIONS,
    GROUP,
    REPLAY,
    USER,
    Quotas,
    TokenBucket,
    limits_of,
)
from memq.core.access.rules import MAX_NAME_CHARS
from memq.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import prometheus_client

    from memq.core.access.rules import Access

MAX_BUCKETS = 10_000  # beyond, the oldest begins anew for new connections

MAX_PAUSE_S = 2.0  # clients take a broker that is silent for 5 s for dead

_OUT = (BYTES_OUT, REPLAY)

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
        self._buckets: dict[tuple[_Holder, str, int], TokenBucket] = {}
        self._open: Counter[_Holder] = Counter()

    def __repr__(self) -> str:
        return f"<Throttling [{len(self.quotas)} quotas | {len(self._buckets)} buckets]>"

    def bucket(self, holder: _Holder, limit: str, value: int, now_s: float) -> TokenBucket:
        """Return what is left of a limit, for all connections that it is about."""
        key = (holder, limit, value)
        if key not in self._buckets:
            if len(self._buckets) >= MAX_BUCKETS:
                del self._buckets[next(iter(self._buckets))]
            self._buckets[key] = TokenBucket(value, now_s)
        return self._buckets[key]

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
    """

    def __init__(
        self,
        throttling: Throttling,
        *,
        stop_reading: Callable[[], None],
        read_on: Callable[[], None],
    ) -> None:
        self.untold_ms = 0
        self._loop = asyncio.get_running_loop()
        self._throttling = throttling
        self._stop_reading, self._read_on = stop_reading, read_on
        self._read_at_s = self._send_at_s = 0.0  # when the client has waited long enough
        self._timer: asyncio.TimerHandle | None = None
        self._sending = asyncio.Lock()
        self._counted: list[_Holder] = []
        self._limits: dict[str, list[tuple[str, TokenBucket]]] = {}

    def __repr__(self) -> str:
        return f"<Throttle [{', '.join(self._limits) or 'no limit'}]>"

    def __bool__(self) -> bool:
        """Return whether anything is limited."""
        return bool(self._limits)

    def follow(self, access: Access, client: str, group: str) -> None:
        """Hold to the quotas of now; what is owed by earlier connections is waited for.

        Args:
            access: says who the client is, and whether it may be in the group: nobody uses up the
                quota of a group of others.
            client: as the client calls itself.
            group: that it says it is in; empty for none.
        """
        now_s = self._loop.time()
        self._limits = {}
        for holder in _holders(access, client, group):
            for quota, limit, value in limits_of(self._throttling.quotas, *holder[1:]):
                if limit == CONNECTIONS:
                    continue
                bucket = self._throttling.bucket(holder, limit, value, now_s)
                self._limits.setdefault(limit, []).append((quota, bucket))
        for limit in self._limits:
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
        """Count what the client does; where that is too much, it has to wait."""
        now_s = self._loop.time()
        for quota, bucket in self._limits.get(limit, ()):
            wait_s = bucket.take(amount, now_s)
            if not wait_s:
                continue
            if limit in _OUT:
                before_s, self._send_at_s = self._send_at_s, max(self._send_at_s, now_s + wait_s)
                until_s = self._send_at_s
            else:
                wait_s = min(wait_s, MAX_PAUSE_S)
                before_s, self._read_at_s = self._read_at_s, max(self._read_at_s, now_s + wait_s)
                until_s = self._read_at_s
                self._pause_reading()
            self.untold_ms = max(self.untold_ms, math.ceil(wait_s * 1000))
            self._throttling.waited.labels(quota, limit).inc(until_s - max(now_s, before_s))

    def _pause_reading(self) -> None:
        if self._timer is None:
            self._stop_reading()
        else:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._read_at_s, self._over)

    def _over(self) -> None:
        self._timer = None
        self._read_on()

    async def may_send(self) -> None:
        """Wait until the client may ask for notifications or a Batch."""
        if self._send_at_s > self._loop.time():
            async with self._sending:
                await asyncio.sleep(self._send_at_s - self._loop.time())

    def close(self) -> None:
        """Count the connection no more."""
        self._throttling.disconnected(self._counted)
        if self._timer is not None:
            self._timer.cancel()


def _holders(access: Access, client: str, group: str) -> Iterator[_Holder]:
    principal = access.principal
    yield "", USER, principal.partition(":")[2]
    if client:
        yield principal, CLIENT, client[:MAX_NAME_CHARS]
    if group and access.may("read", "group", group):
        yield "", GROUP, group[:MAX_NAME_CHARS]
