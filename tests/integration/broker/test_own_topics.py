"""The topics of a broker that governs itself: how they come, change, go, and come again."""

import asyncio

import pytest

from memq.core.topic import TopicConfig
from memq.errors import QueueError, TopicExistsError, UnavailableError, UnknownTopicError
from tests.integration.broker.support import broker, failing, turns


def config(name="t", **options):
    return TopicConfig.create(name, **options)


async def test_only_the_request_that_made_a_topic_is_answered_with_it(tmp_path) -> None:
    """A request without an id of its own is never taken for the one that made it."""
    async with broker(tmp_path) as b:
        made = await b.topics.create(config("named"), "r1")
        assert await b.topics.create(config("named"), "r1") is made
        await b.topics.create(config("other"))
        for name, request_id in (("named", "r2"), ("named", ""), ("other", ""), ("other", "r1")):
            with pytest.raises(TopicExistsError):
                await b.topics.create(config(name), request_id)


async def test_a_change_is_made_whole_though_its_client_goes_away(tmp_path) -> None:
    """Whoever asked may hang up in the middle; a broker that stops waits for it."""
    async with broker(tmp_path) as b:
        reached, gate, create = asyncio.Event(), asyncio.Event(), b.context.queue.create_topic

        async def gated(*args):
            reached.set()
            await gate.wait()
            await create(*args)

        b.context.queue.create_topic = gated
        asking = asyncio.ensure_future(b.topics.create(config()))
        await reached.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        stopping = asyncio.ensure_future(b.topics.stop(60))
        await turns()
        assert not stopping.done()
        for change in (
            b.topics.create(config("u")),
            b.topics.alter("t", {}, None),
            b.topics.delete("t"),
        ):
            with pytest.raises(UnavailableError, match="draining"):
                await change
        gate.set()
        assert await stopping
        assert b.topics.get("t").partitions[0].closed
        assert not b.topics._changes
        assert b.topics._catalog.get("t").name == "t"


@pytest.mark.parametrize("step", ["fence", "save"])
async def test_an_alteration_that_fails_has_changed_nothing(tmp_path, step) -> None:
    """What was not made durable does not hold, and nothing that was added runs."""
    async with broker(tmp_path) as b:
        hosted = await b.topics.create(config(batch_age="1s"))
        before = hosted.topic
        place = b.context.queue if step == "fence" else b.topics._catalog
        with failing(place, step, QueueError("no")), pytest.raises(QueueError):
            await b.topics.alter("t", {"write_partitions": "3", "batch_age": "2s"}, None)
        assert hosted.topic is before
        assert list(hosted.partitions) == [0]
        assert hosted.partitions[0].processor.config.batch_age_ms == 1_000
        assert b.topics._catalog.get("t") == before
        await b.topics.alter("t", {"write_partitions": "3", "batch_age": "2s"}, None)
        assert list(hosted.partitions) == [0, 1, 2]
        assert not b.context.fatal_errors.failure.done()


@pytest.mark.parametrize("step", ["announce", "create_topic", "fence", "save"])
async def test_a_creation_that_fails_is_doomed_once_something_may_be_left(tmp_path, step) -> None:
    """The name is free at once, whatever it failed at; what was not announced left nothing."""
    async with broker(tmp_path) as b:
        catalog, doomed = b.topics._catalog, []
        doom, catalog.doom = catalog.doom, lambda topic: (doomed.append(topic.name), doom(topic))
        place = catalog if step in ("announce", "save") else b.context.queue
        with failing(place, step, QueueError("no")), pytest.raises(QueueError):
            await b.topics.create(config())
        assert doomed == ["t"] * (step != "announce")
        with pytest.raises(UnknownTopicError):
            b.topics.get("t")
        hosted = await b.topics.create(config())
        assert b.topics.get("t") is hosted
        assert hosted.partitions[0].processor.idle
