"""Do simulation and tests catch bugs at the promises? Each is planted alone, and must be caught.

A mutant is a patch of the product, `planted/NAME.patch`. Its first line says, after `# Breaks:`,
what it breaks. It is applied to a copy of the tree. There the simulation runs first, seed after
seed; where it found nothing, the tests of the rooms that the patch changes, and files of tests that
a line `# Caught by:` names. A mutant that none of them notices has survived: the tests have a hole.

Without any mutant the same seeds must pass, or else nothing would follow from one that fails. What
the simulation does not run (`UNSIMULATED`) goes to the tests at once.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tabulate import tabulate

from tests.mutants.copies import ROOT, copy_tree, failed_test, run_python
from tests.mutants.generated import tests_of

PATCHES = Path(__file__).parent / "planted"
AT_ONCE = 2  # as many as there are cores; more only make every wait too short
UNSIMULATED = (
    "airflow_provider_memq/",
    "dags/",
    "pyspark_memq/",
    "spark_apps/",
    "memq/cli/",
    "memq/core/governor/assign",
    "memq/zookeeper/election.py",
    "memq/core/governor/governor.py",
    "memq/zookeeper/folders.py",
    "memq/core/governor/nodes.py",
    "memq/zookeeper/governor_runner.py",
    "memq/zookeeper/shared_catalog.py",
    "memq/storage/object_store",
    "memq/spark/",
)
SEEDS = 30  # of the simulation, for each mutant


class Mutant(NamedTuple):
    """A bug that is planted.

    Attributes:
        name: of its patch.
        breaks: what it breaks, in a few words.
        tests: files and folders of tests, the nearest first.
        simulated: whether the simulation runs what it changes.
    """

    name: str
    breaks: str
    tests: list[list[str]]
    simulated: bool


class Verdict(NamedTuple):
    """What became of a mutant.

    Attributes:
        caught_by: what noticed it; empty when nothing did.
        seeds: how many seeds of the simulation ran; the last of them noticed it, if it was that.
        seconds: how long it took.
    """

    caught_by: str
    seeds: int
    seconds: float


def read_mutant(path: Path) -> Mutant:
    """A mutant from its patch."""
    text = path.read_text()
    breaks = re.search(r"^# Breaks: (.+)$", text, re.MULTILINE)
    named = re.findall(r"^# Caught by: (.+)$", text, re.MULTILINE)
    if breaks is None:
        raise SystemExit(f"{path.name} does not begin with a line '# Breaks:'")
    changed = re.findall(r"^\+\+\+ b/(\S+)", text, re.MULTILINE)
    return Mutant(
        path.stem,
        breaks[1],
        [
            [name for line in named for name in line.split()],
            *(tests for name in changed for tests in tests_of(Path(name))),
        ],
        not all(each.startswith(UNSIMULATED) for each in changed),
    )


def try_mutant(mutant: Mutant, seeds: int) -> Verdict:
    """Plant it in a copy of the tree, and see what notices it."""
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="memq-mutant-") as folder:
        copy = Path(folder)
        copy_tree(copy)
        plant(mutant, copy)
        caught, ran = False, 0
        if seeds and mutant.simulated:
            caught, ran, _ = simulate(copy, seeds)
        by = "simulation" if caught else ""
        for tests in mutant.tests:
            by = by or (failed_test(copy, tests) if tests else "")
    return Verdict(by, ran, time.monotonic() - started_s)


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
    result = run_python(copy, "tests.simulation", f"--seeds={seeds}", "--jobs=1", "--stop")
    stopped = re.search(r"stopped at seed (\d+)", result.stdout)
    if stopped is not None:
        return True, int(stopped[1]) + 1, result.stdout
    # Seeds that all pass, but without some kind of fault, are not the mutant's doing; a run that
    # ends otherwise is.
    return "Traceback" in result.stdout, seeds, result.stdout


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
