"""`memq recover`: rebuild, offline, what the queue has lost, from the indexes of the objects.

Theory of operation
-------------------
An object's key and index say all that its notification says, but its offset and the broker.

*Restore*. A lost notification is put back at its offset when an object proves it: one that no other
notification names, whose notification has the length and the CRC32C that the queue's index page
kept for that offset. Nothing else changes, so groups, checkpoints and ranges hold.

*Rebuild*. When that cannot be had for every lost one (index pages, a partition, the whole queue are
gone), nobody can say which offset a Batch had. So the topic gets a new incarnation, in which all of
its objects are published in the order of sealing. Whoever was somewhere in the earlier one is told
so (`TopicRecreatedError`) and begins anew.

*Adopt*. A topic that the catalog has lost is written into it again, with what queue and objects say
of it; its options are not known any more and are the defaults.

Once. An upload whose notification was never published, and the upload of the retry, hold the same
Messages. The first by time of sealing counts; what else is in the others goes into an object of its
own. So the rebuilt deduplication window is right: it has each acked Message, once.

A crash parts a rebuild anywhere without harm:

1. The new incarnation is announced as doomed, so what a crash leaves of it is removed later.
2. Its queue topic is filled; its objects are second names of the old ones, which takes no space.
3. The catalog's file is replaced: from here on the topic is the new incarnation.
4. The announcement is taken back. What is left of the old incarnation in the queue goes to
   `recovered/` in the data directory, and the old names of published objects are removed.

After a crash between 3 and 4 the next run does the rest. An object that could not be read keeps its
name and is never removed.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from memq.broker.catalog import Catalog
from memq.broker.recover_scan import (
    LostEntry,
    StoredBatch,
    TopicInQueue,
    Unpublished,
    notification_of,
    objects_by_topic,
    open_partition,
    readable,
    scan_queue,
)
from memq.core.format.batch import BatchBuilder
from memq.core.format.index import BatchIndex
from memq.core.format.message import TIMESTAMP_COLUMN
from memq.core.format.schema import DEFAULT_SCHEMA, schema_id, serialize_schema
from memq.core.governor.topics import Topic
from memq.core.notification import encode_notification
from memq.core.queue import Publication
from memq.core.topic import AUDIT_OPTIONS, AUDIT_TOPIC, INCARNATION_DIGITS, TopicConfig
from memq.core.units import counted
from memq.errors import (
    ConfigError,
    CorruptDataError,
    DataLossError,
    OffsetOutOfRangeError,
    QueueError,
    UnknownTopicError,
)
from memq.queue.embedded.folders import TopicFile, TopicFolders
from memq.queue.embedded.read_partition import (
    INDEX_PAGE_ITEMS,
    PAGE_BYTES,
    Partition,
    entry_bytes,
    times_of,
)
from memq.runtime.files import explain, lock_exclusively, make_folders, sync_folder
from memq.storage.keys import BatchKey, object_key, parse_object_key
from memq.storage.local import LocalStorage
from memq.storage.open import local_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from memq.bigqueue import BigArray
    from memq.core.format.index import IndexEntry
    from memq.runtime.system import Runtime
    from memq.storage.handler import ObjectInfo

Action = Literal["none", "restore", "rebuild", "adopt"]
RECOVERED = "recovered"
"""Folder of the data directory that takes what a rebuild has replaced."""
UNKNOWN_BROKER = "broker-1"  # the default name, for want of a notification that says another
PUT_TIMEOUT_S = 60.0
ADOPTED_RETENTION = "3650d"
APPEND_ENTRIES = 1_000  # notifications that are flushed together


@dataclass
class Outcome:
    """What was found of a topic, and what is, or would be, done about it.

    Attributes:
        topic: its name.
        incarnation: that it has, or gets.
        action: what is done.
        reason: why; empty when nothing is.
        sound: notifications that can be read.
        lost: notifications that cannot; of a queue that is gone they are not counted.
        objects: Batches in the storage.
        published: notifications that are put back, or published anew.
        messages: of these.
        records: of these.
        repeated: objects all of whose Messages are in others; they are left alone.
        rewritten: objects of which some Messages are in others; the rest gets an object of its own.
        unnamed: objects that no notification names, in a topic that is sound: orphans.
        damaged: objects whose index cannot be read, with the reason; they are left alone.
        groups: groups that had stored offsets, and begin anew when the topic is rebuilt.
        adopted: the catalog has lost it, so nobody knows its options any more (but for those of
            the audit topic, which are always the same).
    """

    topic: str
    incarnation: str
    action: Action = "none"
    reason: str = ""
    sound: int = 0
    lost: int = 0
    objects: int = 0
    published: int = 0
    messages: int = 0
    records: int = 0
    repeated: int = 0
    rewritten: int = 0
    unnamed: int = 0
    damaged: list[str] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    adopted: bool = False


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
        self._shared = objects != directory / "objects"
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
        if isinstance(file, CorruptDataError):
            return TopicInQueue(str(file))
        return scan_queue(self._folders, name, file)

    def topics(self, wanted: str | None) -> list[Topic]:
        """Every topic that catalog, queue or objects know, as it is or would be in the catalog.

        Beside a catalog, objects that nothing else knows are what a deletion has left, and in a
        storage of its own they may be another broker's: these are no topic unless it is wanted.
        """
        known = [self.catalog.get(name) for name in self.catalog.names()]
        gone = {topic.incarnation for topic in self.catalog.doomed()}
        names = {topic.name for topic in known}
        lost: dict[str, str] = {}
        in_queue = [name.rpartition(".")[::2] for name in self.in_queue]
        latest = sorted(self.objects, key=lambda name: self.objects[name][-1].modified_ms)
        # What the queue knows counts for more than what lies in the storage, and comes last.
        alone = not known and not self._shared
        by_objects = [each for each in latest if alone or each[0] == wanted]
        for topic, incarnation in (*by_objects, *in_queue):
            if topic and topic not in names and incarnation not in gone:
                lost |= {topic: incarnation}
        return known + [self._adopted(*name) for name in sorted(lost.items())]

    def recover(self, topic: Topic) -> Outcome:
        """Find what is wrong with a topic, and mend it when that is wanted.

        Raises:
            MemqError: a file could not be read or written.
        """
        infos = self.objects.get((topic.name, topic.incarnation), [])
        state = self.states.get(topic.queue_topic) or TopicInQueue(
            f"the queue has no {topic.queue_topic}"
        )
        outcome = Outcome(
            topic.name,
            topic.incarnation,
            sound=state.sound,
            lost=len(state.lost),
            objects=len(infos),
            groups=state.groups,
            adopted=topic.name not in self.catalog,
        )
        if topic.name in self.catalog.damaged:
            outcome.reason = str(self.catalog.damaged[topic.name])
            return outcome
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
            unnamed = self._unnamed(infos, state)
            outcome.unnamed = len(unnamed)
        if outcome.adopted:
            outcome.action, outcome.reason = "adopt", "the catalog has lost it"
            if self.execute:
                self.catalog.save(topic)
        if self.execute:
            self._tidy(topic)
        return outcome

    # -- restore ----------------------------------------------------------------------------

    def _unnamed(self, infos: list[ObjectInfo], state: TopicInQueue) -> list[ObjectInfo]:
        return [info for info in infos if _batch_id(info) not in state.batch_ids]

    def _prove(
        self, topic: Topic, infos: list[ObjectInfo], state: TopicInQueue, outcome: Outcome
    ) -> list[_Proof]:
        """The lost entries that objects prove, in the order of their places."""
        by_length: dict[int, list[tuple[bytes, StoredBatch]]] = {}
        for stored in self._read(self._unnamed(infos, state), outcome):
            for payload in self._payloads(stored):
                by_length.setdefault(len(payload), []).append((payload, stored))
        proofs: list[_Proof] = []
        for number, places in groupby(state.lost, key=lambda place: place.partition):
            with open_partition(self._folders, topic.queue_topic, number) as array:
                for place in places:
                    before = proofs[-1] if proofs else None
                    proofs += _proof(array, place, by_length, _times_before(array, place, before))
        return proofs

    def _payloads(self, stored: StoredBatch) -> Iterator[bytes]:
        """The notification that an object may have had, from any broker, at any root."""
        states = self.states.values()
        brokers = {UNKNOWN_BROKER}.union(*(state.brokers for state in states))
        own = self._storage.uri(stored.key).removesuffix(stored.key)
        for root in {own}.union(*(state.roots for state in states)):
            for broker in brokers:
                yield encode_notification(notification_of(stored, root + stored.key, broker))

    def _restore(self, topic: Topic, proofs: list[_Proof], outcome: Outcome) -> None:
        outcome.action = "restore"
        for proof in proofs:
            _count(outcome, proof.stored.about.entries)
        if not self.execute:
            return
        for number, group in groupby(proofs, key=lambda proof: proof.place.partition):
            with open_partition(self._folders, topic.queue_topic, number) as array:
                for count, proof in enumerate(group, 1):
                    array.restore(proof.place.offset, proof.item)
                    self._progress(f"notifications of partition {number} restored", count)

    # -- rebuild ----------------------------------------------------------------------------

    def _rebuild(self, old: Topic, infos: list[ObjectInfo], outcome: Outcome) -> None:
        outcome.action = "rebuild"
        if not self.objects:
            raise DataLossError(
                f"{self._objects_folder} is missing or empty: there is nothing to "
                f"rebuild {old.name!r} from. Put the folder back (is its disk mounted?). If there "
                "never was any data, begin with an empty data directory"
            )
        new = msgspec.structs.replace(
            old, incarnation=self._runtime.token_hex(INCARNATION_DIGITS // 2), request_id=""
        )
        if not self.execute:
            for _ in self._once(self._read(infos, outcome), outcome):
                pass
            return
        outcome.incarnation = new.incarnation
        self.catalog.announce(new)
        self._folders.load()  # makes the folders of a queue that is gone
        file = TopicFile(
            partitions=new.config.read_partitions,
            page_bytes=PAGE_BYTES,
            index_page_items=INDEX_PAGE_ITEMS,
        )
        self._folders.make(new.queue_topic, file)
        self._folders.show(new.queue_topic)
        taken = self._publish_all(new, file, self._once(self._read(infos, outcome), outcome))
        self.catalog.save(new)
        self.catalog.forget(new)
        self._set_aside(old.queue_topic)
        for key in taken:
            self._storage.delete(key)

    def _once(
        self, objects: Iterator[StoredBatch], outcome: Outcome
    ) -> Iterator[tuple[StoredBatch, list[IndexEntry]]]:
        """Each object with those of its Messages that no object before it had, if there are any."""
        unpublished = Unpublished()
        for stored in objects:
            entries = unpublished.take(stored)
            if not entries:
                outcome.repeated += 1
                continue
            outcome.rewritten += len(entries) < len(stored.about.entries)
            _count(outcome, entries)
            self._progress("notifications rebuilt", outcome.published)
            yield stored, entries

    def _publish_all(
        self,
        topic: Topic,
        file: TopicFile,
        objects: Iterator[tuple[StoredBatch, list[IndexEntry]]],
    ) -> list[str]:
        """Publish objects in a new incarnation; returns the keys that they had before."""
        sealed: dict[int, int] = {}  # Batches of each write partition
        taken: list[str] = []
        waiting: dict[int, list[Publication]] = {}
        with ExitStack() as closing:
            partitions = []
            for number in range(file.partitions):
                partition = Partition(
                    topic.queue_topic,
                    number,
                    self._folders.partition(topic.queue_topic, number),
                    clock_s=self._runtime.mono_s,
                )
                closing.callback(partition.close)
                partitions.append(partition)
            for stored, entries in objects:
                renamed = self._renamed(topic, stored, entries)
                taken.append(stored.key)
                write_partition = stored.parsed.write_partition
                share = topic.config.read_partitions_of(write_partition)
                number = share[sealed.get(write_partition, 0) % len(share)]
                sealed[write_partition] = sealed.get(write_partition, 0) + 1
                payload = encode_notification(
                    notification_of(renamed, self._storage.uri(renamed.key), UNKNOWN_BROKER)
                )
                publications = waiting.setdefault(number, [])
                times = (stored.parsed.sealed_ms, stored.parsed.running_ms)
                publications.append(Publication(number, payload, *times))
                if len(publications) >= APPEND_ENTRIES:
                    partitions[number].append(publications)
                    publications.clear()
            for number, publications in waiting.items():
                if publications:
                    partitions[number].append(publications)
        return taken

    def _renamed(self, topic: Topic, stored: StoredBatch, entries: list[IndexEntry]) -> StoredBatch:
        """The object under a key of the topic's incarnation, with only these Messages."""
        parsed = stored.parsed._replace(incarnation=topic.incarnation)
        if len(entries) == len(stored.about.entries):
            key = object_key(parsed)
            self._storage.link(stored.key, key)
            return stored._replace(key=key, parsed=parsed)
        return self._rewritten(parsed, stored, entries)

    def _rewritten(
        self, parsed: BatchKey, stored: StoredBatch, entries: list[IndexEntry]
    ) -> StoredBatch:
        """A new object with some Messages of another, byte for byte."""
        opened = parsed.batch_id[:12]  # so that it sorts among the others as the old one does
        batch_id = f"{opened}{self._runtime.token_hex(8)}"
        builder = BatchBuilder(
            stored.schema,
            batch_id=batch_id,
            topic=parsed.topic,
            write_partition=parsed.write_partition,
        )
        for entry in entries:
            body = self._storage.get_range(stored.key, entry.offset, entry.length)
            builder.add(
                memoryview(body),
                producer_id=entry.producer_id,
                epoch=entry.epoch,
                sequence=entry.sequence,
                records=entry.records,
                min_timestamp_us=entry.min_timestamp_us,
                max_timestamp_us=entry.max_timestamp_us,
                crc32c=entry.crc32c,
            )
        sealed = builder.seal()
        parsed = parsed._replace(batch_id=batch_id)
        key = object_key(parsed)
        self._storage.put(key, sealed.buffers, timeout_s=PUT_TIMEOUT_S)
        index = BatchIndex(sealed.metadata, list(sealed.entries), sealed.index_offset)
        return StoredBatch(key, parsed, sealed.size_bytes, index, stored.schema)

    def _read(self, infos: list[ObjectInfo], outcome: Outcome) -> Iterator[StoredBatch]:
        outcome.damaged = []
        return readable(self._storage, infos, self._schemas, outcome.damaged)

    # -- afterwards -------------------------------------------------------------------------

    def _set_aside(self, queue_topic: str) -> None:
        """Put what is left of an earlier incarnation in the queue into `recovered/`."""
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
        present = {_batch_id(i) for i in self.objects.get((topic.name, topic.incarnation), [])}
        doomed = {each.queue_topic for each in self.catalog.doomed()}
        for name in self.in_queue.keys() - doomed - {topic.queue_topic}:
            if name.rpartition(".")[0] == topic.name:
                self._set_aside(name)
        for (name, incarnation), infos in self.objects.items():
            if name != topic.name or incarnation == topic.incarnation:
                continue
            for info in infos:
                if _batch_id(info) in present:
                    self._storage.delete(info.key)

    # -- topics that the catalog has lost ---------------------------------------------------

    def _adopted(self, name: str, incarnation: str) -> Topic:
        """A topic as far as queue and objects know it; nobody knows its options."""
        infos = self.objects.get((name, incarnation), [])
        damaged: list[str] = []
        schemas: dict[str, bytes] = {}
        write_partitions, created_ms, time_column = 1, 0, TIMESTAMP_COLUMN
        for stored in readable(self._storage, infos, self._schemas, damaged):
            schemas.setdefault(schema_id(stored.schema), stored.schema)
            write_partitions = max(write_partitions, stored.parsed.write_partition + 1)
            created_ms = created_ms or stored.parsed.sealed_ms
            time_column = stored.about.metadata.time_column
        default = serialize_schema(DEFAULT_SCHEMA)
        file = self.in_queue.get(f"{name}.{incarnation}")
        # Until somebody says how long it is to be retained, nothing of it expires.
        options = AUDIT_OPTIONS if name == AUDIT_TOPIC else {"retention": ADOPTED_RETENTION}
        config = TopicConfig.create(
            name,
            **options,
            write_partitions=write_partitions,
            time_column=time_column,
            read_partitions=file.partitions if isinstance(file, TopicFile) else 1,
        )
        if schemas and schema_id(default) not in schemas:
            config = msgspec.structs.replace(config, schema=list(schemas.values())[-1])
        return Topic(
            config=config,
            schemas=schemas or {schema_id(default): default},
            created_ms=created_ms,
            incarnation=incarnation,
            named_partitions=write_partitions,
        )


def recover(
    directory: Path,
    *,
    storage: str = "",
    topic: str | None,
    execute: bool,
    runtime: Runtime,
    progress: Callable[[str, int], None],
) -> list[Outcome]:
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
        UnknownTopicError: nothing knows that topic.
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
        topics = [each for each in run.topics(topic) if topic in (None, each.name)]
        if topic is not None and not topics:
            raise UnknownTopicError(f"{directory} knows no topic {topic!r}, nor has objects of it")
        if not topics and storage and run.objects:
            names = ", ".join(sorted({name for name, _ in run.objects}))
            raise ConfigError(
                f"{directory} knows no topics, and the objects in {storage} may be another "
                f"broker's: name them one by one with --topic, out of {names}"
            )
        return [run.recover(each) for each in topics]


def _proof(
    array: BigArray,
    place: LostEntry,
    by_length: dict[int, list[tuple[bytes, StoredBatch]]],
    before: tuple[int, int],
) -> list[_Proof]:
    """The entry that was at a place, when there is an object to prove it."""
    length = array.length(place.offset) - len(entry_bytes(0, 0, b""))
    for payload, stored in by_length.get(length, []):
        timestamp_ms = max(before[0], stored.parsed.sealed_ms)
        item = entry_bytes(timestamp_ms, max(before[1], stored.parsed.running_ms), payload)
        if array.was(place.offset, item):
            return [_Proof(place, item, stored)]
    return []


def _times_before(array: BigArray, place: LostEntry, before: _Proof | None) -> tuple[int, int]:
    """The times of the entry before a place, as they never decrease; zeros when not known."""
    earlier = LostEntry(place.partition, place.offset - 1)
    if before is not None and before.place == earlier:
        return times_of(before.item)
    try:
        return times_of(array.get(earlier.offset))
    except (CorruptDataError, OffsetOutOfRangeError):
        return 0, 0


def _batch_id(info: ObjectInfo) -> str:
    parsed = parse_object_key(info.key)
    return "" if parsed is None else parsed.batch_id


def _count(outcome: Outcome, entries: list[IndexEntry]) -> None:
    outcome.published += 1
    outcome.messages += len(entries)
    outcome.records += sum(entry.records for entry in entries)
