"""A token is replaced and three brokers restart one by one under load; then the load is even.

    python -m tests.system.rolling

The brokers share an S3-compatible store, Kafka and ZooKeeper. Clients with the old token and with
the new one write and read all the time, and none may get an error. Right after the restarts comes
`memq cluster rebalance`, and no broker may be left with more than `EVEN` times the mean of what is
written. In the end all that was acked is read back: nothing may be lost, or be there twice.
"""

# ruff: noqa: T201 - it is a command

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from memq import AdminClient, Consumer, Producer, read_range
from tests.system.services import services

if TYPE_CHECKING:
    from collections.abc import Callable

TOPIC = "rolling"
BROKERS = 3
EVEN = 1.2
STEP_S = 5.0  # of load between two steps
WAIT_S = 120.0  # for a state
RECORD_S = 0.002  # between two records of a producer


class Clients:
    """A producer and a member of the group, in threads, until they are ended."""

    def __init__(self, bootstrap: str, token: str) -> None:
        self.acked: set[bytes] = set()
        self.errors: list[str] = []
        self.read = 0
        self._given = {"bootstrap": bootstrap, "topic": TOPIC, "token": token}
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._carry_out, args=(each,))
            for each in (self._produce, self._consume)
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Write and read no more; all that was written is acked by then."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _carry_out(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as exc:  # noqa: BLE001 - any error of a client is a finding
            self.errors.append(repr(exc))

    def _produce(self) -> None:
        with Producer(**self._given) as producer:
            count = 0
            while not self._over.wait(RECORD_S):
                value = f"{self._given['token']}-{count}-".encode().ljust(400, b"x")
                producer.write(value).add_done_callback(
                    lambda delivery, value=value: self._settled(value, delivery.exception())
                )
                count += 1

    def _settled(self, value: bytes, error: BaseException | None) -> None:
        if error is None:
            self.acked.add(value)
        else:
            self.errors.append(repr(error))

    def _consume(self) -> None:
        with Consumer(**self._given, group="readers", start="earliest") as consumer:
            while not self._over.is_set():
                self.read += sum(1 for _ in consumer.poll(1.0) or ())
                consumer.commit()


def wait_for(what: str, true: Callable[[], bool]) -> float:
    """Wait until something is true; the seconds that took."""
    begun_s = time.monotonic()
    while not true():
        if time.monotonic() - begun_s > WAIT_S:
            raise TimeoutError(f"not within {WAIT_S:g} s: {what}")
        time.sleep(0.2)
    return time.monotonic() - begun_s


def run(folder: Path) -> list[str]:
    """Carry it out; what was wrong."""
    tokens = folder / "tokens"
    tokens.write_text("old")
    with services(folder, bucket="rolling") as found, ExitStack() as stack:
        start = partial(found.broker, folder, "rolling", token_file=str(tokens))
        brokers = [stack.enter_context(start(each)) for each in range(BROKERS)]
        bootstrap = ",".join(each.address for each in brokers)

        def accept(*given: str) -> None:
            tokens.write_text("\n".join(given))
            for each in brokers:
                os.kill(each.pid, signal.SIGHUP)
            print(f"accepted now: {', '.join(given)}", flush=True)

        def work_on(*clients: Clients) -> None:
            before = [len(each.acked) for each in clients]
            time.sleep(STEP_S)
            wait_for(
                "acks go on",
                lambda: all(
                    len(each.acked) > was or each.errors
                    for each, was in zip(clients, before, strict=True)
                ),
            )

        with AdminClient(bootstrap, token="old") as admin:
            wait_for("three brokers", lambda: len(admin.describe_cluster().brokers) == BROKERS)
            admin.create_topic(TOPIC, write_partitions=9, read_partitions=4)
        old = Clients(bootstrap, "old")
        work_on(old)
        accept("old", "new")
        new = Clients(bootstrap, "new")
        for each in brokers:
            work_on(old, new)
            each.terminate()
            each.restart()
            print(f"{each.address} restarted", flush=True)
        environment = os.environ | {"MEMQ_TOKEN": "new"}
        command = [sys.executable, "-m", "memq", "cluster", "rebalance", "-b", bootstrap]
        subprocess.run(command, env=environment, check=True)
        with AdminClient(bootstrap, token="new") as admin:
            ratios: list[float] = []

            def even() -> bool:
                described = admin.describe_cluster()
                loads = [each.bytes_per_s for each in described.brokers]
                mean = sum(loads) / len(loads)
                ratios.append(max(loads) / mean if mean else 0.0)
                return len(loads) == BROKERS and 0 < ratios[-1] <= EVEN and not described.moving

            took_s = wait_for("an even load", even)
            print(f"even after {took_s:.1f} s: the most is {ratios[-1]:.2f} times the mean")
        old.end()
        accept("new")
        work_on(new)
        new.end()
        return check(bootstrap, old, new)


def check(bootstrap: str, *clients: Clients) -> list[str]:
    """Read all back: what is lost, and what is there twice."""
    table = read_range(bootstrap, topic=TOPIC, timeout=600, columns=["value"], token="new")
    found = Counter(table["value"].to_pylist())
    acked = set().union(*(each.acked for each in clients))
    errors = [error for each in clients for error in each.errors]
    doubled = [value for value, count in found.items() if count > 1]
    print(
        f"{len(acked)} acked, {len(found)} stored, {sum(each.read for each in clients)} read by "
        f"the group; {len(errors)} client errors, {len(acked - found.keys())} lost, "
        f"{len(doubled)} doubled"
    )
    wrong = [f"lost: {each[:40]!r}" for each in sorted(acked - found.keys())[:3]]
    return wrong + [f"doubled: {each[:40]!r}" for each in doubled[:3]] + errors[:3]


def main() -> int:
    """Run it, and say how it went."""
    with tempfile.TemporaryDirectory() as folder:
        wrong = run(Path(folder))
    for each in wrong:
        print(f"WRONG {each}")
    print("failed" if wrong else "ok")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
