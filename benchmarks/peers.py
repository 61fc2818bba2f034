"""MemQ's producer beside confluent-kafka's, the usual one in Python: `python -m benchmarks.peers`.

One process produces the same records, with `acks=all`, from its first call to the last ack: to a
Kafka on this machine, to a MemQ broker that stores in files, and to one that stores in an
S3-compatible server on this machine. All have the same processors and the same disk, nothing is
compressed, and they take turns; a first round is not counted, for Java compiles as it runs.

`write`, one record at a time, is compared with `produce`; `write_table`, a table, with
`produce_batch`, a list of dicts. Table and list are made beforehand. The round whose ratio is the
median counts, because the machine is not always equally fast.

Both wait equally long for more records, `LINGER_MS`. All other differences favour the peer. It has
the settings that were the fastest here, and memory for a million records, where MemQ has its
defaults, 64 MiB among them. Kafka acks what is in the page cache; MemQ acks what is in a synced
file, or in the object store, with a synced Notification. `enable.idempotence` is off, as by default
in confluent-kafka, so a retry may be stored twice; with MemQ it never is.

The limit of this disk is printed as well: how fast a plain program writes and syncs files there. An
object store on the same machine also uses its processors.
"""

from __future__ import annotations

import os
import statistics
import time
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple

import confluent_kafka
import pyarrow as pa
from confluent_kafka.admin import AdminClient as KafkaAdminClient
from confluent_kafka.admin import NewTopic

from benchmarks.broker import broker_process, scratch_directory
from memq import AdminClient, Producer
from tests.harness.services.kafka import Kafka
from tests.harness.services.s3proxy import S3Proxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

TOPIC = "peers"
PARTITIONS = 4  # of Kafka's topic
BUCKET = "bench"
SIZES = {"100 B": (100, 4_000_000), "1 KiB": (1024, 1_200_000)}  # bytes of a value, records a turn
ROUNDS = 3
OBJECT_BYTES, PIECE_BYTES, DISK_FILES = 8 << 20, 64 << 10, 100
TABLE_ROWS, LIST_ROWS = 100_000, 10_000
LINGER_MS = 20
TIMEOUT_S = 120.0
POLL_S = 0.05  # until the peer has room again

# The fastest of several: 5 to 50 ms, 1 or 4 partitions, room for 100,000 to 1,000,000 records.
PEER_SETTINGS = {
    "acks": "all",
    "compression.type": "none",
    "linger.ms": LINGER_MS,
    "batch.size": 1_000_000,  # as much as Kafka takes by default
    "batch.num.messages": 100_000,
    "queue.buffering.max.messages": 1_000_000,
}

Row = tuple[str, str, str]


class Way(NamedTuple):
    """A way to send records.

    Attributes:
        send: so many records of a value; returns when all are acked.
        peer: the way that it is compared with; empty for a peer's own.
    """

    send: Callable[[bytes, int], object]
    peer: str = ""


class Turn(NamedTuple):
    """What a turn came to.

    Attributes:
        records_s: records a second.
        bytes_s: bytes of their values a second.
        cpu_s: of this process for each record.
    """

    records_s: float
    bytes_s: float
    cpu_s: float

    def __str__(self) -> str:
        return f"{self.records_s:,.0f} records/s, {self.bytes_s / 1e6:,.0f} MB/s"


class Peer:
    """confluent-kafka's producer.

    Args:
        address: of Kafka.
        **security: what it asks of its clients.
    """

    def __init__(self, address: str, **security: str) -> None:
        self._address = {"bootstrap.servers": address} | security
        admin = KafkaAdminClient(self._address)
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result()
        self._producer = confluent_kafka.Producer(self._address | PEER_SETTINGS)
        self._sent = 0

    def produce(self, value: bytes, count: int) -> None:
        """One record at a time."""
        produce = self._producer.produce
        for _ in range(count):
            try:
                produce(TOPIC, value)
            except BufferError:
                self._produce_later(value)
        self._flush(count)

    def produce_batch(self, value: bytes, count: int) -> None:
        """The same list again and again."""
        records = [{"value": value}] * LIST_ROWS
        for _ in range(count // LIST_ROWS):
            left = LIST_ROWS
            while left:
                with suppress(BufferError):
                    left -= self._producer.produce_batch(TOPIC, records[-left:])
                if left:
                    self._producer.poll(POLL_S)
        self._flush(count)

    def close(self) -> None:
        """Check that Kafka has all that was sent: no callback told of what failed."""
        self._producer.close()
        with closing(confluent_kafka.Consumer(self._address | {"group.id": "count"})) as consumer:
            ends = (
                consumer.get_watermark_offsets(confluent_kafka.TopicPartition(TOPIC, partition))[1]
                for partition in range(PARTITIONS)
            )
            stored = sum(ends)
        assert stored == self._sent, f"Kafka has {stored} of {self._sent}"

    def _produce_later(self, value: bytes) -> None:
        while True:
            self._producer.poll(POLL_S)
            with suppress(BufferError):
                self._producer.produce(TOPIC, value)
                return

    def _flush(self, count: int) -> None:
        assert self._producer.flush(TIMEOUT_S) == 0
        self._sent += count


def write(producer: Producer, value: bytes, count: int) -> None:
    """One record at a time."""
    write = producer.write
    for _ in range(count):
        write(value)
    producer.flush(TIMEOUT_S)


@cache
def table_of(value: bytes) -> pa.Table:
    """A table of that value alone, made in the round that is not counted."""
    return pa.table({"value": pa.array([value] * TABLE_ROWS, pa.binary())})


def write_table(producer: Producer, value: bytes, count: int) -> None:
    """The same table again and again."""
    table = table_of(value)
    for _ in range(count // TABLE_ROWS):
        producer.write_table(table)
    producer.flush(TIMEOUT_S)


@contextmanager
def memq(folder: Path, **options: str) -> Iterator[Producer]:
    """A producer of a broker with these options."""
    with broker_process("configured", folder, **options) as (address, _):
        with AdminClient(address) as admin:
            admin.create_topic(TOPIC, batch_age=f"{LINGER_MS}ms")
        with Producer(address, topic=TOPIC, acks="all") as producer:
            yield producer


@contextmanager
def ways() -> Iterator[dict[str, Way]]:
    """All ways, each by its name."""
    with ExitStack() as stack:
        folder = stack.enter_context(scratch_directory())
        kafka = stack.enter_context(Kafka(folder / "kafka", fast=True))
        s3 = stack.enter_context(S3Proxy(folder / "s3"))
        s3.make_bucket(BUCKET)
        os.environ |= s3.environment
        options = {"storage": f"s3://{BUCKET}/peers", "storage_options": "unsigned_payload=true"}
        peer = stack.enter_context(closing(Peer(kafka.address)))
        files = stack.enter_context(memq(folder / "files"))
        objects = stack.enter_context(memq(folder / "objects", **options))
        yield {
            "produce()": Way(peer.produce),
            "write(), files": Way(partial(write, files), "produce()"),
            "write(), S3": Way(partial(write, objects), "produce()"),
            "produce_batch()": Way(peer.produce_batch),
            "write_table(), files": Way(partial(write_table, files), "produce_batch()"),
            "write_table(), S3": Way(partial(write_table, objects), "produce_batch()"),
        }


def turn_of(way: Way, value: bytes, count: int) -> Turn:
    """One turn. What the one before has left in the page cache is written first."""
    os.sync()
    start, cpu_start = time.perf_counter(), time.process_time()
    way.send(value, count)
    took, cpu = time.perf_counter() - start, time.process_time() - cpu_start
    return Turn(count / took, count * len(value) / took, cpu / count)


def rounds_of(found: dict[str, Way], value: bytes, count: int) -> list[dict[str, Turn]]:
    """Rounds in which all have their turn, but for the first."""
    rounds = [
        {name: turn_of(way, value, count) for name, way in found.items()} for _ in range(ROUNDS + 1)
    ]
    return rounds[1:]


def row_of(name: str, peer: str, label: str, rounds: list[dict[str, Turn]]) -> Row:
    """A way beside its peer, in the round whose ratio is the median."""
    pairs = [(turns[name], turns[peer]) for turns in rounds]
    pairs.sort(key=lambda pair: pair[0].records_s / pair[1].records_s)
    ours, theirs = pairs[ROUNDS // 2]
    return (
        f"{name}, {label}, acks=all",
        str(ours),
        f"{ours.records_s / theirs.records_s:.1f} of confluent-kafka's {peer} ({theirs}), median "
        f"of {ROUNDS} rounds; {ours.cpu_s * 1e9:.0f} ns of this process's CPU a record, there "
        f"{theirs.cpu_s * 1e9:.0f} ns",
    )


def disk() -> Row:
    """What a plain program writes and syncs, in files as large as a Batch."""
    value, rates = os.urandom(OBJECT_BYTES), []
    with scratch_directory() as folder:
        for number in range(DISK_FILES):
            start = time.perf_counter()
            with (folder / str(number)).open("wb", buffering=0) as file:
                for begin in range(0, OBJECT_BYTES, PIECE_BYTES):
                    file.write(value[begin : begin + PIECE_BYTES])
                os.fsync(file.fileno())
            rates.append(OBJECT_BYTES / (time.perf_counter() - start))
    rate = statistics.median(rates)
    note = f"median of {DISK_FILES} files of {OBJECT_BYTES >> 20} MiB; the limit of this disk"
    return ("plain write and fsync", f"{rate / 1e6:,.0f} MB/s", note)


def run() -> list[Row]:
    """Rows of (name, figure, note)."""
    rows = [disk()]
    with ways() as found:
        for label, (size, count) in SIZES.items():
            rounds = rounds_of(found, os.urandom(size), count)
            rows += [
                row_of(name, way.peer, label, rounds) for name, way in found.items() if way.peer
            ]
    return rows


if __name__ == "__main__":
    for row in run():
        print(*row, sep=" | ")
