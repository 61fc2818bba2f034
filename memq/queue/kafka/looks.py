"""Looks at what partitions have, each for all who ask at the time.

A look takes less than a millisecond for one partition or for hundreds, but there is one thread that
looks, and every fetch asks. So questions that come while it is busy share the next look. None
shares one that has begun: what was written before somebody asked must be in the answer.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from memq.errors import MemqError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Executor

    from memq.queue.kafka.client import Bounds, Place


class _Look:
    """One look, and the partitions that somebody wants to know of."""

    def __init__(self) -> None:
        self.places: dict[Place, None] = {}
        self.done: asyncio.Future[Mapping[Place, Bounds | MemqError]]


class Looks:
    """Gathers the questions of one event loop.

    Args:
        thread: an executor of one thread.
        look: gives the bounds of partitions, or why there are none; called in the thread.
    """

    def __init__(
        self,
        thread: Executor,
        look: Callable[[Sequence[Place]], Mapping[Place, Bounds | MemqError]],
    ) -> None:
        self._thread = thread
        self._look = look
        self._lock = threading.Lock()
        self._next: _Look | None = None

    def __repr__(self) -> str:
        return f"<Looks [{len(self._next.places) if self._next else 0} waiting]>"

    async def bounds(self, places: Sequence[Place]) -> list[Bounds]:
        """What these partitions have, by a look that begins after this was called.

        Raises:
            MemqError: why nothing is known of one of them.
        """
        with self._lock:
            if self._next is None:
                self._next = _Look()
                self._next.done = asyncio.get_running_loop().run_in_executor(
                    self._thread, self._begin, self._next
                )
                # Whoever asked may have given up by the time it fails; that is nobody's error.
                self._next.done.add_done_callback(lambda done: done.cancelled() or done.exception())
            look = self._next
            look.places.update(dict.fromkeys(places))
        seen = await asyncio.shield(look.done)  # others wait for it, too
        found = []
        for place in places:
            each = seen[place]
            if isinstance(each, MemqError):
                raise type(each)(str(each))
            found.append(each)
        return found

    def _begin(self, look: _Look) -> Mapping[Place, Bounds | MemqError]:
        with self._lock:
            self._next = None
        return self._look(list(look.places))
