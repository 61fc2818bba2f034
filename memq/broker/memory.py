"""The broker's memory bound: what Messages take between the socket and storage.

A body is admitted whole, when its length is known and before it is read, and released when its
Batch is stored or has failed. So whatever was admitted can always be completed and stored, and
the bound cannot deadlock. When it is reached, no producer may begin a new frame until a tenth of
the memory is free again; those in the middle of a body go on. The bound is overrun by at most the
one body that reached it; a client that begins to produce while it is reached is told to try again.

What is kept for later bodies counts as well, but makes nobody wait: it is given up first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memq.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

RESUME_AT = 0.9  # of the limit; below it reading goes on, so that it does not flutter
IDLE_SHARE = 0.25  # of the limit; more is not kept for later bodies


class MemoryBudget:
    """Bytes admitted and not yet released, with those who wait for them.

    Args:
        limit_bytes: where admission stops.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.idle_bytes = 0
        self.peak_bytes = 0
        self._full = False
        self._on_change: list[Callable[[bool], None]] = []
        self._give_up: Callable[[], None] | None = None

    def __repr__(self) -> str:
        state = "full" if self._full else "open"
        return (
            f"<MemoryBudget [{self.used_bytes}/{self.limit_bytes} bytes | "
            f"{self.idle_bytes} idle | {state}]>"
        )

    @property
    def full(self) -> bool:
        """Whether nobody may begin a new body."""
        return self._full

    def full_error(self) -> UnavailableError:
        """What a client is told that begins to produce while the budget is full."""
        return UnavailableError(
            f"the broker's memory_bytes = {self.limit_bytes} are full: storage is slower than the "
            "producers. Retry later"
        )

    def on_change(self, callback: Callable[[bool], None]) -> None:
        """Call back with True when the budget becomes full, with False when it has room again."""
        self._on_change.append(callback)

    def on_short(self, give_up: Callable[[], None]) -> None:
        """Call this to have all that is kept given up (by `unkeep`) when bodies need the room."""
        self._give_up = give_up

    def keep(self, size_bytes: int) -> bool:
        """Count memory that is kept for later bodies; False when there is no room for it."""
        idle_bytes = self.idle_bytes + size_bytes
        if idle_bytes > self.limit_bytes * IDLE_SHARE:
            return False
        if self.used_bytes + idle_bytes > self.limit_bytes:
            return False
        self.idle_bytes = idle_bytes
        return True

    def unkeep(self, size_bytes: int) -> None:
        """What was kept is in use now, or freed."""
        self.idle_bytes -= size_bytes

    def admit(self, size_bytes: int) -> None:
        """Charge a body. Allowed when full too, for a connection learns of it too late."""
        self.used_bytes += size_bytes
        if self.used_bytes > self.peak_bytes:  # noqa: PLR1730 - this is done for every Message
            self.peak_bytes = self.used_bytes
        if not self._full and self.used_bytes + self.idle_bytes >= self.limit_bytes:
            if self.idle_bytes and self._give_up is not None:
                self._give_up()
            if self.used_bytes >= self.limit_bytes:
                self._turn(full=True)

    def release(self, size_bytes: int) -> None:
        """Give back what was charged."""
        self.used_bytes -= size_bytes
        if self._full and self.used_bytes <= self.limit_bytes * RESUME_AT:
            self._turn(full=False)

    def _turn(self, *, full: bool) -> None:
        self._full = full
        for callback in self._on_change:
            callback(full)
