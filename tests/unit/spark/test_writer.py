"""What a write checks before it starts, and how the rows of a task wait until all are good."""

from __future__ import annotations

import resource
import signal

import pyarrow as pa
import pytest

from memq.client.producer.tables import lacks_timestamp
from memq.core.format.schema import DEFAULT_SCHEMA
from memq.errors import SchemaMismatchError, StorageError
from memq.spark.writer import check_rows, spooled


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"key": pa.utf8()}, "takes a column 'value'"),
        ({"value": pa.int64()}, "expects column 'value'"),
        ({"value": pa.utf8(), "timestamp": pa.int64()}, "an instant, but got .*; cast it first"),
        ({"value": pa.utf8(), "timestamp": pa.timestamp("us")}, "an instant, but got .*; cast it"),
    ],
)
def test_rows_that_do_not_fit_a_default_topic_are_refused(columns, message):
    """A column that is missing, or cannot become the topic's, is named."""
    with pytest.raises(SchemaMismatchError, match=message):
        check_rows(pa.schema(list(columns.items())), DEFAULT_SCHEMA, "t")


def test_texts_and_times_of_spark_fit():
    """Strings for bytes and instants of any zone are what a default topic takes."""
    instant = pa.timestamp("us", "America/New_York")
    rows = pa.schema([("key", pa.utf8()), ("value", pa.utf8()), ("timestamp", instant)])
    check_rows(rows, DEFAULT_SCHEMA, "t")
    assert lacks_timestamp(["value"], DEFAULT_SCHEMA) != lacks_timestamp(rows.names, DEFAULT_SCHEMA)


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
