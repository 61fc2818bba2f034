import pytest

from memq.bigqueue import FanOutQueue
from memq.errors import InvalidRequestError

ITEMS = [b"%02d" % n * 500 for n in range(20)]  # four in a data page


@pytest.fixture
def queue(tmp_path, small):
    """A queue of twenty items with the fronts `fast` and `slow` at its start."""
    with FanOutQueue(tmp_path / "queue", clock_ms=lambda: 100, **small) as queue:
        queue.enqueue_many(ITEMS)
        queue.create_front("fast")
        queue.create_front("slow")
        yield queue


@pytest.mark.parametrize("name", ["a/b", "..", ".", "ünïcode", "with space", "100%", "x" * 240])
def test_any_name_that_fits_a_file_name_will_do(queue, name, tmp_path):
    """Names are encoded, so none leaves the folder or clashes, and all survive a reopen."""
    queue.create_front(name, position=5)
    queue.close()
    with FanOutQueue(queue.path) as again:
        assert name in again.fronts()
        assert again.position(name) == 5
        again.delete_front(name)
        assert again.fronts() == ["fast", "slow"]


@pytest.mark.parametrize("name", ["", "x" * 241, "ü" * 41])
def test_a_name_that_does_not_fit_is_refused(queue, name):
    """The error names the limit."""
    with pytest.raises(InvalidRequestError, match="240"):
        queue.create_front(name)


def test_a_reader_follows_fronts(queue):
    """A read-only queue sees fronts come, move and go, and may change none."""
    with FanOutQueue(queue.path, read_only=True) as reader:
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
