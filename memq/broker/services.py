"""What the services behind a broker say: storage, queue, ZooKeeper, disk; since when one refuses.

Users of a service report each call here (`Service.call`), and a small request is made of one
that nobody uses. A service refuses when its calls have failed for `GRACE_MS`, or one has had no
answer for `SLOW_MS`, and none has worked since. `/ready`, `memq status`, `memq cluster describe`,
metrics, the log and what producers are told say the same words.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

from memq.core.wire.messages import ServiceState
from memq.errors import (
    FencedError,
    MemqError,
    QueueError,
    QueueFailedError,
    StorageError,
    UnavailableError,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from memq.core.clock import ClockReading

log = logging.getLogger(__name__)

GRACE_MS = 2_000  # one refusal among many requests is a store's daily life
SLOW_MS = 2_500  # S3's p99.9 is below 0.5 s, and Kafka's below 0.2 s
HOLD_MS = 3_000  # a request that only asks is no proof against one to store that failed just now
FORGET_MS = 10_000  # so long counts a failure that none followed: nobody may use or ask it again
PROBE_S = 1.0  # after which one of which nothing was heard is asked, a request a second at most
PROBE_LIMIT_S = 3.0  # longer than `SLOW_MS`; whether it is over is asked again then

_HEEDED = (StorageError, QueueError)
_OURS = (FencedError, QueueFailedError)  # about this broker, which a service has told it


class Service:
    """One service, as this broker meets it.

    Args:
        name: of the service.
        where: it is.
        now: the broker's clock.
    """

    def __init__(self, name: str, where: str, now: Callable[[], ClockReading]) -> None:
        self._state = ServiceState(name=name, where=where)
        self._now = now
        self._calls: dict[object, int] = {}  # when each began
        self._worked_ms = self._failed_ms = -HOLD_MS
        self._since_ms: int | None = None  # the first failure since a call worked
        self._last_ms = 0  # the last one
        self._why = ""

    def __repr__(self) -> str:
        return f"<Service {self.state()!r}>"

    @contextmanager
    def call(self, *, probe: bool = False) -> Iterator[None]:
        """Report a call, which may only ask: that it is under way, and what comes of it."""
        token, begun_ms = object(), self._now().mono_ms
        self._calls[token] = begun_ms
        try:
            yield
            self.worked(probe=probe)
        except _HEEDED as exc:
            if not isinstance(exc, _OURS):
                self.failed(str(exc), probe=probe)
            raise
        except (asyncio.CancelledError, TimeoutError):
            if self._now().mono_ms - begun_ms > SLOW_MS:
                self.failed("no answer in time", probe=probe)
            raise
        finally:
            del self._calls[token]

    def failed(self, why: str, *, probe: bool = False, certain: bool = False) -> None:
        """Record that a call has failed; or that all certainly do."""
        now_ms, self._why = self._now().mono_ms, why
        if not probe:
            self._failed_ms = now_ms
        if self._since_ms is None:
            self._since_ms = now_ms - certain * GRACE_MS
        self._last_ms = now_ms

    def worked(self, *, probe: bool = False) -> None:
        """Record that a call has worked."""
        now_ms = self._now().mono_ms
        if not probe or now_ms - self._failed_ms >= HOLD_MS:
            self._worked_ms, self._since_ms, self._why = now_ms, None, ""

    def state(self) -> ServiceState:
        """Return whether it refuses now, since when, and how."""
        now_ms, wall_ms = self._now()
        if now_ms - self._last_ms >= FORGET_MS:
            self._since_ms, self._why = None, ""
        failed_ms = now_ms if self._since_ms is None else self._since_ms
        waiting = (begun_ms for begun_ms in self._calls.values() if begun_ms >= self._worked_ms)
        begun_ms = min(waiting, default=now_ms)
        refuses = now_ms - failed_ms >= GRACE_MS or now_ms - begun_ms > SLOW_MS
        self._state.since_ms = wall_ms - now_ms + min(failed_ms, begun_ms) if refuses else None
        self._state.error = (self._why or "no answer") if refuses else ""
        return self._state

    async def watch(self, ask: Callable[[], Awaitable[object]]) -> None:
        """Ask it something small whenever nothing was heard of it; until it is cancelled."""
        while True:
            await asyncio.sleep(PROBE_S)
            if self._now().mono_ms - self._worked_ms >= PROBE_S * 1_000:
                try:
                    async with asyncio.timeout(PROBE_LIMIT_S):
                        with self.call(probe=True):
                            await ask()
                except (MemqError, TimeoutError) as exc:
                    log.debug("%r: %s", self, exc)


class Services:
    """All services of one broker.

    Args:
        now: the broker's clock.
        storage: where it is, as are the others.
        queue: empty for the embedded one.
        zookeeper: empty for a broker that governs itself.
    """

    def __init__(
        self, now: Callable[[], ClockReading], *, storage: str, queue: str, zookeeper: str
    ) -> None:
        self.storage = Service("storage", storage, now)
        self.queue = Service("kafka" if queue else "queue", queue, now)
        self.zookeeper = Service("zookeeper", zookeeper, now)
        self.disk = Service("disk", "", now)
        self._all = [self.storage, self.queue, self.disk]
        if zookeeper:
            self._all.append(self.zookeeper)
        self._told: set[str] = set()

    def __repr__(self) -> str:
        return f"<Services [{'; '.join(self.refusing()) or 'all answer'}]>"

    def states(self) -> list[ServiceState]:
        """Return the state of each service."""
        return [service.state() for service in self._all]

    def refusing(self) -> list[str]:
        """Describe each service that refuses, in words."""
        return [words for state in self.states() if (words := state.words())]

    def explained(self, error: MemqError) -> MemqError:
        """Add the services that refuse to an error that a client is told and that may pass."""
        if isinstance(error, (UnavailableError, *_HEEDED)) and (words := self.refusing()):
            return type(error)(f"{error}; {'; '.join(words)}")
        return error

    def tell(self) -> None:
        """Log which have begun to refuse, and which answer again."""
        refusing = {state.name: words for state in self.states() if (words := state.words())}
        for name in refusing.keys() - self._told:
            log.error("a service refuses: %s", refusing[name])
        for name in self._told - refusing.keys():
            log.warning("%s answers again", name)
        self._told = {*refusing}
