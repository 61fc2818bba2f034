"""Topics and offsets as clients ask for them."""

from __future__ import annotations

from memq.broker import handlers
from memq.client.admin import AsyncAdminClient
from memq.core.wire import messages as m
from tests.integration.broker.support import broker, client


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
