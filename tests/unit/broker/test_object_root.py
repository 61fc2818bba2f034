"""Notifications as they are told: below the present root, by key, and otherwise untouched."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from memq.broker.object_root import ObjectRoot, look_for_objects
from memq.core.format.batch import ProducerRun
from memq.core.notification import decode_notification, encode_notification
from memq.core.queue import Publication
from memq.core.topic import TopicConfig
from memq.storage.keys import BatchKey, object_key
from memq.storage.local import LocalStorage
from memq.testing.storage import InMemoryStorage
from tests.fakes.queue import InMemoryQueue
from tests.unit.client.audit.test_stored import NOTIFICATION

KEY = object_key(BatchKey("memq", "clicks", "0" * 16, 3, 1_750_000_000_000, "batch-1", 7))


def notification(uri, producer_id="p"):
    """A notification whose object has that URI."""
    run = ProducerRun(producer_id=producer_id, epoch=0, first=0, last=1, records=2, crc_sum=9)
    return msgspec.structs.replace(NOTIFICATION, uri=uri, producers=[run])


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
    found = json.loads(ObjectRoot(LocalStorage(tmp_path)).present(json.dumps(fields).encode()))
    assert list(found) == list(fields)
    assert found == fields | {"uri": (tmp_path / KEY).as_uri()}


class AskedStorage(InMemoryStorage):
    """Remembers what it was asked for."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def get_range(self, key, offset, length):
        self.asked.append(key)
        return super().get_range(key, offset, length)


def key_of(number):
    """One of many keys."""
    return object_key(BatchKey("memq", "clicks", "0" * 16, 3, 1_750_000_000_000, f"b{number}", 7))


async def test_the_ends_of_each_read_partition_are_looked_for():
    """The newest first, then the oldest where that is another one; what is missing is named."""
    queue, storage = InMemoryQueue(), AskedStorage()
    config = TopicConfig.create("t", read_partitions=2)
    topics = [SimpleNamespace(name=name, queue_topic=name, config=config) for name in "ab"]
    for name, partition, *numbers in (("a", 0, 1, 2, 3), ("b", 0, 7, 4), ("b", 1, 5, 6)):
        if name not in await queue.topics():
            await queue.create_topic(name, 2)
            await queue.fence(name, 0)
        for number in numbers:
            payload = encode_notification(notification(f"file:///old/{key_of(number)}"))
            await queue.publish(name, 0, [Publication(partition, payload, 0)])
    await queue.truncate("b", 0, 1)
    for number in (1, 3, 6):
        storage.put(key_of(number), [b"x"], timeout_s=1)
    with ThreadPoolExecutor(1) as executor:
        found = await look_for_objects(ObjectRoot(storage), topics, queue, executor)
    assert storage.asked == [key_of(number) for number in (3, 4, 6, 1, 5)]
    assert (found.looked_for, found.unknown) == (5, 0)
    assert [(each.topic, each.partition, each.offset) for each in found.missing] == [
        ("b", 0, 1),
        ("b", 1, 0),
    ]
    assert found.missing[0][3:] == (key_of(4), f"file:///old/{key_of(4)}")
    assert found.reasons() == []
