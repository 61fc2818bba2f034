"""Hostile and broken clients: a typed error or a closed connection, and no effect on others."""

from __future__ import annotations

import asyncio
import random

import pytest

from memq.core.wire.client_connection import ClientConnection
from memq.core.wire.frame import PREFIX_BYTES, FrameReader, encode_frame
from tests.integration.broker.support import broker, client, until


async def raw(b):
    """A bare connection."""
    host, _, port = b.address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def handshaken(b):
    """A bare connection after its handshake, and its wire."""
    reader, writer = await raw(b)
    wire, frames = ClientConnection("hostile"), FrameReader(max_header_bytes=4096, max_body_bytes=0)
    writer.write(b"".join(wire.open()))
    (frame,) = frames.feed(await reader.read(4096))
    wire.receive(frame)
    return reader, writer, wire


def _good() -> bytes:
    wire = ClientConnection("hostile")
    return b"".join(wire.open())


def _with(position: int, value: bytes) -> bytes:
    frame = bytearray(_good())
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


@pytest.mark.parametrize("name", BAD_FIRST_FRAMES)
async def test_bad_first_frame_closes_the_connection_with_a_reason(tmp_path, name) -> None:
    """Whatever is wrong with the first frame, the client is told and cut off; others are served."""
    async with broker(tmp_path) as b, client(b) as c:
        reader, writer = await raw(b)
        writer.write(BAD_FIRST_FRAMES[name])
        goodbye = await asyncio.wait_for(reader.read(), 10)
        assert len(goodbye) > PREFIX_BYTES
        writer.close()
        await c.create()
        assert (await c.write(0)).offset == 0


async def test_damaged_body_ends_only_its_own_connection(tmp_path) -> None:
    """A body whose CRC32C does not hold is told and its connection closed; nothing is stored."""
    async with broker(tmp_path) as b, client(b) as c:
        await c.create()
        header, body = c.message(0, bytes(300_000))
        reader, writer, wire = await handshaken(b)
        prefix, body = wire.request(header, body)[1]
        damaged = bytearray(body)
        damaged[1000] ^= 1
        writer.write(bytes(prefix) + damaged)
        assert b"CRC32C" in await asyncio.wait_for(reader.read(), 10)
        writer.close()
        assert (await c.write(0)).duplicate is False


async def test_random_frames_do_not_disturb_a_good_client(tmp_path) -> None:
    """Mutated and random frames never stop the broker, and never grow its memory."""
    rng = random.Random(20)
    async with broker(tmp_path) as b, client(b) as c:
        await c.create()
        header, body = c.message(0)
        good = b"".join(bytes(buffer) for buffer in ClientConnection("x").open())
        for round_ in range(300):
            _, writer, wire = await handshaken(b)
            data = bytearray(b"".join(bytes(x) for x in wire.request(header, body)[1]))
            for _ in range(rng.randint(1, 4)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            writer.write(bytes(data) if round_ % 3 else rng.randbytes(200) + good)
            writer.close()
        await until(lambda: len(b.connections) == 1)
        assert b.context.memory.used_bytes == 0
        assert (await c.write(1)).offset >= 0
