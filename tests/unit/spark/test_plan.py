"""Cutting a range into tasks: each Message once, in about equal bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from memq.spark.plan import MIN_TASK_BYTES, StoredBatch, cut, task_count

MIB = 1 << 20


def batch(offset, size_bytes, messages):
    return StoredBatch(0, offset, 0, f"b{offset}", "memory:", size_bytes, size_bytes, messages, 0)


def messages_of(splits):
    """Every Message of some splits as (offset, position), in their order."""
    return [
        (piece.batch.offset, position)
        for split in splits
        for piece in split.pieces
        for position in range(piece.first, piece.last)
    ]


def bytes_of(split):
    return sum(
        piece.batch.size_bytes * (piece.last - piece.first) / piece.batch.messages
        for piece in split.pieces
    )


sizes = st.lists(st.tuples(st.integers(1, 1 << 30), st.integers(1, 50)), min_size=1, max_size=40)


@given(sizes, st.integers(1, 60))
def test_each_message_is_in_one_split_in_order(given_sizes, tasks):
    """Whatever the sizes, the splits hold each Message once and in order, and none is empty."""
    batches = [batch(offset, *size) for offset, size in enumerate(given_sizes)]

    splits = cut(batches, {}, tasks)

    wanted = [(each.offset, at) for each in batches for at in range(each.messages)]
    assert messages_of(splits) == wanted
    assert all(split.pieces for split in splits)
    assert len(splits) <= tasks


@given(sizes, st.integers(1, 60))
def test_splits_differ_by_a_message_at_most(given_sizes, tasks):
    """A split is as large as the others, but for the Message at each end of it."""
    batches = [batch(offset, *size) for offset, size in enumerate(given_sizes)]
    largest_message = max(each.size_bytes / each.messages for each in batches)
    share = sum(each.size_bytes for each in batches) / tasks

    for split in cut(batches, {}, tasks):
        assert bytes_of(split) <= share + largest_message + 1


def test_equal_batches_fall_into_equal_splits():
    """Cuts that fall between Batches are all made."""
    splits = cut([batch(offset, 10, 1) for offset in range(12)], {}, 4)

    assert [len(split.pieces) for split in splits] == [3, 3, 3, 3]


def test_one_large_batch_feeds_many_tasks():
    """A large Batch is cut between its Messages."""
    splits = cut([batch(0, 1000, 100)], {}, 4)

    assert [(piece.first, piece.last) for split in splits for piece in split.pieces] == [
        (0, 25),
        (25, 50),
        (50, 75),
        (75, 100),
    ]


def test_repeats_go_with_their_batch():
    """Each piece of a Batch knows which of its Messages are repeats."""
    splits = cut([batch(0, 10, 2), batch(1, 10, 2)], {(0, 1): frozenset({1})}, 1)

    assert [piece.repeats for piece in splits[0].pieces] == [frozenset(), frozenset({1})]


def test_an_empty_range_is_one_empty_split():
    """Spark takes an empty list for a plan of its own, so there is a split without pieces."""
    (split,) = cut([], {}, 8)

    assert split.pieces == ()


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
