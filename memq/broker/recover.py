"""`memq recover`: rebuild, offline, what the queue has lost, from the indexes of the objects.

Theory of operation
-------------------
An object's key and index say all that its notification says, but its offset and the broker.

*Restore*. A lost notification is put back at its offset when an object proves it: one that no other
notification names, whose notification has the length and the CRC32C that the queue's index page
kept for that offset. Nothing else changes, so groups, checkpoints and ranges hold.

*Rebuild*. When that cannot be had for every lost one (index pages, a partition, the whole queue are
gone), nobody can say which offset a Batch had. So the topic gets a new topic id, in which all of
its objects are published in the order of sealing. Readers of the earlier one are told so
(`TopicRecreatedError`) and start over.

Once. An upload whose notification was never published, and the upload of the retry, hold the same
Messages. The first by time of sealing counts, and an object all of whose Messages are in others is
left alone. So the rebuilt deduplication window is right: it has each acked Message, once. Where an
object has some of its Messages alone the rebuild is refused, before anything is changed.

A crash parts a rebuild anywhere without harm:

1. The new topic id is announced as doomed, so what a crash leaves of it is removed later.
2. Its queue topic is filled; its objects are second names of the old ones, which takes no space.
3. The catalog's file is replaced: from here on the topic is the new topic id.
4. The announcement is taken back. What is left of the old topic id in the queue goes to
   `recovered/` in the data directory, and the old names of published objects are removed.

After a crash between 3 and 4 the next run does the rest. An object that could not be read keeps its
name and is never removed.
"""

from __future__ import annotations

import itertools
import os
from collections import defaultdict
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from memq.bigqueue import BigArray
from memq.broker.catalog import Catalog
from memq.core.checksum import crc32c
from memq.core.format.batch import entries_range_us, producer_runs
from memq.core.format.reader import read_index
from memq.core.format.schema import schema_id
from memq.core.notification import (
    NOTIFICATION_VERSION,
    Notification,
    decode_notification,
    encode_notification,
)
from memq.core.queue import Publication
from memq.core.ranges import IntervalSet
from memq.core.topic import TOPIC_ID_DIGITS
from memq.core.units import counted
from memq.errors import (
    ConfigError,
    CorruptDataError,
    DataLossError,
    ObjectNotFoundError,
    OffsetOutOfRangeError,
    QueueError,
)
from memq.queue.embedded.folders import TopicFile, TopicFolders
from memq.queue.embedded.read_partition import (
    INDEX_PAGE_ITEMS,
    PAGE_BYTES,
    Partition,
    entry_bytes,
    payload_of,
    times_of,
)
from memq.runtime.files import explain, lock_exclusively, make_folders, sync_folder
from memq.storage.keys import BatchKey, key_of_uri, object_key, parse_object_key
from memq.storage.local import LocalStorage
from memq.storage.open import local_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from memq.core.format.index import BatchIndex
    from memq.core.governor.topics import Topic
    from memq.runtime.system import Runtime
    from memq.storage.handler import ObjectInfo, StorageHandler

Action = Literal["none", "restore", "rebuild"]
RECOVERED = "recovered"
"""Folder of the data directory that takes what a rebuild has replaced."""
UNKNOWN_BROKER = "broker-1"  # the default name, for want of a notification that says another
APPEND_ENTRIES = 1_000  # notifications that are flushed together


# -- what there is; nothing here changes a topic (opening a partition repairs what a crash left) --


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


class LostEntry(NamedTuple):
    """An offset whose notification cannot be read."""

    partition: int
    offset: int


@dataclass
class TopicInQueue:
    """What the queue holds of one topic.

    Attributes:
        reason: why it cannot be opened; empty when it can.
        batch_ids: of the Batches that notifications name.
        brokers: who has sealed them.
        roots: where their objects lie: what their URIs have before the key.
        sound: notifications that can be read.
        lost: offsets that cannot.
        groups: groups with stored offsets.
    """

    reason: str = ""
    batch_ids: set[str] = field(default_factory=set)
    brokers: set[str] = field(default_factory=set)
    roots: set[str] = field(default_factory=set)
    sound: int = 0
    lost: list[LostEntry] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)


def objects_by_topic(
    storage: StorageHandler, progress: Callable[[str, int], None]
) -> dict[tuple[str, str], list[ObjectInfo]]:
    """Group all Batch objects by topic and topic id, in the order of sealing."""
    found: dict[tuple[str, str], list[tuple[int, str, ObjectInfo]]] = defaultdict(list)
    for count, info in enumerate(storage.list(""), 1):
        parsed = parse_object_key(info.key)
        if parsed is not None:
            place = (parsed.sealed_ms, parsed.batch_id, info)
            found[parsed.topic, parsed.topic_id].append(place)
        progress("objects found", count)
    return {name: [info for _, _, info in sorted(places)] for name, places in found.items()}


def read_object(
    storage: StorageHandler, info: ObjectInfo, schemas: dict[int, bytes]
) -> StoredBatch:
    """Read what an object says of itself.

    Args:
        storage: holds it.
        info: of the object.
        schemas: serialized schemas that were read before, by CRC32C.

    Raises:
        CorruptDataError: its index, or its schema, does not hold.
        StorageError: the storage failed.
    """
    parsed = _parsed(info)

    def get_range(start: int, length: int) -> memoryview:
        return memoryview(storage.get_range(info.key, start, length))

    index = read_index(get_range, info.size_bytes)
    metadata = index.metadata
    said = (metadata.topic, metadata.write_partition, metadata.batch_id)
    if said != (parsed.topic, parsed.write_partition, parsed.batch_id):
        raise CorruptDataError(f"{info.key} holds another Batch: {said}")
    schema = schemas.get(metadata.schema_crc32c)
    if schema is None:
        schema = bytes(get_range(0, index.schema_length))
        if crc32c(schema) != metadata.schema_crc32c:
            raise CorruptDataError(f"{info.key}: its schema message is damaged")
        schemas[metadata.schema_crc32c] = schema
    return StoredBatch(info.key, parsed, info.size_bytes, index, schema)


def notification_of(stored: StoredBatch, uri: str, broker_id: str) -> Notification:
    """Rebuild the notification that was, or would have been, published for an object."""
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
        broker_id=broker_id,
        sealed_ms=parsed.sealed_ms,
        stored_through_ms=parsed.sealed_ms,
    )


def open_partition(folders: TopicFolders, topic: str, number: int) -> BigArray:
    """Open the array of a read partition.

    Raises:
        CorruptDataError: it is missing, or its metadata is damaged.
        QueueError: the file system refused.
    """
    return BigArray(
        folders.partition(topic, number),
        create=False,
        sync="batch",
        least_end=folders.committed_end(topic, number),
    )


def _scan_entry(array: BigArray, place: LostEntry, state: TopicInQueue) -> None:
    try:
        notification = decode_notification(payload_of(array.get(place.offset)))
    except CorruptDataError:
        state.lost.append(place)
    else:
        state.sound += 1
        state.batch_ids.add(notification.batch_id)
        state.brokers.add(notification.broker_id)
        uri = notification.uri
        state.roots.add(uri.removesuffix(key_of_uri(uri)))


# -- what becomes of it ----------------------------------------------------------------------


@dataclass
class RecoveryOutcome:
    """What was found of a topic, and what is, or would be, done about it.

    Attributes:
        topic: its name.
        topic_id: that it has, or gets.
        action: what is done.
        reason: why; empty when nothing is.
        sound: notifications that can be read.
        lost: notifications that cannot; of a queue that is gone they are not counted.
        objects: Batches in the storage.
        published: notifications that are put back, or published again.
        messages: of these.
        records: of these.
        repeated: objects all of whose Messages are in others; they are left alone.
        unnamed: objects that no notification names, in a topic that is sound: orphans.
        damaged: objects whose index cannot be read, with the reason; they are left alone.
        groups: groups that had stored offsets, and start over when the topic is rebuilt.
    """

    topic: str
    topic_id: str
    action: Action = "none"
    reason: str = ""
    sound: int = 0
    lost: int = 0
    objects: int = 0
    published: int = 0
    messages: int = 0
    records: int = 0
    repeated: int = 0
    unnamed: int = 0
    damaged: list[str] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)


class _Proof(NamedTuple):
    """An entry of the queue as it was."""

    place: LostEntry
    item: bytes
    stored: StoredBatch


class _Recovery:
    """One run over a data directory, which it has locked."""

    def __init__(
        self,
        directory: Path,
        objects: Path,
        *,
        execute: bool,
        runtime: Runtime,
        progress: Callable[[str, int], None],
    ) -> None:
        self.directory = directory
        self._objects_folder = objects
        self.execute = execute
        self._runtime = runtime
        self._progress = progress
        self._storage = LocalStorage(objects, runtime=runtime)
        self._folders = TopicFolders(directory / "queue")
        self._schemas: dict[int, bytes] = {}
        self.catalog = Catalog(directory / "topics")
        self.in_queue = self._folders.load() if (directory / "queue" / "topics").is_dir() else {}
        self.objects = objects_by_topic(self._storage, progress)
        self.states: dict[str, TopicInQueue] = {}
        for count, (name, file) in enumerate(self.in_queue.items(), 1):
            self.states[name] = self._scan(name, file)
            progress("topics of the queue read", count)

    def _scan(self, name: str, file: TopicFile | CorruptDataError) -> TopicInQueue:
        """Read every notification of a topic of the queue."""
        if isinstance(file, CorruptDataError):
            return TopicInQueue(str(file))
        state = TopicInQueue(groups=self._folders.groups(name))
        try:
            for number in range(file.partitions):
                with open_partition(self._folders, name, number) as array:
                    for offset in range(array.start, array.end):
                        _scan_entry(array, LostEntry(number, offset), state)
        except CorruptDataError as exc:
            state.reason = str(exc)
        return state

    def recover(self, topic: Topic) -> RecoveryOutcome:
        """Find what is wrong with a topic, and mend it when that is wanted.

        Raises:
            MemqError: a file could not be read or written.
        """
        infos = self.objects.get((topic.name, topic.topic_id), [])
        state = self.states.get(topic.queue_topic) or TopicInQueue(
            f"the queue has no {topic.queue_topic}"
        )
        outcome = RecoveryOutcome(
            topic.name,
            topic.topic_id,
            sound=state.sound,
            lost=len(state.lost),
            objects=len(infos),
            groups=state.groups,
        )
        if state.reason or state.lost:
            outcome.reason = state.reason or counted(
                len(state.lost), "notification is damaged", "notifications are damaged"
            )
            proofs = [] if state.reason else self._prove(topic, infos, state, outcome)
            if proofs and len(proofs) == len(state.lost):
                self._restore(topic, proofs, outcome)
            else:
                self._rebuild(topic, infos, outcome)
                return outcome
        else:
            outcome.unnamed = len(self._unnamed(infos, state))
        if self.execute:
            self._tidy(topic)
        return outcome

    # -- restore ----------------------------------------------------------------------------

    def _unnamed(self, infos: list[ObjectInfo], state: TopicInQueue) -> list[ObjectInfo]:
        return [info for info in infos if _parsed(info).batch_id not in state.batch_ids]

    def _prove(
        self, topic: Topic, infos: list[ObjectInfo], state: TopicInQueue, outcome: RecoveryOutcome
    ) -> list[_Proof]:
        """Find the lost entries that objects prove, in the order of their places."""
        by_length: dict[int, list[tuple[bytes, StoredBatch]]] = {}
        for stored in self._read(self._unnamed(infos, state), outcome):
            for payload in self._payloads(stored):
                by_length.setdefault(len(payload), []).append((payload, stored))
        proofs: list[_Proof] = []
        for number, places in itertools.groupby(state.lost, key=lambda place: place.partition):
            with open_partition(self._folders, topic.queue_topic, number) as array:
                for place in places:
                    before = proofs[-1] if proofs else None
                    proofs += _proof(array, place, by_length, _times_before(array, place, before))
        return proofs

    def _payloads(self, stored: StoredBatch) -> Iterator[bytes]:
        """Yield each notification that an object may have had, from any broker, at any root."""
        states = self.states.values()
        brokers = {UNKNOWN_BROKER}.union(*(state.brokers for state in states))
        own = self._storage.uri(stored.key).removesuffix(stored.key)
        for root in {own}.union(*(state.roots for state in states)):
            for broker in brokers:
                yield encode_notification(notification_of(stored, root + stored.key, broker))

    def _restore(self, topic: Topic, proofs: list[_Proof], outcome: RecoveryOutcome) -> None:
        outcome.action = "restore"
        for proof in proofs:
            _count(outcome, proof.stored)
        if not self.execute:
            return
        for number, group in itertools.groupby(proofs, key=lambda proof: proof.place.partition):
            with open_partition(self._folders, topic.queue_topic, number) as array:
                for count, proof in enumerate(group, 1):
                    array.restore(proof.place.offset, proof.item)
                    self._progress(f"notifications of partition {number} restored", count)

    # -- rebuild ----------------------------------------------------------------------------

    def _rebuild(self, old: Topic, infos: list[ObjectInfo], outcome: RecoveryOutcome) -> None:
        outcome.action = "rebuild"
        if not self.objects:
            raise DataLossError(
                f"{self._objects_folder} is missing or empty: there is nothing to "
                f"rebuild {old.name!r} from. Put the folder back (is its disk mounted?). If there "
                "never was any data, begin with an empty data directory"
            )
        new = msgspec.structs.replace(
            old, topic_id=self._runtime.token_hex(TOPIC_ID_DIGITS // 2), request_id=""
        )
        taken: set[str] = set()
        for stored in self._once(self._read(infos, outcome), outcome):
            _count(outcome, stored)
            taken.add(stored.key)
        if not self.execute:
            return
        outcome.topic_id = new.topic_id
        self.catalog.announce(new)
        self._folders.load()  # makes the folders of a queue that is gone
        file = TopicFile(
            partitions=new.config.read_partitions,
            page_bytes=PAGE_BYTES,
            index_page_items=INDEX_PAGE_ITEMS,
        )
        self._folders.make(new.queue_topic, file)
        self._folders.show(new.queue_topic)
        self._publish_all(new, [info for info in infos if info.key in taken])
        self.catalog.save(new)
        self.catalog.forget(new)
        self._set_aside(old.queue_topic)
        for key in taken:
            self._storage.delete(key)

    def _once(
        self, objects: Iterator[StoredBatch], outcome: RecoveryOutcome
    ) -> Iterator[StoredBatch]:
        """Select the objects whose Messages no object before them had.

        Raises:
            DataLossError: an object has some Messages alone, and shares others.
        """
        known: dict[tuple[int, str, int], IntervalSet] = defaultdict(IntervalSet)
        for stored in objects:
            messages, new = len(stored.about.entries), 0
            for entry in stored.about.entries:
                sequences = known[stored.parsed.write_partition, entry.producer_id, entry.epoch]
                if entry.sequence not in sequences:
                    sequences.add(entry.sequence, entry.sequence + 1)
                    new += 1
            if 0 < new < messages:
                raise DataLossError(
                    f"{stored.key} shares {messages - new} of its {messages} Messages with objects "
                    f"sealed before it, so {outcome.topic!r} cannot be rebuilt; nothing of it has "
                    "changed. Move the object away, recover again, and send what only it has once "
                    "more"
                )
            outcome.repeated += not new
            if new:
                yield stored

    def _publish_all(self, topic: Topic, infos: list[ObjectInfo]) -> None:
        """Publish objects in a new topic id, each write partition's to its shares in turn."""
        turns: dict[int, Iterator[int]] = {}
        published: dict[int, list[ObjectInfo]] = defaultdict(list)
        for info in infos:
            write_partition = _parsed(info).write_partition
            if write_partition not in turns:
                share = topic.config.read_partitions_of(write_partition)
                turns[write_partition] = itertools.cycle(share)
            published[next(turns[write_partition])].append(info)
        for number, mine in published.items():
            folder = self._folders.partition(topic.queue_topic, number)
            partition = Partition(topic.queue_topic, number, folder, clock_s=self._runtime.mono_s)
            with closing(partition):
                for start in range(0, len(mine), APPEND_ENTRIES):
                    self._progress(f"notifications of partition {number} rebuilt", start)
                    some = mine[start : start + APPEND_ENTRIES]
                    partition.append([self._publication(topic, number, each) for each in some])

    def _publication(self, topic: Topic, number: int, info: ObjectInfo) -> Publication:
        """Give an object a second key, in the topic id, and make its notification."""
        stored = read_object(self._storage, info, self._schemas)
        parsed = stored.parsed._replace(topic_id=topic.topic_id)
        key = object_key(parsed)
        self._storage.link(stored.key, key)
        stored = stored._replace(key=key, parsed=parsed)
        notification = notification_of(stored, self._storage.uri(key), UNKNOWN_BROKER)
        payload = encode_notification(notification)
        return Publication(number, payload, parsed.sealed_ms, parsed.running_ms)

    def _read(self, infos: list[ObjectInfo], outcome: RecoveryOutcome) -> Iterator[StoredBatch]:
        """Read the objects whose index holds; the outcome tells what is wrong with the others."""
        outcome.damaged = []
        for info in infos:
            try:
                yield read_object(self._storage, info, self._schemas)
            except (CorruptDataError, ObjectNotFoundError) as exc:
                outcome.damaged.append(f"{info.key}: {exc}")

    # -- afterwards -------------------------------------------------------------------------

    def _set_aside(self, queue_topic: str) -> None:
        """Put what is left of an earlier topic id in the queue into `recovered/`."""
        source = self.directory / "queue" / "topics" / queue_topic
        target = self.directory / RECOVERED / queue_topic
        if not source.exists():
            return
        try:
            make_folders(target.parent)
            source.rename(target)
            sync_folder(source.parent)
            sync_folder(target.parent)
        except OSError as exc:
            raise QueueError(f"cannot move {source} to {target}: {explain(exc)}") from exc

    def _tidy(self, topic: Topic) -> None:
        """Do what a crash kept an earlier rebuild from: old names and the old queue topic go."""
        present = {_parsed(i).batch_id for i in self.objects.get((topic.name, topic.topic_id), [])}
        doomed = {each.queue_topic for each in self.catalog.doomed()}
        for name in self.in_queue.keys() - doomed - {topic.queue_topic}:
            if name.rpartition(".")[0] == topic.name:
                self._set_aside(name)
        for (name, topic_id), infos in self.objects.items():
            if name != topic.name or topic_id == topic.topic_id:
                continue
            for info in infos:
                if _parsed(info).batch_id in present:
                    self._storage.delete(info.key)


def recover(
    directory: Path,
    *,
    storage: str = "",
    topic: str | None,
    execute: bool,
    runtime: Runtime,
    progress: Callable[[str, int], None],
) -> list[RecoveryOutcome]:
    """Find what a data directory has lost, and mend it when that is wanted.

    Args:
        directory: of a broker that is stopped.
        storage: URI of its storage, a folder of this machine; empty for `objects` in `directory`.
        topic: which topic; None for all.
        execute: whether to change anything.
        runtime: chance, for new names.
        progress: is called with what is being counted, and how many there are so far.

    Raises:
        LockedError: a broker uses the directory.
        ConfigError: it is no data directory, or the storage is no folder.
        UnknownTopicError: the catalog does not know that topic.
        CorruptDataError: the file of the topic in the catalog is damaged.
        DataLossError: what is left cannot be recovered; the error names the way out.
        MemqError: a file could not be read or written; running it again goes on.
    """
    objects = local_folder(storage) if storage else directory / "objects"
    if objects is None:
        raise ConfigError(
            f"storage {storage!r} is no folder of this machine: it cannot be recovered"
        )
    folders = (directory / "topics", directory / "queue", objects)
    if not any(folder.is_dir() for folder in folders):
        raise ConfigError(
            f"{directory} is no data directory: it has neither topics nor queue nor objects"
        )
    with ExitStack() as locked:
        queue = directory / "queue"
        if execute:
            make_folders(queue)
        if queue.is_dir():
            locked.callback(os.close, lock_exclusively(queue / "lock"))
        run = _Recovery(directory, objects, execute=execute, runtime=runtime, progress=progress)
        if topic is not None:
            return [run.recover(run.catalog.get(topic))]
        names, damaged = run.catalog.names(), run.catalog.damaged
        if not names and not damaged:
            raise DataLossError(
                f"{directory / 'topics'} is missing or empty, and only it has the options of "
                "topics. Put it back, or recreate it (docs/operations.md, Topics lost)"
            )
        left_alone = [
            RecoveryOutcome(name, "", reason=str(error)) for name, error in damaged.items()
        ]
        return [*left_alone, *(run.recover(run.catalog.get(name)) for name in names)]


def _proof(
    array: BigArray,
    place: LostEntry,
    by_length: dict[int, list[tuple[bytes, StoredBatch]]],
    before: tuple[int, int],
) -> list[_Proof]:
    """Return the entry that was at a place, when there is an object to prove it."""
    length = array.length(place.offset) - len(entry_bytes(0, 0, b""))
    for payload, stored in by_length.get(length, []):
        timestamp_ms = max(before[0], stored.parsed.sealed_ms)
        item = entry_bytes(timestamp_ms, max(before[1], stored.parsed.running_ms), payload)
        if array.was(place.offset, item):
            return [_Proof(place, item, stored)]
    return []


def _times_before(array: BigArray, place: LostEntry, before: _Proof | None) -> tuple[int, int]:
    """Return the times of the entry before a place; zeros when not known."""
    earlier = LostEntry(place.partition, place.offset - 1)
    if before is not None and before.place == earlier:
        return times_of(before.item)
    try:
        return times_of(array.get(earlier.offset))
    except (CorruptDataError, OffsetOutOfRangeError):
        return 0, 0


def _parsed(info: ObjectInfo) -> BatchKey:
    parsed = parse_object_key(info.key)
    assert parsed is not None  # noqa: S101 - `objects_by_topic` lists no others
    return parsed


def _count(outcome: RecoveryOutcome, stored: StoredBatch) -> None:
    entries = stored.about.entries
    outcome.published += 1
    outcome.messages += len(entries)
    outcome.records += sum(entry.records for entry in entries)
