"""Where a stream stands: its checkpoint, and micro-batches of the oldest Batches first."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.core.notification import PublishedBatch
from memq.errors import CorruptDataError
from memq.spark.positions import (
    Gate,
    StreamPosition,
    TopicPosition,
    admit,
    available,
    decode_topics,
    encode_topics,
)
from tests.unit.reading.batches import Sent, notify, records, seal

LIFE, OTHER = "0123456789abcdef", "fedcba9876543210"
NAMES = {LIFE: "a", OTHER: "b"}


def test_checkpoints_of_one_topic_and_of_several():
    """Each form comes back as it was, and the form of one topic finds its name."""
    one = {"a": TopicPosition(LIFE, {0: StreamPosition(1, 2, 2)})}
    several = one | {"b": TopicPosition(OTHER, {0: StreamPosition(0, 5)})}

    assert "topics" not in encode_topics(one, "a")
    assert decode_topics(encode_topics(one, "a"), NAMES, "") == one
    assert decode_topics(encode_topics(one, "a"), {}, "x") == {"x": one["a"]}
    assert decode_topics(encode_topics(several, ""), NAMES, "") == several


def test_equal_positions_have_equal_texts():
    """Spark compares them as text: read partitions are sorted by their numbers."""
    encoded = encode_topics(
        {"a": TopicPosition(LIFE, {10: StreamPosition(3, 5), 2: StreamPosition(0, 0, 1)})}, "a"
    )

    assert list(encoded["partitions"].items()) == [
        ("2", {"from": 0, "next": 0, "told": 1}),
        ("10", {"from": 3, "next": 5}),
    ]


@pytest.mark.parametrize(
    "found",
    [
        {"offset": 5},
        {"topic_id": LIFE},
        {"topic_id": LIFE, "partitions": {"0": {"next": 5}}},
        {"topic_id": LIFE, "partitions": {"x": {}}},
        {"topic_id": "", "partitions": {"0": {"from": 0, "next": 5}}},
        [1],
        {"topics": {"a": {"partitions": {}}}},
    ],
)
def test_a_foreign_checkpoint_is_refused(found):
    """A checkpoint of another source is named as such."""
    with pytest.raises(CorruptDataError, match="not a position of a memq stream"):
        decode_topics(found, NAMES, "")


BASE = notify(seal(Sent("p", 0, records(b"v"))))


def in_order(partitions):
    """Batches by read partition, as (offset, time, size), asked for as a topic is."""

    def batches_by_time(ranges):
        found = [
            PublishedBatch(partition, offset, at_ms, msgspec.structs.replace(BASE, size_bytes=size))
            for partition, start, end, _ in ranges
            for offset, at_ms, size in partitions[partition]
            if start <= offset < end
        ]
        return iter(sorted(found, key=lambda each: each.timestamp_ms))

    return batches_by_time


def fresh(*nexts):
    return {partition: StreamPosition(0, each) for partition, each in enumerate(nexts)}


sizes_of_a_topic = st.lists(st.lists(st.integers(1, 100), max_size=8), min_size=1, max_size=3)


@given(
    st.lists(sizes_of_a_topic, min_size=1, max_size=4),
    st.one_of(st.none(), st.integers(1, 8)),
    st.one_of(st.none(), st.integers(1, 250)),
)
def test_steps_reach_the_end_and_keep_the_limits(topics, max_offsets, max_bytes):
    """Step by step everything is taken once, in order and within both limits but for one Batch."""
    sizes = {f"t{number}": each for number, each in enumerate(topics)}
    batches = {
        name: in_order([[(n, n, size) for n, size in enumerate(each)] for each in some])
        for name, some in sizes.items()
    }
    ends = {name: dict(enumerate(map(len, some))) for name, some in sizes.items()}
    position = {name: fresh(*[0] * len(some)) for name, some in sizes.items()}

    def left(name):
        return available({name: position[name]}, {name: ends[name]})

    while any(map(left, sizes)):
        after = admit(position, ends, batches, max_offsets=max_offsets, max_bytes=max_bytes)
        taken = {
            name: [
                size
                for p, each in enumerate(some)
                for size in each[position[name][p].next : after[name][p].next]
            ]
            for name, some in sizes.items()
        }
        position = after
        everything = [size for some in taken.values() for size in some]
        assert everything
        assert len(everything) <= (max_offsets or len(everything))
        assert len(everything) == 1 or sum(everything) <= (max_bytes or sum(everything))


def taken_of(batches, ends, *, start=0, max_offsets=None, max_bytes=None):
    """How far a micro-batch goes in topics of one read partition."""
    position = {name: fresh(start) for name in batches}
    bounds = {name: {0: ends[name]} for name in batches}
    queues = {name: in_order([held]) for name, held in batches.items()}
    found = admit(position, bounds, queues, max_offsets=max_offsets, max_bytes=max_bytes)
    return {name: each[0].next for name, each in found.items()}


def test_the_oldest_batch_of_several_topics_comes_first():
    """Wherever its topic stands among the others."""
    times = {"a": 9, "b": 5, "c": 7, "d": 8}
    batches = {name: [(0, at, 1)] for name, at in times.items()}
    for count, wanted in enumerate(["b", "bc", "bcd", "abcd"], start=1):
        found = taken_of(batches, dict.fromkeys(times, 1), max_offsets=count)
        assert {name for name, following in found.items() if following} == set(wanted)


def test_a_gap_at_the_end_is_read_through():
    """As Kafka leaves one: the stream comes to the end when no Batch is left, and not before."""
    batches, ends = {"a": [(0, 0, 1), (3, 1, 1)], "b": []}, {"a": 7, "b": 5}

    for limits in ({"max_offsets": 2}, {"max_bytes": 9}, {}):
        assert taken_of(batches, ends, **limits) == {"a": 7, "b": 5}
    assert taken_of(batches, ends, max_offsets=1) == {"a": 1, "b": 0}


def test_a_micro_batch_waits_for_enough_or_for_long_enough():
    """Too few offsets wait until there are enough, or the delay since the last micro-batch is over;
    the first of a process never waits, and where there is nothing new nothing begins.
    """
    now_s = [1_000.0]
    gate = Gate(10, 60.0, lambda: now_s[0])

    assert not gate.holds(1)
    assert gate.holds(9)
    assert not gate.holds(10)
    now_s[0] += 59.9
    assert gate.holds(9)
    assert not gate.holds(0)
    now_s[0] += 0.2
    assert not gate.holds(9)
    assert gate.holds(9)
    assert not Gate(None, 60.0, lambda: now_s[0]).holds(1)
