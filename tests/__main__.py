"""Run the whole suite in two processes: `make test`.

Airflow waits most of the time, for schedules, looks and time-outs. So its tests run beside all the
others, and after them as many as make both processes end at about the same time. What they print is
shown at the end; the last lines name each test that failed in either process, and the services for
want of which tests were skipped, for a reader who sees the end of a log only. In a new checkout a
third process makes the archive with which Spark starts sooner, while they begin.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree as ET

from tests.harness.services.missing import PROPERTY, Missing

ROOT = Path(__file__).parents[1]
BESIDE = [
    "tests/system/airflow",
    "tests/integration/cli",
    "tests/integration/notification",
    "tests/unit",
]
PYTEST = [sys.executable, "-m", "pytest", "-o", "junit_family=xunit1"]  # xunit1 names the file
MESSAGE_CHARACTERS = 300


def main() -> int:
    """Run both; the exit code is 0 only if both succeed."""
    with tempfile.TemporaryDirectory(prefix="memq-tests-") as folder:
        reports = [Path(folder) / "beside.xml", Path(folder) / "others.xml"]
        codes = _run(*reports)
        for code, report in zip(codes, reports, strict=True):
            if code:
                print("\n".join(_failures(code, report)), flush=True)
        missing = _missing(*reports)
        if missing:
            print(missing.line(), flush=True)
    return int(any(codes))


def _run(beside_report: Path, others_report: Path) -> tuple[int, int]:
    """Run both processes, each with its report; return their exit codes."""
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(
            [*PYTEST, *BESIDE, f"--junitxml={beside_report}", "-p", "no:cacheprovider"],
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
        ) as beside,
        subprocess.Popen([sys.executable, "-m", "tests.harness.spark_classes"], cwd=ROOT),
    ):
        ignored = [f"--ignore={folder}" for folder in BESIDE]
        try:
            others = subprocess.call([*PYTEST, *ignored, f"--junitxml={others_report}"], cwd=ROOT)
            print(f"tests: waiting for {' and '.join(BESIDE)}", flush=True)
            beside.wait()
        except KeyboardInterrupt:  # both have got it as well, and clean up
            others = beside.wait()
        log.seek(0)
        print(log.read(), flush=True)
    return beside.returncode, others


def _failures(code: int, report: Path) -> list[str]:
    """Return one line for each test that a pytest of exit code `code` reports as failed."""
    if not report.exists():
        return [f"FAILED: pytest ended with {code} before it wrote its report"]
    return [
        f"FAILED {case.get('file')}::{case.get('name')}: "
        + " ".join(problem.get("message", "").split())[:MESSAGE_CHARACTERS]
        for case in ET.parse(report).iter("testcase")  # noqa: S314 - pytest wrote it
        for problem in case
        if problem.tag in ("failure", "error")
    ] or [f"FAILED: pytest ended with {code}, and no test failed"]


def _missing(*reports: Path) -> Missing:
    """Count the tests that both processes have skipped for want of a service."""
    missing = Missing()
    for report in reports:
        if report.exists():
            for each in ET.parse(report).iter("property"):  # noqa: S314 - pytest wrote it
                if each.get("name") == PROPERTY:
                    missing.add(each.get("value", ""))
    return missing


if __name__ == "__main__":
    sys.exit(main())
