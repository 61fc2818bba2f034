"""What is special to the embedded queue: its lock, failed flushes, damage, leftovers."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from memq.core.notification import folders
from memq.core.notification.embedded import EmbeddedQueue
from memq.core.notification.group_commit import MAX_ROUND, GroupCommit, Publish
from memq.core.notification.queue import Publication
from memq.core.notification.read_partition import PAGE_BYTES
from memq.errors import (
    CorruptDataError,
    FencedError,
    LimitReachedError,
    LockedError,
    OffsetOutOfRangeError,
    PublishUncertainError,
    QueueError,
)


@pytest.fixture
async def queue(tmp_path):
    """A queue with a topic of two read partitions, open for write partitions 0 and 1."""
    found = EmbeddedQueue(tmp_path / "queue")
    await found.create_topic("t", 2)
    await found.fence("t", 0)
    await found.fence("t", 1)
    yield found
    await found.close()


async def publish(queue, *payloads, partition=0, write_partition=0):
    """Publish payloads to one partition of the topic."""
    publications = [Publication(partition, payload, 1) for payload in payloads]
    return await queue.publish("t", write_partition, publications)


async def payloads(queue, partition=0, offset=0):
    """The payloads of a partition from an offset on."""
    entries = await queue.fetch("t", partition, offset, max_entries=10_000, max_bytes=1 << 30)
    return [entry.payload for entry in entries]


def data_page(tmp_path, partition=0, number=0):
    """The file of a data page."""
    return tmp_path / f"queue/topics/t/{partition}/data/{number:012d}.page"


class FailedDisk:
    """While it is entered, the first data page of a partition cannot be flushed."""

    def __init__(self, tmp_path, partition=0):
        self.file = data_page(tmp_path, partition)
        self.away = tmp_path / "away"

    def __enter__(self):
        self.file.rename(self.away)

    def __exit__(self, *_):
        self.away.rename(self.file)


# -- the lock -------------------------------------------------------------------------------


async def test_a_directory_belongs_to_one_queue(queue, tmp_path):
    """A second queue on the directory is refused with the folder and the process that has it."""
    with pytest.raises(
        LockedError, match=f"{tmp_path / 'queue'} is in use by process {os.getpid()}"
    ):
        EmbeddedQueue(tmp_path / "queue")
    await queue.close()
    await EmbeddedQueue(tmp_path / "queue").close()


def test_a_directory_that_cannot_be_made_is_a_typed_error(tmp_path):
    """Where a file is in the way, the error says so."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(QueueError, match=f"cannot open {tmp_path / 'file/queue'}"):
        EmbeddedQueue(tmp_path / "file/queue")


# -- failed flushes -------------------------------------------------------------------------


async def test_a_failed_flush_is_uncertain_until_fenced(queue, tmp_path):
    """A publication whose flush failed is uncertain; all others are refused until the fence."""
    await publish(queue, b"a")
    with FailedDisk(tmp_path), pytest.raises(PublishUncertainError, match="fence it, then fetch"):
        await publish(queue, b"b")
    assert await payloads(queue) == [b"a"]
    with pytest.raises(FencedError):
        await publish(queue, b"c")
    await queue.fence("t", 0)
    held = await payloads(queue)
    assert held in ([b"a"], [b"a", b"b"])
    assert await publish(queue, b"c") == [len(held)]
    assert await payloads(queue) == [*held, b"c"]


async def test_a_fence_settles_what_a_failed_flush_left(queue, tmp_path):
    """An entry that reached the disk after all is there after the fence, not only later."""
    twin = EmbeddedQueue(tmp_path / "twin")
    await twin.create_topic("t", 2)
    await twin.fence("t", 0)
    await publish(twin, b"a", b"b")
    await twin.close()
    await publish(queue, b"a")
    with FailedDisk(tmp_path), pytest.raises(PublishUncertainError):
        await publish(queue, b"b")
    index = "topics/t/0/index/000000000000.page"
    with (tmp_path / "queue" / index).open("r+b") as file:
        file.write((tmp_path / "twin" / index).read_bytes())
    await queue.fence("t", 0)
    assert await payloads(queue) == [b"a", b"b"]
    assert await publish(queue, b"c") == [2]


async def test_a_failed_flush_does_not_stop_other_write_partitions(queue, tmp_path):
    """Another owner's next publication to the partition opens it again and takes effect."""
    await publish(queue, b"a")
    with FailedDisk(tmp_path), pytest.raises(PublishUncertainError):
        await publish(queue, b"b")
    await publish(queue, b"c", write_partition=1)
    held = await payloads(queue)
    assert (held[0], held[-1]) == (b"a", b"c")
    await queue.fence("t", 0)
    assert await payloads(queue) == held


async def test_a_failed_partition_costs_others_nothing(queue, tmp_path):
    """Of the publications of one round only those to the failed partition fail."""
    await publish(queue, b"a")
    with FailedDisk(tmp_path):
        outcomes = await asyncio.gather(
            publish(queue, b"b", partition=0),
            publish(queue, b"c", partition=1, write_partition=1),
            return_exceptions=True,
        )
    assert isinstance(outcomes[0], PublishUncertainError)
    assert outcomes[1] == [0]
    assert await payloads(queue, partition=1) == [b"c"]


async def test_a_publication_that_took_effect_in_part_is_uncertain(queue, tmp_path):
    """When one of two partitions cannot take its entry, the call is uncertain and fenced out."""
    await publish(queue, b"a")
    with FailedDisk(tmp_path), pytest.raises(PublishUncertainError):
        await queue.publish("t", 0, [Publication(1, b"x", 1), Publication(0, b"b", 1)])
    with pytest.raises(FencedError):
        await publish(queue, b"c")
    assert await payloads(queue, partition=1) == [b"x"]


@pytest.mark.parametrize("first", [0, 1])
async def test_a_publication_of_which_one_partition_is_in_doubt_is_uncertain(
    queue, tmp_path, first
):
    """Whatever is certain of the other one, and whichever of the two comes first."""
    await publish(queue, b"a")
    (tmp_path / "queue/topics/t/1").rename(tmp_path / "missing")
    publications = [Publication(each, b"x", 1) for each in (first, 1 - first)]
    with FailedDisk(tmp_path), pytest.raises(PublishUncertainError):
        await queue.publish("t", 0, publications)
    with pytest.raises(FencedError):
        await publish(queue, b"c")


async def test_a_publication_of_which_one_partition_takes_nothing_is_uncertain(queue, tmp_path):
    """What another partition has taken is there: it may not be told that nothing was published."""
    (tmp_path / "queue/topics/t/1").rename(tmp_path / "away")
    for publications in (
        [Publication(0, b"a", 1), Publication(1, b"x", 1)],
        [Publication(1, b"x", 1), Publication(0, b"b", 1)],
    ):
        with pytest.raises(PublishUncertainError, match="fence it, then fetch"):
            await queue.publish("t", 0, publications)
        with pytest.raises(FencedError):
            await publish(queue, b"c")
        await queue.fence("t", 0)
    with pytest.raises(CorruptDataError):
        await publish(queue, b"x", partition=1)
    (tmp_path / "away").rename(tmp_path / "queue/topics/t/1")
    assert await payloads(queue) == [b"a", b"b"]
    assert await payloads(queue, partition=1) == []
    assert await publish(queue, b"c") == [2], "a refusal of all is certain, and the owner stays"


async def test_a_fence_that_cannot_settle_changes_no_owner(queue, tmp_path):
    """What was in doubt stays refused, and what was wanted with it is not owned."""
    await publish(queue, b"a")
    with FailedDisk(tmp_path), pytest.raises(PublishUncertainError):
        await publish(queue, b"b")
    (tmp_path / "queue/topics/t/0").rename(tmp_path / "away")
    with pytest.raises(CorruptDataError):
        await queue.fence("t", 0, 5)
    assert [queue.owns("t", each) for each in (0, 1, 5)] == [True, True, False]
    for each in (0, 5):
        with pytest.raises(FencedError):
            await publish(queue, b"c", partition=1, write_partition=each)
    await publish(queue, b"d", partition=1, write_partition=1)
    (tmp_path / "away").rename(tmp_path / "queue/topics/t/0")
    await queue.fence("t", 0, 5)
    assert queue.owns("t", 5)
    await publish(queue, b"e", write_partition=5)
    assert (await payloads(queue))[-1] == b"e"


async def test_entries_survive_a_failed_flush_and_a_restart(queue, tmp_path):
    """What was acked before a failed flush is there in the next process."""
    await publish(queue, b"a", b"b")
    with FailedDisk(tmp_path), pytest.raises(PublishUncertainError):
        await publish(queue, b"c")
    await queue.close()
    successor = EmbeddedQueue(tmp_path / "queue")
    assert (await payloads(successor))[:2] == [b"a", b"b"]
    await successor.close()


@pytest.fixture
def small_disk(tmp_path):
    """A file system with room for about one data page; skips where mounting is not allowed."""
    folder = tmp_path / "queue"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={PAGE_BYTES + (2 << 20)}", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a tmpfs needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


async def test_a_full_disk_refuses_and_clears(small_disk):
    """With no room for a page nothing is published and the owner stays; with room it goes on."""
    queue = EmbeddedQueue(small_disk)
    await queue.create_topic("t", 2)
    await queue.fence("t", 0)
    await publish(queue, b"a")
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * (1 << 20))
    with pytest.raises(QueueError, match="No space left") as caught:
        await publish(queue, b"b", partition=1)
    assert type(caught.value) is QueueError
    assert await queue.offsets("t", 1) == (0, 0)
    assert await publish(queue, b"c") == [1]
    await queue.delete_topic("t")
    await queue.create_topic("t", 2)
    await queue.fence("t", 0)
    assert await publish(queue, b"b", partition=1) == [0]
    await queue.close()


# -- damage ---------------------------------------------------------------------------------


def flip(file, needle):
    """Flip one bit of the first place that holds the bytes."""
    content = bytearray(file.read_bytes())
    content[content.index(needle)] ^= 1
    file.write_bytes(content)


async def test_a_damaged_entry_is_named_and_the_others_are_readable(queue, tmp_path):
    """Damage in the middle is an error for that entry only."""
    await publish(queue, b"first", b"second", b"third")
    await queue.close()
    flip(data_page(tmp_path), b"second")
    successor = EmbeddedQueue(tmp_path / "queue")
    assert await successor.offsets("t", 0) == (0, 3)
    assert await payloads(successor, offset=2) == [b"third"]
    with pytest.raises(CorruptDataError, match="item 1 is damaged"):
        await payloads(successor, offset=1)
    await successor.close()


async def test_a_damaged_entry_does_not_hide_those_before_it(queue, tmp_path):
    """A fetch that meets damage gives what stands before it; the next one says what is damaged."""
    await publish(queue, b"first", b"second", b"third", b"fourth")
    await queue.close()
    flip(data_page(tmp_path), b"second")
    flip(data_page(tmp_path), b"third")
    successor = EmbeddedQueue(tmp_path / "queue")
    assert await payloads(successor) == [b"first"]
    with pytest.raises(
        CorruptDataError,
        match=r"offsets 1 to 2 of 't'/0 damaged: .*`memq recover DATA_DIR`.* at offset 3",
    ):
        await payloads(successor, offset=1)
    await successor.close()


def forget(tmp_path, *names):
    """Delete files of partition 0."""
    for name in names:
        (tmp_path / "queue/topics/t/0" / name).unlink()


@pytest.mark.parametrize(
    "damage",
    [
        lambda tmp_path: flip(data_page(tmp_path), b"third"),
        lambda tmp_path: forget(tmp_path, "data/000000000000.page"),
        lambda tmp_path: forget(tmp_path, "index/000000000000.page"),
        lambda tmp_path: forget(tmp_path, "control"),
        # All that knows the end is gone, but for the group that has been there.
        lambda tmp_path: forget(tmp_path, "control", "index/000000000000.page"),
    ],
)
async def test_an_offset_is_never_used_again(queue, tmp_path, damage):
    """Whatever becomes of the end, the next publication has an offset that no other ever had."""
    assert await publish(queue, b"first", b"second", b"third") == [0, 1, 2]
    await queue.commit("g", "t", {0: 3})
    await queue.close()
    damage(tmp_path)
    successor = EmbeddedQueue(tmp_path / "queue")
    await successor.fence("t", 0)
    assert await publish(successor, b"new") == [3]
    [entry] = await successor.fetch("t", 0, 3, max_entries=9, max_bytes=99)
    assert entry.payload == b"new"
    for offset, payload in enumerate((b"first", b"second", b"third")):
        with contextlib.suppress(CorruptDataError):
            assert (await payloads(successor, offset=offset))[0] == payload
    await successor.close()


@pytest.mark.parametrize("damaged", ["a", "z"])
async def test_a_damaged_group_hides_no_commit_of_another(queue, tmp_path, damaged):
    """Where nothing else knows the end, each group that can be read bounds it."""
    await publish(queue, b"first", b"second", b"third")
    for group, offset in (("a", 1), ("g", 3), ("z", 2)):
        await queue.commit(group, "t", {0: offset})
    await queue.close()
    forget(tmp_path, "control", "index/000000000000.page")
    (tmp_path / f"queue/topics/t/groups/{damaged}.json").write_bytes(b"{")
    successor = EmbeddedQueue(tmp_path / "queue")
    await successor.fence("t", 0)
    assert await publish(successor, b"new") == [3]
    await successor.close()


@pytest.mark.parametrize(
    ("damage", "goes_on_ms"),
    [
        (lambda tmp_path: forget(tmp_path, "meta.json"), 71),
        (lambda tmp_path: flip(data_page(tmp_path, partition=1), b"last"), 61),
    ],
)
async def test_running_time_goes_on_after_all_that_can_be_read(queue, tmp_path, damage, goes_on_ms):
    """A read partition, or an entry, that is damaged hides the running time of no other."""
    await queue.publish("t", 0, [Publication(0, b"first", 1, 50), Publication(1, b"second", 1, 60)])
    await queue.publish("t", 0, [Publication(1, b"last", 1, 70)])
    await queue.close()
    damage(tmp_path)
    successor = EmbeddedQueue(tmp_path / "queue")
    assert (await successor.times()).running_ms == goes_on_ms
    await successor.close()


async def test_a_damaged_end_is_named_and_logged(queue, tmp_path, caplog):
    """Entries that are lost at the end are reported with topic, partition and offsets."""
    await publish(queue, b"first", b"second", b"third")
    await queue.close()
    flip(data_page(tmp_path), b"third")
    successor = EmbeddedQueue(tmp_path / "queue")
    with caplog.at_level(logging.ERROR, logger="memq.queue"):
        assert await payloads(successor) == [b"first", b"second"]
    assert "t/0 lost 1 published notification, offset 2:" in caplog.text
    assert await successor.offsets("t", 0) == (0, 3)
    with pytest.raises(CorruptDataError, match="offset 2 of 't'/0 damaged"):
        await payloads(successor, offset=2)
    await successor.close()


@pytest.mark.parametrize(
    ("place", "damage"),
    [
        ("topic.json", lambda file: file.write_bytes(b"{")),
        ("topic.json", Path.unlink),
        ("1", shutil.rmtree),
        ("groups", shutil.rmtree),
    ],
)
async def test_what_is_missing_of_a_topic_is_not_empty(queue, tmp_path, place, damage):
    """A topic of which something is damaged or missing is refused and named; others are served."""
    await queue.create_topic("other", 1)
    await queue.close()
    file = tmp_path / "queue/topics/t" / place
    damage(file)
    again = EmbeddedQueue(tmp_path / "queue")
    assert await again.topics() == ["other", "t"]
    for call in (again.fence("t", 0), again.offsets("t", 0), again.create_topic("t", 2)):
        with pytest.raises(CorruptDataError, match=f"{file} is .*`memq recover DATA_DIR`"):
            await call
    assert await again.offsets("other", 0) == (0, 0)
    await again.delete_topic("t")
    assert await again.topics() == ["other"]
    await again.create_topic("t", 2)
    await again.close()


async def test_a_deletion_that_failed_half_way_is_finished_by_the_next(
    queue, tmp_path, monkeypatch
):
    """A topic whose folder was moved, and then the disk failed, is removed by the next attempt."""

    def fail(folder):
        monkeypatch.undo()
        raise OSError(errno.EIO, "planned")

    monkeypatch.setattr(folders, "sync_folder", fail)
    with pytest.raises(QueueError, match="planned"):
        await queue.delete_topic("t")
    await queue.delete_topic("t")
    assert await queue.topics() == []
    assert list((tmp_path / "queue").glob("*/t*")) == []


async def test_an_emptied_partition_is_not_a_new_one(queue, tmp_path):
    """A partition whose folder is empty is refused: its offsets would begin anew."""
    await publish(queue, b"first")
    await queue.close()
    folder = tmp_path / "queue/topics/t/0"
    shutil.rmtree(folder)
    folder.mkdir()
    again = EmbeddedQueue(tmp_path / "queue")
    with pytest.raises(CorruptDataError, match=r"meta\.json is missing"):
        await again.offsets("t", 0)
    assert await again.offsets("t", 1) == (0, 0)
    await again.close()


async def test_stray_files_are_no_topics(queue, tmp_path):
    """What does not belong into the queue's folders is left alone."""
    await queue.close()
    (tmp_path / "queue/topics/notes.txt").write_text("?")
    (tmp_path / "queue/moving/notes.txt").write_text("?")
    again = EmbeddedQueue(tmp_path / "queue")
    assert await again.topics() == ["t"]
    await again.close()


async def test_a_damaged_group_costs_other_groups_nothing(queue, tmp_path):
    """A group whose file makes no sense is an error that names the file; deleting it helps."""
    await queue.commit("good", "t", {0: 1})
    await queue.commit("bad", "t", {0: 1})
    (tmp_path / "queue/topics/t/groups/bad.json").write_bytes(b"[]")
    with pytest.raises(CorruptDataError, match=r"bad\.json is damaged"):
        await queue.committed("bad", "t")
    with pytest.raises(CorruptDataError):
        await queue.commit("bad", "t", {1: 1})
    assert await queue.committed("good", "t") == {0: 1}
    await queue.delete_group("bad", "t")
    await queue.commit("bad", "t", {1: 5})
    assert await queue.committed("bad", "t") == {1: 5}


async def test_half_made_topics_are_removed(tmp_path):
    """What a crash left while a topic was made or deleted is gone at the next start."""
    (tmp_path / "moving/half/0").mkdir(parents=True)
    queue = EmbeddedQueue(tmp_path)
    assert await queue.topics() == []
    assert list((tmp_path / "moving").iterdir()) == []
    await queue.create_topic("half", 1)
    assert await queue.topics() == ["half"]
    await queue.close()


# -- the rest -------------------------------------------------------------------------------


async def test_retention_gives_disk_space_back(queue, tmp_path):
    """Truncation deletes the pages that hold nothing else."""
    for _ in range(7):
        await publish(queue, b"x" * (PAGE_BYTES // 2 - 100))
    pages = data_page(tmp_path).parent
    assert len(list(pages.iterdir())) == 4
    await queue.truncate("t", 0, 6)
    assert len(list(pages.iterdir())) == 1
    assert await queue.offsets("t", 0) == (6, 7)


@pytest.mark.parametrize("kept", [0, 1])
async def test_what_is_forgotten_is_gone_though_its_page_cannot_be_deleted(
    queue, tmp_path, monkeypatch, kept
):
    """Truncation moves the start, also on an error; the next one deletes what the first left."""
    end = 7

    def refused(_path):
        raise OSError(errno.EIO, "Input/output error")

    for _ in range(end):
        await publish(queue, b"x" * (PAGE_BYTES // 2 - 100))
    pages = data_page(tmp_path).parent
    with monkeypatch.context() as patched:
        patched.setattr("pathlib.Path.unlink", refused)
        with pytest.raises(QueueError, match="cannot delete"):
            await queue.truncate("t", 0, end - kept)
    assert len(list(pages.iterdir())) == 4
    assert await queue.offsets("t", 0) == (end - kept, end)
    assert await queue.offset_since("t", 0, 0) == end - kept
    assert len(await payloads(queue, offset=end - kept)) == kept
    with pytest.raises(OffsetOutOfRangeError):
        await payloads(queue)
    await queue.truncate("t", 0, end - kept)
    assert len(list(pages.iterdir())) == 1


async def test_a_cancelled_publish_leaves_the_others_alone(queue):
    """Cancelling one of several calls of a round neither fails the others nor reorders them."""
    calls = [asyncio.ensure_future(publish(queue, b"%d" % n)) for n in range(10)]
    waiter = asyncio.ensure_future(queue.wait("t", {0: 8}, 30))
    await asyncio.sleep(0)
    calls[3].cancel()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(outcomes[3], asyncio.CancelledError)
    held = await payloads(queue)
    assert held in (
        [b"%d" % n for n in range(10)],
        [b"%d" % n for n in range(10) if n != 3],
    )
    assert [held[offset] for n, (offset,) in enumerate(o for o in outcomes if type(o) is list)] == [
        b"%d" % n for n in range(10) if n != 3
    ]
    assert await waiter


async def test_publications_that_wait_are_bounded():
    """When the disk hangs, calls beyond the bound are refused at once; the others end later."""
    released = Event()
    with ThreadPoolExecutor(1) as thread:
        thread.submit(released.wait)
        group_commit = GroupCommit(thread, lambda _: None)
        calls = [
            asyncio.ensure_future(group_commit.publish(Publish("t", 0, {0}, [], [])))
            for _ in range(MAX_ROUND)
        ]
        await asyncio.sleep(0)
        assert repr(group_commit) == f"<GroupCommit [{MAX_ROUND} waiting]>"
        with pytest.raises(QueueError, match=f"{MAX_ROUND} publications wait"):
            await group_commit.publish(Publish("t", 0, {0}, [], []))
        released.set()
        assert await asyncio.gather(*calls) == [[]] * MAX_ROUND


async def test_the_event_loop_runs_while_the_disk_hangs(queue):
    """A writer that is stuck holds back neither fetches nor commits."""
    await publish(queue, b"a")
    released = Event()
    queue._writer.submit(released.wait)
    waiting = asyncio.ensure_future(publish(queue, b"b"))
    assert await payloads(queue) == [b"a"]
    await queue.commit("g", "t", {0: 1})
    assert not waiting.done()
    released.set()
    assert await waiting == [1]


async def test_a_slow_commit_does_not_reach_a_later_topic(queue):
    """A commit that hangs while its topic is deleted and made anew does not touch the new one."""
    released = Event()
    queue._committer.submit(released.wait)
    calls = [queue.commit("g", "t", {0: 1}), queue.delete_topic("t"), queue.create_topic("t", 2)]
    tasks = [asyncio.ensure_future(call) for call in calls]
    await asyncio.sleep(0)
    queue._reader.submit(released.set)
    await asyncio.gather(*tasks)
    assert await queue.groups("t") == []


async def test_repr_shows_live_state(queue, tmp_path):
    """The representations say what is open and who waits."""
    await publish(queue, b"a", partition=1)
    await queue.offsets("t", 0)
    waiter = asyncio.ensure_future(queue.wait("t", {0: 0}, 30))
    await asyncio.sleep(0)
    assert repr(queue) == (
        f"<EmbeddedQueue {tmp_path / 'queue'} "
        "[1 topics | <GroupCommit [0 waiting]> | <Waiters [1 waiting]>]>"
    )
    assert repr(queue._topics["t"].partitions[1]) == "<Partition t/1 [0 to 1]>"
    await publish(queue, b"a")
    await waiter


def descriptors():
    """How many this process has open."""
    return len([*Path("/proc/self/fd").iterdir()])


async def test_what_is_to_be_deleted_is_not_opened(tmp_path):
    """A topic that was announced and not made, or deleted, takes no descriptor until it is gone."""
    queue = EmbeddedQueue(tmp_path)
    for name in ("gone", "kept"):
        await queue.create_topic(name, 8)
        await queue.fence(name, 0)
        await queue.publish(name, 0, [Publication(0, b"x", 1)])
    await queue.close()
    before = descriptors()
    queue = EmbeddedQueue(tmp_path, doomed=lambda: ["gone", "never made"])
    await queue.times()  # opens all that is there
    opened = descriptors() - before
    folder = tmp_path / "topics" / "gone"
    assert folder.is_dir()
    assert opened < 8 * 4
    assert await queue.topics() == ["gone", "kept"]
    with pytest.raises(CorruptDataError, match="is to be deleted"):
        await queue.offsets("gone", 0)
    await queue.delete_topic("gone")
    assert not folder.exists()
    assert await queue.topics() == ["kept"]
    await queue.close()


async def test_topics_leave_files_for_others(tmp_path):
    """A topic whose read partitions' files would exceed the limit is refused; nothing is made."""
    queue = EmbeddedQueue(tmp_path, max_partitions=10)
    await queue.create_topic("a", 6)
    with pytest.raises(LimitReachedError, match="5 read partitions beside the 6 there are") as err:
        await queue.create_topic("b", 5)
    assert "choose fewer, or raise the limit" in str(err.value)
    assert not err.value.retriable
    assert await queue.topics() == ["a"]
    await queue.create_topic("a", 6)  # again, which changes nothing
    await queue.create_topic("c", 4)
    await queue.delete_topic("a")
    await queue.create_topic("b", 6)
    await queue.close()


async def test_a_topic_of_many_partitions_holds_no_publication_up(queue):
    """While the files of 256 read partitions are made, and removed, others publish."""
    creating = asyncio.ensure_future(queue.create_topic("wide", 256))
    for number in range(5):
        await publish(queue, b"%d" % number)
    assert not creating.done()
    await creating
    for number in range(256):
        await queue.offsets("wide", number)  # opens it
    deleting = asyncio.ensure_future(queue.delete_topic("wide"))
    for number in range(5):
        await publish(queue, b"%d" % number)
    assert not deleting.done()
    await deleting
    assert await queue.topics() == ["t"]
