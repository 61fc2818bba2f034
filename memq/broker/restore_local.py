"""Restores a data directory: the embedded queue, and the files of topics, users and times."""

from __future__ import annotations

import itertools
import os
from contextlib import closing
from typing import TYPE_CHECKING

from memq.bigqueue import BigArray
from memq.broker.access_control import FILE, write_document
from memq.broker.catalog import Catalog
from memq.broker.level_file import FILE as LEVEL_FILE
from memq.broker.level_file import write_level
from memq.broker.restore import Readable, TopicPlan
from memq.core.notification import decode_notification
from memq.core.queue import Publication, QueueEntry
from memq.errors import CorruptDataError, QueueError
from memq.queue.embedded.folders import TopicFile, TopicFolders
from memq.queue.embedded.read_partition import (
    GAP,
    INDEX_PAGE_ITEMS,
    PAGE_BYTES,
    Partition,
    payload_of,
    times_of,
)
from memq.runtime.files import explain, lock_exclusively, make_folders, sync_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from memq.core.access.document import AccessDocument
    from memq.core.clock import SavedTimes
    from memq.core.governor.topics import Topic
    from memq.runtime.system import Runtime

RECOVERED = "recovered"
"""Folder of the data directory that takes what is replaced."""
AT_ONCE = 1_000  # entries that are flushed together


class LocalCatalog:
    """The files of topics, users and rules in a data directory.

    Args:
        directory: the data directory; made where there is none.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._access = directory / FILE
        self._catalog = Catalog(directory / "topics")

    async def topics(self) -> list[Topic]:
        """Topics that there are; those whose file is damaged are not among them."""
        return [self._catalog.get(name) for name in self._catalog.names()]

    async def deleted(self) -> set[str]:
        """Ids of topics that are to be removed."""
        return {topic.topic_id for topic in self._catalog.doomed()}

    async def save_topic(self, topic: Topic) -> None:
        """Put a topic into the catalog."""
        self._catalog.save(topic)

    async def save_access(self, document: AccessDocument) -> None:
        """Put users and rules back, if there is no file of them."""
        if not self._access.exists():
            write_document(self._access, document)

    async def save_level(self, level: int) -> None:
        """Store the active feature level, if there is no file of it."""
        if not (self._directory / LEVEL_FILE).exists():
            write_level(self._directory, level)

    async def close(self) -> None:
        """Nothing is open."""


class LocalQueue:
    """An embedded queue whose broker is stopped.

    Args:
        directory: the data directory; made where there is none.
        runtime: clocks.

    Raises:
        LockedError: a broker uses it.
        QueueError: the file system refused.
    """

    def __init__(self, directory: Path, runtime: Runtime) -> None:
        self._directory = directory
        self._runtime = runtime
        try:
            make_folders(directory / "queue")
        except OSError as exc:
            raise QueueError(f"cannot make {directory / 'queue'}: {explain(exc)}") from exc
        self._lock = lock_exclusively(directory / "queue" / "lock")
        self._folders = TopicFolders(directory / "queue")
        self._in_queue = self._folders.load()

    async def close(self) -> None:
        """Let go of the directory."""
        os.close(self._lock)

    async def readable(self, topic: Topic) -> Readable | str:
        """Read what the queue has of a topic, or what an attempt before this has set aside."""
        name, folders = topic.queue_topic, self._folders
        file = self._in_queue.get(name)
        if file is None and (aside := self._aside(name)):
            folders = aside[-1]
            file = folders.load()[name]
        if isinstance(file, CorruptDataError):
            return str(file)
        if file is None:
            return f"the queue has no {name}"
        found = _read(name, file, folders)
        if folders is self._folders or isinstance(found, str):
            return found
        # Of what stands in its place nothing was shown: it lacks everything.
        return found._replace(incomplete=True)

    async def restore(self, plan: TopicPlan, progress: Callable[[str, int], None]) -> None:
        """Make the topic hold what is planned; what was there is set aside."""
        name = plan.topic.queue_topic
        file = TopicFile(
            partitions=len(plan.starts), page_bytes=PAGE_BYTES, index_page_items=INDEX_PAGE_ITEMS
        )
        folder = self._folders.make(name, file, plan.starts, plan.groups, beside=True)
        for number, entries in enumerate(plan.entries):
            partition = Partition(name, number, folder / str(number), clock_s=self._runtime.mono_s)
            with closing(partition):
                at = plan.starts[number]
                publications = _publications(number, at, plan.ends[number], entries)
                while some := list(itertools.islice(publications, AT_ONCE)):
                    progress(f"notifications of {name}/{number}", at)
                    partition.append(some)
                    at += len(some)
        self._set_aside(name)
        self._folders.show(name)

    async def save_times(self, times: SavedTimes) -> None:
        """See to it that time goes on from there, if it is not further already."""
        now = self._folders.times()
        self._folders.store_times(type(times)(*map(max, zip(now, times, strict=True))))

    def _aside(self, queue_topic: str) -> list[TopicFolders]:
        """List what was set aside of a topic, oldest first."""
        found = (self._directory / RECOVERED).glob(f"*/topics/{queue_topic}")
        paths = sorted((path.parents[1] for path in found), key=lambda path: int(path.name))
        return [TopicFolders(path) for path in paths]

    def _set_aside(self, queue_topic: str) -> None:
        """Put what is left of a topic into `recovered/`."""
        source = self._directory / "queue" / "topics" / queue_topic
        if source.exists():
            number = str(len(self._aside(queue_topic)) + 1)
            _move(source, self._directory / RECOVERED / number / "topics" / queue_topic)


def _read(topic: str, file: TopicFile, folders: TopicFolders) -> Readable | str:
    """Read all that can be read of a topic of a queue, or say why that is nothing."""
    found = Readable([], [], [], [], {})
    try:
        for number in range(file.partitions):
            path = folders.partition(topic, number)
            least = folders.committed_end(topic, number)
            with BigArray(path, create=False, sync="batch", least_end=least) as array:
                entries, lost = _entries(array)
                found.starts.append(array.start)
                found.ends.append(array.end)
            found.entries.append(entries)
            found.lost.append(lost)
    except CorruptDataError as exc:
        return str(exc)
    for group in folders.groups(topic):
        try:
            found.groups[group] = folders.offsets(topic, group)
        except CorruptDataError:
            continue  # its backup is as good as anything
    return found


def _move(source: Path, target: Path) -> None:
    """Move a folder, durably.

    Raises:
        QueueError: the file system refused.
    """
    try:
        make_folders(target.parent)
        source.rename(target)
        sync_folder(source.parent)
        sync_folder(target.parent)
    except OSError as exc:
        raise QueueError(f"cannot move {source} to {target}: {explain(exc)}") from exc


def _entries(array: BigArray) -> tuple[list[QueueEntry], list[int]]:
    """Read the entries of a partition, and list the offsets whose entry is damaged."""
    entries: list[QueueEntry] = []
    lost: list[int] = []
    for offset in range(array.start, array.end):
        try:
            item = array.get(offset)
            payload = payload_of(item)
            if payload == GAP:
                continue
            decode_notification(payload)
        except CorruptDataError:
            lost.append(offset)
        else:
            timestamp_ms, running_ms = times_of(item)
            entries.append(QueueEntry(offset, timestamp_ms, payload, running_ms))
    return entries, lost


def _publications(
    number: int, at: int, end: int, entries: list[QueueEntry]
) -> Iterator[Publication]:
    """Yield what stands at each offset from `at` to `end`; a gap has the times before it."""
    timestamp_ms = running_ms = 0
    for entry in entries:
        while at < entry.offset:
            yield Publication(number, GAP, timestamp_ms, running_ms)
            at += 1
        _, timestamp_ms, payload, running_ms = entry
        yield Publication(number, payload, timestamp_ms, running_ms)
        at += 1
    while at < end:
        yield Publication(number, GAP, timestamp_ms, running_ms)
        at += 1
