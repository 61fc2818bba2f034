"""Calls of the embedded queue that cross, are given up, or fail half way."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from threading import Event

import msgspec
import pytest

from memq.core.clock import SavedTimes
from memq.core.notification import folders as folders_module
from memq.core.notification import read_partition
from memq.core.notification.embedded import EmbeddedQueue
from memq.core.notification.folders import TopicFolders
from memq.core.notification.queue import Holding, Publication, Waiters
from memq.errors import (
    ConfigError,
    CorruptDataError,
    FencedError,
    MemqError,
    PublishUncertainError,
    QueueError,
    TopicExistsError,
    UnknownTopicError,
)

THREADS = ("_maker", "_writer", "_reader", "_committer")


@pytest.fixture
async def queue(tmp_path):
    """A queue with a topic of two read partitions, open for write partitions 0 and 1."""
    found = EmbeddedQueue(tmp_path / "queue")
    await found.create_topic("t", 2)
    await found.fence("t", 0, 1)
    yield found
    await found.close()


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


async def publish(queue, *payloads, partition=0, write_partition=0):
    """Publish payloads to one partition of the topic."""
    publications = [Publication(partition, payload, 1) for payload in payloads]
    return await queue.publish("t", write_partition, publications)


async def payloads(queue, partition=0, offset=0):
    """The payloads of a partition from an offset on."""
    entries = await queue.fetch("t", partition, offset, max_entries=10_000, max_bytes=1 << 30)
    return [entry.payload for entry in entries]


async def begun(*calls):
    """Calls that are on their way to the threads."""
    found = [asyncio.ensure_future(call) for call in calls]
    for _ in range(3):
        await asyncio.sleep(0)
    return found


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
    assert await queue.holdings("g", "t") == {"m": Holding(1_000, [0])}
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


async def test_what_was_given_is_stored_whatever_becomes_of_it(queue, held_up):
    """A caller may go on with its offsets and holdings while they are stored."""
    go_on = held_up("_committer")
    offsets, holdings = {0: 1}, {"m": Holding(1_000, [0])}
    calls = await begun(queue.commit("g", "t", offsets), queue.hold("g", "t", holdings))
    offsets[0] = 9
    holdings["n"] = Holding(1_000, [1])
    go_on()
    await asyncio.gather(*calls)
    assert await queue.committed("g", "t") == {0: 1}
    assert [*await queue.holdings("g", "t")] == ["m"]


# -- order ------------------------------------------------------------------------------------


async def test_what_was_asked_for_before_a_release_is_done_before_it(queue, held_up):
    """A commit, and a publication that waits for the disk, take effect; none does after it."""
    go_on = held_up("_committer")
    calls = await begun(queue.commit("g", "t", {0: 7}), publish(queue, b"a"), queue.release("t", 0))
    assert await calls[1] == [0]
    assert not calls[2].done()
    assert queue.owns("t", 0)
    go_on()
    await calls[2]
    assert calls[0].done()
    assert [queue.owns("t", each) for each in (0, 1)] == [False, True]
    with pytest.raises(FencedError):
        await publish(queue, b"late")
    with pytest.raises(FencedError):
        await queue.commit("g", "t", {0: 8})
    assert await publish(queue, b"b", write_partition=1) == [1]
    assert await queue.committed("g", "t") == {0: 7}


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
    assert await queue.groups("t") == await queue.holders("t") == []
    assert await queue.offsets("t", 0) == (0, 0)
    assert not queue.owns("t", 0)


async def test_a_fence_wakes_who_waits_for_what_it_has_settled(queue, tmp_path):
    """An entry whose flush had failed is there after it, for those who wait already as well."""
    twin = EmbeddedQueue(tmp_path / "twin")
    await twin.create_topic("t", 2)
    await twin.fence("t", 0)
    await publish(twin, b"a", b"b")
    await twin.close()
    await publish(queue, b"a")
    waiting = asyncio.ensure_future(queue.wait("t", {0: 1}, 30))
    await asyncio.sleep(0)
    page = tmp_path / "queue/topics/t/0/data/000000000000.page"
    page.rename(tmp_path / "away")
    with pytest.raises(PublishUncertainError):
        await publish(queue, b"b")
    (tmp_path / "away").rename(page)
    index = "topics/t/0/index/000000000000.page"
    with (tmp_path / "queue" / index).open("r+b") as file:
        file.write((tmp_path / "twin" / index).read_bytes())
    assert not waiting.done()
    async with asyncio.timeout(10):
        await queue.fence("t", 1)
        assert await waiting
    assert await payloads(queue) == [b"a", b"b"]


async def test_topics_that_are_made_at_a_time_are_one(queue):
    """The first of them counts, and another number of partitions is refused."""
    outcomes = await asyncio.gather(
        *(queue.create_topic("u", partitions) for partitions in (3, 3, 2)), return_exceptions=True
    )
    assert outcomes[:2] == [None, None]
    assert isinstance(outcomes[2], TopicExistsError)
    assert await queue.offsets("u", 2) == (0, 0)


# -- failures ---------------------------------------------------------------------------------


def failing(monkeypatch, name, times=1):
    """Let a function of the folders fail so often."""
    real, left = getattr(folders_module, name), [OSError(errno.EIO, "planned")] * times

    def fails(*given, **how):
        if left:
            raise left.pop()
        return real(*given, **how)

    monkeypatch.setattr(folders_module, name, fails)


@pytest.mark.parametrize("name", ["make_partition", "replace_durably", "sync_folder"])
async def test_a_topic_whose_making_failed_is_made_by_the_next(queue, tmp_path, monkeypatch, name):
    """What the first attempt left is in nobody's way, and nothing is half there meanwhile."""
    failing(monkeypatch, name)
    with pytest.raises(QueueError, match="planned"):
        await queue.create_topic("u", 2)
    assert await queue.topics() == ["t"]
    await queue.create_topic("u", 3)
    await queue.fence("u", 0)
    assert await queue.publish("u", 0, [Publication(2, b"x", 1)]) == [0]
    await queue.close()
    again = EmbeddedQueue(tmp_path / "queue")
    assert list((tmp_path / "queue/moving").iterdir()) == []
    assert await again.topics() == ["t", "u"]
    await again.close()


async def test_a_topic_whose_deletion_failed_is_there_as_before(queue, monkeypatch):
    """With all that was in it; its owner fences it anew."""
    await publish(queue, b"a")

    def fails(*_):
        raise OSError(errno.EIO, "planned")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", fails)
        with pytest.raises(QueueError, match="planned"):
            await queue.delete_topic("t")
    assert await queue.topics() == ["t"]
    assert await payloads(queue) == [b"a"]
    await queue.fence("t", 0)
    assert await publish(queue, b"b") == [1]
    await queue.delete_topic("t")
    assert await queue.topics() == []
    with pytest.raises(UnknownTopicError):
        await payloads(queue)


async def test_a_damaged_topic_whose_deletion_failed_is_listed_still(queue, tmp_path, monkeypatch):
    """It goes with the next attempt, and then it is not damaged any more."""
    await queue.close()
    (tmp_path / "queue/topics/t/topic.json").unlink()
    again = EmbeddedQueue(tmp_path / "queue")
    failing(monkeypatch, "sync_folder")
    with pytest.raises(QueueError, match="planned"):
        await again.delete_topic("t")
    assert await again.topics() == ["t"]
    with pytest.raises(CorruptDataError):
        await again.offsets("t", 0)
    await again.delete_topic("t")
    assert await again.topics() == []
    with pytest.raises(UnknownTopicError):
        await again.offsets("t", 0)
    await again.create_topic("t", 1)
    assert await again.offsets("t", 0) == (0, 0)
    await again.close()


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


@pytest.mark.parametrize("name", ["groups", "members", "0", "1"])
async def test_each_folder_of_a_topic_is_missed(queue, tmp_path, name):
    """Whichever is gone, the topic is damaged; a file in its place is no folder."""
    await queue.close()
    folder = tmp_path / "queue/topics/t" / name
    folder.rename(tmp_path / "away")
    folder.write_bytes(b"")
    again = EmbeddedQueue(tmp_path / "queue")
    with pytest.raises(CorruptDataError, match=f"{name} is missing"):
        await again.offsets("t", 0)
    await again.close()


@pytest.mark.parametrize("what", ["times", "group", "members"])
async def test_a_file_that_cannot_be_read_is_not_none(queue, tmp_path, what):
    """The file system refuses it: that is an error which may pass, and no loss is made of it."""
    path = {
        "times": tmp_path / "queue/times.json",
        "group": tmp_path / "queue/topics/t/groups/g.json",
        "members": tmp_path / "queue/topics/t/members/g.json",
    }[what]
    calls = {
        "times": [queue.times],
        "group": [lambda: queue.committed("g", "t"), lambda: queue.commit("g", "t", {0: 1})],
        "members": [lambda: queue.holdings("g", "t")],
    }[what]
    path.mkdir()
    for call in calls:
        with pytest.raises(QueueError, match=rf"cannot \w+ .*{path.name}") as caught:
            await call()
        assert type(caught.value) is QueueError
    path.rmdir()
    assert await queue.times() == SavedTimes(0, 0)
    await queue.commit("g", "t", {0: 1})
    assert await queue.committed("g", "t") == {0: 1}


def test_times_that_are_damaged_are_told_and_forgotten(tmp_path, caplog):
    """Numbers that do not match their checksum are none; a queue that is new tells nothing."""
    folders = TopicFolders(tmp_path)
    assert folders.times() == SavedTimes(0, 0)
    assert not caplog.records
    folders.store_times(SavedTimes(5, 7))
    assert folders.times() == SavedTimes(5, 7)
    file = tmp_path / "times.json"
    whole = msgspec.json.decode(file.read_bytes())
    for changed in ({"running_ms": 6}, {"wall_ms": 8}, {"crc32c": whole["crc32c"] ^ 1}):
        caplog.clear()
        file.write_bytes(msgspec.json.encode(whole | changed))
        assert folders.times() == SavedTimes(0, 0)
        assert "its checksum does not match" in caplog.text


async def test_stray_files_are_no_groups(queue, tmp_path):
    """What a write that was cut short has left is neither a group nor a holder of anything."""
    await queue.commit("g", "t", {0: 1})
    await queue.hold("g", "t", {"m": Holding(1_000, [0])})
    for name in ("groups", "members"):
        (tmp_path / "queue/topics/t" / name / "h.json.tmp").write_bytes(b"{}")
    assert await queue.groups("t") == await queue.holders("t") == ["g"]
    for _ in range(2):
        await queue.hold("g", "t", {})
    assert await queue.holders("t") == []
    assert await queue.holdings("g", "t") == {}


async def test_a_publication_that_is_refused_leaves_no_times_behind(queue, monkeypatch):
    """What was not appended makes no later entry look as late as it."""
    array = queue._topics["t"].partitions[0].open()

    def refused(*_):
        raise QueueError("no room")

    await queue.publish("t", 0, [Publication(0, b"a", 10, 10)])
    with monkeypatch.context() as patch:
        patch.setattr(array, "append_many", refused)
        with pytest.raises(QueueError, match="no room"):
            await queue.publish("t", 0, [Publication(0, b"x", 90, 90)])
    assert (await queue.times()).running_ms == 11
    await queue.publish("t", 0, [Publication(0, b"b", 20, 20)])
    found = await queue.fetch("t", 0, 0, max_entries=9, max_bytes=99)
    assert [(each.timestamp_ms, each.running_ms) for each in found] == [(10, 10), (20, 20)]
    assert (await queue.times()).running_ms == 21
    await queue.truncate("t", 0, 2)
    assert (await queue.times()).running_ms == 0


# -- damage -----------------------------------------------------------------------------------


async def damaged(queue, tmp_path, monkeypatch, *needles):
    """The queue anew, of whose entries some are damaged."""
    await queue.close()
    page = tmp_path / "queue/topics/t/0/data/000000000000.page"
    content = bytearray(page.read_bytes())
    for needle in needles:
        content[content.index(needle)] ^= 1
    page.write_bytes(content)
    return EmbeddedQueue(tmp_path / "queue")


async def test_a_damaged_entry_stops_no_retention(queue, tmp_path, monkeypatch):
    """It is taken to be as old as the next whole one; with none after it, to be new."""
    times = (10, 20, 30, 40, 50)
    await queue.publish("t", 0, [Publication(0, b"entry%d" % each, 1, each) for each in times])
    again = await damaged(queue, tmp_path, monkeypatch, b"entry10", b"entry30", b"entry40")
    found = {each: await again.offset_since("t", 0, each) for each in (5, 15, 25, 35, 45, 55)}
    assert found == {5: 0, 15: 0, 25: 2, 35: 2, 45: 2, 55: 5}
    for at_ms in (0, 1, 2):
        with pytest.raises(CorruptDataError, match="go on at offset"):
            await again.offset_at("t", 0, at_ms)
    assert (await again.times()).running_ms == 51
    await again.close()
    last = await damaged(again, tmp_path, monkeypatch, b"entry50")
    assert (await last.times()).running_ms == 21
    assert await last.offset_since("t", 0, 25) == 2
    await last.close()


async def test_what_is_whole_before_damage_keeps_the_limits_of_a_fetch(
    queue, tmp_path, monkeypatch
):
    """Entries and bytes bound what is given, whether or not damage follows."""
    await publish(queue, *(b"entry%d" % n for n in range(6)))
    again = await damaged(queue, tmp_path, monkeypatch, b"entry4", b"entry5")

    async def given(offset, max_entries, max_bytes):
        limits = {"max_entries": max_entries, "max_bytes": max_bytes}
        return [each.offset for each in await again.fetch("t", 0, offset, **limits)]

    assert await given(0, 99, 1 << 20) == [0, 1, 2, 3]
    assert await given(0, 3, 1 << 20) == [0, 1, 2]
    assert await given(0, 99, 12) == [0, 1]
    assert await given(0, 99, 11) == [0]
    assert await given(0, 99, 0) == [0]
    assert await given(3, 99, 1 << 20) == [3]
    with pytest.raises(CorruptDataError, match=r"offsets 4 to 5 of 't'/0 .*go on at offset 6"):
        await given(4, 99, 1 << 20)
    monkeypatch.setattr(read_partition, "MAX_DAMAGED_NAMED", 1)
    with pytest.raises(CorruptDataError, match=r"offset 4 or more of 't'/0 .*at offset 5"):
        await given(4, 99, 1 << 20)
    with pytest.raises(CorruptDataError, match=r"offset 5 of 't'/0 damaged.*at offset 6"):
        await given(5, 99, 1 << 20)
    await again.close()


def open_files(folder):
    """Files under a folder that this process has open."""
    links = [each for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    return [each for link in links if (each := str(link.readlink())).startswith(str(folder))]


async def test_a_queue_that_is_closed_has_let_all_go(queue, tmp_path):
    """Its threads have ended and none of its files is open, whatever was on its way."""
    for partition in range(2):
        await publish(queue, b"a", partition=partition)
    assert open_files(tmp_path / "queue")
    on_its_way = await begun(publish(queue, b"b"), queue.commit("g", "t", {0: 1}))
    await asyncio.gather(queue.close(), queue.close())
    assert await asyncio.gather(*on_its_way) == [[1], None]
    for name in THREADS:
        with pytest.raises(RuntimeError, match="shutdown"):
            getattr(queue, name).submit(int)
    assert not open_files(tmp_path / "queue")


# -- who waits --------------------------------------------------------------------------------


async def test_each_of_those_who_wait_is_asked():
    """One that fails, one that has gone and one that is not ready keep no other one waiting."""
    waiters, ready = Waiters(), {}

    def answer(name):
        def ask():
            if isinstance(ready.get(name), MemqError):
                raise ready[name]
            return ready.get(name, False)

        return ask

    names = ("gone", "fails", "not yet", "ready", "other topic")
    tasks = {
        name: asyncio.ensure_future(
            waiters.wait("u" if name == "other topic" else "t", answer(name), 60)
        )
        for name in names
    }
    await asyncio.sleep(0)
    assert repr(waiters) == "<Waiters [5 waiting]>"
    tasks["gone"].cancel()
    ready.update({"fails": UnknownTopicError("gone"), "ready": True, "other topic": True})
    waiters.wake("t")
    with pytest.raises(UnknownTopicError):
        await tasks["fails"]
    assert await tasks["ready"]
    assert not tasks["not yet"].done()
    assert not tasks["other topic"].done()
    assert repr(waiters) == "<Waiters [2 waiting]>"
    ready["not yet"] = True
    waiters.wake_all()
    assert await tasks["not yet"]
    assert await tasks["other topic"]
    assert repr(waiters) == "<Waiters [0 waiting]>"
    assert not waiters._waiting


async def test_who_is_ready_when_its_time_is_over_was_not_in_vain():
    """What it asks last counts; one that is ready at once does not wait."""
    waiters, answers = Waiters(), [False, True]
    assert await waiters.wait("t", lambda: answers.pop(0), 0.0)
    assert not await waiters.wait("t", lambda: False, 0.0)
    assert await waiters.wait("t", lambda: True, 60)
    assert not waiters._waiting
