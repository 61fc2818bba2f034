"""The programs for Spark: what they need of a machine, how they are started, and how they end."""

import os
import runpy
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

import memq.spark
from memq.errors import ConfigError
from memq.spark import NEEDS_PYSPARK, app
from memq.spark.app import own_arguments, run
from memq.spark.apps import audit_reconcile, compact, range_to_parquet

ROOT = Path(__file__).parents[3]
APPS = sorted((ROOT / "spark_apps").glob("*.py"))
FOR_ALL = pytest.mark.parametrize("path", APPS, ids=lambda path: path.stem)

WITHOUT_PYSPARK = """
import sys

class Without:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "py4j"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Without)
"""


def last_words(*arguments, **variables):
    """The last line of what a program that fails says, and how many lines there are."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr.splitlines()[-1], done.stderr.count("\n")


@pytest.fixture
def overwritten(tmp_path):
    """A folder where pyspark-client is installed, at another version than pyspark."""
    found = tmp_path / "pyspark_client-4.0.1.dist-info"
    found.mkdir()
    (found / "METADATA").write_text("Metadata-Version: 2.1\nName: pyspark-client\nVersion: 4.0.1\n")
    return tmp_path


@pytest.fixture(autouse=True)
def _log_as_it_is(monkeypatch):
    """The programs run in this process, whose log is pytest's."""
    monkeypatch.setattr(app, "configure", lambda *_: None)


@FOR_ALL
def test_a_program_without_a_sound_pyspark_says_so_in_one_line(path, overwritten):
    """What is to be installed, or which versions there are of what was overwritten."""
    code = f"{WITHOUT_PYSPARK}\nimport runpy; runpy.run_path({str(path)!r}, run_name='__main__')"
    line, count = last_words("-c", code)
    assert (line, count) == (f"error: {NEEDS_PYSPARK}", 1)

    line, count = last_words(path, "--help", PYTHONPATH=str(overwritten))
    assert count == 1
    assert f"pyspark {version('pyspark')} and pyspark-client 4.0.1 are both installed" in line


def test_a_source_without_a_sound_pyspark_says_so(overwritten, monkeypatch):
    """In the words of an ImportError; and what was overwritten also when Spark looks for it."""
    line, _ = last_words("-c", f"{WITHOUT_PYSPARK}\nfrom memq.spark import MemqDataSource")
    assert line == f"ImportError: {NEEDS_PYSPARK}"

    monkeypatch.syspath_prepend(str(overwritten))
    for name in ("MemqDataSource", "scan"):
        with pytest.raises(
            ConfigError, match=r"4\.0\.1 are both installed, and one has overwritten"
        ):
            getattr(memq.spark, name)
    found = overwritten / "pyspark_client-4.0.1.dist-info" / "METADATA"
    found.write_text(found.read_text().replace("4.0.1", version("pyspark")))
    assert memq.spark.MemqDataSource.name() == "memq"


@FOR_ALL
def test_a_file_is_a_program(path, monkeypatch, capsys):
    """Each file of `spark_apps/` is the module of its name, and runs by itself."""
    monkeypatch.setattr(sys, "argv", [str(path)])
    assert path.resolve() == Path(import_module(f"memq.spark.apps.{path.stem}").__file__)

    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(f"{path.stem}: error: Missing option")


@pytest.mark.parametrize(
    ("program", "arguments", "code", "message"),
    [
        (compact, ["--topic", "t", "--output", "x", "--range-bytes", "much"], 2, "much"),
        (audit_reconcile, ["--from", "soon"], 2, "'soon' is not a time"),
        (compact, ["--memq_arguments", "[1]"], 2, "--memq_arguments: must be a JSON"),
        (compact, ["--topic", "t", "--output", "x", "--token-env", "NONE"], 1, "--token-env NONE:"),
        (compact, ["--topic", "a b", "--output", "x"], 1, "a b"),
        (
            range_to_parquet,
            ["--topic=t", "--partition=0", "--start=5", "--end=4", "--output=x", "--manifest=y"],
            1,
            "--end 4 is before --start 5",
        ),
    ],
)
def test_what_is_wrong_is_one_line_before_spark_starts(capsys, program, arguments, code, message):
    """Wrong usage ends with 2, what is not there with 1."""
    assert run(program.main, arguments) == code

    err = capsys.readouterr().err
    assert err.startswith(f"{program.main.name}: error: ")
    assert message in err
    assert err.count("\n") == 1


def test_on_glue_arguments_are_one_among_others():
    """What Glue adds, before and after, is not the program's; its own arrive byte by byte."""
    own = '["--mode", "failfast", "a \\"b\\" c", ""]'
    given = ["--JOB_ID", "j", "true", "--memq_arguments", own, "--JOB_NAME", "n"]

    assert own_arguments(given) == ["--mode", "failfast", 'a "b" c', ""]
    assert own_arguments(["--mode", "failfast"]) == ["--mode", "failfast"]
