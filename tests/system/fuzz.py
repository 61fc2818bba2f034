"""Fuzz: attackers send hostile frames to a live broker, while a good client writes and reads.

    python -m tests.system.fuzz --frames 1000000 --seed 7

What must hold: the broker lives on, in the same process, and meets no error that nothing expected.
It neither hangs nor sends a bad answer. Its memory stays below `MEMORY_BYTES` + `BASE_BYTES`. Every
call of the good client succeeds within `DEADLINE_S`, and at the end all that was acked is there,
once, as it was sent. Every Batch that was stored, hostile Messages and all, verifies. And when the
attackers are gone no connection and no memory is left behind.

The frames are shared out among `BROKERS` such trials side by side, each with a broker of its own:
attackers mostly wait, for acks and for the memory that others hoard. Prints a summary of each, and
what was wrong; exit code 1 when something was. A seed fixes what each attacker sends, not how their
frames interleave.
"""

# ruff: noqa: T201 - it is a command

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

from memq.client.cluster import Cluster
from memq.client.producer.producer import AsyncProducer
from memq.core.format.verify import verify
from memq.core.topic import TopicConfig
from memq.core.wire import messages as m
from memq.errors import MemqError
from memq.storage.keys import parse_object_key
from memq.storage.local import LocalStorage
from memq.testing.broker import BrokerProcess
from tests.fakes.hostile_frames import GOOD_TOPIC, hostile_topics
from tests.simulation.checkers import check
from tests.system.attack import Outcome, attack
from tests.system.follower import Follower
from tests.system.ledger import Ledger, Name, Written, now_us, row_of

BROKERS = 3  # side by side; they keep two cores busy
ATTACKERS = 2  # processes for each; with more the broker's memory is always full of hoarded bodies
MEMORY_BYTES = 64 << 20  # the broker's memory_bytes: what it admits of Messages
BASE_BYTES = 192 << 20
"""What a broker takes beside Messages: 90 MiB with Python and Arrow loaded; the rest for hundreds
of connections, their answers, and allocators that give memory back late."""
DEADLINE_S = 10.0  # for every call of the good client
REST_S = 20.0  # until connections and memory are back; a stalled connection is closed after 10 s
SIZES = (10, 1_000, 30_000)
LOG_SIGNS = ("CRITICAL", "Traceback", "unexpected error")
GOOD_OPTIONS = {"batch_age": "20ms", "ordering": "producer"}


@dataclass
class Report:
    """What came of it.

    Attributes:
        outcome: of all attackers.
        took_s: how long they attacked.
        acked: LogMessages of the good client.
        calls: of the good client.
        slowest_s: of these.
        peak_bytes: most memory that the broker had at a time.
        objects: Batches that were verified at the end.
        violations: what must not be.
    """

    outcome: Outcome = field(default_factory=Outcome)
    took_s: float = 0.0
    acked: int = 0
    calls: int = 0
    slowest_s: float = 0.0
    peak_bytes: int = 0
    objects: int = 0
    violations: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        outcome, cap_bytes = self.outcome, MEMORY_BYTES + BASE_BYTES
        sent = outcome.kinds.total()
        return (
            f"{sent} frames of {len(outcome.kinds)} kinds in {self.took_s:.0f} s "
            f"({sent / max(self.took_s, 0.001):.0f}/s) over {outcome.connections} connections, "
            f"{outcome.answers} answers, {outcome.turned_away} turned away; good client: "
            f"{self.acked} records acked, {self.calls} calls, the slowest {self.slowest_s:.2f} s "
            f"of {DEADLINE_S:g} s; peak memory {self.peak_bytes >> 20} MiB of "
            f"{cap_bytes >> 20} MiB; {self.objects} Batches verified; "
            f"{len(self.violations)} violations"
        )


async def run(frames: int, seed: str, directory: Path) -> Report:
    """Attack a broker with so many frames."""
    report = Report()
    options = {"memory_bytes": f"{MEMORY_BYTES}B", "log_level": "warning"}
    with BrokerProcess(directory, **options) as process:
        try:
            await _attack_while_good(process, frames, seed, report)
        except (MemqError, OSError) as exc:
            report.violations.append(f"the good client: {type(exc).__name__}: {exc}")
        report.violations += report.outcome.violations
        report.violations += [
            line for line in process.log.splitlines() if any(sign in line for sign in LOG_SIGNS)
        ]
        report.peak_bytes = _peak_bytes(process.pid)
        if report.peak_bytes > MEMORY_BYTES + BASE_BYTES:
            report.violations.append(f"memory rose to {report.peak_bytes} bytes")
        if (code := process.terminate()) != 0:
            report.violations.append(f"the broker ended with {code}")
    _verify(directory, report)
    return report


async def _attack_while_good(
    process: BrokerProcess, frames: int, seed: str, report: Report
) -> None:
    ledger, stop = Ledger(), asyncio.Event()
    cluster = Cluster(process.address, client="good", request_timeout_s=DEADLINE_S)
    follower = Follower(cluster, GOOD_TOPIC, ledger)
    good_config = TopicConfig.create(GOOD_TOPIC, **GOOD_OPTIONS)
    for config in (good_config, *hostile_topics()):
        await cluster.call(m.CreateTopic(config=config))
    try:
        baseline = await _connections(process)
        good = [
            asyncio.create_task(_write(process.address, ledger, stop, report)),
            asyncio.create_task(_follow(follower, stop, report)),
        ]
        while not follower.seen and not any(task.done() for task in good):
            await asyncio.sleep(0.01)
        uris = [seen.notification.uri for seen in follower.seen.values()]
        await _attack(process.address, frames, seed, uris, report)
        stop.set()
        await asyncio.gather(*good)
        await follower.read_again()
        report.acked = len(ledger.acked)
        ledger.history.end_us = now_us()
        report.violations += [f"refused: {text}" for text in ledger.refused]
        found = [*follower.violations, *await asyncio.to_thread(check, ledger.history)]
        report.violations += map(str, found)
        report.violations += await _not_at_rest(process, baseline)
    finally:
        await cluster.close()


async def _attack(address: str, frames: int, seed: str, uris: list[str], report: Report) -> None:
    started_s, loop = time.monotonic(), asyncio.get_running_loop()
    with ProcessPoolExecutor(ATTACKERS, mp_context=get_context("spawn")) as pool:
        attackers = [
            loop.run_in_executor(
                pool, attack, address, f"{seed}/{number}", frames // ATTACKERS + 1, uris
            )
            for number in range(ATTACKERS)
        ]
        for outcome in await asyncio.gather(*attackers, return_exceptions=True):
            if isinstance(outcome, Outcome):
                report.outcome.add(outcome)
            else:
                report.violations.append(f"an attacker died: {outcome!r}")
    report.took_s = time.monotonic() - started_s


# -- the good client ------------------------------------------------------------------------


async def _write(address: str, ledger: Ledger, stop: asyncio.Event, report: Report) -> None:
    written = ledger.written["good"] = Written(GOOD_TOPIC, SIZES)
    async with AsyncProducer(address, topic=GOOD_TOPIC, linger="1ms") as producer:
        ledger.watch(producer, "good", ordered=True)
        while not stop.is_set():
            names = [Name("good", number) for number in range(written.count, written.count + 20)]
            written.count += len(names)
            with _timed(report):
                for name in names:
                    row = row_of(name, SIZES)
                    await producer.write(row.value, row.key, row.headers, row.timestamp_us)
                await producer.flush(DEADLINE_S)
            await asyncio.sleep(0.1)


async def _follow(follower: Follower, stop: asyncio.Event, report: Report) -> None:
    while not stop.is_set():
        await follower.look()  # of many calls, each with a deadline of its own
        await asyncio.sleep(0.05)


class _timed:  # noqa: N801 - used like a function
    """Measures a call of the good client."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def __enter__(self) -> None:
        self._started_s = time.monotonic()

    def __exit__(self, *_: object) -> None:
        took_s = time.monotonic() - self._started_s
        self._report.calls += 1
        self._report.slowest_s = max(self._report.slowest_s, took_s)
        if took_s > DEADLINE_S:
            self._report.violations.append(f"a call of the good client took {took_s:.1f} s")


# -- what is left ---------------------------------------------------------------------------


async def _status(process: BrokerProcess) -> dict:
    def ask() -> dict:
        with urllib.request.urlopen(f"{process.admin}/status", timeout=10) as answer:  # noqa: S310 - HTTP
            return json.load(answer)

    return await asyncio.to_thread(ask)


async def _connections(process: BrokerProcess) -> int:
    return (await _status(process))["connections"]


async def _not_at_rest(process: BrokerProcess, baseline: int) -> list[str]:
    deadline_s = time.monotonic() + REST_S
    while True:
        status = await _status(process)
        left = {
            "connections": status["connections"] - baseline,
            "bytes of Messages": status["memory_used_bytes"],
            "bytes of answers": status["answer_bytes"],
        }
        if not any(left.values()):
            return []
        if time.monotonic() > deadline_s:
            return [f"left behind after {REST_S:g} s: {left}: {status}"]
        await asyncio.sleep(0.1)


def _peak_bytes(pid: int) -> int:
    """Most memory that the process ever had resident; 0 when it is gone."""
    with suppress(FileNotFoundError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def _verify(directory: Path, report: Report) -> None:
    storage = LocalStorage(directory / "objects")
    for info in storage.list(""):
        if parse_object_key(info.key) is None:  # the lock of the broker that uses them
            continue
        report.objects += 1
        for finding in verify(storage.get(info.key)).findings:
            # The broker takes a header's word for the timestamps in its Message.
            if "its timestamps reach from" not in finding:
                report.violations.append(f"{info.key}: {finding}")


def main() -> int:
    """The command; see the module."""
    parser = argparse.ArgumentParser(prog="tests.system.fuzz")
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", default=str(random.randrange(10**6)), help="random by default")
    given = parser.parse_args()
    failed = False
    with ProcessPoolExecutor(BROKERS, mp_context=get_context("spawn")) as pool:
        trials = [
            pool.submit(trial, given.frames // BROKERS + 1, f"{given.seed}/{number}")
            for number in range(BROKERS)
        ]
        for done in as_completed(trials):
            failed |= _tell(*done.result())
    if failed:
        print(
            f"  replay: python -m tests.system.fuzz --frames {given.frames} --seed {given.seed}",
            file=sys.stderr,
        )
    return int(failed)


def trial(frames: int, seed: str) -> tuple[str, Report]:
    """Attack one broker, in a process of its own; returns the seed with what came of it."""
    with tempfile.TemporaryDirectory(prefix="memq-fuzz-") as directory:
        return seed, asyncio.run(run(frames, seed, Path(directory)))


def _tell(seed: str, report: Report) -> bool:
    """Print what came of a trial; whether something was wrong."""
    verdict = "FAILED" if report.violations else "ok"
    print(f"fuzz: {verdict}: seed {seed}, {report}", flush=True)
    for text in report.violations[:20]:
        print(f"  {text:.2000}", file=sys.stderr, flush=True)
    return bool(report.violations)


if __name__ == "__main__":
    sys.exit(main())
