"""Memory for large bodies, lent again and again.

Theory of operation. Fresh memory is dear: the kernel has to map it, and no cache holds it. So the
pool keeps the blocks that come back and lends the last one first, which the caches are the most
likely to hold.

Who is done with a body? Views of it lie in Batches, in threads that store them, and in Arrow
arrays, and none of those may find other bytes in it. So nobody is asked. What is lent is an Arrow
buffer over the block, all views are views of that buffer, and each of them keeps it alive. When the
last one is gone the interpreter deletes the buffer, and the callback of a weak reference to it puts
the block back.

Bound: idle blocks count in the memory budget. They take a quarter of it at most, never take it
beyond its limit, and when bodies need the room they are dropped. What has come back counts from the
next loan or `tidy` on. Blocks that were not needed for a while are dropped, too.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable

    from memq.broker.memory import MemoryBudget

    Guard = Callable[[str, Callable[["_Loan"], None]], Callable[["_Loan"], None]]

POOLED_BYTES = 256 << 10
"""Smaller bodies come from the allocator, which is as good for them."""

STEP_BYTES = 64 << 10
"""Sizes of blocks are multiples of this, so that bodies of about one size share blocks."""


class _Loan(weakref.ref[pa.Buffer]):
    """A weak reference to what was lent; it knows the block."""

    __slots__ = ("block",)

    block: memoryview


class BodyPool:
    """Lends memory for bodies. It belongs to the event loop; bodies may end in any thread.

    Args:
        memory: the budget in which idle blocks count.
        guard: wraps the callback that the end of a body calls: no error that it raises could reach
            anybody else.
    """

    def __init__(self, memory: MemoryBudget, guard: Guard = lambda _, callback: callback) -> None:
        self._memory = memory
        self._loans: dict[int, _Loan] = {}
        self._returned: deque[memoryview] = deque()
        self._idle: dict[int, list[memoryview]] = {}  # by size; the last one came back last
        self._on_end = guard("the end of a body", self._ended)
        self._unused: dict[int, int] = {}  # by size: the fewest idle ones since the last `tidy`
        memory.on_short(self.clear)

    def __repr__(self) -> str:
        idle = sum(map(len, self._idle.values()))
        return f"<BodyPool [{len(self._loans)} lent | {idle} idle]>"

    def lend(self, size_bytes: int) -> memoryview:
        """Writable memory of that size, with whatever is in it. It comes back by itself."""
        if size_bytes < POOLED_BYTES:
            return memoryview(pa.allocate_buffer(size_bytes))
        if self._returned:
            self._collect()
        block_bytes = -(-size_bytes // STEP_BYTES) * STEP_BYTES
        stack = self._idle.get(block_bytes)
        if stack:
            block = stack.pop()
            self._memory.unkeep(block_bytes)
            self._unused[block_bytes] = min(self._unused[block_bytes], len(stack))
        else:
            block = memoryview(pa.allocate_buffer(block_bytes))
        lent = pa.py_buffer(block)
        loan = _Loan(lent, self._on_end)
        loan.block = block
        self._loans[id(loan)] = loan
        return memoryview(lent)[:size_bytes]

    def tidy(self) -> None:
        """Take in what came back, and drop what was idle since the last call."""
        self._collect()
        for block_bytes, stack in list(self._idle.items()):
            count = self._unused[block_bytes]
            del stack[:count]
            self._memory.unkeep(count * block_bytes)
            self._unused[block_bytes] = len(stack)
            if not stack:
                del self._idle[block_bytes], self._unused[block_bytes]

    def clear(self) -> None:
        """Drop all idle blocks."""
        self._returned.clear()
        for block_bytes, stack in self._idle.items():
            self._memory.unkeep(len(stack) * block_bytes)
        self._idle.clear()
        self._unused.clear()

    def _ended(self, loan: _Loan) -> None:
        """Nothing refers to a body any more; called wherever the last reference ended."""
        del self._loans[id(loan)]
        self._returned.append(loan.block)

    def _collect(self) -> None:
        while self._returned:
            block = self._returned.popleft()
            if self._memory.keep(len(block)):
                self._idle.setdefault(len(block), []).append(block)
                self._unused.setdefault(len(block), 0)
