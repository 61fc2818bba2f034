"""Notifications as they are told: below the present root, by key, and otherwise untouched."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

from hypothesis import example, given
from hypothesis import strategies as st

from memq.broker.object_root import ObjectRoot, look_for_objects
from memq.core.format.batch import ProducerRun
from memq.core.notification import (
    Notification,
    decode_notification,
    encode_notification,
)
from memq.core.queue import QueueEntry
from memq.core.topic import TopicConfig
from memq.errors import MemqError, StorageError
from memq.storage.keys import BatchKey, object_key
from memq.storage.local import LocalStorage
from memq.testing.storage import InMemoryStorage

KEY = object_key(BatchKey("memq", "clicks", "0" * 16, 3, 1_750_000_000_000, "batch-1", 7))


def root_at(folder):
    """The root of a storage whose folder is that one."""
    return ObjectRoot(LocalStorage(folder))


def notification(uri, producer_id="p"):
    """A notification whose object has that URI."""
    run = ProducerRun(producer_id=producer_id, epoch=0, first=0, last=1, records=2, crc_sum=9)
    return Notification(
        version=2,
        topic="clicks",
        topic_id="0" * 16,
        write_partition=3,
        batch_id="batch-1",
        uri=uri,
        size_bytes=1,
        index_offset=0,
        messages=2,
        records=2,
        min_timestamp_us=0,
        max_timestamp_us=0,
        producers=[run],
        schema_id="",
        broker_id="b",
        sealed_ms=0,
        stored_through_ms=0,
    )


def told(root, uri, **fields):
    """The URI that readers are told of a notification with this one."""
    return decode_notification(root.present(encode_notification(notification(uri, **fields)))).uri


PATHS = st.text(
    st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=20
).filter(lambda part: part not in (".", ".."))


@given(old=st.lists(PATHS, max_size=4), new=st.lists(PATHS, max_size=4), producer_id=st.text())
@example(old=["data", "objects"], new=["data"], producer_id="p")
@example(old=["data"], new=["data", "objects"], producer_id="p")
@example(old=["old"], new=["new"], producer_id='","uri":"file:///new/')
def test_every_object_is_told_below_the_present_root(old, new, producer_id):
    """Wherever a root was, and whatever its name, a key is told below the one there is now."""
    before = LocalStorage(Path("/", *old))
    now = LocalStorage(Path("/", *new))
    found = told(ObjectRoot(now), before.uri(KEY), producer_id=producer_id)
    assert found == now.uri(KEY)
    assert told(ObjectRoot(now), found, producer_id=producer_id) == found


def test_nothing_but_the_uri_is_changed(tmp_path):
    """Fields that this broker does not know, and their order, are passed on."""
    fields = json.loads(encode_notification(notification(f"file:///old/{KEY}")))
    fields |= {"of_a_later_version": [1, {"uri": "file:///old"}]}
    found = json.loads(root_at(tmp_path).present(json.dumps(fields).encode()))
    assert list(found) == list(fields)
    assert found == fields | {"uri": (tmp_path / KEY).as_uri()}


class Queue:
    """Notifications by topic and read partition; an error for a topic that cannot be asked."""

    def __init__(self, stored):
        self.stored = stored

    async def offsets(self, topic, partition):
        if isinstance(self.stored[topic], MemqError):
            raise self.stored[topic]
        found = self.stored[topic][partition]
        if isinstance(found, MemqError):
            raise found
        return found[0], found[0] + len(found[1])

    async def fetch(self, topic, partition, offset, *, max_entries, max_bytes):
        start, payloads = self.stored[topic][partition]
        payload = payloads[offset - start]
        if isinstance(payload, MemqError):
            raise payload
        return [QueueEntry(offset, 0, payload)]


class Storage(InMemoryStorage):
    """Objects that are there; some of which it cannot tell."""

    def __init__(self, keys, silent=()):
        super().__init__()
        self.silent, self.asked = silent, []
        for key in keys:
            self.put(key, [b"x"], timeout_s=1)

    def get_range(self, key, offset, length):
        self.asked.append(key)
        if key in self.silent:
            raise StorageError("does not say")
        return super().get_range(key, offset, length)


def key_of(number):
    """One of many keys."""
    return object_key(BatchKey("memq", "clicks", "0" * 16, 3, 1_750_000_000_000, f"b{number}", 7))


def stored(number):
    """The notification of an object."""
    return encode_notification(notification(f"file:///old/{key_of(number)}"))


def topics_of(*names, read_partitions=1):
    """Topics, of which the queue has those of the same name."""
    config = TopicConfig.create("t", read_partitions=read_partitions)
    return [SimpleNamespace(name=name, queue_topic=name, config=config) for name in names]


async def look(storage, queue, topics):
    """What is found."""
    with ThreadPoolExecutor(1) as executor:
        return await look_for_objects(ObjectRoot(storage), topics, queue, executor)


async def test_the_ends_of_each_read_partition_are_looked_for():
    """The newest first, then the oldest where that is another one; what is missing is named."""
    queue = Queue({"a": [(5, [stored(1), stored(2), stored(3)]), (0, [])], "b": [(7, [stored(4)])]})
    queue.stored["b"].append((0, [stored(5), stored(6)]))
    storage = Storage(map(key_of, (1, 3, 6)))
    found = await look(storage, queue, topics_of("a", "b", read_partitions=2))
    assert storage.asked == [key_of(number) for number in (3, 4, 6, 1, 5)]
    assert (found.looked_for, found.unknown) == (5, 0)
    assert [(each.topic, each.partition, each.offset) for each in found.missing] == [
        ("b", 0, 7),
        ("b", 1, 0),
    ]
    assert found.missing[0][3:] == (key_of(4), f"file:///old/{key_of(4)}")
    assert found.reasons() == []
