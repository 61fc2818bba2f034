"""Chaos: brokers are killed again and again while producers write, and then everything is checked.

    python -m tests.system.chaos --runs 200 --seed 7
    python -m tests.system.chaos --runs 100 --storage s3 --queue kafka

One *run* is one data directory, some producers and topics, and several lives of the broker. Each
life ends at an exact step of the protocol (see `memq.testing.crashing`), or by SIGKILL at a random
time, or by SIGTERM. The producers are never told; they retry. A reader follows meanwhile. The last
broker lives on until all producers have their acks; then all is read back from the stored objects,
by their notifications, and compared with what was sent. What is compared stands in `checker`.

One summary line is printed, and for each run that failed what was wrong and how to replay it; its
data is kept. Exit code 1 when any did.
"""

# ruff: noqa: T201 - it is a command

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import shutil
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tests.system.kafka import in_kafka, kafka
from tests.system.object_store import in_store, store
from tests.system.plan import Plan, draw, draw_retention, folder_of
from tests.system.runs import Report, run

if TYPE_CHECKING:
    from collections.abc import Callable

RETENTION_EVERY = 50  # one run in so many outlives its first Batches, which takes some 20 s
MAX_SHOWN = 12  # violations shown of a run
MAX_FAILED = 10  # runs; after these no other is begun


def plan_of(seed: str) -> Plan:
    """The plan of a run's seed, `S/N`: a run in so many is one with retention."""
    number = int(seed.rpartition("/")[2])
    return draw_retention(seed) if number % RETENTION_EVERY == RETENTION_EVERY - 1 else draw(seed)


async def run_many(
    seeds: list[str], jobs: int, root: Path, placed: Callable[[Plan], Plan]
) -> tuple[Report, list[str]]:
    """Carry out the runs, some at a time; all their figures, and the seeds of those that failed.

    Args:
        seeds: of the runs.
        jobs: runs at a time.
        root: folder for their data.
        placed: gives a plan the storage and the queue that it is to have.
    """
    total, failed = Report(runs=0), []
    slots = asyncio.Semaphore(jobs)

    async def one(seed: str) -> None:
        async with slots:
            if len(failed) >= MAX_FAILED:
                return
            directory = folder_of(root, seed)
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(parents=True)
            report = await run(placed(plan_of(seed)), directory)
        total.add(report)
        if report.violations:
            failed.append(seed)
            _show(seed, directory, report)
        else:
            shutil.rmtree(directory)

    # Long ones first, so that they do not come last and alone.
    await asyncio.gather(*map(one, sorted(seeds, key=lambda seed: -len(plan_of(seed).lives))))
    return total, failed


def _show(seed: str, directory: Path, report: Report) -> None:
    print(f"FAILED: {report}", file=sys.stderr)
    for kind, text in report.violations[:MAX_SHOWN]:
        print(f"  {kind}: {text}", file=sys.stderr)
    if len(report.violations) > MAX_SHOWN:
        print(f"  … {len(report.violations) - MAX_SHOWN} more", file=sys.stderr)
    print(f"  data: {directory}", file=sys.stderr)
    print(f"  replay: python -m tests.system.chaos --replay {seed}", file=sys.stderr, flush=True)


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
    given = parser.parse_args()
    seeds = [f"{given.seed}/{number}" for number in range(given.runs)]
    if given.replay:
        seeds = given.replay
        for seed in seeds:
            print(plan_of(seed))
    root = Path(tempfile.mkdtemp(prefix="memq-chaos-"))
    started_s = time.monotonic()
    total, failed = Report(runs=0), []
    with contextlib.ExitStack() as stack:
        places = []
        if given.storage == "s3":
            places.append(partial(in_store, options=stack.enter_context(store(root))))
        if given.queue == "kafka":
            address = stack.enter_context(kafka(root, seed=given.seed))
            places.append(partial(in_kafka, address=address))

        def placed(plan: Plan) -> Plan:
            for place in places:
                plan = place(plan)
            return plan

        for _ in range(given.times):
            report, wrong = asyncio.run(run_many(seeds, given.jobs, root, placed))
            total.add(report)
            failed += wrong
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
