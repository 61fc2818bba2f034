"""A topic may name the column that is the time of its rows; every read by time goes by it."""

import json
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.parquet
import pytest

from memq import Consumer, Producer, read_range, scan

NOON = datetime(2025, 6, 30, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("at", pa.timestamp("ms", "UTC")),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
        pa.field("inner", pa.struct({"when": pa.timestamp("us", "UTC")})),
        pa.field("naive", pa.timestamp("us")),
    ]
)


@pytest.fixture
def rides(broker, memq, request, tmp_path):
    """A topic by the time `at`, whose column `timestamp` says other times; an hour a Batch."""
    name = "".join(filter(str.isalnum, request.node.name))
    schema = tmp_path / "schema.parquet"
    pa.parquet.write_table(SCHEMA.empty_table(), schema)
    options = ("--schema", schema, "--time-column", "at", "--batch-age", "5ms", "--no-audited")
    memq("topic", "create", name, *options)
    with Producer(broker.address, topic=name) as producer:
        for number in range(4):
            rows = {"id": [number], "at": [NOON + number * HOUR], "timestamp": [NOON - 1000 * HOUR]}
            producer.write_table(pa.table(rows))
            producer.flush()
    return name


def ids(lines):
    """What was printed, as ids."""
    return [json.loads(line)["value"]["id"] for line in lines.splitlines()]


def test_reads_by_time(broker, memq, rides, tmp_path):
    """Tables, streams, consume and exports take the rows of these times."""
    begin, end = NOON + HOUR, NOON + 3 * HOUR
    times = ("--from", begin.isoformat(), "--to", end.isoformat())
    for read in (
        read_range(broker.address, topic=rides, start_time=begin, end_time=end),
        scan(broker.address, topic=rides, start_time=begin, end_time=end).read_all(),
    ):
        assert read["id"].to_pylist() == [1, 2]
    assert ids(memq("consume", rides, *times, "--format", "json")) == [1, 2]
    memq("export", rides, tmp_path / "out.csv", *times, "--columns", "id")
    assert (tmp_path / "out.csv").read_text() == '"id"\n1\n2\n'


def test_what_says_the_times(broker, memq, rides):
    """The topic, notifications, objects and LogMessages say times of the column, whoever wrote."""
    described = json.loads(memq("topic", "describe", rides, "-o", "json"))
    batches = json.loads(memq("batch", "list", rides, "-o", "json"))
    with Consumer(broker.address, topic=rides, start="earliest") as consumer:
        first = next(iter(consumer.poll(20)))
    printed = memq("batch", "cat", batches[1]["uri"])

    assert described["time_column"] == "at"
    assert [each["min_timestamp"] for each in batches] == [
        f"2025-06-30T{hour}:00:00.000000Z" for hour in range(12, 16)
    ]
    assert first.timestamp == NOON
    assert json.loads(printed)["timestamp"] == "2025-06-30T13:00:00.000000Z"
    assert (
        json.loads(memq("consume", rides, "--range", "0:1-2", "--format", "json"))["timestamp"]
        == "2025-06-30T13:00:00.000000Z"
    )
    memq("batch", "verify", rides)
