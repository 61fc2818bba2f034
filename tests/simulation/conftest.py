"""Where simulated disks lie."""

import tempfile
from pathlib import Path

import pytest

from memq.broker import server
from memq.runtime import hedging
from tests.fakes.loop import open_walls
from tests.simulation.broker import LOOKS_S
from tests.simulation.world import SCRATCH


@pytest.fixture
def memory_path():
    """An empty folder in memory, where files are renamed and removed without a device to wait for.

    It is an ordinary one where the system has no such file system.
    """
    with tempfile.TemporaryDirectory(prefix="memq-disk-", dir=SCRATCH) as folder:
        yield Path(folder)


@pytest.fixture(autouse=True)
def _outside(monkeypatch):
    """A test that leaves a simulation open leaves nobody else inside of it, nor with its times."""
    for name in LOOKS_S:
        monkeypatch.setattr(server, name, getattr(server, name))
    for name in ("MIN_KNOWN", "EXTRA_SHARE"):
        monkeypatch.setattr(hedging, name, getattr(hedging, name))
    yield
    open_walls()
