"""The demo: broker, producers, a crash; readers, Spark, Airflow, a table; the audit, and a loss."""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import polars as pl

from demo.access import USER, Access
from demo.airflow import DemoAirflow, remove_object
from demo.broker import DemoBroker, leave_out_settings
from demo.check import Comparison, by_group, by_range
from demo.lake import DemoLake
from demo.ship import Shipped, ship
from demo.spark import by_spark, session
from memq import AdminClient
from memq.core.units import counted
from tests.harness.services.signed_s3 import SignedS3

TOPIC = "demo"
PRODUCERS = 4
RANGE_OFFSETS = 6  # in a range, so that there are some
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
    leave_out_settings()
    say("takes two to five minutes, on a busy machine more")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # Airflow does not end with us
    directory = Path(tempfile.mkdtemp(prefix="memq-demo-"))
    try:
        return _run(directory, path, lines, keep=arguments.keep, secure=arguments.secure)
    except KeyboardInterrupt:
        print("demo: interrupted", file=sys.stderr)
        return 130
    finally:
        shutil.rmtree(directory)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    parser.add_argument("--input", type=Path, help="ship the lines of this file")
    parser.add_argument("--secure", action="store_true", help="with TLS, users, rules, and S3")
    parser.add_argument("--keep", action="store_true", help="go on at the end, until Ctrl-C")
    arguments = parser.parse_args()
    if arguments.input and not arguments.input.is_file():
        parser.error(f"no file {arguments.input}")
    return arguments


def _run(directory: Path, path: Path, lines: list[bytes], *, keep: bool, secure: bool) -> int:
    with ExitStack() as stack:
        s3 = stack.enter_context(SignedS3(directory / "s3")) if secure else None
        broker = DemoBroker(directory, s3)
        stack.callback(broker.stop)
        access = Access.of_dev(broker, s3) if s3 else None
        say(f"broker on {broker.address}, console on {broker.console}, data in {directory}")
        security = access.security("admin") if access else ""
        with AdminClient(broker.address, security=security) as admin:
            admin.create_topic(TOPIC, batch_age="50ms", write_partitions=2, read_partitions=2)
        say("Airflow: scheduler, triggerer, DAG processor and API server; takes half a minute")
        env = {}
        if access is not None:
            access.let_in(TOPIC)
            env["AIRFLOW_CONN_MEMQ_DEFAULT"] = access.connection(USER)
        airflow = DemoAirflow(directory, broker.address, TOPIC, RANGE_OFFSETS, env)
        stack.callback(airflow.stop)
        airflow.start()
        ok = _main_job(directory, broker, airflow, path, lines)
        if access is not None:
            say("a user without a rule tries to get in, on each of these paths")
            with session() as running:
                for refusal in access.refusals(TOPIC, running):
                    row("refused", refusal)
        if keep:
            say(f"Airflow on {airflow.url}, broker on {broker.address}, data in {directory}")
            say(f"console on {broker.console}")
            say("all of it goes on until Ctrl-C")
            with suppress(KeyboardInterrupt):
                signal.pause()
    return 0 if ok else 1


def _main_job(
    directory: Path, broker: DemoBroker, airflow: DemoAirflow, path: Path, lines: list[bytes]
) -> bool:
    def crash() -> None:
        say("half-way: the broker is killed with SIGKILL, and started again")
        broker.kill()
        broker.start()

    say(f"{PRODUCERS} producers ship {counted(len(lines), 'line')} of {path}, acks=all")
    shipped = ship(broker.address, TOPIC, lines, PRODUCERS, crash)
    say("reading everything back by a consumer group, then by exact offset ranges")
    group = by_group(broker.address, TOPIC, lines)
    ranges = by_range(broker.address, TOPIC, lines)
    say("reading the same ranges with Spark SQL")
    lake = DemoLake(directory, broker.address, TOPIC, lines)
    with session() as running:
        spark = by_spark(running, broker.address, TOPIC, lines)
        say("putting them into an Iceberg table, one read partition after the other")
        halfway = lake.fill(running)
    say("reading one stored Batch with Polars alone")
    stored = broker.objects(TOPIC)
    largest = max(stored, key=lambda each: each.stat().st_size)
    polars_rows = pl.read_ipc_stream(largest).height
    say("waiting until Airflow has processed every range of offsets with Spark")
    runs = airflow.wait_until_processed()
    parquet = airflow.compare(lines)
    say("audit, by command and by DAG: produced against stored against consumed")
    audit = _audit(broker.address)
    dag_state, _ = airflow.audit()
    print()
    _print_shipped(lines, shipped)
    stored_mb = sum(path.stat().st_size for path in stored) / 1e6
    row("stored", f"{counted(len(stored), 'Batch')}, {stored_mb:.2f} MB")
    _print_read("read by group", group)
    _print_read("read by exact ranges", ranges)
    _print_read("read by Spark SQL", spark)
    _print_read("by table and topic", halfway)
    row("read by Polars", f"{counted(polars_rows, 'row')} of Batch {largest.name}")
    _print_read(counted(len(runs), "Airflow run"), parquet)
    row("audit", "clean" if audit.returncode == 0 else "NOT CLEAN")
    row("audit DAG", dag_state)
    exact = _lose(airflow, largest)
    say("the Iceberg table still has what was in it: read by DuckDB, and by memq.scan")
    table, one = lake.by_duckdb(), lake.by_scan()
    _print_read("read by DuckDB", table)
    _print_read("read by memq.scan", one)
    print()
    whole = group == ranges == spark == parquet == halfway == table == one
    whole = whole and group.equal and not group.lost and not group.duplicated and not shipped.failed
    ok = whole and audit.returncode == 0 and dag_state == "success" and exact
    print(
        "demo: everything equal, nothing lost, nothing duplicated; what was removed was named"
        if ok
        else "demo: FAILED"
    )
    return ok


def _lose(airflow: DemoAirflow, largest: Path) -> bool:
    """Remove a stored object; whether the audit then names what was in it, and nothing else."""
    say("one stored object is removed on purpose; the next audit must name what is gone")
    removed = remove_object(largest)
    state, found = airflow.audit()
    exact = state == "failed" and removed.named_by(found)
    for finding in found["findings"]:
        row(finding["finding"], _in_words(finding))
    verdict = "exactly what was in it" if exact else "NOT what was in it"
    row("audit DAG", f"{state}; it names {verdict}: {counted(removed.records, 'LogMessage')}")
    return exact


def say(text: str) -> None:
    """A line on what happens now."""
    print(f"demo: {text}", flush=True)


def _audit(address: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "memq", "audit", TOPIC, "--deep", "--bootstrap", address]
    return subprocess.run(command, check=False)


def _print_shipped(lines: list[bytes], shipped: Shipped) -> None:
    size = sum(len(line) for line in lines) / 1e6
    latencies = sorted(1e3 * latency for latency in shipped.latencies_s)
    p50, p99 = (latencies[int(len(latencies) * q)] for q in (0.5, 0.99))
    row("shipped", f"{counted(len(lines), 'line')}, {size:.2f} MB, by {PRODUCERS} producers")
    row("acked", f"{counted(shipped.lines - len(shipped.failed), 'line')}, acks=all")
    row("rate", f"{size / shipped.seconds:.2f} MB/s, paced, crash included")
    row("write to ack", f"p50 {p50:.0f} ms, p99 {p99:.0f} ms, p100 {latencies[-1]:.0f} ms")
    retried = counted(shipped.retried, "Message")
    row("acked as duplicates", f"{retried}, stored before the crash hid the ack")
    for error in shipped.failed:
        row("failed", error)


def _print_read(name: str, found: Comparison) -> None:
    verdict = "equal to the input" if found.equal else "NOT EQUAL to the input"
    counts = f"{counted(found.lines, 'line')} in {counted(found.batches, 'Batch')}"
    row(name, f"{counts}: {found.lost} lost, {found.duplicated} duplicated, {verdict}")


def _in_words(finding: dict[str, Any]) -> str:
    runs = ", ".join(f"{first}-{last}" for first, last in finding["sequences"])
    records = counted(finding["records"], "LogMessage")
    return f"producer {finding['producer_id']}: sequences {runs}, {records}"


def row(name: str, text: str) -> None:
    """A line of the summary."""
    print(f"  {name:<22}{text}")


if __name__ == "__main__":
    sys.exit(main())
