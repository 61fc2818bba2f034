"""Fetching ahead: what is planned, held in memory and handed out, whatever fails or moves."""

import asyncio
from types import SimpleNamespace

import msgspec
import pytest

from memq.client.consumer.fetcher import LONG_POLL_MS, PLAN_AHEAD, Fetcher
from memq.client.topic import Page
from memq.core.notification import encode_notification
from memq.core.wire.messages import NotificationEntry, PartitionOffsets
from memq.errors import CorruptDataError, DataLossError, OffsetOutOfRangeError, StorageError
from tests.integration.broker.support import until
from tests.unit.core.audit.test_consumed import notification
from tests.unit.zookeeper.conftest import virtual_time  # noqa: F401 - a fixture


class Topic:
    """A topic whose broker answers as it is told to, and remembers what it was asked.

    Attributes:
        retained: start and end of each partition.
        sizes: of the objects, by partition and offset; 1 where none is given.
        asked: positions, most entries and longest wait of each page.
        failing: raised in place of an answer, while there is one.
        damaged: places of what is no notification.
        gaps: offsets that have none.
    """

    topic = "t"

    def __init__(self, **ends):
        runtime = SimpleNamespace(random=lambda: 1.0)
        self.cluster = SimpleNamespace(runtime=runtime)
        self.retained = {int(p[1:]): [0, end] for p, end in ends.items()}
        self.sizes, self.asked, self.failing, self.damaged = {}, [], None, set()
        self.published = asyncio.Event()
        self.unasked, self.gaps = [], set()

    def entry(self, partition, offset):
        """What the queue has at a place."""
        if (partition, offset) in self.damaged:
            return NotificationEntry(partition, offset, 0, b"{")
        size = self.sizes.get((partition, offset), 1)
        named = msgspec.structs.replace(notification(offset), size_bytes=size)
        return NotificationEntry(partition, offset, 0, encode_notification(named))

    async def page(self, positions, *, max_entries, max_wait_ms):
        self.asked.append((dict(positions), max_entries, max_wait_ms))
        while True:
            if self.failing is not None:
                raise self.failing
            for partition, offset in positions.items():
                start, end = self.retained[partition]
                if not start <= offset <= end:
                    raise OffsetOutOfRangeError(f"offset {offset} is not there")
            found = [
                self.entry(partition, at)
                for partition, offset in positions.items()
                for at in range(offset, self.retained[partition][1])
                if at not in self.gaps
            ]
            if found or self.unasked:
                return Page([*found[:max_entries], *self.unasked], {})
            self.published.clear()
            await self.published.wait()

    async def offsets(self):
        return [PartitionOffsets(p, *span, None) for p, span in sorted(self.retained.items())]

    def publish(self, partition):
        """One more Batch."""
        self.retained[partition][1] += 1
        self.published.set()


class Storage:
    """Fetches Batches when it is let; remembers which.

    Attributes:
        begun: places of the Batches whose fetch was begun.
        failing: raised in place of the Batch, by place.
        decoded: bytes that a Batch takes once it is decoded; as its object where not given.
    """

    def __init__(self):
        self.begun, self.failing, self.decoded = [], {}, {}
        self.gate = asyncio.Event()
        self.gate.set()
        self.cancelled = 0

    async def fetch(self, published):
        place = (published.partition, published.offset)
        self.begun.append(place)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if place in self.failing:
            raise self.failing[place]
        size = self.decoded.get(place, published.notification.size_bytes)
        return SimpleNamespace(place=place, size_bytes=size)


class Reading:
    """A fetcher and what is behind it."""

    def __init__(self, topic, **options):
        self.topic, self.storage, self.woken = topic, Storage(), asyncio.Event()
        given = {"prefetch_bytes": 1000, "concurrency": 4, "on_out_of_range": "error"} | options
        self.fetcher = Fetcher(topic, self.storage, wake=self.woken.set, **given)

    async def take(self, count=1):
        """Places of the next Batches, woken for each that was not there."""
        found = []
        async with asyncio.timeout(60):
            while len(found) < count:
                self.woken.clear()
                fetched = self.fetcher.take()
                if fetched is None:
                    await self.woken.wait()
                else:
                    found.append(fetched.place)
        return found

    async def take_past(self, kind, count, *, errors=0):
        """Places of so many Batches, and at least so many errors of a kind, sorted and as texts."""
        found, told = [], []
        async with asyncio.timeout(60):
            while len(found) < count or len(told) < errors:
                try:
                    found += await self.take()
                except kind as exc:
                    told.append(str(exc))
                    await asyncio.sleep(0)
        return sorted(found), told

    async def at_rest(self):
        """Nothing is being fetched, and the broker waits for something new."""
        await until(lambda: not self.fetcher._fetching and not self.topic.published.is_set())
        for _ in range(10):
            await asyncio.sleep(0)

    def held(self):
        """Bytes in memory, told in two ways that must agree."""
        planned = [each for buffer in self.fetcher._buffers.values() for each in buffer.batches]
        held = sum(each.held_bytes for each in planned)
        assert held == self.fetcher._held_bytes
        return held


@pytest.fixture
async def read():
    """Begins to read a topic; it ends with the test."""
    begun = []

    def begin(topic, **options):
        begun.append(Reading(topic, **options))
        return begun[-1]

    yield begin
    for each in begun:
        await each.fetcher.close()


async def test_a_gap_belongs_to_the_batch_after_it(read):
    """Each Batch is taken from where the one before ended; after a move from where that led."""
    reading, taken = read(Topic(p0=9)), []
    reading.topic.gaps = {0, 1, 4, 5, 6}
    for start, count in ((1, 3), (3, 1), (8, 1)):
        reading.fetcher.move({0: start})
        for _ in range(count):
            [(_, offset)] = await reading.take()
            taken.append((reading.fetcher.taken_from, offset))
    assert taken == [(1, 2), (3, 3), (4, 7), (3, 3), (8, 8)]


async def test_memory_of_a_partition_that_is_dropped_goes_to_the_others(read):
    """They go on at once, though nothing is taken, published or ready."""
    reading = read(Topic(p0=3, p1=2), prefetch_bytes=3)
    reading.fetcher.move({0: 0})
    await until(lambda: reading.held() == 3)
    reading.fetcher.move({1: 0})
    await reading.at_rest()
    assert reading.storage.begun == [(0, 0), (0, 1), (0, 2)], "there is no memory for more"
    reading.fetcher.drop([0])
    await reading.at_rest()
    assert reading.storage.begun[3:] == [(1, 0), (1, 1)]
    assert reading.held() == 2
    assert await reading.take(2) == [(1, 0), (1, 1)]
    assert reading.fetcher.positions == {1: 2}


async def test_what_is_being_fetched_when_a_partition_moves_is_given_up(read):
    """Its thread and its memory are free again, and it is not handed out; again and again."""
    reading = read(Topic(p0=5), prefetch_bytes=2, concurrency=2)
    reading.storage.gate.clear()
    for count, start in enumerate((3, 0, 2, 1)):
        reading.fetcher.move({0: start})
        await until(lambda: len(reading.storage.begun) == 2 * count + 2)  # noqa: B023 - at once
        assert (reading.held(), reading.fetcher._fetching) == (2, 2)
    assert reading.storage.cancelled == 6
    reading.storage.gate.set()
    assert await reading.take(4) == [(0, 1), (0, 2), (0, 3), (0, 4)]
    assert (reading.held(), reading.fetcher._fetching) == (0, 0)


async def test_close_ends_all_that_was_begun(read):
    """No fetch and no question is left behind."""
    reading = read(Topic(p0=2, p1=0))
    reading.storage.gate.clear()
    reading.fetcher.move({0: 0, 1: 0})
    await until(lambda: reading.fetcher._fetching == 2)
    await reading.fetcher.close()
    assert reading.storage.cancelled == 2
    assert (reading.held(), reading.fetcher._tasks) == (0, {})


async def test_memory_is_bounded_by_what_batches_take_once_decoded(read):
    """Up to the bound, not above it; a Batch that is larger waits until nothing else is held."""
    topic = Topic(p0=6)
    topic.sizes = {(0, 3): 50}
    reading = read(topic, prefetch_bytes=10)
    reading.storage.decoded = {(0, 0): 9, (0, 1): 1}
    reading.storage.gate.clear()
    reading.fetcher.move({0: 0})
    await until(lambda: len(reading.storage.begun) == 3)
    await asyncio.sleep(0)
    assert reading.storage.begun == [(0, 0), (0, 1), (0, 2)], "the large one waits"
    reading.storage.gate.set()
    await reading.at_rest()
    assert reading.held() == 11
    assert await reading.take() == [(0, 0)]
    assert reading.held() == 2
    assert await reading.take(2) == [(0, 1), (0, 2)]
    await reading.at_rest()
    assert (reading.held(), reading.storage.begun[3:]) == (50, [(0, 3)])
    assert await reading.take(3) == [(0, 3), (0, 4), (0, 5)]
    assert reading.held() == 0


@pytest.mark.parametrize(
    "error", [StorageError("away"), DataLossError("gone"), CorruptDataError("bad")]
)
async def test_a_batch_that_cannot_be_fetched_keeps_its_partition_and_no_other(error, read):
    """It is raised and tried anew with each take; nothing of its partition is skipped."""
    reading = read(Topic(p0=3, p1=2))
    reading.storage.failing = {(0, 1): error}
    reading.fetcher.move({0: 0, 1: 0})
    await reading.at_rest()
    found, _ = await reading.take_past(type(error), 3, errors=3)
    assert found == [(0, 0), (1, 0), (1, 1)]
    assert reading.fetcher.positions == {0: 1, 1: 2}
    assert reading.storage.begun.count((0, 1)) >= 3
    reading.storage.failing.clear()
    assert (await reading.take_past(type(error), 2))[0] == [(0, 1), (0, 2)]
    assert reading.held() == 0


async def test_damage_in_one_partition_does_not_keep_the_rest_of_an_answer(read):
    """What comes before the damage and what is in other partitions is read; the error is told as
    often as it is met, and a move past it goes on.
    """
    topic = Topic(p0=3, p1=2)
    topic.damaged = {(0, 1)}
    reading = read(topic)
    reading.fetcher.move({0: 0, 1: 0})
    await reading.at_rest()
    found, errors = await reading.take_past(CorruptDataError, 3, errors=3)
    assert found == [(0, 0), (1, 0), (1, 1)]
    assert all("t/0 offset 1" in each for each in errors)
    assert reading.fetcher.positions == {0: 1, 1: 2}
    topic.publish(1)
    assert (await reading.take_past(CorruptDataError, 1))[0] == [(1, 2)]
    assert all(0 not in positions for positions, *_ in topic.asked[2:])
    reading.fetcher.move({0: 2})
    assert await reading.take() == [(0, 2)]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("earliest", {0: 3, 1: 0, 2: 2, 3: 2}), ("latest", {0: 5, 1: 0, 2: 4, 3: 2})],
)
async def test_only_what_is_out_of_range_goes_elsewhere(policy, expected, read):
    """Whether it is before or after what is retained; both ends are in range."""
    topic = Topic(p0=5, p1=0, p2=4, p3=2)
    topic.retained[0] = [3, 5]
    topic.retained[2] = [2, 4]
    reading = read(topic, on_out_of_range=policy, concurrency=1)
    reading.storage.gate.clear()
    reading.fetcher.move({0: 1, 1: 0, 2: 9, 3: 2})
    await until(lambda: len(topic.asked) > 1)
    assert topic.asked[1][0] == expected
    assert reading.fetcher.positions == expected


@pytest.mark.parametrize("policy", ["earliest", "error"])
async def test_a_batch_that_retention_took_before_it_was_fetched_is_out_of_range(policy, read):
    """What is done then is what is done about any offset that is not retained."""
    topic = Topic(p0=4)
    reading = read(topic, on_out_of_range=policy)
    reading.storage.failing = {(0, at): OffsetOutOfRangeError("removed") for at in (1, 2)}
    reading.fetcher.move({0: 0})
    await reading.at_rest()
    topic.retained[0] = [3, 4]
    assert await reading.take() == [(0, 0)]
    if policy == "earliest":
        assert await reading.take() == [(0, 3)]
    else:
        with pytest.raises(OffsetOutOfRangeError, match="offset 1 of t/0 is not retained"):
            await reading.take()


async def test_no_more_is_planned_than_may_be(read):
    """A partition is asked about again when half of its share is used up, and not before."""
    reading = read(Topic(p0=4 * PLAN_AHEAD), concurrency=1)
    reading.fetcher.move({0: 0})
    await reading.at_rest()
    assert reading.topic.asked == [({0: 0}, PLAN_AHEAD, LONG_POLL_MS)]
    await reading.take(PLAN_AHEAD // 2 - 1)
    await reading.at_rest()
    assert len(reading.topic.asked) == 1
    await reading.take(1)
    await until(lambda: len(reading.topic.asked) == 2)
    assert reading.topic.asked[1] == ({0: PLAN_AHEAD}, PLAN_AHEAD // 2, LONG_POLL_MS)
    assert reading.fetcher._planned <= PLAN_AHEAD


async def test_what_nothing_expected_is_raised_by_the_next_take(read):
    """A bug ends the reading ahead, and does not go unnoticed."""
    reading = read(Topic(p0=1))
    reading.topic.failing = ZeroDivisionError("bug")
    reading.fetcher.move({0: 0})
    await until(reading.fetcher._follower.done)
    with pytest.raises(ZeroDivisionError):
        reading.fetcher.take()
