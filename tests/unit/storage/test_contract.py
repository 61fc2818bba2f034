"""The storage contract, for every implementation that needs nothing installed."""

import pytest

from memq.storage.local import LocalStorage
from memq.testing import InMemoryStorage
from tests.contracts.storage import *  # noqa: F403 - the suite is the module
from tests.fakes.faulty_storage import FaultyStorage

MAKERS = {
    "local": lambda folder: LocalStorage(folder / "objects"),
    "memory": lambda _: InMemoryStorage(),
    "faulty without faults": lambda _: FaultyStorage(InMemoryStorage(), []),
}


@pytest.fixture(params=MAKERS)
def storage(request, tmp_path):
    """An empty storage of each kind."""
    return MAKERS[request.param](tmp_path)
