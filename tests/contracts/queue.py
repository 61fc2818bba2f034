"""What every `NotificationQueue` must do.

A test module runs the suite for an implementation by importing everything here and defining two
fixtures: `queue`, an open and empty one, and `next_process`, an async function that gives the same
queue as the process sees it that takes over (the first one may be closed by that).

Offsets grow, and may have gaps: no test counts on one but the first.
"""

import asyncio

import pytest

from memq.core import queue as queue_module
from memq.core.clock import SavedTimes
from memq.core.queue import MAX_PAYLOAD_BYTES, Holding, Publication
from memq.errors import (
    ClosedError,
    FencedError,
    InvalidRequestError,
    LimitReachedError,
    MessageTooLargeError,
    OffsetOutOfRangeError,
    TopicExistsError,
    UnknownTopicError,
)

LONG_S = 30  # a wait that ends sooner, or the test has failed


@pytest.fixture
async def topic(queue):
    """A topic of three read partitions, whose write partitions 0 and 1 may be published for."""
    await queue.create_topic("clicks", 3)
    await queue.fence("clicks", 0)
    await queue.fence("clicks", 1)
    return "clicks"


async def publish(queue, topic, *payloads, partition=0, write_partition=0, timestamp_ms=1_000):
    """Publish payloads to one partition."""
    publications = [Publication(partition, payload, timestamp_ms) for payload in payloads]
    return await queue.publish(topic, write_partition, publications)


async def fetch(queue, topic, offset=0, partition=0, *, max_entries=1000, max_bytes=1 << 20):
    """Fetch with limits that do not matter."""
    return await queue.fetch(topic, partition, offset, max_entries=max_entries, max_bytes=max_bytes)


async def payloads(queue, topic, offset=0, partition=0):
    """The payloads from an offset on."""
    return [entry.payload for entry in await fetch(queue, topic, offset, partition)]


async def waiting(queue, topic, positions=None):
    """A task that waits for partition 0, or for other positions, and has begun to."""
    positions = positions or {0: 0}
    for partition in positions:
        await queue.offsets(topic, partition)  # so that it need not be opened first
    task = asyncio.ensure_future(queue.wait(topic, positions, LONG_S))
    await asyncio.sleep(0)
    return task


async def is_closed(queue):
    """Whether the process that has it is gone."""
    try:
        await queue.topics()
    except ClosedError:
        return True
    return False


# -- publish and fetch ----------------------------------------------------------------------


async def test_fetch_gives_what_was_published(queue, topic):
    """Entries come back at the offsets they were given, which grow, with time and bytes."""
    first, second = await publish(queue, topic, b"a", b"bb", timestamp_ms=5)
    (third,) = await publish(queue, topic, b"", timestamp_ms=7)
    assert 0 == first < second < third
    expected = [(first, 5, b"a", 0), (second, 5, b"bb", 0), (third, 7, b"", 0)]
    assert await fetch(queue, topic) == expected
    assert await fetch(queue, topic, third) == expected[2:]
    assert await queue.offsets(topic, 0) == (0, third + 1)


async def test_fetch_from_a_gap(queue, topic):
    """From an offset between two entries one reads on with the later one."""
    offsets = [(await publish(queue, topic, b"%d" % n))[0] for n in range(4)]
    for offset in range(offsets[-1] + 1):
        expected = [each for each in offsets if each >= offset]
        assert [entry.offset for entry in await fetch(queue, topic, offset)] == expected


async def test_a_publication_to_several_partitions(queue, topic):
    """One call may publish to several partitions; its offsets stand in the order of the call."""
    publications = [Publication(2, b"a", 1), Publication(0, b"b", 1), Publication(2, b"c", 1)]
    first, other, second = await queue.publish(topic, 1, publications)
    assert 0 == first == other < second
    assert await payloads(queue, topic, partition=2) == [b"a", b"c"]
    assert await payloads(queue, topic, partition=0) == [b"b"]
    assert await payloads(queue, topic, partition=1) == []


@pytest.mark.parametrize(
    "refused",
    [
        Publication(3, b"", 1),
        Publication(2, b"x" * (MAX_PAYLOAD_BYTES + 1), 1),
        Publication(2, b"", -1),
        Publication(2, b"", 1, -1),
    ],
    ids=["no such partition", "too large", "before 1970", "negative running time"],
)
async def test_a_publication_of_which_a_part_is_refused_is_nowhere(queue, topic, refused):
    """One partition's refusal is that of all, in any order, and costs the owner nothing."""
    good = Publication(0, b"a", 1)
    for publications in ([good, refused], [refused, good]):
        with pytest.raises((InvalidRequestError, MessageTooLargeError)):
            await queue.publish(topic, 0, publications)
    assert [await queue.offsets(topic, each) for each in range(3)] == [(0, 0)] * 3
    await publish(queue, topic, b"b")
    assert await payloads(queue, topic) == [b"b"]


async def test_concurrent_publications_keep_the_order_of_the_calls(queue, topic):
    """Publications made before others have ended appear in the order of the calls, none lost."""
    calls = [publish(queue, topic, b"%d" % n, write_partition=n % 2) for n in range(200)]
    offsets = [offset for (offset,) in await asyncio.gather(*calls)]
    assert offsets == sorted({*offsets})
    expected = [(offset, b"%d" % n) for n, offset in enumerate(offsets)]
    assert [(each.offset, each.payload) for each in await fetch(queue, topic)] == expected


@pytest.mark.parametrize("beyond", [None, 2, 1 << 40])
async def test_fetch_outside_the_partition_is_refused(queue, topic, beyond):
    """An offset before the start or after the end is an error that names the partition."""
    *_, last = await publish(queue, topic, b"a", b"b")
    offset = -1 if beyond is None else last + beyond
    with pytest.raises(OffsetOutOfRangeError, match=f"{offset} of 'clicks'/0"):
        await fetch(queue, topic, offset)


async def test_fetch_keeps_its_limits(queue, topic):
    """A fetch ends at `max_entries` and before `max_bytes`, but gives at least one entry."""
    *_, last = await publish(queue, topic, *[b"x" * 100] * 10)
    assert len(await fetch(queue, topic, max_entries=3)) == 3
    assert len(await fetch(queue, topic, max_bytes=350)) == 3
    assert len(await fetch(queue, topic, max_bytes=300)) == 3
    assert len(await fetch(queue, topic, max_bytes=299)) == 2
    assert len(await fetch(queue, topic, max_bytes=0)) == 1
    assert len(await fetch(queue, topic, last)) == 1


async def test_a_large_payload(queue, topic):
    """The largest payload allowed is published; one byte more is refused and costs nothing."""
    await publish(queue, topic, b"x" * MAX_PAYLOAD_BYTES)
    with pytest.raises(MessageTooLargeError):
        await publish(queue, topic, b"small", b"x" * (MAX_PAYLOAD_BYTES + 1))
    *_, last = await publish(queue, topic, b"next")
    assert len((await fetch(queue, topic))[0].payload) == MAX_PAYLOAD_BYTES
    assert [entry.payload for entry in await fetch(queue, topic, last)] == [b"next"]


async def test_more_than_memory_pages(queue, topic):
    """Thousands of entries of a few KiB come back in order, fetch after fetch."""
    expected = [b"%06d" % n * 500 for n in range(3000)]
    for first in range(0, 3000, 500):
        await publish(queue, topic, *expected[first : first + 500])
    found = []
    while len(found) < len(expected):
        found += await fetch(queue, topic, found[-1].offset + 1 if found else 0)
    assert [entry.payload for entry in found] == expected


# -- time -----------------------------------------------------------------------------------


async def test_timestamps_never_decrease(queue, topic):
    """A publication that carries an earlier time gets that of the entry before it."""
    for timestamp_ms in (100, 50, 101, 101, 7):
        await publish(queue, topic, b"", timestamp_ms=timestamp_ms)
    assert [entry.timestamp_ms for entry in await fetch(queue, topic)] == [100, 100, 101, 101, 101]


async def test_offset_at(queue, topic):
    """The offset of a time is one past the last entry before it, and so the end past the last."""
    offsets = [
        (await publish(queue, topic, b"", timestamp_ms=each_ms))[0]
        for each_ms in (10, 20, 20, 20, 30)
    ]
    assert await queue.offset_at(topic, 0, 0) == await queue.offset_at(topic, 0, 10) == 0
    earlier = {11: 0, 20: 0, 21: 3, 30: 3, 31: 4}
    found = {each: await queue.offset_at(topic, 0, each) for each in earlier}
    assert found == {each: offsets[number] + 1 for each, number in earlier.items()}


async def test_what_was_before_a_time_and_what_was_after_it_meet(queue, topic):
    """The offset of a time is the same before and after something of later times is published."""
    await publish(queue, topic, b"a", timestamp_ms=10)
    before = await queue.offset_at(topic, 0, 15)
    assert before == (await queue.offsets(topic, 0))[1]
    await publish(queue, topic, b"b", timestamp_ms=20)
    assert await queue.offset_at(topic, 0, 15) == before


async def test_offset_since_goes_by_running_time_alone(queue, topic):
    """What was published longer ago is found by running time, whatever the timestamps say."""
    times = [(900, 70), (100, 30), (2, 90), (1_000_000, 80)]  # neither ever goes back
    publications = [Publication(0, b"x", *each) for each in times]
    offsets = await queue.publish(topic, 0, publications)
    assert [entry.running_ms for entry in await fetch(queue, topic)] == [70, 70, 90, 90]
    expected = {-5: 0, 0: 0, 70: 0, 71: 2, 90: 2}
    found = {each: await queue.offset_since(topic, 0, each) for each in expected}
    assert found == {each: offsets[number] for each, number in expected.items()}
    assert await queue.offset_since(topic, 0, 91) == offsets[-1] + 1
    assert await queue.offset_since(topic, 1, 70) == 0


async def test_a_time_is_found_among_thousands_of_entries(queue, topic):
    """A search by time finds any entry of many, also after the front was truncated."""
    publications = [Publication(0, b"x", 2 * n + 2, 3 * n) for n in range(3000)]
    offsets = await queue.publish(topic, 0, publications)
    for number in (0, 1, 499, 500, 1501, 2998, 2999):
        assert await queue.offset_at(topic, 0, 2 * number + 2) == offsets[number]
        assert await queue.offset_since(topic, 0, 3 * number) == offsets[number]
    await queue.truncate(topic, 0, offsets[1000])
    assert await queue.offset_at(topic, 0, 7) == offsets[1000]
    assert await queue.offset_at(topic, 0, 4003) == offsets[2001]


async def test_times_never_go_back(queue, topic, next_process):
    """What was saved or published no commit and no publication undoes, of this life or the next."""
    assert await queue.times() == SavedTimes(0, 0)
    await queue.save_times(SavedTimes(500, 7_000))
    await queue.publish(topic, 0, [Publication(0, b"x", 1, 5_000)])
    await queue.commit("g", topic, {0: 0})
    assert await queue.times() == SavedTimes(5_001, 7_000)
    successor = await next_process()
    await successor.fence(topic, 0)
    await successor.commit("g", topic, {0: 1})
    assert await successor.times() == SavedTimes(5_001, 7_000)
    await successor.publish(topic, 0, [Publication(0, b"x", 1, 6_000)])
    assert await successor.times() == SavedTimes(6_001, 7_000)


# -- fencing --------------------------------------------------------------------------------


async def test_publishing_needs_a_fence(queue, topic):
    """A process that has not fenced the write partition cannot publish for it."""
    with pytest.raises(FencedError, match="write partition 7 of 'clicks'"):
        await publish(queue, topic, b"a", write_partition=7)
    assert await queue.offsets(topic, 0) == (0, 0)


async def test_the_next_owner_sees_all_and_the_earlier_one_is_out(queue, topic, next_process):
    """After a fence the new owner finds what was published, and the old one cannot add to it."""
    await publish(queue, topic, b"a", b"b")
    successor = await next_process()
    await successor.fence(topic, 0)
    with pytest.raises((FencedError, ClosedError)):
        await publish(queue, topic, b"late")
    assert await payloads(successor, topic) == [b"a", b"b"]
    await publish(successor, topic, b"c")
    assert await payloads(successor, topic) == [b"a", b"b", b"c"]


async def test_a_fence_that_fails_owns_nothing_more_and_nothing_less(queue, topic, next_process):
    """What was owned before it is owned after it, and what was not is not."""
    with pytest.raises(UnknownTopicError):
        await queue.fence("nothing", 0)
    assert not queue.owns("nothing", 0)
    successor = await next_process()
    await successor.fence(topic, 0)
    for lost in ((1, 0), (0, 1)):
        with pytest.raises((FencedError, ClosedError)):
            await queue.fence(topic, *lost, 2, again=True)
    if not await is_closed(queue):
        assert [queue.owns(topic, each) for each in (0, 1, 2)] == [False, True, False]
        await publish(queue, topic, b"mine", write_partition=1)
    assert [successor.owns(topic, each) for each in (0, 1, 2)] == [True, False, False]
    await publish(successor, topic, b"a")


async def test_a_publish_made_before_a_fence_is_seen_after_it(queue, topic):
    """What was on its way when the fence was asked for is there when it returns."""
    on_their_way = [asyncio.ensure_future(publish(queue, topic, b"%d" % n)) for n in range(5)]
    await asyncio.sleep(0)
    await queue.fence(topic, 0)
    assert await payloads(queue, topic) == [b"0", b"1", b"2", b"3", b"4"]
    offsets = [offset for (offset,) in await asyncio.gather(*on_their_way)]
    assert [entry.offset for entry in await fetch(queue, topic)] == offsets


# -- letting go -----------------------------------------------------------------------------


async def test_what_is_released_is_not_owned(queue, topic):
    """After a release nothing is published or committed, until it is fenced again."""
    await publish(queue, topic, b"a")
    await queue.release(topic, 0)
    assert not queue.owns(topic, 0)
    assert queue.owns(topic, 1)
    for call in (publish(queue, topic, b"late"), queue.commit("g", topic, {0: 1})):
        with pytest.raises(FencedError, match="write partition 0 of 'clicks'"):
            await call
    with pytest.raises(FencedError):
        await queue.hold("g", topic, {"m": Holding(1_000, [0])})
    await publish(queue, topic, b"b", write_partition=1)
    await queue.fence(topic, 0)
    assert queue.owns(topic, 0)
    await publish(queue, topic, b"c")
    assert await payloads(queue, topic) == [b"a", b"b", b"c"]
    assert await queue.committed("g", topic) == {}


async def test_what_was_asked_for_before_a_release_is_done(queue, topic):
    """Publications and commits that were on their way take effect."""
    [offset] = await publish(queue, topic, b"0")  # a commit is not past the end
    before = [asyncio.ensure_future(publish(queue, topic, b"%d" % n)) for n in range(1, 5)]
    commit = asyncio.ensure_future(queue.commit("g", topic, {0: offset + 1}))
    await asyncio.sleep(0)
    await queue.release(topic, 0, 1)
    with pytest.raises(FencedError):
        await publish(queue, topic, b"late")
    await asyncio.gather(*before, commit)
    assert await payloads(queue, topic) == [b"0", b"1", b"2", b"3", b"4"]
    assert await queue.committed("g", topic) == {0: offset + 1}


async def test_a_release_leaves_alone_what_another_process_has_fenced(queue, topic, next_process):
    """An earlier owner that has not heard of it cannot take the ownership from the next one."""
    successor = await next_process()
    await successor.fence(topic, 0)
    if not await is_closed(queue):
        await queue.release(topic, 0)
        assert not queue.owns(topic, 0)
        await queue.release(topic, 0)
    await publish(successor, topic, b"a")
    assert successor.owns(topic, 0)
    await successor.commit("g", topic, {0: 1})
    another = [successor] if await is_closed(queue) else [queue, successor]
    assert [await each.committed("g", topic) for each in another] == [{0: 1}] * len(another)


async def test_what_was_released_goes_to_the_next_owner(queue, topic, next_process):
    """The next owner finds all that was published, and the earlier one goes on with what it has."""
    await publish(queue, topic, b"a")
    await queue.release(topic, 0)
    successor = await next_process()
    assert await successor.wait_released(topic, [0], lambda _: True, LONG_S)
    await successor.fence(topic, 0)
    assert await payloads(successor, topic) == [b"a"]
    await publish(successor, topic, b"b")
    if not await is_closed(queue):
        await publish(queue, topic, b"c", write_partition=1)
        assert queue.owns(topic, 1)
        await successor.offsets(topic, 0)
        assert await payloads(successor, topic) == [b"a", b"b", b"c"]


async def test_who_owns_is_known(queue, topic, next_process):
    """An owner owns until it learns of another one; to save times is to learn it."""
    assert [queue.owns(topic, each) for each in (0, 1, 2)] == [True, True, False]
    assert not queue.owns("nothing", 0)
    successor = await next_process()
    assert not successor.owns(topic, 0)
    await successor.fence(topic, 0)
    assert successor.owns(topic, 0)
    if await is_closed(queue):
        with pytest.raises(ClosedError):
            queue.owns(topic, 0)
    else:
        await queue.save_times(SavedTimes(0, 0))
        assert [queue.owns(topic, each) for each in (0, 1)] == [False, True]


async def test_who_takes_over_waits_until_the_owner_lets_go(queue, topic, next_process):
    """The wait ends with the last release; without one, when the time has passed."""
    successor = await next_process()
    if await is_closed(queue):
        assert await successor.wait_released(topic, [0, 1], lambda _: True, 0)
        return
    assert not await successor.wait_released(topic, [0, 1], lambda _: True, 0.01)
    asked = []
    lives = lambda broker_id: bool(asked.append(broker_id) or True)  # noqa: E731
    wait = asyncio.ensure_future(successor.wait_released(topic, [0, 1], lives, LONG_S))
    await asyncio.sleep(0)
    await queue.release(topic, 1)
    assert await successor.wait_released(topic, [1], lambda _: True, LONG_S)
    assert not wait.done()
    await queue.release(topic, 0)
    async with asyncio.timeout(LONG_S / 2):
        assert await wait
    assert {*asked} == {"first"}


async def test_nobody_waits_for_the_dead(queue, topic, next_process):
    """Who waits for an owner to let go stops when it hears that the owner is dead."""
    successor = await next_process()
    assert await successor.wait_released(topic, [0], lambda _: False, 0)
    if await is_closed(queue):
        return
    alive, asked = {"first", "second"}, asyncio.Event()

    def lives(broker_id):
        asked.set()
        return broker_id in alive

    wait = asyncio.ensure_future(successor.wait_released(topic, [0], lives, LONG_S))
    await asked.wait()
    alive.discard("first")
    successor.wake_owners()
    async with asyncio.timeout(LONG_S / 2):
        assert await wait


async def test_who_waits_for_an_owner_learns_that_there_is_nothing_to_wait_for(
    queue, topic, next_process
):
    """A topic that is deleted and a queue that is closed end the wait with the reason."""
    successor = await next_process()
    if await is_closed(queue):
        return
    for end, reason in (
        (lambda: queue.delete_topic(topic), UnknownTopicError),
        (successor.close, ClosedError),
    ):
        await queue.create_topic(topic, 3)
        await queue.fence(topic, 0)
        wait = asyncio.ensure_future(successor.wait_released(topic, [0], lambda _: True, LONG_S))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(wait), 0.2)
        await end()
        with pytest.raises(reason):
            await wait


# -- waiting --------------------------------------------------------------------------------


async def test_wait_is_not_ended_by_other_publications(queue, topic):
    """Other partitions and other topics do not end a wait; the time does, with False."""
    await queue.create_topic("other", 1)
    await queue.fence("other", 0)
    (offset,) = await publish(queue, topic, b"a", partition=0)
    waiter = asyncio.ensure_future(queue.wait(topic, {0: offset + 1}, 0.2))
    await publish(queue, topic, b"a", partition=1)
    await publish(queue, "other", b"a")
    assert not await waiter


async def test_a_cancelled_wait_is_forgotten(queue, topic):
    """Publishing after a waiter was cancelled works and wakes the others."""
    first, second = await waiting(queue, topic), await waiting(queue, topic)
    first.cancel()
    await publish(queue, topic, b"a")
    assert await second
    with pytest.raises(asyncio.CancelledError):
        await first


@pytest.mark.parametrize("reason", [UnknownTopicError, ClosedError])
async def test_waiters_learn_that_there_is_nothing_to_wait_for(queue, topic, reason):
    """Deleting a topic, or closing the queue, ends the waits for it with the reason."""
    waiter = await waiting(queue, topic)
    await (queue.close() if reason is ClosedError else queue.delete_topic(topic))
    with pytest.raises(reason):
        await waiter


# -- retention ------------------------------------------------------------------------------


async def test_truncate_forgets_the_front(queue, topic):
    """After truncation the start has moved, earlier offsets are refused, later entries stay."""
    _, second, third = await publish(queue, topic, b"a", b"b", b"c")
    await queue.truncate(topic, 0, third)
    for before in (second, 0):
        await queue.truncate(topic, 0, before)
    with pytest.raises(OffsetOutOfRangeError):
        await queue.truncate(topic, 0, third + 2)
    assert await queue.offsets(topic, 0) == (third, third + 1)
    assert await payloads(queue, topic, third) == [b"c"]
    with pytest.raises(OffsetOutOfRangeError, match=f"only offset {third}"):
        await fetch(queue, topic, second)


async def test_truncating_everything_keeps_the_end(queue, topic, next_process):
    """Offsets are not used again, even when nothing is left."""
    *_, last = await publish(queue, topic, b"a", b"b", b"c")
    end = last + 1
    await queue.truncate(topic, 0, end)
    assert await queue.offsets(topic, 0) == (end, end)
    successor = await next_process()
    await successor.fence(topic, 0)
    assert await successor.offsets(topic, 0) == (end, end)
    assert await fetch(successor, topic, end) == []
    (offset,) = await publish(successor, topic, b"d")
    assert offset >= end
    assert await fetch(successor, topic, end) == [(offset, 1_000, b"d", 0)]


# -- topics ---------------------------------------------------------------------------------


async def test_creating_a_topic_again_changes_nothing(queue, topic):
    """A repeat keeps the entries; another number of partitions is refused."""
    await publish(queue, topic, b"a")
    await queue.create_topic(topic, 3)
    assert await payloads(queue, topic) == [b"a"]
    with pytest.raises(TopicExistsError, match="3 read partitions"):
        await queue.create_topic(topic, 4)
    assert await queue.offsets(topic, 2) == (0, 0)


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden", "a b", "x" * 250, "a\0"])
async def test_bad_topic_names_are_refused(queue, name):
    """A name that could not be a folder is no topic."""
    with pytest.raises(InvalidRequestError):
        await queue.create_topic(name, 1)


async def test_a_deleted_topic_is_gone_and_its_name_is_free(queue, topic, next_process):
    """A topic made anew under an old name has no entries, no owners and no groups."""
    await publish(queue, topic, b"a", b"b")
    await queue.commit("g", topic, {0: 1})
    await queue.delete_topic(topic)
    await queue.delete_topic(topic)
    assert await queue.topics() == []
    with pytest.raises(UnknownTopicError):
        await publish(queue, topic, b"c")
    await queue.create_topic(topic, 1)
    assert await queue.offsets(topic, 0) == (0, 0)
    assert await queue.groups(topic) == []
    with pytest.raises(FencedError):
        await publish(queue, topic, b"c")
    successor = await next_process()
    assert await successor.topics() == [topic]
    assert await successor.offsets(topic, 0) == (0, 0)


CALLS_ON_A_PARTITION = {
    "publish": lambda queue, topic, partition: queue.publish(
        topic, 0, [Publication(partition, b"", 1)]
    ),
    "fetch": lambda queue, topic, partition: fetch(queue, topic, 0, partition),
    "wait": lambda queue, topic, partition: queue.wait(topic, {partition: 0}, 0),
    "offsets": lambda queue, topic, partition: queue.offsets(topic, partition),
    "offset_at": lambda queue, topic, partition: queue.offset_at(topic, partition, 0),
    "offset_since": lambda queue, topic, partition: queue.offset_since(topic, partition, 0),
    "truncate": lambda queue, topic, partition: queue.truncate(topic, partition, 0),
    "commit": lambda queue, topic, partition: queue.commit("g", topic, {partition: 0}),
}
CALLS_ON_A_TOPIC = CALLS_ON_A_PARTITION | {
    "fence": lambda queue, topic, _: queue.fence(topic, 0),
    "release": lambda queue, topic, _: queue.release(topic, 0),
    "wait_released": lambda queue, topic, _: queue.wait_released(topic, [0], bool, 0),
    "committed": lambda queue, topic, _: queue.committed("g", topic),
    "groups": lambda queue, topic, _: queue.groups(topic),
    "hold": lambda queue, topic, _: queue.hold("g", topic, {}),
    "holdings": lambda queue, topic, _: queue.holdings(topic),
    "delete_group": lambda queue, topic, _: queue.delete_group("g", topic),
}
ALL_CALLS = CALLS_ON_A_TOPIC | {
    "create_topic": lambda queue, topic, _: queue.create_topic(topic, 1),
    "delete_topic": lambda queue, topic, _: queue.delete_topic(topic),
    "topics": lambda queue, *_: queue.topics(),
}


@pytest.mark.parametrize("name", CALLS_ON_A_TOPIC)
async def test_an_unknown_topic_is_refused(queue, name):
    """Every call on a topic that does not exist names it."""
    with pytest.raises(UnknownTopicError, match="'nothing'"):
        await CALLS_ON_A_TOPIC[name](queue, "nothing", 0)


@pytest.mark.parametrize("partition", [3, -1])
@pytest.mark.parametrize("name", CALLS_ON_A_PARTITION)
async def test_an_unknown_partition_is_refused(queue, topic, name, partition):
    """Every call on a partition that the topic does not have says which it has."""
    with pytest.raises(InvalidRequestError, match="0 to 2"):
        await CALLS_ON_A_PARTITION[name](queue, topic, partition)


@pytest.mark.parametrize("name", ALL_CALLS)
async def test_a_closed_queue_refuses_every_call(queue, topic, name):
    """After `close`, which may be repeated, every call says that the queue is closed."""
    await queue.close()
    await queue.close()
    with pytest.raises(ClosedError):
        await ALL_CALLS[name](queue, topic, 0)


# -- groups ---------------------------------------------------------------------------------


async def test_committed_offsets_come_back(queue, topic):
    """A group has the offsets it stored last, by partition, and those of others do not matter."""
    assert await queue.committed("g", topic) == {}
    await queue.commit("g", topic, {0: 5, 1: 7})
    await queue.commit("h", topic, {0: 1})
    await queue.commit("g", topic, {1: 2, 2: 0})
    assert await queue.committed("g", topic) == {0: 5, 1: 2, 2: 0}
    assert await queue.committed("h", topic) == {0: 1}


async def test_groups_are_listed_and_forgotten(queue, topic):
    """Groups with stored offsets are listed by name until they are deleted."""
    for group in ("b", "a-1", "_c"):
        await queue.commit(group, topic, {0: 1})
    assert await queue.groups(topic) == ["_c", "a-1", "b"]
    await queue.delete_group("a-1", topic)
    await queue.delete_group("a-1", topic)
    await queue.delete_group("never-there", topic)
    assert await queue.groups(topic) == ["_c", "b"]
    assert await queue.committed("a-1", topic) == {}


async def test_groups_of_a_topic_are_bounded(queue, topic, monkeypatch):
    """One group too many is refused by an error that says what to do; those that are go on."""
    monkeypatch.setattr(queue_module, "MAX_STORED_GROUPS", 2)
    for group in "ab":
        await queue.commit(group, topic, {0: 1})
    with pytest.raises(LimitReachedError, match=r"'c'.*most of 2 groups.*memq group delete"):
        await queue.commit("c", topic, {0: 1})
    await queue.commit("a", topic, {0: 2})
    await queue.delete_group("b", topic)
    await queue.commit("c", topic, {0: 1})
    assert await queue.groups(topic) == ["a", "c"]


async def test_what_members_hold_comes_back(queue, topic, next_process):
    """Who holds what is stored whole, by group; when nobody does, nothing is left of it."""
    assert await queue.holdings(topic) == {}
    both = {"b": Holding(10_000, [0, 2]), "a": Holding(1_000, [1])}
    await queue.hold("g", topic, both)
    await queue.hold("h", topic, both)
    await queue.hold("g", topic, {"a": Holding(1_000, [1, 2])})
    assert await queue.groups(topic) == []
    queue = await next_process()
    await queue.fence(topic, 0)
    assert await queue.holdings(topic) == {"g": {"a": Holding(1_000, [1, 2])}, "h": both}
    for group in ("g", "h", "nobody"):
        await queue.hold(group, topic, {})
    assert await queue.holdings(topic) == {}


async def test_commits_take_effect_in_the_order_of_the_calls(queue, topic):
    """Of commits that are under way at a time the one that was called last stays."""
    commits = [queue.commit("g", topic, {0: number}) for number in range(20)]
    calls = [asyncio.ensure_future(commit) for commit in commits]
    await asyncio.sleep(0)
    assert await queue.committed("g", topic) == {0: 19}
    await asyncio.gather(*calls)


async def test_groups_belong_to_the_owner_of_write_partition_0(queue, topic, next_process):
    """Who does not own it, or does no more, cannot move a group's offsets; reading is free."""
    await queue.commit("g", topic, {0: 1})
    successor = await next_process()
    assert await successor.committed("g", topic) == {0: 1}
    await successor.fence(topic, 0)
    for call in (
        queue.commit("g", topic, {0: 7}),
        queue.hold("g", topic, {"m": Holding(1_000, [0])}),
        queue.delete_group("g", topic),
    ):
        with pytest.raises((FencedError, ClosedError)):
            await call
    await successor.commit("g", topic, {1: 2})
    assert await successor.committed("g", topic) == {0: 1, 1: 2}
    assert await successor.holdings(topic) == {}


async def test_a_commit_with_a_bad_offset_stores_nothing(queue, topic):
    """When one offset is refused, the others are not stored either."""
    for bad in ({0: 1, 1: -1}, {0: 1, 3: 1}):
        with pytest.raises(InvalidRequestError):
            await queue.commit("g", topic, bad)
    assert await queue.committed("g", topic) == {}


@pytest.mark.parametrize("group", ["", "..", "a/b", "a b", "x" * 201])
async def test_bad_group_names_are_refused(queue, topic, group):
    """A name that could not be a file is no group."""
    for call in (
        queue.commit(group, topic, {0: 1}),
        queue.committed(group, topic),
        queue.delete_group(group, topic),
    ):
        with pytest.raises(InvalidRequestError):
            await call
