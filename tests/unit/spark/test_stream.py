"""How far a micro-batch goes: the oldest Batches first, within limits, and never stuck."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.core.notification.notification import PublishedBatch
from memq.errors import CorruptDataError
from memq.spark.admission import admit
from memq.spark.checkpoint import (
    StreamPosition,
    decode_checkpoint,
    encode_checkpoint,
)
from tests.unit.client.batches import Sent, notify, records, seal

BASE = notify(seal(Sent("p", 0, records(b"v"))))


def queue(sizes):
    """Batches of some sizes by read partition; the offsets of all grow with the time."""

    def batches_in_order(ranges):
        found = [
            PublishedBatch(
                partition,
                offset,
                offset,
                msgspec.structs.replace(BASE, size_bytes=sizes[partition][offset]),
            )
            for partition, start, end, _ in ranges
            for offset in range(start, end)
        ]
        return iter(sorted(found, key=lambda each: each.timestamp_ms))

    return batches_in_order


def fresh(*nexts):
    return {partition: StreamPosition(0, each) for partition, each in enumerate(nexts)}


def nexts(positions):
    return [positions[partition].next for partition in sorted(positions)]


def admit_one(start, ends, batches, **limits):
    """The next micro-batch of a stream of one topic."""
    return admit({"t": start}, {"t": ends}, {"t": batches}, **limits)["t"]


def test_without_limits_all_is_taken():
    """A micro-batch without limits goes to the end without reading a notification."""
    assert nexts(admit_one(fresh(0, 2), {0: 5, 1: 7}, None, max_offsets=None, max_bytes=None)) == [
        5,
        7,
    ]


def test_the_oldest_batches_come_first():
    """Under a limit of offsets the Batches are taken by the time of publication."""
    found = admit_one(
        fresh(0, 0), {0: 5, 1: 5}, queue([[1] * 5] * 2), max_offsets=5, max_bytes=None
    )

    assert nexts(found) == [3, 2]


def test_one_batch_is_taken_whatever_its_size():
    """A Batch above the limit of bytes does not stop the stream."""
    found = admit_one(fresh(0), {0: 3}, queue([[500, 1, 1]]), max_offsets=None, max_bytes=10)

    assert nexts(found) == [1]


@given(
    st.lists(st.lists(st.integers(1, 100), max_size=12), min_size=1, max_size=3),
    st.one_of(st.none(), st.integers(1, 8)),
    st.one_of(st.none(), st.integers(1, 250)),
)
def test_steps_reach_the_end_and_keep_the_limits(sizes, max_offsets, max_bytes):
    """Step by step everything is taken once, and each step keeps both limits."""
    batches = queue(sizes)
    ends = {partition: len(each) for partition, each in enumerate(sizes)}
    position = fresh(*[0] * len(sizes))
    while nexts(position) != list(ends.values()):
        after = admit_one(position, ends, batches, max_offsets=max_offsets, max_bytes=max_bytes)
        taken = [
            sizes[partition][offset]
            for partition in ends
            for offset in range(position[partition].next, after[partition].next)
        ]
        assert taken
        assert len(taken) <= (max_offsets or len(taken))
        assert len(taken) == 1 or sum(taken) <= (max_bytes or sum(taken))
        position = after


def test_positions_survive_a_checkpoint():
    """Positions come back from their JSON, sorted so that equal ones have equal texts."""
    standing = ("0123456789abcdef", {10: StreamPosition(3, 5), 2: StreamPosition(0, 0)})

    encoded = encode_checkpoint(*standing)

    assert list(encoded["partitions"]) == ["2", "10"]
    assert decode_checkpoint(encoded) == standing


@pytest.mark.parametrize(
    "found",
    [
        {"offset": 5},
        {"0": {"from": 0, "next": 5}},
        {"incarnation": "0123456789abcdef"},
        {"incarnation": "0123456789abcdef", "partitions": {"0": 5}},
        {"incarnation": "0123456789abcdef", "partitions": {"0": {"next": 5}}},
        {"incarnation": "0123456789abcdef", "partitions": {"x": {}}},
        {"incarnation": "", "partitions": {"0": {"from": 0, "next": 5}}},
        {"incarnation": 7, "partitions": {}},
        [1],
    ],
)
def test_a_foreign_checkpoint_is_refused(found):
    """A checkpoint of another source is named as such."""
    with pytest.raises(CorruptDataError, match="not a position of a memq stream"):
        decode_checkpoint(found)
