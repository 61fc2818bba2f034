"""The DAG files of `dags/`, as they are."""

import shutil
from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import DagBag

from airflow_provider_memq.notifications.memq import MemqNotifier
from airflow_provider_memq.pipeline import MemqPipeline
from airflow_provider_memq.pipeline.settings import KINDS, OPTIONS
from tests.unit.airflow.test_pipeline import tasks_of

DAGS = Path(__file__).parents[3] / "dags"


def found_in(folder):
    """What Airflow finds in a folder of DAG files: DAGs by id, and errors by file."""
    bag = DagBag(str(folder), bundle_name="memq", bundle_path=folder)
    return bag.dags, {Path(path).name: text for path, text in bag.import_errors.items()}


@pytest.fixture
def copied(tmp_path):
    """The files where a user copied them."""
    return Path(shutil.copytree(DAGS, tmp_path / "dags"))


def test_airflow_finds_the_dags(copied):
    """Each DAG is there, with the text of its file, and Spark programs beside the folder."""
    dags, errors = found_in(copied)

    assert errors == {}
    assert dags.keys() == {
        dag.dag_id for dag in MemqPipeline("t", spark_apps="/", dags=KINDS).dags()
    }
    assert all(dag.doc_md for dag in dags.values())
    process = dags["memq_process_ranges"].get_task("process")
    assert process.application == str(copied.parent / "spark_apps" / "range_to_parquet.py")


def test_whatever_fails_tells_somebody(copied):
    """Each task does by itself: those after one that failed do not run, and can tell nobody."""
    dags, _ = found_in(copied)

    for task in tasks_of(dags.values()):
        (told,) = task.on_failure_callback
        assert isinstance(told, MemqNotifier), task


def test_without_settings_they_say_how_to_get_them(copied):
    """A file that was copied alone names what is missing; with it, it is whole."""
    (copied / "memq.yaml").unlink()
    _, errors = found_in(copied)
    assert "memq.yaml: No such file" in errors["memq_hourly.py"]

    shutil.copy(DAGS / "memq.yaml", copied)
    assert found_in(copied)[1] == {}


def test_the_settings_that_are_shown_are_those_that_there_are():
    """The file shows each setting once, with its default."""
    lines = (DAGS / "memq.yaml").read_text().splitlines()
    shown = {
        name: value.partition("  #")[0].strip().strip('"').removeprefix("[]")
        for name, _, value in (line.removeprefix("# ").partition(": ") for line in lines)
        if name in OPTIONS
    }

    assert shown.keys() == OPTIONS.keys() - {"dags"}
    for name, option in OPTIONS.items():
        if option.default_text and name != "dags":
            assert shown[name] == option.default_text
