"""The wheel: what `pip install` gives, in an environment that knows nothing of the checkout."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from memq.cli.examples import FOLDERS, files_of

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 60


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, as `make dist` builds it."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Programs of a new environment with the wheel in it.

    What the wheel requires is taken from the pinned packages here, so that nothing is downloaded;
    their folder comes after the environment's own, and files with paths to a checkout do not count
    in it.
    """
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    run(
        sys.executable,
        "-m",
        "uv",
        "pip",
        "install",
        "--offline",
        "--no-deps",
        "--python",
        python,
        wheel,
    )
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "pinned.pth").write_text(sysconfig.get_path("purelib"))
    return folder / "bin"


def run(*command, **options):
    """What a program prints; it must succeed, and does not know the checkout."""
    known = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(each) for each in command],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        **{"cwd": ROOT, "env": known} | options,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_content(wheel):
    """The wheel has the packages and what is to be copied, and nothing else of the checkout."""
    names = zipfile.ZipFile(wheel).namelist()

    assert {f"memq/_examples/{name}" for name in files_of(FOLDERS)} <= set(names)
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "memq",
        "airflow_provider_memq",
        "pyspark_memq",
    }
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "memq").rglob("*.py")}
    assert {name for name in names if re.fullmatch(r"memq/(?!_examples).*\.py", name)} == sources
    assert "memq/py.typed" in names


def test_metadata(wheel):
    """The wheel asks for what pyproject.toml says, and offers its extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [each for each in archive.namelist() if each.endswith("/METADATA")]
        metadata = Parser().parsestr(archive.read(name).decode())

    assert metadata["Version"] == project["version"]
    assert metadata.get_all("Provides-Extra") == sorted(project["optional-dependencies"])
    plain = [each for each in metadata.get_all("Requires-Dist") if "extra ==" not in each]
    assert len(plain) == len(project["dependencies"])


def test_installed(installed, tmp_path):
    """The command runs from the wheel: version, a broker, records in and out, examples to copy."""
    memq = installed / "memq"
    where = run(installed / "python", "-c", "import memq; print(memq.__file__)", cwd=tmp_path)
    assert Path(where).is_relative_to(installed.parent)
    assert run(memq, "--version", cwd=tmp_path).startswith("memq ")

    with subprocess.Popen(
        [memq, "dev", "--port", "0", "--admin-port", "0", "-o", "json"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as broker:
        try:
            known = os.environ | {"MEMQ_BOOTSTRAP": json.loads(broker.stdout.readline())["address"]}
            run(memq, "produce", "hello", input="one\ntwo\n", cwd=tmp_path, env=known)
            read = run(
                memq,
                "consume",
                "hello",
                "--from-beginning",
                "--exit-at-end",
                cwd=tmp_path,
                env=known,
            )
        finally:
            broker.terminate()
    assert read == "one\ntwo\n"
    assert broker.returncode == 0

    run(memq, "examples", "copy", *FOLDERS, ".", cwd=tmp_path)
    for name in files_of(FOLDERS):
        assert (tmp_path / name).read_bytes() == (ROOT / name).read_bytes()


def test_entry_points(installed, tmp_path):
    """Airflow finds the provider, and Spark the data source, by the names that the wheel gives."""
    code = """
from importlib.metadata import distribution
(entry,) = distribution("memq").entry_points.select(group="apache_airflow_provider")
print(entry.load()()["package-name"])
from importlib.util import find_spec
print(find_spec("pyspark_memq").origin)
"""
    name, path = run(installed / "python", "-c", code, cwd=tmp_path).splitlines()

    assert name == "memq"
    assert Path(path).is_relative_to(installed.parent)
