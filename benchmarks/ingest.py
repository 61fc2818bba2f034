"""Broker ingest: one broker process, storage that discards, `acks=1`, beside a bare socket copy.

The sender costs as little as it can: bodies are encoded once, each frame needs a new header only.
"""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import time

from benchmarks.broker import broker_process, scratch_directory
from memq.core.checksum import crc32c
from memq.core.format.message import encode_message, encode_records, open_message
from memq.core.format.schema import DEFAULT_SCHEMA
from memq.core.topic import TopicConfig
from memq.core.wire.connection import Answer, ClientConnection
from memq.core.wire.frame import FrameReader
from memq.core.wire.messages import CreateTopic, TopicAnswer, Write

WINDOW = 64  # requests in flight
BATCH_BYTES = "32MiB"
ROUNDS = 5  # of bare copy and broker by turns, for the machine is not always equally fast
TOPIC = "ingest"


def body_of(size_bytes: int) -> bytes:
    """A Message of about that size, of 1 KiB records (of one record when it is smaller)."""
    value = os.urandom(min(size_bytes, 1024) - 200 if size_bytes > 512 else 100)
    count = max(1, size_bytes // 1024)
    batch = encode_records(None, [value + bytes(176)] * count, None, [1] * count)
    return encode_message(batch).to_pybytes()


class Loader:
    """A blocking client that sends Writes as fast as the window allows."""

    def __init__(self, address: str, tls: ssl.SSLContext | None = None) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        name = self.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        self.congestion_control = name.rstrip(b"\0").decode()
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname=host)
        self.wire = ClientConnection("ingest")
        self.reader = FrameReader(max_header_bytes=1 << 20, max_body_bytes=1 << 20)
        self.socket.sendall(b"".join(self.wire.open()))
        self.receive()

    def receive(self) -> list:
        """Events of the next bytes that come."""
        count = self.socket.recv_into(self.reader.get_buffer())
        return [self.wire.receive(frame) for frame in self.reader.buffer_updated(count)]

    def create(
        self, batch_age: str = "1s", batch_bytes: str = BATCH_BYTES, ring_slots: str = "8"
    ) -> str:
        """Make the topic; its schema id."""
        config = TopicConfig.create(
            TOPIC,
            batch_age=batch_age,
            batch_bytes=batch_bytes,
            ring_slots=ring_slots,
            audited=False,
        )
        self.socket.sendall(b"".join(self.wire.request(CreateTopic(config=config))[1]))
        answer = self.receive()[0]
        assert isinstance(answer, Answer), answer
        assert isinstance(answer.header, TopicAnswer)
        return answer.header.topic.schema_id

    def write(
        self, body: bytes, count: int, schema_id: str, acks: int = 1, window: int = WINDOW
    ) -> float:
        """Send `count` Messages, so many in flight; seconds until the last is acked."""
        crc = crc32c(body)
        records = open_message(body, DEFAULT_SCHEMA, max_decoded_bytes=1 << 26).num_rows
        start = time.perf_counter()
        producer = os.urandom(4).hex()
        acked = 0
        for sequence in range(count):
            header = Write(
                topic=TOPIC,
                write_partition=0,
                producer_id=producer,
                epoch=0,
                sequence=sequence,
                first_unsettled=0,
                acks=acks,
                schema_id=schema_id,
                records=records,
                min_timestamp_us=1,
                max_timestamp_us=1,
            )
            send_all(self.socket, self.wire.request(header, body, crc)[1])
            if sequence + 1 - acked >= window:  # what fits into the sockets leaves some acked
                acked += self._acks()
        while acked < count:
            acked += self._acks()
        return time.perf_counter() - start

    def _acks(self) -> int:
        """How many acks the next bytes hold."""
        events = self.receive()
        assert all(isinstance(event, Answer) for event in events), events
        return len(events)


def send_all(sock: socket.socket, buffers: list) -> None:
    """Send every buffer, with as few copies as the kernel allows."""
    if isinstance(sock, ssl.SSLSocket):
        for buffer in buffers:
            sock.sendall(buffer)
        return
    views = [memoryview(buffer) for buffer in buffers]
    while views:
        sent = sock.sendmsg(views)
        while views and sent >= len(views[0]):
            sent -= len(views.pop(0))
        if views:
            views[0] = views[0][sent:]


def loopback_copy(size_bytes: int, count: int) -> float:
    """Seconds that a bare socket takes for the same bytes, from one process to another."""
    listener = socket.create_server(("127.0.0.1", 0))
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            _RECEIVER,
            str(listener.getsockname()[1]),
            str(size_bytes),
            str(count),
        ]
    )
    connection, _ = listener.accept()
    data = os.urandom(size_bytes)
    start = time.perf_counter()
    for _ in range(count):
        connection.sendall(data)
    connection.recv(1)
    took = time.perf_counter() - start
    child.wait()
    return took


_RECEIVER = """
import socket, sys
port, size, count = map(int, sys.argv[1:])
s = socket.create_connection(("127.0.0.1", port))
buffer, left = memoryview(bytearray(size)), size * count
while left:
    left -= s.recv_into(buffer)
s.sendall(b".")
"""


def run() -> list[tuple[str, str, str]]:
    """Rows of (name, figure, note)."""
    rows = []
    with scratch_directory() as directory, broker_process("discard", directory) as (address, _):
        loader = Loader(address)
        schema_id = loader.create()
        for label, size, count in (
            ("1 MiB", 1 << 20, 3_000),
            ("64 KiB", 64 << 10, 10_000),
            ("4 KiB", 4 << 10, 20_000),
        ):
            body = body_of(size)
            loader.write(body, count // 10, schema_id)
            rounds = [
                (loopback_copy(len(body), count), loader.write(body, count, schema_id))
                for _ in range(ROUNDS)
            ]
            bare, took = sorted(rounds, key=lambda each: each[0] / each[1])[ROUNDS // 2]
            rate, limit = (count * len(body) / each / 1e6 for each in (took, bare))
            rows.append(
                (
                    f"broker ingest, {label} Messages, acks=1, {WINDOW} in flight, Batches of "
                    f"{BATCH_BYTES}",
                    f"{rate:,.0f} MB/s, {count / took:,.0f} requests/s",
                    f"{bare / took:.2f} of a bare loopback copy ({limit:,.0f} MB/s over TCP "
                    f"{loader.congestion_control}), median of {ROUNDS} rounds",
                )
            )
    return rows


if __name__ == "__main__":
    for row in run():
        print(*row, sep=" | ")
