"""Helm, to lint and render a chart in a process of its own.

It is a Go library, which takes signals and starts threads as it likes: nothing that the tests of a
broker should have in their process.
"""

import json
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.harness.services.errors import ServiceUnavailableError

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 60.0  # takes 0.3 s
MACHINE = "x86_64"  # the one for which helm-python-sdk has wheels for Linux


class HelmError(Exception):
    """Helm refuses a chart, or its values; the text is what it says."""


def lint(chart: Path, values: Mapping[str, Any]) -> list[str]:
    """What `helm lint` has against a chart with these values; its mere hints are left out.

    Raises:
        ServiceUnavailableError: there is no Helm for this machine.
    """
    report = _run("lint", chart, values)
    hint = 1
    found = [each["error"] for each in report["messages"] if each["severity"] != hint]
    return [*found, *report["errors"]]


def render(chart: Path, values: Mapping[str, Any]) -> dict[str, str]:
    """The manifests of release `cl` in namespace `data`, by the path of their template.

    Raises:
        HelmError: the values do not fit, or a template fails.
        ServiceUnavailableError: there is no Helm for this machine.
    """
    manifests: dict[str, str] = _run("render", chart, values)
    return manifests


def _run(what: str, chart: Path, values: Mapping[str, Any]) -> Any:
    if platform.machine() != MACHINE:
        raise ServiceUnavailableError("helm", f"there is none for {platform.machine()}")
    done = subprocess.run(
        [sys.executable, "-m", "tests.harness.helm", what, str(chart.absolute())],
        cwd=ROOT,
        input=json.dumps(values),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise HelmError(done.stderr.strip())
    return json.loads(done.stdout)


def main(what: str, chart: str) -> None:
    """Take values on stdin, as JSON, and give what Helm says on stdout."""
    import helm_python  # 85 MB, for this process alone

    values = json.load(sys.stdin)
    try:
        if what == "lint":
            answer = helm_python.lint(chart, values, strict=True, namespace="data")
        else:
            with helm_python.Chart.load(chart) as loaded:
                loaded.validate_schema(values)
                answer = loaded.render(values, name="cl", namespace="data")
    except helm_python.HelmError as exc:
        sys.exit(str(exc))
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
