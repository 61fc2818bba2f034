"""A bound on memory that threads and tasks share."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class ByteBudget:
    """So many bytes, taken and given back. Thread safe.

    Args:
        limit_bytes: most that is taken at a time.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
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
