"""Groups when their broker is restarted: nobody is given what somebody may still hold."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from memq.client.connection import BrokerConnection
from memq.core.wire import messages as m
from memq.errors import NotOwnerError
from memq.testing.broker import BrokerProcess
from tests.integration.broker.support import TIMEOUT_S, Client


class Member:
    """A member of a group that is driven by hand."""

    def __init__(self, c: Client, name: str, session_ms: int = 10_000, group: str = "g") -> None:
        self.c, self.name, self.session_ms, self.group = c, name, session_ms, group
        self.sequence = 0
        self.commits = 0
        self.owned: list[int] = []

    async def beat(self) -> list[int]:
        self.sequence += 1
        answer = await self.c.ask(
            m.GroupHeartbeat(
                group=self.group,
                topic="t",
                member_id=self.name,
                sequence=self.sequence,
                owned=self.owned,
                session_timeout_ms=self.session_ms,
            )
        )
        self.owned = answer.assigned
        return answer.assigned

    def commit_of(self, offset: int) -> m.CommitOffsets:
        self.commits += 1
        return m.CommitOffsets(
            group=self.group,
            topic="t",
            member_id=self.name,
            offsets=[m.PartitionOffset(0, offset)],
            sequence=self.commits,
            heartbeat=self.sequence,
        )

    async def commit(self, offset: int) -> None:
        await self.c.ask(self.commit_of(offset))


@asynccontextmanager
async def connected(process: BrokerProcess):
    """A client of a broker in another process."""
    connection = await BrokerConnection.open(
        process.address, client="test", token="", connect_timeout_s=TIMEOUT_S
    )
    try:
        yield Client(connection)
    finally:
        await connection.close()


async def committed(c: Client) -> list[m.PartitionOffset]:
    """What group g has stored."""
    return (await c.ask(m.FetchCommitted(group="g", topic="t"))).offsets


async def test_no_two_members_hold_one_partition_over_a_kill(tmp_path) -> None:
    """A member that is away when the broker comes back keeps its partition for its session."""
    with BrokerProcess(tmp_path) as process:
        async with connected(process) as c:
            await c.create(batch_messages=1)
            await asyncio.gather(*(c.write(number) for number in range(3)))
            away = Member(c, "away", session_ms=10_000)
            assert await away.beat() == [0]
            await away.commit(1)
        process.restart()
        async with connected(process) as c:
            other = Member(c, "other")
            away.c = c
            began_s = asyncio.get_running_loop().time()
            assert await other.beat() == []
            await away.commit(2)
            with pytest.raises(NotOwnerError):
                await other.commit(0)
            while not await other.beat():
                await asyncio.sleep(0.05)
            assert asyncio.get_running_loop().time() - began_s > 5
            await other.commit(3)
            with pytest.raises(NotOwnerError):
                await away.commit(2)
            assert await committed(c) == [m.PartitionOffset(0, 3)]
