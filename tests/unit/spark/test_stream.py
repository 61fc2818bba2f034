"""How far a micro-batch goes: the oldest Batches first, within limits, and never stuck."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.core.notification.notification import PublishedBatch
from memq.errors import CorruptDataError
from memq.spark.admission import Gate, admit, available
from memq.spark.checkpoint import (
    StreamPosition,
    TopicPosition,
    decode_checkpoint,
    decode_topics,
    encode_checkpoint,
    encode_topics,
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
        {"incarnation": "0123456789abcdef", "partitions": [5]},
        {
            "incarnation": "0123456789abcdef",
            "partitions": {"0": {"from": 0, "next": 5, "told": "x"}},
        },
        [1],
    ],
)
def test_a_foreign_checkpoint_is_refused(found):
    """A checkpoint of another source is named as such."""
    with pytest.raises(CorruptDataError, match="not a position of a memq stream"):
        decode_checkpoint(found)


class Clock:
    """A clock that a test sets."""

    now_s = 1_000.0

    def __call__(self):
        return self.now_s


def test_a_micro_batch_waits_for_enough_or_for_long_enough():
    """Too few offsets wait until there are enough, or the delay since the last micro-batch is over;
    the first of a process never waits, and where there is nothing new nothing begins.
    """
    clock = Clock()
    gate = Gate(10, 60.0, clock)

    assert not gate.holds(1)
    assert gate.holds(9)
    assert not gate.holds(10)
    clock.now_s += 59.9
    assert gate.holds(9)
    assert not gate.holds(0)
    clock.now_s += 0.2
    assert not gate.holds(9)
    assert gate.holds(9)
    assert not Gate(None, 60.0, clock).holds(1)


@given(
    st.lists(st.lists(st.integers(1, 100), max_size=8), min_size=2, max_size=4),
    st.one_of(st.none(), st.integers(1, 8)),
    st.one_of(st.none(), st.integers(1, 250)),
)
def test_topics_share_a_micro_batch(sizes, max_offsets, max_bytes):
    """Over several topics, too, everything is taken once and within the limits; a topic that has
    something left was given about as much as any other.
    """
    names = [f"t{number}" for number in range(len(sizes))]
    batches = {name: queue([some]) for name, some in zip(names, sizes, strict=True)}
    ends = {name: {0: len(some)} for name, some in zip(names, sizes, strict=True)}
    position = {name: fresh(0) for name in names}
    while any(position[name][0].next < ends[name][0] for name in names):
        limits = {"max_offsets": max_offsets, "max_bytes": max_bytes}
        after = admit(position, ends, batches, **limits)
        taken = {
            name: some[position[name][0].next : after[name][0].next]
            for name, some in zip(names, sizes, strict=True)
        }
        everything = [size for some in taken.values() for size in some]
        assert everything
        assert len(everything) <= (max_offsets or len(everything))
        assert len(everything) == 1 or sum(everything) <= (max_bytes or sum(everything))
        weigh = sum if max_bytes is not None else len
        slack = max(map(max, filter(None, sizes))) if max_bytes is not None else 1
        waiting = [name for name in names if after[name][0].next < ends[name][0]]
        for name in waiting:
            assert weigh(taken[name]) + slack >= max(map(weigh, taken.values()))
        position = after


def of_topics(**offsets):
    """Topics of one read partition: offset, time and size of each of their Batches."""

    def in_order(held):
        return lambda ranges: (
            PublishedBatch(0, offset, at_ms, msgspec.structs.replace(BASE, size_bytes=size))
            for _, start, end, _ in ranges
            for offset, at_ms, size in held
            if start <= offset < end
        )

    return {name: in_order(held) for name, held in offsets.items()}


def taken_of(batches, ends, *, start=0, max_offsets=None, max_bytes=None):
    position = {name: fresh(start) for name in batches}
    bounds = {name: {0: ends[name]} for name in batches}
    found = admit(position, bounds, batches, max_offsets=max_offsets, max_bytes=max_bytes)
    return {name: each[0].next for name, each in found.items()}


def test_the_oldest_batch_of_several_topics_comes_first():
    """Wherever its topic stands among the others."""
    times = {"a": 9, "b": 5, "c": 7, "d": 8}
    batches = of_topics(**{name: [(0, at, 1)] for name, at in times.items()})
    for count, wanted in enumerate(["b", "bc", "bcd", "abcd"], start=1):
        found = taken_of(batches, dict.fromkeys(times, 1), max_offsets=count)
        assert {name for name, following in found.items() if following} == set(wanted)


def test_topics_share_by_what_is_limited():
    """By Batches, whatever their size, or by bytes; what one does not use the other takes."""
    large, small = [(n, n, 100) for n in range(9)], [(n, n, 1) for n in range(9)]
    batches, ends = of_topics(a=large, b=small), {"a": 9, "b": 9}

    assert taken_of(batches, ends, max_offsets=4) == {"a": 2, "b": 2}
    assert taken_of(batches, ends, max_bytes=106) == {"a": 1, "b": 6}
    assert taken_of(batches, {"a": 1, "b": 9}, max_offsets=6) == {"a": 1, "b": 5}


def test_a_gap_at_the_end_is_read_through():
    """As Kafka leaves one: the stream comes to the end when no Batch is left, and not before."""
    batches = of_topics(a=[(0, 0, 1), (3, 1, 1)], b=[])

    for limits in ({"max_offsets": 2}, {"max_bytes": 9}, {}):
        assert taken_of(batches, {"a": 7, "b": 5}, **limits) == {"a": 7, "b": 5}
    assert taken_of(batches, {"a": 7, "b": 5}, max_offsets=1) == {"a": 1, "b": 5}


def test_a_stream_never_goes_back():
    """Where the end lies before what was read, there is nothing to read."""
    batches = of_topics(a=[(n, n, 1) for n in range(9)])

    for limits in ({"max_offsets": 2}, {"max_bytes": 9}, {}):
        assert taken_of(batches, {"a": 3}, start=5, **limits) == {"a": 5}
    assert available({"a": fresh(5, 2)}, {"a": {0: 3, 1: 6}}) == 4


def test_checkpoints_of_one_topic_and_of_several():
    """Each form comes back as it was, and the form of one topic finds its name."""
    one = {"a": TopicPosition("0123456789abcdef", {0: StreamPosition(1, 2, 2)})}
    several = one | {"b": TopicPosition("fedcba9876543210", {0: StreamPosition(0, 5)})}
    names = {"0123456789abcdef": "a", "fedcba9876543210": "b"}

    assert "topics" not in encode_topics(one, "a")
    assert decode_topics(encode_topics(one, "a"), names, "") == one
    assert decode_topics(encode_topics(several, ""), names, "") == several
    with pytest.raises(CorruptDataError, match="not a position of a memq stream"):
        decode_topics({"topics": 5}, names, "")
    with pytest.raises(CorruptDataError, match="not a position of a memq stream"):
        decode_topics({"topics": {"a": {"partitions": {}}}}, names, "")
