"""What errors of the queue advise is done, and helps."""

from __future__ import annotations

import re

import pytest

from memq.bigqueue import BigArray, BigQueue, FanOutQueue
from memq.errors import (
    ClosedError,
    ConfigError,
    InvalidRequestError,
    LockedError,
    MemqError,
    MessageTooLargeError,
)
from tests.advice import follows


@follows("holds a plain queue; open it with BigQueue", "holds a fan-out queue; open it with FanOut")
def test_a_queue_is_opened_as_what_it_is(tmp_path):
    """Each kind refuses the folder of the other."""
    BigQueue(tmp_path / "plain").close()
    FanOutQueue(tmp_path / "fan-out").close()
    with pytest.raises(ConfigError, match="open it with BigQueue"):
        FanOutQueue(tmp_path / "plain")
    with pytest.raises(ConfigError, match="open it with FanOutQueue"):
        BigQueue(tmp_path / "fan-out")
    BigQueue(tmp_path / "plain").close()
    FanOutQueue(tmp_path / "fan-out").close()


@follows(
    "front … exists; move it with set_position",
    "has no front …; make it with create_front",
    "; delete one before adding …",
)
def test_fronts_are_made_moved_and_deleted(tmp_path, monkeypatch):
    """By the methods that the errors name."""
    monkeypatch.setattr("memq.bigqueue.fanout.MAX_FRONTS", 1)
    with FanOutQueue(tmp_path) as queue:
        queue.enqueue(b"x")
        with pytest.raises(MemqError, match="make it with create_front"):
            queue.dequeue("a")
        queue.create_front("a")
        with pytest.raises(MemqError, match="move it with set_position"):
            queue.create_front("a")
        queue.set_position("a", 0)
        with pytest.raises(MemqError, match="delete one before adding 'b'"):
            queue.create_front("b")
        queue.delete_front("a")
        queue.create_front("b")


@follows(
    "close that one first, or open with read_only=True",
    "is open read-only; open it without read_only=True to write",
    "holds no big array (… is missing); open it for writing first",
)
def test_an_array_has_one_writer(tmp_path):
    """Others read meanwhile, and write when it has closed."""
    with pytest.raises(MemqError, match="open it for writing first"):
        BigArray(tmp_path / "none", read_only=True)
    with BigArray(tmp_path) as writer:
        writer.append(b"x")
        with pytest.raises(LockedError, match="or open with read_only=True"):
            BigArray(tmp_path)
        with BigArray(tmp_path, read_only=True) as reader:
            assert reader.get(0) == b"x"
            with pytest.raises(MemqError, match="open it without read_only=True to write"):
                reader.append(b"y")
    with BigArray(tmp_path) as writer:
        writer.append(b"y")


@follows("is closed; open it again")
def test_a_closed_array_is_opened_again(tmp_path):
    """What it held is there."""
    array = BigArray(tmp_path)
    array.append(b"x")
    array.close()
    with pytest.raises(ClosedError, match="open it again"):
        array.get(0)
    with BigArray(tmp_path) as again:
        assert again.get(0) == b"x"


@follows(
    "is out of its limits; choose … to …",
    "leave the option out, or use a new folder",
    "split it, or make a new array with a larger page_bytes",
)
def test_pages_are_chosen_once(tmp_path):
    """Within their limits, and for good."""
    with pytest.raises(ConfigError, match=r"choose \d+ to \d+") as refused:
        BigArray(tmp_path / "one", page_bytes=1)
    least = int(re.search(r"choose (\d+) to", str(refused.value))[1])
    with BigArray(tmp_path / "one", page_bytes=least) as array:
        with pytest.raises(MessageTooLargeError, match="split it, or make a new array"):
            array.append(b"x" * (least + 1))
        array.append(b"x" * least)
    with pytest.raises(ConfigError, match="leave the option out, or use a new folder"):
        BigArray(tmp_path / "one", page_bytes=2 * least)
    BigArray(tmp_path / "one").close()
    with BigArray(tmp_path / "two", page_bytes=2 * least) as array:
        array.append(b"x" * (least + 1))


@follows("sync=… is unknown; use one of …", "cannot skip … items; give 0 or more")
def test_values_are_those_that_are_named(tmp_path):
    """The error lists what there is."""
    with pytest.raises(ConfigError, match="use one of") as refused:
        BigQueue(tmp_path, sync="often")
    for sync in str(refused.value).partition("one of ")[2].split(", "):
        BigQueue(tmp_path, sync=sync).close()
    with BigQueue(tmp_path) as queue:
        with pytest.raises(InvalidRequestError, match="give 0 or more"):
            queue.skip(-1)
        queue.skip(0)
