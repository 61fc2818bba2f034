"""What Airflow is told of the provider is true."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

import airflow
import jsonschema
import pytest

from airflow_provider_memq import get_provider_info as module
from airflow_provider_memq.get_provider_info import EXTRAS, get_provider_info
from memq.core.defaults import DEFAULT_ADMIN_PORT, DEFAULT_PORT

INFO = get_provider_info()
ROOT = Path(__file__).parents[3]
HEAVY = ("pyarrow", "pyspark", "pandas", "openlineage")


def modules_in(info):
    """The modules that it names."""
    return [
        name
        for kind in ("hooks", "sensors", "operators", "triggers")
        for each in info[kind]
        for name in each["python-modules"]
    ]


def objects_in(info):
    """The classes and functions that it names."""
    uris = info["asset-uris"][0]
    return [
        info["connection-types"][0]["hook-class-name"],
        *(uris[key] for key in ("handler", "factory", "to_openlineage_converter")),
        *info["queues"],
        *info["extra-links"],
        *info["notifications"],
        *(each["plugin-class"] for each in info["plugins"]),
    ]


def test_it_follows_the_schema():
    """Airflow's own schema accepts the metadata."""
    schema = Path(airflow.__file__).parent / "provider_info.schema.json"

    jsonschema.validate(INFO, json.loads(schema.read_text()))


def test_its_module_imports_nothing():
    """A broken import there would break `import airflow` for everybody."""
    tree = ast.parse(Path(module.__file__).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]

    assert [node.module for node in imports] == ["__future__"]


def test_airflow_finds_it():
    """The installed entry point leads to the metadata."""
    (entry,) = [
        each for each in entry_points(group="apache_airflow_provider") if "memq" in each.value
    ]

    assert entry.load()() == INFO


@pytest.mark.parametrize("name", modules_in(INFO))
def test_modules_are_there(name):
    """Each module that is named can be imported."""
    assert import_module(name)


@pytest.mark.parametrize("name", objects_in(INFO))
def test_classes_are_there(name):
    """Each class and function that is named is there."""
    path, _, attribute = name.rpartition(".")

    assert callable(getattr(import_module(path), attribute))


def test_the_form_names_the_ports_of_brokers():
    """The module imports nothing, so it cannot take the ports from where they are defined."""
    (connection,) = INFO["connection-types"]
    hints = connection["ui-field-behaviour"]["placeholders"]

    assert hints["port"] == str(DEFAULT_PORT)
    assert hints["bootstrap"].count(f":{DEFAULT_PORT}") == 2
    assert hints["admin_url"].endswith(f":{DEFAULT_ADMIN_PORT}")
    assert f":{DEFAULT_ADMIN_PORT} " in EXTRAS["admin_url"]["description"]


def test_what_a_dag_imports_is_light():
    """Beyond Airflow's own start, nothing heavy is loaded to parse a DAG, and no client."""
    code = (
        "import airflow.sdk.bases.sensor, airflow.triggers.base, sys, time; "
        "before = set(sys.modules); start = time.process_time(); "
        "import airflow_provider_memq.sensors.memq, airflow_provider_memq.triggers.watch; "
        "import airflow_provider_memq.assets, airflow_provider_memq.links; "
        "from airflow_provider_memq.operators.memq import MemqPlanRangesOperator; "
        "from airflow_provider_memq.operators.memq import MemqCommitOperator; "
        "from airflow_provider_memq.operators.memq import MemqWindowRangesOperator; "
        "print(time.process_time() - start, *set(sys.modules) - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    seconds, *loaded = done.stdout.splitlines()[-1].split()

    assert {name.partition(".")[0] for name in loaded}.isdisjoint(HEAVY)
    assert not any(name.startswith("memq.client.") for name in loaded)
    assert float(seconds) < 1.0


def test_the_harness_is_not_shipped():
    """What is shipped has nothing of the tests, and no need of them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    shipped = [
        *project["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"],
        "airflow_provider_memq",
        "dags",
    ]
    files = [path for folder in shipped for path in (ROOT / folder).rglob("*.py")]

    assert (ROOT / "tests" / "harness" / "airflow" / "standalone.py").exists()
    assert [
        path
        for path in files
        if re.search(r"^\s*(from|import) tests\b", path.read_text(), re.MULTILINE)
    ] == []
    assert not any(path.name in ("standalone.py", "rest.py") for path in files)
