"""Turns: a client that sends as fast as it can leaves the event loop to others between them."""

from __future__ import annotations

import asyncio
import os
import urllib.request
from itertools import pairwise

from memq.broker import connection
from memq.broker.connection import BrokerConnection
from tests.integration.broker.support import broker, client

REST_ROUNDS = 8  # more than lie between two reads of a connection that does not rest


async def test_a_connection_rests_after_a_turn_of_several_bodies(tmp_path, monkeypatch) -> None:
    """Whoever has just sent several large Messages is read again only some turns later."""
    turns = 0
    read: list[tuple[int, bool]] = []  # the turn, and whether the connection had to rest then
    read_on = BrokerConnection._read_on

    def count() -> None:
        nonlocal turns
        turns += 1
        asyncio.get_running_loop().call_soon(count)

    def watch(self: BrokerConnection, frames: list) -> None:
        before = len(frames)
        read_on(self, frames)
        read.append((turns, len(frames) > before))

    monkeypatch.setattr(BrokerConnection, "_read_on", watch)
    monkeypatch.setattr(connection, "REST_ROUNDS", REST_ROUNDS)
    async with broker(tmp_path) as b, client(b) as c:
        await c.create(batch_age="1ms")
        count()
        value = os.urandom(300 << 10)
        writes = [asyncio.ensure_future(c.write(sequence, value)) for sequence in range(40)]
        answers = await asyncio.gather(*writes)
    assert all(answer.offset >= 0 for answer in answers)
    rests = [after - before for (before, rested), (after, _) in pairwise(read) if rested]
    assert rests, "no turn had several Messages"
    assert min(rests) >= REST_ROUNDS


async def test_what_was_received_is_counted_at_each_scrape(tmp_path) -> None:
    """Messages and bytes are counted once each, however often they are asked for."""
    async with broker(tmp_path) as b, client(b) as c:
        await c.create(batch_age="1ms")
        url = f"http://127.0.0.1:{b.admin_port}/metrics"

        async def scrape() -> list[float]:
            response = await asyncio.to_thread(urllib.request.urlopen, url)
            lines = response.read().decode().splitlines()
            names = ("memq_messages_received_total", "memq_bytes_received_total")
            wanted = [f'{name}{{topic="t"}}' for name in names]
            values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
            return [float(values[name]) for name in wanted]

        await c.write(0)
        messages, size = await scrape()
        assert messages == 1
        assert size > 0
        assert await scrape() == [1, size]
        await c.write(1)
        assert await scrape() == [2, 2 * size]
