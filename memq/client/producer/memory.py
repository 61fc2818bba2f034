"""The bound on a producer's memory, and how a write waits for room in it.

The event loop gives bytes back, and must not wait for a thread that takes some: a signal's handler
may have interrupted that one, and wait for the loop. So what is given lies in a deque, until a
thread that takes has the lock and adds it up.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
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
        self._given: deque[int] = deque()  # not subtracted yet; one for each Message at most
        self._lock = threading.RLock()  # for threads that take
        self._waiting: dict[Callable[[], None], bool] = {}
        self._open = True

    def __repr__(self) -> str:
        used = f"{self.used_bytes} of {self.limit_bytes} bytes used"
        return f"<ByteBudget {used} | {len(self._waiting)} waiting>"

    @property
    def used_bytes(self) -> int:
        """Bytes that are taken now; exact unless another thread takes some at this moment."""
        return self._used - sum(self._given.copy())

    def take(self, size_bytes: int) -> bool:
        """Take so many bytes, if they are there."""
        with self._lock:
            if not self._fits(size_bytes):
                self.refused_bytes = size_bytes
                return False
            self._used += size_bytes
            return True

    def give(self, size_bytes: int) -> None:
        """Give so many bytes back, and wake those who wait for some."""
        self._given.append(size_bytes)
        self._wake_all()

    def when_free(self, size_bytes: int, wake: Callable[[], None]) -> None:
        """Call `wake` once, from any thread, when so many bytes may be free, or when it is closed.

        They may be gone by the time the caller takes them; then it waits again.
        """
        self._waiting[wake] = True  # first, so that what is given from now on is not missed
        with self._lock:
            ready = not self._open or self._fits(size_bytes)
        if ready:
            self._wake_all()

    def forget(self, wake: Callable[[], None]) -> None:
        """Stop waiting."""
        self._waiting.pop(wake, None)

    def close(self) -> None:
        """Wake everybody who waits: there is nothing to wait for any more."""
        self._open = False
        self._wake_all()

    def _fits(self, size_bytes: int) -> bool:
        """Add up what was given, and say whether so many bytes are free. With the lock."""
        while self._given:
            given = self._given.popleft()
            self._used -= given
        return self._used + size_bytes <= self.limit_bytes

    def _wake_all(self) -> None:
        for wake in tuple(self._waiting):
            if self._waiting.pop(wake, False):  # unless another thread has it
                wake()


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
        while left_s := self._left_s():
            freed: SimpleQueue[None] = SimpleQueue()  # never left locked: see `memq.client.sync`
            wake = partial(freed.put, None)
            self._budget.when_free(self._budget.refused_bytes, wake)
            try:
                freed.get(timeout=left_s)
            except Empty:
                break
            finally:
                self._budget.forget(wake)
            if (written := write()) is not None:
                return written
        raise self._full()

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
