"""One DataFrame over a table and its topic: the rows of `memq.scan`, exactly once each."""

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.types import LongType

from memq import Producer
from memq import scan as scan_in_arrow
from memq.errors import ConfigError, LimitReachedError, SchemaMismatchError, StorageError
from memq.spark import scan, table_scan
from memq.spark.iceberg import range_to_iceberg
from memq.spark.outputs import range_to_parquet
from memq.tables.iceberg import open_table
from tests.integration.tables.lake import compact
from tests.integration.tables.topic_lake import ROWS, TopicLake
from tests.system.spark.jobs import iceberg_job, parquet_job


@pytest.fixture
def lake(broker, tmp_path):
    return TopicLake(broker.address, tmp_path)


def spark_frame(spark, lake, **options):
    return scan(spark, bootstrap=lake.address, topic=lake.topic, table=lake.table, **options)


def numbers(frame):
    return sorted(row["n"] for row in frame.select("n").collect())


def rows_by_n(frame):
    """Compared in Arrow, as Python has its own mind about times of long ago."""
    return frame.toArrow().sort_by("n").to_pylist()


def test_the_rows_are_those_of_the_format(spark, lake):
    """Holes are filled from Batches; each row is as `format("memq")` has it, whatever its side. It
    stays what it was, whatever is published, put in or compacted later.
    """
    lake.produce(6)
    lake.put(0, 1, without_rows=True)
    for start, end in [(1, 3), (5, 6)]:
        lake.put(start, end)

    frame = spark_frame(spark, lake)
    ends = spark_frame(spark, lake, until={0: 2}, columns="tag,n")

    plain = spark.read.format("memq").options(bootstrap=lake.address, topic=lake.topic).load()
    assert frame.schema == plain.schema
    assert rows_by_n(frame) == rows_by_n(plain.filter("offset > 0"))
    assert len(frame.inputFiles()) == 2
    lake.produce(2)
    lake.put(3, 5)
    compact(lake.table)
    assert numbers(frame) == list(range(ROWS, 6 * ROWS))
    assert ends.columns == ["tag", "n"]
    assert numbers(ends) == list(range(ROWS, 2 * ROWS))
    assert numbers(spark_frame(spark, lake, until={0: 7})) == list(range(ROWS, 7 * ROWS))
    assert numbers(spark_frame(spark, lake, until={0: 1}, minPartitions=1)) == []


def test_rows_of_another_topic_id(spark, lake):
    """Rows of a topic that was recreated are in the same table, and are not its rows."""
    lake.produce(3)
    lake.put(0, 2)
    lake.recreate()
    lake.produce(2)
    lake.put(1, 2)

    assert numbers(spark_frame(spark, lake)) == list(range(1_000, 1_000 + 2 * ROWS))


def test_what_files_do_not_say_is_refused(spark, broker, lake, tmp_path):
    """Columns of another name or type, and files that Spark passes over, are not misread; columns
    of which all is well are read.
    """
    lake.produce(2)
    lake.put(0, 1)
    lake.table.load().update_schema().rename_column("sequence", "number").commit()
    with pytest.raises(SchemaMismatchError, match=r"column 'sequence' .* was renamed"):
        spark_frame(spark, lake)
    lake.table.load().update_schema().update_column("tag", field_type=LongType()).commit()
    with pytest.raises(SchemaMismatchError, match=r"'tag' is bigint in table .* and int in the"):
        spark_frame(spark, lake, columns="n,tag")
    assert numbers(spark_frame(spark, lake, columns="n")) == list(range(2 * ROWS))
    assert lake.scan(columns=["tag"]).read_all().num_rows == 2 * ROWS

    hidden = TopicLake(broker.address, tmp_path)
    hidden.produce(1)
    hidden.put(0, 1, prefix="_")
    with pytest.raises(StorageError, match="has 1 file, of which Spark sees 0"):
        spark_frame(spark, hidden)


def test_a_table_with_many_gaps(lake, monkeypatch):
    """Each gap is a read of its own, so there is a limit."""
    monkeypatch.setattr(table_scan, "MAX_READS", 2)
    lake.produce(5)
    lake.put(1, 2)
    lake.put(3, 4)

    with pytest.raises(LimitReachedError, match="2 gaps in a read partition"):
        spark_frame(None, lake)


@pytest.mark.parametrize("option", ["startingOffsets", "endingtimestamp", "view"])
def test_options_that_choose_rows(lake, option):
    """Offsets and times are those of the topic alone, and are refused before Spark is asked."""
    with pytest.raises(ConfigError, match="not with a table; filter the DataFrame, or give until"):
        spark_frame(None, lake, **{option: "latest"})


CLOCK = dt.time(1, 2, 3, 4)
LONG_AGO = dt.datetime(1500, 1, 1, tzinfo=dt.UTC)
TYPED = {
    "unsigned": (pa.uint64(), 2**64 - 1),
    "user-id": (pa.string(), "é`"),
    "price": (pa.decimal128(10, 2), Decimal("-1.25")),
    "at": (pa.timestamp("us", "UTC"), LONG_AGO),
    "wall": (pa.timestamp("us"), LONG_AGO.replace(tzinfo=None)),
    "clock": (pa.time64("us"), CLOCK),
    "clocks": (pa.struct([("all", pa.list_(pa.time64("ns")))]), {"all": [CLOCK, None]}),
    "tags": (pa.list_(pa.uint8()), [255, None]),
    "inner": (
        pa.struct([("deep", pa.list_(pa.timestamp("us", "UTC"))), ("x", pa.int16())]),
        {"deep": [LONG_AGO], "x": None},
    ),
    "more": (pa.map_(pa.string(), pa.int8()), [("a", -128)]),
}


def test_all_types_that_a_table_takes(spark, broker, make_topic, tmp_path):
    """Each comes back as the topic has it, as Spark wrote it and after a compaction. A column such
    as `user-id`, which other writers spell otherwise, is refused, and never read as nulls.
    """
    schema = pa.schema([("n", pa.int8()), *((name, kind) for name, (kind, _) in TYPED.items())])
    topic = make_topic(schema=schema)
    row = {name: value for name, (_, value) in TYPED.items()}
    for n in range(2):
        with Producer(broker.address, topic=topic, acks="all") as producer:
            producer.write_table(pa.Table.from_pylist([row | {"n": n}, {"n": n + 2}], schema))
            producer.flush(timeout=60)
    job = iceberg_job(broker, topic, tmp_path)
    range_to_iceberg(spark, job)
    table = open_table(job.output, job.catalog_options)
    given = {"bootstrap": broker.address, "topic": topic, "table": table}

    manifest = range_to_parquet(spark, parquet_job(broker, topic, tmp_path))
    spark.conf.set("spark.sql.timeType.enabled", "false")
    plain = spark.read.format("memq").options(bootstrap=broker.address, topic=topic).load()
    expected = rows_by_n(plain)
    others = [name for name in plain.columns if name != "user-id"]
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"column 'user-id' .* is not of letters"):
            scan(spark, **given)
        found = scan(spark, columns=",".join(others), **given)
        assert rows_by_n(found) == [{name: each[name] for name in others} for each in expected]
        compact(table)
    files = pq.read_table(manifest.output, partitioning=None).sort_by("n").to_pylist()
    assert files[0]["clocks"] == row["clocks"]
    in_arrow = scan_in_arrow(broker.address, topic=topic, table=table).read_all()
    assert in_arrow.filter(pa.compute.field("n") < 2)["user-id"].to_pylist() == ["é`"] * 2
