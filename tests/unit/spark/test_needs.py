"""What Spark needs of a machine, and the one line that says so where it is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from memq.core.java import check_java
from memq.errors import ConfigError

APPS = sorted((Path(__file__).parents[3] / "spark_apps").glob("*.py"))

WITHOUT_PYSPARK = """
import sys

class Without:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "py4j"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Without)
"""


def run(*arguments, **variables):
    """A program's exit code, output and errors."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def overwritten(tmp_path):
    """A folder where pyspark-client is installed, at another version than pyspark."""
    found = tmp_path / "pyspark_client-4.0.1.dist-info"
    found.mkdir()
    (found / "METADATA").write_text("Metadata-Version: 2.1\nName: pyspark-client\nVersion: 4.0.1\n")
    return tmp_path


@pytest.mark.parametrize("app", APPS, ids=lambda path: path.stem)
def test_a_program_with_a_pyspark_that_was_overwritten(app, overwritten):
    """Each program says in one line which versions there are, and what to do."""
    code, out, err = run(app, "--help", PYTHONPATH=str(overwritten))

    assert (code, out, err.count("\n")) == (1, "", 1)
    assert f"pyspark {version('pyspark')} and pyspark-client 4.0.1 are both installed" in err


def test_a_source_with_a_pyspark_that_was_overwritten(overwritten):
    """The source is refused with the same words, also when Spark looks for it by its name."""
    for line in ("from memq.spark import MemqDataSource", "import pyspark_memq"):
        code, _, err = run("-c", line, PYTHONPATH=str(overwritten))
        assert code == 1
        last = err.splitlines()[-1]
        assert "pyspark-client 4.0.1 are both installed, and one has overwritten files" in last

    found = overwritten / "pyspark_client-4.0.1.dist-info" / "METADATA"
    found.write_text(found.read_text().replace("4.0.1", version("pyspark")))
    assert run("-c", "from memq.spark import MemqDataSource", PYTHONPATH=str(overwritten))[0] == 0


def java_home(folder, version=None):
    """A folder with a Java of that version."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\nexit 7\n")
    java.chmod(0o755)
    if version is not None:
        (folder / "release").write_text(f'IMPLEMENTOR="X"\nJAVA_VERSION="{version}"\n')
    return folder


def test_pyspark_is_missing():
    """The import names what to install, in the words of an ImportError, and nothing else."""
    code, _, err = run("-c", f"{WITHOUT_PYSPARK}\nfrom memq.spark import MemqDataSource")

    assert code == 1
    assert err.count("Traceback") == 1
    last = err.splitlines()[-1]
    assert last.startswith("ImportError: memq.spark needs PySpark, which is not installed: pip ")


@pytest.mark.parametrize("app", APPS, ids=lambda path: path.stem)
def test_a_program_without_pyspark(app):
    """Each program says in one line what to install."""
    code = f"{WITHOUT_PYSPARK}\nimport runpy; runpy.run_path({str(app)!r}, run_name='__main__')"

    code, out, err = run("-c", code)

    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("error: memq.spark needs PySpark, which is not installed: pip install ")


@pytest.mark.parametrize("app", APPS, ids=lambda path: path.stem)
def test_a_file_and_its_module_are_one_program(app):
    """A program says the same whether it is started by its file or by its module."""
    by_file, by_module = run(app), run("-m", f"memq.spark.apps.{app.stem}")

    assert by_file == by_module
    assert by_file[0] == 2
    assert by_file[2].startswith(f"{app.stem}: error: Missing option")


def test_every_program_has_a_file():
    """Each program in the package has its file to submit, and each file its program."""
    programs = (Path(__file__).parents[3] / "memq" / "spark" / "apps").glob("[!_]*.py")

    assert sorted(each.name for each in programs) == [each.name for each in APPS]


def test_what_is_to_be_installed_is_what_the_package_asks_for():
    """The advice has the versions of the project's own extra."""
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    from memq.spark import NEEDS_PYSPARK

    for each in ("pyspark>=4.2", "pandas>=2.2,<3"):
        assert f'"{each}"' in text
        assert f"'{each}'" in NEEDS_PYSPARK


@pytest.mark.parametrize("version", ["11.0.2", "1.8.0_392", "16"])
def test_java_that_is_too_old(tmp_path, monkeypatch, version):
    """A Java before 17 is named with its version."""
    monkeypatch.setenv("JAVA_HOME", str(java_home(tmp_path, version)))
    major = version.removeprefix("1.").partition(".")[0]

    with pytest.raises(ConfigError, match=f"bin/java is Java {major}. Spark needs Java 17 or"):
        check_java()


@pytest.mark.parametrize("version", ["17.0.15", "21", "25-ea", None, "unheard of"])
def test_java_that_may_do(tmp_path, monkeypatch, version):
    """A later Java, and one that does not say which it is, is for Spark to judge."""
    monkeypatch.setenv("JAVA_HOME", str(java_home(tmp_path, version)))

    check_java()


def test_java_is_missing(tmp_path, monkeypatch):
    """Where JAVA_HOME leads nowhere, or PATH has no java, that is what it says."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=f"no Java: JAVA_HOME = {tmp_path} has none. Spark needs"):
        check_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"no Java: no java is on PATH\. Spark needs"):
        check_java()


def test_a_program_with_a_wrong_java(tmp_path):
    """A program ends with the one line, before Spark is started; as JSON if that is asked for."""
    (app,) = [each for each in APPS if each.stem == "audit_reconcile"]
    wrong = {"JAVA_HOME": str(java_home(tmp_path, "11.0.2"))}

    code, out, err = run(app, "--topic", "t", "--output", tmp_path / "out", **wrong)

    said = f"{tmp_path}/bin/java is Java 11. Spark needs Java 17 or later: install one, or set "
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(f"audit_reconcile: error: {said}")

    flags = ("--topic", "t", "--output", tmp_path / "out", "--log-format", "json")
    code, out, err = run(app, *flags, **wrong)

    assert (code, out, err.count("\n")) == (1, "", 1)
    assert f'"message": "audit_reconcile: {said}' in err
