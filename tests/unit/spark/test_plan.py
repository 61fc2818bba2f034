"""From options to offsets, and cutting a read into tasks: each Message once, in equal bytes."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.core.notification.notification import PublishedBatch
from memq.core.wire.messages import PartitionOffsets
from memq.spark.bounds import Bound
from memq.spark.plan import MIN_TASK_BYTES, MessageRange, bound_offsets, cut, task_count
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
