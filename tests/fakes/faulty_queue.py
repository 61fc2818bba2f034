"""A notification queue that fails as planned."""

from __future__ import annotations

import asyncio
from functools import wraps
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from memq.core.queue import NotificationQueue
from memq.errors import FencedError, PublishUncertainError, QueueError
from tests.fakes.faults import Faults

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from memq.core.queue import Publication
    from tests.fakes.faults import Fault, Strike

_P = ParamSpec("_P")
_T = TypeVar("_T")


def _as_planned(
    method: Callable[Concatenate[NotificationQueue, _P], Coroutine[Any, Any, _T]],
) -> Callable[Concatenate[FaultyQueue, _P], Coroutine[Any, Any, _T]]:
    """The method that does as the queue's does, or as planned."""

    @wraps(method)
    async def call(self: FaultyQueue, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        of_inner: Callable[_P, Awaitable[_T]] = getattr(self._inner, method.__name__)
        return await self._call(method.__name__, lambda: of_inner(*args, **kwargs))

    return call


class FaultyQueue(NotificationQueue):
    """A queue around another one, with faults.

    After an uncertain publication the write partition is refused until it is fenced, as the seam
    asks for.

    Args:
        inner: the queue that does the work.
        plan: which calls fail how; see `tests.fakes.faults`.
        seed: of the chances in the plan.

    Attributes:
        faults: counts calls and faults.
    """

    def __init__(self, inner: NotificationQueue, plan: Sequence[Fault], *, seed: int = 0) -> None:
        self.faults = Faults(plan, seed=seed)
        self._hangs_ended = asyncio.Event()
        self._uncertain: set[tuple[str, int]] = set()
        self._inner = inner

    def __repr__(self) -> str:
        return f"<FaultyQueue {self.faults!r} around {self._inner!r}>"

    def end_hangs(self) -> None:
        """Let the calls that hang go on; those that would hang later do not."""
        self._hangs_ended.set()

    async def fence(self, topic: str, *write_partitions: int, again: bool = False) -> None:
        """As the queue does, or as planned."""
        await self._call("fence", lambda: self._inner.fence(topic, *write_partitions, again=again))
        for write_partition in write_partitions:
            self._uncertain.discard((topic, write_partition))

    def owns(self, topic: str, write_partition: int) -> bool:
        """As the queue does."""
        return self._inner.owns(topic, write_partition)

    def wake_owners(self) -> None:
        """As the queue does."""
        self._inner.wake_owners()

    async def publish(
        self, topic: str, write_partition: int, publications: Sequence[Publication]
    ) -> list[int]:
        """As the queue does, or as planned; then also uncertain, with or without effect."""
        owner = (topic, write_partition)
        strike = await self._before("publish")
        if owner in self._uncertain:
            raise FencedError(
                f"write partition {write_partition} of {topic!r} had an uncertain publication; "
                "fence it first"
            )
        try:
            return await self._publish(strike, topic, write_partition, publications)
        except PublishUncertainError:
            self._uncertain.add(owner)
            raise

    async def close(self) -> None:
        """As the queue does; calls that hang are let go."""
        self.end_hangs()
        await self._inner.close()

    async def _call(self, operation: str, effect: Callable[[], Awaitable[_T]]) -> _T:
        strike = await self._before(operation)
        result = await effect()
        strike.after(QueueError)
        return result

    async def _publish(
        self,
        strike: Strike,
        topic: str,
        write_partition: int,
        publications: Sequence[Publication],
    ) -> list[int]:
        if "uncertain" in strike:
            raise PublishUncertainError(f"{strike}: nothing was published")
        if "partial" in strike:
            publications = publications[: len(publications) // 2]
        offsets = await self._inner.publish(topic, write_partition, publications)
        strike.after(PublishUncertainError)
        if "partial" in strike:
            raise PublishUncertainError(f"{strike}: only the first {len(offsets)} were published")
        return offsets

    async def _before(self, operation: str) -> Strike:
        """What is planned for a call, up to where it begins."""
        strike = self.faults.strike(operation)
        if strike.delay_s:
            await asyncio.sleep(strike.delay_s)
        if "hang" in strike:
            await self._hangs_ended.wait()
        strike.before(QueueError)
        return strike


_PLANNED = {name for name, each in vars(NotificationQueue).items() if iscoroutinefunction(each)}
for _name in _PLANNED - {"fence", "publish", "close"}:
    setattr(FaultyQueue, _name, _as_planned(getattr(NotificationQueue, _name)))
