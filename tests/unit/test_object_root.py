"""Notifications as they are told: below the present root, by key, and otherwise untouched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from memq.broker.object_root import ObjectRoot
from memq.core.format.batch import ProducerRun
from memq.core.notification.notification import (
    Notification,
    decode_notification,
    encode_notification,
)
from memq.core.notification.queue import QueueEntry
from memq.core.storage.keys import BatchKey, object_key
from memq.core.storage.local import LocalStorage

KEY = object_key(BatchKey("memq", "clicks", "0" * 16, 3, 1_750_000_000_000, "batch-1", 7))


def root_at(folder):
    """The root of a storage whose folder is that one."""
    return ObjectRoot(LocalStorage(folder))


def notification(uri, producer_id="p"):
    """A notification whose object has that URI."""
    run = ProducerRun(producer_id=producer_id, epoch=0, first=0, last=1, records=2, crc_sum=9)
    return Notification(
        version=1,
        topic="clicks",
        incarnation="0" * 16,
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


def test_what_names_the_present_root_is_passed_on_untouched(tmp_path):
    """The usual notification is the very same bytes, and the same object."""
    payload = encode_notification(notification((tmp_path / KEY).as_uri()))
    assert root_at(tmp_path).present(payload) is payload


def test_nothing_but_the_uri_is_changed(tmp_path):
    """Fields that this broker does not know, and their order, are passed on."""
    fields = json.loads(encode_notification(notification(f"file:///old/{KEY}")))
    fields |= {"of_a_later_version": [1, {"uri": "file:///old"}]}
    found = json.loads(root_at(tmp_path).present(json.dumps(fields).encode()))
    assert list(found) == list(fields)
    assert found == fields | {"uri": (tmp_path / KEY).as_uri()}


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"uri": 7}',
        b'{"uri": "file:///old/no-key"}',
        b'{"uri":"file:///old/' + KEY.encode(),
    ],
)
def test_what_is_no_notification_of_a_batch_stays_as_it_is(tmp_path, payload):
    """The broker passes on what it cannot read: who reads it names what is wrong."""
    assert root_at(tmp_path).present(payload) is payload


async def test_a_longer_root_keeps_within_the_bound(tmp_path):
    """What a longer root brings over the bound is left for the next page; one entry always fits."""
    payload = encode_notification(notification(f"file:///o/{KEY}"))
    entries = [QueueEntry(offset, 0, payload) for offset in range(10)]
    root = root_at(tmp_path / ("x" * 200))
    one = len(root.present(payload))
    assert [e.offset for e in await root.served(entries, 3 * one)] == [0, 1, 2]
    assert [e.offset for e in await root.served(entries, 3 * one - 1)] == [0, 1]
    assert [e.offset for e in await root.served(entries, 1)] == [0]
    assert len(await root.served(entries, 10 * one)) == 10
