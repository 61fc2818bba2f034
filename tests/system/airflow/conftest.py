"""Settings of the tests with a whole Airflow."""

from pathlib import Path

import pytest

import tests.unit.airflow.conftest  # noqa: F401 - keeps Airflow out of the user's own folder
from tests.harness.airflow.rest import BACKSTOP_S


def pytest_collection_modifyitems(items):
    """No test here is given up before its waits are, which end by what happens."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(2 * BACKSTOP_S))
