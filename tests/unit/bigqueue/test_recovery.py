import contextlib
import random
import struct
from pathlib import Path

import pytest

from memq.bigqueue import BigArray, Recovery
from memq.bigqueue.layout import ENTRY_BYTES
from memq.errors import CorruptDataError
from tests.fakes.disk import ForgetfulDisk, PowerCut
from tests.unit.bigqueue.conftest import overwrite, page

ITEMS = [bytes([65 + n]) * (700 + n) for n in range(20)]  # five in a data page, eight in an index


LOSSES = (Path.unlink, lambda file: cut(file, 0), lambda file: file.write_bytes(b"\0"))


@pytest.fixture
def writer(tmp_path, small):
    """A writer that has appended ITEMS and flushed nothing; it stays open, to be 'killed'."""
    with BigArray(tmp_path / "live", clock_ms=lambda: 7, **small) as array:
        for item in ITEMS:
            array.append(item)
        yield array


def place_of_last(path: Path) -> tuple[int, int, int]:
    """Data page, offset and length of the last item, read from its entry."""
    slot = (len(ITEMS) - 1) % 8
    entry = page(path, "index", 2).read_bytes()[slot * ENTRY_BYTES :][:ENTRY_BYTES]
    return struct.unpack("<III", entry[:12])


def cut(file: Path, size: int) -> None:
    """Cut a file short."""
    with file.open("r+b") as opened:
        opened.truncate(size)


def check_usable(array: BigArray, end: int) -> None:
    """The first `end` items are there, and appending goes on after them, across a reopen."""
    assert array.end == end
    assert array.get_many(array.start, 100) == ITEMS[array.start : end]
    assert array.append(b"after") == end
    path = array.path
    array.close()
    with BigArray(path) as again:
        assert again.recovery == Recovery()
        assert again.get(end) == b"after"


@pytest.mark.parametrize("zeroed", [False, True])
def test_a_torn_last_item_is_dropped_at_every_byte(writer, crash, zeroed):
    """Wherever the data of the last item was cut off, the item before it is the last."""
    number, offset, length = place_of_last(writer.path)
    copy = crash(writer.path)
    whole = {file: file.read_bytes() for file in copy.rglob("*") if file.is_file()}
    for kept in range(0, length, 1 if length < 100 else 23):
        for file, content in whole.items():
            file.write_bytes(content)
        data = page(copy, "data", number)
        if zeroed:
            overwrite(data, offset + kept, bytes(4096 - offset - kept))
        else:
            cut(data, offset + kept)
        with BigArray(copy) as array:
            assert (array.recovery.items_dropped, array.recovery.bytes_dropped) == (1, length)
            assert "item 19 is damaged" in array.recovery.reason
            check_usable(array, 19)


def test_every_flipped_bit_is_detected(tmp_path, small):
    """Each single bit flip in an item or in its index entry makes reading it an error.

    A batch read may still find the right bytes, when it need not look at the flipped field.
    """
    with BigArray(tmp_path, **small) as array:
        items = [b"before", b"an item of 24 bytes long", b"after"]
        array.append_many(items, timestamp_ms=1_700_000_000_000)
        places = [(page(tmp_path, "data", 0), 6 + n) for n in range(24)]
        places += [(page(tmp_path, "index", 0), ENTRY_BYTES + n) for n in range(ENTRY_BYTES)]
        for file, offset in places:
            good = file.read_bytes()[offset]
            for bit in range(8):
                overwrite(file, offset, bytes([good ^ 1 << bit]))
                with pytest.raises(CorruptDataError, match="item 1 is damaged"):
                    array.get(1)
                try:
                    assert array.get_many(0, 3) == items
                except CorruptDataError as exc:
                    assert "item 1 is damaged" in str(exc)
                else:
                    assert file.parent.name == "index"
            overwrite(file, offset, bytes([good]))
        assert array.get_many(0, 3) == items


@pytest.mark.parametrize(
    ("file", "whole"),
    [
        ("data/000000000003.page", 15),
        ("data/000000000000.page", 20),
        ("index/000000000002.page", 16),
        ("control", 20),
    ],
)
def test_no_damage_of_one_file_gives_a_used_index_to_another_item(writer, crash, file, whole):
    """Whatever file is lost, a flushed item keeps its index; it is damaged, and the next is new."""
    writer.sync()
    for damage in (*LOSSES, lambda file: overwrite(file, 0, bytes(4096))):
        copy = crash(writer.path)
        damage(copy / file)
        with BigArray(copy) as array:
            assert array.end == 20
            assert array.recovery.items_damaged == 20 - whole
            assert array.append(b"new") == 20
        with BigArray(copy) as array:
            assert array.recovery == Recovery()
            for index in range(20):
                try:
                    assert array.get(index) == ITEMS[index]
                except CorruptDataError as exc:
                    assert f"item {index} is damaged" in str(exc)
            assert array.get(20) == b"new"


def test_an_index_that_others_know_of_is_not_used_again(writer, crash):
    """With `least_end` an array that has lost its end, and forgotten it, goes on after it."""
    copy = crash(writer.path)
    for file in ("control", "index/000000000002.page", "index/000000000001.page"):
        (copy / file).unlink()
    with BigArray(copy, least_end=20) as array:
        assert array.end == 20
        assert array.recovery.items_damaged == 12
        assert "20 indexes are known to have been handed out, 8 are here" in array.recovery.reason
        assert array.append(b"new") == 20
        assert array.get(20) == b"new"
        with pytest.raises(CorruptDataError, match=r"item 16 is damaged: .* has no entry for it"):
            array.get(16)
        with pytest.raises(CorruptDataError, match=r"item 8 is damaged: .* is missing"):
            array.get(8)


@pytest.mark.parametrize("seed", range(3))
def test_a_power_cut_in_a_repair_claims_no_more_than_there_is(tmp_path, small, seed):
    """Items that a kill left unflushed and that are then lost were never handed out: no damage."""
    rng = random.Random(seed)
    for step in range(1, 12):
        root = tmp_path / str(step)
        root.mkdir()
        with ForgetfulDisk(root, rng, write_back=0.5) as disk:
            array = BigArray(root / "q", **small)
            array.append_many(ITEMS[:6])
            array.sync()
            array.append_many(ITEMS[6:12])
            disk.kill()  # what was not flushed is still in the page cache
            disk.cut_after(step)
            with contextlib.suppress(PowerCut):
                BigArray(root / "q").close()
            disk.crash()
            with BigArray(root / "q") as array:
                assert array.recovery.items_damaged == 0
                assert array.end >= 6
                assert array.get_many(0, 20) == ITEMS[: array.end]


def test_entries_after_a_torn_item_cannot_come_back(writer, crash):
    """Entries after the new end are erased, so later items never run into them."""
    copy = crash(writer.path)
    overwrite(page(copy, "data", 3), 0, b"!")  # item 15, first of its page
    overwrite(copy / "control", 16, (15).to_bytes(8, "little"))

    with BigArray(copy) as array:
        assert array.end == 15
        array.append(ITEMS[15])
        again = crash(copy)
    with BigArray(again) as array:
        assert array.end == 16


@pytest.mark.parametrize(
    "damage",
    [
        Path.unlink,
        lambda file: cut(file, 0),
        lambda file: overwrite(file, 0, bytes(4096)),
        lambda file: overwrite(file, 8, (9).to_bytes(8, "little")),  # one of the two starts
        lambda file: overwrite(file, 16, b"\xff" * 8),  # an impossible end
        lambda file: overwrite(file, 16, (3).to_bytes(8, "little")),  # an end before the start
    ],
)
@pytest.mark.parametrize("truncated", [0, 13])
def test_a_damaged_control_file_is_rebuilt_from_the_pages(writer, crash, damage, truncated):
    """The positions are found again; what was truncated inside a page may come back."""
    writer.sync()
    writer.truncate_front(truncated)
    copy = crash(writer.path)
    damage(copy / "control")

    with BigArray(copy) as array:
        assert "control file" in array.recovery.reason
        assert array.recovery.items_dropped == 0
        assert array.start == (10 if truncated else 0)
        check_usable(array, 20)


def test_a_damaged_control_file_without_pages_is_that_of_an_empty_array(tmp_path, small):
    """Nothing was flushed, so nothing is lost."""
    path = tmp_path / "array"
    BigArray(path, **small).close()
    overwrite(path / "control", 0, bytes(4096))
    for each in (path / "index").iterdir():
        each.unlink()
    with BigArray(path, **small) as array:
        assert "control file" in array.recovery.reason
        assert (array.start, array.end) == (0, 0)
        check_usable(array, 0)
