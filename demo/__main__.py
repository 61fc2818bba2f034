"""The demo: broker, producers, a crash, two ways of reading, Polars, the audit; then a summary."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import polars as pl

from demo.broker import DemoBroker
from demo.check import Comparison, by_group, by_range
from demo.ship import Shipped, ship
from memq import AdminClient

TOPIC = "demo"
PRODUCERS = 4
SAMPLE = Path(__file__).with_name("sample.log")
INPUTS = (Path("/var/log/dpkg.log"), SAMPLE)


def main() -> int:
    """Run the demo; 0 when everything that came back equals what was sent."""
    arguments = _arguments()
    path = arguments.input or next(path for path in INPUTS if path.is_file())
    lines = path.read_bytes().splitlines()
    if not lines:
        print(f"demo: {path} has no lines to ship", file=sys.stderr)
        return 2
    directory = Path(tempfile.mkdtemp(prefix="memq-demo-"))
    try:
        return _run(directory, path, lines)
    finally:
        shutil.rmtree(directory)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    parser.add_argument("--input", type=Path, help="ship the lines of this file")
    arguments = parser.parse_args()
    if arguments.input and not arguments.input.is_file():
        parser.error(f"no file {arguments.input}")
    return arguments


def _run(directory: Path, path: Path, lines: list[bytes]) -> int:
    broker = DemoBroker(directory)
    say(f"broker on {broker.address}, data in {directory}")
    try:
        with AdminClient(broker.address) as admin:
            admin.create_topic(TOPIC, batch_age="50ms", write_partitions=2, read_partitions=2)

        def crash() -> None:
            say("half-way: the broker is killed with SIGKILL, and started again")
            broker.kill()
            broker.start()

        say(f"{PRODUCERS} producers ship {len(lines)} lines of {path}, acks=all")
        shipped = ship(broker.address, TOPIC, lines, PRODUCERS, crash)
        say("reading everything back by a consumer group, then by exact offset ranges")
        group = by_group(broker.address, TOPIC, lines)
        ranges = by_range(broker.address, TOPIC, lines)
        say("reading one stored Batch with Polars alone")
        stored, batch, rows = _read_with_polars(directory)
        say("audit: what was produced against what is stored")
        audit = _audit(broker.address)
    finally:
        broker.stop()
    print()
    _print_shipped(lines, shipped)
    row("stored", f"{len(stored)} Batches, {sum(p.stat().st_size for p in stored) / 1e6:.2f} MB")
    _print_read("read by group", group)
    _print_read("read by exact ranges", ranges)
    row("read by Polars", f"{rows} rows of Batch {batch.name}")
    row("audit", "clean" if audit.returncode == 0 else "NOT CLEAN")
    print()
    whole = group.equal and group == ranges and not group.lost and not group.doubled
    ok = whole and not shipped.failed and audit.returncode == 0
    print("demo: everything equal, nothing lost, nothing doubled" if ok else "demo: FAILED")
    return 0 if ok else 1


def say(text: str) -> None:
    """A line on what happens now."""
    print(f"demo: {text}", flush=True)


def _read_with_polars(directory: Path) -> tuple[list[Path], Path, int]:
    objects = sorted((directory / "memq" / "objects").rglob("*.arrows"))
    objects = [path for path in objects if f"/topics/{TOPIC}/" in str(path)]
    largest = max(objects, key=lambda path: path.stat().st_size)
    return objects, largest, pl.read_ipc_stream(largest).height


def _audit(address: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "memq", "audit", TOPIC, "--deep", "--bootstrap", address]
    return subprocess.run(command, check=False)


def _print_shipped(lines: list[bytes], shipped: Shipped) -> None:
    size = sum(len(line) for line in lines) / 1e6
    latencies = sorted(1e3 * latency for latency in shipped.latencies_s)
    p50, p99 = (latencies[int(len(latencies) * q)] for q in (0.5, 0.99))
    row("shipped", f"{len(lines)} lines, {size:.2f} MB, by {PRODUCERS} producers")
    row("acked", f"{shipped.lines - len(shipped.failed)} lines, acks=all")
    row("rate", f"{size / shipped.seconds:.2f} MB/s, paced, crash included")
    row("write to ack", f"p50 {p50:.0f} ms, p99 {p99:.0f} ms, p100 {latencies[-1]:.0f} ms")
    row("acked as repeats", f"{shipped.retried} Messages, stored before the crash hid their ack")
    for error in shipped.failed:
        row("failed", error)


def _print_read(name: str, found: Comparison) -> None:
    verdict = "equal to the input" if found.equal else "NOT EQUAL to the input"
    counts = f"{found.lines} lines in {found.batches} Batches"
    row(name, f"{counts}: {found.lost} lost, {found.doubled} doubled, {verdict}")


def row(name: str, text: str) -> None:
    """A line of the summary."""
    print(f"  {name:<22}{text}")


if __name__ == "__main__":
    sys.exit(main())
