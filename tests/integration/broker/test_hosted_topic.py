"""A topic as a broker hosts it: watermarks, retention and stops."""

from types import SimpleNamespace

import pytest

from memq.broker.hosted_topic import NOT_OWNED, take_over
from memq.core.clock import ClockReading
from memq.core.queue import GROUPS
from memq.core.topic import TopicConfig
from memq.errors import QueueError
from tests.integration.broker.support import broker, failing, until
from tests.integration.broker.test_write_partition import Partition


async def topic(b, **options):
    return await b.topics.create(TopicConfig.create("t", **({"batch_age": "10m"} | options)))


async def test_a_watermark_is_told_of_what_is_owned_here(tmp_path) -> None:
    """Not of what is closed, nor of what another broker has fenced; they hold back no other."""
    async with broker(tmp_path) as b:
        hosted = await topic(b, write_partitions=4, read_partitions=4)
        queue, order = b.context.queue, []
        owns, told = queue.owns, b.context.times.told

        def note(wall_ms):
            order.append(wall_ms)
            told(wall_ms)

        b.context.times.told = note
        p = Partition(b)
        p.write(0)
        opened_ms = p.it.processor.stored_through_ms(b.context.now())
        real = b.context.now
        b.context.now = lambda: real()._replace(wall_ms=opened_ms + 500)
        await hosted.partitions[1].close()
        fenced = {2}
        queue.owns = lambda name, number: number not in fenced and owns(name, number)
        del hosted.partitions[3]
        by_write, by_read = await hosted.watermarks()
        assert by_write == [opened_ms, NOT_OWNED, NOT_OWNED, NOT_OWNED]
        assert by_read == [opened_ms, *[opened_ms + 500] * 3]
        assert order == [max(by_read)]
        fenced.add(0)
        assert await hosted.watermarks() == ([NOT_OWNED] * 4, [NOT_OWNED] * 4)
        assert order[1:] == [NOT_OWNED]
        queue.owns, b.context.now = owns, real


async def test_a_take_over_knows_what_came_before_its_fence(tmp_path) -> None:
    """It reads after it has fenced: the owner before may publish until then."""
    async with broker(tmp_path) as b:
        hosted = await topic(b, batch_age="1ms")
        p, fence = Partition(b), b.context.queue.fence

        async def late(*of):
            p.write(0)
            await until(lambda: 0 in p.told)
            await fence(*of)

        b.context.queue.fence = late
        rebuilt = await take_over(hosted.topic, [0], b.context)
        assert rebuilt[0].batches == 1


async def test_no_watermark_is_later_than_what_is_saved(tmp_path) -> None:
    """While the time cannot be saved it stands still; below what others told it is an error."""
    async with broker(tmp_path) as b:
        hosted = await topic(b, read_partitions=2)
        ((before,), _) = await hosted.watermarks()
        times, real = b.context.times, b.context.now
        saved_ms = times.saved.wall_ms
        assert saved_ms >= before

        b.context.now = lambda: ClockReading(real().mono_ms, saved_ms + 5_000)
        with failing(times, "_save", QueueError("the disk is full")):
            for _ in range(2):
                assert await hosted.watermarks() == ([saved_ms], [saved_ms] * 2)
                times.told(saved_ms)
            times.told(saved_ms + 1)
            with pytest.raises(QueueError, match="the disk is full"):
                await hosted.watermarks()
        ((after,), _) = await hosted.watermarks()
        assert after == saved_ms + 5_000
        b.context.now = real


async def test_what_any_write_partition_has_told_holds_for_all(tmp_path) -> None:
    """A read partition may come from one to another; so it is with those that are added, too."""
    async with broker(tmp_path) as b:
        hosted = await topic(b, write_partitions=2)
        one, two = (each.processor for each in hosted.partitions.values())
        two.written_ms = one.written_ms + 1_000_000
        await b.topics.alter("t", {"write_partitions": "3"}, None)
        assert {each.processor.written_ms for each in hosted.partitions.values()} == {
            two.written_ms
        }
        assert hosted.duplicates.config is hosted.topic.config
        told_ms = b.context.times.told_ms
        start = SimpleNamespace(window=one.window, written_ms=7, opened_ms=5, batches=0)
        for coordinated, number in ((False, 1), (True, GROUPS), (True, 2)):
            hosted.coordinated = hosted.coordinated and number != 1
            hosted.begin(hosted.topic, {number: start}, told_ms + number + 9)
            assert hosted.coordinated == coordinated
            begun = hosted.partitions[number].processor
            assert begun.written_ms == told_ms + number + 9
            assert b.context.times.told_ms >= told_ms + number + 9
        start.written_ms = told_ms + 1_000
        hosted.begin(hosted.topic, {1: start}, told_ms)
        assert hosted.partitions[1].processor.written_ms == start.written_ms
