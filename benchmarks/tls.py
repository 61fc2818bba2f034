"""TLS beside plain, by turns: `python -m benchmarks.tls`.

Two brokers run, one with TLS; the sender of `ingest` is one blocking client. Connections are set up
one after the other by the client library, each with a context of its own. Two more brokers store in
files, for those who read: from the files, where only what brokers answer is encrypted, or through
brokers. Two Kafkas show what confluent-kafka makes of it; the one with TLS also asks for a
password.
"""

from __future__ import annotations

import asyncio
import ssl
import statistics
import time
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.broker import broker_process, resident_bytes, scratch_directory
from benchmarks.ingest import Loader, body_of
from benchmarks.peers import Peer, write
from benchmarks.spark import scan, session
from memq import AdminClient, Producer, read_range
from memq.broker.connection import TLS_BYTES
from memq.client.connection import BrokerConnection
from memq.client.security import Security
from memq.runtime.certificates import Authority
from tests.harness.services.certificates import make_certificate
from tests.harness.services.kafka import Kafka

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ROUNDS = 5
SET_UPS = 200
CONNECTIONS = (1_000, 5_000)
ROOM = "2GiB"  # memory_bytes, of which half is for so many
SIZES = {"100 B": (100, 500_000), "64 KiB": (64 << 10, 4_000)}  # of a record; records a turn
READ_RECORDS = 2_000_000  # of 100 B
TOPIC = "tls"

Row = tuple[str, str, str]
Brokers = dict[str, tuple[str, str]]
"""Address and `security`, by name; the last is with TLS."""


def certificates(folder: Path) -> dict[str, str]:
    """Options of a broker with a certificate, and `ca`."""
    now = datetime.now(UTC)
    authority = Authority("bench", now, timedelta(days=1))
    issued = authority.issue("broker", ["127.0.0.1"], now, timedelta(days=1), client=False)
    paths = {}
    for name, content in (
        ("ca", authority.own.cert),
        ("tls_cert", issued.cert),
        ("tls_key", issued.key),
    ):
        (folder / name).write_bytes(content)
        paths[name] = str(folder / name)
    return paths


def set_ups(address: str, security: Security) -> list[float]:
    """Milliseconds of each of some connections, sorted."""

    async def run() -> list[float]:
        took = []
        for _ in range(SET_UPS):
            start = time.perf_counter()
            connection = await BrokerConnection.open(
                address, security=security, connect_timeout_s=10
            )
            took.append((time.perf_counter() - start) * 1_000)
            await connection.close()
        return sorted(took)

    return asyncio.run(run())


def bytes_of_connections(address: str, pid: int, security: Security) -> list[float]:
    """What each of many idle connections adds to the broker's memory, for each of `CONNECTIONS`."""

    async def run() -> list[float]:
        before = resident_bytes(pid)
        opened: list[BrokerConnection] = []
        found = []
        for count in CONNECTIONS:
            while len(opened) < count:
                opened.append(
                    await BrokerConnection.open(address, security=security, connect_timeout_s=10)
                )
            found.append((resident_bytes(pid) - before) / count)
        for each in opened:
            await each.close()
        return found

    return asyncio.run(run())


def compare(what: str, unit: str, amount: float, works: dict[str, Callable[[], object]]) -> Row:
    """A row of the last of some works beside each other, by turns; a first round is not counted.

    Args:
        what: they do.
        unit: of the amount.
        amount: that each of them does.
        works: by name; the last is with TLS.
    """
    rounds: list[dict[str, float]] = []
    for _ in range(ROUNDS + 1):
        took = {}
        for name, work in works.items():
            start = time.perf_counter()
            work()
            took[name] = time.perf_counter() - start
        rounds.append(took)
    *others, tls = works
    middle = {name: statistics.median(each[name] for each in rounds[1:]) for name in works}
    notes = [
        f"{statistics.median(each[name] / each[tls] for each in rounds[1:]):.2f} of {name} "
        f"({amount / middle[name]:,.0f} {unit})"
        for name in others
    ]
    return (
        f"{what} over TLS",
        f"{amount / middle[tls]:,.0f} {unit}",
        f"{'; '.join(notes)}, by turns, medians of {ROUNDS}",
    )


def produce(folder: Path, brokers: Brokers) -> list[Row]:
    """`write()` of MemQ and `produce()` of confluent-kafka."""
    rows = []
    with ExitStack() as stack:
        made = make_certificate(folder, "kafka")
        plain = stack.enter_context(Kafka(folder / "kafka", fast=True))
        secure = stack.enter_context(
            Kafka(
                folder / "kafka-tls",
                fast=True,
                keystore=made.keystore,
                keystore_password=made.password,
            )
        )
        asked = {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(made.pem),
            "sasl.mechanisms": "SCRAM-SHA-512",
            "sasl.username": secure.user,
            "sasl.password": secure.password,
        }
        peers = {
            "plain": stack.enter_context(closing(Peer(plain.address))),
            "TLS": stack.enter_context(closing(Peer(secure.address, **asked))),
        }
        producers = {}
        for name, (address, security) in brokers.items():
            with AdminClient(address, security=security) as admin:
                admin.create_topic(TOPIC, batch_age="20ms")
            made_ = Producer(address, topic=TOPIC, acks="all", security=security)
            producers[name] = stack.enter_context(made_)
        for label, (size, count) in SIZES.items():
            value = bytes(size)
            ours = {name: partial(write, each, value, count) for name, each in producers.items()}
            theirs = {name: partial(each.produce, value, count) for name, each in peers.items()}
            rows += [
                compare(f"write() of {label}, acks=all,", "records/s", count, ours),
                compare(f"confluent-kafka's produce() of {label}", "records/s", count, theirs),
            ]
    return rows


def read(brokers: Brokers) -> list[Row]:
    """Ranges read by this process, and scans by Spark."""
    for address, security in brokers.values():
        with AdminClient(address, security=security) as admin:
            admin.create_topic(TOPIC)
        with Producer(address, topic=TOPIC, security=security) as producer:
            write(producer, bytes(100), READ_RECORDS)
    rows = []
    for through in ("storage", "broker"):
        works = {
            name: partial(read_range, address, topic=TOPIC, security=security, read_through=through)
            for name, (address, security) in brokers.items()
        }
        rows.append(
            compare(f"read_range() through the {through}", "records/s", READ_RECORDS, works)
        )
    spark = session()
    try:
        scans = {}
        for name, (address, security) in brokers.items():
            options = {"bootstrap": address, "topic": TOPIC, "security": security}
            reader = spark.read.format("memq").schema("value binary").options(**options)
            scans[name] = partial(scan, reader.load())
        rows.append(compare("a scan by Spark", "records/s", READ_RECORDS, scans))
    finally:
        spark.stop()
    return rows


def run() -> list[Row]:
    """Measure all."""
    rows: list[Row] = []
    with scratch_directory() as folder, ExitStack() as stack:
        files = certificates(folder) | {"memory_bytes": ROOM}
        ca = files.pop("ca")
        plain, plain_pid = stack.enter_context(broker_process("discard", folder / "plain"))
        tls, tls_pid = stack.enter_context(broker_process("discard", folder / "tls", **files))
        security = f"ca={ca}"
        brokers = {"plain": (plain, ""), "TLS": (tls, security)}
        context = ssl.create_default_context(cafile=ca)
        loaders = [Loader(plain), Loader(tls, context)]
        schemas = [each.create() for each in loaders]
        for label, size, count in (("1 MiB", 1 << 20, 1_000), ("64 KiB", 64 << 10, 6_000)):
            body = body_of(size)
            rounds = [
                [
                    each.write(body, count, schema)
                    for each, schema in zip(loaders, schemas, strict=True)
                ]
                for _ in range(ROUNDS)
            ]
            bare, took = (statistics.median(each) for each in zip(*rounds, strict=True))
            rate = count * len(body) / took / 1e6
            rows.append(
                (
                    f"ingest over TLS, {label} Messages, acks=1",
                    f"{rate:,.0f} MB/s",
                    f"{bare / took:.2f} of plain, by turns, median of {ROUNDS}",
                )
            )
        ways = ((plain, plain_pid, Security()), (tls, tls_pid, Security(ca=ca)))
        times = [set_ups(address, security) for address, _, security in ways]
        p50, p99 = ([each[int(part * SET_UPS)] for each in times] for part in (0.5, 0.99))
        rows.append(
            (
                "a connection over TLS is set up",
                f"p50 {p50[1]:.1f} ms, p99 {p99[1]:.1f} ms",
                f"plain: p50 {p50[0]:.1f} ms, p99 {p99[0]:.1f} ms",
            )
        )
        sizes = zip(CONNECTIONS, *(bytes_of_connections(*way) for way in ways), strict=True)
        rows += [
            (
                f"{count:,} idle connections over TLS",
                f"{encrypted / 1024:.0f} KiB each at the broker, which counts {TLS_BYTES >> 10}",
                f"plain: {bare / 1024:.0f} KiB each",
            )
            for count, bare, encrypted in sizes
        ]
        rows += produce(folder, brokers)
        stored = {
            "plain": (stack.enter_context(broker_process("files", folder / "stored"))[0], ""),
            "TLS": (
                stack.enter_context(broker_process("files", folder / "stored-tls", **files))[0],
                security,
            ),
        }
        return rows + read(stored)


if __name__ == "__main__":
    for row in run():
        print(*row, sep="\n    ")
