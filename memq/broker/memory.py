"""Memory for the bodies of Messages: bounded between the socket and storage, and used again.

Theory of operation
-------------------
*The bound.* A body is charged whole, when its length is known and before it is read, and released
when its Batch is stored or has failed. So whatever was admitted can always be completed and stored,
and the bound cannot deadlock. When it is reached, no producer may begin a new frame until a tenth
of the memory is free again; those in the middle of a body go on. The bound is overrun by at most
the one body that reached it; a client that begins to produce while it is reached is told to try
again. A charge has one owner at a time: the connection while the body comes, then the Write
(`memq.broker.write_partition.ReceivedWrite`), which goes with its Message into a Batch.

*The pool.* Fresh memory is dear: the kernel has to map it, and no cache holds it. So blocks of
large bodies are kept when they come back, and the last one is lent first, which the caches are the
most likely to hold.

When is a body done with? Views of it lie in Batches, in threads that store them, and in Arrow
arrays, and none of those may find other bytes in it. So nobody is asked. What is lent is an Arrow
buffer over the block, all views are views of that buffer, and each of them keeps it alive. When the
last one is gone the interpreter deletes the buffer, and the callback of a weak reference to it puts
the block back.

Idle blocks count in the bound, but make nobody wait: they take a quarter of it at most, never take
it beyond its limit, and are dropped when bodies need the room. What has come back counts from the
next loan or `tidy` on.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING

import pyarrow as pa

from memq.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    Guard = Callable[[str, Callable[["_Loan"], None]], Callable[["_Loan"], None]]

RESUME_AT = 0.9  # of the limit; below it reading goes on, so that it does not flutter
IDLE_SHARE = 0.25  # of the limit; more is not kept for later bodies

POOLED_BYTES = 256 << 10
"""Smaller bodies come from the allocator, which is as good for them."""

STEP_BYTES = 64 << 10
"""Sizes of blocks are multiples of this, so that bodies of about one size share blocks."""


class _Loan(weakref.ref[pa.Buffer]):
    """A weak reference to what was lent; it knows the block."""

    __slots__ = ("block",)

    block: memoryview


class BodyMemory:
    """Counts what bodies take, and lends memory for large ones.

    It belongs to the event loop; lent memory may come back in any thread.

    Args:
        limit_bytes: where admission stops.
        guard: wraps the callback that the end of a body calls: no error that it raises could reach
            anybody else.

    Attributes:
        limit_bytes: as given.
        used_bytes: charged for bodies and not yet released.
        idle_bytes: in blocks that are kept for later bodies.
        peak_bytes: the most that `used_bytes` has been.
        full: nobody may begin a new body.
        on_change: called when `full` has changed.
    """

    def __init__(self, limit_bytes: int, guard: Guard = lambda _, callback: callback) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.idle_bytes = 0
        self.peak_bytes = 0
        self.full = False
        self.on_change: Callable[[], None] = lambda: None
        self._loans: dict[int, _Loan] = {}
        self._returned: deque[memoryview] = deque()
        self._idle: dict[int, list[memoryview]] = {}  # by size; the last one came back last
        self._on_end = guard("the end of a body", self._ended)

    def __repr__(self) -> str:
        return (
            f"<BodyMemory [{self.used_bytes}/{self.limit_bytes} bytes | {self.idle_bytes} idle | "
            f"{len(self._loans)} blocks lent | {'full' if self.full else 'open'}]>"
        )

    def full_error(self) -> UnavailableError:
        """Make the error for a client that produces while the memory is full."""
        return UnavailableError(
            f"the broker's memory_bytes = {self.limit_bytes} are full: storage or queue are slower "
            "than the producers. Retry later"
        )

    # -- the bound --------------------------------------------------------------------------

    def admit(self, size_bytes: int) -> None:
        """Charge a body. Allowed when full too, for a connection learns of it too late."""
        self.used_bytes += size_bytes
        if self.used_bytes > self.peak_bytes:  # noqa: PLR1730 - this is done for every Message
            self.peak_bytes = self.used_bytes
        if not self.full and self.used_bytes + self.idle_bytes >= self.limit_bytes:
            if self.idle_bytes:
                self.clear()
            if self.used_bytes >= self.limit_bytes:
                self.full = True
                self.on_change()

    def release(self, size_bytes: int) -> None:
        """Give back what was charged."""
        self.used_bytes -= size_bytes
        if self.full and self.used_bytes <= self.limit_bytes * RESUME_AT:
            self.full = False
            self.on_change()

    # -- the pool ---------------------------------------------------------------------------

    def lend(self, size_bytes: int) -> memoryview:
        """Writable memory of that size, with whatever is in it. It comes back by itself."""
        if size_bytes < POOLED_BYTES:
            return memoryview(pa.allocate_buffer(size_bytes))
        self.tidy()
        block_bytes = -(-size_bytes // STEP_BYTES) * STEP_BYTES
        stack = self._idle.get(block_bytes)
        if stack:
            block = stack.pop()
            self.idle_bytes -= block_bytes
        else:
            block = memoryview(pa.allocate_buffer(block_bytes))
        lent = pa.py_buffer(block)
        loan = _Loan(lent, self._on_end)
        loan.block = block
        self._loans[id(loan)] = loan
        return memoryview(lent)[:size_bytes]

    def tidy(self) -> None:
        """Take in what came back."""
        while self._returned:
            block = self._returned.popleft()
            idle_bytes = self.idle_bytes + len(block)
            within_share = idle_bytes <= self.limit_bytes * IDLE_SHARE
            if within_share and self.used_bytes + idle_bytes <= self.limit_bytes:
                self.idle_bytes = idle_bytes
                self._idle.setdefault(len(block), []).append(block)

    def clear(self) -> None:
        """Drop all idle blocks."""
        self._returned.clear()
        self._idle.clear()
        self.idle_bytes = 0

    def _ended(self, loan: _Loan) -> None:
        """Nothing refers to a body any more; called wherever the last reference ended."""
        del self._loans[id(loan)]
        self._returned.append(loan.block)
