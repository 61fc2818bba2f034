"""A write's wait for memory, in a thread or in a task."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from memq.errors import BufferFullError

if TYPE_CHECKING:
    from memq.client.producer.rim import ProducerRim


class MemoryWait:
    """One write's wait for memory, `max_block` in all."""

    def __init__(self, rim: ProducerRim) -> None:
        self._budget = rim.budget
        self._accumulator = rim.accumulator
        self._max_block_s = rim.options.max_block_ms / 1_000
        self._mono_s = rim.runtime.mono_s
        self._deadline_s = self._mono_s() + self._max_block_s
        self._loop_thread = rim.loop_thread

    def block(self) -> None:
        """Block the thread until there may be room."""
        if threading.get_ident() == self._loop_thread:
            # Waiting here would keep away the acks that are waited for.
            raise BufferFullError(
                "buffer_bytes is reached, and a callback of a delivery cannot wait for room"
            )
        freed = threading.Event()
        self._budget.when_free(self._accumulator.wanted_bytes, freed.set)
        if not freed.wait(self._left_s()):
            self._budget.forget(freed.set)
            raise self._full()

    async def once(self) -> None:
        """Let other tasks run until there may be room."""
        loop = asyncio.get_running_loop()
        freed = asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(freed.set)

        self._budget.when_free(self._accumulator.wanted_bytes, wake)
        try:
            async with asyncio.timeout(self._left_s()):
                await freed.wait()
        except TimeoutError as exc:
            raise self._full() from exc
        finally:
            self._budget.forget(wake)

    def _left_s(self) -> float:
        return max(0.0, self._deadline_s - self._mono_s())

    def _full(self) -> BufferFullError:
        return BufferFullError(
            f"{self._budget.used_bytes} of buffer_bytes = {self._budget.limit_bytes} are used, and "
            f"no room came within max_block = {self._max_block_s:g} s; write more slowly, or raise "
            "them"
        )
