from __future__ import annotations

import contextlib
import logging
import random
import struct
from pathlib import Path

import pytest

from memq.core.bigqueue import BigArray, Recovery
from memq.core.bigqueue.layout import ENTRY_BYTES
from memq.errors import CorruptDataError, LockedError, MemqError
from tests.fakes.disk import ForgetfulDisk, PowerCut

ITEMS = [bytes([65 + n]) * (700 + n) for n in range(20)]  # five in a data page, eight in an index


LOSSES = (Path.unlink, lambda file: cut(file, 0), lambda file: file.write_bytes(b"\0"))


@pytest.fixture
def writer(tmp_path, small):
    """A writer that has appended ITEMS and flushed nothing; it stays open, to be 'killed'."""
    with BigArray(tmp_path / "live", clock_ms=lambda: 7, **small) as array:
        for item in ITEMS:
            array.append(item)
        yield array


def page(path: Path, kind: str, number: int) -> Path:
    """The file of a page."""
    return path / kind / f"{number:012d}.page"


def place_of_last(path: Path) -> tuple[int, int, int]:
    """Data page, offset and length of the last item, read from its entry."""
    slot = (len(ITEMS) - 1) % 8
    entry = page(path, "index", 2).read_bytes()[slot * ENTRY_BYTES :][:ENTRY_BYTES]
    return struct.unpack("<III", entry[:12])


def overwrite(file: Path, offset: int, content: bytes) -> None:
    """Replace bytes of a file in place."""
    with file.open("r+b") as opened:
        opened.seek(offset)
        opened.write(content)


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


def test_a_killed_writer_loses_nothing(writer, crash):
    """Without any flush, every item that `append` returned for is there after a kill."""
    with BigArray(crash(writer.path)) as array:
        assert array.recovery == Recovery()
        check_usable(array, 20)


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


@pytest.mark.parametrize("kept", range(ENTRY_BYTES))
@pytest.mark.parametrize("zeroed", [False, True])
def test_a_torn_last_entry_is_dropped_at_every_byte(writer, crash, kept, zeroed):
    """Wherever the index entry of the last item was cut off, the item before it is the last."""
    copy = crash(writer.path)
    index, place = page(copy, "index", 2), 3 * ENTRY_BYTES + kept
    if not zeroed:
        cut(index, place)
    else:
        rest = index.read_bytes()[place : 4 * ENTRY_BYTES]
        if not any(rest):  # the high bytes of the timestamp are zeros anyway
            return
        overwrite(index, place, bytes(len(rest)))
    with BigArray(copy) as array:
        if not zeroed and kept > 16:  # what was cut were zeros, and reads as zeros again
            assert array.end in {19, 20}
        else:
            assert array.recovery.items_dropped == 1
            check_usable(array, 19)


def test_a_torn_empty_item_is_seen(tmp_path, small, crash):
    """An item without bytes still has a check, so zeros are not taken for one."""
    with BigArray(tmp_path / "live", clock_ms=lambda: 0, **small) as array:
        array.append_many([b""] * 5)
        copy = crash(array.path)
    overwrite(page(copy, "index", 0), 4 * ENTRY_BYTES, bytes(ENTRY_BYTES))

    with BigArray(copy) as array:
        assert array.end == 4
        assert array.recovery.items_dropped == 1


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


def test_the_error_names_file_and_index(writer):
    """Damage is reported with the page file and the index of the item."""
    overwrite(page(writer.path, "data", 1), 10, b"!")

    with pytest.raises(CorruptDataError, match=r"item 5 .*data/000000000001\.page.*CRC32C"):
        writer.get(5)


@pytest.mark.parametrize(
    ("file", "end"), [("data/000000000003.page", 15), ("index/000000000002.page", 16)]
)
def test_a_lost_last_page_costs_what_it_held(writer, crash, file, end):
    """A last page that is missing, empty or cut costs its items, when they were not flushed."""
    for damage in LOSSES:
        copy = crash(writer.path)
        damage(copy / file)
        with BigArray(copy) as array:
            assert array.recovery.items_dropped == 20 - end
            assert f"item {end}" in array.recovery.reason
            check_usable(array, end)


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


def test_all_files_but_the_control_file_may_be_lost(writer, crash):
    """With every page gone the control file still says where the next item goes."""
    writer.sync()
    copy = crash(writer.path)
    for kind in ("data", "index"):
        for file in (copy / kind).iterdir():
            file.unlink()
    with BigArray(copy) as array:
        assert (array.end, array.recovery.items_damaged) == (20, 20)
        assert array.append(b"new") == 20
        with pytest.raises(CorruptDataError, match="item 7 is damaged"):
            array.get(7)


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


@pytest.mark.parametrize(("known", "end"), [(12, 15), (17, 17), (20, 20)])
def test_what_others_know_of_is_damaged_and_not_dropped(writer, crash, known, end):
    """What is torn stays below `least_end`, also where the checkpoint is before it."""
    copy = crash(writer.path)
    page(copy, "data", 3).unlink()  # items from 15 on, and the checkpoint is 0
    with BigArray(copy, least_end=known) as array:
        assert (array.recovery.items_damaged, array.recovery.items_dropped) == (end - 15, 20 - end)
        assert array.append(b"new") == end
        assert array.get_many(0, 15) == ITEMS[:15]
        for index in range(15, end):
            with pytest.raises(CorruptDataError, match=f"item {index} is damaged"):
                array.get(index)


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


def test_a_new_item_goes_to_no_page_that_a_damaged_one_names(writer, crash):
    """After damage the next item has a data page of its own, so nothing is written over."""
    writer.sync()
    copy = crash(writer.path)
    page(copy, "data", 3).unlink()
    with BigArray(copy) as array:
        array.append(b"new")
        assert page(copy, "data", 4).exists()
        assert not page(copy, "data", 3).exists()


def test_times_go_on_after_damage(writer, crash):
    """Timestamps do not decrease across a damaged end."""
    writer.append(b"later", timestamp_ms=50)
    writer.sync()
    copy = crash(writer.path)
    overwrite(page(copy, "data", 3), 2900, bytes(800))  # item 19 and the one after it
    with BigArray(copy, clock_ms=lambda: 1) as array:
        assert array.last_timestamp_ms == 7
        array.append(b"new")
        assert array.timestamp_ms(21) == 7


@pytest.mark.parametrize("number", [0, 1, 2])
def test_nothing_after_a_torn_unflushed_item_survives(writer, crash, number):
    """What a crash leaves of unflushed items is a prefix: a lost page costs all after it."""
    copy = crash(writer.path)
    page(copy, "data", number).unlink()

    with BigArray(copy) as array:
        assert array.recovery.items_dropped == 20 - 5 * number
        check_usable(array, 5 * number)


@pytest.mark.parametrize(("kind", "lost"), [("data", range(5, 10)), ("index", range(8, 16))])
def test_damage_of_flushed_items_costs_only_them(writer, crash, kind, lost):
    """A lost page in the middle of flushed data is reported on reading; the rest stays."""
    writer.sync()
    copy = crash(writer.path)
    page(copy, kind, 1).unlink()

    with BigArray(copy) as array:
        assert array.recovery == Recovery()
        for index, item in enumerate(ITEMS):
            if index in lost:
                with pytest.raises(CorruptDataError, match=r"000000000001\.page is missing"):
                    array.get(index)
            else:
                assert array.get(index) == item
        assert array.append(b"more") == 20
        array.truncate_front(lost.stop)
        assert array.get_many(lost.stop, 100) == [*ITEMS[lost.stop :], b"more"]


def test_written_but_unpublished_items_are_kept(writer, crash):
    """A stale `end`, as a power loss leaves it, does not hide items that are whole."""
    copy = crash(writer.path)
    overwrite(copy / "control", 16, (12).to_bytes(8, "little"))

    with BigArray(copy) as array:
        assert array.recovery == Recovery(items_adopted=8)
        check_usable(array, 20)


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


@pytest.mark.parametrize("bit", range(64))
def test_a_flipped_bit_of_the_end_costs_nothing(writer, crash, bit):
    """Whatever `end` became, the items themselves say where the end is."""
    copy = crash(writer.path)
    overwrite(copy / "control", 16, (20 ^ 1 << bit).to_bytes(8, "little"))

    with BigArray(copy) as array:
        check_usable(array, 20)


def test_a_reader_does_not_open_a_damaged_control_file(writer, crash):
    """A reader cannot repair, and says who can."""
    copy = crash(writer.path)
    for size in (4096, 0):
        (copy / "control").write_bytes(bytes(size))
        with pytest.raises(CorruptDataError, match="for writing once"):
            BigArray(copy, read_only=True)


def test_recovery_is_logged_in_one_line(writer, crash, caplog):
    """One warning says what was dropped and why; a clean open says nothing."""
    copy = crash(writer.path)
    page(copy, "data", 3).unlink()
    with caplog.at_level(logging.WARNING, "memq.bigqueue"):
        BigArray(copy).close()
        [record] = caplog.records
        caplog.clear()
        BigArray(copy).close()

    assert "5 items (3585 bytes) dropped" in record.getMessage()
    assert "data page 3" in record.getMessage()
    assert caplog.records == []


def test_a_failed_open_releases_the_lock(writer, crash):
    """An array that could not be opened can be opened once it is repaired."""
    copy = crash(writer.path)
    metadata = (copy / "meta.json").read_bytes()
    (copy / "meta.json").write_bytes(b"?")
    with pytest.raises(CorruptDataError):
        BigArray(copy)
    (copy / "meta.json").write_bytes(metadata)

    BigArray(copy).close()
    with BigArray(copy), pytest.raises(LockedError):
        BigArray(copy)


def test_the_scan_is_bounded(tmp_path, small, crash, monkeypatch):
    """With far more unflushed pages than the bound, only the last ones are verified at opening."""
    monkeypatch.setattr("memq.core.bigqueue.recovery.MAX_SCAN_PAGES", 2)
    with BigArray(tmp_path / "live", **small) as array:
        array.append_many(ITEMS)
        copy = crash(array.path)
    overwrite(page(copy, "data", 1), 0, b"!")

    with BigArray(copy) as array:
        assert array.recovery == Recovery()
        with pytest.raises(CorruptDataError, match="item 5"):
            array.get(5)
        assert array.get(6) == ITEMS[6]


def test_everything_lost_still_opens(writer, crash):
    """With all pages gone the array is empty, says so, and can be used."""
    copy = crash(writer.path)
    for kind in ("data", "index"):
        for file in (copy / kind).iterdir():
            file.unlink()

    with BigArray(copy) as array:
        assert array.recovery.items_dropped == 20
        check_usable(array, 0)


def test_without_an_entry_writing_goes_on_in_a_fresh_page(writer, crash):
    """When nobody knows where the last item ended, the next goes to a page never used before."""
    writer.truncate_front(7)
    copy = crash(writer.path)
    for file in (copy / "index").iterdir():
        file.unlink()

    with BigArray(copy) as array:
        assert (array.start, array.end) == (7, 7)
        assert array.recovery.items_dropped == 13
        assert array.append(b"next") == 7
        assert page(copy, "data", 4).exists()
        array.truncate_front(8)
        assert [file.stem for file in (copy / "data").iterdir()] == ["000000000004"]


def test_errors_of_opening_are_typed(tmp_path):
    """A path that cannot be a folder is a MemqError that names it."""
    (tmp_path / "file").write_text("")
    with pytest.raises(MemqError, match="file"):
        BigArray(tmp_path / "file")
