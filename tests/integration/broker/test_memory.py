"""What Messages are charged to the broker's memory, and given back, however they are cut."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager

import pytest

from memq.core.wire.client_connection import ClientConnection
from memq.core.wire.frame import FrameReader
from memq.errors import SequenceConflictError
from tests.fakes.queue import InMemoryQueue
from tests.integration.broker.support import TIMEOUT_S, GatedStorage, broker, client, until

SIZES = (10, 1_000, 20_000, 200_000)


class GatedQueue(InMemoryQueue):
    """A queue whose publications wait while the gate is shut."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()

    async def publish(self, topic, write_partition, publications):
        await asyncio.wait_for(self.gate.wait(), TIMEOUT_S)
        return await super().publish(topic, write_partition, publications)


@asynccontextmanager
async def handshaken(b):
    """A bare connection after its handshake, and its wire."""
    host, _, port = b.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    wire = ClientConnection("cutter")
    frames = FrameReader(max_header_bytes=4096, max_body_bytes=0)
    writer.write(b"".join(wire.open()))
    (frame,) = frames.feed(await reader.read(4096))
    wire.receive(frame)
    try:
        yield reader, writer, wire, frames
    finally:
        writer.close()
        await writer.wait_closed()


async def send_in_pieces(b, writer, data: bytes, cuts: list[int]) -> None:
    """Send the bytes cut at these places; each piece is received by itself."""
    for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True):
        received = [c._progress_s for c in b.connections._open]
        writer.write(data[start:stop])
        await writer.drain()
        await until(lambda before=received: [c._progress_s for c in b.connections._open] != before)


async def test_nothing_stays_charged_however_many_frames_are_cut(tmp_path) -> None:
    """Many Messages of all sizes in pieces at random leave nothing behind, nor owe anything."""
    rng = random.Random(5)
    async with broker(tmp_path) as b, client(b) as c, handshaken(b) as raw:
        reader, writer, wire, frames = raw
        await c.create(batch_age="1ms")
        for start in range(0, 60, 6):
            messages = [c.message(start + n, bytes(rng.choice(SIZES))) for n in range(6)]
            data = b"".join(b"".join(wire.request(*message)[1]) for message in messages)
            await send_in_pieces(b, writer, data, sorted(rng.sample(range(1, len(data)), 12)))
            answers = []
            while len(answers) < len(messages):
                answers += frames.feed(await reader.read(4096))
            assert b.context.memory.used_bytes == 0


async def test_memory_of_a_stored_batch_is_given_back_before_its_publication(tmp_path) -> None:
    """A queue that is slow or down holds notifications back, not the bytes of the Batches."""
    queue = GatedQueue()
    async with broker(tmp_path, queue=queue) as b, client(b) as c:
        await c.create(batch_messages=1)
        queue.gate.clear()
        write = asyncio.ensure_future(c.write(0, bytes(300 << 10)))
        await until(lambda: b.context.memory.peak_bytes > 0)
        await until(lambda: b.context.memory.used_bytes == 0)
        assert not write.done()
        queue.gate.set()
        assert (await write).offset == 0


@pytest.mark.parametrize("acks", [0, 1, -1])
async def test_a_repeat_keeps_no_memory(tmp_path, acks) -> None:
    """Whether its original is on its way or published, and whether it is taken or refused."""
    storage = GatedStorage()
    async with broker(tmp_path, storage=storage) as b, client(b) as c:
        await c.create(batch_messages=1)
        storage.gate.clear()
        writes = [asyncio.ensure_future(c.write(0, acks=acks)) for _ in range(3)]
        await until(lambda: b.context.memory.used_bytes > 0)
        with pytest.raises(SequenceConflictError, match="on its way"):
            await c.write(0, b"other", acks=acks)
        held_bytes = b.context.memory.used_bytes
        storage.gate.set()
        await asyncio.gather(*writes)
        await c.write(1)
        assert held_bytes == len(c.message(0)[1])
        assert (await c.write(0, acks=acks)).duplicate
        with pytest.raises(SequenceConflictError, match="was published"):
            await c.write(0, b"other", acks=acks)
        assert b.context.memory.used_bytes == 0
