"""Where simulated disks lie."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from memq.broker import server
from memq.runtime import hedging
from tests.fakes.loop import open_walls
from tests.simulation.broker import LOOKS_S

_MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of our own is made in it


@pytest.fixture
def memory_path(tmp_path):
    """An empty folder in memory, where files are renamed and removed without a device to wait for.

    It is an ordinary one where the system has no such file system.
    """
    if not os.access(_MEMORY, os.W_OK):
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(prefix="memq-disk-", dir=_MEMORY))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def _outside(monkeypatch):
    """A test that leaves a simulation open leaves nobody else inside of it, nor with its times."""
    for name in LOOKS_S:
        monkeypatch.setattr(server, name, getattr(server, name))
    for name in ("MIN_KNOWN", "EXTRA_SHARE"):
        monkeypatch.setattr(hedging, name, getattr(hedging, name))
    yield
    open_walls()
