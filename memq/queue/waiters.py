"""How callers wait for something to be published."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from memq.errors import MemqError

if TYPE_CHECKING:
    from collections.abc import Callable

    Ready = Callable[[], bool]


class Waiters:
    """Tasks of one event loop that wait, by topic.

    Code that changes a topic calls `wake`, which asks each of its waiters whether it is ready.
    There are as many waiters as callers; the code that answers requests bounds them.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, dict[asyncio.Future[None], Ready]] = {}

    def __repr__(self) -> str:
        return f"<Waiters [{sum(map(len, self._waiting.values()))} waiting]>"

    async def wait(self, topic: str, ready: Ready, timeout_s: float) -> bool:
        """Wait until `ready` says yes after a `wake` of the topic.

        Args:
            topic: whose waking to wait for.
            ready: whether the wait is over; a `MemqError` that it raises ends the wait.
            timeout_s: longest wait.

        Returns:
            What `ready` says in the end.
        """
        if ready():
            return True
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(topic, {})
        waiting[future] = ready
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            return ready()
        finally:
            waiting.pop(future, None)
            if not waiting and self._waiting.get(topic) is waiting:
                del self._waiting[topic]
        return True

    def wake(self, topic: str) -> None:
        """Let those who wait for the topic look again."""
        for future, ready in self._waiting.get(topic, {}).items():
            if future.done():
                continue
            try:
                if ready():
                    future.set_result(None)
            except MemqError as exc:
                future.set_exception(exc)

    def wake_all(self) -> None:
        """Let everybody look again."""
        for topic in list(self._waiting):
            self.wake(topic)
