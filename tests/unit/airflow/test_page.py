"""The DAGs in `docs/airflow.md` parse as they are printed, and its tables are complete."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from airflow.sdk import DAG

from airflow_provider_memq.get_provider_info import get_provider_info
from airflow_provider_memq.hooks.memq import MemqHook
from airflow_provider_memq.sensors import memq as sensors
from airflow_provider_memq.triggers.watch import MemqWatchTrigger

PAGE = (Path(__file__).parents[3] / "docs" / "airflow.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_parse(example):
    """Each example is a DAG with tasks."""
    names: dict[str, object] = {"__name__": "example"}
    with DAG("sentinel", schedule=None):
        pass

    exec(compile(example, "docs/airflow.md", "exec"), names)  # noqa: S102 - our own page

    from airflow.sdk.definitions._internal.contextmanager import DagContext

    assert DagContext.get_current() is None
    assert "with DAG(" in example


def test_every_sensor_is_explained():
    """The table of sensors has each of them, with the arguments that are its own."""
    found = [
        each
        for each in vars(sensors).values()
        if inspect.isclass(each)
        and issubclass(each, sensors.MemqSensor)
        and each is not sensors.MemqSensor
    ]

    assert len(found) == 4
    for sensor in found:
        (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{sensor.__name__}`")]
        own = set(inspect.signature(sensor.__init__).parameters) - {"self", "kwargs"}
        assert {name for name in own if f"`{name}`" in row} == own


def test_every_argument_of_the_watcher_is_explained():
    """The table has each argument, and the defaults of the waits."""
    section = PAGE.split("## Watching a topic")[1].split("## Triggers")[0]
    parameters = inspect.signature(MemqWatchTrigger.__init__).parameters

    for name in set(parameters) - {"self"}:
        assert f"| `{name}` |" in section
    for name in ("linger", "max_linger"):
        assert f"| `{name}` | {parameters[name].default:g} s |" in section


def test_connection_and_configuration_are_explained():
    """Every extra field and every option of the configuration stands in a table."""
    info = get_provider_info()

    for field in info["connection-types"][0]["conn-fields"]:
        assert f"(`{field}`)" in PAGE
    for option in info["config"]["memq"]["options"]:
        assert f"`[memq] {option}`" in PAGE


def test_methods_of_the_hook_are_there():
    """What the table of the hook names is a method of it."""
    section = PAGE.split("## Hook")[1].split("## Lineage")[0]

    names = re.findall(r"`(\w+)\(", "".join(re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)))

    assert len(names) > 5
    assert [name for name in names if not hasattr(MemqHook, name)] == []
