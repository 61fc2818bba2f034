"""Several topics in a stream, and topics as tables, with a real Spark."""

from collections import Counter

import pytest
from pyspark.errors import PySparkException

from memq import AdminClient
from memq.spark import progress_of
from tests.system.spark.reading import produce

TIMEOUT_S = 120


@pytest.fixture
def family(make_topic, broker):
    """Makes topics whose names begin alike, of one Batch for each value; returns the beginning."""
    first = make_topic(batch_age="1ms")

    def make(short, *values):
        name = f"{first}.{short}"
        with AdminClient(broker.address) as admin:
            admin.create_topic(name, batch_age="1ms")
        write(name, values)
        return name

    def write(name, values):
        for value in values:
            produce(broker.address, name, [value])

    make.prefix = first
    make.write = write
    return make


def test_a_pattern_is_followed_and_watched(spark, broker, family, tmp_path):
    """A stream of a pattern reads all of its topics, finds a new one, and its progress says how far
    it is, topic by topic.
    """
    a, b = family("a", *(b"a%d" % number for number in range(5))), family("b", b"b0", b"b1")

    def run():
        frame = spark.readStream.format("memq").options(
            bootstrap=broker.address,
            subscribePattern=f"{family.prefix}[.].*",
            startingOffsets="earliest",
            maxOffsetsPerTrigger="4",
        )
        writer = frame.load().select("topic", "value").writeStream.format("parquet")
        for name in ("path", "checkpointLocation"):
            writer = writer.option(name, str(tmp_path / name))
        query = writer.queryName("watched").trigger(availableNow=True).start()
        assert query.awaitTermination(TIMEOUT_S)
        found = [progress for each in query.recentProgress for progress in progress_of(each)]
        return [each for each in found if each.rows]

    first = run()
    c = family("c", b"c0")
    second = run()

    told = [(each.query, each.rows, each.offsets) for each in first + second]
    assert told == [("watched", 4, 4), ("watched", 3, 3), ("watched", 1, 1)]
    assert {name: lag.batches for name, lag in first[0].topics.items()} == {a: 1, b: 2}
    assert (first[0].lag.batches, first[1].lag.batches) == (3, 0)
    read = spark.read.parquet(str(tmp_path / "path")).collect()
    assert Counter((row.topic, bytes(row.value)) for row in read) == Counter(
        [*((a, b"a%d" % number) for number in range(5)), (b, b"b0"), (b, b"b1"), (c, b"c0")]
    )


def test_a_topic_as_a_table(spark, broker, family):
    """A table of the session catalog is read anew by each query, also as a stream, and WITH gives
    options to one query; a secret is refused, and so is a table whose columns are given.
    """
    name = family("table", b"0", b"1")
    options = f"bootstrap '{broker.address}', topic '{name}'"
    table = f"topic_{name.replace('-', '_').replace('.', '_')}"
    try:
        spark.sql(f"CREATE TABLE {table} USING memq OPTIONS ({options})")
        assert spark.table(table).count() == 2
        family.write(name, [b"2"])
        values = f"SELECT CAST(value AS STRING) AS v FROM {table}"  # noqa: S608 - a name of ours
        assert sorted(row.v for row in spark.sql(values).collect()) == ["0", "1", "2"]
        start = """WITH (startingOffsets = '{"0": 2}')"""
        assert [row.v for row in spark.sql(f"{values} {start}").collect()] == ["2"]
        stream = spark.readStream.option("startingOffsets", "earliest").table(table)
        query = stream.writeStream.format("noop").trigger(availableNow=True).start()
        assert query.awaitTermination(TIMEOUT_S)
        assert sum(each.numInputRows for each in query.recentProgress) == 3
    finally:
        spark.sql(f"DROP TABLE IF EXISTS {table}")
    with pytest.raises(PySparkException, match="option 'token' is a secret"):
        spark.sql(f"CREATE TABLE {table} USING memq OPTIONS ({options}, token 'x')")
    try:
        spark.sql(f"CREATE TABLE {table} (value BINARY) USING memq OPTIONS ({options})")
        with pytest.raises(PySparkException, match="no options of a table that was made with col"):
            spark.table(table).collect()
    finally:
        spark.sql(f"DROP TABLE IF EXISTS {table}")
