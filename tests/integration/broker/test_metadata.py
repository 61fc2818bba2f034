"""Topics and offsets as clients ask for them."""

from __future__ import annotations

import pytest

from memq.broker import handlers
from memq.client.admin import AsyncAdminClient
from memq.core.wire import messages as m
from memq.errors import InvalidRequestError, OffsetOutOfRangeError, UnknownTopicError
from tests.integration.broker.support import broker, client


async def test_topic_is_created_only_for_those_who_ask_for_it(tmp_path) -> None:
    """With auto_create_topics a producer's question makes the topic; a reader's typo does not."""
    async with broker(tmp_path, auto_create_topics=True) as b, client(b) as c:
        with pytest.raises(UnknownTopicError):
            await c.ask(m.Metadata(topics=["typo"]))
        answer = await c.ask(m.Metadata(topics=["t"], create=True))
        assert [topic.config.name for topic in answer.topics] == ["t"]


async def test_topic_is_not_created_where_the_broker_does_not_allow_it(tmp_path) -> None:
    """Without auto_create_topics an unknown topic is an error for everybody."""
    async with broker(tmp_path) as b, client(b) as c:
        with pytest.raises(UnknownTopicError):
            await c.ask(m.Metadata(topics=["t"], create=True))


async def test_commit_below_the_start_is_taken_and_past_the_end_refused(tmp_path) -> None:
    """A consumer that retention overtook can commit; an offset that is to come cannot be."""
    async with broker(tmp_path) as b, client(b) as c:
        await c.create()
        await c.write(0)
        await c.write(1)
        await b.context.queue.truncate(b.topics.get("t").topic.queue_topic, 0, 2)
        for offset in (0, 1, 2):
            request = m.CommitOffsets(
                group="g", topic="t", member_id="", offsets=[m.PartitionOffset(0, offset)]
            )
            await c.ask(request)
            committed = await c.ask(m.FetchCommitted(group="g", topic="t"))
            assert committed.offsets == [m.PartitionOffset(0, offset)]
        for offset in (-1, 3):
            with pytest.raises(OffsetOutOfRangeError, match=f"cannot commit offset {offset}"):
                await c.ask(
                    m.CommitOffsets(
                        group="g", topic="t", member_id="", offsets=[m.PartitionOffset(0, offset)]
                    )
                )


async def test_lists_that_one_answer_cannot_hold_come_in_pages(tmp_path, monkeypatch) -> None:
    """All topics and groups are listed, each once and sorted, however little an answer holds."""
    monkeypatch.setattr(handlers, "PAGE_BYTES", 5_000)
    async with broker(tmp_path) as b, client(b) as c:
        for number in range(12):
            await c.create(f"t{number:02}")
            for group in range(number % 4 * 3):
                position = m.PartitionOffset(0, 0)
                await c.ask(
                    m.CommitOffsets(
                        group=f"g{group}", topic=f"t{number:02}", member_id="", offsets=[position]
                    )
                )
        assert (await c.ask(m.Metadata())).more
        assert (await c.ask(m.ListGroups())).from_topic
        async with AsyncAdminClient(b.address) as admin:
            topics = [info.config.name for info in await admin.list_topics()]
            assert topics == ["_memq_audit", *(f"t{number:02}" for number in range(12))]
            listed = [(info.topic, info.group) for info in await admin.groups()]
            assert listed == [
                (f"t{number:02}", f"g{group}")
                for number in range(12)
                for group in range(number % 4 * 3)
            ]
            assert [info.group for info in await admin.groups("t03")] == [f"g{n}" for n in range(9)]
            assert await admin.groups("t04") == []


async def test_too_many_named_topics_are_refused(tmp_path) -> None:
    """A request cannot make the broker answer the same topic ten thousand times."""
    async with broker(tmp_path) as b, client(b) as c:
        await c.create()
        assert len((await c.ask(m.Metadata(topics=["t"] * 100))).topics) == 100
        with pytest.raises(InvalidRequestError, match="101 topics named; name up to 100"):
            await c.ask(m.Metadata(topics=["t"] * 101))
