import pytest

from memq.bigqueue import BigQueue, Recovery
from memq.errors import CorruptDataError, InvalidRequestError, OffsetOutOfRangeError


@pytest.fixture
def queue(tmp_path, small):
    """An empty queue with small pages."""
    with BigQueue(tmp_path / "queue", **small) as queue:
        yield queue


def data_pages(queue):
    """The numbers of the data pages on disk."""
    return [int(file.stem) for file in sorted((queue._array.path / "data").iterdir())]


def test_the_position_survives(tmp_path, small, crash):
    """What was taken is not given again after a close, nor after a kill."""
    with BigQueue(tmp_path / "queue", **small) as queue:
        queue.enqueue_many([b"a", b"b", b"c", b"d"])
        queue.dequeue()
        killed = crash(tmp_path / "queue")
        queue.dequeue()
    with BigQueue(killed) as queue:
        assert queue.dequeue_many(9) == [b"b", b"c", b"d"]
    with BigQueue(tmp_path / "queue") as queue:
        assert queue.recovery == Recovery()
        assert queue.dequeue_many(9) == [b"c", b"d"]


@pytest.mark.parametrize("batch", [1, 3])
def test_consumed_pages_go_by_themselves(queue, batch):
    """A page file is deleted soon after its last item was taken, without a call to gc."""
    queue.enqueue_many([b"x" * 1000] * 100)  # four in a page
    assert len(data_pages(queue)) == 25
    for taken in range(0, 99, batch):
        queue.dequeue_many(batch) if batch > 1 else queue.dequeue()
        assert data_pages(queue)[0] >= (taken - batch) // 4

    queue.gc()
    assert data_pages(queue) == [24]


def test_a_damaged_item_stays_until_it_is_skipped(queue):
    """Damage is an error each time, and `skip` moves past it."""
    queue.enqueue_many([b"aaaa", b"bbbb", b"cccc"])
    with (queue._array.path / "data" / "000000000000.page").open("r+b") as file:
        file.seek(4)
        file.write(b"!")

    assert queue.dequeue() == b"aaaa"
    for take in (queue.dequeue, queue.peek, lambda: queue.dequeue_many(2)):
        with pytest.raises(CorruptDataError, match="item 1"):
            take()
    queue.skip()
    assert queue.dequeue() == b"cccc"
    with pytest.raises(OffsetOutOfRangeError):
        queue.skip()


@pytest.mark.parametrize("content", [b"", bytes(4096)])
def test_a_lost_position_goes_back_to_what_is_kept(tmp_path, small, content, caplog):
    """Items come again rather than being skipped when the position file was damaged."""
    with BigQueue(tmp_path, **small) as queue:
        queue.enqueue_many([b"x" * 1000] * 10)
        queue.dequeue_many(6)
        queue.gc()
    (tmp_path / "head").write_bytes(content)

    with BigQueue(tmp_path) as queue:
        assert len(queue) == 4
    assert "file was damaged; moved to 6" in caplog.text


def test_a_reader_sees_without_taking(queue):
    """A read-only queue peeks and counts, and may not take."""
    queue.enqueue_many([b"a", b"b"])
    with BigQueue(queue._array.path, read_only=True) as reader:
        assert (len(reader), reader.peek()) == (2, b"a")
        queue.dequeue()
        assert (len(reader), reader.peek()) == (1, b"b")
        for take in (reader.dequeue, reader.skip, reader.gc, lambda: reader.dequeue_many(1)):
            with pytest.raises(InvalidRequestError, match="read-only"):
                take()
