"""Run the whole suite in two processes: `make test`.

Airflow waits most of the time, for schedules, looks and time-outs. So its tests, and the quick ones
after them, run beside all the others. What they print is shown at the end.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
BESIDE = ["tests/system/airflow", "tests/unit"]
PYTEST = [sys.executable, "-m", "pytest"]


def main() -> int:
    """Run both; the exit code is 0 only if both succeed."""
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(
            [*PYTEST, *BESIDE, "-p", "no:cacheprovider"],
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
        ) as beside,
    ):
        try:
            others = subprocess.call(
                [*PYTEST, *(f"--ignore={folder}" for folder in BESIDE)], cwd=ROOT
            )
            print(f"tests: waiting for {' and '.join(BESIDE)}", flush=True)
            beside.wait()
        except KeyboardInterrupt:  # both have got it as well, and clean up
            others = beside.wait()
        log.seek(0)
        print(log.read(), flush=True)
    return int(bool(others or beside.returncode))


if __name__ == "__main__":
    sys.exit(main())
