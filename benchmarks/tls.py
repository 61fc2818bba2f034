"""TLS beside plain, by turns: ingest, and what connections cost: `python -m benchmarks.tls`.

Two brokers run, one with TLS; the sender is one blocking client, as in `ingest`. Connections are
set up one after the other by the client library, each with a context of its own.
"""

from __future__ import annotations

import asyncio
import ssl
import statistics
import time
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from benchmarks.broker import broker_process, resident_bytes, scratch_directory
from benchmarks.ingest import Loader, body_of
from memq.client.connection import BrokerConnection
from memq.client.security import Security
from memq.runtime.certificates import Authority

if TYPE_CHECKING:
    from pathlib import Path

ROUNDS = 5
SET_UPS = 200
CONNECTIONS = 1_000

Row = tuple[str, str, str]


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


def bytes_of_connections(address: str, pid: int, security: Security) -> float:
    """What each of many idle connections adds to the broker's memory."""

    async def run() -> float:
        before = resident_bytes(pid)
        opened = [
            await BrokerConnection.open(address, security=security, connect_timeout_s=10)
            for _ in range(CONNECTIONS)
        ]
        grown = resident_bytes(pid) - before
        for each in opened:
            await each.close()
        return grown / CONNECTIONS

    return asyncio.run(run())


def run() -> list[Row]:
    """Measure all."""
    rows: list[Row] = []
    with scratch_directory() as folder, ExitStack() as stack:
        files = certificates(folder)
        ca = files.pop("ca")
        plain, plain_pid = stack.enter_context(broker_process("discard", folder / "plain"))
        tls, tls_pid = stack.enter_context(broker_process("discard", folder / "tls", **files))
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
        sizes = [bytes_of_connections(*way) for way in ways]
        rows.append(
            (
                f"{CONNECTIONS:,} idle connections over TLS",
                f"{sizes[1] / 1024:.0f} KiB each at the broker",
                f"plain: {sizes[0] / 1024:.0f} KiB each",
            )
        )
    return rows


if __name__ == "__main__":
    for row in run():
        print(*row, sep="\n    ")
