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

INSTANT, LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")


def check(given, expected):
    """A column of one type, written to a topic that has it as another one."""
    check_rows(pa.schema([("at", given)]), pa.schema([("at", expected)]), "t")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"key": pa.utf8()}, "takes a column 'value'"),
        ({"value": pa.int64()}, "expects column 'value'"),
        ({"value": pa.utf8(), "timestamp": pa.int64()}, "an instant, but got .*; cast it first"),
        ({"value": pa.utf8(), "timestamp": pa.utf8()}, "an instant, but got .*; cast it first"),
        ({"value": pa.utf8(), "timestamp": LOCAL}, "an instant, but got .* cast it first"),
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
    assert not lacks_timestamp(rows.names, DEFAULT_SCHEMA)
    assert lacks_timestamp(["value"], DEFAULT_SCHEMA)
    assert not lacks_timestamp(["value"], pa.schema([("value", pa.utf8())]))


@pytest.mark.parametrize(
    ("given", "expected", "message"),
    [
        (LOCAL, INSTANT, "an instant, but got .*a time without a zone; cast it first"),
        (INSTANT, LOCAL, "a time without a zone, but got .*an instant; cast it first"),
        (pa.date32(), INSTANT, "a day; cast it first"),
        (INSTANT, pa.date32(), "a day, but got .*an instant"),
        (pa.utf8(), LOCAL, "a text or bytes; cast it first"),
        (pa.int64(), INSTANT, "a number; cast it first"),
        (INSTANT, pa.utf8(), "an instant; cast it first"),
        (pa.list_(LOCAL), pa.list_(INSTANT), r"column 'at\[\]' as timestamp"),
        (pa.map_(pa.utf8(), LOCAL), pa.map_(pa.utf8(), INSTANT), r"column 'at\[\].value'"),
        (pa.struct([("x", LOCAL)]), pa.struct([("x", INSTANT)]), "column 'at.x'"),
    ],
)
def test_another_kind_of_time_is_refused(given, expected, message):
    """Instants, local times, days, texts and numbers do not become each other unsaid: what a zone
    decides, Spark's own cast does.
    """
    with pytest.raises(SchemaMismatchError, match=message):
        check(given, expected)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (pa.timestamp("us", "America/New_York"), INSTANT),
        (INSTANT, pa.timestamp("ms", "Asia/Kolkata")),
        (LOCAL, pa.timestamp("ns")),
        (pa.date32(), pa.date32()),
        (pa.null(), INSTANT),
        (pa.list_(INSTANT), pa.large_list(INSTANT)),
    ],
)
def test_the_same_kind_of_time_fits(given, expected):
    """An instant is the same in every zone, and units do not matter; nothing but nulls fits too."""
    check(given, expected)


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
