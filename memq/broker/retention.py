"""Retention, orphans, deleted topics: what is deleted, and when.

*Retention*. Notifications older than the topic's `retention` are forgotten first, their objects
deleted after. A reader may so find a notification gone, which it reports as out of range, but never
a notification whose object retention has removed. Brokers of a cluster learn some seconds later how
far another one has gone, so its objects are deleted later still. A crash between the two steps
leaves objects that no notification names.

A topic with `retention_bytes` also loses its oldest Batches, by the time of publication, while it
has more bytes; and `memq topic trim` removes some at once. Neither removes what is younger than
`dedup_window`, which is the least that `retention` may be: so nothing is promised to readers and
to deduplication that would hold for `retention` alone. What a trim has removed is written down
before.

*Orphans*. Such objects, and those of Batches whose upload succeeded but whose notification was
never published (a crash, a missed deadline), hold nothing that was acked. But the same is seen when
the queue has lost notifications, and then the objects are all that is left of acked data. So an
orphan is recognised and reported, and deleted only when it is older than the topic's `retention`:
by then it would have been deleted whatever it is.

*The scan* is one for all topics whose retention is with this broker. It notes which Batches are on
their way here, then reads the notifications, then lists the objects once. A Batch that is published
after its topic was read was sealed not long before the scan began, or later. So nothing is an
orphan that was sealed between then and the moment in which it is found, by the clock of any broker.
In the end a topic is left out that another broker has by then, or that was deleted, and `retention`
is as long as it is by then.

*Age* is running time (`memq.core.clock`): a wall clock that steps, or is wrong at the start,
deletes nothing early. Time during which no broker ran does not count.

*Deleted topics.* Their notifications are removed, then their objects. The list of doomed topics is
kept next to the topics, so removal goes on after a crash or an error of queue or storage.
Everything is named by topic and topic id, so it never meets what belongs to a later topic of that
name. An object store may carry out a put that its client has given up, some time later, and so may
another broker that has not seen yet that the topic is gone. Where that may be, nothing is removed
before `LANDING_S`.

A scan holds 8 bytes in memory for each Batch retained, and what it found, up to `MAX_ORPHANS`.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import logging
from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple, Protocol

from memq.core.notification import decode_notification
from memq.core.units import counted
from memq.errors import ClosedError, CorruptDataError, MemqError
from memq.runtime.retry import Backoff
from memq.storage.keys import cluster_prefixes, key_of_uri, parse_object_key

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
    from concurrent.futures import Future

    from memq.broker.context import BrokerContext
    from memq.broker.hosted_topic import HostedTopic
    from memq.core.governor.topics import Topic

log = logging.getLogger(__name__)

SIZES_BYTES = 256 << 10  # of notifications at a time, of each read partition, to add up sizes
MAX_FAILURES = 3  # of deletions, until the storage is left alone
DELETE_AT_ONCE = 100  # objects deleted per trip to a worker thread, so that uploads get their turn
DELETE_OF_TOPIC = 1_000  # objects; as many as S3 removes by one request
BACKOFF = Backoff(base_s=2.0, cap_s=60.0)  # of the removal of topics; nobody waits for it
MAX_ORPHANS = 100_000  # found by a scan, 30 MB; the next one goes on when these are deleted
NAME_PARTS = 256  # of what is named: sorting one holds other threads up for milliseconds
LANDING_S = 60.0  # after which no put lands any more that was given up

_Names = list["array[int]"]
"""Batch ids, as hashes of 8 bytes in `NAME_PARTS` arrays, which are sorted when all are there."""


class _Object(NamedTuple):
    key: str
    size_bytes: int
    sealed_ms: int  # of running time


async def expire(hosted: HostedTopic, context: BrokerContext) -> int:
    """Forget the expired notifications of a topic and delete their Batches; returns how many."""
    keys = await forget_expired(hosted, context)
    await delete_expired(keys, context)
    return len(keys)


async def forget_expired(hosted: HostedTopic, context: BrokerContext) -> list[str]:
    """Forget the notifications of a topic that are too old, or too many; returns the keys of their
    objects.
    """
    config, queue_topic = hosted.topic.config, hosted.topic.queue_topic
    cutoff_ms = context.now().mono_ms - config.retention_ms
    keys: list[str] = []
    async with hosted.removing:
        ends = await _beyond_bytes(hosted, context) if config.retention_bytes else {}
        for partition in range(config.read_partitions):
            start, _ = await context.queue.offsets(queue_topic, partition)
            young = await context.queue.offset_since(queue_topic, partition, cutoff_ms)
            offsets = range(start, max(young, ends.get(partition, 0)))
            old = await _expired(queue_topic, partition, offsets, context)
            keys += await _forget(hosted, partition, start, old, context)
    return keys


async def trim(
    hosted: HostedTopic,
    wanted: Mapping[int, int],
    context: BrokerContext,
    record: Callable[[], Awaitable[object]] | None,
) -> tuple[dict[int, int], list[str]]:
    """Forget the oldest notifications of a topic now, as `retention` would at its shortest.

    Args:
        hosted: the topic.
        wanted: the first offset that is to stay, by read partition.
        context: of the broker.
        record: writes down how far retention has come; None to change nothing.

    Returns:
        The first offset that stays, by read partition, and the keys of the objects to delete.
    """
    queue_topic = hosted.topic.queue_topic
    found: dict[int, tuple[int, _Expired]] = {}
    async with hosted.removing:
        for partition, offset in wanted.items():
            start, _ = await context.queue.offsets(queue_topic, partition)
            offsets = range(start, min(offset, await _settled(hosted, partition, context)))
            found[partition] = start, await _expired(queue_topic, partition, offsets, context)
        keys: list[str] = []
        newest_ms = max((old.newest_ms for _, old in found.values()), default=0)
        if record is not None and newest_ms:
            hosted.expired_before_ms = max(hosted.expired_before_ms, newest_ms + 1)
            await record()
            for partition, (start, old) in found.items():
                keys += await _forget(hosted, partition, start, old, context)
    return {partition: old.end for partition, (_, old) in found.items()}, keys


async def _forget(
    hosted: HostedTopic, partition: int, start: int, old: _Expired, context: BrokerContext
) -> list[str]:
    if old.end <= start:
        return []
    hosted.expired_before_ms = max(hosted.expired_before_ms, old.newest_ms + 1)
    await context.queue.truncate(hosted.topic.queue_topic, partition, old.end)
    was, counted_to, size_bytes = hosted.sizes.pop(partition, (-1, 0, 0))
    if was == start and counted_to >= old.end:
        hosted.sizes[partition] = old.end, counted_to, size_bytes - old.size_bytes
    log.info(
        "%s/%d: %s expired, start is %d",
        hosted.topic.name,
        partition,
        counted(len(old.keys), "Batch"),
        old.end,
    )
    return old.keys


async def _settled(hosted: HostedTopic, partition: int, context: BrokerContext) -> int:
    """Return one past the last notification that is older than `dedup_window`, also for others."""
    window_ms = hosted.topic.config.dedup_window_ms + context.clocks_differ_ms
    since_ms = context.now().mono_ms - window_ms
    return await context.queue.offset_since(hosted.topic.queue_topic, partition, since_ms)


async def _beyond_bytes(hosted: HostedTopic, context: BrokerContext) -> dict[int, int]:
    """Find the oldest notifications without which a topic has no more than `retention_bytes`.

    Sizes are added up once, and then as notifications come and go.

    Returns:
        One past the last of them, by read partition.
    """
    config, queue_topic = hosted.topic.config, hosted.topic.queue_topic
    oldest: list[tuple[int, int, int, int]] = []
    following = []
    for partition in range(config.read_partitions):
        start, end = await context.queue.offsets(queue_topic, partition)
        was, counted_to, size_bytes = hosted.sizes.get(partition, (start, start, 0))
        if was != start:  # another broker has removed some meanwhile
            counted_to, size_bytes = start, 0
        async for _, _, size in _sizes(queue_topic, partition, (counted_to, end), context):
            size_bytes += size
        hosted.sizes[partition] = start, end, size_bytes
        settled = start, await _settled(hosted, partition, context)
        following.append(_sizes(queue_topic, partition, settled, context))

    async def push(partition: int) -> None:
        async for running_ms, offset, size in following[partition]:
            heapq.heappush(oldest, (running_ms, partition, offset, size))
            return

    excess = sum(size for *_, size in hosted.sizes.values()) - config.retention_bytes
    for partition in range(config.read_partitions if excess > 0 else 0):
        await push(partition)
    ends: dict[int, int] = {}
    while oldest and excess > 0:
        _, partition, offset, size = heapq.heappop(oldest)
        ends[partition] = offset + 1
        excess -= size
        await push(partition)
    return ends


async def _sizes(
    topic: str, partition: int, within: tuple[int, int], context: BrokerContext
) -> AsyncIterator[tuple[int, int, int]]:
    """Yield running time, offset and size of Batches, up to the first that is damaged."""
    with contextlib.suppress(CorruptDataError):  # which is told of when it expires
        async for entry in context.entries(topic, partition, *within, at_once_bytes=SIZES_BYTES):
            size_bytes = decode_notification(entry.payload).size_bytes
            yield entry.running_ms, entry.offset, size_bytes


async def delete_expired(keys: list[str], context: BrokerContext) -> None:
    """Delete objects whose notifications were forgotten, when no reader is given these any more.

    What is left by a broker that ends meanwhile are orphans, which are as old as retention.
    """
    if keys:
        await asyncio.sleep(context.forgotten_after_s)
        try:
            await _delete(keys, context)
        except ClosedError as exc:
            log.info("objects that have expired are left, as orphans: %s", exc)


class _Expired(NamedTuple):
    """Notifications of a read partition that are to go.

    Attributes:
        keys: of the objects that they name.
        size_bytes: of these objects.
        newest_ms: time of the newest of them.
        end: one past the last of them. A gap may follow, and a reader may stand in it that has
            missed nothing; so the partition is not truncated up to the next notification.
    """

    keys: list[str]
    size_bytes: int
    newest_ms: int
    end: int


async def _expired(topic: str, partition: int, offsets: range, context: BrokerContext) -> _Expired:
    """Find the expired notifications among these offsets."""
    keys: list[str] = []
    size_bytes, newest_ms, end = 0, 0, offsets.start
    try:
        entries = context.entries(topic, partition, offsets.start, offsets.stop)
        async for entry in entries:  # one by one: what was read before the damage is kept
            newest_ms, end = max(newest_ms, entry.timestamp_ms), entry.offset + 1
            notification = decode_notification(entry.payload)
            keys.append(key_of_uri(notification.uri))
            size_bytes += notification.size_bytes
    except CorruptDataError as exc:
        log.warning(
            "%s/%d: an expired notification is damaged (%s); its objects become orphans",
            topic,
            partition,
            exc,
        )
        newest_ms, end = context.now().wall_ms, offsets.stop
    return _Expired(keys, size_bytes, newest_ms, end)


async def scan_orphans(topics: Sequence[HostedTopic], context: BrokerContext) -> list[str]:
    """Compare objects with notifications; report for each topic what nothing names.

    Args:
        topics: whose retention is with this broker; what it is not any more in the end, and what
            cannot be read, is left out.
        context: of the broker.

    Returns:
        Keys of those that are older than their topic's retention, and are to go. It may be that
        they were named a moment ago: see `delete_expired`.

    Raises:
        MemqError: the objects cannot be listed, or the broker stops.
    """
    begun_ms = context.now().mono_ms
    names = [array("q") for _ in range(NAME_PARTS)]
    # What is newer than its upload deadline may be on its way to be notified, at any broker. At
    # this one it may have been so for longer.
    deadline_ms = max(hosted.topic.config.upload_deadline_ms for hosted in topics)
    since_ms = begun_ms - 2 * deadline_ms - context.clocks_differ_ms
    for partition in [each for hosted in topics for each in hosted.partitions.values()]:
        for batch_id in partition.processor.batch_ids:
            _add_name(batch_id, names)
    unnamed: dict[str, list[_Object]] = {}
    for hosted in topics:
        try:
            await _read_names(hosted.topic, names, context)
            unnamed[hosted.topic.queue_topic] = []
        except MemqError as exc:
            log.warning("%s: not looked at for orphans: %s", hosted.topic.name, exc)
    await asyncio.get_running_loop().run_in_executor(
        context.reads, _list_unnamed, unnamed, names, since_ms, context
    )
    expired: list[str] = []
    for hosted in topics:
        if hosted.retains:  # still: a scan takes minutes
            expired += _report(hosted.topic, unnamed.get(hosted.topic.queue_topic, []), begun_ms)
    return expired


def _add_name(batch_id: str, names: _Names) -> None:
    """Add the hash of a batch id; an orphan that shares it passes for named, and so is kept."""
    names[hash(batch_id) % NAME_PARTS].append(hash(batch_id))


def _is_named(batch_id: str, names: _Names) -> bool:
    part = names[hash(batch_id) % NAME_PARTS]
    at = bisect_left(part, hash(batch_id))
    return hash(batch_id) in part[at : at + 1]


async def _read_names(topic: Topic, names: _Names, context: BrokerContext) -> None:
    for partition in range(topic.config.read_partitions):
        start, _ = await context.queue.offsets(topic.queue_topic, partition)
        async for entry in context.entries(topic.queue_topic, partition, start):
            _add_name(decode_notification(entry.payload).batch_id, names)


def _list_unnamed(
    unnamed: dict[str, list[_Object]], names: _Names, since_ms: int, context: BrokerContext
) -> None:
    """List the objects of the cluster; add to each topic those that nothing names.

    What else lies in the storage is not listed: it may be more, and a store bills that.
    """
    names[:] = [array("q", sorted(part)) for part in names]
    found = 0
    for info in context.storage.list(*cluster_prefixes(context.config.cluster_id)):
        context.check_not_stopping()
        batch = parse_object_key(info.key)
        if batch is None or _is_named(batch.batch_id, names):
            continue
        of_topic = unnamed.get(f"{batch.topic}.{batch.topic_id}")
        # What was sealed since then may have been notified after the notifications were read. What
        # was sealed later than now is of a running time that was lost together with its queue.
        now_ms = context.now().mono_ms + context.clocks_differ_ms
        if of_topic is not None and not since_ms <= batch.running_ms <= now_ms:
            of_topic.append(_Object(info.key, info.size_bytes, batch.running_ms))
            found += 1
            if found == MAX_ORPHANS:
                return


def _report(topic: Topic, orphans: list[_Object], begun_ms: int) -> list[str]:
    """Report the orphans of a topic; returns the keys of those that are to go."""
    cutoff_ms = begun_ms - topic.config.retention_ms
    expired = [each.key for each in orphans if each.sealed_ms < cutoff_ms]
    if orphans:
        log.warning(
            "%s: %s (%d bytes) that no notification names: never acked, unless the "
            "queue has lost notifications; older than retention, and so deleted: %d",
            topic.name,
            counted(len(orphans), "object"),
            sum(each.size_bytes for each in orphans),
            len(expired),
        )
    return expired


async def _delete(keys: list[str], context: BrokerContext) -> None:
    loop, failures = asyncio.get_running_loop(), 0
    for start in range(0, len(keys), DELETE_AT_ONCE):
        if failures == MAX_FAILURES:
            log.warning("%d more expired objects are left: the storage fails", len(keys) - start)
            return
        part = keys[start : start + DELETE_AT_ONCE]
        context.check_not_stopping()
        try:
            await loop.run_in_executor(context.reads, context.storage.delete, *part)
        except MemqError as exc:
            failures += 1
            log.warning("expired objects are left, until a scan for orphans deletes them: %s", exc)


# -- deleted topics ------------------------------------------------------------------------


class DoomedTopics(Protocol):
    """Which topics are to be removed; kept durably."""

    async def doomed(self) -> list[Topic]:
        """Topics of which something may be left that this broker is to remove."""

    async def withdraw(self, topic: Topic) -> bool:
        """See to it, durably, that it cannot come to exist any more, before more is removed.

        Returns:
            False when it has come to exist, or nothing is left of it: nothing may be removed.
        """

    async def forget(self, topic: Topic) -> None:
        """Note that nothing is left of it."""


class Deletions:
    """Removes doomed topics in a background task.

    Args:
        topics: that are to be removed.
        context: of the broker.
    """

    def __init__(self, topics: DoomedTopics, context: BrokerContext) -> None:
        self._topics = topics
        self._context = context
        self._uploads: dict[str, Sequence[Future[None]]] = {}  # by topic id, as is the next
        self._seen_s: dict[str, float] = {}  # when it was first to be removed
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Deletions [{counted(len(self._seen_s), 'topic')} left]>"

    def start(self) -> None:
        """Begin with what an earlier life of the broker has left."""
        self._wanted.set()
        self._task = self._context.fatal_errors.spawn("deletion", self._run())

    async def stop(self) -> None:
        """Stop; what is left is removed after the next start."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def wanted(self) -> None:
        """There are more doomed topics."""
        self._wanted.set()

    def add(self, topic: Topic, uploads: Sequence[Future[None]] = ()) -> None:
        """Add a doomed topic; it is removed once these uploads have ended: they may store more."""
        self._uploads[topic.topic_id] = uploads
        self.wanted()

    async def _run(self) -> None:
        failures = 0
        while True:
            self._wanted.clear()
            if await self._remove_all():
                failures = 0
                await self._wanted.wait()
            else:
                await asyncio.sleep(BACKOFF.full_jitter_s(failures, self._context.runtime.random))
                failures += 1

    async def _remove_all(self) -> bool:
        """Remove every doomed topic; False when something is left."""
        done = True
        try:
            doomed = await self._topics.doomed()
        except MemqError as exc:
            log.warning("cannot list deleted topics, retrying: %s", exc)
            return False
        for topic in doomed:
            if self._may_be_stored(topic):
                done = False
                continue
            try:
                if not await self._topics.withdraw(topic):
                    continue
                await self._context.queue.delete_topic(topic.queue_topic)
                count = await asyncio.get_running_loop().run_in_executor(
                    self._context.reads, self._delete_objects, topic
                )
                await self._topics.forget(topic)
                self._uploads.pop(topic.topic_id, None)
                self._seen_s.pop(topic.topic_id, None)
            except MemqError as exc:
                done = False
                log.warning("cannot remove deleted topic %s, retrying: %s", topic.queue_topic, exc)
            else:
                removed = counted(count, "object")
                log.info("deleted topic %s is removed, %s", topic.queue_topic, removed)
        return done

    def _may_be_stored(self, topic: Topic) -> bool:
        """Tell whether an object of a topic may still be stored, by this broker or another."""
        now_s = self._context.runtime.mono_s()
        seen_s = self._seen_s.setdefault(topic.topic_id, now_s)
        if not all(upload.done() for upload in self._uploads.get(topic.topic_id, ())):
            return True
        lands_later = self._context.storage.remote or self._context.shared
        return lands_later and now_s < seen_s + LANDING_S

    def _delete_objects(self, topic: Topic) -> int:
        objects = self._context.objects_of(topic)
        count = 0
        while keys := [info.key for info in itertools.islice(objects, DELETE_OF_TOPIC)]:
            self._context.storage.delete(*keys)
            count += len(keys)
        return count
