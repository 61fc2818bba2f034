"""Settings shared by all tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

# No deadline: a busy machine is not a failing test. `--hypothesis-profile=thorough` looks longer.
settings.register_profile("default", max_examples=50, deadline=None, print_blob=True)
settings.register_profile("thorough", parent=settings.get_profile("default"), max_examples=5_000)
settings.load_profile("default")

AIRFLOW = Path(__file__).parent / "system" / "airflow"


@pytest.hookimpl(tryfirst=True)  # before xdist looks for groups
def pytest_collection_modifyitems(config, items):
    """With `-n 2`: one process for Airflow, where most of the time is waiting, from the start; and
    one for the rest, file by file.
    """
    if not hasattr(config, "workerinput"):
        return
    items.sort(key=lambda item: AIRFLOW not in item.path.parents)
    for item in items:
        group = AIRFLOW if AIRFLOW in item.path.parents else item.path
        item.add_marker(pytest.mark.xdist_group(str(group)))
