"""The disk that forgets, tried with plain system calls and with the product's own files."""

import mmap
import os
import random

import pytest

from memq.runtime.files import sync_folder, write_durably
from tests.fakes.disk import ForgetfulDisk, PowerCut
from tests.simulation.crashes import disks

SEEDS = 40


def disk_at(folder, seed=0, **options):
    """A disk in a folder."""
    return ForgetfulDisk(folder / "disk", random.Random(seed), **options)


def tree_of(folder):
    """Every file below a folder with its content."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def after_crash(memory_path, act):
    """What the disk holds after `act` and a crash, for each seed."""
    found = []
    for disk in disks(memory_path, SEEDS):
        act(disk.root)
        disk.crash()
        found.append(tree_of(disk.root))
    return found


def test_a_synced_file_without_a_synced_name_may_be_lost(memory_path):
    """Syncing a file does not bring its name; where the name survives, so does the content."""
    trees = after_crash(memory_path, lambda root: write_durably(root / "a", [memoryview(b"x" * 9)]))
    assert {} in trees
    assert {"a": b"x" * 9} in trees
    assert all(tree in ({}, {"a": b"x" * 9}) for tree in trees)


def test_content_that_was_not_synced_survives_in_part_at_most(memory_path):
    """A name may survive without its content, or with some of its blocks."""

    def act(root):
        (root / "a").write_bytes(b"x" * 40_000)
        sync_folder(root)

    trees = [tree["a"] for tree in after_crash(memory_path, act)]
    assert {len(content) for content in trees} >= {0, 40_000}
    assert any(0 < content.count(b"x") < len(content) for content in trees)
    assert all(set(content) <= set(b"x\0") for content in trees)


def mapped(path):
    """A map of all of a file."""
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 0)


def test_any_subset_of_the_blocks_of_a_map_survives(memory_path):
    """Stores into a map are lost block by block, and kept once the file was synced."""
    seen = set()
    for disk in disks(memory_path, SEEDS):
        path = disk.root / "page"
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        os.posix_fallocate(fd, 0, 4 * 4096)
        pages = mapped(path)
        pages[0] = pages[4096] = 1
        os.fdatasync(fd)
        sync_folder(disk.root)
        pages[1] = pages[8192] = pages[12288] = 2
        disk.crash()
        content = path.read_bytes()
        pages[5] = 9  # the old life's map
        os.close(fd)
        assert path.read_bytes() == content
        assert len(content) == 4 * 4096
        assert content[0] == content[4096] == 1
        seen.add((content[1], content[8192], content[12288]))
    assert seen > {(0, 0, 0), (2, 2, 2)}
    assert len(seen) > 4


@pytest.mark.parametrize("through", ["calls", "map"])
def test_a_failed_fsync_forgets_what_it_should_have_written(memory_path, through):
    """After EIO a second fsync succeeds, and the data is not durable all the same."""
    survived = set()
    for disk in disks(memory_path, SEEDS):
        path = disk.root / "file"
        write_durably(path, [memoryview(b"a" * 8192)])
        sync_folder(disk.root)
        disk.fail("sync")
        fd = os.open(path, os.O_WRONLY)
        if through == "calls":
            os.pwrite(fd, b"b" * 8192, 0)
        else:
            mapped(path)[:] = b"b" * 8192
        with pytest.raises(OSError, match="Input/output"):
            os.fsync(fd)
        os.fsync(fd)
        os.close(fd)
        disk.crash()
        survived.add(path.read_bytes()[::4096])
        assert disk.counts["sync fails with EIO"] == 1
    assert survived == {b"aa", b"ab", b"ba", b"bb"}


def test_a_full_disk_takes_what_fits(memory_path):
    """Writes are cut short at the last free byte, and then refused like new files and pages."""
    with disk_at(memory_path) as disk:
        fd = os.open(disk.root / "file", os.O_RDWR | os.O_CREAT)
        disk.room_bytes = 10
        assert os.write(fd, b"x" * 8) == 8
        assert os.write(fd, b"x" * 8) == 2
        for call in (
            lambda: os.write(fd, b"x"),
            lambda: os.posix_fallocate(fd, 0, 4096),
            (disk.root / "folder").mkdir,
            lambda: (disk.root / "other").write_bytes(b""),
        ):
            with pytest.raises(OSError, match="No space left"):
                call()
        disk.mend()
        assert os.write(fd, b"x") == 1
        os.close(fd)
        assert disk.counts["ENOSPC"] == 4


def test_nothing_reaches_the_disk_after_a_cut(memory_path):
    """Cleaning up behind a cut, in files and in maps, is without effect."""
    with disk_at(memory_path) as disk:
        write_durably(disk.root / "page", [memoryview(bytes(4096))])
        sync_folder(disk.root)
        page = mapped(disk.root / "page")
        disk.cut_after(2)
        with pytest.raises(PowerCut):
            try:
                write_durably(disk.root / "new", [memoryview(b"x")])  # create, write, and no fsync
            finally:
                page[:] = b"y" * 4096
                with pytest.raises(PowerCut):
                    (disk.root / "new").unlink()
        assert disk.is_off
        disk.crash()
        assert (disk.root / "page").read_bytes() == bytes(4096)
        (disk.root / "after").mkdir()
