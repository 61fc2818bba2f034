"""What is special to the embedded queue: failed flushes, damage, calls that cross or fail."""

import asyncio
import contextlib
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Event

import msgspec
import pytest

from memq.core.clock import SavedTimes
from memq.core.queue import Holding, Publication
from memq.errors import (
    ConfigError,
    CorruptDataError,
    FencedError,
    LimitReachedError,
    LockedError,
    PublishUncertainError,
    QueueError,
    UnknownTopicError,
)
from memq.queue.embedded.group_commit import MAX_ROUND, GroupCommit, Publish
from memq.queue.embedded.queue import EmbeddedQueue
from memq.queue.waiters import Waiters
from tests.harness.descriptors import open_files
from tests.unit.queue.conftest import payloads, publish


@pytest.fixture
async def queue(tmp_path):
    """A queue with a topic of two read partitions, open for write partitions 0 and 1."""
    found = EmbeddedQueue(tmp_path / "queue")
    await found.create_topic("t", 2)
    await found.fence("t", 0, 1)
    yield found
    await found.close()


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


# -- damage ---------------------------------------------------------------------------------


def flip(file, needle):
    """Flip one bit of the first place that holds the bytes."""
    content = bytearray(file.read_bytes())
    content[content.index(needle)] ^= 1
    file.write_bytes(content)


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
        match=r"offsets 1 to 2 of 't'/0 damaged: .*`memq restore`.* at offset 3",
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
        with pytest.raises(CorruptDataError, match=f"{file} is .*`memq restore`"):
            await call
    assert await again.offsets("other", 0) == (0, 0)
    await again.delete_topic("t")
    assert await again.topics() == ["other"]
    await again.create_topic("t", 2)
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
    for group in ("good", "bad"):
        await queue.hold(group, "t", {"m": Holding(1_000, [0])})
    (tmp_path / "queue/topics/t/members/bad.json").write_bytes(b"[]")
    assert await queue.holdings("t") == {"bad": None, "good": {"m": Holding(1_000, [0])}}
    assert await queue.committed("good", "t") == {0: 1}
    await queue.delete_group("bad", "t")
    await queue.commit("bad", "t", {1: 5})
    assert await queue.committed("bad", "t") == {1: 5}


# -- the rest -------------------------------------------------------------------------------


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


async def test_what_is_to_be_deleted_is_not_opened(tmp_path):
    """A topic that was announced and not made, or deleted, takes no descriptor until it is gone."""
    queue = EmbeddedQueue(tmp_path)
    for name in ("gone", "kept"):
        await queue.create_topic(name, 8)
        await queue.fence(name, 0)
        await queue.publish(name, 0, [Publication(0, b"x", 1)])
    await queue.close()
    queue = EmbeddedQueue(tmp_path, doomed=lambda: ["gone", "never made"])
    await queue.times()  # opens all that is there
    folder = tmp_path / "topics" / "gone"
    assert folder.is_dir()
    assert open_files(tmp_path / "topics" / "kept")
    assert open_files(folder) == []
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
    with pytest.raises(LimitReachedError, match="5 read partitions besides the 6 there are") as err:
        await queue.create_topic("b", 5)
    assert "choose fewer, or raise the limit" in str(err.value)
    assert not err.value.retriable
    assert await queue.topics() == ["a"]
    await queue.create_topic("a", 6)  # again, which changes nothing
    await queue.create_topic("c", 4)
    await queue.delete_topic("a")
    await queue.create_topic("b", 6)
    await queue.close()


@pytest.fixture
def held_up(queue):
    """Holds threads of the queue up, by name, until it is called."""
    released = Event()

    def hold(*names):
        for name in names:
            getattr(queue, name).submit(released.wait)
        return released.set

    yield hold
    released.set()


async def begun(*calls):
    """Calls that are on their way to the threads."""
    found = [asyncio.ensure_future(call) for call in calls]
    for _ in range(3):
        await asyncio.sleep(0)
    return found


async def test_the_event_loop_runs_while_the_disk_hangs(queue, held_up):
    """A writer that is stuck holds back neither fetches nor commits."""
    await publish(queue, b"a")
    go_on = held_up("_writer")
    waiting = asyncio.ensure_future(publish(queue, b"b"))
    assert await payloads(queue) == [b"a"]
    await queue.commit("g", "t", {0: 1})
    assert not waiting.done()
    go_on()
    assert await waiting == [1]


# -- what is given up, and what was given -----------------------------------------------------


async def test_what_was_asked_for_takes_effect_though_nobody_waits(queue, held_up):
    """To give a call up while a thread is busy stops neither a commit nor a fence."""
    await publish(queue, b"a", b"b")
    go_on = held_up("_committer", "_writer")
    calls = await begun(
        queue.commit("g", "t", {0: 1}),
        queue.hold("g", "t", {"m": Holding(1_000, [0])}),
        queue.save_times(SavedTimes(5, 7)),
        queue.fence("t", 5),
        queue.truncate("t", 0, 1),
    )
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    go_on()
    assert await queue.committed("g", "t") == {0: 1}
    assert await queue.holdings("t") == {"g": {"m": Holding(1_000, [0])}}
    assert await queue.times() == SavedTimes(5, 7)
    assert queue.owns("t", 5)
    assert await queue.offsets("t", 0) == (1, 2)


async def test_a_publication_that_was_given_up_is_not_begun(queue, held_up):
    """While it waits for the disk; the others of its round are published, in their order."""
    go_on = held_up("_writer")
    calls = await begun(*(publish(queue, b"%d" % n) for n in range(5)))
    for gone in (0, 3):
        calls[gone].cancel()
    await asyncio.gather(calls[0], calls[3], return_exceptions=True)
    go_on()
    assert await asyncio.gather(calls[1], calls[2], calls[4]) == [[0], [1], [2]]
    assert await payloads(queue) == [b"1", b"2", b"4"]


# -- order ------------------------------------------------------------------------------------


@pytest.mark.parametrize("busy", ["_writer", "_committer"])
async def test_what_was_asked_for_before_a_deletion_is_not_in_the_next_topic(queue, held_up, busy):
    """Whichever thread is late: a topic of the same name begins with nothing."""
    go_on = held_up(busy)
    calls = await begun(
        publish(queue, b"late"),
        queue.commit("g", "t", {0: 1}),
        queue.hold("g", "t", {"m": Holding(1_000, [0])}),
        queue.delete_topic("t"),
    )
    making = asyncio.ensure_future(queue.create_topic("t", 2))
    await asyncio.sleep(0.01)
    assert not making.done()
    go_on()
    await asyncio.gather(making, *calls, return_exceptions=True)
    assert not await queue.groups("t")
    assert not await queue.holdings("t")
    assert await queue.offsets("t", 0) == (0, 0)
    assert not queue.owns("t", 0)


# -- failures ---------------------------------------------------------------------------------


async def test_a_directory_that_cannot_be_opened_is_let_go(queue, tmp_path):
    """A topic of another version is refused; once it is mended the directory opens."""
    await queue.close()
    file = tmp_path / "queue/topics/t/topic.json"
    written = file.read_bytes()
    file.write_bytes(msgspec.json.encode(msgspec.json.decode(written) | {"format": 1}))
    with pytest.raises(ConfigError, match=r"topic\.json has format 1; this version reads 2"):
        EmbeddedQueue(tmp_path / "queue")
    file.write_bytes(written)
    again = EmbeddedQueue(tmp_path / "queue")
    assert await again.topics() == ["t"]
    await again.close()


# -- damage -----------------------------------------------------------------------------------


async def test_a_damaged_entry_stops_no_retention(queue, tmp_path):
    """It is taken to be as old as the next whole one; with none after it, to be new."""
    times = (10, 20, 30, 40, 50)
    await queue.publish("t", 0, [Publication(0, b"entry%d" % each, 1, each) for each in times])
    await queue.close()
    for each in (b"entry10", b"entry30", b"entry40"):
        flip(data_page(tmp_path), each)
    again = EmbeddedQueue(tmp_path / "queue")
    found = {each: await again.offset_since("t", 0, each) for each in (5, 15, 25, 35, 45, 55)}
    assert found == {5: 0, 15: 0, 25: 2, 35: 2, 45: 2, 55: 5}
    for at_ms in (0, 1, 2):
        with pytest.raises(CorruptDataError, match="go on at offset"):
            await again.offset_at("t", 0, at_ms)
    assert (await again.times()).running_ms == 51
    await again.close()
    flip(data_page(tmp_path), b"entry50")
    last = EmbeddedQueue(tmp_path / "queue")
    assert (await last.times()).running_ms == 21
    assert await last.offset_since("t", 0, 25) == 2
    await last.close()


# -- who waits --------------------------------------------------------------------------------


async def test_each_of_those_who_wait_is_asked():
    """One that fails, one that has gone and one that is not ready keep no other one waiting."""
    waiters, ready = Waiters(), {}

    def answer(name):
        if name == "fails" and ready:
            raise UnknownTopicError("gone")
        return ready.get(name, False)

    names = ("gone", "fails", "not yet", "ready")
    waits = [asyncio.ensure_future(waiters.wait("t", partial(answer, each), 60)) for each in names]
    gone, fails, not_yet, is_ready = waits
    await asyncio.sleep(0)
    gone.cancel()
    ready["ready"] = True
    waiters.wake("t")
    with pytest.raises(UnknownTopicError):
        await fails
    assert await is_ready
    assert not not_yet.done()
    ready["not yet"] = True
    waiters.wake_all()
    assert await not_yet
    assert not waiters._waiting
