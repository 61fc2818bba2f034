"""Chaos: brokers are killed again and again while producers write, and then everything is checked.

    python -m tests.system.chaos --runs 200 --seed 7
    python -m tests.system.chaos --runs 100 --storage s3 --queue kafka
    python -m tests.system.chaos --runs 200 --cluster 3
    python -m tests.system.chaos --runs 200 --secure

One *run* is one data directory, some producers and topics, and several lives of the broker. Each
life ends at an exact step of the protocol (see `tests.fakes.crashing`), or by SIGKILL at a random
time, or by SIGTERM. The producers are never told; they retry. A reader follows meanwhile. The last
broker lives on until all producers have their acks; then all is read back from the stored objects,
by their notifications, and compared with what was sent. What is compared stands in `checker`.

With `--secure` brokers speak TLS and ask who their clients are: see `tests.system.secured`.

With `--cluster` a run is a cluster of brokers instead, on real services, which fail as well: see
`tests.system.cluster` and `tests.system.services`.

One summary line is printed, and for each run that failed what was wrong and how to replay it; its
data is kept. Exit code 1 when any did.
"""

# ruff: noqa: T201 - it is a command

import argparse
import asyncio
import contextlib
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path

from tests.fakes.failing_kafka import in_kafka, kafka
from tests.fakes.refusing_store import in_store, store
from tests.system.cluster import draw_cluster, run_cluster
from tests.system.plan import Plan, draw, draw_retention, folder_of, secured
from tests.system.runs import Report, run
from tests.system.services import Services, draw_weather, pass_over, services

RETENTION_EVERY = 50  # one run in so many outlives its first Batches, which takes some 20 s
MAX_SHOWN = 12  # violations shown of a run
ROUND = 6  # runs of clusters at a time
MAX_FAILED = 10  # runs; after these no other is begun


def plan_of(seed: str) -> Plan:
    """The plan of a run's seed, `S/N`: a run in so many is one with retention."""
    number = int(seed.rpartition("/")[2])
    return draw_retention(seed) if number % RETENTION_EVERY == RETENTION_EVERY - 1 else draw(seed)


class Campaign:
    """The runs of a campaign.

    Args:
        root: folder for their data; that of a run that failed is kept.
        how: options with which they are carried out.

    Attributes:
        total: all their figures.
        failed: seeds of those that failed.
    """

    def __init__(self, root: Path, how: str) -> None:
        self._root = root
        self._how = how
        self.total = Report(runs=0)
        self.failed: list[str] = []

    @property
    def goes_on(self) -> bool:
        """Whether another run may begin."""
        return len(self.failed) < MAX_FAILED

    async def run_many(self, seeds: list[str], jobs: int, placed: Callable[[Plan], Plan]) -> None:
        """Carry out the runs, some at a time.

        Args:
            seeds: of the runs.
            jobs: runs at a time.
            placed: gives a plan the storage and the queue that it is to have.
        """
        slots = asyncio.Semaphore(jobs)

        async def one(seed: str) -> None:
            async with slots:
                if self.goes_on:
                    plan = placed(plan_of(seed))
                    self._ended(seed, await run(plan, new_folder(self._root, seed)))

        # Long ones first, so that they do not come last and alone.
        await asyncio.gather(*map(one, sorted(seeds, key=lambda seed: -len(plan_of(seed).lives))))

    async def run_rounds(
        self, seeds: list[str], count: int, found: Services, *, secure: bool
    ) -> None:
        """Carry out runs of clusters, one round after the other.

        Args:
            seeds: of the runs.
            count: of brokers in each cluster.
            found: the services that all share.
            secure: brokers speak TLS, and ask who their clients are.
        """
        for name, members in groupby(seeds, round_of):
            if not self.goes_on:
                break
            of_round = list(members)
            reports = await run_round(name, of_round, count, self._root, found, secure=secure)
            for seed, report in zip(of_round, reports, strict=True):
                self._ended(seed, report)
            weather = " and ".join(draw_weather(name)) or "nothing"
            print(f"round {name}: {weather} failed, {self.total.runs} runs", flush=True)

    def _ended(self, seed: str, report: Report) -> None:
        self.total.add(report)
        directory = folder_of(self._root, seed)
        if report.violations:
            self.failed.append(seed)
            _show(f"{self._how}--replay '{seed}'", directory, report)
        else:
            shutil.rmtree(directory)


def new_folder(root: Path, seed: str) -> Path:
    """An empty folder for the data of a run."""
    directory = folder_of(root, seed)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    return directory


def round_of(seed: str) -> str:
    """The name of the round that a run, `S/N`, belongs to."""
    campaign, _, number = seed.rpartition("/")
    return f"{campaign}/round {int(number) // ROUND}"


async def run_round(
    name: str, seeds: list[str], count: int, root: Path, found: Services, *, secure: bool = False
) -> list[Report]:
    """Carry out the runs of a round side by side, with their weather; their reports."""
    over, links = asyncio.Event(), []

    async def one(seed: str) -> Report:
        plan = draw_cluster(seed, count)
        if secure:
            plan = replace(plan, plan=secured(plan.plan))
        return await run_cluster(plan, new_folder(root, seed), found, over, links)

    running = asyncio.gather(*map(one, seeds))
    await pass_over(draw_weather(name), found, lambda: links, name)
    over.set()
    return await running


def _show(how: str, directory: Path, report: Report) -> None:
    print(f"FAILED: {report}", file=sys.stderr)
    for kind, text in report.violations[:MAX_SHOWN]:
        print(f"  {kind}: {text}", file=sys.stderr)
    if len(report.violations) > MAX_SHOWN:
        print(f"  … {len(report.violations) - MAX_SHOWN} more", file=sys.stderr)
    print(f"  data: {directory}", file=sys.stderr)
    print(f"  replay: python -m tests.system.chaos {how}", file=sys.stderr, flush=True)


def main() -> int:
    """The command; see the module."""
    parser = argparse.ArgumentParser(prog="tests.system.chaos")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", default=str(random.randrange(10**6)), help="random by default")
    parser.add_argument("--jobs", type=int, default=6, help="runs at a time")
    parser.add_argument("--replay", action="append", metavar="SEED/N", help="only this run")
    parser.add_argument("--times", type=int, default=1, help="how often to replay it")
    parser.add_argument(
        "--storage", choices=("files", "s3"), default="files", help="where the Batches are"
    )
    parser.add_argument(
        "--queue", choices=("files", "kafka"), default="files", help="where notifications are"
    )
    parser.add_argument(
        "--cluster", type=int, default=0, metavar="BROKERS", help="runs of clusters of so many"
    )
    parser.add_argument(
        "--secure", action="store_true", help="by TLS, with users who have passwords and rules"
    )
    given = parser.parse_args()
    if given.cluster and (given.storage, given.queue) != ("files", "files"):
        parser.error("--cluster has S3, Kafka and ZooKeeper by itself; leave out the other options")
    seeds = [f"{given.seed}/{number}" for number in range(given.runs)]
    if given.replay:
        seeds = given.replay
        for seed in seeds:
            print(draw_cluster(seed, given.cluster) if given.cluster else plan_of(seed))
    root = Path(tempfile.mkdtemp(prefix="memq-chaos-"))
    started_s = time.monotonic()
    named = {"storage": "files", "queue": "files", "cluster": 0}
    how = [f"--{name} {vars(given)[name]} " for name in named if vars(given)[name] != named[name]]
    campaign = Campaign(root, "".join(how) + "--secure " * given.secure)
    with contextlib.ExitStack() as stack:
        places = []
        found = stack.enter_context(services(root)) if given.cluster else None
        if given.storage == "s3":
            places.append(partial(in_store, options=stack.enter_context(store(root))))
        if given.queue == "kafka":
            address = stack.enter_context(kafka(root, seed=given.seed))
            places.append(partial(in_kafka, address=address))

        if given.secure:
            places.append(secured)

        def placed(plan: Plan) -> Plan:
            for place in places:
                plan = place(plan)
            return plan

        for _ in range(given.times):
            if found is None:
                asyncio.run(campaign.run_many(seeds, given.jobs, placed))
            else:
                asyncio.run(campaign.run_rounds(seeds, given.cluster, found, secure=given.secure))
    total, failed = campaign.total, campaign.failed
    verdict = f"{len(failed)} FAILED" if failed else "ok"
    print(
        f"chaos: {verdict}: seed {given.seed}, {total.runs} runs in "
        f"{time.monotonic() - started_s:.0f} s, {total}"
    )
    if not failed:
        shutil.rmtree(root)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
