"""Does the net catch bugs? Each small bug of this folder is planted alone, and must be caught.

A mutant is a patch of the product, `NAME.patch` beside this file. Its first lines say, after
`# Breaks:`, what it breaks, and after `# Caught by:` which tests are nearest to it. It is applied
to a copy of the tree. There the simulation runs first, seed after seed, and then, where it found
nothing, these tests. A mutant that neither of them notices has survived: the tests have a hole.

Without any mutant the same seeds must pass, or else nothing would follow from one that fails. What
the simulation does not run (`UNSIMULATED`) goes to the tests at once.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tabulate import tabulate

PATCHES = Path(__file__).parent
ROOT = PATCHES.parents[2]
PARTS = (
    "memq", "airflow_provider_memq", "pyspark_memq", "spark_apps", "dags", "tests", "pyproject.toml"
)  # fmt: skip
SERVICES = ROOT / ".services"
AT_ONCE = 2  # as many as there are cores; more only make every wait too short
UNSIMULATED = (
    "airflow_provider_memq/",
    "dags/",
    "pyspark_memq/",
    "spark_apps/",
    "memq/cli/",
    "memq/core/governor/assign",
    "memq/core/governor/election.py",
    "memq/core/governor/governor.py",
    "memq/core/governor/mirror.py",
    "memq/core/governor/nodes.py",
    "memq/core/governor/runner.py",
    "memq/core/governor/shared_catalog.py",
    "memq/core/storage/object_store",
    "memq/spark/",
)
SEEDS = 30  # of the simulation, for each mutant
TIMEOUT_S = 1_200


class Mutant(NamedTuple):
    """A bug that is planted.

    Attributes:
        name: of its patch.
        breaks: what it breaks, in a few words.
        tests: what of pytest's names is nearest to it.
        simulated: whether the simulation runs what it changes.
    """

    name: str
    breaks: str
    tests: list[str]
    simulated: bool


class Verdict(NamedTuple):
    """What became of a mutant.

    Attributes:
        caught_by: what noticed it; empty when nothing did.
        seeds: how many seeds of the simulation ran; the last of them noticed it, if it was that.
        seconds: how long it took.
        output: of what ran last.
    """

    caught_by: str
    seeds: int
    seconds: float
    output: str


def read_mutant(path: Path) -> Mutant:
    """A mutant from its patch."""
    text = path.read_text()
    breaks = re.search(r"^# Breaks: (.+)$", text, re.MULTILINE)
    tests = re.findall(r"^# Caught by: (.+)$", text, re.MULTILINE)
    if breaks is None or not tests:
        raise SystemExit(f"{path.name} does not begin with '# Breaks:' and '# Caught by:' lines")
    changed = re.findall(r"^\+\+\+ b/(\S+)", text, re.MULTILINE)
    return Mutant(
        path.stem,
        breaks[1],
        [name for line in tests for name in line.split()],
        not all(each.startswith(UNSIMULATED) for each in changed),
    )


def try_mutant(mutant: Mutant, seeds: int) -> Verdict:
    """Plant it in a copy of the tree, and see what notices it."""
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="memq-mutant-") as folder:
        copy = Path(folder)
        for part in PARTS:
            source = ROOT / part
            if source.is_dir():
                shutil.copytree(
                    source, copy / part, ignore=shutil.ignore_patterns("__pycache__", "*.patch")
                )
            else:
                shutil.copy(source, copy / part)
        SERVICES.mkdir(exist_ok=True)
        (copy / SERVICES.name).symlink_to(SERVICES)  # no mutant fetches their jars anew
        plant(mutant, copy)
        caught, ran, output = False, 0, ""
        if seeds and mutant.simulated:
            caught, ran, output = simulate(copy, seeds)
        by = "simulation" if caught else ""
        if not caught:
            result = run(copy, ["pytest", "-x", "-q", "-p", "no:cacheprovider", *mutant.tests])
            output = result.stdout
            if result.returncode == 1:
                failed = re.search(r"^FAILED (\S+)", output, re.MULTILINE)
                by = failed[1].rpartition("/")[2] if failed else "tests"
            elif result.returncode != 0:
                raise SystemExit(f"pytest ended with {result.returncode}:\n{output[-3000:]}")
    return Verdict(by, ran, time.monotonic() - started_s, output)


def plant(mutant: Mutant, copy: Path) -> None:
    """Apply the patch; it must fit."""
    patch = PATCHES / f"{mutant.name}.patch"
    applied = subprocess.run(
        ["git", "apply", "--whitespace=nowarn", str(patch)],
        cwd=copy, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if applied.returncode:
        raise SystemExit(f"{patch.name} does not fit the code any more: {applied.stderr}")


def simulate(copy: Path, seeds: int) -> tuple[bool, int, str]:
    """Run so many seeds of the simulation: whether one failed, how many ran, and the output."""
    result = run(copy, ["tests.simulation", f"--seeds={seeds}", "--jobs=1", "--stop"])
    stopped = re.search(r"stopped at seed (\d+)", result.stdout)
    if stopped is not None:
        return True, int(stopped[1]) + 1, result.stdout
    # Seeds that all pass, but without some kind of fault, are not the mutant's doing; a run that
    # ends otherwise is.
    return "Traceback" in result.stdout, seeds, result.stdout


def run(copy: Path, command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a module of Python on the copy."""
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=copy, env=os.environ | {"PYTHONPATH": str(copy)}, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TIMEOUT_S,
    )  # fmt: skip


def main() -> int:
    """Try every mutant, print the table; the exit code is 0 when all were caught."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="of mutants; all of them when none is given")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="of the simulation for each")
    parser.add_argument("--list", action="store_true", help="only show what there is")
    options = parser.parse_args()
    mutants = [read_mutant(path) for path in sorted(PATCHES.glob("*.patch"))]
    mutants = [each for each in mutants if not options.names or each.name in options.names]
    if options.list:
        print(tabulate([(each.name, each.breaks) for each in mutants], ["mutant", "breaks"]))
        return 0
    if options.seeds:
        failed, ran, output = simulate(ROOT, options.seeds)
        if failed:
            raise SystemExit(f"without a mutant, seed {ran - 1} fails:\n{output[-3000:]}")
    rows, survivors = [], []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        verdicts = [(each, pool.submit(try_mutant, each, options.seeds)) for each in mutants]
        for number, (mutant, future) in enumerate(verdicts, 1):
            verdict = future.result()
            by = verdict.caught_by or "NOTHING"
            print(
                f"{number}/{len(mutants)} {mutant.name}: {by}, {verdict.seconds:.0f} s", flush=True
            )
            rows.append((mutant.name, mutant.breaks, by, verdict.seeds))
            if not verdict.caught_by:
                survivors.append(mutant.name)
    print(tabulate(rows, ["mutant", "breaks", "caught by", "seeds"], maxcolwidths=[None, 60]))
    print(f"{len(mutants) - len(survivors)} of {len(mutants)} caught", end="")
    print(f"; survived: {', '.join(survivors)}" if survivors else "")
    return int(bool(survivors))


if __name__ == "__main__":
    sys.exit(main())
