"""What Airflow is told of the provider is true."""

import pkgutil
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from airflow_provider_memq.get_provider_info import get_provider_info
from airflow_provider_memq.settings import Extra

INFO = get_provider_info()
ROOT = Path(__file__).parents[3]
HEAVY = ("pyarrow", "pyspark", "pandas", "openlineage")


def objects_in(info):
    """Modules, classes and functions that it names."""
    uris = info["asset-uris"][0]
    return [
        info["connection-types"][0]["hook-class-name"],
        *(uris[key] for key in ("handler", "factory", "to_openlineage_converter")),
        *info["queues"],
        *info["extra-links"],
        *info["notifications"],
        *(each["plugin-class"] for each in info["plugins"]),
        *(
            name
            for kind in ("hooks", "sensors", "operators", "triggers")
            for each in info[kind]
            for name in each["python-modules"]
        ),
    ]


def test_airflow_finds_it():
    """The installed entry point leads to the metadata."""
    (entry,) = [
        each for each in entry_points(group="apache_airflow_provider") if "memq" in each.value
    ]

    assert entry.load()() == INFO


def test_the_form_has_the_fields_that_a_connection_may_have():
    """Each extra field that is read has its label, and no other has one."""
    (form,) = INFO["connection-types"]

    assert form["conn-fields"].keys() == {*Extra.__struct_fields__}


@pytest.mark.parametrize("name", objects_in(INFO))
def test_what_it_names_is_there(name):
    """Each module that is named can be imported, and each class and function is there."""
    assert pkgutil.resolve_name(name)


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
