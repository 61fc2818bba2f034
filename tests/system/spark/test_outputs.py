"""What real Spark writes of a topic: files, folders and tables have all of it."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from memq import Producer
from memq.errors import ConfigError
from memq.spark.compaction import compact
from memq.spark.outputs import range_to_parquet
from tests.system.spark.jobs import compaction, parquet_job


def test_folders_of_any_name(spark, make_topic, broker, tmp_path):
    """The name of a folder is that of one folder, not a pattern, and nothing in it is decoded."""
    schema = pa.schema([("n", pa.int64())])
    topic = make_topic(schema=schema)
    with Producer(broker.address, topic=topic, acks="all") as producer:
        for n in (1, 2):
            producer.write_table(pa.table({"n": [n]}, schema=schema))
            producer.flush(timeout=60)
    name = "set[1]{a,b}*q?x la%20#ké back\\slash"
    folder = tmp_path / name
    beside = tmp_path / "set1{a,b}*q?x la%20#ké back\\slash"
    odd = f"file://{folder}"

    manifest = range_to_parquet(spark, parquet_job(broker, topic, odd))
    assert range_to_parquet(spark, parquet_job(broker, topic, beside)).records == 1
    (compacted,) = compact(spark, compaction(broker, topic, odd))

    assert (manifest.records, compacted.records) == (1, 2)
    assert {each.name for each in tmp_path.iterdir()} <= {name, beside.name}
    assert (folder / "0-1.json").is_file()
    files = pq.read_table(manifest.output.removeprefix("file://"), partitioning=None)
    assert files["n"].to_pylist() == [1]


def test_a_path_without_a_scheme_is_refused_where_spark_takes_it_for_another_place(
    spark, make_topic, broker, tmp_path
):
    """On a cluster with HDFS such a path is a folder there, and a local one for this program."""
    configuration = spark.sparkContext._jsc.hadoopConfiguration()
    before = configuration.get("fs.defaultFS")
    configuration.set("fs.defaultFS", "hdfs://name-node:8020")
    try:
        with pytest.raises(ConfigError, match=f"such as hdfs://name-node:8020{tmp_path}"):
            range_to_parquet(spark, parquet_job(broker, make_topic(), tmp_path))
    finally:
        configuration.set("fs.defaultFS", before)
    assert list(tmp_path.iterdir()) == []
