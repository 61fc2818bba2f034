"""Outages: services refuse, freeze, and come back from a backup in turn, and `memq status` says so.

    python -m tests.system.outages --minutes 60

Three brokers share an S3-compatible store, Kafka and ZooKeeper. Producers write all the time, and a
group reads. After each fault `memq status` must name the service within `SAID_S`, and within as
much again that nothing is wrong once the service is there again. In the end all that was acked is
read back: nothing may be lost, or be there twice. A line for each fault, and a last one that says
`ok`; else the exit code is 1.
"""

# ruff: noqa: T201 - it is a command

from __future__ import annotations

import argparse
import contextlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from memq import AdminClient, Consumer, Producer, read_range
from memq.errors import MemqError
from memq.testing import BrokerProcess
from tests.harness.services.http_faults import SLOW_DOWN, Rule
from tests.system.services import BUCKET, services

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self

    from memq.client.producer.delivery import Delivery
    from tests.harness.services.zookeeper import ZooKeeper
    from tests.system.services import Services

BROKERS = 3
PRODUCERS = 3
TOPIC = "outages"
SAID_S = 5.0
LASTS_S = 15.0  # each fault, at least
CALM_S = 10.0  # after each
SETTLED_S = 120.0  # for `memq status` to say that all is well at the start, and after a fault
RECORD_S = 0.02  # between two records of a producer
RESTORED = "zookeeper restored from a backup"


class Load:
    """Producers and a group that go on through all of it.

    Args:
        bootstrap: of the brokers.

    Attributes:
        acked: values that were.
        failed: why other ones were not.
        read: how often the group was given each value.
    """

    def __init__(self, bootstrap: str) -> None:
        self.acked: set[bytes] = set()
        self.failed: list[str] = []
        self.read: Counter[bytes] = Counter()
        self._bootstrap = bootstrap
        self._over = threading.Event()
        work = [partial(self._produce, number) for number in range(PRODUCERS)]
        self._threads = [threading.Thread(target=each) for each in (*work, self._consume)]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()

    def end(self) -> None:
        """Write no more, and wait until all that was written is acked or refused."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _produce(self, number: int) -> None:
        with Producer(
            self._bootstrap, topic=TOPIC, delivery_timeout="5m", max_block="5m"
        ) as producer:
            count = 0
            while not self._over.wait(RECORD_S):
                value = b"%d-%d" % (number, count)
                producer.write(value).add_done_callback(partial(self._settled, value))
                count += 1

    def _settled(self, value: bytes, delivery: Delivery) -> None:
        error = delivery.exception()
        if error is None:
            self.acked.add(value)
        else:
            self.failed.append(str(error))

    def _consume(self) -> None:
        with Consumer(self._bootstrap, topic=TOPIC, group="readers", start="earliest") as consumer:
            while not self._over.is_set():
                with contextlib.suppress(MemqError):  # it is told, and tries again
                    for record in consumer.poll(1.0) or ():
                        self.read[bytes(record.value)] += 1
                    consumer.commit()


def status(bootstrap: str) -> tuple[int, str]:
    """Exit code and text of `memq status`."""
    done = subprocess.run(
        [sys.executable, "-m", "memq", "status", "-b", bootstrap],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def wait_for(bootstrap: str, said: Callable[[int, str], bool], timeout_s: float) -> float:
    """Ask for the status until it says something; the seconds that took.

    Raises:
        TimeoutError: with what it said last.
    """
    begun_s = time.monotonic()
    while True:
        code, text = status(bootstrap)
        took_s = time.monotonic() - begun_s
        if said(code, text):
            return took_s
        if took_s > timeout_s:
            raise TimeoutError(f"not said within {timeout_s:g} s, but: {text}")


def faults(
    found: Services,
) -> Iterator[tuple[str, str, Callable[[], object], Callable[[], object]]]:
    """What is done in turn, for ever: its name, the service, how it begins and how it ends."""
    rule = Rule(SLOW_DOWN, times=None)
    backup = found.zookeeper.folder / "backup"
    found.zookeeper.stop()
    shutil.copytree(found.zookeeper.folder / "data", backup)
    found.zookeeper.start()
    zookeeper, kafka, store = found.zookeeper, found.kafka, found.store
    while True:
        yield "s3 refuses", "storage", partial(store.add, rule), partial(store.remove, rule)
        yield "kafka frozen", "kafka", kafka.freeze, kafka.thaw
        yield "zookeeper frozen", "zookeeper", zookeeper.freeze, zookeeper.thaw
        yield "s3 frozen", "storage", partial(store.outage, "silent"), store.restore
        yield "kafka refuses", "kafka", kafka.kill, kafka.start
        yield RESTORED, "zookeeper", zookeeper.stop, partial(restore, zookeeper, backup)


def restore(zookeeper: ZooKeeper, backup: Path) -> None:
    """Put an older copy of its data in place, and start it."""
    data = zookeeper.folder / "data"
    shutil.rmtree(data)
    shutil.copytree(backup, data)
    zookeeper.start()


def run(folder: Path, minutes: float, only: str) -> list[str]:
    """Carry it out; what was wrong."""
    wrong: list[str] = []
    with services(folder) as found, contextlib.ExitStack() as stack:
        brokers = [stack.enter_context(broker(folder, found, each)) for each in range(BROKERS)]
        bootstrap = ",".join(each.address for each in brokers)
        with AdminClient(bootstrap, request_timeout_s=60) as admin:
            admin.create_topic(TOPIC, write_partitions=6, read_partitions=4)
        wait_for(bootstrap, lambda code, _: code == 0, SETTLED_S)
        planned = faults(found)
        first = next(planned)
        load = stack.enter_context(Load(bootstrap))
        wait_for(bootstrap, lambda code, _: code == 0, SETTLED_S)
        end_s = time.monotonic() + minutes * 60
        while time.monotonic() < end_s:
            if only in first[0]:
                found_wrong = carry_out(bootstrap, *first)
                print(*(f"WRONG {each}" for each in found_wrong), sep="\n", end="")
                wrong += found_wrong
            first = next(planned)
        load.end()
        wrong += check(bootstrap, load)
        if wrong:
            for each in brokers:
                (Path(tempfile.gettempdir()) / f"outages-{each.pid}.log").write_text(each.log)
    return wrong


def carry_out(
    bootstrap: str, name: str, service: str, begin: Callable[[], object], end: Callable[[], object]
) -> list[str]:
    """One fault; what was wrong with what was said of it."""
    begun_s = time.monotonic()
    begin()
    try:
        named_s = wait_for(
            bootstrap, lambda code, text: code == 1 and f"{service} (" in text, LASTS_S
        )
        time.sleep(max(0.0, begun_s + LASTS_S - time.monotonic()))
    except TimeoutError as exc:
        return [f"{name}: {exc}"]
    finally:
        end()
    try:
        over_s = wait_for(bootstrap, lambda _, text: f"{service} (" not in text, SETTLED_S)
        well_s = over_s + wait_for(bootstrap, lambda code, _: code == 0, SETTLED_S)
    except TimeoutError as exc:
        return [f"{name}: {exc}"]
    print(f"{name}: named after {named_s:.1f} s, over after {over_s:.1f} s, well {well_s:.1f} s")
    time.sleep(CALM_S)
    late = [each for each in (named_s, over_s) if each > SAID_S]
    return [f"{name}: said after {each:.1f} s" for each in late]


def check(bootstrap: str, load: Load) -> list[str]:
    """Read all back: what is lost, and what is there twice."""
    table = read_range(bootstrap, topic=TOPIC, timeout=600, columns=["value"])
    found = Counter(table["value"].to_pylist())
    lost = load.acked - found.keys()
    doubled = [value for value, count in found.items() if count > 1]
    print(
        f"{len(load.acked)} acked, {len(load.failed)} refused, {len(found)} stored, "
        f"{len(load.read)} read by the group; {len(lost)} lost, {len(doubled)} doubled"
    )
    wrong = [f"lost: {sorted(lost)[:10]}"] if lost else []
    wrong += [f"doubled: {doubled[:10]}"] if doubled else []
    return wrong + [f"refused: {why}" for why in load.failed[:3]]


def broker(folder: Path, found: Services, number: int) -> BrokerProcess:
    """One of the brokers."""
    return BrokerProcess(
        folder / f"b{number}",
        broker_id=f"b{number}",
        cluster_id="outages",
        zookeeper=f"{found.zookeeper.address}/outages",
        zookeeper_options="session_timeout=6s",
        queue=f"kafka://{found.kafka.address}",
        storage=f"s3://{BUCKET}/outages",
        storage_options=",".join(f"{name}={value}" for name, value in found.s3.items()),
    )


def main() -> int:
    """Run it as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--only", default="", help="faults with this in their name")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        wrong = run(Path(folder), given.minutes, given.only)
    for each in wrong:
        print(f"WRONG {each}")
    if not wrong:
        print(f"ok: {given.minutes:g} minutes")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
