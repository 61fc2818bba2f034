"""The demo of a cluster: brokers and services fail while producers and readers go on.

Three brokers in two zones share a real Kafka, ZooKeeper and S3-compatible server. Four producers
ship a part of the lines during each event, and a group of two reads all the while. In the end all
lines must be there, once, whichever way they are read. With `--secure` all speak TLS, everybody
says who they are, and a stranger tries to get in.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from demo.__main__ import INPUTS, PRODUCERS, say
from demo.access import USER
from demo.airflow import DemoAirflow
from demo.broker import leave_out_settings
from demo.brokers import AWAY_S, DemoCluster, away
from demo.check import by_range
from demo.members import Members
from demo.services import services
from demo.ship import Shipped, ship
from demo.spark import by_spark, session
from memq import AdminClient
from memq.core.units import counted
from memq.errors import MemqError
from tests.harness.services.errors import ServiceError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from demo.check import Comparison

TOPIC = "demo"
WRITE_PARTITIONS = 4
READ_PARTITIONS = 2
MEMBERS = 2
STEP_S = 0.4  # of what producers do, so that they go on for 8 s after something has failed
READ_S = 120.0  # for the group to read what was acked last
RANGE_OFFSETS = 500  # in a range, so that a few runs of Spark process all


class Event(NamedTuple):
    """Something that happens while producers ship.

    Attributes:
        name: in words.
        happen: makes it happen; a broker that it kills is started again when all was acked.
        away_s: for how long something is away that nothing replaces; None when nothing fails.
    """

    name: str
    happen: Callable[[], None]
    away_s: float | None = None


def main() -> int:
    """Run the demo; 0 when everything that came back equals what was sent."""
    parser = argparse.ArgumentParser(prog="demo.cluster", description=__doc__)
    parser.add_argument("--secure", action="store_true", help="with TLS, logins and rules")
    parser.add_argument(
        "--restore", action="store_true", help="of all events only the loss of all but the bucket"
    )
    arguments = parser.parse_args()
    secure: bool = arguments.secure
    leave_out_settings()
    minutes = "three" if arguments.restore else "six"
    say(f"takes about {minutes} minutes, on a busy machine more")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # brokers do not end with us
    path = next(path for path in INPUTS if path.is_file())
    lines = path.read_bytes().splitlines()
    directory = Path(tempfile.mkdtemp(prefix="memq-demo-"))
    try:
        with ExitStack() as stack:
            how = ", which speak TLS and ask who their clients are" if secure else ""
            say(f"Kafka, ZooKeeper and an S3-compatible server start{how}")
            found = stack.enter_context(services(directory, secure=secure))
            os.environ.update(found.environment)  # whoever reads goes to the store itself
            cluster = DemoCluster(directory, found)
            stack.callback(cluster.stop)
            only = arguments.restore
            return 0 if _run(directory, cluster, path, lines, only_restore=only) else 1
    except KeyboardInterrupt:
        print("demo: interrupted; everything is stopped", file=sys.stderr)
        return 130
    except (ServiceError, MemqError, TimeoutError) as exc:
        print(f"demo: FAILED: {exc}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _run(
    directory: Path, cluster: DemoCluster, path: Path, lines: list[bytes], *, only_restore: bool
) -> bool:
    cluster.start()
    cluster.wait_whole()
    access = cluster.access
    if access is not None:
        access.let_in(TOPIC)
    with AdminClient(
        cluster.bootstrap, security=access.security("admin") if access else ""
    ) as admin:
        admin.create_topic(
            TOPIC,
            batch_age="100ms",
            write_partitions=WRITE_PARTITIONS,
            read_partitions=READ_PARTITIONS,
        )
    cluster.wait_whole(TOPIC)
    say(f"three brokers in two zones on {cluster.bootstrap}")
    members = Members(cluster.bootstrap, TOPIC, MEMBERS)
    with ExitStack() as stack:
        stack.callback(members.stop)
        members.start()
        say(f"{PRODUCERS} producers ship {counted(len(lines), 'line')} of {path}, acks=all")
        shipped = _ship_through(cluster, lines, only_restore=only_restore)
        members.wait(len(lines), READ_S)
    return _check(directory, cluster, lines, members, shipped)


def _events(cluster: DemoCluster, *, only_restore: bool) -> list[Event]:
    s3, kafka, zookeeper = cluster.services.s3, cluster.services.kafka, cluster.services.zookeeper
    long = f"away for {AWAY_S:g} s"
    lost = Event("all but the bucket is lost", cluster.lose_all, 0.0)
    if only_restore:
        return [Event("nothing fails", lambda: None), lost, Event("it goes on", lambda: None)]
    return [
        Event("nothing fails", lambda: None),
        Event("a broker is killed", lambda: cluster.kill(governor=False), 0.0),
        Event("the Governor is killed", lambda: cluster.kill(governor=True), 0.0),
        Event("a broker is added", cluster.add),
        Event(f"S3 is {long}", lambda: away(s3.kill, s3.start), AWAY_S),
        Event(f"Kafka is {long}", lambda: away(kafka.freeze, kafka.thaw), AWAY_S),
        Event(f"ZooKeeper is {long}", lambda: away(zookeeper.kill, zookeeper.start), AWAY_S),
        lost,
    ]


def _ship_through(
    cluster: DemoCluster, lines: list[bytes], *, only_restore: bool
) -> list[tuple[Event, Shipped]]:
    """Ship all lines, a part during each event."""
    events = _events(cluster, only_restore=only_restore)
    parts = [len(lines) * number // len(events) for number in range(len(events) + 1)]
    shipped = []
    for event, (first, end) in zip(events, pairwise(parts), strict=True):
        say(f"{event.name}, while lines {first} to {end - 1} are shipped")
        numbers = range(first, end)
        part = ship(
            cluster.bootstrap,
            TOPIC,
            lines,
            PRODUCERS,
            event.happen,
            numbers=numbers,
            step_s=STEP_S,
        )
        shipped.append((event, part))
        cluster.start_again()
        cluster.wait_whole(TOPIC)
    return shipped


def _check(
    directory: Path,
    cluster: DemoCluster,
    lines: Sequence[bytes],
    members: Members,
    shipped: Sequence[tuple[Event, Shipped]],
) -> bool:
    bootstrap, group = cluster.bootstrap, members.compare(lines)
    say("reading everything back by exact offset ranges, then with Spark SQL")
    ranges = by_range(bootstrap, TOPIC, lines)
    refusals = []
    with session() as running:
        spark = by_spark(running, bootstrap, TOPIC, lines)
        if cluster.access is not None:
            say("a user without a rule tries to get in, on each of these paths")
            refusals = [*cluster.services.refusals(), *cluster.access.refusals(TOPIC, running)]
    say("Airflow plans the same ranges and processes them with Spark; takes a minute or two")
    with ExitStack() as stack:
        one = bootstrap.partition(",")[0]
        env = cluster.services.environment
        if cluster.access is not None:
            env["AIRFLOW_CONN_MEMQ_DEFAULT"] = cluster.access.connection(USER)
        airflow = DemoAirflow(directory, one, TOPIC, RANGE_OFFSETS, env)
        stack.callback(airflow.stop)
        airflow.start()
        runs = airflow.wait_until_processed()
        parquet = airflow.compare(lines)
    print()
    _print_shipped(shipped)
    by = {
        f"group of {MEMBERS}": group,
        "exact ranges": ranges,
        "Spark SQL": spark,
        counted(len(runs), "Airflow run"): parquet,
    }
    for name, comparison in by.items():
        _print_read(name, comparison)
    print(
        f"  {counted(members.redelivered, 'Batch')} came to the group again, {members.retried} "
        "calls of its members were retried"
    )
    for text in refusals:
        print(f"  refused: {text}")
    failed = [*members.failed, *(text for _, part in shipped for text in part.failed)]
    for text in failed:
        print(f"  failed: {text}")
    ok = not failed and all(each.equal and not each.lost for each in by.values())
    ok = ok and not any(each.duplicated for each in by.values())
    print()
    print("demo: everything equal, nothing lost, nothing duplicated" if ok else "demo: FAILED")
    return ok


def _print_shipped(shipped: Sequence[tuple[Event, Shipped]]) -> None:
    print(f"  {'while':<28}{'lines':>8}{'median ack':>14}{'longest ack':>14}{'recovered in':>15}")
    for event, part in shipped:
        latencies = sorted(part.latencies_s)
        median_ms, longest_s = 1e3 * latencies[len(latencies) // 2], latencies[-1]
        recovered = ""
        if event.away_s is not None:  # who wrote first while it was away has waited longest
            recovered = f"{max(0.0, longest_s - event.away_s):.1f} s"
        print(
            f"  {event.name:<28}{part.lines:>8}{median_ms:>11.0f} ms{longest_s:>12.1f} s"
            f"{recovered:>15}"
        )
    print("\n  recovered: from a kill, or from when a service was back, to the ack of all before\n")


def _print_read(name: str, found: Comparison) -> None:
    verdict = "equal to the input" if found.equal else "NOT EQUAL to the input"
    counts = f"{counted(found.lines, 'line')}: {found.lost} lost, {found.duplicated} duplicated"
    print(f"  {name:<28}{counts}, {verdict}")


if __name__ == "__main__":
    sys.exit(main())
