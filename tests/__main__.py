"""Run the tests: `make test`, and `python -m tests --changed` for what a change can break.

The whole suite runs in three processes (`tests.harness.scheduling`). What a new checkout lacks is
fetched while they begin (`tests.harness.prepare`).
"""

import argparse
import subprocess
import sys
from pathlib import Path

from tests.harness.changed import changed_files, tests_for

ROOT = Path(__file__).parents[1]
PROCESSES = 3  # on two cores; Airflow's tests wait most of the time


def main() -> int:
    """Run them; the exit code is that of pytest."""
    parser = argparse.ArgumentParser(prog="python -m tests", description=__doc__)
    parser.add_argument("--changed", action="store_true", help="only what changes can break")
    parser.add_argument("--since", default="HEAD", help="the commit that changes are counted from")
    parser.add_argument("-n", type=int, default=PROCESSES, help="how many processes")
    options, others = parser.parse_known_args()
    paths: list[str] = []
    if options.changed:
        changed = changed_files(options.since)
        paths = tests_for(changed)
        print(f"tests: {len(changed)} files changed; {' '.join(paths) or 'no test can tell'}")
        if not paths:
            return 0
    with subprocess.Popen([sys.executable, "-m", "tests.harness.prepare"], cwd=ROOT):
        return subprocess.call(
            [sys.executable, "-m", "pytest", "-n", str(options.n), *paths, *others], cwd=ROOT
        )


if __name__ == "__main__":
    sys.exit(main())
