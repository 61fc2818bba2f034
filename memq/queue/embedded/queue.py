"""The embedded notification queue: files of one broker, no other service.

Theory of operation
-------------------
Each read partition is a big array (`partition`); topics and group offsets are folders and small
files (`folders`). The event loop never touches a file. Four threads do, each with its own order:

- *writer*: publications in rounds (`group_commit`), fences, truncation, topics that appear;
- *reader*: fetches and searches by time;
- *committer*: group offsets, so that a slow commit holds no publication back;
- *maker*: the files of new topics and of deleted ones, which take seconds where there are many.

Because one thread does all of it in the order of the calls, a publication that was asked for
before a fence has ended before the fence returns; a deletion waits for those before it.

Fencing. A queue directory belongs to one process at a time: it holds an exclusive lock on it from
construction to `close`, and the kernel releases the lock when the process dies in whatever way. So
an earlier owner in another process cannot publish at all. Inside the process an owner is a
caller of `fence`; a queue object cannot tell two callers apart, so code that starts a second owner
for a write partition must have stopped the first. A publication that fails uncertainly takes the
ownership away: until the next `fence` everything for that write partition is refused.

A flush that fails may or may not have reached the disk, and the kernel does not try again. The
partition therefore takes nothing more until it was reopened from its files, which a fence does,
and so does the next publication of another write partition to it.

A cancelled `publish` may take effect or not, like one whose outcome is uncertain.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from memq.bigqueue.files import translated
from memq.core.group import check_group_name
from memq.core.queue import (
    GROUPS,
    NotificationQueue,
    check_fetch,
    check_group_offsets,
    check_new_topic,
    check_partition,
    check_publications,
    not_owned,
    out_of_range,
)
from memq.core.units import counted
from memq.errors import (
    ClosedError,
    CorruptDataError,
    LimitReachedError,
    TopicExistsError,
    UnknownTopicError,
)
from memq.queue.embedded.folders import TopicFile, TopicFolders
from memq.queue.embedded.group_commit import GroupCommit, Publish
from memq.queue.embedded.read_partition import INDEX_PAGE_ITEMS, PAGE_BYTES, Partition
from memq.queue.waiters import Waiters
from memq.runtime.files import lock_exclusively, make_folders
from memq.runtime.system import SYSTEM, Runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from concurrent.futures import Executor
    from pathlib import Path

    from memq.core.clock import SavedTimes
    from memq.core.queue import Holding, Publication, QueueEntry

_Result = TypeVar("_Result")


class _Topic:
    """A topic's partitions, and the write partitions that this process has.

    Attributes:
        fenced: those it has.
        owned: those of them that it may publish for: an uncertain outcome takes one out.
    """

    def __init__(
        self, name: str, file: TopicFile, folders: TopicFolders, clock_s: Callable[[], float]
    ) -> None:
        self.file = file
        self.owned: set[int] = set()
        self.fenced: set[int] = set()
        self.partitions = [
            Partition(
                name,
                number,
                folders.partition(name, number),
                committed_end=partial(folders.committed_end, name, number),
                clock_s=clock_s,
            )
            for number in range(file.partitions)
        ]

    def close(self) -> None:
        """Close every partition, even when one of them fails."""
        with contextlib.ExitStack() as closing:
            for partition in self.partitions:
                closing.callback(partition.close)


class EmbeddedQueue(NotificationQueue):
    """A queue in a directory. It belongs to the event loop that first uses it.

    Args:
        directory: of the queue; made when it does not exist.
        runtime: clocks and threads.
        doomed: names topics, once the directory is locked, that are there to be deleted: none of
            their files is opened.
        max_partitions: bound of the read partitions of all topics, which take open files.
        page_bytes: size of the pages of topics made from now on.
        index_page_items: entries of their index pages.

    Raises:
        LockedError: another process, or another object, has the directory open.
        ConfigError: a topic is of another version.
        QueueError: the file system refused.
    """

    def __init__(
        self,
        directory: Path,
        *,
        runtime: Runtime = SYSTEM,
        doomed: Callable[[], Collection[str]] = tuple,
        max_partitions: int = sys.maxsize,
        page_bytes: int = PAGE_BYTES,
        index_page_items: int = INDEX_PAGE_ITEMS,
    ) -> None:
        self._directory = directory
        self._runtime = runtime
        self._max_partitions = max_partitions
        self._new_pages = (page_bytes, index_page_items)
        with contextlib.ExitStack() as undo:
            with translated("open", directory):
                make_folders(directory)
                undo.callback(os.close, lock_exclusively(directory / "lock"))
            self._folders = TopicFolders(directory)
            self._topics: dict[str, _Topic] = {}
            self._damaged: dict[str, CorruptDataError] = {}  # topics that are there, and not whole
            gone = dict.fromkeys(doomed())
            for name, file in self._folders.load().items():
                if name in gone:
                    self._damaged[name] = CorruptDataError(f"topic {name!r} is to be deleted")
                elif isinstance(file, CorruptDataError):
                    self._damaged[name] = file
                else:
                    self._topics[name] = self._open_topic(name, file)
            self._files = undo.pop_all()
        self._maker = runtime.threads(1, "memq-queue-maker")
        self._writer = runtime.threads(1, "memq-queue-writer")
        self._reader = runtime.threads(1, "memq-queue-reader")
        self._committer = runtime.threads(1, "memq-queue-committer")
        self._waiters = Waiters()
        self._group_commit = GroupCommit(self._writer, self._wake)
        self._closing: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        if self._closing is not None:
            return f"<EmbeddedQueue {self._directory} [closed]>"
        return (
            f"<EmbeddedQueue {self._directory} [{len(self._topics)} topics | "
            f"{self._group_commit!r} | {self._waiters!r}]>"
        )

    # -- topics -----------------------------------------------------------------------------

    async def create_topic(self, topic: str, partitions: int) -> None:
        """Make a topic with that many read partitions; doing it again changes nothing.

        Raises:
            InvalidRequestError: the name or the number is not valid.
            TopicExistsError: it exists with another number of partitions.
            LimitReachedError: there would be too many.
        """
        self._check_open()
        check_new_topic(topic, partitions)
        there = sum(len(each.partitions) for each in self._topics.values())
        if topic not in self._topics and there + partitions > self._max_partitions:
            raise LimitReachedError(
                f"{counted(partitions, 'read partition')} besides the {there} there are would need "
                f"more open files than this broker may have, which are enough for "
                f"{self._max_partitions}: choose fewer, or raise the limit (`ulimit -Hn`)"
            )
        await self._run(self._maker, lambda: self._create(topic, partitions))

    async def delete_topic(self, topic: str) -> None:
        """Remove a topic with its notifications and group offsets; unknown ones are fine."""
        self._check_open()
        found = self._topics.pop(topic, None)
        if found is not None:
            self._waiters.wake(topic)
            await self._run(self._maker, lambda: self._delete(topic, found))
        elif topic in self._damaged:
            await self._run(self._maker, lambda: self._folders.remove(topic))
            del self._damaged[topic]

    async def topics(self) -> list[str]:
        """List the topics of this queue, sorted; also those that are damaged and can only be
        deleted.
        """
        self._check_open()
        return sorted((*self._topics, *self._damaged))

    # -- publishing -------------------------------------------------------------------------

    async def fence(
        self,
        topic: str,
        *write_partitions: int,
        again: bool = False,  # noqa: ARG002 - the directory is locked: nobody else can have them
    ) -> None:
        """Make this process the owner of write partitions, and what is published certain.

        Raises:
            QueueError: a partition whose last flush failed could not be opened again.
        """
        found = self._topic(topic)

        def settle() -> None:
            for partition in found.partitions:
                partition.settle()
            found.owned.update(write_partitions)
            found.fenced.update(write_partitions)

        await self._run(self._writer, settle)
        self._waiters.wake(topic)

    async def release(self, topic: str, *write_partitions: int) -> None:
        """Let go of write partitions; what was asked for before takes effect before."""
        found = self._topic(topic)

        def let_go() -> None:
            self._committer.submit(lambda: None).result()
            found.owned.difference_update(write_partitions)
            found.fenced.difference_update(write_partitions)

        await self._run(self._writer, let_go)

    def owns(self, topic: str, write_partition: int) -> bool:
        """Return whether this process has fenced it and not let go of it."""
        self._check_open()
        found = self._topics.get(topic)
        return found is not None and write_partition in found.fenced

    async def wait_released(
        self,
        topic: str,
        write_partitions: Sequence[int],  # noqa: ARG002 - the directory is locked: as with `fence`
        lives: Callable[[str], bool],  # noqa: ARG002
        timeout_s: float,  # noqa: ARG002
    ) -> bool:
        """True: no other broker can have them."""
        self._topic(topic)
        return True

    async def publish(
        self, topic: str, write_partition: int, publications: Sequence[Publication]
    ) -> list[int]:
        """Publish in order; durable when it returns. Returns the offsets.

        Raises:
            FencedError: the write partition was not fenced, or its last outcome was uncertain.
            PublishUncertainError: some of them may have been published; `fence`, then `fetch`.
            QueueError: none of them was.
        """
        found = self._topic(topic)
        check_publications(topic, publications, len(found.partitions))
        return await self._group_commit.publish(
            Publish(
                topic=topic,
                write_partition=write_partition,
                owned=found.owned,
                publications=[(found.partitions[each.partition], each) for each in publications],
                offsets=[-1] * len(publications),
            )
        )

    # -- reading ----------------------------------------------------------------------------

    async def fetch(
        self, topic: str, partition: int, offset: int, *, max_entries: int, max_bytes: int
    ) -> list[QueueEntry]:
        """Entries from `offset` on; at least one whatever `max_bytes` says, none at the end.

        Raises:
            OffsetOutOfRangeError: the offset is before the start or after the end.
            CorruptDataError: an entry is damaged.
        """
        check_fetch(max_entries, max_bytes)
        found = await self._partition(topic, partition)
        if not found.start <= offset <= found.end:
            raise out_of_range(topic, partition, offset, found.start, found.end)
        if offset == found.end:
            return []
        return await self._run(
            self._reader,
            lambda: found.read(offset, max_entries=max_entries, max_bytes=max_bytes),
        )

    async def wait(self, topic: str, positions: Mapping[int, int], timeout_s: float) -> bool:
        """Wait until a partition has an entry at or past the offset given for it.

        An offset before the start ends the wait as well, so that `fetch` can tell.
        """
        found = [(await self._partition(topic, each), at) for each, at in positions.items()]

        def ready() -> bool:
            self._topic(topic)
            return any(partition.end > offset for partition, offset in found)

        return await self._waiters.wait(topic, ready, timeout_s)

    async def offsets(self, topic: str, partition: int) -> tuple[int, int]:
        """Start and end of a partition."""
        found = await self._partition(topic, partition)
        return found.start, found.end

    async def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int:
        """First offset whose entry has that timestamp or a later one; the end when none has.

        Raises:
            CorruptDataError: an entry that the search needs is damaged.
        """
        found = await self._partition(topic, partition)
        return await self._run(self._reader, lambda: found.find(timestamp_ms))

    async def truncate(self, topic: str, partition: int, offset: int) -> None:
        """Forget the entries before `offset`; one at or before the start changes nothing.

        Raises:
            OffsetOutOfRangeError: the offset is after the end.
        """
        found = await self._partition(topic, partition)
        await self._run(self._writer, lambda: found.truncate(offset))

    # -- times ------------------------------------------------------------------------------

    async def offset_since(self, topic: str, partition: int, running_ms: int) -> int:
        """First offset whose entry has that running time or a later one; the end when none has."""
        found = await self._partition(topic, partition)
        return await self._run(self._reader, lambda: found.find_running(running_ms))

    async def times(self) -> SavedTimes:
        """Return the times that the process before this one had reached; zeros for a new queue."""
        return await self._run(self._writer, self._times)

    async def save_times(self, times: SavedTimes) -> None:
        """Keep for the next life how far time has come, durably.

        Raises:
            QueueError: the file system refused; what was saved before is kept.
        """
        await self._run(self._committer, lambda: self._folders.store_times(times))

    # -- groups -----------------------------------------------------------------------------

    async def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Store a group's next offsets, durably; those of other partitions stay.

        Raises:
            InvalidRequestError: the group's name, a partition or an offset is not valid.
            LimitReachedError: the group is new and there are as many as there may be.
            CorruptDataError: what the group had stored is damaged.
            FencedError: write partition 0 was not fenced.
        """
        check_group_name(group)
        check_group_offsets(topic, offsets, len(self._topic(topic).partitions))
        self._check_has_groups(topic)
        stored = dict(offsets)
        await self._run(self._committer, lambda: self._folders.store_offsets(topic, group, stored))

    async def committed(self, group: str, topic: str) -> dict[int, int]:
        """Return a group's stored offsets; partitions without one are absent.

        Raises:
            CorruptDataError: what the group had stored is damaged.
        """
        check_group_name(group)
        self._topic(topic)
        return await self._run(self._committer, lambda: self._folders.offsets(topic, group))

    async def groups(self, topic: str) -> list[str]:
        """Groups that have stored offsets for the topic, sorted."""
        self._topic(topic)
        return await self._run(self._committer, lambda: self._folders.groups(topic))

    async def delete_group(self, group: str, topic: str) -> None:
        """Forget a group's stored offsets; an unknown group is fine."""
        check_group_name(group)
        self._check_has_groups(topic)
        await self._run(self._committer, lambda: self._folders.remove_offsets(topic, group))

    async def hold(self, group: str, topic: str, holdings: Mapping[str, Holding]) -> None:
        """Store what the members of a group may hold, durably, in place of what was stored."""
        check_group_name(group)
        self._check_has_groups(topic)
        stored = dict(holdings)
        await self._run(self._committer, lambda: self._folders.store_holdings(topic, group, stored))

    async def holdings(self, topic: str) -> dict[str, dict[str, Holding] | None]:
        """Return what each member of a group may hold, as last stored; None where damaged."""
        self._topic(topic)
        return await self._run(self._committer, lambda: self._folders.holdings(topic))

    async def close(self) -> None:
        """Finish what was asked for, then release all files; further calls raise `ClosedError`.

        Raises:
            PublishUncertainError: a last flush failed; everything is released all the same.
        """
        if self._closing is None:
            self._closing = asyncio.get_running_loop().run_in_executor(None, self._release)
            self._waiters.wake_all()
        await asyncio.shield(self._closing)

    # -- inside -----------------------------------------------------------------------------

    def _create(self, topic: str, partitions: int) -> None:
        held = self._topics.get(topic)
        if topic in self._damaged:
            raise self._damaged[topic]
        if held is None:
            page_bytes, index_page_items = self._new_pages
            file = TopicFile(
                partitions=partitions, page_bytes=page_bytes, index_page_items=index_page_items
            )
            self._folders.make(topic, file)
            self._writer.submit(lambda: self._show(topic, file)).result()
        elif held.file.partitions != partitions:
            raise TopicExistsError(
                f"topic {topic!r} has {counted(held.file.partitions, 'read partition')}, not "
                f"{partitions}"
            )

    def _show(self, topic: str, file: TopicFile) -> None:
        self._folders.show(topic)
        self._topics[topic] = self._open_topic(topic, file)

    def _delete(self, topic: str, found: _Topic) -> None:
        # What was asked for before must not write into a later topic of that name.
        for thread in (self._committer, self._writer):
            thread.submit(lambda: None).result()
        try:
            found.close()
            self._folders.remove(topic)
        except BaseException:
            self._topics[topic] = self._open_topic(topic, found.file)
            raise

    def _open_topic(self, name: str, file: TopicFile) -> _Topic:
        return _Topic(name, file, self._folders, self._runtime.mono_s)

    def _times(self) -> SavedTimes:
        saved = self._folders.times()
        running_ms = saved.running_ms
        for topic in self._topics.values():
            for partition in topic.partitions:
                with contextlib.suppress(CorruptDataError):  # those that need the topic are told
                    partition.open()
                running_ms = max(running_ms, partition.last_running_ms + 1)
        return saved._replace(running_ms=running_ms)

    def _release(self) -> None:
        with self._files as files:
            for topic in self._topics.values():
                files.callback(topic.close)
            for thread in (self._maker, self._reader, self._committer, self._writer):
                thread.shutdown()  # after all that it was asked to do

    def _check_open(self) -> None:
        if self._closing is not None:
            raise ClosedError(f"the queue in {self._directory} has been closed; open it again")

    def _check_has_groups(self, topic: str) -> None:
        if GROUPS not in self._topic(topic).fenced:
            raise not_owned(topic, GROUPS)

    def _topic(self, topic: str) -> _Topic:
        self._check_open()
        found = self._topics.get(topic)
        if topic in self._damaged:
            raise CorruptDataError(str(self._damaged[topic]))
        if found is None:
            raise UnknownTopicError(f"the queue has no topic {topic!r}: deleted, or never made")
        return found

    async def _partition(self, topic: str, number: int) -> Partition:
        partitions = self._topic(topic).partitions
        check_partition(topic, number, len(partitions))
        partition = partitions[number]
        if not partition.is_open:
            await self._run(self._writer, partition.open)
        return partition

    async def _run(self, thread: Executor, job: Callable[[], _Result]) -> _Result:
        """Run a job on a thread, to its end even when the caller is cancelled."""
        self._check_open()
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(thread, job))

    def _wake(self, topics: Iterable[str]) -> None:
        for topic in topics:
            self._waiters.wake(topic)
