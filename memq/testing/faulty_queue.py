"""A notification queue that fails as planned."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from memq.errors import FencedError, PublishUncertainError, QueueError
from memq.testing.faults import Faults, Strike, kill_this_process

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from memq.core.clock import SavedTimes
    from memq.core.notification.queue import Holding, NotificationQueue, Publication, QueueEntry
    from memq.testing.faults import Fault

_Result = TypeVar("_Result")

_WRITE = frozenset({"disk_full", "lose_answer"})
_NONE: frozenset[str] = frozenset()
_APPLICABLE = {
    "create_topic": _WRITE,
    "delete_topic": _WRITE,
    "topics": _NONE,
    "fence": frozenset({"lose_answer"}),
    "publish": _WRITE | {"uncertain", "partial"},
    "fetch": _NONE,
    "wait": _NONE,
    "offsets": _NONE,
    "offset_at": _NONE,
    "offset_since": _NONE,
    "times": _NONE,
    "save_times": _WRITE,
    "truncate": _WRITE,
    "commit": _WRITE,
    "committed": _NONE,
    "groups": _NONE,
    "delete_group": _WRITE,
    "hold": _WRITE,
    "holdings": _NONE,
    "holders": _NONE,
}


class FaultyQueue:
    """A `NotificationQueue` around another one, with faults.

    After an uncertain publication the write partition is refused until it is fenced, as the seam
    asks for.

    Args:
        inner: the queue that does the work.
        plan: which calls fail how; see `memq.testing.faults`.
        seed: of the chances in the plan.
        sleep: waits for so many seconds; for "delay".
        crash: called by "crash_before" and "crash_after".

    Attributes:
        faults: counts calls and faults.
        hung: is set once a call hangs.

    Raises:
        ConfigError: the plan makes no sense for a queue.
    """

    def __init__(
        self,
        inner: NotificationQueue,
        plan: Sequence[Fault],
        *,
        seed: int = 0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        crash: Callable[[], None] = kill_this_process,
    ) -> None:
        self.faults = Faults(plan, seed=seed, applicable=_APPLICABLE)
        self.hung = asyncio.Event()
        self._released = asyncio.Event()
        self._uncertain: set[tuple[str, int]] = set()
        self._inner = inner
        self._sleep = sleep
        self._crash = crash

    def __repr__(self) -> str:
        return f"<FaultyQueue {self.faults!r} around {self._inner!r}>"

    def release(self) -> None:
        """Let the calls that hang go on; those that would hang later do not."""
        self._released.set()

    async def create_topic(self, topic: str, partitions: int) -> None:
        """As the queue does, or as planned."""
        await self._call("create_topic", lambda: self._inner.create_topic(topic, partitions))

    async def delete_topic(self, topic: str) -> None:
        """As the queue does, or as planned."""
        await self._call("delete_topic", lambda: self._inner.delete_topic(topic))

    async def topics(self) -> list[str]:
        """As the queue does, or as planned."""
        return await self._call("topics", self._inner.topics)

    async def fence(self, topic: str, write_partition: int) -> None:
        """As the queue does, or as planned."""
        await self._call("fence", lambda: self._inner.fence(topic, write_partition))
        self._uncertain.discard((topic, write_partition))

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

    async def fetch(
        self, topic: str, partition: int, offset: int, *, max_entries: int, max_bytes: int
    ) -> list[QueueEntry]:
        """As the queue does, or as planned."""
        return await self._call(
            "fetch",
            lambda: self._inner.fetch(
                topic, partition, offset, max_entries=max_entries, max_bytes=max_bytes
            ),
        )

    async def wait(self, topic: str, positions: Mapping[int, int], timeout_s: float) -> bool:
        """As the queue does, or as planned."""
        return await self._call("wait", lambda: self._inner.wait(topic, positions, timeout_s))

    async def offsets(self, topic: str, partition: int) -> tuple[int, int]:
        """As the queue does, or as planned."""
        return await self._call("offsets", lambda: self._inner.offsets(topic, partition))

    async def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int:
        """As the queue does, or as planned."""
        return await self._call(
            "offset_at", lambda: self._inner.offset_at(topic, partition, timestamp_ms)
        )

    async def offset_since(self, topic: str, partition: int, running_ms: int) -> int:
        """As the queue does, or as planned."""
        return await self._call(
            "offset_since", lambda: self._inner.offset_since(topic, partition, running_ms)
        )

    async def times(self) -> SavedTimes:
        """As the queue does, or as planned."""
        return await self._call("times", self._inner.times)

    async def save_times(self, times: SavedTimes) -> None:
        """As the queue does, or as planned."""
        await self._call("save_times", lambda: self._inner.save_times(times))

    async def truncate(self, topic: str, partition: int, offset: int) -> None:
        """As the queue does, or as planned."""
        await self._call("truncate", lambda: self._inner.truncate(topic, partition, offset))

    async def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """As the queue does, or as planned."""
        await self._call("commit", lambda: self._inner.commit(group, topic, offsets))

    async def committed(self, group: str, topic: str) -> dict[int, int]:
        """As the queue does, or as planned."""
        return await self._call("committed", lambda: self._inner.committed(group, topic))

    async def groups(self, topic: str) -> list[str]:
        """As the queue does, or as planned."""
        return await self._call("groups", lambda: self._inner.groups(topic))

    async def delete_group(self, group: str, topic: str) -> None:
        """As the queue does, or as planned."""
        await self._call("delete_group", lambda: self._inner.delete_group(group, topic))

    async def hold(self, group: str, topic: str, holdings: Mapping[str, Holding]) -> None:
        """As the queue does, or as planned."""
        await self._call("hold", lambda: self._inner.hold(group, topic, holdings))

    async def holdings(self, group: str, topic: str) -> dict[str, Holding]:
        """As the queue does, or as planned."""
        return await self._call("holdings", lambda: self._inner.holdings(group, topic))

    async def holders(self, topic: str) -> list[str]:
        """As the queue does, or as planned."""
        return await self._call("holders", lambda: self._inner.holders(topic))

    async def close(self) -> None:
        """As the queue does; calls that hang are let go."""
        self.release()
        await self._inner.close()

    async def _call(self, operation: str, effect: Callable[[], Awaitable[_Result]]) -> _Result:
        strike = await self._before(operation)
        result = await effect()
        if "crash_after" in strike:
            self._crash()
        if "lose_answer" in strike:
            raise QueueError(f"{strike}: it was done, but the answer is lost")
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
        if "crash_after" in strike:
            self._crash()
        if "partial" in strike:
            raise PublishUncertainError(f"{strike}: only the first {len(offsets)} were published")
        if "lose_answer" in strike:
            raise PublishUncertainError(f"{strike}: it was done, but the answer is lost")
        return offsets

    async def _before(self, operation: str) -> Strike:
        """What is planned for a call, up to where it begins."""
        strike = self.faults.strike(operation)
        if strike.delay_s:
            await self._sleep(strike.delay_s)
        if "hang" in strike:
            self.hung.set()
            await self._released.wait()
        if "crash_before" in strike:
            self._crash()
        if "fail" in strike:
            raise QueueError(str(strike))
        if "disk_full" in strike:
            raise QueueError(f"{strike}: No space left on device")
        return strike
