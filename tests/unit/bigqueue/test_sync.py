import os

import pytest

from memq.bigqueue import BigArray, BigQueue, Recovery
from memq.bigqueue.layout import SYNCED
from memq.errors import CorruptDataError, PublishUncertainError, QueueError, QueueFailedError


def broken(_):
    """What a system call does on a broken disk."""
    raise OSError(5, "Input/output error")


def synced(array):
    """How far the array was flushed."""
    return array._cells[SYNCED]


@pytest.mark.parametrize(
    ("mode", "single", "batch"), [("none", 0, 0), ("batch", 0, 4), ("each", 1, 4)]
)
def test_the_sync_option_says_what_is_flushed(tmp_path, small, mode, single, batch):
    """Single appends are flushed with "each", batches with "batch" too, and `sync` flushes all."""
    with BigArray(tmp_path, sync=mode, **small) as array:
        array.append(b"x")
        assert synced(array) == single
        array.append_many([b"y"] * 3)
        assert synced(array) == batch
        array.append(b"z")
        array.sync()
        assert synced(array) == 5


def test_a_batch_that_fails_half_way_leaves_no_entries(tmp_path, small, crash):
    """Entries of a batch that was not appended are erased, so no later opening takes them up."""
    with BigArray(tmp_path / "live", **small) as array:
        array.append_many([b"kept"] * 5)
        array._tail._claim(0, 10)  # the second index page is there already, and then is lost
        lost = tmp_path / "live" / "index" / "000000000001.page"
        lost.unlink()
        with pytest.raises(CorruptDataError, match="missing"):
            array.append_many([b"refused"] * 6)
        assert array.end == 5
        copy = crash(array.path)
    with BigArray(copy) as array:
        assert (array.end, array.recovery) == (5, Recovery())


def test_a_flush_that_fails_is_not_tried_again(tmp_path, small, monkeypatch):
    """After a failed flush reading goes on, appending is refused for good, and reopening helps."""
    array = BigArray(tmp_path, sync="each", **small)
    array.append(b"before")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", broken)
        with pytest.raises(PublishUncertainError, match="Input/output error"):
            array.append(b"lost")
    for call in (lambda: array.append(b"x"), lambda: array.append_many([b"x"]), array.sync):
        with pytest.raises(QueueFailedError, match="open it again") as refused:
            call()
        assert not refused.value.retriable
    assert array.get_many(0, 9) == [b"before"]
    array.close()
    with BigArray(tmp_path) as again:
        assert again.get_many(0, 9) == [b"before"]
        assert again.append(b"after") == 1


def test_a_page_that_loses_its_file_between_two_flushes_fails_the_second(tmp_path, small):
    """A flush never says that items are durable in a file that no restart will find."""
    array = BigArray(tmp_path, **small)
    array.append(b"kept")
    array.sync()
    page = tmp_path / "data" / "000000000000.page"
    page.unlink()
    array.append(b"lost")

    with pytest.raises(PublishUncertainError, match="000000000000"):
        array.sync()
    array.close()


TAKES = {
    "one": (lambda queue: queue.dequeue(), {"each"}),
    "many": (lambda queue: queue.dequeue_many(1), {"batch", "each"}),
    "skip": (lambda queue: queue.skip(), {"batch", "each"}),
}


@pytest.mark.parametrize("mode", ["none", "batch", "each"])
@pytest.mark.parametrize("kind", list(TAKES))
def test_a_position_that_cannot_be_flushed_does_not_move(tmp_path, small, monkeypatch, mode, kind):
    """Where the sync option says so, an item is only taken once the position is on the device."""
    take, flushing = TAKES[kind]
    with BigQueue(tmp_path, sync=mode, **small) as queue:
        queue.enqueue_many([b"a", b"b"])
        with monkeypatch.context() as patched:
            patched.setattr(os, "fdatasync", broken)
            if mode in flushing:
                with pytest.raises(QueueError, match="cannot flush"):
                    take(queue)
            else:
                take(queue)
        assert queue.dequeue_many(5) == ([b"a", b"b"] if mode in flushing else [b"b"])


def test_a_page_that_cannot_be_allocated_changes_nothing(tmp_path, small):
    """Without room for a page, appending fails as retriable, and works once there is room."""
    with BigArray(tmp_path, **small) as array:
        array.append_many([b"x" * 1000] * 4)
        obstacle = tmp_path / "data" / "000000000001.page"
        obstacle.mkdir()
        for append in (
            lambda: array.append(b"y" * 1000),
            lambda: array.append_many([b"y" * 99] * 9),
        ):
            with pytest.raises(QueueError, match="cannot allocate") as refused:
                append()
            assert refused.value.retriable
            assert array.end == 4
        assert array.append(b"fits") == 4
        obstacle.rmdir()
        assert array.append(b"y" * 1000) == 5
        assert array.get_many(4, 5) == [b"fits", b"y" * 1000]
