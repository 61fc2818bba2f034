"""Outages: services refuse, freeze, and come back from a backup in turn, and `memq status` says so.

    python -m tests.system.outages --minutes 60

Three brokers share an S3-compatible store, Kafka and ZooKeeper. Producers write all the time, and a
group reads. `memq status` must name the service within `SAID_S` of each outage's begin. Once the
service answers again, it must say within as much that nothing is wrong with it. A ZooKeeper that
was restored refuses old sessions until brokers give them up, and serves nobody before.

In the end all that was acked is read back, also by a group, and the audit counts it: nothing may
be lost, or be there twice. A line for each outage, and a last one that says `ok`; else the exit
code is 1.
"""

# ruff: noqa: T201 - it is a command

import argparse
import contextlib
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from memq import AdminClient
from memq.errors import MemqError
from memq.zookeeper.session import REFUSED_SESSIONS
from tests.harness.services.http_faults import SLOW_DOWN, Hang, Rule
from tests.system.load import Load, check, memq, tell, wait_for
from tests.system.services import Services, services

BROKERS = 3
PRODUCERS = 3
TOPIC = "outages"
SESSION_S = 6.0  # of brokers with ZooKeeper
SAID_S = 5.0
GIVEN_UP_S = REFUSED_SESSIONS * SESSION_S  # until sessions that a restored ZooKeeper refuses end
NAMED_S = 15.0  # after which an outage that is not named is given up
LASTS_S = (10.0, 30.0)  # each outage, at least and at most
CALM_S = 10.0  # after each
SETTLED_S = 120.0  # for `memq status` to say that all is well at the start, and after an outage
RECORD_S = 0.02  # between two records of a producer
LOG_CHARACTERS = 20_000  # of the end of each broker's log, where something is wrong
AUDIT_FINE = (0, 3)  # 3: an outage was so long that clients dropped some reports
UNHEARD = "no broker tells its state"
READ_S = 120.0  # for the group to read on after the last record


class Outage(NamedTuple):
    """One of a kind.

    Attributes:
        service: as `memq status` calls it.
        begin: begins it.
        end: ends it, and returns when the service answers again.
        refused_s: how long what comes back still refuses; not counted.
    """

    service: str
    begin: Callable[[], object]
    end: Callable[[], object]
    refused_s: float = 0.0


def problems(bootstrap: str) -> list[str]:
    """What `memq status` says that is wrong; nothing when all is well."""
    try:
        with AdminClient(bootstrap) as admin:
            return admin.status().problems()
    except MemqError as exc:
        return [f"{UNHEARD}: {exc}"]


def is_well(said: list[str]) -> bool:
    """Tell whether nothing is wrong."""
    return not said


def says(bootstrap: str, service: str) -> bool:
    """Whether the command itself says now that a service refuses."""
    done = memq("status", "-b", bootstrap)
    return done.returncode == 1 and f"\n{service} (" in "\n" + done.stdout


def outages(found: Services) -> dict[str, Outage]:
    """Each kind of outage, by its name."""
    slow, frozen = Rule(SLOW_DOWN, times=None), Rule(Hang(), times=None)
    backup = found.zookeeper.folder / "backup"
    zookeeper, kafka, store = found.zookeeper, found.kafka, found.store
    zookeeper.back_up(backup)
    restore = partial(zookeeper.restore, backup)

    def thaw_store() -> None:
        store.remove(frozen)
        store.release()

    return {
        "s3 refuses": Outage("storage", partial(store.add, slow), partial(store.remove, slow)),
        "s3 frozen": Outage("storage", partial(store.add, frozen), thaw_store),
        "kafka frozen": Outage("kafka", kafka.freeze, kafka.thaw),
        "kafka refuses": Outage("kafka", kafka.kill, kafka.start),
        "zookeeper frozen": Outage("zookeeper", zookeeper.freeze, zookeeper.thaw),
        "zookeeper refuses": Outage("zookeeper", zookeeper.kill, zookeeper.start),
        "zookeeper restored": Outage("zookeeper", zookeeper.kill, restore, GIVEN_UP_S),
    }


def in_turn(names: list[str], seed: int) -> Iterator[tuple[str, float]]:
    """All names, and again in another order, for ever; with seconds that each is to last."""
    rng = random.Random(seed)
    while True:
        for name in rng.sample(names, len(names)):
            yield name, rng.uniform(*LASTS_S)


def run(folder: Path, minutes: float, only: str, seed: int) -> list[str]:
    """Carry it out; what was wrong."""
    wrong: list[str] = []
    session = f"session_timeout={SESSION_S:g}s"
    with services(folder, bucket=TOPIC) as found, contextlib.ExitStack() as stack:
        brokers = found.brokers(stack, folder, TOPIC, BROKERS, zookeeper_options=session)
        bootstrap = ",".join(each.address for each in brokers)
        with AdminClient(bootstrap, request_timeout_s=60) as admin:
            admin.create_topic(TOPIC, write_partitions=6, read_partitions=4)
        look, given = partial(problems, bootstrap), {"bootstrap": bootstrap, "topic": TOPIC}
        wait_for(look, is_well, SETTLED_S)
        kinds = outages(found)
        load = stack.enter_context(
            Load(
                given,
                "",
                producers=PRODUCERS,
                record_s=RECORD_S,
                patient=True,
                delivery_timeout="5m",
                max_block="5m",
            )
        )
        end_s = time.monotonic() + minutes * 60
        turns = in_turn([each for each in kinds if only in each], seed)
        name = "before the first outage"
        try:
            wait_for(look, is_well, SETTLED_S)
            while time.monotonic() < end_s:
                name, lasts_s = next(turns)
                wrong += carry_out(bootstrap, name, kinds[name], lasts_s)
        except TimeoutError as exc:
            wrong.append(f"{name}: {exc}")
        else:
            load.end(READ_S)
            wrong += check(given, load)
            audit = memq("audit", TOPIC, "-b", bootstrap, "--grace", "0s")
            print(f"audit: {audit.stdout.strip().splitlines()[-1:]}", flush=True)
            if audit.returncode not in AUDIT_FINE:
                wrong.append(f"the audit: {audit.stdout}{audit.stderr}")
        if wrong:  # said before the load ends, which may wait long for deliveries
            logs = (f"{each}:\n{each.log[-LOG_CHARACTERS:]}" for each in brokers)
            print(*wrong, *logs, sep="\n", flush=True)
    return wrong


def carry_out(bootstrap: str, name: str, outage: Outage, lasts_s: float) -> list[str]:
    """One outage; what was wrong with what was said of it.

    Raises:
        TimeoutError: nothing was said of it, or that it is over.
    """

    def named(said: list[str]) -> bool:
        return any(each.startswith(f"{outage.service} (") for each in said)

    def over(said: list[str]) -> bool:
        return not named(said) and not any(each.startswith(UNHEARD) for each in said)

    wrong = []
    begun_s = time.monotonic()
    look = partial(problems, bootstrap)
    try:
        outage.begin()
        _, named_s = wait_for(look, named, NAMED_S)
        if not says(bootstrap, outage.service):
            wrong.append(f"{name}: `memq status` does not say so")
        time.sleep(max(0.0, begun_s + lasts_s - time.monotonic()))
    finally:
        outage.end()
    _, over_s = wait_for(look, over, SETTLED_S)
    well_s = over_s + wait_for(look, is_well, SETTLED_S)[1]
    print(
        f"{time.strftime('%H:%M:%S')} {name} for {lasts_s:.0f} s: named after {named_s:.1f} s, "
        f"over after {over_s:.1f} s, all well after {well_s:.1f} s",
        flush=True,
    )
    time.sleep(CALM_S)
    if named_s > SAID_S:
        wrong.append(f"{name}: named after {named_s:.1f} s, the limit is {SAID_S:g} s")
    limit_s = outage.refused_s + SAID_S
    if over_s > limit_s:
        wrong.append(f"{name}: over after {over_s:.1f} s, the limit is {limit_s:g} s")
    return wrong


def main() -> int:
    """Run it as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument(
        "--only", default="", metavar="KIND", help="outages with this in their name"
    )
    parser.add_argument("--seed", type=int, default=0, help="of their order and lengths")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return tell(run(Path(folder), given.minutes, given.only, given.seed))


if __name__ == "__main__":
    sys.exit(main())
