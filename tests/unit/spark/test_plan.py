"""From options to offsets, and cutting a read into tasks: each Message once, in equal bytes."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.core.notification import PublishedBatch
from memq.core.wire.messages import PartitionOffsets
from memq.errors import ConfigError, OffsetOutOfRangeError
from memq.spark.options import parse_read_options
from memq.spark.plan import MIN_TASK_BYTES, MessageRange, cut, resolve, task_count
from tests.unit.reading.batches import Sent, notify, records, seal

MIB = 1 << 20
BASE = notify(seal(Sent("p", 0, records(b"v"))))


class Topic:
    """A topic that retains offsets 3 to 8 and 0 to 4; the one of number n is published at n s.

    Whoever asks a second time finds one offset more, and one read partition.
    """

    def __init__(self):
        self.retained = [(3, 9), (0, 5)]

    def offsets(self, at_ms=None):
        found = [
            PartitionOffsets(partition=partition, start=start, end=end, at=self._at(end, at_ms))
            for partition, (start, end) in enumerate(self.retained)
        ]
        self.retained = [(start, end + 1) for start, end in self.retained] + [(0, 1)]
        return found

    def _at(self, end, at_ms):
        return None if at_ms is None or at_ms > end * 1000 else at_ms // 1000


def resolved(start, end, **options):
    """The ranges of a read, as (read partition, start, end)."""
    given = {
        f"{side}{'Timestamp' if value[0] == '1' else 'Offsets'}": value
        for side, value in (("starting", start), ("ending", end))
        if value is not None
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
    """Words, offsets and times; only what both name is read, and nothing where they cross. What is
    published between two questions to the brokers does not count.
    """
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


def test_what_was_removed_is_left_out_when_asked(caplog):
    """The rest is read, and the log names what is gone."""
    assert resolved('{"0": 1}', "latest", failOnDataLoss="false") == [(0, 3, 9)]
    assert "offsets 1 to 2 of t/0: removed by retention; 3 is the first that" in caplog.text


def batch(offset, size_bytes, messages):
    found = msgspec.structs.replace(BASE, size_bytes=size_bytes, messages=messages)
    return MessageRange(PublishedBatch(0, offset, 0, found), 0, messages)


def bytes_of(part):
    it = part.batch.notification
    return it.size_bytes * (part.end - part.start) / it.messages


@given(
    st.lists(st.tuples(st.integers(1, 1 << 30), st.integers(1, 50)), min_size=1, max_size=40),
    st.integers(1, 60),
)
def test_inputs_have_each_message_once_and_differ_by_one_at_most(sizes, tasks):
    """In their order; an input is as large as the others, but for the Message at each end of it."""
    batches = [batch(offset, *size) for offset, size in enumerate(sizes)]

    inputs = cut(batches, tasks)

    assert len(inputs) <= tasks
    assert all(each.ranges for each in inputs)
    assert [
        (part.batch.offset, position)
        for each in inputs
        for part in each.ranges
        for position in range(part.start, part.end)
    ] == [(each.batch.offset, at) for each in batches for at in range(each.end)]
    share = sum(map(bytes_of, batches)) / tasks
    largest_message = max(bytes_of(each) / each.end for each in batches)
    for each in inputs:
        assert sum(map(bytes_of, each.ranges)) <= share + largest_message + 1


def test_an_empty_read_is_one_input():
    """Spark takes an empty list for a plan of its own."""
    (only,) = cut([], 8)
    assert only.ranges == ()


@pytest.mark.parametrize(
    ("total", "most", "asked", "tasks"),
    [
        (1000 * MIB, 128 * MIB, None, 8),
        (300 * MIB, 128 * MIB, None, 4),
        (2 * MIN_TASK_BYTES, 128 * MIB, None, 2),
        (10, 128 * MIB, None, 1),
        (0, 128 * MIB, None, 1),
        (10 * MIB, 128 * MIB, 100, 100),
        (1000 * MIB, 10 * MIB, 7, 100),
    ],
)
def test_tasks_fill_whole_rounds_of_the_slots(total, most, asked, tasks):
    """With enough data there are as many tasks as slots, or a multiple, none above the limit;
    `minPartitions` makes more, also small ones, and the limit of bytes makes more still.
    """
    assert task_count(total, most, asked, slots=4) == tasks
