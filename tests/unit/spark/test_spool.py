"""The rows of a task wait on disk until all of them are checked."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from memq.errors import StorageError
from memq.spark.spool import Spool, local_folder


def rows(number):
    return pa.record_batch({"n": list(range(number))})


def test_batches_come_back_as_they_went_in(tmp_path):
    """Each batch is one again, in order, and no file has a name meanwhile or afterwards."""
    with Spool(str(tmp_path)) as spool:
        spool.add([rows(3), rows(1)])
        spool.add([])
        spool.add([rows(2).slice(1)])
        found = list(spool.batches())
        assert list(tmp_path.iterdir()) == []

    assert found == [rows(3), rows(1), rows(2).slice(1)]


def test_no_rows_are_no_batches(tmp_path):
    """A task without rows has nothing to send."""
    with Spool(str(tmp_path)) as spool:
        assert list(spool.batches()) == []


def test_a_full_disk_ends_the_task():
    """What does not fit is a StorageError that names the folder and the way out."""
    with Spool() as spool:
        spool._file.close()
        spool._file = Path("/dev/full").open("r+b", buffering=0)  # noqa: SIM115 - closed by the spool
        with pytest.raises(StorageError, match=r"set spark\.local\.dir to a folder that has it"):
            spool.add([rows(100_000)])


def test_a_full_disk_is_told_of_through_a_buffer():
    """The file that cannot be flushed when it is closed does not hide what happened."""
    with (
        pytest.raises(StorageError, match=r"set spark\.local\.dir"),
        Spool() as spool,
    ):
        spool._file.close()
        spool._file = open("/dev/full", "w+b")  # noqa: SIM115, PTH123 - closed by the spool
        spool.add([rows(100)])
        list(spool.batches())


def test_it_lies_where_spark_says(tmp_path, monkeypatch):
    """The first local folder of the executor is taken, or the system's where there is none."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/elsewhere")
    assert local_folder() == str(tmp_path)
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/no/such/folder")
    assert os.path.isdir(local_folder())  # noqa: PTH112 - a str
