"""Backs up what the bucket does not have yet: offsets of notifications, groups, topics, users.

What the objects are, and what they say together, is in `memq.core.backup`. Here is when they are
written, and when they are removed.

A backup that fails costs nobody anything: it is warned of, and the next one has what it lacks.
Whoever keeps offsets elsewhere asks for a backup, and how far it reaches (`FetchBackup`), and goes
no further.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from memq.core import backup
from memq.core.backup import BackedUp, CatalogBackup, Span, StateBackup
from memq.core.units import DAY_MS, counted
from memq.errors import (
    ClosedError,
    ConfigError,
    CorruptDataError,
    DataLossError,
    MemqError,
    ObjectNotFoundError,
    StorageError,
    UnavailableError,
    UnknownTopicError,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from memq.broker.access_control import AccessControl
    from memq.broker.context import BrokerContext
    from memq.broker.hosted_topic import HostedTopic
    from memq.broker.topics import Topics
    from memq.core.queue import QueueEntry
    from memq.storage.handler import StorageHandler

log = logging.getLogger(__name__)

FLUSH_BYTES = 8 << 20  # of payloads, after which an object is written: 16,000 notifications
PUT_S = 30.0  # for an object
CLOSE_S = 5.0  # for the last backup; a stop that is killed has lost no more than an interval
LOOK_S = 5.0  # for a look for backups at a start; a storage that is away does not keep it up
KEPT = 3  # states, and catalogs, of each broker; the last one counts
CHANCE_BYTES = 4  # of a key: no two lives of a broker write one twice

T = TypeVar("T")


class Backups:
    """Writes the backups of one broker.

    Args:
        context: of the broker.
        topics: that there are; those that are coordinated here are backed up here.
        control: has users and rules.
    """

    def __init__(self, context: BrokerContext, topics: Topics, control: AccessControl) -> None:
        self._context = context
        self._topics = topics
        self._control = control
        self._cluster, self._broker = context.config.cluster_id, context.config.broker_id
        self._known: dict[str, BackedUp] = {}  # by topic of the queue, as are the next
        self._changes: dict[str, tuple[int, int]] = {}  # of groups and retention, backed up
        self._fresh_s: dict[str, float] = {}  # when the last backup of it began
        self._said: dict[str, object] = {}  # the last state and catalog, by their prefix
        self._kept: dict[str, deque[str]] = {}  # their keys, oldest first
        self._next_tidy_ms = 0
        self._last: list[HostedTopic] = []  # when the broker stops
        self._lock = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<Backups [{len(self._known)} topics]>"

    async def run(self) -> None:
        """Back up for as long as the broker runs."""
        while interval_s := self._context.config.backup_interval_ms / 1000:
            await asyncio.sleep(interval_s)
            try:
                await self.write()
            except MemqError as exc:
                self._context.warn("backup", f"not backed up, retrying: {exc}")

    def stopping(self) -> None:
        """Note which topics are backed up here: while they are closed they are nobody else's."""
        self._last = [each for each in self._topics.hosted() if each.coordinated]

    async def close(self) -> None:
        """Back up what was accepted last, while a stop allows."""
        if self._context.config.backup_interval_ms:
            try:
                async with asyncio.timeout(CLOSE_S):
                    await self.write()
            except (MemqError, TimeoutError) as exc:
                log.warning("the last backup was not written: %r", exc)

    async def reach(self, queue_topic: str) -> list[int]:
        """Back up a topic; return one past the last offset that is backed up, by read partition.

        Raises:
            UnavailableError: the topic has come here, or gone, just now.
            MemqError: the storage or the queue failed.
        """
        asked_s = self._context.runtime.mono_s()
        async with self._lock:
            if self._fresh_s.get(queue_topic, -1.0) < asked_s:  # else others have waited for it
                await self._write(queue_topic)
        if queue_topic not in self._known:
            raise UnavailableError(f"{queue_topic} was not backed up here; ask again")
        return [span.end for span in self._known[queue_topic].spans]

    async def write(self) -> None:
        """Back up what has changed.

        Raises:
            MemqError: the storage failed; the next backup has all that is missing.
        """
        async with self._lock:
            await self._write()

    async def _write(self, asked: str = "") -> None:
        """Back up what has changed; of the topic that was asked for, all that was published."""
        if not self._context.leased():
            return
        began_s = self._context.runtime.mono_s()
        await self._write_catalog()
        coordinated = self._last or [each for each in self._topics.hosted() if each.coordinated]
        names = {each.topic.queue_topic for each in coordinated}
        if not names <= self._known.keys():
            await self._learn()
        for name in self._known.keys() - names:  # others back it up, until it comes back
            for of_topics in (self._known, self._changes, self._fresh_s):
                of_topics.pop(name, None)
        writer = _Writer(self._put_notifications)
        changes = {
            each.topic.queue_topic: (each.group_changes, each.expired_before_ms)
            for each in coordinated
        }
        found = await self._back_up_changed(coordinated, asked, writer)
        await writer.flush()
        owned = {
            each.topic.queue_topic for each in coordinated if each.coordinated or each in self._last
        }
        known = {name: each for name, each in (self._known | found).items() if name in owned}
        if known or self._said:
            await self._write_state(known)
        self._known = known  # only now: what is not written is backed up again
        self._changes |= {name: changes[name] for name in found}
        self._fresh_s |= dict.fromkeys(found, began_s)
        await self._tidy()

    async def _back_up_changed(
        self, coordinated: Sequence[HostedTopic], asked: str, writer: _Writer
    ) -> dict[str, BackedUp]:
        """Back up what is new of these topics; one that cannot be read keeps no other back."""
        found: dict[str, BackedUp] = {}
        for hosted in coordinated:
            name = hosted.topic.queue_topic
            try:
                if name == asked or await self._has_changed(hosted):
                    found[name] = await self._back_up(hosted, writer)
            except UnknownTopicError:  # it was deleted meanwhile
                self._known.pop(name, None)
            except (StorageError, ClosedError):  # of all topics
                raise
            except MemqError as exc:
                if isinstance(exc, DataLossError) and name in self._known:  # what comes now is new
                    known = self._known[name]
                    ends_lost = [span._replace(end=0) for span in known.spans]
                    self._known[name] = known._replace(spans=ends_lost)
                self._context.warn("backup", f"{name} is not backed up, retrying: {exc}")
        return found

    async def _has_changed(self, hosted: HostedTopic) -> bool:
        """Return whether something is to be backed up of a topic, as far as is known here.

        It asks nobody, unlike the ends of a topic: of many topics most are idle.
        """
        name = hosted.topic.queue_topic
        if name not in self._known or self._last:
            return True
        if self._changes.get(name) != (hosted.group_changes, hosted.expired_before_ms):
            return True
        ends = {number: span.end for number, span in enumerate(self._known[name].spans)}
        return await self._context.queue.wait(name, ends, 0.0)

    async def _back_up(self, hosted: HostedTopic, writer: _Writer) -> BackedUp:
        """Back up what is new of a topic; returns where it is then.

        Groups come first: what they have committed by now is before the ends that follow.
        """
        name, queue = hosted.topic.queue_topic, self._context.queue
        before = self._known.get(name)
        if before is None or self._changes.get(name, (-1, 0))[0] != hosted.group_changes:
            groups = {each: await queue.committed(each, name) for each in await queue.groups(name)}
        else:
            groups = before.groups
        spans: list[Span] = []
        for partition in range(hosted.topic.config.read_partitions):
            start, end = await queue.offsets(name, partition)
            done = before.spans[partition].end if before else 0
            # Where the queue has lost its end, others take these offsets: all is backed up again.
            at = max(start, done if done <= end else 0)
            async for entry in self._context.entries(name, partition, at, end):
                await writer.add(name, partition, entry)
            spans.append(Span(start, end))
        return BackedUp(spans, groups)

    async def _learn(self) -> None:
        """Learn what others, or an earlier life, have backed up: it need not be done again."""
        folder = backup.states_folder(self._cluster)
        states = await self._call(lambda: read_states(self._context.storage, folder))
        ends = backup.reach(states)
        for name, each in backup.newest_states(states).items():
            spans = [
                span._replace(end=end) for span, end in zip(each.spans, ends[name], strict=True)
            ]
            self._known.setdefault(name, each._replace(spans=spans))

    # -- what is written ----------------------------------------------------------------------

    async def _put_notifications(self, data: bytes) -> None:
        folder = backup.notifications_folder(self._cluster)
        await self._put(folder, (self._broker,), data)

    async def _write_catalog(self) -> None:
        """Write topics and users, if they have changed and all topics are known."""
        try:
            topics = self._topics.catalog()
        except MemqError as exc:
            self._context.warn("backup", f"topics are not backed up: {exc}")
            return
        access, level = self._control.document, self._context.level
        now = self._context.now()
        catalog = CatalogBackup(
            broker_id=self._broker,
            running_ms=now.mono_ms,
            wall_ms=now.wall_ms,
            level=level,
            topics=topics,
            access=access,
        )
        folder, data = backup.catalogs_folder(self._cluster), backup.encode_json(catalog)
        if folder not in self._said:
            await self._check_ours({topic.topic_id for topic in topics})
        await self._replace(folder, (self._broker,), (level, topics, access), data)

    async def _check_ours(self, ours: set[str]) -> None:
        """Refuse to mix backups of two clusters.

        Raises:
            ConfigError: another cluster of this name backs up into this storage.
        """
        before = await self._call(partial(latest_catalog, self._context.storage, self._cluster))
        theirs = {topic.topic_id for topic in before.topics} if before else set()
        if theirs and theirs.isdisjoint(ours):
            raise ConfigError(
                f"{self._context.root.uri} has the backups of another cluster {self._cluster!r}: "
                "give each its own cluster_id, or its own storage"
            )

    async def _write_state(self, known: dict[str, BackedUp]) -> None:
        """Write how far the backups reach, if that has changed."""
        now = self._context.now()
        state = StateBackup(
            broker_id=self._broker,
            running_ms=now.mono_ms,
            wall_ms=max(now.wall_ms, self._context.times.told_ms),
            spans={name: each.spans for name, each in known.items()},
            groups={name: each.groups for name, each in known.items()},
        )
        folder = backup.states_folder(self._cluster, self._broker)
        await self._replace(folder, (), (state.spans, state.groups), backup.encode_json(state))

    async def _replace(
        self, folder: str, parts: tuple[str, ...], said: object, data: bytes
    ) -> None:
        """Write an object that replaces the one before, unless that says the same."""
        if self._said.get(folder) == said:
            return
        if folder not in self._kept:
            mark = "".join(f"-{part}-" for part in parts)
            storage = self._context.storage
            keys = await self._call(lambda: [each.key for each in storage.list(folder)])
            self._kept[folder] = deque(sorted(key for key in keys if mark in key))
        self._kept[folder].append(await self._put(folder, parts, data))
        self._said[folder] = said
        while len(kept := self._kept[folder]) > KEPT:
            await self._call(partial(self._context.storage.delete, kept[0]))
            kept.popleft()

    async def _put(self, folder: str, parts: tuple[str, ...], data: bytes) -> str:
        """Write an object under a new name. Returns its key."""
        chance = self._context.runtime.token_hex(CHANCE_BYTES)
        name = backup.object_name(self._context.now().mono_ms, *parts, chance)
        put = partial(self._context.storage.put, folder + name, [data], timeout_s=PUT_S)
        await self._call(put)
        return folder + name

    async def _tidy(self) -> None:
        """Once a day, remove backups of what retention has removed from every topic."""
        now_ms = self._context.now().mono_ms
        if now_ms < self._next_tidy_ms:
            return
        try:
            kept_ms = max((each.config.retention_ms for each in self._topics.catalog()), default=0)
        except MemqError as exc:
            log.info("old backups are left: %s", exc)
            return
        storage, folder = self._context.storage, backup.notifications_folder(self._cluster)

        def remove() -> None:
            keys = [each.key for each in storage.list(folder)]
            old = [key for key in keys if backup.running_ms_of(key) < now_ms - kept_ms - DAY_MS]
            if old:
                storage.delete(*old)

        await self._call(remove)
        self._next_tidy_ms = now_ms + DAY_MS

    async def _call(self, blocking: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._context.reads, blocking)


class _Writer:
    """Gathers entries, and writes an object whenever there are enough."""

    def __init__(self, put: Callable[[bytes], Awaitable[None]]) -> None:
        self._put = put
        self._entries: list[tuple[str, int, QueueEntry]] = []
        self._size_bytes = 0

    async def add(self, topic: str, partition: int, entry: QueueEntry) -> None:
        self._entries.append((topic, partition, entry))
        self._size_bytes += len(entry.payload)
        if self._size_bytes >= FLUSH_BYTES:
            await self.flush()

    async def flush(self) -> None:
        if self._entries:
            await self._put(await asyncio.to_thread(backup.encode_notifications, self._entries))
            self._entries, self._size_bytes = [], 0


async def check_not_lost(context: BrokerContext, where: str) -> None:
    """Refuse to begin where topics are that were backed up: a new catalog would replace the old.

    Args:
        context: of the broker.
        where: the catalog is, which is empty.

    Raises:
        DataLossError: the storage has a backup of topics.
        CorruptDataError: there is one, and it is damaged.
    """
    cluster = context.config.cluster_id
    look = partial(latest_catalog, context.storage, cluster)
    try:
        async with asyncio.timeout(LOOK_S):
            catalog = await asyncio.get_running_loop().run_in_executor(context.reads, look)
    except (StorageError, TimeoutError) as exc:
        # Should there be a backup, it stays: it is looked at again before the first is written.
        log.warning("nobody knows whether %s has a backup: %r", context.root.uri, exc)
        return
    if catalog is not None and catalog.topics:
        raise DataLossError(
            f"{where} has no topic, and {context.root.uri} has a backup of "
            f"{counted(len(catalog.topics), 'topic')} of cluster {cluster!r}, such as "
            f"{catalog.topics[-1].name}: nothing was started. Run `memq restore` with the "
            "options of this broker, or begin anew with another cluster_id"
        )


def read_states(storage: StorageHandler, folder: str) -> list[StateBackup]:
    """Read the latest state of each broker, and those before it where it is damaged. It blocks.

    Raises:
        StorageError: the storage failed.
    """
    states: dict[str, StateBackup] = {}
    for key in sorted((each.key for each in storage.list(folder)), reverse=True):
        broker = key.rsplit("/", 2)[1]
        if broker in states:
            continue
        try:
            states[broker] = backup.decode_state(key, memoryview(storage.get(key)))
        except CorruptDataError as exc:
            log.error("%s; going on with the one before", exc)  # noqa: TRY400 - told in full
        except ObjectNotFoundError:
            log.info("%s was replaced while it was looked for", key)
    return list(states.values())


def latest_catalog(storage: StorageHandler, cluster_id: str) -> CatalogBackup | None:
    """Read the latest catalog that is whole; None where there is none. It blocks.

    A broker may write one before it has heard of a topic that was made just now. So topics of other
    catalogs are added that are hardly older than the latest one.

    Raises:
        CorruptDataError: there are some, and all are damaged.
        StorageError: the storage failed.
    """
    found: list[CatalogBackup] = []
    error: CorruptDataError | None = None
    folder = backup.catalogs_folder(cluster_id)
    for key in sorted((each.key for each in storage.list(folder)), reverse=True):
        try:
            found.append(backup.decode_catalog(key, memoryview(storage.get(key))))
        except CorruptDataError as exc:
            error = error or exc
        except ObjectNotFoundError:
            continue  # replaced while it was looked for
    if not found and error is not None:
        raise error
    return backup.merged_catalog(found) if found else None
