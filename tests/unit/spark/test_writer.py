"""How the rows of a task of a write wait until all are good."""

import resource
import signal

import pyarrow as pa
import pytest

from memq.errors import StorageError
from memq.spark.writer import spooled


def some(number):
    return pa.record_batch({"n": list(range(number))})


@pytest.mark.parametrize("batches", [[], [some(3), some(1), some(2).slice(1)]])
def test_batches_come_back_as_they_went_in(tmp_path, monkeypatch, batches):
    """None comes before all are there, and no file has a name, in the folder that Spark gives."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/elsewhere")
    given = iter(batches)

    found = []
    for each in spooled(given):
        assert next(given, None) is None
        found.append(each)
    assert found == batches
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def _full_disk():
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_096, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, ignored)


@pytest.mark.usefixtures("_full_disk")
@pytest.mark.parametrize("rows", [550, 100_000])
def test_a_full_disk_ends_the_task(rows):
    """What does not fit is an error with the way out, also where it is found at the end alone."""
    with pytest.raises(StorageError, match=r"set spark\.local\.dir to a folder"):
        list(spooled([some(rows)]))
