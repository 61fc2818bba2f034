"""Run the whole suite in two processes: `make test`.

Airflow waits most of the time, for schedules, looks and time-outs. So its tests run beside all the
others, and what they print is shown at the end.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
AIRFLOW = "tests/system/airflow"
PYTEST = [sys.executable, "-m", "pytest"]


def main() -> int:
    """Run both; the exit code is 0 only if both succeed."""
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(
            [*PYTEST, AIRFLOW, "-p", "no:cacheprovider"],
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
        ) as airflow,
    ):
        try:
            others = subprocess.call([*PYTEST, f"--ignore={AIRFLOW}"], cwd=ROOT)
            print("tests: waiting for those of Airflow", flush=True)
            airflow.wait()
        except KeyboardInterrupt:  # both have got it as well, and clean up
            others = airflow.wait()
        log.seek(0)
        print(log.read(), flush=True)
    return int(bool(others or airflow.returncode))


if __name__ == "__main__":
    sys.exit(main())
