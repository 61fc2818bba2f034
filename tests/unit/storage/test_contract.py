"""The storage contract, for every implementation that needs nothing installed."""

from __future__ import annotations

import pytest

from memq.core.storage.local import LocalStorage
from memq.testing import InMemoryStorage
from tests.contracts.storage import *  # noqa: F403 - the suite is the module


@pytest.fixture(params=["local", "memory"])
def storage(request, tmp_path):
    """An empty storage of each kind."""
    return LocalStorage(tmp_path / "objects") if request.param == "local" else InMemoryStorage()
