from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.client.objects import decode
from memq.core.notification.notification import PublishedBatch
from memq.errors import SchemaMismatchError
from tests.unit.client.batches import Sent, notify, object_bytes, records, seal


def read(order, *messages):
    """The LogMessages of a Batch in an order."""
    sealed = seal(*messages)
    return decode(object_bytes(sealed), PublishedBatch(0, 0, 1, notify(sealed)), order).batch


MIXED = [
    Sent("q", 1, records(b"q1", times_us=[5])),
    Sent("p", 0, records(b"p00", b"p01", times_us=[9, 1])),
    Sent("q", 0, records(b"q0", times_us=[7])),
    Sent("p", 0, records(b"P0", times_us=[0]), epoch=1),
]


def test_none_keeps_the_order_of_the_batch():
    """Without an order LogMessages come as the broker received them."""
    assert [m.value for m in read("none", *MIXED)] == [b"q1", b"p00", b"p01", b"q0", b"P0"]


def test_producer_order():
    """By producer, epoch and sequence, whatever the timestamps; in a Message as it was sent."""
    batch = read("producer", *MIXED)
    assert [m.value for m in batch] == [b"p00", b"p01", b"P0", b"q0", b"q1"]
    assert [(m.producer_id, m.epoch, m.sequence, m.position) for m in batch] == [
        ("p", 0, 0, 0),
        ("p", 0, 0, 1),
        ("p", 1, 0, 0),
        ("q", 0, 0, 0),
        ("q", 0, 1, 0),
    ]
    assert batch.to_arrow()["value"].to_pylist() == [m.value for m in batch]


def test_key_order():
    """By key, then time; equal ones stay as they stood; those without a key come last."""
    batch = read(
        "key",
        Sent("q", 4, records(b"0", b"1", b"2", keys=[b"b", None, b"a"], times_us=[5, 1, 9])),
        Sent("p", 2, records(b"3", b"4", keys=[b"a", b"b"], times_us=[9, 4])),
    )
    assert [m.value for m in batch] == [b"2", b"3", b"4", b"0", b"1"]
    assert [(m.producer_id, m.sequence, m.position) for m in batch] == [
        ("q", 4, 2),
        ("p", 2, 0),
        ("p", 2, 1),
        ("q", 4, 0),
        ("q", 4, 1),
    ]
    assert batch.to_arrow()["value"].to_pylist() == [b"2", b"3", b"4", b"0", b"1"]
    assert len(batch) == 5


row = st.tuples(st.none() | st.sampled_from([b"", b"a", b"b", b"ba"]), st.integers(0, 3))


@given(messages=st.lists(st.lists(row, min_size=1, max_size=6), min_size=1, max_size=4))
def test_key_order_is_a_stable_sort(messages):
    """Any Batch comes as a stable sort by key and time would have it, with its origins."""
    number = iter(range(1000))
    sent = [
        Sent(
            "p",
            sequence,
            records(
                *[b"%d" % next(number) for _ in rows],
                keys=[key for key, _ in rows],
                times_us=[time for _, time in rows],
            ),
        )
        for sequence, rows in enumerate(messages)
    ]
    plain, ordered = list(read("none", *sent)), list(read("key", *sent))
    assert ordered == sorted(plain, key=lambda m: (m.key is None, m.key or b"", m.timestamp_us))


def test_key_order_of_a_typed_topic():
    """A typed topic is sorted by its own column `key`, of whatever type that can be sorted."""
    rows = pa.record_batch({"key": [3, None, 1], "x": ["c", "n", "a"]})
    assert [m.value["x"] for m in read("key", Sent("p", 0, rows))] == ["a", "c", "n"]


def test_key_order_needs_a_key():
    """Without a column `key` the error names the columns that there are."""
    with pytest.raises(SchemaMismatchError, match=r"needs a column 'key'; there are \['x'\]"):
        read("key", Sent("p", 0, pa.record_batch({"x": [1]})))
