"""Ranges of a topic into an Iceberg table, by real Spark: each once, whoever reads the table."""

import pyarrow.compute as pc
import pytest

from memq import Producer, read_range
from memq.client.topic import SyncTopicClient
from memq.core.manifest import check_manifest, decode_manifest
from memq.core.ranges import Interval, OffsetRange
from memq.errors import RangeConflictError
from memq.spark import outputs
from memq.spark.iceberg import range_to_iceberg
from memq.tables.iceberg import open_table
from tests.integration.tables.lake import catalog_options
from tests.system.spark.jobs import iceberg_job

RECORDS = 40


class Lake:
    """A topic of six Batches, and the table that its ranges are put into."""

    def __init__(self, spark, broker, topic, folder):
        self.spark, self.broker, self.topic, self.folder = spark, broker, topic, folder
        with Producer(broker.address, topic=topic, acks="all") as producer:
            for batch in range(6):
                for n in range(RECORDS):
                    number = batch * RECORDS + n
                    producer.write(b"%d" % number, key=b"k%d" % n, headers={"b": b"%d" % batch})
                producer.flush(timeout=60)

    @property
    def table(self):
        return open_table("local:lake.t", catalog_options(self.folder))

    def put(self, start, end):
        job = iceberg_job(self.broker, self.topic, self.folder, start, end, name="to_lake")
        manifest = range_to_iceberg(self.spark, job)
        written = (self.folder / f"{start}-{end}.json").read_bytes()
        assert decode_manifest(written) == manifest
        return manifest

    def check(self, end):
        """Each record up to an offset is there once."""
        found = self.table.load().scan().to_arrow()["value"].to_pylist()
        assert sorted(map(int, found)) == list(range(end * RECORDS))


@pytest.fixture
def lake(spark, broker, make_topic, tmp_path):
    return Lake(spark, broker, make_topic(), tmp_path)


def test_the_table_has_each_record_once(lake):
    """Ranges out of order, and each of them twice; Spark counts the same rows in its files. Airflow
    compares the manifest with the plan; that of a range that was there before fits as well.
    """
    with SyncTopicClient(lake.broker.address, lake.topic) as client:
        client.info()
        topic_id = client.topic_id
    for start, end in [(2, 6), (0, 2), (2, 6), (0, 2)]:
        there = lake.folder.joinpath(f"{start}-{end}.json").exists()
        manifest = lake.put(start, end)
        check_manifest(manifest, lake.topic, OffsetRange(0, start, end, topic_id))
        assert (manifest.records, manifest.batches) == ((end - start) * RECORDS, end - start)
        assert manifest.output == lake.table.location
        assert bool(manifest.files) != there
    lake.check(6)

    held = lake.table.look().ledger.partition(lake.topic, topic_id, 0)
    assert (held.intervals, held.records) == ([Interval(0, 6)], 6 * RECORDS)
    loaded = lake.table.load()
    rows = loaded.scan().to_arrow()
    files = loaded.inspect.files()["file_path"].to_pylist()
    assert lake.spark.read.parquet(*files).count() == len(rows)

    direct = read_range(lake.broker.address, topic=lake.topic, metadata=True)
    for name in ("value", "key", "timestamp", "partition", "offset", "batch", "position"):
        order = [("value", "ascending")]
        stored, read = rows.sort_by(order)[name], direct.sort_by(order)[name]
        assert stored.to_pylist() == read.to_pylist(), name
    assert pc.all(pc.equal(rows["memq_topic_id"], topic_id)).as_py()
    assert pc.all(pc.equal(rows["topic"], lake.topic)).as_py()


def test_a_range_that_holds_other_messages(lake, monkeypatch):
    """A table that left damaged Messages out does not pass for one that has them; where no snapshot
    says what a range that is found held, its rows are counted.
    """
    lake.put(0, 1)
    before = lake.table.load().current_snapshot().snapshot_id
    real = outputs.examine

    def one_skipped(*arguments):
        account = real(*arguments)
        return account._replace(read=account.read._replace(crc_sum=1))

    with monkeypatch.context() as damaged:
        damaged.setattr(outputs, "examine", one_skipped)
        lake.put(1, 3)
    with pytest.raises(RangeConflictError, match="put in by job 'to_lake'"):
        lake.put(1, 3)
    lake.table.load().manage_snapshots().rollback_to_snapshot(before).commit()
    assert lake.put(1, 3).files
    lake.check(3)

    assert lake.put(1, 2).files == []
    lake.table.load().delete("offset = 1")
    with pytest.raises(RangeConflictError, match=f"with 0 records, and would now give {RECORDS}"):
        lake.put(1, 2)
    assert lake.put(0, 1).files == []
    assert lake.put(1, 3).files == []  # as its snapshot says
