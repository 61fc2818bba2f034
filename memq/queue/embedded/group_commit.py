"""Group commit: publications that come while a flush is going on share the next one.

A flush to disk takes about a millisecond whether it carries one entry or a thousand. So there is
one thread that flushes, and while it does, publications gather. Each asks the thread to carry out
all that wait: it appends their entries, each partition's together and flushed once. So what is
asked of the thread after a publication is done after it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memq.core.queue import not_owned
from memq.errors import MemqError, PublishUncertainError, QueueError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor

    from memq.core.queue import Publication
    from memq.queue.embedded.read_partition import Partition

MAX_WAITING = 10_000
"""Publications that wait. A write partition has one on its way, so this is more write partitions
than a broker can serve; the bound is against a flush that hangs."""


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
        carried_out: one of these says what became of it.
        cancelled: nobody waits any more; it is not begun then.
    """

    topic: str
    write_partition: int
    owned: set[int]
    publications: Sequence[tuple[Partition, Publication]]
    offsets: list[int]
    error: MemqError | None = None
    carried_out: bool = False
    cancelled: bool = False


class GroupCommit:
    """Gathers the calls of one event loop for one thread.

    Args:
        thread: an executor of one thread.
        on_published: told, on the event loop, the topic of each call.
    """

    def __init__(self, thread: Executor, on_published: Callable[[str], None]) -> None:
        self._thread = thread
        self._on_published = on_published
        self._waiting: deque[Publish] = deque()

    def __repr__(self) -> str:
        return f"<GroupCommit [{len(self._waiting)} waiting]>"

    async def publish(self, call: Publish) -> list[int]:
        """Carry the call out with all that wait, and give its outcome."""
        if len(self._waiting) >= MAX_WAITING:
            raise QueueError(
                f"{MAX_WAITING} publications wait for the disk already; try again, and look at "
                "the disk"
            )
        self._waiting.append(call)
        done = asyncio.get_running_loop().run_in_executor(self._thread, self._commit_all)
        done.add_done_callback(lambda _: self._on_published(call.topic))
        try:
            await asyncio.shield(done)
        except asyncio.CancelledError:
            call.cancelled = True
            raise
        if call.error is not None:
            raise call.error
        if not call.carried_out:
            raise PublishUncertainError("a bug has stopped what publishes; see the log")
        return call.offsets

    def _commit_all(self) -> None:
        calls = [self._waiting.popleft() for _ in range(len(self._waiting))]
        commit([call for call in calls if not call.cancelled])
        for call in calls:
            call.carried_out = True


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
    """What to tell a call, of whose partitions one or more failed."""
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
