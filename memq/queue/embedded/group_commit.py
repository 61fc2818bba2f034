"""Group commit: publications that come while a flush is going on share the next one.

A flush to disk takes about a millisecond whether it carries one entry or a thousand. So there is
one thread that flushes, and while it does, publications gather in the next *round*. When the
thread gets to it, it appends the entries of all of them, each partition's together and flushed
once, and answers them all. Rounds and the other jobs of the thread run in the order in which they
were asked for.
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memq.core.queue import not_owned
from memq.errors import MemqError, PublishUncertainError, QueueError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from concurrent.futures import Executor

    from memq.core.queue import Publication
    from memq.queue.embedded.read_partition import Partition

MAX_ROUND = 10_000
"""Publications in one round. A write partition has one on its way, so this is more write
partitions than a broker can serve; the bound is against a flush that hangs."""


@dataclass(eq=False, slots=True)
class Publish:
    """One call of `publish`.

    Attributes:
        topic: the topic.
        write_partition: for which it publishes.
        owned: write partitions of the topic that this process may publish for; the call's own
            is taken out when its outcome is uncertain.
        publications: what to publish, with the partition of each.
        offsets: of the publications, once they are published.
        error: why they are not.
        cancelled: nobody waits any more; it is not begun then.
    """

    topic: str
    write_partition: int
    owned: set[int]
    publications: Sequence[tuple[Partition, Publication]]
    offsets: list[int]
    error: MemqError | None = None
    cancelled: bool = False


class _Round:
    def __init__(self) -> None:
        self.calls: list[Publish] = []
        self.done: asyncio.Future[None]


class GroupCommit:
    """Gathers calls of one event loop into rounds on one thread.

    Args:
        thread: an executor of one thread.
        on_published: told, on the event loop, the topics of each round.
    """

    def __init__(self, thread: Executor, on_published: Callable[[Iterable[str]], None]) -> None:
        self._thread = thread
        self._on_published = on_published
        self._lock = threading.Lock()
        self._open: _Round | None = None

    def __repr__(self) -> str:
        return f"<GroupCommit [{len(self._open.calls) if self._open else 0} waiting]>"

    async def publish(self, call: Publish) -> list[int]:
        """Make the call part of the next round, and give its outcome."""
        with self._lock:
            if self._open is None:
                self._open = self._begin()
            current = self._open
            if len(current.calls) >= MAX_ROUND:
                raise QueueError(
                    f"{MAX_ROUND} publications wait for the disk already; try again, and look at "
                    "the disk"
                )
            current.calls.append(call)
        try:
            # Others wait for the same round: to cancel one call must not cancel them.
            await asyncio.shield(current.done)
        except asyncio.CancelledError:
            call.cancelled = True
            raise
        if call.error is not None:
            raise call.error
        return call.offsets

    def _begin(self) -> _Round:
        new = _Round()
        new.done = asyncio.get_running_loop().run_in_executor(self._thread, self._run, new)
        new.done.add_done_callback(
            lambda _: self._on_published(dict.fromkeys(call.topic for call in new.calls))
        )
        return new

    def _run(self, current: _Round) -> None:
        with self._lock:
            self._open = None
        commit([call for call in current.calls if not call.cancelled])


def commit(calls: Sequence[Publish]) -> None:
    """Carry out the calls and write their outcomes into them.

    Entries of one partition are appended together, all or none, in the order of the calls.
    """
    groups: dict[Partition, list[tuple[Publish, int]]] = {}
    for call in calls:
        if call.write_partition in call.owned:
            for place, (partition, _) in enumerate(call.publications):
                groups.setdefault(partition, []).append((call, place))
        else:
            call.error = not_owned(call.topic, call.write_partition)
    errors: dict[Publish, list[MemqError]] = {}
    for partition, members in groups.items():
        try:
            first = partition.append([call.publications[place][1] for call, place in members])
        except MemqError as exc:
            for call, _ in members:
                errors.setdefault(call, []).append(exc)
        else:
            for offset, (call, place) in enumerate(members, first):
                call.offsets[place] = offset
    for call, causes in errors.items():
        call.error = _combine(call, causes)


def _combine(call: Publish, causes: Sequence[MemqError]) -> MemqError:
    """Make the error of a call, of whose partitions one or more failed."""
    cause = causes[0]
    partly = any(offset >= 0 for offset in call.offsets)
    if not partly and not any(isinstance(exc, PublishUncertainError) for exc in causes):
        error: MemqError = type(cause)(str(cause))
    else:
        call.owned.discard(call.write_partition)
        error = PublishUncertainError(
            f"publishing for write partition {call.write_partition} of {call.topic!r} may have "
            f"taken effect; fence it, then fetch: {cause}"
        )
    error.__cause__ = cause
    return error
