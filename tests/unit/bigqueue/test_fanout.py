from __future__ import annotations

import pytest

from memq.core.bigqueue import FanOutQueue
from memq.core.bigqueue.fanout import MAX_FRONTS
from memq.errors import InvalidRequestError, OffsetOutOfRangeError

ITEMS = [b"%02d" % n * 500 for n in range(20)]  # four in a data page


@pytest.fixture
def queue(tmp_path, small):
    """A queue of twenty items with the fronts `fast` and `slow` at its start."""
    with FanOutQueue(tmp_path / "queue", clock_ms=lambda: 100, **small) as queue:
        queue.enqueue_many(ITEMS)
        queue.create_front("fast")
        queue.create_front("slow")
        yield queue


def test_each_front_sees_every_item(queue):
    """Fronts take the same items, each at its own pace."""
    assert queue.dequeue("slow") == ITEMS[0]
    assert queue.dequeue_many("fast", 100) == ITEMS
    assert queue.dequeue("fast") is None
    assert queue.peek("fast") is None
    assert queue.peek("slow") == ITEMS[1]
    assert (queue.position("fast"), queue.position("slow")) == (20, 1)


def test_items_are_read_by_index_and_time(queue):
    """Reading by index or time moves no front."""
    assert queue.get(7) == ITEMS[7]
    assert queue.get_many(18, 9) == ITEMS[18:]
    assert queue.timestamp_ms(3) == 100
    assert queue.find_timestamp(101) == 20
    assert queue.position("slow") == 0


def test_positions_are_committed_and_reset(queue):
    """A front moves where it is told inside the array, and no further."""
    queue.set_position("slow", 15)
    assert queue.dequeue("slow") == ITEMS[15]
    queue.reset_front("slow")
    assert queue.dequeue("slow") == ITEMS[0]
    queue.set_position("slow", 20)
    for outside in (-1, 21):
        with pytest.raises(OffsetOutOfRangeError, match="move to 0 up to 20"):
            queue.set_position("slow", outside)
    assert queue.position("slow") == 20


def test_positions_survive(queue, crash):
    """Fronts and positions are there after a close, and after a kill."""
    queue.set_position("slow", 3)
    queue.dequeue_many("fast", 9)
    killed = crash(queue._array.path)
    queue.close()
    for path in (killed, queue._array.path):
        with FanOutQueue(path) as again:
            assert again.fronts() == ["fast", "slow"]
            assert (again.position("fast"), again.position("slow")) == (9, 3)


def test_collecting_waits_for_the_slowest(queue):
    """Collecting drops what all fronts have passed; with no fronts it drops nothing."""
    queue.dequeue_many("fast", 20)
    queue.gc()
    assert queue.start == 0
    queue.set_position("slow", 10)
    queue.gc()
    assert queue.start == 10
    queue.reset_front("slow")
    assert queue.dequeue("slow") == ITEMS[10]
    queue.delete_front("slow")
    queue.gc()
    assert queue.start == 20
    queue.delete_front("fast")
    queue.enqueue(b"more")
    queue.gc()
    assert queue.start == 20


def test_truncation_moves_the_fronts_it_overtakes(queue):
    """Retention does not wait: a front that is behind goes on from the new start."""
    queue.set_position("fast", 15)
    queue.truncate_front(9)

    assert (queue.position("fast"), queue.position("slow")) == (15, 9)
    assert queue.dequeue("slow") == ITEMS[9]
    with pytest.raises(OffsetOutOfRangeError):
        queue.truncate_front(21)
    assert (queue.start, queue.position("slow")) == (9, 10)


def test_a_new_front_starts_where_it_is_told(queue):
    """By default a front sees all items that are kept."""
    queue.truncate_front(4)
    queue.create_front("from the start")
    queue.create_front("new items only", position=queue.end)

    assert queue.dequeue("from the start") == ITEMS[4]
    assert queue.dequeue("new items only") is None
    for outside in (3, 21):
        with pytest.raises(OffsetOutOfRangeError):
            queue.create_front("outside", position=outside)
    assert "outside" not in queue.fronts()


@pytest.mark.parametrize("name", ["a/b", "..", ".", "ünïcode", "with space", "100%", "x" * 240])
def test_any_name_that_fits_a_file_name_will_do(queue, name, tmp_path):
    """Names are encoded, so none leaves the folder or clashes, and all survive a reopen."""
    queue.create_front(name, position=5)
    queue.close()
    with FanOutQueue(queue._array.path) as again:
        assert name in again.fronts()
        assert again.position(name) == 5
        again.delete_front(name)
        assert again.fronts() == ["fast", "slow"]


@pytest.mark.parametrize("name", ["", "x" * 241, "ü" * 41])
def test_a_name_that_does_not_fit_is_refused(queue, name):
    """The error names the limit."""
    with pytest.raises(InvalidRequestError, match="240"):
        queue.create_front(name)


def test_fronts_that_do_not_exist_are_named(queue):
    """Using a front that was never made, or deleted, says how to make one."""
    queue.delete_front("slow")
    calls = [
        lambda: queue.dequeue("slow"),
        lambda: queue.peek("slow"),
        lambda: queue.position("slow"),
        lambda: queue.set_position("slow", 0),
        lambda: queue.delete_front("slow"),
    ]
    for call in calls:
        with pytest.raises(InvalidRequestError, match=r"'slow'.*create_front"):
            call()
    with pytest.raises(InvalidRequestError, match="'fast' exists"):
        queue.create_front("fast")


def test_the_number_of_fronts_is_bounded(queue, monkeypatch):
    """Fronts are refused beyond their limit, with the way out."""
    assert MAX_FRONTS == 256
    monkeypatch.setattr("memq.core.bigqueue.fanout.MAX_FRONTS", 2)
    with pytest.raises(InvalidRequestError, match="delete one"):
        queue.create_front("third")


def test_a_reader_follows_fronts(queue):
    """A read-only queue sees fronts come, move and go, and may change none."""
    with FanOutQueue(queue._array.path, read_only=True) as reader:
        queue.dequeue_many("fast", 6)
        assert (reader.position("fast"), reader.peek("fast")) == (6, ITEMS[6])
        queue.delete_front("fast")
        assert reader.fronts() == ["slow"]
        queue.create_front("fast", position=2)
        assert reader.position("fast") == 2
        calls = [
            lambda: reader.dequeue("fast"),
            lambda: reader.set_position("fast", 0),
            lambda: reader.create_front("new"),
            lambda: reader.delete_front("fast"),
            lambda: reader.truncate_front(1),
            lambda: reader.enqueue(b"x"),
        ]
        for call in calls:
            with pytest.raises(InvalidRequestError, match="read-only"):
                call()


def test_repr_counts_the_fronts(queue):
    """The queue says how many fronts it has."""
    assert "2 fronts" in repr(queue)
