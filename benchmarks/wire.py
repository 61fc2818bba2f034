"""What the wire protocol costs, from memory to memory: `python -m benchmarks.wire`.

Bytes are copied into the reader's buffers, as `recv` would do, and that copy is counted. Each
figure is the best of some repetitions, so that what else the machine does shows least.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pyarrow as pa

from memq.core.checksum import crc32c
from memq.core.wire.connection import (
    CLIENT_MAX_BODY_BYTES,
    CLIENT_MAX_HEADER_BYTES,
    SERVER_MAX_BODY_BYTES,
    SERVER_MAX_HEADER_BYTES,
    ClientConnection,
    HandshakeReceived,
    Request,
    ServerConnection,
)
from memq.core.wire.frame import Frame, FrameReader
from memq.core.wire.messages import Write, WriteAnswer

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = {"0 B": 0, "4 KiB": 4 << 10, "64 KiB": 64 << 10, "1 MiB": 1 << 20}
STREAM_BYTES = 16 << 20  # of each size, far more than the processor's caches hold
MAX_FRAMES = 4_000
SECONDS_PER_FIGURE = 0.5

Figures = list[tuple[str, str, str]]

WRITE = Write(
    topic="clicks",
    write_partition=3,
    producer_id="0123456789abcdef",
    epoch=0,
    sequence=123_456,
    first_unsettled=123_000,
    acks=-1,
    schema_id="0123456789abcdef",
    records=40,
    min_timestamp_us=1_700_000_000_000_000,
    max_timestamp_us=1_700_000_000_100_000,
)
ANSWER = WriteAnswer(partition=1, offset=123_456, batch_id="0123456789abcdef01234567")


def best_s(work: Callable[[], object]) -> float:
    """Shortest time that `work` took, over about half a second and at least three times."""
    took, until = [], time.perf_counter() + SECONDS_PER_FIGURE
    while len(took) < 3 or time.perf_counter() < until:
        start = time.perf_counter()
        work()
        took.append(time.perf_counter() - start)
    return min(took)


def allocate(size: int) -> memoryview:
    """Memory for a body, as the broker gives it."""
    return memoryview(pa.allocate_buffer(size))


class Ends:
    """A client and a server that have shaken hands."""

    def __init__(self) -> None:
        self.client = ClientConnection("benchmark")
        self.server = ServerConnection(cluster_id="c", broker_id="b", authorize=lambda _: True)
        self.to_server = FrameReader(
            max_header_bytes=SERVER_MAX_HEADER_BYTES,
            max_body_bytes=SERVER_MAX_BODY_BYTES,
            allocate=allocate,
        )
        self.to_client = FrameReader(
            max_header_bytes=CLIENT_MAX_HEADER_BYTES, max_body_bytes=CLIENT_MAX_BODY_BYTES
        )
        [hello] = self.to_server.feed(b"".join(self.client.open()))
        event = self.server.receive(hello)
        assert isinstance(event, HandshakeReceived)
        [welcome] = self.to_client.feed(b"".join(event.buffers_to_send))
        self.client.receive(welcome)

    def requests(self, count: int, body: bytes, crc: int) -> list[bytes]:
        """The bytes of some Writes."""
        return [b"".join(self.client.request(WRITE, body, crc)[1]) for _ in range(count)]

    def received(self, stream: bytes) -> list[Frame]:
        """What the server's reader makes of a stream that comes as fast as it reads."""
        reader, source, position, frames = self.to_server, memoryview(stream), 0, []
        while position < len(source):
            buffer = reader.get_buffer()
            count = min(len(buffer), len(source) - position)
            buffer[:count] = source[position : position + count]
            position += count
            frames += reader.buffer_updated(count)
        return frames

    def served(self, stream: bytes) -> bytes:
        """All that the protocol costs a broker: frames into requests, and an answer to each."""
        out = []
        for frame in self.received(stream):
            event = self.server.receive(frame)
            assert isinstance(event, Request)
            out += self.server.answer(event.correlation_id, ANSWER)
        return b"".join(out)


def run() -> Figures:
    """Name, figure and note of each measurement."""
    figures: Figures = []
    for label, size in SIZES.items():
        body = os.urandom(size)
        count = min(MAX_FRAMES, STREAM_BYTES // (size + 1))
        ends = Ends()
        stream = b"".join(ends.requests(count, body, crc32c(body)))
        reading = best_s(lambda ends=ends, stream=stream: ends.received(stream))
        serving = best_s(lambda ends=ends, stream=stream: ends.served(stream))
        figures += [
            row(f"FrameReader, {label}", count, len(stream), reading),
            row(f"broker's share, {label}", count, len(stream), serving),
        ]
    return [*figures, round_trip()]


def round_trip() -> tuple[str, str, str]:
    """What a Write of 4 KiB and its ack cost both ends together."""
    body = os.urandom(4 << 10)
    crc = crc32c(body)
    ends = Ends()

    def work() -> None:
        answers = ends.served(b"".join(ends.requests(MAX_FRAMES, body, crc)))
        for frame in ends.to_client.feed(answers):
            ends.client.receive(frame)

    return row("both ends' shares, 4 KiB", MAX_FRAMES, MAX_FRAMES * len(body), best_s(work))


def row(name: str, count: int, total_bytes: int, seconds: float) -> tuple[str, str, str]:
    """One figure: frames a second, with the time of each and the bytes a second."""
    each_us, rate = seconds / count * 1e6, total_bytes / seconds / 1e9
    return name, f"{count / seconds:,.0f} frames/s", f"{each_us:.2f} us each, {rate:.2f} GB/s"


if __name__ == "__main__":
    for name, figure, note in run():
        print(f"{name:32} {figure:>20}  {note}")
