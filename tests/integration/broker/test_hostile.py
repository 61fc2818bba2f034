"""Clients that are broken, stall or send too much: others are served, and memory has its bound."""

from __future__ import annotations

import asyncio
import os
import random
from contextlib import AsyncExitStack, suppress

import pytest

from memq.core.wire import messages as m
from memq.core.wire.connection import ClientConnection
from memq.core.wire.frame import PREFIX_BYTES, encode_frame
from memq.errors import UnavailableError
from tests.integration.broker.support import TIMEOUT_S, GatedStorage, bare, broker, client, until

HANDSHAKE = b"".join(ClientConnection("hostile").open())


def _with(position: int, value: bytes) -> bytes:
    frame = bytearray(HANDSHAKE)
    frame[position : position + len(value)] = value
    return bytes(frame)


BAD_FIRST_FRAMES = {
    "wrong magic": b"GET / HTTP/1.1\r\n\r\n" + bytes(32),
    "wrong version": _with(4, b"\x09"),
    "reserved flags": _with(6, b"\xff\xff"),
    "huge header": _with(16, b"\xff\xff\xff\xff"),
    "negative body": _with(20, b"\x00\x00\x00\x80"),
    "bad checksum": _with(28, b"\x00\x00\x00\x00"),
    "not a handshake": b"".join(encode_frame(2, 1, b"\x80")),
    "body before the handshake": b"".join(encode_frame(1, 1, b"\x80", b"body")),
    "header that is no msgpack": b"".join(encode_frame(1, 1, b"\xc1\xc1")),
    "header of wrong types": b"".join(encode_frame(1, 1, b"\x81\xa8versions\xa1x")),
}


async def test_bad_first_frame_closes_the_connection_with_a_reason(tmp_path) -> None:
    """Whatever is wrong with the first frame, the client is told and cut off; others are served."""
    async with broker(tmp_path) as b, client(b) as c:
        host, _, port = b.address.rpartition(":")
        for name, frame in BAD_FIRST_FRAMES.items():
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(frame)
            goodbye = await asyncio.wait_for(reader.read(), TIMEOUT_S)
            assert len(goodbye) > PREFIX_BYTES, name
            writer.close()
        await c.create()
        assert (await c.write(0)).offset == 0


async def test_random_frames_do_not_disturb_a_good_client(tmp_path) -> None:
    """Mutated and random frames never stop the broker, and never grow its memory."""
    rng = random.Random(20)
    async with broker(tmp_path) as b, client(b) as c:
        await c.create()
        for round_ in range(100):
            async with bare(b.address) as raw:
                data = bytearray(raw.request(*c.message(0)))
                for _ in range(rng.randint(1, 4)):
                    data[rng.randrange(len(data))] = rng.randrange(256)
                raw.writer.write(bytes(data) if round_ % 3 else rng.randbytes(200) + HANDSHAKE)
                raw.writer.close()
        await until(lambda: len(b.connections) == 1)
        assert b.context.memory.used_bytes == 0
        assert (await c.write(1)).offset >= 0


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
    async with broker(tmp_path, **options) as b, client(b) as c, AsyncExitStack() as stack:
        await c.create(message_bytes="4MiB", batch_bytes="4MiB")
        await c.write(0)
        stalled = [await stack.enter_async_context(bare(b.address)) for _ in range(4)]
        for raw in stalled:
            data = raw.request(*c.message(0, bytes(3 << 20), producer_id="stalled"))
            raw.writer.write(data[: len(data) // 2])
        await until(lambda: b.context.memory.full)
        async with client(b) as late:
            late.schema_id = c.schema_id
            with pytest.raises(UnavailableError, match="memory_bytes = 8388608 are full"):
                await late.write(0, producer_id="late")
        assert (await c.write(1)).offset == 1
        told = b""
        for raw in stalled:
            with suppress(ConnectionResetError):  # it overtook what the broker said
                told += await raw.reader.read()
        assert told.count(b"stopped half-way") == 3
        assert b.context.memory.used_bytes == 0
