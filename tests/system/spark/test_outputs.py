"""What real Spark writes of a topic: files, folders and tables have all of it."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from memq import Producer
from memq.cli.table_put import put_topic
from memq.spark import scan
from memq.spark.compaction import compact
from memq.spark.iceberg import range_to_iceberg
from memq.spark.parquet import range_to_parquet
from memq.tables.check import check_table
from memq.tables.iceberg import open_table
from tests.integration.tables.lake import catalog_options
from tests.system.spark.jobs import compaction, iceberg_job, parquet_job


def write_rows(broker, topic, schema, *rows):
    """Write rows to a topic, in a Batch each."""
    with Producer(broker.address, topic=topic, acks="all") as producer:
        for row in rows:
            producer.write_table(pa.Table.from_pylist([row], schema=schema))
            producer.flush(timeout=60)


@pytest.mark.parametrize("name", ["set[1]", "{a,b}*q?x la%20#ké", "back\\slash"])
def test_folders_of_any_name(spark, make_topic, broker, tmp_path, name):
    """The name of a folder is that of one folder, not a pattern, and nothing in it is decoded."""
    schema = pa.schema([("n", pa.int64())])
    topic = make_topic(schema=schema)
    write_rows(broker, topic, schema, {"n": 1}, {"n": 2})
    folder = tmp_path / name
    beside = tmp_path / "set1"
    odd = f"file://{folder}"

    manifest = range_to_parquet(spark, parquet_job(broker, topic, odd))
    assert range_to_parquet(spark, parquet_job(broker, topic, beside)).records == 1
    (compacted,) = compact(spark, compaction(broker, topic, odd))
    if "\\" not in name:
        warehouse = {"warehouse": f"{odd}/warehouse"}
        job = iceberg_job(broker, topic, tmp_path, catalog=warehouse, manifest=f"{odd}/m.json")
        assert range_to_iceberg(spark, job).records == 1
        table = open_table("local:lake.t", job.catalog_options)
        put_topic(table, topic, broker.address)
        assert check_table(table) == (2, [])
        frame = scan(spark, topic=topic, table=table, bootstrap=broker.address)
        assert sorted(row.n for row in frame.collect()) == [1, 2]

    assert (manifest.records, compacted.records) == (1, 2)
    assert {each.name for each in tmp_path.iterdir()} <= {name, beside.name, "catalog.db"}
    assert (folder / "0-1.json").is_file()
    files = pq.read_table(manifest.output.removeprefix("file://"), partitioning=None)
    assert files["n"].to_pylist() == [1]


def test_headers_of_one_name(spark, broker, make_topic, tmp_path):
    """Both are in a read, a stream, a file, and a table from whichever side they come."""
    topic = make_topic()
    with Producer(broker.address, topic=topic, acks="all") as producer:
        for value in (b"1", b"2"):
            producer.write(value, headers=[("a", b"x"), ("a", b"y")])
            producer.flush(timeout=60)
        producer.write(b"3")
    options = {"bootstrap": broker.address, "topic": topic}
    expected = [[("a", b"x"), ("a", b"y")]] * 2 + [None]

    def headers(frame):
        rows = sorted(frame.select("value", "headers").collect())
        return [row.headers and [(k, bytes(v)) for k, v in row.headers] for row in rows]

    assert headers(spark.read.format("memq").options(**options).load()) == expected
    range_to_iceberg(spark, iceberg_job(broker, topic, tmp_path))
    put_topic(table := open_table("local:lake.t", catalog_options(tmp_path)), topic, broker.address)
    assert table.load().scan().to_arrow().sort_by("value")["headers"].to_pylist() == expected
    assert headers(scan(spark, topic=topic, table=table, bootstrap=broker.address)) == expected
    manifest = range_to_parquet(spark, parquet_job(broker, topic, tmp_path, end=3))
    files = pq.read_table(manifest.output, partitioning=None).sort_by("value")
    assert files["headers"].to_pylist() == expected

    kept = spark.read.format("memq").options(**options, maps="map").load()
    other = make_topic()
    kept.select("value", "headers", "timestamp").write.format("memq").mode("append").options(
        bootstrap=broker.address, topic=other
    ).save()
    copied = spark.read.format("memq").options(bootstrap=broker.address, topic=other).load()
    assert headers(copied) == expected


def test_both_ways_into_a_table(spark, make_topic, broker, tmp_path):
    """What one way has put in the other one finds, with the same counts; both fill one table."""
    schema = pa.schema(
        [("n", pa.uint32()), ("id", pa.binary(2)), ("at", pa.timestamp("ms", "UTC"))]
    )
    rows = [{"n": n, "id": b"%02d" % n, "at": n} for n in range(5)]
    topic = make_topic(schema=schema)
    write_rows(broker, topic, schema, *rows[:4])
    range_to_iceberg(spark, iceberg_job(broker, topic, tmp_path, 1, 2))
    table = open_table("local:lake.t", catalog_options(tmp_path))

    put = put_topic(table, topic, broker.address)
    again = range_to_iceberg(spark, iceberg_job(broker, topic, tmp_path, 2, 4))

    assert [(each.start, each.end, each.records) for each in put] == [(0, 1, 1), (2, 4, 2)]
    assert (again.files, again.records) == ([], 2)
    write_rows(broker, topic, schema, *rows[4:])
    range_to_iceberg(spark, iceberg_job(broker, topic, tmp_path, 4, 5))
    assert check_table(table) == (5, [])
    frame = scan(spark, topic=topic, table=table, bootstrap=broker.address)
    assert sorted((row.n, bytes(row.id)) for row in frame.collect()) == [
        (n, b"%02d" % n) for n in range(5)
    ]
