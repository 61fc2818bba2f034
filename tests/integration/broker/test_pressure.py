"""Pressure: more comes than can be stored. Memory stays bounded, producers wait or are told."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack

import pytest

from memq.core.wire import messages as m
from memq.errors import UnavailableError
from tests.integration.broker.support import GatedStorage, broker, client, until


async def test_memory_stays_within_its_bound_while_storage_stands_still(tmp_path) -> None:
    """Producers that send far more than the bound are slowed by TCP; the bound is never passed."""
    storage = GatedStorage()
    bound, message = 8 << 20, 256 << 10
    options = {"memory_bytes": "8MiB", "park_timeout": "1m"}
    async with broker(tmp_path, storage=storage, **options) as b, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(client(b)) for _ in range(8)]
        topic = await clients[0].create(ring_slots=64, batch_bytes="1MiB", message_bytes="1MiB")
        for number, c in enumerate(clients):  # who begins when memory is full is turned away
            c.schema_id = topic.schema_id
            await c.write(0, producer_id=f"p{number}")
        storage.gate.clear()
        value = os.urandom(message - 1024)
        writes = [
            asyncio.ensure_future(c.write(sequence, value, producer_id=f"p{number}"))
            for number, c in enumerate(clients)
            for sequence in range(1, 17)
        ]
        await until(lambda: b.context.memory.full)
        async with client(b) as other:
            await other.ask(m.Metadata(topics=["t"]))
        assert b.context.memory.used_bytes <= bound + 8 * message
        storage.gate.set()
        assert len(await asyncio.gather(*writes)) == 8 * 16
        assert b.context.memory.peak_bytes <= bound + 8 * message
        assert b.context.memory.used_bytes == 0


async def test_half_sent_bodies_cannot_take_the_memory_from_others(tmp_path) -> None:
    """When memory is short, connections that stopped half-way are closed, and others go on."""
    options = {"memory_bytes": "8MiB", "stall_timeout": "1s"}
    async with broker(tmp_path, **options) as b, client(b) as c:
        await c.create(message_bytes="4MiB", batch_bytes="4MiB")
        await c.write(0)
        stalled = [await _half_a_message(b, c) for _ in range(4)]
        await until(lambda: b.context.memory.full)
        async with client(b) as late:
            late.schema_id = c.schema_id
            with pytest.raises(UnavailableError, match="memory_bytes = 8388608 are full"):
                await late.write(0, producer_id="late")
        assert (await c.write(1)).offset == 1
        goodbyes = [await _last_words(reader) for reader, _ in stalled]
        assert sum(b"stopped half-way" in goodbye for goodbye in goodbyes) == 3
        for _, writer in stalled:
            writer.close()
        assert b.context.memory.used_bytes == 0


async def _last_words(reader) -> bytes:
    """What the broker said before it closed; nothing when its reset overtook that."""
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


async def _half_a_message(b, c):
    """A connection that has sent a handshake and half of a 3 MiB Message."""
    from memq.core.wire.client_connection import ClientConnection
    from memq.core.wire.frame import FrameReader

    host, _, port = b.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    wire, frames = ClientConnection("stalled"), FrameReader(max_header_bytes=4096, max_body_bytes=0)
    writer.write(b"".join(wire.open()))
    (frame,) = frames.feed(await reader.read(4096))
    wire.receive(frame)
    header, body = c.message(0, bytes(3 << 20), producer_id="stalled")
    prefix, body = wire.request(header, body)[1]
    writer.write(bytes(prefix) + bytes(body)[: len(body) // 2])
    await writer.drain()
    return reader, writer
