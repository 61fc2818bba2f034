"""Whatever reads a topic reads each of its read partitions, where these have nothing in common."""

import json
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.parquet
import pytest

from airflow_provider_memq.planning.topics import check_retained_since, contents_of
from memq import Consumer, OffsetRange, read_range
from memq.cli.main import main
from memq.client.topic import SyncTopicClient
from memq.errors import OffsetOutOfRangeError
from memq.tables.scan import scan
from tests.integration.spark.here import Stream, read
from tests.topics.lopsided import TOPIC, Row

PARTITIONS = (0, 1)


@pytest.fixture
def memq(lopsided, monkeypatch, capfd):
    """Runs a command; what it printed."""
    monkeypatch.setenv("MEMQ_BOOTSTRAP", lopsided.address)

    def run(*arguments, code=0):
        capfd.readouterr()
        assert main([str(each) for each in arguments]) == code
        captured = capfd.readouterr()
        return captured.out if code == 0 else captured.err

    return run


@pytest.fixture
def client(lopsided):
    """A client of the topic."""
    with SyncTopicClient(lopsided.address, TOPIC) as found:
        yield found


def rows_of(table):
    """The rows of a table that says where they are."""
    columns = table.select(["partition", "offset", "value"]).to_pydict().values()
    return [Row(*each) for each in zip(*columns, strict=True)]


def of_batches(batches):
    """The rows of some Batches."""
    return [Row(batch.partition, batch.offset, each.value) for batch in batches for each in batch]


def consumed(lopsided, **options):
    """What a consumer hands out until it has no lag, and how many it counts at first."""
    with Consumer(lopsided.address, topic=TOPIC, **options) as consumer:
        found = []
        for _ in range(200):
            batch = consumer.poll(0.2)
            if batch is not None:
                found.append(batch)
            elif found and not any(consumer.lag().values()):
                break
        return sorted(of_batches(found))


def exported(lopsided, tmp_path):
    assert main(["export", TOPIC, str(tmp_path / "all"), "--metadata", "--file-bytes", "1KiB",
                 "-b", lopsided.address]) == 0  # fmt: skip
    names = sorted(each.name for each in (tmp_path / "all").glob("*.parquet"))
    assert len(names) == sum(map(len, map(lopsided.batches, PARTITIONS)))
    tables = [pyarrow.parquet.read_table(tmp_path / "all" / name) for name in names]
    return rows_of(pa.concat_tables(tables))


def streamed(lopsided, _):
    stream = Stream(lopsided.address)
    found = [row for each in stream.run() for row in rows_of(each)]
    stream.stop()
    return sorted(found)


READERS = {
    "read_range": lambda topic, _: rows_of(read_range(topic.address, topic=TOPIC, metadata=True)),
    "read_range through the broker": lambda topic, _: rows_of(
        read_range(topic.address, topic=TOPIC, metadata=True, read_through="broker")
    ),
    "read_range of one partition after the other": lambda topic, _: [
        row
        for each in PARTITIONS
        for row in rows_of(read_range(topic.address, topic=TOPIC, partition=each, metadata=True))
    ],
    "scan": lambda topic, _: rows_of(scan(topic.address, topic=TOPIC, metadata=True).read_all()),
    "a consumer": lambda topic, _: consumed(topic, start="earliest"),
    "a new group": lambda topic, _: consumed(
        topic, start="earliest", group="new", auto_commit=False, audit=False
    ),
    "an export": exported,
    "Spark": lambda topic, _: sorted(rows_of(read(topic.address))),
    "a stream of Spark": streamed,
}


@pytest.mark.parametrize("name", READERS)
def test_all_that_is_retained_is_read(lopsided, tmp_path, name):
    """Every row once, at its partition and offset, and none that was removed or is of before."""
    assert READERS[name](lopsided, tmp_path) == lopsided.rows


def test_what_retention_has_removed_is_refused_by_its_partition(lopsided, client):
    """Offset 0 is there in one partition, and not in the other."""
    for partition in PARTITIONS:
        wanted = OffsetRange(partition, 0, lopsided.ends[partition])
        if partition == 0:
            assert contents_of(client, wanted).batches == len(lopsided.batches(0))
            continue
        for reading in (
            lambda: read_range(lopsided.address, topic=TOPIC, partition=1, start=0),
            lambda: read(lopsided.address, startingOffsets='{"0": 0, "1": 0}'),
            lambda wanted=wanted: contents_of(client, wanted),
        ):
            with pytest.raises(OffsetOutOfRangeError, match=f"{lopsided.starts[1]}"):
                reading()


def test_times_that_were_removed_are_told(lopsided, client, memq, tmp_path):
    """The later time of the partitions says since when a topic is whole, not the earlier one."""
    since_ms = {each.partition: each.since_ms for each in client.retained_since()}
    assert since_ms[0] == float("-inf")
    assert since_ms[1] > 0
    long_ago = datetime.now(UTC) - timedelta(days=300)
    done = json.loads(
        memq("export", TOPIC, tmp_path / "all", "--from", long_ago.isoformat(), "-o", "json")
    )
    told = datetime.fromisoformat(done["incomplete_before"])
    assert abs(told.timestamp() * 1_000 - since_ms[1]) < 60_000
    with pytest.raises(OffsetOutOfRangeError, match="of partition 1 all is"):
        check_retained_since(TOPIC, client, int(long_ago.timestamp() * 1_000), None)
