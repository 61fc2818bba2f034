"""From options to offsets, and cutting a read into tasks: each Message once, in equal bytes."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.core.manifest import Totals
from memq.core.notification.notification import PublishedBatch
from memq.core.wire.messages import PartitionOffsets
from memq.errors import ConfigError, OffsetOutOfRangeError
from memq.spark.bounds import Bound
from memq.spark.options import parse_read_options
from memq.spark.plan import (
    MIN_TASK_BYTES,
    MessageRange,
    bound_offsets,
    cut,
    find,
    resolve,
    task_count,
)
from tests.unit.client.batches import Sent, notify, records, seal

MIB = 1 << 20
BASE = notify(seal(Sent("p", 0, records(b"v"))))


class Brokers:
    """Brokers that retain this now, and have this first offset at a time."""

    def __init__(self, *found):
        self._found = found

    def offsets(self, at_ms):
        assert at_ms == 1_000
        return self._found


@pytest.mark.parametrize(("at", "wanted"), [(3, 3), (7, 5), (None, 5)])
def test_a_time_leads_to_what_was_retained(at, wanted):
    """What is published between two questions to the brokers does not count."""
    retained = {0: PartitionOffsets(partition=0, start=0, end=5)}
    later = Brokers(
        PartitionOffsets(partition=0, start=0, end=8, at=at),
        PartitionOffsets(partition=1, start=0, end=1, at=0),
    )

    assert bound_offsets(later, Bound(at_ms=1_000), retained, "endingOffsets") == {0: wanted}


def test_times_by_partition_are_looked_up_each():
    """Each read partition begins at its own time; what is not named is not read."""
    retained = {number: PartitionOffsets(partition=number, start=0, end=9) for number in range(3)}
    found = {1_000: (1, 2, 3), 2_000: (4, 5, None)}

    class Asked:
        def offsets(self, at_ms):
            return [
                PartitionOffsets(partition=number, start=0, end=9, at=at)
                for number, at in enumerate(found[at_ms])
            ]

    bound = Bound(times={0: 1_000, 2: 2_000})
    assert bound_offsets(Asked(), bound, retained, "startingOffsets") == {0: 1, 2: 9}


class Topic:
    """A topic that retains offsets 3 to 8 and 0 to 4; the one of number n is published at n s."""

    RETAINED = ((3, 9), (0, 5))

    def offsets(self, at_ms=None):
        return [
            PartitionOffsets(partition=partition, start=start, end=end, at=self._at(end, at_ms))
            for partition, (start, end) in enumerate(self.RETAINED)
        ]

    def _at(self, end, at_ms):
        return None if at_ms is None or at_ms > end * 1000 else at_ms // 1000


def resolved(start, end, **options):
    """The ranges of a read, as (read partition, start, end)."""
    names = {"1": "Timestamp", "{": "Offsets"}
    given = {
        f"{side}{names.get(value[0], 'Offsets')}": value
        for side, value in (("starting", start), ("ending", end))
    }
    read = parse_read_options({"bootstrap": "b:1", "topic": "t"} | given | options)
    return [tuple(each)[:3] for each in resolve(Topic(), read)]


@pytest.mark.parametrize(
    ("start", "end", "wanted"),
    [
        ("earliest", "latest", [(0, 3, 9), (1, 0, 5)]),
        ('{"0": -2, "1": 4}', '{"0": 7, "1": -1}', [(0, 3, 7), (1, 4, 5)]),
        ('{"0": 3, "1": 0}', '{"0": 9, "1": 5}', [(0, 3, 9), (1, 0, 5)]),
        ('{"1": -1}', "latest", [(1, 5, 5)]),
        ("earliest", '{"0": -2}', [(0, 3, 3)]),
        ('{"1": 1}', '{"1": 3}', [(1, 1, 3)]),
        ("1970-01-01T00:00:04Z", "1970-01-01T00:00:07Z", [(0, 4, 7), (1, 4, 5)]),
        ("1970-01-01T00:00:08Z", '{"0": 5, "1": 5}', [(0, 8, 8), (1, 5, 5)]),
    ],
)
def test_bounds_become_ranges(start, end, wanted):
    """Words, offsets and times; only what both name is read, and nothing where they cross."""
    assert resolved(start, end) == wanted


@pytest.mark.parametrize(
    ("start", "end", "error", "why"),
    [
        ('{"0": 10}', "latest", OffsetOutOfRangeError, "up to offset 10, which is not published"),
        ("earliest", '{"1": 6}', OffsetOutOfRangeError, "t/1 is to be read up to offset 6, which"),
        ('{"2": 0}', "latest", ConfigError, "'startingOffsets' names read partition 2; .* 0, 1"),
        ("earliest", '{"0": 5, "2": 0}', ConfigError, "'endingOffsets' names read partition 2;"),
        ('{"0": 1}', "latest", OffsetOutOfRangeError, "offsets 1 to 2 of t/0: removed"),
        ('{"0": 1}', '{"0": 2}', OffsetOutOfRangeError, "offset 1 of t/0: removed"),
    ],
)
def test_bounds_that_cannot_be(start, end, error, why):
    """What is not published, does not exist, or was removed, is named."""
    with pytest.raises(error, match=why):
        resolved(start, end)


@pytest.mark.parametrize(
    ("start", "end", "wanted"),
    [
        ('{"0": 1}', "latest", [(0, 3, 9)]),
        ('{"0": 1}', '{"0": 2}', [(0, 2, 2)]),
        ('{"0": 3}', '{"0": 4}', [(0, 3, 4)]),
    ],
)
def test_what_was_removed_is_passed_over_when_asked_for(start, end, wanted, caplog):
    """What is left of the range is read, and the log says what is not."""
    assert resolved(start, end, failOnDataLoss="false") == wanted
    assert ("removed by retention" in caplog.text) == (start == '{"0": 1}')


@pytest.mark.parametrize("view", ["records", "messages"])
def test_what_is_found_is_counted(view):
    """By read partition, only where it is asked for; names of Messages are kept for those who read
    them.
    """
    named = notify(seal(Sent("p", 0, records(b"v")), Sent("q", 0, records(b"v", b"w"))))
    held = [PublishedBatch(partition, 4, 0, named) for partition in (0, 1, 1)]
    asked = SimpleNamespace(batches=lambda ranges: iter(held[:ranges]))
    read = parse_read_options({"bootstrap": "b:1", "topic": "t", "view": view})

    found = find(asked, read, 3, totals=True)

    assert [(each.start, each.end) for each in found.parts] == [(0, 2)] * 3
    assert all(
        bool(each.batch.notification.producers) == (view == "messages") for each in found.parts
    )
    one = Totals().plus(named)
    assert (one.messages, one.records) == (2, 3)
    assert found.totals == {0: one, 1: one.plus(named)}
    assert find(asked, read, 3).totals == {}


def batch(offset, size_bytes, messages):
    found = msgspec.structs.replace(BASE, size_bytes=size_bytes, messages=messages)
    return MessageRange(PublishedBatch(0, offset, 0, found), 0, messages)


def messages_of(inputs):
    """Every Message of some inputs as (offset, position), in their order."""
    return [
        (part.batch.offset, position)
        for each in inputs
        for part in each.ranges
        for position in range(part.start, part.end)
    ]


def bytes_of(each):
    return sum(
        part.batch.notification.size_bytes
        * (part.end - part.start)
        / part.batch.notification.messages
        for part in each.ranges
    )


sizes = st.lists(st.tuples(st.integers(1, 1 << 30), st.integers(1, 50)), min_size=1, max_size=40)


@given(sizes, st.integers(1, 60))
def test_each_message_is_in_one_input_in_order(given_sizes, tasks):
    """Whatever the sizes, the inputs have each Message once and in order, and none is empty."""
    batches = [batch(offset, *size) for offset, size in enumerate(given_sizes)]

    inputs = cut(batches, tasks)

    wanted = [(each.batch.offset, at) for each in batches for at in range(each.end)]
    assert messages_of(inputs) == wanted
    assert all(each.ranges for each in inputs)
    assert len(inputs) <= tasks


@given(sizes, st.integers(1, 60))
def test_inputs_differ_by_a_message_at_most(given_sizes, tasks):
    """An input is as large as the others, but for the Message at each end of it."""
    batches = [batch(offset, *size) for offset, size in enumerate(given_sizes)]
    found = [each.batch.notification for each in batches]
    largest_message = max(each.size_bytes / each.messages for each in found)
    share = sum(each.size_bytes for each in found) / tasks

    for each in cut(batches, tasks):
        assert bytes_of(each) <= share + largest_message + 1


def test_equal_batches_fall_into_equal_inputs():
    """Cuts that fall between Batches are all made."""
    inputs = cut([batch(offset, 10, 1) for offset in range(12)], 4)

    assert [len(each.ranges) for each in inputs] == [3, 3, 3, 3]


def test_one_large_batch_feeds_many_tasks():
    """A large Batch is cut between its Messages."""
    inputs = cut([batch(0, 1000, 100)], 4)

    assert [(part.start, part.end) for each in inputs for part in each.ranges] == [
        (0, 25),
        (25, 50),
        (50, 75),
        (75, 100),
    ]


def test_an_empty_range_is_one_empty_input():
    """Spark takes an empty list for a plan of its own, so there is an input without Messages."""
    (only,) = cut([], 8)

    assert only.ranges == ()


def test_tasks_fill_whole_rounds_of_the_slots():
    """With enough data there are as many tasks as slots, or a multiple, none above the limit."""
    assert task_count(1000 * MIB, 128 * MIB, None, 4) == 8
    assert task_count(300 * MIB, 128 * MIB, None, 4) == 4
    assert task_count(2 * MIN_TASK_BYTES, 128 * MIB, None, 4) == 2
    assert task_count(10, 128 * MIB, None, 4) == 1
    assert task_count(0, 128 * MIB, None, 4) == 1


def test_tasks_asked_for_are_made():
    """`minPartitions` makes more tasks, also small ones; the limit of bytes makes more still."""
    assert task_count(10 * MIB, 128 * MIB, 100, 4) == 100
    assert task_count(1000 * MIB, 10 * MIB, 7, 4) == 100
