"""Callbacks of a sync consumer run in the thread that polls, not on the event loop.

That is what users of Kafka rely on: while a callback runs the application does nothing else, and it
may call the consumer, for a last commit say, which on the loop's own thread could only wait for
itself. So the loop hands the call over to whoever waits for a call to end, and awaits its outcome.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from memq.client.consumer.options import OnPartitions
    from memq.client.sync import EventLoopThread

T = TypeVar("T")


class Callbacks:
    """Hands calls from the event loop to a thread that waits for it.

    Args:
        loop: the event loop.
    """

    def __init__(self, loop: EventLoopThread) -> None:
        self._loop = loop
        self._changed = threading.Condition()
        # One at a time: the consumer awaits each callback before it goes on.
        self._calls: deque[Callable[[], None]] = deque()

    def wrap(self, callback: OnPartitions | None) -> OnPartitions | None:
        """The callback as something for the loop to await."""
        if callback is None:
            return None

        async def handed_over(partitions: list[int]) -> None:
            outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            with self._changed:
                self._calls.append(lambda: self._call(callback, partitions, outcome))
                self._changed.notify_all()
            await outcome

        return handed_over

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop, and meanwhile the callbacks here."""
        future = self._loop.submit(work)
        future.add_done_callback(lambda _: self._notify())
        try:
            while (call := self._next_call(future.done)) is not None:
                call()
        except BaseException:
            future.cancel()
            raise
        return self._loop.result(future)

    def _next_call(self, done: Callable[[], bool]) -> Callable[[], None] | None:
        """Wait for a callback; None when the work is done first."""
        with self._changed:
            while not self._calls and not done():
                self._changed.wait()
            return None if done() else self._calls.popleft()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _call(
        self, callback: OnPartitions, partitions: list[int], outcome: asyncio.Future[None]
    ) -> None:
        try:
            callback(partitions)
        except Exception as exc:  # noqa: BLE001 - raised where the loop awaits the callback
            self._loop.call(_settle, outcome, exc)
        else:
            self._loop.call(_settle, outcome, None)


def _settle(outcome: asyncio.Future[None], exc: Exception | None) -> None:
    if outcome.cancelled():
        return
    if exc is None:
        outcome.set_result(None)
    else:
        outcome.set_exception(exc)
