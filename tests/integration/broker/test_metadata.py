"""Topics and offsets as clients ask for them."""

from __future__ import annotations

import pytest

from memq.core.wire import messages as m
from memq.errors import OffsetOutOfRangeError, UnknownTopicError
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
        await b.services.queue.truncate("t", 0, 2)
        for offset in (0, 1, 2):
            request = m.CommitOffsets(
                group="g", topic="t", member_id="", offsets=[m.Position(0, offset)]
            )
            await c.ask(request)
            committed = await c.ask(m.FetchCommitted(group="g", topic="t"))
            assert committed.offsets == [m.Position(0, offset)]
        for offset in (-1, 3):
            with pytest.raises(OffsetOutOfRangeError, match=f"cannot commit offset {offset}"):
                await c.ask(
                    m.CommitOffsets(
                        group="g", topic="t", member_id="", offsets=[m.Position(0, offset)]
                    )
                )
