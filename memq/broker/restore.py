"""`memq restore`: bring back what the queue and the catalog have lost, from the bucket alone.

Theory of operation
-------------------
Brokers back up, every `backup_interval`, which notification is at which offset, how far groups have
come, and which topics, users and rules there are (`memq.core.backup`). All else is in the Batches.

*What was backed up* comes back at its offset: ranges, groups, tables and checkpoints hold.

*What was published after the last backup* is acked, so it must come back; but nobody can say at
which offset it was. It gets new offsets, after a gap that is wider than what can have been used:
no offset ever names two things. Group offsets are as old as the backup, so groups read it again.
A reader with an offset inside the gap has read some of it, and goes on behind the gap: it reads
that again as well. One that must not, plans no further than backups reach (`FetchBackup`).

*Which Batches those are.* Those that nothing names, and that retention would have kept. Some were
never published: their upload had been given up, and a retry has put their Messages into a Batch
that was sealed later. So of Batches that share Messages the one that was published counts, or else
the last one. What remains was acked, or somebody was told that it may be lost, and it is not.

*What is readable still* is a source like a backup, and a better one: an embedded queue of which a
part is damaged, files of topics and of groups.

A crash parts a restore anywhere without harm. Topic by topic, what was there is set aside in
`recovered/`, which is a source of the next attempt, and what is brought back is shown last.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from memq.broker.backup import latest_catalog, read_states
from memq.core import backup
from memq.core.backup import Span
from memq.core.checksum import crc32c
from memq.core.clock import SavedTimes
from memq.core.features import MAX_LEVEL
from memq.core.format.batch import entries_range_us, producer_runs
from memq.core.format.reader import read_index
from memq.core.format.schema import DEFAULT_SCHEMA, schema_id, serialize_schema
from memq.core.governor.topics import new_topic
from memq.core.notification import (
    NOTIFICATION_VERSION,
    Notification,
    decode_notification,
    encode_notification,
)
from memq.core.queue import QueueEntry
from memq.core.ranges import IntervalSet
from memq.core.topic import TopicConfig
from memq.core.units import counted
from memq.errors import CorruptDataError, DataLossError, ObjectNotFoundError
from memq.storage.keys import BatchKey, cluster_prefixes, parse_object_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from memq.core.access.document import AccessDocument
    from memq.core.backup import BackedUp
    from memq.core.format.index import BatchIndex
    from memq.core.governor.topics import Topic
    from memq.storage.handler import ObjectInfo, StorageHandler

RESTORED_BY = "restored"  # the broker of a notification that is made from an object
GAP_LEAST = 10_000  # offsets: those of markers, and of what was never published, are among them
GAP_PER_BATCH = 100  # more of them, for each Batch that may have been published

Action = Literal["none", "restore"]


# -- what there is ---------------------------------------------------------------------------


class Readable(NamedTuple):
    """What a queue still has of a topic.

    Attributes:
        entries: by read partition; those that can be read.
        starts: first offset retained, by read partition.
        lost: offsets that cannot be read, by read partition.
        ends: one past the last offset, by read partition, as far as it is known.
        groups: next offsets by group.
        incomplete: it is to be restored, whatever it lacks.
    """

    entries: list[list[QueueEntry]]
    starts: list[int]
    lost: list[list[int]]
    ends: list[int]
    groups: dict[str, dict[int, int]]
    incomplete: bool = False


class TopicPlan(NamedTuple):
    """What a topic of the queue is to hold.

    Attributes:
        topic: the topic.
        entries: by read partition, by offset; where there is none between two, there is a gap.
        ends: one past the last offset of each read partition, which may be past its last entry.
        starts: first offset of each read partition.
        groups: next offsets by group.
    """

    topic: Topic
    entries: list[list[QueueEntry]]
    starts: list[int]
    ends: list[int]
    groups: dict[str, dict[int, int]]


class CatalogTarget(Protocol):
    """Where topics, users and rules are restored to. Nobody else uses it."""

    async def topics(self) -> list[Topic]:
        """Topics that it has; those whose entry cannot be read are not among them."""

    async def deleted(self) -> set[str]:
        """Ids of topics that are to be removed."""

    async def save_topic(self, topic: Topic) -> None:
        """Put a topic into it."""

    async def save_access(self, document: AccessDocument) -> None:
        """Put users and rules back, if there are none."""

    async def save_level(self, level: int) -> None:
        """Store the active feature level, if there is none."""

    async def close(self) -> None:
        """Let others use it."""


class QueueTarget(Protocol):
    """Where notifications and groups are restored to. Nobody else uses it."""

    async def readable(self, topic: Topic) -> Readable | str:
        """What it still has of a topic, or why that is nothing."""

    async def restore(self, plan: TopicPlan, progress: Callable[[str, int], None]) -> None:
        """Make the topic hold what is planned, with its groups."""

    async def save_times(self, times: SavedTimes) -> None:
        """See to it that time goes on from there, if it is not further already."""

    async def close(self) -> None:
        """Let others use it."""


class Target(NamedTuple):
    """What is restored.

    Attributes:
        catalog: has topics and users.
        queue: has notifications and groups.
        least_level: feature level of brokers that can read what is restored.
    """

    catalog: CatalogTarget
    queue: QueueTarget
    least_level: int


class StoredBatch(NamedTuple):
    """A Batch object, as its key and its own index tell of it.

    Attributes:
        key: of the object.
        parsed: what the key says.
        size_bytes: of the object.
        about: the index of the Batch.
        schema: its serialized schema.
    """

    key: str
    parsed: BatchKey
    size_bytes: int
    about: BatchIndex
    schema: bytes


@dataclass
class RestoreOutcome:
    """What was found of a topic, and what is, or would be, done about it.

    Attributes:
        topic: its name.
        topic_id: of it.
        action: what is done.
        reason: why; empty when nothing is.
        exact: notifications at the offsets that they had.
        later: Batches that were published after the last backup: notifications with new offsets.
        lost: notifications that were at offsets of which nothing is left.
        given_up: objects whose Messages a later one has; they are left alone.
        missing: Batches whose object is not there.
        damaged: objects whose index cannot be read, with the reason; they are left alone.
        groups: groups that have offsets again.
    """

    topic: str
    topic_id: str
    action: Action = "none"
    reason: str = ""
    exact: int = 0
    later: int = 0
    lost: int = 0
    given_up: int = 0
    missing: int = 0
    damaged: list[str] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)


def read_object(storage: StorageHandler, info: ObjectInfo) -> StoredBatch:
    """Read what an object says of itself.

    Raises:
        CorruptDataError: its index, or its schema, does not hold.
        ObjectNotFoundError: it is gone.
        StorageError: the storage failed.
    """
    parsed = parsed_key(info)

    def get_range(start: int, length: int) -> memoryview:
        return memoryview(storage.get_range(info.key, start, length))

    index = read_index(get_range, info.size_bytes)
    metadata = index.metadata
    said = (metadata.topic, metadata.write_partition, metadata.batch_id)
    if said != (parsed.topic, parsed.write_partition, parsed.batch_id):
        raise CorruptDataError(f"{info.key} holds another Batch: {said}")
    schema = bytes(get_range(0, index.schema_length))
    if crc32c(schema) != metadata.schema_crc32c:
        raise CorruptDataError(f"{info.key}: its schema message is damaged")
    return StoredBatch(info.key, parsed, info.size_bytes, index, schema)


def notification_of(stored: StoredBatch, uri: str) -> Notification:
    """Make the notification of an object."""
    entries, parsed = stored.about.entries, stored.parsed
    least, greatest = entries_range_us(entries)
    return Notification(
        version=NOTIFICATION_VERSION,
        topic=parsed.topic,
        topic_id=parsed.topic_id,
        write_partition=parsed.write_partition,
        batch_id=parsed.batch_id,
        uri=uri,
        size_bytes=stored.size_bytes,
        index_offset=stored.about.offset,
        messages=len(entries),
        records=sum(entry.records for entry in entries),
        min_timestamp_us=least,
        max_timestamp_us=greatest,
        producers=producer_runs(entries),
        schema_id=schema_id(stored.schema),
        broker_id=RESTORED_BY,
        sealed_ms=parsed.sealed_ms,
        stored_through_ms=parsed.sealed_ms,
    )


def parsed_key(info: ObjectInfo) -> BatchKey:
    """Parse the key of an object that is known to be a Batch."""
    parsed = parse_object_key(info.key)
    assert parsed is not None  # noqa: S101 - `Bucket` lists no others
    return parsed


class Bucket:
    """What a bucket has of a cluster.

    Args:
        storage: has it.
        cluster_id: of the cluster.
        progress: is called with what is being counted, and how many there are so far.

    Attributes:
        objects: Batches by topic id, in the order of sealing.
        names: of these topics, by topic id.
        states: of the newest backups.
        catalog: the newest; None where there is none.
        backed_up: what the newest states say, by topic of the queue.

    Raises:
        StorageError: the storage failed.
        CorruptDataError: a backup is damaged.
    """

    def __init__(
        self, storage: StorageHandler, cluster_id: str, progress: Callable[[str, int], None]
    ) -> None:
        self._storage = storage
        found: dict[str, list[tuple[int, str, ObjectInfo]]] = defaultdict(list)
        self.names: dict[str, str] = {}
        for count, info in enumerate(storage.list(*cluster_prefixes(cluster_id)), 1):
            parsed = parse_object_key(info.key)
            if parsed is not None and parsed.cluster_id == cluster_id:
                found[parsed.topic_id].append((parsed.running_ms, parsed.batch_id, info))
                self.names[parsed.topic_id] = parsed.topic
            progress("objects found", count)
        self.objects = {name: [each[2] for each in sorted(some)] for name, some in found.items()}
        self.states = read_states(storage, backup.states_folder(cluster_id))
        self.catalog = latest_catalog(storage, cluster_id)
        self.backed_up: dict[str, BackedUp] = backup.newest_states(self.states)
        folder = backup.notifications_folder(cluster_id)
        tables: list[pa.Table] = []
        for count, key in enumerate(sorted(each.key for each in storage.list(folder)), 1):
            try:
                table = backup.decode_notifications(key, memoryview(storage.get(key)))
            except CorruptDataError as exc:
                raise CorruptDataError(
                    f"{exc}. Put back an intact copy. Without one, delete it: the Batches that "
                    "only it names get new offsets"
                ) from exc
            at = pa.repeat(pa.scalar(count, pa.int64()), len(table))
            tables.append(table.append_column("at", at))
            progress("backups read", count)
        self._table = pa.concat_tables(tables) if tables else None

    def entries(self, topic: Topic) -> list[list[QueueEntry]]:
        """Return the backed up entries of a topic, by read partition, sorted by offset."""
        found: list[dict[int, QueueEntry]] = [{} for _ in range(topic.config.read_partitions)]
        if self._table is None:
            return [[] for _ in found]
        rows = self._table.filter(pc.equal(self._table["topic"], topic.queue_topic)).sort_by("at")
        for batch in rows.to_batches(max_chunksize=10_000):
            columns = [batch.column(number).to_pylist() for number in range(1, 6)]
            for partition, offset, timestamp_ms, running_ms, payload in zip(*columns, strict=True):
                found[partition][offset] = QueueEntry(offset, timestamp_ms, payload, running_ms)
        return [[of_one[offset] for offset in sorted(of_one)] for of_one in found]

    def read(self, info: ObjectInfo) -> StoredBatch:
        """Read what an object says of itself; raises as `read_object`."""
        return read_object(self._storage, info)

    def uri(self, key: str) -> str:
        """Return the URI of an object."""
        return self._storage.uri(key)

    def times(self) -> SavedTimes:
        """Return how far time had come at the last backup, or the last Batch."""
        batches = [parsed_key(some[-1]) for some in self.objects.values()]
        running = [each.running_ms for each in self.states]
        running += [each.running_ms for each in batches]
        wall = [*(each.wall_ms for each in self.states), *(each.sealed_ms for each in batches)]
        return SavedTimes(max(running, default=0), max(wall, default=0))


# -- what becomes of it ----------------------------------------------------------------------


def plan_topic(
    topic: Topic, bucket: Bucket, readable: Readable | str, outcome: RestoreOutcome
) -> TopicPlan | None:
    """Work out what a topic is to hold; None when its queue lacks nothing.

    Args:
        topic: the topic.
        bucket: has its Batches, and the backups.
        readable: what its queue has, or why that is nothing.
        outcome: to fill in.

    Raises:
        CorruptDataError: a notification of a backup cannot be understood.
        StorageError: the storage failed.
    """
    here = None if isinstance(readable, str) else readable
    entries = _entries(topic, bucket, here)
    if here is not None:
        lost = [set(some) for some in here.lost]
        more = sum(
            each.offset >= start
            for of_one, start in zip(entries, here.starts, strict=True)
            for each in of_one
        ) - sum(map(len, here.entries))
        if not more and not any(lost) and not here.incomplete:
            return None
        outcome.lost = sum(
            len(some - {each.offset for each in of_one})
            for some, of_one in zip(lost, entries, strict=True)
        )
        what = counted(more + outcome.lost, "notification is", "notifications are")
        outcome.reason = f"{what} damaged, or missing"
    else:
        outcome.reason = str(readable)
    outcome.action = "restore"
    state = bucket.backed_up.get(topic.queue_topic)
    named = {it.batch_id: it for it in map(_notification, itertools.chain(*entries))}
    oldest_ms = bucket.times().running_ms - topic.config.retention_ms
    starts, ends = _bounds(entries, here, state, oldest_ms)
    kept = {_notification(each).batch_id for each in itertools.chain(*entries)}
    objects = bucket.objects.get(topic.topic_id, [])
    there = {parsed_key(info).batch_id for info in objects}
    outcome.missing = len(kept - there)
    outcome.exact = sum(map(len, entries))
    later = _published_later(objects, named, bucket, oldest_ms, outcome)
    if later and state is None and not named:
        # Nothing says how far offsets had come. They are no more than a millisecond each has had.
        floor = later[-1].parsed.running_ms + GAP_LEAST
        starts, ends = [floor] * len(starts), [floor] * len(ends)
    elif later:
        gap = max(GAP_LEAST, GAP_PER_BATCH * (len(later) + outcome.given_up))
        ends = [end + gap for end in ends]
    _append(topic, later, entries, ends, bucket)
    outcome.later = len(later)
    groups = (state.groups if state else {}) | (here.groups if here else {})
    outcome.groups = sorted(groups)
    return TopicPlan(topic, entries, starts, ends, groups)


def _entries(topic: Topic, bucket: Bucket, here: Readable | None) -> list[list[QueueEntry]]:
    """Return what backups and the queue have at each offset; the queue knows better."""
    entries = bucket.entries(topic)
    if here is None:
        return entries
    merged = []
    for backed_up, readable in zip(entries, here.entries, strict=True):
        of_one = {each.offset: each for each in backed_up}
        of_one |= {each.offset: each for each in readable}
        merged.append([of_one[offset] for offset in sorted(of_one)])
    return merged


def _bounds(
    entries: list[list[QueueEntry]],
    here: Readable | None,
    state: BackedUp | None,
    oldest_ms: int,
) -> tuple[list[int], list[int]]:
    """Return the first offset of each read partition, and one past the last that was used.

    What retention had removed by the last backup goes from the entries, and what is too old now.
    """
    starts, ends = [], []
    for partition, of_one in enumerate(entries):
        known = [state.spans[partition]] if state is not None else []
        if here is not None:
            known.append(Span(here.starts[partition], here.ends[partition]))
        first = of_one[0].offset if of_one else 0
        start = max((each.start for each in known), default=first)
        end = max([each.end for each in known] + [each.offset + 1 for each in of_one[-1:]] + [0])
        expired = 0
        while expired < len(of_one) and (
            of_one[expired].offset < start or of_one[expired].running_ms < oldest_ms
        ):
            start = max(start, of_one[expired].offset + 1)
            expired += 1
        del of_one[:expired]
        starts.append(min(start, end))
        ends.append(end)
    return starts, ends


def _notification(entry: QueueEntry) -> Notification:
    return decode_notification(entry.payload)


def _published_later(
    objects: Sequence[ObjectInfo],
    named: dict[str, Notification],
    bucket: Bucket,
    oldest_ms: int,
    outcome: RestoreOutcome,
) -> list[StoredBatch]:
    """Find the Batches that may have been published after the last backup, by time of sealing."""
    known = _published_messages(named.values())
    found: list[StoredBatch] = []
    for info in reversed(objects):
        parsed = parsed_key(info)
        if parsed.batch_id in named or parsed.running_ms < oldest_ms:
            continue
        try:
            stored = bucket.read(info)
        except (CorruptDataError, ObjectNotFoundError) as exc:
            outcome.damaged.append(f"{info.key}: {exc}")
            continue
        entries = [
            (known[parsed.write_partition, each.producer_id, each.epoch], each.sequence)
            for each in stored.about.entries
        ]
        if any(sequence in of_producer for of_producer, sequence in entries):
            outcome.given_up += 1
            continue
        for of_producer, sequence in entries:
            of_producer.add(sequence, sequence + 1)
        found.append(stored)
    return found[::-1]


def _published_messages(
    notifications: Iterable[Notification],
) -> dict[tuple[int, str, int], IntervalSet]:
    """Return the sequences that were published, by write partition, producer and epoch."""
    known: dict[tuple[int, str, int], IntervalSet] = defaultdict(IntervalSet)
    for it in notifications:
        for run in it.producers:
            of_one = known[it.write_partition, run.producer_id, run.epoch]
            of_one.add(run.first, run.last + 1)
    return known


def _append(
    topic: Topic,
    later: Sequence[StoredBatch],
    entries: list[list[QueueEntry]],
    ends: list[int],
    bucket: Bucket,
) -> None:
    """Give Batches new offsets, each write partition's to its read partitions in turn."""
    turns: dict[int, Iterator[int]] = {}
    for stored in later:
        number = stored.parsed.write_partition
        if number not in turns:
            turns[number] = itertools.cycle(topic.config.read_partitions_of(number))
        partition = next(turns[number])
        payload = encode_notification(notification_of(stored, bucket.uri(stored.key)))
        times = (stored.parsed.sealed_ms, stored.parsed.running_ms)
        entries[partition].append(QueueEntry(ends[partition], times[0], payload, times[1]))
        ends[partition] += 1


# -- all of it -------------------------------------------------------------------------------


async def restore(
    bucket: Bucket,
    target: Target,
    *,
    topic: str | None,
    execute: bool,
    progress: Callable[[str, int], None],
) -> list[RestoreOutcome]:
    """Find what queue and catalog have lost, and bring it back when that is wanted.

    Args:
        bucket: has the Batches, and the backups.
        target: what is restored.
        topic: which topic; None for all, with users, rules and times.
        execute: whether to change anything.
        progress: is called with what is being counted, and how many there are so far.

    Raises:
        DataLossError: the bucket has nothing of the cluster, or not that topic.
        MemqError: a file or a service could not be read or written; running it again goes on.
    """
    if not bucket.objects and bucket.catalog is None:
        raise DataLossError(
            "the storage has neither Batches nor backups of this cluster. Correct the options "
            "storage and cluster_id (is its disk mounted?); if there never was any data, begin "
            "with an empty data directory"
        )
    if execute:
        level = bucket.catalog.level if bucket.catalog else MAX_LEVEL
        await target.catalog.save_level(max(level, target.least_level))
        await target.queue.save_times(bucket.times())
        if topic is None and bucket.catalog is not None:
            await target.catalog.save_access(bucket.catalog.access)
    outcomes: list[RestoreOutcome] = []
    for wanted, is_new in await _wanted(bucket, target, topic):
        outcome = RestoreOutcome(wanted.name, wanted.topic_id)
        readable = await target.queue.readable(wanted)
        plan = plan_topic(wanted, bucket, readable, outcome)
        if is_new:
            outcome.action, outcome.reason = "restore", "the catalog does not have it"
        if execute and plan is not None:
            await target.queue.restore(plan, progress)
        if execute and is_new:
            await target.catalog.save_topic(wanted)
        outcomes.append(outcome)
    if topic is not None and not outcomes:
        raise DataLossError(f"neither catalog nor backups know a topic {topic!r}")
    return outcomes


async def _wanted(bucket: Bucket, target: Target, name: str | None) -> list[tuple[Topic, bool]]:
    """List the topics that there are to be, and whether the catalog lacks them."""
    live = {each.name: each for each in await target.catalog.topics()}
    backed_up = {each.name: each for each in bucket.catalog.topics} if bucket.catalog else {}
    gone = await target.catalog.deleted()
    ids = {each.topic_id for each in (*live.values(), *backed_up.values())}
    since_ms = bucket.catalog.running_ms if bucket.catalog else -1
    younger = {
        bucket.names[topic_id]: _made_up(bucket, topic_id)
        for topic_id, objects in bucket.objects.items()
        if topic_id not in ids and parsed_key(objects[0]).running_ms > since_ms
    }  # others were deleted before the last backup
    return [
        (topic, each not in live)
        for each, topic in (younger | backed_up | live).items()
        if name in (None, each) and (each in live or topic.topic_id not in gone)
    ]


def _made_up(bucket: Bucket, topic_id: str) -> Topic:
    """Make the entry in the catalog of a topic of which only the Batches are known."""
    objects = bucket.objects[topic_id]
    stored = bucket.read(objects[-1])
    config = TopicConfig.create(
        bucket.names[topic_id],
        write_partitions=1 + max(parsed_key(each).write_partition for each in objects),
    )
    if schema_id(stored.schema) != schema_id(serialize_schema(DEFAULT_SCHEMA)):
        config = msgspec.structs.replace(config, schema=stored.schema)
    created_ms = parsed_key(objects[0]).sealed_ms
    return new_topic(config, (), now_ms=created_ms, topic_id=topic_id, request_id="")
