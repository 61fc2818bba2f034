"""A pytest plugin: which tests stay in one process, and in which order they begin.

A file of tests stays in one process, for it may share a broker; so do the folders of `FIRST`, whose
tests share what takes long to start. These begin first, as they take longest; the others follow,
large files first.
"""

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

FIRST = (
    "tests/system/airflow",  # waits most of the time
    "tests/system/spark",
    "tests/system/test_chaos.py",
    "tests/system/test_outages.py",
    "tests/integration/project",
    "tests/integration/airflow",
    "tests/integration/broker/cluster",
    "tests/integration/queue",
)


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Hands out files and folders as units."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


def unit_of(nodeid: str) -> str:
    """Return what a test is handed out with: a folder, or its file."""
    path = nodeid.partition("::")[0]
    return next(
        (folder for folder in FIRST if path == folder or path.startswith(f"{folder}/")), path
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    """Hand out units in their order here, and not by how many tests they have."""
    config.option.loadscopereorder = False
    return Scheduling(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the units, and keep the order of tests in each."""
    sizes: dict[str, int] = {}
    for item in items:
        unit = unit_of(item.nodeid)
        sizes[unit] = sizes.get(unit, 0) + 1

    def place(item: pytest.Item) -> tuple[int, int, str]:
        unit = unit_of(item.nodeid)
        first = FIRST.index(unit) if unit in FIRST else len(FIRST)
        return first, -sizes[unit] if first == len(FIRST) else 0, unit

    items.sort(key=place)
