"""Hostile and broken clients: a typed error or a closed connection, and no effect on others."""

from __future__ import annotations

import asyncio
import random
import socket
from pathlib import Path

import pytest

from memq.core.wire import messages as m
from memq.core.wire.client_connection import ClientConnection
from memq.core.wire.frame import PREFIX_BYTES, FrameReader, encode_frame
from memq.errors import UnavailableError
from memq.testing.broker import BrokerProcess
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


async def test_truncated_frame_then_close_leaves_nothing(tmp_path) -> None:
    """A client that hangs up in the middle of a frame leaves no memory and no connection behind."""
    async with broker(tmp_path) as b, client(b) as c:
        await c.create()
        header, body = c.message(0, bytes(200_000))
        for cut in (1, 20, 40, 60_000):
            _, writer, wire = await handshaken(b)
            data = b"".join(bytes(buffer) for buffer in wire.request(header, body)[1])
            writer.write(data[: len(data) - cut])
            await writer.drain()
            writer.close()
            await writer.wait_closed()
        await until(lambda: len(b.connections) == 1)
        assert b.context.memory.used_bytes == 0


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


async def test_silent_connection_is_closed_after_the_handshake_timeout(tmp_path) -> None:
    """A connection that never says who it is is told so and closed."""
    async with broker(tmp_path, handshake_timeout="100ms") as b:
        reader, writer = await raw(b)
        assert b"no handshake" in await asyncio.wait_for(reader.read(), 10)
        writer.close()
        await until(lambda: len(b.connections) == 0)


async def test_dripping_connection_is_closed(tmp_path) -> None:
    """A frame that stops half-way is not waited for longer than stall_timeout."""
    async with broker(tmp_path, stall_timeout="100ms") as b:
        reader, writer, wire = await handshaken(b)
        writer.write(b"".join(wire.request(m.Metadata())[1])[:10])
        assert b"stopped half-way" in await asyncio.wait_for(reader.read(), 10)
        writer.close()


async def test_connections_over_the_limit_are_turned_away(tmp_path) -> None:
    """With max_connections clients connected, the next one is told so; the first go on."""
    async with broker(tmp_path, max_connections=2) as b, client(b) as c, client(b):
        reader, writer = await raw(b)
        assert b"most of 2 clients" in await asyncio.wait_for(reader.read(), 10)
        writer.close()
        await c.create()


async def test_client_that_does_not_read_its_answers_is_not_read_either(tmp_path) -> None:
    """Answers nobody reads stop the reading of requests, so that they cannot pile up."""
    async with broker(tmp_path) as b, client(b) as c:
        await c.create()
        reader, writer, wire = await handshaken(b)
        writer.transport.pause_reading()
        sent = 0
        while sent < 400_000:
            try:
                data = b"".join(
                    b"".join(wire.request(m.Metadata(topics=["t"]))[1]) for _ in range(500)
                )
            except UnavailableError:  # the client's own bound on requests in flight
                break
            writer.write(data)
            sent += 500
            try:
                await asyncio.wait_for(writer.drain(), 0.5)
            except TimeoutError:
                break
        assert (await c.write(0)).offset == 0
        writer.transport.abort()
        await until(lambda: len(b.connections) == 1)
        assert reader is not None


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


def test_ten_thousand_silent_connections_do_not_keep_a_good_client_out(tmp_path) -> None:
    """10,000 connections that send nothing cost little, and a good client is served at once."""
    with BrokerProcess(tmp_path, handshake_timeout="5m") as process:
        host, _, port = process.address.rpartition(":")
        before = _resident_bytes(process.pid)
        silent = [socket.create_connection((host, int(port)), timeout=30) for _ in range(10_000)]
        try:
            asyncio.run(_one_good_write(process.address))
            assert _resident_bytes(process.pid) - before < 400 << 20
        finally:
            for connection in silent:
                connection.close()
        asyncio.run(_one_good_write(process.address, 1))


async def _one_good_write(address: str, sequence: int = 0) -> None:
    from memq.client.connection import BrokerConnection
    from tests.integration.broker.support import Client

    connection = await BrokerConnection.open(address, client="good", token="", connect_timeout_s=30)
    c = Client(connection)
    if sequence == 0:
        await c.create()
    c.schema_id = (await c.ask(m.Metadata(topics=["t"]))).topics[0].schema_id
    assert (await c.write(sequence)).offset == sequence
    await connection.close()


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
