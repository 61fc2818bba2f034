"""A token is replaced and three brokers restart one by one under load; then the load is even.

    python -m tests.system.rolling

The brokers share an S3-compatible store, Kafka and ZooKeeper. Clients with the old token and with
the new one write and read all the time, and none may get an error. Right after the restarts comes
`memq cluster rebalance`, and no broker may be left with more than `EVEN` times the mean of what is
written. In the end all that was acked is read back: nothing may be lost, or be there twice.
"""

# ruff: noqa: T201 - it is a command

import os
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from memq import AdminClient
from memq.core.wire.messages import DescribeClusterAnswer
from tests.system.load import Load, check, memq, tell, wait_for
from tests.system.services import services

TOPIC = "rolling"
BROKERS = 3
EVEN = 1.2
STEP_S = 5.0  # of load between two steps
WAIT_S = 120.0  # for a state
RECORD_S = 0.002  # between two records of a producer


def run(folder: Path) -> list[str]:
    """Carry it out; what was wrong."""
    tokens = folder / "tokens"
    tokens.write_text("old")
    with services(folder, bucket="rolling") as found, ExitStack() as stack:
        brokers = found.brokers(stack, folder, "rolling", BROKERS, token_file=str(tokens))
        bootstrap = ",".join(each.address for each in brokers)

        def accept(*given: str) -> None:
            tokens.write_text("\n".join(given))
            for each in brokers:
                os.kill(each.pid, signal.SIGHUP)
            print(f"accepted now: {', '.join(given)}", flush=True)

        read: Counter[bytes] = Counter()

        def clients(token: str) -> Load:
            given = {"bootstrap": bootstrap, "topic": TOPIC, "token": token}
            load = Load(given, f"{token}-", producers=1, record_s=RECORD_S, read=read)
            stack.callback(load.end)
            return load

        def work_on(*clients: Load) -> None:
            before = [len(each.acked) for each in clients]
            time.sleep(STEP_S)
            for each, was in zip(clients, before, strict=True):
                wait_for(
                    lambda each=each: each.errors or len(each.acked),
                    lambda seen, was=was: seen != was,
                    WAIT_S,
                )

        with AdminClient(bootstrap, token="old") as admin:
            wait_for(lambda: len(admin.describe_cluster().brokers), lambda n: n == BROKERS, WAIT_S)
            admin.create_topic(TOPIC, write_partitions=9, read_partitions=4)
        old = clients("old")
        work_on(old)
        accept("old", "new")
        new = clients("new")
        for each in brokers:
            work_on(old, new)
            each.terminate()
            each.restart()
            print(f"{each.address} restarted", flush=True)
        environment = os.environ | {"MEMQ_TOKEN": "new"}
        memq("cluster", "rebalance", "-b", bootstrap, env=environment).check_returncode()
        with AdminClient(bootstrap, token="new") as admin:
            ratio, took_s = wait_for(
                lambda: unevenness(admin.describe_cluster()),
                lambda ratio: 0 < ratio <= EVEN,
                WAIT_S,
            )
            print(f"even after {took_s:.1f} s: the most is {ratio:.2f} times the mean")
        old.end()
        accept("new")
        work_on(new)
        new.end(WAIT_S)
        return check({"bootstrap": bootstrap, "topic": TOPIC, "token": "new"}, old, new)


def unevenness(cluster: DescribeClusterAnswer) -> float:
    """Return how many times the mean the most loaded broker has; 0 while partitions move."""
    loads = [each.bytes_per_s for each in cluster.brokers]
    if len(loads) < BROKERS or cluster.moving or not sum(loads):
        return 0.0
    return max(loads) * len(loads) / sum(loads)


def main() -> int:
    """Run it, and say how it went."""
    with tempfile.TemporaryDirectory() as folder:
        return tell(run(Path(folder)))


if __name__ == "__main__":
    sys.exit(main())
