"""What `make dist` builds: both distributions, and what is in each file."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from email.message import Message

ROOT = Path(__file__).parents[3]
PROJECTS = {"memq": ROOT, "airflow-provider-memq": ROOT / "airflow_provider_memq"}
"""Folders with a pyproject.toml, by the name of the distribution."""
TIMEOUT_S = 60


def build(project, folder, target):
    """Build a wheel or a source distribution of a project; gives its path."""
    # Not `-m`: that would put the project, whose modules have names such as `files`, in the way.
    program = Path(sys.executable).parent / "hatchling"
    command = [program, "build", "--target", target, "--directory", folder]
    done = subprocess.run(
        command, cwd=project, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    last = (done.stdout + done.stderr).split()[-1]
    return (project / last).resolve()


def rebuilt(sdist, folder):
    """The wheel that a source distribution makes by itself, far from a checkout."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (project,) = [each for each in Path(folder).iterdir() if each.is_dir()]
    return build(project, folder, "wheel")


def names_in(wheel):
    """The files in a wheel."""
    return zipfile.ZipFile(wheel).namelist()


def metadata_of(wheel) -> Message:
    """What a wheel says of itself."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode())
