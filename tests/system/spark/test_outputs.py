"""What real Spark writes of a topic: files, folders and tables have all of it, or nothing."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException

from memq import Producer
from memq.cli.table_put import put_topic
from memq.core.ranges import OffsetRange
from memq.errors import SchemaMismatchError
from memq.spark import scan
from memq.spark.compaction import Compaction, check_topic, compact
from memq.spark.iceberg import IcebergJob, range_to_iceberg
from memq.spark.parquet import RangeJob, range_to_parquet
from memq.tables.check import check_table
from memq.tables.iceberg import open_table
from tests.advice import follows
from tests.integration.tables.lake import catalog_options


@pytest.fixture
def put_rows(broker, make_topic):
    """Makes a typed topic with some rows in a Batch each; returns its name."""

    def put(schema, *rows):
        topic = make_topic(schema=schema)
        with Producer(broker.address, topic=topic, acks="all") as producer:
            for row in rows:
                producer.write_table(pa.Table.from_pylist([row], schema=schema))
                producer.flush(timeout=60)
        return topic

    return put


def parquet_job(broker, topic, folder, end=1):
    return RangeJob(
        name="test",
        topic=topic,
        bootstrap=broker.address,
        report=False,
        range=OffsetRange(0, 0, end),
        output=f"{folder}/out",
        manifest=f"{folder}/manifest.json",
    )


def iceberg_job(broker, topic, folder, start=0, end=1, **options):
    return IcebergJob(
        name="test",
        topic=topic,
        bootstrap=broker.address,
        report=False,
        range=OffsetRange(0, start, end),
        output="local:lake.t",
        manifest=f"{folder}/manifest.json",
        catalog_options=catalog_options(folder) | options,
    )


def compaction(broker, topic, folder):
    return Compaction(
        name="test", topic=topic, bootstrap=broker.address, report=False, output=f"{folder}/lake"
    )


CLOCK = dt.time(1, 2, 3, 4)


def test_times_of_day(spark, put_rows, broker, tmp_path):
    """Spark has them switched off for Parquet; files and tables get them as they are."""
    parts = pa.struct([("at", pa.time32("s")), ("all", pa.list_(pa.time64("ns")))])
    schema = pa.schema([("n", pa.int64()), ("c", pa.time64("us")), ("parts", parts)])
    row = {"n": 1, "c": CLOCK, "parts": {"at": dt.time(4, 5), "all": [CLOCK, None]}}
    topic = put_rows(schema, row)

    manifest = range_to_parquet(spark, parquet_job(broker, topic, tmp_path))
    range_to_iceberg(spark, iceberg_job(broker, topic, tmp_path))
    spark.conf.set("spark.sql.timeType.enabled", "false")

    assert pq.read_table(manifest.output, partitioning=None).to_pylist()[0].items() >= row.items()
    table = open_table("local:lake.t", catalog_options(tmp_path))
    assert table.load().scan().to_arrow().to_pylist()[0].items() >= row.items()
    frame = scan(spark, topic=topic, table=table, bootstrap=broker.address)
    assert frame.select("n", "c", "parts").collect()[0].asDict(recursive=True) == row


REFUSED = {
    "empty": (pa.struct([]), {}, {"files", "table"}),
    "empty inside": (pa.list_(pa.struct([("x", pa.struct([]))])), [{"x": {}}], {"files", "table"}),
    "null": (pa.null(), None, {"table"}),
    "null inside": (pa.map_(pa.utf8(), pa.null()), [("a", None)], {"table"}),
    "duration": (pa.duration("s"), 1, {"table"}),
}


@pytest.mark.parametrize("column", REFUSED.values(), ids=REFUSED)
@follows("cannot hold: write the others, which")
def test_columns_that_outputs_cannot_hold(spark, put_rows, broker, tmp_path, column):
    """They are refused with the column's name before a folder, a table or an intention is made."""
    kind, value, where = column
    topic = put_rows(pa.schema([("n", pa.int64()), ("c", kind)]), {"n": 1, "c": value})

    with pytest.raises(
        SchemaMismatchError, match=r"column 'c.* of topic .* cannot hold"
    ) as refused:
        range_to_iceberg(spark, iceberg_job(broker, topic, tmp_path))
    assert not refused.value.retriable
    if "files" in where:
        for refuses in (range_to_parquet, compact):
            made = parquet_job if refuses is range_to_parquet else compaction
            with pytest.raises(SchemaMismatchError, match=r"column 'c.* of topic .* cannot hold"):
                refuses(spark, made(broker, topic, tmp_path))
        with pytest.raises(SchemaMismatchError, match="cannot hold"):
            check_topic(compaction(broker, topic, tmp_path))
    assert {each.name for each in tmp_path.iterdir()} <= {"catalog.db"}

    reading = spark.read.format("memq").options(bootstrap=broker.address, topic=topic, columns="n")
    reading.load().write.parquet(f"{tmp_path}/others")
    assert spark.read.parquet(f"{tmp_path}/others").collect()[0].n == 1


@pytest.mark.parametrize("names", [("id", "ID"), ("n", "Offset")])
def test_names_that_differ_by_case(spark, put_rows, broker, tmp_path, names):
    """Read, stream, table and folder refuse them in our words, before anything is made."""
    schema = pa.schema([(name, pa.int64()) for name in names])
    topic = put_rows(schema, dict.fromkeys(names, 1))
    options = {"bootstrap": broker.address, "topic": topic}

    for reader in (spark.read, spark.readStream):
        with pytest.raises(PySparkException, match=f"cannot be read with the columns.*{names[1]}"):
            reader.format("memq").options(**options).load()
    with pytest.raises(SchemaMismatchError, match=f"column.*'{names[1]}'"):
        range_to_iceberg(spark, iceberg_job(broker, topic, tmp_path))
    if names[1] == "ID":
        for refuses, made in ((range_to_parquet, parquet_job), (compact, compaction)):
            with pytest.raises(SchemaMismatchError, match="'id' and 'ID': Spark"):
                refuses(spark, made(broker, topic, tmp_path))
    assert list(tmp_path.iterdir()) == []
    read = spark.read.format("memq").options(**options, columns=names[1]).load()
    assert read.columns == [names[1]]
    assert read.collect()[0][0] == 1


def test_a_time_beyond_microseconds_inside_a_struct(spark, put_rows, broker, tmp_path):
    """The read, and the jobs that write files, fail; 1970 is in none of them."""
    kind = pa.struct([("at", pa.timestamp("ms"))])
    schema = pa.schema([("e", kind)])
    topic = put_rows(schema, {"e": {"at": 2**62}})

    read = spark.read.format("memq").options(bootstrap=broker.address, topic=topic).load()
    with pytest.raises(PySparkException, match="column 'e' is struct<at: timestamp"):
        read.collect()
    with pytest.raises(PySparkException, match="column 'e' is struct<at: timestamp"):
        range_to_parquet(spark, parquet_job(broker, topic, tmp_path))


ODD = ["set[1]", "a*b", "{a,b}", "q?x", "la ke", "la%20ke", "la#ke", "laké", "back\\slash"]


@pytest.mark.parametrize("name", ODD)
def test_folders_of_any_name(spark, put_rows, broker, tmp_path, name):
    """The name of a folder is that of one folder, not a pattern, and nothing in it is decoded."""
    topic = put_rows(pa.schema([("n", pa.int64())]), {"n": 1}, {"n": 2})
    folder = tmp_path / name
    beside = tmp_path / "setA" if name == "set[1]" else tmp_path / "axb"
    odd = f"file://{folder}"

    manifest = range_to_parquet(spark, parquet_job(broker, topic, odd))
    assert range_to_parquet(spark, parquet_job(broker, topic, beside)).records == 1
    (compacted,) = compact(spark, compaction(broker, topic, odd))
    job = iceberg_job(broker, topic, tmp_path, warehouse=f"{odd}/warehouse")
    if "\\" not in name:
        assert range_to_iceberg(spark, job).records == 1
        table = open_table("local:lake.t", job.catalog_options)
        put_topic(table, topic, broker.address)
        assert check_table(table) == (2, [])
        frame = scan(spark, topic=topic, table=table, bootstrap=broker.address)
        assert sorted(row.n for row in frame.collect()) == [1, 2]

    assert (manifest.records, compacted.records) == (1, 2)
    assert {each.name for each in tmp_path.iterdir()} <= {
        name,
        beside.name,
        "catalog.db",
        "manifest.json",
    }
    assert (folder / "manifest.json").is_file()
    assert pq.read_table(manifest.output.removeprefix("file://"), partitioning=None)[
        "n"
    ].to_pylist() == [1]


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
    manifest = range_to_parquet(spark, parquet_job(broker, topic, tmp_path, 3))
    files = pq.read_table(manifest.output, partitioning=None).sort_by("value")
    assert files["headers"].to_pylist() == expected

    kept = spark.read.format("memq").options(**options, maps="map").load()
    other = make_topic()
    kept.select("value", "headers", "timestamp").write.format("memq").mode("append").options(
        bootstrap=broker.address, topic=other
    ).save()
    copied = spark.read.format("memq").options(bootstrap=broker.address, topic=other).load()
    assert headers(copied) == expected


def test_both_ways_into_a_table(spark, put_rows, broker, tmp_path):
    """What one way has put in the other one finds, with the same counts; both fill one table."""
    schema = pa.schema(
        [("n", pa.uint32()), ("id", pa.binary(2)), ("at", pa.timestamp("ms", "UTC"))]
    )
    rows = [{"n": n, "id": b"%02d" % n, "at": n} for n in range(5)]
    topic = put_rows(schema, *rows[:4])
    range_to_iceberg(spark, iceberg_job(broker, topic, tmp_path, 1, 2))
    table = open_table("local:lake.t", catalog_options(tmp_path))

    put = put_topic(table, topic, broker.address)
    again = range_to_iceberg(spark, iceberg_job(broker, topic, tmp_path, 2, 4))

    assert [(each.start, each.end, each.records) for each in put] == [(0, 1, 1), (2, 4, 2)]
    assert (again.files, again.records) == ([], 2)
    with Producer(broker.address, topic=topic, acks="all") as producer:
        producer.write_table(pa.Table.from_pylist(rows[4:], schema=schema))
        producer.flush(timeout=60)
    range_to_iceberg(spark, iceberg_job(broker, topic, tmp_path, 4, 5))
    assert check_table(table) == (5, [])
    frame = scan(spark, topic=topic, table=table, bootstrap=broker.address)
    assert sorted((row.n, bytes(row.id)) for row in frame.collect()) == [
        (n, b"%02d" % n) for n in range(5)
    ]
