"""One DataFrame over a table and its topic: the rows of `memq.scan`, exactly once each."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from pyiceberg.types import LongType

from memq import AdminClient, OffsetRange, Producer
from memq import scan as scan_in_arrow
from memq.errors import ConfigError, LimitReachedError, SchemaMismatchError, StorageError
from memq.spark import scan, table_scan
from memq.spark.iceberg import IcebergJob, range_to_iceberg
from memq.tables.iceberg import open_table
from tests.advice import follows
from tests.integration.tables.lake import catalog_options, compact, mark_deleted
from tests.integration.tables.topic_lake import ROWS, TopicLake
from tests.system.spark.scan_pins import pin_and_compare, spark_frame


@pytest.fixture
def lake(broker, tmp_path):
    return TopicLake(broker.address, tmp_path)


def numbers(frame):
    return sorted(row["n"] for row in frame.select("n").collect())


def test_engines_agree_while_both_move(spark, broker, tmp_path):
    """At pinned offsets DuckDB, Polars and Spark count and sum the same rows."""
    lake = TopicLake(broker.address, tmp_path, partitions=2)

    done = pin_and_compare(spark, lake, pins=4, seed=5)

    assert done["put in"] > 1


def test_the_rows_are_those_of_the_format(spark, lake):
    """Holes are filled from Batches; each row is as `format("memq")` has it, whatever its side."""
    lake.produce(8)
    for start, end in [(1, 3), (5, 6)]:
        lake.put(start, end)

    frame = spark_frame(spark, lake)

    plain = spark.read.format("memq").options(bootstrap=lake.address, topic=lake.topic).load()
    assert frame.schema == plain.schema
    assert rows_by_n(frame) == rows_by_n(plain)
    files = frame.inputFiles()
    assert len(files) == 2
    frame.createOrReplaceTempView("clicks")
    row = spark.sql("select count(*), sum(n) from clicks").first()
    assert tuple(row) == (8 * ROWS, sum(range(8 * ROWS)))
    chosen = spark_frame(spark, lake, columns="tag,n")
    assert chosen.columns == ["tag", "n"]
    assert numbers(chosen) == list(range(8 * ROWS))


def test_what_comes_later_is_not_read(spark, lake):
    """A DataFrame stays what it was, whatever is published, put in or compacted later."""
    lake.produce(4)
    lake.put(0, 2)
    frame = spark_frame(spark, lake)
    ends = spark_frame(spark, lake, until={0: 3})
    lake.produce(2)
    lake.put(2, 5)
    compact(lake.table)

    for _ in range(2):
        assert numbers(frame) == list(range(4 * ROWS))
        assert numbers(ends) == list(range(3 * ROWS))
    assert numbers(spark_frame(spark, lake)) == list(range(6 * ROWS))
    assert numbers(spark_frame(spark, lake, until={0: 5})) == list(range(5 * ROWS))
    assert numbers(spark_frame(spark, lake, until={0: 0})) == []


def test_ranges_without_rows(spark, lake):
    """A table that has offsets, and no file for them, because all of it was left out."""
    lake.produce(2)
    lake.put(0, 1, without_rows=True)

    assert numbers(spark_frame(spark, lake, until={0: 1}, minPartitions=1)) == []
    assert numbers(spark_frame(spark, lake)) == list(range(ROWS, 2 * ROWS)) == lake.numbers()


def test_rows_of_other_topics_and_lives(spark, broker, lake, tmp_path):
    """Rows of another topic, or of another incarnation, in the same table are not its rows."""
    lake.produce(3)
    lake.put(0, 2)
    with AdminClient(lake.address) as admin:
        admin.delete_topic(lake.topic)
        admin.create_topic(lake.topic, schema=lake.schema, batch_age="5ms", read_partitions=1)
    lake.written = 1_000
    lake.produce(2)
    assert numbers(spark_frame(spark, lake)) == list(range(1_000, 1_020))
    lake.put(1, 2)
    assert numbers(spark_frame(spark, lake)) == list(range(1_000, 1_020))

    other = TopicLake(broker.address, tmp_path)
    other.produce(1)
    frame = scan(spark, bootstrap=other.address, topic=other.topic, table=lake.table)
    assert numbers(frame) == list(range(ROWS))


def test_columns_that_files_do_not_have(spark, lake):
    """Nulls, for columns that were added to the topic later; one that was dropped is refused."""
    lake.produce(2)
    lake.put(0, 1)
    lake.grow()
    lake.produce(2)
    assert scores(spark, lake) == set(range(2 * ROWS, 4 * ROWS))

    lake.put(2, 3)
    compact(lake.table)
    assert scores(spark, lake) == set(range(2 * ROWS, 4 * ROWS))

    with lake.table.load().update_schema() as update:
        update.delete_column("score")
    with pytest.raises(
        SchemaMismatchError, match="column 'score' was renamed, dropped or made anew"
    ):
        scores(spark, lake)


def scores(spark, lake):
    """Which rows have a score, and the right one."""
    rows = spark_frame(spark, lake).select("n", "score").collect()
    assert len(rows) == lake.written
    found = {row["n"]: row["score"] for row in rows if row["score"] is not None}
    assert all(score == n / 2 for n, score in found.items())
    return set(found)


def test_files_that_do_not_say_what_the_table_says(spark, lake):
    """Rows marked as deleted, and columns under other names, are refused and not misread."""
    lake.produce(2)
    lake.put(0, 1)
    with lake.table.load().update_schema() as update:
        update.rename_column("sequence", "number")
    with pytest.raises(SchemaMismatchError, match="column 'sequence' was renamed, dropped or made"):
        spark_frame(spark, lake)

    with lake.table.load().update_schema() as update:
        update.rename_column("epoch", "sequence")
    with pytest.raises(SchemaMismatchError, match="column 'sequence' was renamed, dropped or made"):
        spark_frame(spark, lake, columns="n,sequence")
    assert numbers(spark_frame(spark, lake, columns="n")) == list(range(2 * ROWS))

    mark_deleted(lake.table, 3)
    with pytest.raises(ConfigError, match="marks rows as deleted"):
        spark_frame(spark, lake, columns="n")
    assert lake.numbers() == [n for n in range(2 * ROWS) if n != 3]


def put_first(spark, broker, topic, folder):
    """Put the first Batch into a table of a catalog in a folder; return the table's name."""
    job = IcebergJob(
        name="to_lake",
        topic=topic,
        output=f"local:lake.{topic}",
        catalog_options=catalog_options(folder),
        bootstrap=broker.address,
        range=OffsetRange(0, 0, 1),
        manifest=f"file://{folder}/manifest.json",
    )
    range_to_iceberg(spark, job)
    return job.output


def test_names_that_other_writers_spell_otherwise(spark, broker, make_topic, tmp_path):
    """A column such as `user-id` is read from Spark's own files, and never as nulls from others."""
    catalog = catalog_options(tmp_path)
    schema = pa.schema([("n", pa.int64()), ("user-id", pa.string())])
    topic = make_topic(schema=schema)
    with Producer(broker.address, topic=topic, acks="all") as producer:
        for n in range(2):
            producer.write_table(pa.table({"n": [n], "user-id": [f"u{n}"]}, schema=schema))
            producer.flush(timeout=60)
    table = put_first(spark, broker, topic, tmp_path)
    opened = open_table(table, catalog)
    given = {"bootstrap": broker.address, "topic": topic, "table": opened}
    expected = [(0, "u0"), (1, "u1")]

    def by_spark():
        return sorted(map(tuple, scan(spark, columns="n,user-id", **given).collect()))

    assert by_spark() == expected
    compact(opened)
    with pytest.raises(
        ConfigError, match=r"column 'user-id' of table .* is called 'user_x2Did' in"
    ):
        by_spark()
    assert numbers(scan(spark, columns="n", **given)) == [0, 1]
    found = scan_in_arrow(broker.address, topic=topic, table=opened).read_all()
    assert sorted((row["n"], row["user-id"]) for row in found.to_pylist()) == expected


def test_files_that_spark_passes_over(spark, lake):
    """Spark hides files by their names; their rows are not left out in silence."""
    lake.produce(2)
    lake.put(0, 1, prefix="_")
    with pytest.raises(StorageError, match=r"has 1 file, of which Spark sees 0"):
        spark_frame(spark, lake)


def test_all_types_that_a_table_takes(spark, broker, make_topic, tmp_path):
    """Each comes back as the topic has it, as Spark wrote it and after a compaction."""
    topic, catalog = make_topic(schema=TYPED), catalog_options(tmp_path)
    for n in range(2):
        with Producer(broker.address, topic=topic, acks="all") as producer:
            producer.write_table(pa.Table.from_pylist([typed_row(n), {"n": n + 2}], schema=TYPED))
            producer.flush(timeout=60)
    table = put_first(spark, broker, topic, tmp_path)

    plain = spark.read.format("memq").options(bootstrap=broker.address, topic=topic).load()
    for _ in range(2):
        frame = scan(
            spark, bootstrap=broker.address, topic=topic, table=table, catalog_options=catalog
        )
        assert frame.schema == plain.schema
        assert rows_by_n(frame) == rows_by_n(plain)
        compact(open_table(table, catalog))


TYPED = pa.schema(
    [
        ("n", pa.int8()),
        ("small", pa.int16()),
        ("unsigned", pa.uint64()),
        ("name", pa.string()),
        ("raw", pa.binary()),
        ("price", pa.decimal128(10, 2)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("wall", pa.timestamp("us")),
        ("tags", pa.list_(pa.uint8())),
        ("inner", pa.struct([("deep", pa.list_(pa.timestamp("us", "UTC"))), ("x", pa.int16())])),
        ("more", pa.map_(pa.string(), pa.int8())),
    ]
)


def typed_row(n):
    long_ago = datetime(1500, 1, 1, tzinfo=UTC)
    return {
        "n": n,
        "small": -5,
        "unsigned": 2**64 - 1,
        "name": "é`",
        "raw": b"\xff",
        "price": Decimal("-1.25"),
        "day": long_ago.date(),
        "at": long_ago,
        "wall": long_ago.replace(tzinfo=None),
        "tags": [255, None],
        "inner": {"deep": [long_ago], "x": None},
        "more": [("a", -128)],
    }


def rows_by_n(frame):
    """Compared in Arrow, as Python has its own mind about times of long ago."""
    return frame.toArrow().sort_by("n").to_pylist()


@follows("name others in the option 'columns', or use memq.scan, which converts it")
def test_a_column_of_another_type(spark, lake):
    """A table whose column somebody has widened is not read as something else."""
    lake.produce(1)
    lake.put(0, 1)
    with lake.table.load().update_schema() as update:
        update.update_column("tag", field_type=LongType())

    with pytest.raises(SchemaMismatchError, match=r"'tag' is bigint in table .* and int in the"):
        spark_frame(spark, lake)
    assert numbers(spark_frame(spark, lake, columns="n")) == list(range(ROWS))
    assert lake.scan().read_all()["tag"].to_pylist() == [n % 7 for n in range(ROWS)]


@follows("Put in the ranges between them first, or use memq.scan")
def test_a_table_with_many_gaps(spark, lake, monkeypatch):
    """Each gap is a read of its own, so there is a limit."""
    monkeypatch.setattr(table_scan, "MAX_READS", 2)
    lake.produce(5)
    lake.put(1, 2)
    lake.put(3, 4)

    with pytest.raises(LimitReachedError, match="2 gaps in a read partition"):
        spark_frame(spark, lake)
    lake.put(0, 1)
    assert numbers(spark_frame(spark, lake)) == list(range(5 * ROWS))
    lake.put(2, 3)
    assert lake.numbers() == list(range(5 * ROWS))


@follows("filter the DataFrame, or give until")
@pytest.mark.parametrize("option", ["startingOffsets", "endingtimestamp", "view"])
def test_options_that_choose_rows(spark, lake, option):
    """Offsets and times are those of the topic alone."""
    with pytest.raises(ConfigError, match="not with a table; filter the DataFrame, or give until"):
        spark_frame(spark, lake, **{option: "latest"})
