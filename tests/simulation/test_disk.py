"""The disk that forgets, tried with plain system calls and with the product's own files."""

from __future__ import annotations

import fcntl
import gc
import mmap
import os
import random
import shutil

import pytest

from memq.bigqueue import BigArray
from memq.broker.catalog import Catalog
from memq.core.governor.topics import new_topic
from memq.core.topic import TopicConfig
from memq.errors import LockedError, StorageError
from memq.runtime.files import sync_folder, write_durably
from memq.storage.local import LocalStorage
from tests.fakes.disk import ForgetfulDisk, PowerCut

SEEDS = range(40)


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


def after_crash(memory_path, act, seeds=SEEDS):
    """What the disk holds after `act` and a crash, for each seed, and before it."""
    found = []
    for seed in seeds:
        with disk_at(memory_path / str(seed), seed) as disk:
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


def test_a_rename_shows_at_both_ends_or_at_none(memory_path):
    """Whatever survives of a move between two folders, the file is in one of them."""

    def act(root):
        for name in ("a", "b"):
            (root / name).mkdir()
        sync_folder(root)
        write_durably(root / "a" / "file", [memoryview(b"x")])
        sync_folder(root / "a")
        (root / "a" / "file").rename(root / "b" / "file")

    trees = after_crash(memory_path, act)
    assert {tuple(tree) for tree in trees} == {("a/file",), ("b/file",)}


def test_folders_vanish_and_come_back_with_all_that_is_in_them(memory_path):
    """A folder removed with its files is there with what of it is durable, or is not there."""

    def act(root):
        (root / "t" / "sub").mkdir(parents=True)
        write_durably(root / "t" / "sub" / "x", [memoryview(b"x")])
        for folder in (root / "t" / "sub", root / "t", root):
            sync_folder(folder)
        shutil.rmtree(root / "t")
        sync_folder(root)

    assert all(tree == {} for tree in after_crash(memory_path, act))


def mapped(path):
    """A map of all of a file."""
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 0)


def test_any_subset_of_the_blocks_of_a_map_survives(memory_path):
    """Stores into a map are lost block by block, and kept once the file was synced."""
    seen = set()
    for seed in SEEDS:
        with disk_at(memory_path / str(seed), seed) as disk:
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
    for seed in SEEDS:
        with disk_at(memory_path / str(seed), seed) as disk:
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


def test_what_is_written_again_after_a_failed_fsync_becomes_durable(memory_path):
    """A block that was written anew after EIO is dirty again, so the next fsync takes it."""
    for seed in SEEDS:
        with disk_at(memory_path / str(seed), seed) as disk:
            path = disk.root / "file"
            fd = os.open(path, os.O_RDWR | os.O_CREAT)
            os.posix_fallocate(fd, 0, 8192)
            page = mapped(path)
            page[:] = b"b" * 8192
            disk.fail("sync")
            with pytest.raises(OSError, match="Input/output"):
                os.fdatasync(fd)
            page[:] = b"b" * 8192
            os.fdatasync(fd)
            os.close(fd)
            sync_folder(disk.root)
            disk.crash()
            assert path.read_bytes() == b"b" * 8192


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


def test_a_crash_leaves_descriptors_and_locks_of_the_old_life_behind(memory_path):
    """The new life takes the lock; what the old one writes or closes late changes nothing."""
    with disk_at(memory_path) as disk:
        array = BigArray(disk.root / "array", page_bytes=4096, index_page_items=8)
        array.append(b"x")
        array.sync()
        with pytest.raises(LockedError):
            BigArray(disk.root / "array")
        old = os.open(disk.root / "array" / "meta.json", os.O_WRONLY)
        disk.kill()
        again = BigArray(disk.root / "array")
        assert again.get(0) == b"x"
        disk.crash()
        os.write(old, b"damage")
        os.close(old)
        del array, again
        gc.collect()
        write_durably(disk.root / "kept", [memoryview(b"x")])
        fcntl.flock(os.open(disk.root / "kept", os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_the_same_seed_loses_the_same(memory_path):
    """Two runs with one seed end in the same state."""

    def act(root):
        for number in range(20):
            (root / str(number)).write_bytes(b"%d" % number * 9_000)
            if number % 3 == 0:
                sync_folder(root)
        (root / "7").unlink()

    first = after_crash(memory_path / "1", act)
    assert first == after_crash(memory_path / "2", act)
    assert len({str(tree) for tree in first}) > 10


@pytest.mark.parametrize("seed", range(10))
def test_a_new_catalog_survives(tmp_path, seed):
    """A topic that was created in a new data folder is there after a power cut."""
    with disk_at(tmp_path, seed) as disk:
        catalog = Catalog(disk.root / "data/topics")
        config = TopicConfig.create("t")
        catalog.save(new_topic(config, (), now_ms=1, topic_id="0" * 16, request_id=""))
        disk.crash()
        assert Catalog(disk.root / "data/topics").names() == ["t"]


@pytest.mark.parametrize("seed", range(10))
def test_a_deleted_object_does_not_come_back(tmp_path, seed):
    """An object that was deleted is gone after a power cut as well."""
    with disk_at(tmp_path, seed) as disk:
        storage = LocalStorage(disk.root / "objects")
        for key in ("a/b", "a/c"):
            storage.put(key, [b"x" * 10_000], timeout_s=10)
        storage.delete("a/b")
        disk.crash()
        assert [info.key for info in LocalStorage(disk.root / "objects").list("")] == ["a/c"]


@pytest.mark.parametrize("seed", range(10))
def test_a_root_whose_first_sync_failed_survives(tmp_path, seed):
    """An object that is put at the second try, after the sync of the root's name failed, stays."""
    with disk_at(tmp_path, seed) as disk:
        storage = LocalStorage(disk.root / "objects")
        disk.fail("sync_folder")
        with pytest.raises(StorageError):
            storage.put("a/b", [b"x" * 10_000], timeout_s=10)
        storage.put("a/b", [b"x" * 10_000], timeout_s=10)
        disk.crash()
        assert bytes(LocalStorage(disk.root / "objects").get("a/b")) == b"x" * 10_000


@pytest.mark.parametrize("seed", range(10))
def test_a_root_of_a_process_that_was_killed_survives(tmp_path, seed):
    """An object below a root whose maker was killed before it could sync it stays."""
    with disk_at(tmp_path, seed) as disk:
        (disk.root / "objects").mkdir()
        disk.kill()
        LocalStorage(disk.root / "objects").put("a/b", [b"x" * 10_000], timeout_s=10)
        disk.crash()
        assert bytes(LocalStorage(disk.root / "objects").get("a/b")) == b"x" * 10_000


@pytest.mark.parametrize("seed", range(10))
def test_what_is_not_listed_any_more_does_not_come_back(tmp_path, seed):
    """A removal whose sync failed is made durable before a list leaves the object out."""
    with disk_at(tmp_path, seed) as disk:
        storage = LocalStorage(disk.root / "objects")
        storage.put("a/b", [b"x" * 10_000], timeout_s=10)
        disk.fail("sync_folder")
        with pytest.raises(StorageError):
            storage.delete("a/b")
        assert list(storage.list("")) == []
        disk.crash()
        assert list(LocalStorage(disk.root / "objects").list("")) == []
