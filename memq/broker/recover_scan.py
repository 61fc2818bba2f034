"""What a data directory holds, looked at offline: objects, notifications, and what is lost of them.

Nothing here changes a topic. (Opening a read partition repairs what a crash left, as a start does.)
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from memq.bigqueue import BigArray
from memq.core.checksum import crc32c
from memq.core.format.batch import entries_range_us, producer_runs
from memq.core.format.reader import read_index
from memq.core.format.schema import schema_id
from memq.core.notification import (
    NOTIFICATION_VERSION,
    Notification,
    decode_notification,
)
from memq.core.ranges import IntervalSet
from memq.errors import CorruptDataError, ObjectNotFoundError
from memq.queue.embedded.read_partition import payload_of
from memq.storage.keys import BatchKey, key_of_uri, parse_object_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memq.core.format.index import BatchIndex
    from memq.queue.embedded.folders import TopicFile, TopicFolders
    from memq.storage.handler import ObjectInfo, StorageHandler


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
    """All Batch objects by topic and incarnation, in the order of sealing."""
    found: dict[tuple[str, str], list[tuple[int, str, ObjectInfo]]] = defaultdict(list)
    for count, info in enumerate(storage.list(""), 1):
        parsed = parse_object_key(info.key)
        if parsed is not None:
            place = (parsed.sealed_ms, parsed.batch_id, info)
            found[parsed.topic, parsed.incarnation].append(place)
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
    parsed = parse_object_key(info.key)
    assert parsed is not None  # noqa: S101 - `objects_by_topic` lists no others

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
    """The notification that was, or would have been, published for an object."""
    entries, parsed = stored.about.entries, stored.parsed
    least, greatest = entries_range_us(entries)
    return Notification(
        version=NOTIFICATION_VERSION,
        topic=parsed.topic,
        incarnation=parsed.incarnation,
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


def scan_queue(folders: TopicFolders, topic: str, file: TopicFile) -> TopicInQueue:
    """Read every notification of a topic of the queue."""
    state = TopicInQueue(groups=folders.groups(topic))
    try:
        for number in range(file.partitions):
            with open_partition(folders, topic, number) as array:
                for offset in range(array.start, array.end):
                    _scan_entry(array, LostEntry(number, offset), state)
    except CorruptDataError as exc:
        state.reason = str(exc)
    return state


def open_partition(folders: TopicFolders, topic: str, number: int) -> BigArray:
    """The array of a read partition.

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


class Unpublished:
    """Which Messages were taken, by their sequences, so that each is published once."""

    def __init__(self) -> None:
        self._taken: dict[tuple[int, str, int], IntervalSet] = defaultdict(IntervalSet)

    def take(self, stored: StoredBatch) -> int:
        """Take the Messages of an object; returns how many were in no object before it."""
        new = 0
        for entry in stored.about.entries:
            name = (stored.parsed.write_partition, entry.producer_id, entry.epoch)
            if entry.sequence not in self._taken[name]:
                self._taken[name].add(entry.sequence, entry.sequence + 1)
                new += 1
        return new


def readable(
    storage: StorageHandler,
    infos: list[ObjectInfo],
    schemas: dict[int, bytes],
    damaged: list[str],
) -> Iterator[StoredBatch]:
    """The objects whose index holds; what is wrong with the others goes into `damaged`.

    Raises:
        StorageError: the storage failed.
    """
    for info in infos:
        try:
            yield read_object(storage, info, schemas)
        except (CorruptDataError, ObjectNotFoundError) as exc:
            damaged.append(f"{info.key}: {exc}")
