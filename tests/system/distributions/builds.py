"""What `make dist` builds: both distributions, and what is in each file."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from collections import Counter
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


def names_in(path):
    """The files in a wheel, or in a source distribution below its one folder."""
    if path.suffix == ".whl":
        return zipfile.ZipFile(path).namelist()
    with tarfile.open(path) as archive:
        return [each.name.partition("/")[2] for each in archive.getmembers() if each.isfile()]


def tops_of(path):
    """How many files there are below each name at the top, the most first."""
    names = [name.partition("/") for name in names_in(path)]
    return Counter(top if slash else "files" for top, slash, _ in names)


def metadata_of(wheel) -> Message:
    """What a wheel says of itself."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode())


def in_words(path):
    """Name, size and content of a file, in a line."""
    tops = ", ".join(f"{top} {count}" for top, count in tops_of(path).most_common())
    return f"{path.name:<46} {path.stat().st_size / 1024:6.0f} KiB  {tops}"
