"""Run the whole suite in three processes: `make test`.

Airflow waits most of the time, for schedules, looks and time-outs. So its tests run beside all the
others, and after them as many as make both processes end at about the same time. The tests that
need no service and look at no clock take what time of the processor these two leave. What the
processes beside print is shown at the end; the last lines name each test that failed in any of
them, and the services for want of which tests were skipped, for a reader who sees the end of a log
only. What a new checkout lacks is prepared while they begin (`tests.harness.prepare`).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.harness.services.missing import PROPERTY, Missing

ROOT = Path(__file__).parents[1]
PYTEST = [sys.executable, "-m", "pytest", "-o", "junit_family=xunit1"]  # xunit1 names the file
BESIDE = {
    (*PYTEST, "-p", "no:cacheprovider"): (
        "tests/system/airflow",
        "tests/integration/broker",
        "tests/integration/cli",
        "tests/integration/notification",
        "tests/integration/services",
        "tests/integration/storage",
    ),
    ("nice", *PYTEST, "-p", "no:cacheprovider"): ("tests/unit", "tests/simulation"),
}
"""Commands that run beside that for all the other tests, and the folders of each."""

MESSAGE_CHARACTERS = 300
INTERRUPTED = int(pytest.ExitCode.INTERRUPTED)


def main() -> int:
    """Run all; the exit code is 0 only if all succeed."""
    with tempfile.TemporaryDirectory(prefix="memq-tests-") as folder:
        reports = [Path(folder) / f"{number}.xml" for number in range(len(BESIDE) + 1)]
        codes = _run(reports)
        for code, report in zip(codes, reports, strict=True):
            if code:
                print("\n".join(_failures(code, report)), flush=True)
        missing = _missing(*reports)
        if missing:
            print(missing.line(), flush=True)
    return int(any(codes))


def _run(reports: list[Path]) -> list[int]:
    """Run all processes, each with its report; return their exit codes."""
    others_report, *beside_reports = reports
    ignored = [f"--ignore={folder}" for folders in BESIDE.values() for folder in folders]
    with ExitStack() as stack:
        stack.enter_context(
            subprocess.Popen([sys.executable, "-m", "tests.harness.prepare"], cwd=ROOT)
        )
        beside = []
        for (command, folders), report in zip(BESIDE.items(), beside_reports, strict=True):
            log = stack.enter_context(tempfile.TemporaryFile("w+"))
            process = subprocess.Popen(
                [*command, *folders, f"--junitxml={report}"],
                cwd=ROOT,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            beside.append((stack.enter_context(process), folders, log))
        codes = []
        try:
            codes.append(
                subprocess.call([*PYTEST, *ignored, f"--junitxml={others_report}"], cwd=ROOT)
            )
        except KeyboardInterrupt:  # all have got it as well, and clean up
            codes.append(INTERRUPTED)
        for process, folders, log in beside:
            if process.poll() is None:
                print(f"tests: waiting for {' and '.join(folders)}", flush=True)
            codes.append(process.wait())
            log.seek(0)
            print(log.read(), flush=True)
    return codes


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
    """Count the tests that the processes have skipped for want of a service."""
    missing = Missing()
    for report in reports:
        if report.exists():
            for each in ET.parse(report).iter("property"):  # noqa: S314 - pytest wrote it
                if each.get("name") == PROPERTY:
                    missing.add(each.get("value", ""))
    return missing


if __name__ == "__main__":
    sys.exit(main())
