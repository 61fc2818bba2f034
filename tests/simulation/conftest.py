"""Where simulated disks lie."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.fakes.loop import open_walls

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
def _outside():
    """A test that leaves a simulation open leaves nobody else inside of it."""
    yield
    open_walls()
