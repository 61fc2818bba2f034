"""Both distributions: how they are built, what is in them, and how their programs are run."""

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from contextlib import contextmanager
from email.message import Message
from email.parser import Parser
from pathlib import Path

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


def run(*command, ends=0, env=None, timeout=TIMEOUT_S, cwd=ROOT, **options):
    """What a program prints, as it should end; it does not know the checkout."""
    known = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(each) for each in command],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        cwd=cwd,
        env=known | (env or {}),
        **options,
    )
    assert done.returncode == ends, f"{command}: {done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout if ends == 0 else done.stderr


@contextmanager
def broker(programs, folder):
    """Address of a `memq dev` that keeps its data in a folder."""
    with subprocess.Popen(
        [programs / "memq", "dev", "--port", "0", "--admin-port", "0", "-o", "json"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            yield json.loads(process.stdout.readline())["address"]
        finally:
            process.terminate()
    assert process.returncode == 0
