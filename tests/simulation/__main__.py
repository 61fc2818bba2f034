"""Run many plans in simulated time: `make simulate [SEEDS=n] [SEED=s] [MINUTES=m]`.

Two processes run seeds side by side. What a seed does depends on nothing but the seed, the version
of Python (asyncio's insides differ) and the code, which is what the replay line names. A plan that
fails is made smaller, and printed as it can be run again.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from tests.simulation.plan import DEEDS, FAULTS, Plan, draw, speed, year
from tests.simulation.run import run
from tests.simulation.shrink import shrink

if TYPE_CHECKING:
    from collections.abc import Iterator

PROCESSES = 2
CHUNK = 8  # seeds that a process does before it reports
SHOWN = 10  # failures that are made smaller and printed
PROGRESS_S = 10.0


class Done(NamedTuple):
    """What a few seeds came to."""

    seeds: list[int]
    failed: list[int]
    counts: Counter[str]
    seconds: float
    cpu_s: float
    callbacks: int


def do(seeds: list[int], *, twice: bool = False, stop: bool = False) -> Done:
    """Run some seeds in this process."""
    _prepare()
    began_s = time.process_time()
    done = Done(seeds, [], Counter(), 0.0, 0.0, 0)
    simulated, callbacks = 0.0, 0
    for seed in seeds:
        plan = draw(seed)
        result = run(plan)
        done.counts.update(result.counts)
        simulated += result.seconds
        callbacks += result.callbacks
        if result.violations or (twice and run(plan).digest != result.digest):
            done.failed.append(seed)
            if stop:
                break
    cpu_s = time.process_time() - began_s
    return done._replace(seconds=simulated, callbacks=callbacks, cpu_s=cpu_s)


def _prepare() -> None:
    """Logs cost time; what is imported is never garbage."""
    logging.disable(logging.CRITICAL)
    gc.disable()
    gc.collect()
    gc.freeze()


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line asks for; the exit code is 1 when something does not hold."""
    options = _parse(arguments)
    if options.plan or options.seed is not None or options.year or options.speed:
        return _one(options)
    return _campaign(options)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many; default 200")
    parser.add_argument("--minutes", type=float, help="go on for so long, however many seeds")
    parser.add_argument("--first", type=int, default=0, help="the first seed; default 0")
    parser.add_argument("--seed", type=int, help="run one seed, and show what happened")
    parser.add_argument("--plan", help="run one plan, as it was printed")
    parser.add_argument("--jobs", type=int, default=PROCESSES, help="processes; default 2")
    parser.add_argument("--stop", action="store_true", help="at the first seed that fails")
    parser.add_argument("--twice", action="store_true", help="run each seed twice, and compare")
    parser.add_argument("--year", action="store_true", help="one simulated year at a low rate")
    parser.add_argument("--speed", action="store_true", help="1 broker, 4 producers, 2 consumers")
    parser.add_argument("--log", action="store_true", help="with --seed or --plan: show the logs")
    return parser.parse_args(arguments)


# -- one run --------------------------------------------------------------------------------


def _one(options: argparse.Namespace) -> int:
    if options.plan:
        plan = msgspec.json.decode(options.plan, type=Plan)
    elif options.year or options.speed:
        plan = year(options.seed or 0) if options.year else speed(options.seed or 0)
    else:
        plan = draw(options.seed)
    if options.log:
        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
        gc.disable()
    else:
        _prepare()
    began_s = time.process_time()
    result = run(plan)
    cpu_s = time.process_time() - began_s
    for note in result.notes if options.seed is not None or options.plan else ():
        print(f"  {note}")
    print(f"{result.history!r}")
    _show_counts(Counter(result.counts), everything=False)
    print(
        f"{result.seconds:.1f} simulated s in {cpu_s:.2f} CPU s: {result.seconds / cpu_s:.0f} "
        f"simulated s a CPU s; {result.callbacks} callbacks; trace {result.digest}"
    )
    for violation in result.violations:
        print(f"VIOLATION {violation}")
    if options.twice and run(plan).digest != result.digest:
        print("VIOLATION the second run had another trace")
        return 1
    return int(bool(result.violations))


# -- many -----------------------------------------------------------------------------------


def _campaign(options: argparse.Namespace) -> int:
    began_s = time.monotonic()
    print(f"simulate: {_replay('N')}", flush=True)
    total = Done([], [], Counter(), 0.0, 0.0, 0)
    shown_s = began_s
    with ProcessPoolExecutor(options.jobs) as pool:
        for done in _results(pool, options, began_s):
            if options.stop and done.failed:
                print(f"simulate: stopped at seed {done.failed[0]}")
                pool.shutdown(cancel_futures=True)
                return 1
            total.seeds.extend(done.seeds)
            total.failed.extend(done.failed)
            total.counts.update(done.counts)
            total = total._replace(
                seconds=total.seconds + done.seconds,
                cpu_s=total.cpu_s + done.cpu_s,
                callbacks=total.callbacks + done.callbacks,
            )
            if done.failed:
                print(f"simulate: failed: {done.failed}", flush=True)
            if time.monotonic() - shown_s > PROGRESS_S:
                shown_s = time.monotonic()
                _progress(total, shown_s - began_s)
    _progress(total, time.monotonic() - began_s)
    missing = _show_counts(total.counts, everything=len(total.seeds) >= 200)
    for seed in total.failed[:SHOWN]:
        _show_failure(seed)
    if total.failed:
        print(f"simulate: {len(total.failed)} seeds failed: {total.failed[:100]}")
    return int(bool(total.failed or missing))


def _results(
    pool: ProcessPoolExecutor, options: argparse.Namespace, began_s: float
) -> Iterator[Done]:
    """What comes back, while a few chunks are always under way."""
    chunks = _chunks(options, began_s)
    under_way = set()
    while True:
        while len(under_way) < 2 * options.jobs and (chunk := next(chunks, None)) is not None:
            under_way.add(pool.submit(do, chunk, twice=options.twice, stop=options.stop))
        if not under_way:
            return
        finished = next(as_completed(under_way))
        under_way.remove(finished)
        yield finished.result()


def _chunks(options: argparse.Namespace, began_s: float) -> Iterator[list[int]]:
    end = None if options.minutes else options.first + options.seeds
    for start in count(options.first, CHUNK):
        late = options.minutes and time.monotonic() - began_s > options.minutes * 60
        if late or (end is not None and start >= end):
            return
        yield list(range(start, start + CHUNK if end is None else min(start + CHUNK, end)))


def _progress(total: Done, elapsed_s: float) -> None:
    seeds = len(total.seeds)
    print(
        f"simulate: {seeds} seeds, {len(total.failed)} failed; {seeds / elapsed_s:.1f} seeds/s; "
        f"{total.seconds:.0f} simulated s, {total.seconds / max(total.cpu_s, 1e-9):.0f} a CPU s; "
        f"{total.callbacks} callbacks",
        flush=True,
    )


def _show_counts(counts: Counter[str], *, everything: bool) -> list[str]:
    """Print how often what happened; with `everything`, the kinds that never did."""
    print("  " + ", ".join(f"{name} {many}" for name, many in sorted(counts.items())))
    missing = [kind for kind in (*FAULTS, *DEEDS, "stall", "hedge") if not counts[kind]]
    if everything and missing:
        print(f"VIOLATION these never happened: {', '.join(missing)}")
    return missing if everything else []


def _show_failure(seed: int) -> None:
    _prepare()
    result = run(draw(seed))
    if not result.violations:
        print(f"seed {seed}: two runs have different traces; {_replay(seed)} --twice")
        return
    print(f"seed {seed}: {_replay(seed)}")
    for violation in result.violations[:5]:
        print(f"  VIOLATION {violation[:600]}")
    small = shrink(result, run)
    for violation in small.violations[:5]:
        print(f"  smaller: {violation[:600]}")
    plan = msgspec.json.encode(small.plan).decode()
    print(f"  python -m tests.simulation --plan '{plan}'", flush=True)


def _replay(seed: object) -> str:
    """How to run a seed again, and what it depends on."""
    version = ".".join(map(str, sys.version_info[:3]))
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
        cwd=os.path.dirname(__file__),  # noqa: PTH120 - of a module
    ).stdout.strip()
    return f"make simulate SEED={seed}  # Python {version}, commit {commit or 'unknown'}"


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])  # noqa: S606
    sys.exit(main())
