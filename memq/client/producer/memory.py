"""The bound on a producer's memory, and how a write waits for room in it."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, TypeVar

from memq.errors import BufferFullError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class ByteBudget:
    """So many bytes, taken and given back. Thread safe.

    Args:
        limit_bytes: most that is taken at a time.

    Attributes:
        refused_bytes: what there was no room for last.
        trouble: why nothing is given back for long, as a broker says; empty when it does not.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.refused_bytes = 0
        self.trouble = ""
        self._used = 0
        self._lock = threading.Lock()
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        self._open = True

    def __repr__(self) -> str:
        return (
            f"<ByteBudget {self._used} of {self.limit_bytes} bytes used | "
            f"{len(self._waiting)} waiting>"
        )

    @property
    def used_bytes(self) -> int:
        """Bytes that are taken now."""
        return self._used

    def take(self, size_bytes: int) -> bool:
        """Take so many bytes, if they are there."""
        with self._lock:
            if self._used + size_bytes > self.limit_bytes:
                self.refused_bytes = size_bytes
                return False
            self._used += size_bytes
            return True

    def give(self, size_bytes: int) -> None:
        """Give so many bytes back, and wake those for whom there is room now."""
        with self._lock:
            self._used -= size_bytes
            ready = self._pop_ready()
        for wake in ready:
            wake()

    def when_free(self, size_bytes: int, wake: Callable[[], None]) -> None:
        """Call `wake` once, from any thread, when so many bytes are free or the budget is closed.

        They may be gone again by the time the caller takes them.
        """
        with self._lock:
            if self._open and self._used + size_bytes > self.limit_bytes:
                self._waiting.append((size_bytes, wake))
                return
        wake()

    def forget(self, wake: Callable[[], None]) -> None:
        """Stop waiting."""
        with self._lock:
            self._waiting = [waiter for waiter in self._waiting if waiter[1] != wake]

    def close(self) -> None:
        """Wake everybody who waits: there is nothing to wait for any more."""
        with self._lock:
            self._open = False
            ready = self._pop_ready()
        for wake in ready:
            wake()

    def _pop_ready(self) -> list[Callable[[], None]]:
        if not self._waiting:
            return []
        free = self.limit_bytes - self._used
        ready = [wake for size, wake in self._waiting if size <= free or not self._open]
        self._waiting = [waiter for waiter in self._waiting if waiter[0] > free and self._open]
        return ready


class MemoryWait:
    """One write's wait for memory.

    Args:
        budget: that had no room.
        max_block_s: longest wait in all.
        clock: monotonic seconds.
    """

    def __init__(self, budget: ByteBudget, max_block_s: float, clock: Callable[[], float]) -> None:
        self._budget = budget
        self._max_block_s = max_block_s
        self._clock = clock
        self._deadline_s = clock() + max_block_s

    def block(self, write: Callable[[], T | None]) -> T:
        """Block the thread until `write` finds room.

        Raises:
            BufferFullError: there was none in time.
            MemqError: as `write`.
        """
        while True:
            freed: SimpleQueue[None] = SimpleQueue()  # never left locked: see `memq.client.sync`
            wake = partial(freed.put, None)
            self._budget.when_free(self._budget.refused_bytes, wake)
            try:
                freed.get(timeout=self._left_s())
            except Empty as exc:
                raise self._full() from exc
            finally:
                self._budget.forget(wake)
            if (written := write()) is not None:
                return written

    async def until(self, write: Callable[[], T | None]) -> T:
        """Let other tasks run until `write` finds room; raises as `block`."""
        loop = asyncio.get_running_loop()
        while True:
            freed = asyncio.Event()

            def wake(freed: asyncio.Event = freed) -> None:
                loop.call_soon_threadsafe(freed.set)

            self._budget.when_free(self._budget.refused_bytes, wake)
            try:
                async with asyncio.timeout(self._left_s()):
                    await freed.wait()
            except TimeoutError as exc:
                raise self._full() from exc
            finally:
                self._budget.forget(wake)
            if (written := write()) is not None:
                return written

    def _left_s(self) -> float:
        return max(0.0, self._deadline_s - self._clock())

    def _full(self) -> BufferFullError:
        return BufferFullError(
            f"{self._budget.used_bytes} of buffer_bytes = {self._budget.limit_bytes} are used, and "
            f"no room came within max_block = {self._max_block_s:g} s; "
            f"{self._budget.trouble or 'write more slowly, or raise them'}"
        )
