"""A copy of the tree, in which a bug can be planted, and the run of tests in it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PARTS = (
    "memq", "airflow_provider_memq", "pyspark_memq", "spark_apps", "dags", "tests", "docs",
    "examples", "README.md", "CONTRIBUTING.md", "pyproject.toml",
)  # fmt: skip
SERVICES = ".services"
TIMEOUT_S = 600  # a planted bug may keep a thread, and so a process, from its end
NO_TESTS = 5  # exit code of pytest


def copy_tree(copy: Path) -> None:
    """Copy what tests need of the tree."""
    for part in PARTS:
        if (ROOT / part).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.patch")
            shutil.copytree(ROOT / part, copy / part, ignore=ignored, symlinks=True)
        else:
            shutil.copy(ROOT / part, copy / part)
    (ROOT / SERVICES).mkdir(exist_ok=True)
    (copy / SERVICES).symlink_to(ROOT / SERVICES)  # nothing is fetched again


def run_python(copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a module of Python on the copy.

    Raises:
        subprocess.TimeoutExpired: it takes longer than `TIMEOUT_S`.
    """
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=copy, env=os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
        text=True, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TIMEOUT_S,
    )  # fmt: skip


def failed_test(copy: Path, tests: list[str]) -> str:
    """Run tests until one fails; return its name, or how they ended otherwise; empty if well."""
    try:
        result = run_python(copy, "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests)
    except subprocess.TimeoutExpired:
        return f"no end within {TIMEOUT_S} s"
    if result.returncode in (0, NO_TESTS):
        return ""
    for line in result.stdout.splitlines():
        if line.startswith(("FAILED ", "ERROR ")):
            return line.split()[1]
    return f"pytest ended with {result.returncode}"
