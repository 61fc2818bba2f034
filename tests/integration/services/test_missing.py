"""What the tests do on a machine that cannot run a service."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

NOWHERE = """\
<ivysettings>
  <settings defaultResolver="nowhere"/>
  <resolvers>
    <filesystem name="nowhere"><artifact pattern="/nonexistent/[artifact].[ext]"/></filesystem>
  </resolvers>
</ivysettings>
"""
"""Ivy settings of a machine that reaches no registry."""

CONFTEST = """\
from pathlib import Path
import pytest
from tests.harness.services.jars import Jars

pytest_plugins = ["tests.harness.services.fixtures"]

@pytest.fixture(scope="session")
def service_jars():
    here = Path(__file__).parent
    return Jars(here / "services", ivy_settings=here / "nowhere.xml")
"""
TESTS = """\
def test_one(s3_server): ...
def test_two(s3_server): ...
def test_without(): ...
"""


@pytest.fixture(autouse=True)
def ivy(service_jars):
    """Ivy can run; without Java there is nothing here to try."""
    service_jars.java("Ivy")


@pytest.fixture
def project(tmp_path):
    """A folder with three tests, of which two need a service that cannot be had."""
    (tmp_path / "nowhere.xml").write_text(NOWHERE)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_project.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def run(project, required):
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-ra", "--junitxml=report.xml"],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(ROOT), "MEMQ_REQUIRE_SERVICES": required},
        capture_output=True,
        text=True,
        check=False,
    )


def test_tests_without_their_service_are_skipped_loudly(project):
    """Tests without their service are skipped, and the last line says how many and why."""
    done = run(project, "")
    assert done.returncode == 0, done.stdout
    last = done.stdout.splitlines()[-1]
    assert last == (
        "!!! TESTS WERE SKIPPED: 2 for want of s3proxy: "
        "Ivy could not fetch it: org.gaul#s3proxy;4.1.0: not found !!!"
    )
    assert "1 passed, 2 skipped" in done.stdout


def test_required_services_are_not_skipped(project):
    """Where the environment requires services, a test without its service fails."""
    done = run(project, "1")
    assert done.returncode == 1, done.stdout
    assert "1 passed, 2 errors" in done.stdout
    assert "TESTS WERE SKIPPED" not in done.stdout
