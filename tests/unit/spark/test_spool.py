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


@pytest.mark.parametrize("batches", [[], [rows(3), rows(1), rows(2).slice(1)]])
def test_batches_come_back_as_they_went_in(tmp_path, batches):
    """Each batch is one again, in order, and no file has a name meanwhile or afterwards."""
    with Spool(str(tmp_path)) as spool:
        for each in ([], batches[:2], batches[2:]):
            spool.add(each)
        found = list(spool.batches())
        assert list(tmp_path.iterdir()) == []

    assert found == batches


@pytest.mark.parametrize("buffered", [False, True])
def test_a_full_disk_ends_the_task(buffered):
    """What does not fit is a StorageError that names the folder and the way out, also where the
    file cannot be flushed before it is closed.
    """
    with pytest.raises(StorageError, match=r"set spark\.local\.dir to a folder"), Spool() as spool:
        spool._file.close()
        spool._file = Path("/dev/full").open("r+b", -1 if buffered else 0)  # noqa: SIM115 - closed
        spool.add([rows(100 if buffered else 100_000)])
        list(spool.batches())


def test_it_lies_where_spark_says(tmp_path, monkeypatch):
    """The first local folder of the executor is taken, or the system's where there is none."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/elsewhere")
    assert local_folder() == str(tmp_path)
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/no/such/folder")
    assert os.path.isdir(local_folder())  # noqa: PTH112 - a str
