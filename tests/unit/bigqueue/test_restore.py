"""What was damaged is written back by who has its bytes, and by nobody else."""

import struct

import pytest

from memq.bigqueue import BigArray
from memq.bigqueue.layout import ENTRY_BYTES
from memq.errors import CorruptDataError, InvalidRequestError, OffsetOutOfRangeError
from tests.unit.bigqueue.conftest import overwrite, page

ITEMS = [b"same", b"x" * 4000, b"", b"same", b"y" * 96, *[b"%d" % n * 500 for n in range(10, 20)]]


@pytest.fixture
def array(tmp_path, small):
    """An array of these items, on several pages of both kinds."""
    with BigArray(tmp_path / "array", sync="batch", **small) as array:
        array.append_many(ITEMS, timestamp_ms=7)
        yield array


def place_of(array, index):
    """Data page and offset of an item."""
    number, slot = divmod(index, 8)
    entry = page(array.path, "index", number).read_bytes()[slot * ENTRY_BYTES :][:8]
    return struct.unpack("<II", entry)


def test_an_item_is_known_by_its_bytes_at_its_index(array):
    """Other bytes, and the same ones at another index or longer, are not it."""
    for index, item in enumerate(ITEMS):
        assert array.was(index, item)
        assert array.length(index) == len(item)
        assert not array.was(index, item + b"\0")
        assert not array.was(index, item[:-1] + b"!") or not item
    assert not array.was(0, ITEMS[1])
    assert not array.was(1, b"z" * 4000)
    for index in (-1, len(ITEMS)):
        for ask in (array.length, lambda at: array.was(at, b""), lambda at: array.restore(at, b"")):
            with pytest.raises(OffsetOutOfRangeError):
                ask(index)


@pytest.mark.parametrize("index", [0, 1, 3, 4, 5, len(ITEMS) - 1])
@pytest.mark.parametrize("damage", ["flipped", "missing", "cut"])
def test_a_damaged_item_is_whole_again(array, crash, index, damage):
    """With its own bytes, whatever became of the page; its neighbours are as they were."""
    number, offset = place_of(array, index)
    file = page(array.path, "data", number)
    if damage == "flipped":
        overwrite(file, offset, bytes([ITEMS[index][0] ^ 1]))
    elif damage == "missing":
        file.unlink()
    else:
        with file.open("r+b") as opened:
            opened.truncate(offset)
    array._pool.unmap("data", number)
    with pytest.raises(CorruptDataError):
        array.get(index)
    with pytest.raises(InvalidRequestError, match="was not these"):
        array.restore(index, b"other")
    array.restore(index, ITEMS[index])
    assert array.get(index) == ITEMS[index]
    for each in range(len(ITEMS)):
        if damage == "flipped" or place_of(array, each)[0] != number:
            assert array.get(each) == ITEMS[each]
        array.restore(each, ITEMS[each])
    with BigArray(crash(array.path), read_only=True) as again:
        assert again.get_many(0, 99) == ITEMS
