"""What real Spark writes of a topic: files, folders and tables have all of it."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from memq import Producer
from memq.spark.compaction import compact
from memq.spark.outputs import range_to_parquet
from tests.system.spark.jobs import compaction, parquet_job


@pytest.mark.parametrize("name", ["set[1]", "{a,b}*q?x la%20#ké", "back\\slash"])
def test_folders_of_any_name(spark, make_topic, broker, tmp_path, name):
    """The name of a folder is that of one folder, not a pattern, and nothing in it is decoded."""
    schema = pa.schema([("n", pa.int64())])
    topic = make_topic(schema=schema)
    with Producer(broker.address, topic=topic, acks="all") as producer:
        for n in (1, 2):
            producer.write_table(pa.table({"n": [n]}, schema=schema))
            producer.flush(timeout=60)
    folder = tmp_path / name
    beside = tmp_path / "set1"
    odd = f"file://{folder}"

    manifest = range_to_parquet(spark, parquet_job(broker, topic, odd))
    assert range_to_parquet(spark, parquet_job(broker, topic, beside)).records == 1
    (compacted,) = compact(spark, compaction(broker, topic, odd))

    assert (manifest.records, compacted.records) == (1, 2)
    assert {each.name for each in tmp_path.iterdir()} <= {name, beside.name}
    assert (folder / "0-1.json").is_file()
    files = pq.read_table(manifest.output.removeprefix("file://"), partitioning=None)
    assert files["n"].to_pylist() == [1]


def test_headers_of_one_name(spark, broker, make_topic, tmp_path):
    """Both are in a read, in files, and in what is written to another topic."""
    topic, other = make_topic(), make_topic()
    with Producer(broker.address, topic=topic, acks="all") as producer:
        producer.write(b"1", headers=[("a", b"x"), ("a", b"y")])
        producer.write(b"2")

    def read(topic, **options):
        options |= {"bootstrap": broker.address, "topic": topic}
        return spark.read.format("memq").options(**options).load()

    kept = read(topic, maps="map").select("value", "headers", "timestamp")
    options = {"bootstrap": broker.address, "topic": other}
    kept.write.format("memq").mode("append").options(**options).save()
    manifest = range_to_parquet(spark, parquet_job(broker, topic, tmp_path))

    for each in (topic, other):
        rows = sorted(read(each).select("value", "headers").collect())
        assert [[tuple(header) for header in row.headers or ()] for row in rows] == [
            [("a", b"x"), ("a", b"y")],
            [],
        ]
    files = pq.read_table(manifest.output, partitioning=None).sort_by("value")
    assert files["headers"].to_pylist() == [[("a", b"x"), ("a", b"y")], None]
