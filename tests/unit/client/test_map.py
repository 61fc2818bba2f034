"""Work done ahead on items, such as the notifications of a range."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from memq.client.objects import map_ahead
from memq.client.read_plan import ReadPlan
from memq.client.read_range import read_batches
from memq.client.topic import TopicClient
from memq.core.notification.notification import PublishedBatch
from memq.core.wire.messages import NotificationEntry
from memq.errors import CorruptDataError
from tests.unit.client.batches import Sent, notify, records, seal


async def numbers(count):
    for number in range(count):
        yield number


@pytest.mark.parametrize("most", [1, 3, 50])
async def test_work_ahead_keeps_order_and_bound(most):
    """Results come in the order of the items, and no more than asked for is under way."""
    running = peak = 0

    async def double(number):
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0)
        running -= 1
        return 2 * number

    found = [pair async for pair in map_ahead(double, numbers(20), most)]
    assert found == [(number, 2 * number) for number in range(20)]
    assert peak <= most
    assert peak == min(most, 20)


@pytest.mark.parametrize(("most", "expected"), [(1, 1), (7, 3), (100, 20)])
async def test_work_ahead_is_bounded_by_weight(most, expected):
    """No more is under way than may weigh so much; what is heavier is worked on by itself."""
    running = peak = 0

    async def note(number):
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0)
        running -= 1
        return number

    weighed = map_ahead(note, numbers(20), most, lambda _: 2)
    assert [found async for _, found in weighed] == list(range(20))
    assert peak == expected


@pytest.mark.parametrize("weight", [1, 3])
async def test_work_ahead_stays_ahead(weight):
    """From the first result to the last, as much is begun as may be; not only at first."""
    begun = []

    async def note(number):
        begun.append(number)

    taken = 0
    async for _ in map_ahead(note, numbers(20), 4 * weight, lambda _: weight):
        await asyncio.sleep(0)
        assert len(begun) == min(20, taken + 4)
        taken += 1
    assert taken == 20


async def test_work_ahead_is_cancelled_when_it_is_left():
    """Leaving early, or an error, leaves no work behind."""
    started, ended = [], []

    async def work(number):
        started.append(number)
        try:
            if number:
                await asyncio.Event().wait()
        finally:
            ended.append(number)

    async with aclosing(map_ahead(work, numbers(10), 4)) as found:
        async for number, _ in found:
            assert number == 0
            break
    await asyncio.sleep(0)
    assert len(started) > 1
    assert sorted(ended) == started


async def test_error_in_the_work_is_raised_in_its_turn():
    """An error comes where its result would have come."""

    async def invert(number):
        return 1 / (number - 2)

    found = []

    async def collect():
        async for number, _ in map_ahead(invert, numbers(5), 3):
            found.append(number)

    with pytest.raises(ZeroDivisionError):
        await collect()
    assert found == [0, 1]


async def test_nothing_is_left_to_the_garbage_collector():
    """Pages, notifications and Batches that are left before their end close what they read from."""
    closed = []

    class Pages(TopicClient):
        """A topic with one notification after the other."""

        async def pages(self, ranges, **_):
            try:
                while True:
                    yield [NotificationEntry(0, 0, 1, b"damaged"), NotificationEntry(0, 1, 1, b"")]
            finally:
                closed.append(True)

    topic = Pages(None, "t")
    async with aclosing(topic.entries([])) as entries:
        async for _ in entries:
            break
    assert closed == [True]
    async with aclosing(topic.batches([])) as batches:
        with pytest.raises(CorruptDataError):
            await anext(batches)
    assert closed == [True, True]


async def test_a_range_that_fails_closes_what_it_reads():
    """An object that cannot be read ends the reading of notifications at once."""
    closed = []

    class Topic:
        async def batches(self, ranges):
            try:
                for offset in range(9):
                    yield PublishedBatch(0, offset, 1, notify(seal(Sent("p", 0, records(b"v")))))
            finally:
                closed.append(True)

    class Source:
        async def fetch(self, batch):
            raise CorruptDataError(f"{batch.offset} is damaged")

    plan = ReadPlan(times=None, pieces=[])
    with pytest.raises(CorruptDataError, match="0 is damaged"):
        async with aclosing(read_batches(Topic(), Source(), plan, [], list)) as batches:
            await anext(batches)
    assert closed == [True]
