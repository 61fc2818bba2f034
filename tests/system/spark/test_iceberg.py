"""Ranges of a topic into an Iceberg table, by real Spark: each once, whoever reads the table."""

from __future__ import annotations

from functools import partial

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from memq import AdminClient, Producer, read_range
from memq.client.topic import SyncTopicClient
from memq.core.manifest import check_manifest, decode_manifest
from memq.core.ranges import Interval, OffsetRange
from memq.errors import RangeConflictError, SchemaMismatchError
from memq.spark import iceberg
from memq.spark.iceberg import IcebergJob, range_to_iceberg
from memq.tables.iceberg import open_table
from tests.advice import follows
from tests.integration.tables.lake import catalog_options
from tests.system.spark.table_kills import kill_and_finish

BATCHES = 6
RECORDS = 40


@pytest.fixture
def lake(tmp_path):
    """Opens the table of a topic, or makes the job of one of its ranges."""

    class Lake:
        options = catalog_options(tmp_path)

        def table(self, topic):
            return open_table(f"local:lake.{topic}", self.options)

        def put(self, spark, address, topic, start, end, **more):
            job = IcebergJob(
                name="to_lake",
                topic=topic,
                output=f"local:lake.{topic}",
                catalog_options=self.options,
                bootstrap=address,
                range=OffsetRange(0, start, end),
                manifest=f"file://{tmp_path}/{topic}-{start}-{end}.json",
                **more,
            )
            manifest = range_to_iceberg(spark, job)
            assert (tmp_path / f"{topic}-{start}-{end}.json").exists()
            return manifest

    return Lake()


def produce(address, topic, batches=BATCHES, **options):
    with Producer(address, topic=topic, acks="all", **options) as producer:
        for batch in range(batches):
            for n in range(RECORDS):
                producer.write(
                    b"%d" % (batch * RECORDS + n), key=b"k%d" % n, headers={"batch": b"%d" % batch}
                )
            producer.flush(timeout=60)


def values(table):
    return sorted(int(each) for each in table.load().scan().to_arrow()["value"].to_pylist())


def test_the_table_has_each_record_once(spark, broker, make_topic, lake, monkeypatch):
    """Ranges out of order, and each of them twice; every engine counts the same rows."""
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # else Polars warns, here an error
    topic = make_topic()
    produce(broker.address, topic)
    put = partial(lake.put, spark, broker.address, topic)

    manifests = [put(2, 6), put(0, 2), put(2, 6), put(0, 2)]

    assert [len(each.files) > 0 for each in manifests] == [True, True, False, False]
    assert [each.records for each in manifests] == [160, 80, 160, 80]
    table = lake.table(topic)
    incarnation = manifests[0].incarnation
    held = table.look().ledger.partition(topic, incarnation, 0)
    assert held.intervals == [Interval(0, 6)]
    assert held.records == BATCHES * RECORDS
    assert values(table) == list(range(BATCHES * RECORDS))

    loaded = table.load()
    rows = loaded.scan().to_arrow()
    files = loaded.inspect.files()["file_path"].to_pylist()
    assert pl.scan_iceberg(loaded).select(pl.len()).collect().item() == len(rows)
    assert duckdb.sql("select count(*) from rows").fetchall() == [(len(rows),)]
    assert spark.read.parquet(*files).count() == len(rows) == BATCHES * RECORDS

    direct = read_range(broker.address, topic=topic, metadata=True)
    for name in ("value", "key", "timestamp", "partition", "offset", "batch", "position"):
        order = [("value", "ascending")]
        stored, read = rows.sort_by(order)[name], direct.sort_by(order)[name]
        assert stored.to_pylist() == read.to_pylist(), name
    assert pc.all(pc.equal(rows["memq_incarnation"], incarnation)).as_py()
    assert pc.all(pc.equal(rows["topic"], topic)).as_py()


def test_the_manifest_is_of_the_range(spark, broker, make_topic, lake, tmp_path):
    """Airflow compares it with the plan; that of a range that was there before fits as well."""
    topic = make_topic()
    produce(broker.address, topic, 3)
    with SyncTopicClient(broker.address, topic) as client:
        client.info()
        planned = OffsetRange(0, 1, 3, client.incarnation)

    for _ in range(2):
        lake.put(spark, broker.address, topic, 1, 3)
        manifest = decode_manifest((tmp_path / f"{topic}-1-3.json").read_bytes())
        check_manifest(manifest, topic, planned)
        assert (manifest.records, manifest.batches) == (80, 2)
        assert manifest.output == lake.table(topic).location


def test_a_part_is_refused_before_spark_works(spark, broker, make_topic, lake):
    """A range that meets another one is an error that names what is there."""
    topic = make_topic()
    produce(broker.address, topic, 3)
    lake.put(spark, broker.address, topic, 0, 2)

    with pytest.raises(RangeConflictError, match="1 to 1 are, 2 to 2 are not"):
        lake.put(spark, broker.address, topic, 1, 3)

    assert values(lake.table(topic)) == list(range(2 * RECORDS))


def test_an_attempt_that_died_after_it_wrote(spark, broker, make_topic, lake, monkeypatch):
    """Its files are in no table; the next attempt puts the range in, with files of its own."""
    topic = make_topic()
    produce(broker.address, topic, 2)

    def die(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr("memq.tables.iceberg.IcebergTable.commit", die)
        with pytest.raises(KeyboardInterrupt):
            lake.put(spark, broker.address, topic, 0, 2)
    assert values(lake.table(topic)) == []

    lake.put(spark, broker.address, topic, 0, 2)
    assert values(lake.table(topic)) == list(range(2 * RECORDS))


def test_a_column_that_came_later(spark, broker, make_topic, lake):
    """A typed topic that grew grows its table, and what was there before has nulls."""
    first = pa.schema([("user", pa.string()), ("at", pa.timestamp("us", "UTC"))])
    second = first.append(pa.field("score", pa.float64()))
    topic = make_topic(schema=first)
    with Producer(broker.address, topic=topic, acks="all") as producer:
        producer.write_table(pa.table({"user": ["a"], "at": [1]}, schema=first))
        producer.flush(timeout=60)
    lake.put(spark, broker.address, topic, 0, 1)
    with AdminClient(broker.address) as admin:
        admin.alter_topic(topic, schema=second)
    with Producer(broker.address, topic=topic, acks="all") as producer:
        producer.write_table(pa.table({"user": ["b"], "at": [2], "score": [0.5]}, schema=second))
        producer.flush(timeout=60)
    lake.put(spark, broker.address, topic, 1, 2)

    rows = lake.table(topic).load().scan().to_arrow().sort_by("offset")
    assert rows["user"].to_pylist() == ["a", "b"]
    assert rows["score"].to_pylist() == [None, 0.5]
    assert rows["at"].type == pa.timestamp("us", "UTC")


@follows('Read the topic with spark.read.format("memq"), and write it with that column renamed')
def test_a_topic_with_a_column_that_names_ranges(spark, broker, make_topic, lake):
    """It is refused before anything is written, for nobody could check the table."""
    schema = pa.schema([("offset", pa.int64())])
    topic = make_topic(schema=schema)
    with Producer(broker.address, topic=topic, acks="all") as producer:
        producer.write_table(pa.table({"offset": [7]}, schema=schema))
        producer.flush(timeout=60)

    with pytest.raises(SchemaMismatchError, match="has a column 'offset'"):
        lake.put(spark, broker.address, topic, 0, 1)

    read = spark.read.format("memq").options(
        bootstrap=broker.address, topic=topic, columns="offset"
    )
    assert read.load().withColumnRenamed("offset", "place").collect()[0]["place"] == 7


@follows("Roll the table back to before that snapshot, and put the range in again")
def test_a_range_that_holds_other_messages(spark, broker, make_topic, lake, monkeypatch):
    """A table that left damaged Messages out does not pass for one that has them."""
    topic = make_topic()
    produce(broker.address, topic, 2)
    lake.put(spark, broker.address, topic, 0, 1)
    before = lake.table(topic).load().current_snapshot().snapshot_id
    real = iceberg.examine

    def one_skipped(*arguments):
        account = real(*arguments)
        return account._replace(read=account.read._replace(crc_sum=1))

    with monkeypatch.context() as damaged:
        damaged.setattr(iceberg, "examine", one_skipped)
        lake.put(spark, broker.address, topic, 1, 2)
    with pytest.raises(RangeConflictError, match="put in by job 'to_lake'"):
        lake.put(spark, broker.address, topic, 1, 2)

    lake.table(topic).load().manage_snapshots().rollback_to_snapshot(before).commit()
    assert lake.put(spark, broker.address, topic, 1, 2).files
    assert values(lake.table(topic)) == list(range(2 * RECORDS))


@follows("Compare the two, and put the topic into a new table if rows are missing")
def test_a_range_whose_rows_are_not_all_there(spark, broker, make_topic, lake):
    """Where no snapshot says what a range that is found held, its rows are counted."""
    topic = make_topic()
    produce(broker.address, topic, 3)
    lake.put(spark, broker.address, topic, 0, 3)
    assert lake.put(spark, broker.address, topic, 1, 2).files == []
    lake.table(topic).load().delete("offset = 1")

    with pytest.raises(RangeConflictError, match=f"with 0 records, and would now give {RECORDS}"):
        lake.put(spark, broker.address, topic, 1, 2)
    assert lake.put(spark, broker.address, topic, 0, 1).files == []
    assert lake.put(spark, broker.address, topic, 0, 3).files == []  # as its snapshot says


def test_programs_that_are_killed(tmp_path):
    """Killed while they write and commit, and two at a time: each record is in the table once."""
    counts = kill_and_finish(tmp_path, kills=1, seed=3)

    assert counts["killed"] == 1
    assert counts["ended"] == 2
