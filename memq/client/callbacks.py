"""Callbacks of a sync consumer run in the thread that polls, not on the event loop.

That is what users of Kafka rely on: while a callback runs the application does nothing else, and it
may call the consumer, for a last commit say, which on the loop's own thread could only wait for
itself. So the loop hands the call over to whoever waits for a call to end, and awaits its outcome.
"""

from __future__ import annotations

import asyncio
import queue
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from memq.client.consumer_options import OnPartitions
    from memq.client.loop import EventLoopThread

T = TypeVar("T")


class Callbacks:
    """Hands calls from the event loop to the thread that waits for it.

    Args:
        loop: the event loop.
    """

    def __init__(self, loop: EventLoopThread) -> None:
        self._loop = loop
        # A few at most: the consumer awaits each callback before it goes on.
        self._inbox: queue.SimpleQueue[Callable[[], None] | object] = queue.SimpleQueue()

    def wrap(self, callback: OnPartitions | None) -> OnPartitions | None:
        """The callback as something for the loop to await."""
        if callback is None:
            return None

        async def handed_over(partitions: list[int]) -> None:
            outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._inbox.put(lambda: self._call(callback, partitions, outcome))
            await outcome

        return handed_over

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop, and meanwhile its callbacks here."""
        future = self._loop.submit(work)
        ended = object()
        future.add_done_callback(lambda _: self._inbox.put(ended))
        try:
            while (call := self._inbox.get()) is not ended:
                if callable(call):  # else the end of a run that was interrupted
                    call()
        except BaseException:
            future.cancel()
            raise
        return self._loop.result(future)

    def _call(
        self, callback: OnPartitions, partitions: list[int], outcome: asyncio.Future[None]
    ) -> None:
        try:
            callback(partitions)
        except Exception as exc:  # noqa: BLE001 - the loop raises it where the callback was awaited
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
