"""Rows from Spark to a topic: what arrives, what is refused, and that retries double nothing."""

from __future__ import annotations

import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's documentation has it

from memq import AdminClient, read_range
from memq.client.topic import SyncTopicClient
from memq.errors import SequenceConflictError
from memq.spark.options import parse_write_options
from memq.spark.write_plan import plan_write
from memq.spark.writer import write_rows
from tests.system.spark.faulty import FaultySource, until_published

MOMENT = datetime(2025, 6, 30, 12, tzinfo=UTC)
LATE = 40  # in pieces of 200 rows; by then some rows have gone through all of Spark's buffers


@pytest.fixture(autouse=True)
def small_batches(spark):
    """A task gets its rows in several pieces, so that it can fail in between."""
    spark.dataSource.register(FaultySource)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "200")
    yield
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


class Topic:
    """A topic to write to, and what is in it."""

    def __init__(self, name, address):
        self.name, self.address = name, address

    def save(self, rows, source="memq", mode="append", **options):
        options = {"bootstrap": self.address, "topic": self.name} | options
        rows.write.format(source).options(**options).mode(mode).save()

    def table(self):
        """All that can be read."""
        with AdminClient(self.address) as admin:
            offsets = admin.offsets(self.name)
        return pa.concat_tables(
            read_range(
                self.address, topic=self.name, partition=p.partition, start=p.start, end=p.end
            )
            for p in offsets
        )

    def values(self):
        return Counter(self.table()["value"].to_pylist())

    def published(self):
        """All notifications."""
        with SyncTopicClient(self.address, self.name) as client:
            ranges = client.ranges_between(None, None)
            return [batch.notification for batch in client.batches(ranges)]

    def published_records(self):
        return sum(notification.records for notification in self.published())


@pytest.fixture
def topic(make_topic, broker):
    return Topic(make_topic(write_partitions=2, read_partitions=2), broker.address)


def numbered(spark, count, tasks=2):
    """Rows that are alike in every attempt, of about 50 bytes."""
    value = F.concat(F.lit("the value of a row, numbered "), F.col("id").cast("string"))
    return spark.range(0, count, 1, tasks).select(value.alias("value"))


def expected(count):
    return Counter(b"the value of a row, numbered %d" % number for number in range(count))


# -- what arrives ---------------------------------------------------------------------------


def test_rows_arrive_as_they_are(spark, topic):
    """Key, value, headers and timestamp of each row are those of its LogMessage."""
    rows = spark.createDataFrame(
        [("k", bytearray(b"v"), {"h": bytearray(b"x")}, MOMENT), (None, None, None, MOMENT)],
        "key string, value binary, headers map<string, binary>, timestamp timestamp",
    )

    topic.save(rows)

    found = sorted(topic.table().to_pylist(), key=lambda row: row["key"] or b"")
    assert found == [
        {"key": None, "value": None, "headers": None, "timestamp": MOMENT},
        {"key": b"k", "value": b"v", "headers": [("h", b"x")], "timestamp": MOMENT},
    ]


def test_rows_without_a_time_get_that_of_the_write(spark, topic):
    """All rows of a write that have no timestamp have the same one: when it was planned."""
    before = datetime.now(UTC)
    topic.save(numbered(spark, 1_000))
    times = set(topic.table()["timestamp"].to_pylist())

    assert len(times) == 1
    assert before <= times.pop() <= datetime.now(UTC)
    assert topic.values() == expected(1_000)


def test_a_typed_topic_takes_its_own_columns(spark, make_topic, broker):
    """Columns are cast to the topic's where that loses nothing; missing ones become nulls."""
    schema = pa.schema([("user", pa.utf8()), ("clicks", pa.int32()), ("note", pa.utf8())])
    topic = Topic(make_topic(schema=schema), broker.address)

    topic.save(spark.createDataFrame([("a", 1), ("b", 2)], "user string, clicks long"))

    found = sorted(topic.table().to_pylist(), key=lambda row: row["user"])
    assert found == [
        {"user": "a", "clicks": 1, "note": None},
        {"user": "b", "clicks": 2, "note": None},
    ]


def test_no_rows_write_nothing(spark, topic):
    """A DataFrame without rows is written without a Batch."""
    topic.save(numbered(spark, 0))
    assert topic.published() == []


# -- retries --------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["raise", "kill"])
def test_a_writer_that_fails_in_the_middle_doubles_nothing(spark, topic, fault):
    """Every task fails twice after it has published rows; each row is published exactly once."""
    topic.save(numbered(spark, 4_000), "memq_faulty", fault=fault, messageBytes="2KiB")

    assert topic.published_records() == 4_000
    assert topic.values() == expected(4_000)


def test_the_process_that_makes_the_rows_may_die(spark, topic):
    """When what the rows come from is killed in mid-task, each row is published exactly once."""

    def dying(batches):
        import os

        attempt = TaskContext.get().attemptNumber()
        for number, batch in enumerate(batches):
            if attempt == 0 and number == LATE:
                os._exit(1)
            yield batch

    rows = numbered(spark, 20_000).mapInArrow(dying, "value string")
    topic.save(rows)

    assert topic.published_records() == 20_000
    assert topic.values() == expected(20_000)


def test_attempts_at_the_same_time_double_nothing(spark, topic):
    """Two attempts of a task that write at the same time publish each row once."""
    rows = numbered(spark, 5_000, tasks=1)
    options = {"bootstrap": topic.address, "topic": topic.name, "messageBytes": "2KiB"}
    plan = plan_write(parse_write_options(options), rows.schema, overwrite=False, now_us=7)
    batches = rows.toArrow().to_batches(max_chunksize=200)

    with ThreadPoolExecutor(3) as executor:
        attempts = [executor.submit(write_rows, plan, batches, "twins") for _ in range(3)]
        written = [attempt.result() for attempt in attempts]

    assert {(each.records, each.messages) for each in written} == {(5_000, written[0].messages)}
    assert topic.published_records() == 5_000
    assert topic.values() == expected(5_000)


def test_an_attempt_with_other_rows_fails_and_doubles_nothing(spark, topic):
    """Rows that differ from attempt to attempt fail the write with a reason, and are not mixed."""
    with pytest.raises(PySparkException, match="an earlier attempt wrote other rows"):
        topic.save(numbered(spark, 10_000, tasks=1), "memq_faulty", fault="change")

    assert all(count == 1 for count in topic.values().values())


def test_a_named_write_that_failed_is_completed_by_its_next_run(spark, topic):
    """After a write that failed for good, one with the same jobId adds just what is missing."""
    address, name = topic.address, topic.name

    def failing(batches):
        for number, batch in enumerate(batches):
            if TaskContext.get().partitionId() == 1 and number == LATE:
                until_published(address, name)
                raise RuntimeError("this task always fails")
            yield batch

    rows = numbered(spark, 20_000).withColumn("timestamp", F.lit(MOMENT))
    options = {"jobId": "nightly 2025-06-30"}
    with pytest.raises(PySparkException, match="this task always fails"):
        topic.save(rows.mapInArrow(failing, rows.schema), **options)
    assert 0 < topic.published_records() < 20_000

    topic.save(rows, **options)
    topic.save(rows, **options)

    assert topic.published_records() == 20_000
    assert topic.values() == expected(20_000)


def test_two_writes_are_two_writes(spark, topic):
    """Without a jobId the same rows written twice are there twice."""
    for _ in range(2):
        topic.save(numbered(spark, 500))
    assert topic.published_records() == 1_000


def test_a_named_write_finds_its_rows_in_a_topic_that_has_grown(spark, topic):
    """Write partitions that are added between two runs of a named write double nothing."""
    rows = numbered(spark, 2_000).withColumn("timestamp", F.lit(MOMENT))
    topic.save(rows, jobId="nightly")
    with AdminClient(topic.address) as admin:
        admin.alter_topic(topic.name, write_partitions=5)

    topic.save(rows, jobId="nightly")

    assert topic.published_records() == 2_000


def test_a_conflict_has_its_own_type(spark, topic):
    """Other rows under the name of a task are a SequenceConflictError that says what to do."""
    rows = numbered(spark, 10)
    options = {"bootstrap": topic.address, "topic": topic.name}
    plan = plan_write(parse_write_options(options), rows.schema, overwrite=False, now_us=7)
    write_rows(plan, rows.toArrow().to_batches(), "same")

    with pytest.raises(SequenceConflictError, match="sortWithinPartitions"):
        write_rows(plan, rows.toArrow().slice(1).to_batches(), "same")


# -- what is refused ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        (["value"], {"mode": "overwrite"}, "a topic cannot be overwritten"),
        (
            ["value"],
            {"compresion": "zstd"},
            r"unknown option 'compresion' \(here it is compression\); a write knows bootstrap",
        ),
        (["value"], {"compression": "gzip"}, "'gzip.*must be none or zstd or lz4"),
        (["value"], {"messageBytes": "1"}, "message_bytes"),
        (["value"], {"jobId": "x" * 129}, "must have 1 to 128 bytes"),
        (["value"], {"jobId": "x"}, "rows need a column 'timestamp'"),
        (["value", "wrong"], {}, "column 'wrong' is not in the schema"),
        (["key"], {}, "takes a column 'value' .string or binary., and may have"),
        (["value", "timestamp"], {}, "expects column 'timestamp' as timestamp"),
        (["value"], {"topic": "no-such-topic"}, "no-such-topic"),
    ],
)
def test_what_cannot_be_written_is_refused_at_once(spark, topic, columns, options, message):
    """A wrong option or column is named before any task has started."""
    rows = spark.range(3).select(*(F.lit("x").alias(name) for name in columns))
    with pytest.raises(AnalysisException, match=message):
        topic.save(rows, **options)


def test_a_row_that_cannot_be_written_fails_its_task_before_anything_is_public(spark, topic):
    """A null timestamp at row 25,000 fails the write, and no row of its partition can be read."""
    bad = F.expr("value like '%numbered 25000'")
    rows = numbered(spark, 30_000, tasks=1).withColumn(
        "timestamp", F.when(bad, None).otherwise(F.lit(MOMENT))
    )

    with pytest.raises(PySparkException, match="not null, but row 25000 is null"):
        topic.save(rows)

    assert topic.published() == []


# -- time zones -----------------------------------------------------------------------------


@pytest.fixture
def zone(spark, request):
    """The time zone of the session, for one test."""
    spark.conf.set("spark.sql.session.timeZone", request.param)
    yield request.param
    spark.conf.set("spark.sql.session.timeZone", "UTC")


TIMES = pa.schema([("instant", pa.timestamp("us", "UTC")), ("local", pa.timestamp("us"))])
NOON = datetime(2025, 6, 30, 12)  # noqa: DTZ001 - a time without a zone
ZONES = pytest.mark.parametrize(
    "zone", ["UTC", "America/New_York", "Asia/Kolkata"], indirect=True, ids=str
)


@ZONES
def test_times_are_the_same_in_every_zone(spark, make_topic, broker, zone):
    """Instants and local times go to a topic and come back as they are, whatever the session."""
    topic = Topic(make_topic(schema=TIMES), broker.address)
    rows = spark.sql(
        "SELECT timestamp'2025-06-30 12:00:00' AS instant, "
        "timestamp_ntz'2025-06-30 12:00:00' AS local"
    )

    topic.save(rows)

    stored = topic.table().to_pylist()
    assert stored == [{"instant": NOON.replace(tzinfo=ZoneInfo(zone)), "local": NOON}]
    back = spark.read.format("memq").options(bootstrap=topic.address, topic=topic.name)
    texts = back.load().selectExpr("string(instant)", "string(local)").collect()
    assert texts == [("2025-06-30 12:00:00", "2025-06-30 12:00:00")]


@ZONES
def test_a_local_time_becomes_an_instant_by_a_cast_of_the_query(spark, make_topic, broker, zone):
    """A time without a zone is refused for an instant, and the other way round; Spark's own cast,
    which the error asks for, stores what the session means.
    """
    topic = Topic(make_topic(schema=TIMES), broker.address)
    rows = spark.sql(
        "SELECT timestamp_ntz'2025-06-30 12:00:00' AS instant, "
        "timestamp'2025-06-30 12:00:00' AS local"
    )

    with pytest.raises(AnalysisException, match=r"an instant, but got .* cast it first"):
        topic.save(rows.select("instant"))
    with pytest.raises(AnalysisException, match=r"a time without a zone, but got .* cast it first"):
        topic.save(rows.select("local"))
    topic.save(rows.select(rows.instant.cast("timestamp"), rows.local.cast("timestamp_ntz")))

    stored = topic.table().to_pylist()
    assert stored == [{"instant": NOON.replace(tzinfo=ZoneInfo(zone)), "local": NOON}]


# -- streams --------------------------------------------------------------------------------


def test_a_micro_batch_that_is_run_again_doubles_nothing(spark, topic, tmp_path):
    """A stream whose last commits are lost runs these micro-batches again; each row is there once.

    It is what happens when the driver dies between writing a micro-batch and noting that it did.
    """
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    source.mkdir()

    def run():
        rows = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(source))
        timed = rows.withColumn("timestamp", F.current_timestamp())
        writer = timed.writeStream.format("memq").option("checkpointLocation", str(checkpoint))
        writer = writer.option("bootstrap", topic.address).option("topic", topic.name)
        assert writer.trigger(availableNow=True).start().awaitTermination(60)

    for number in range(3):
        lines = [f"line {number * 300 + line}" for line in range(300)]
        (source / f"{number}.txt").write_text("\n".join(lines))
        run()
    commits = checkpoint / "commits"
    newest = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    for path in commits.iterdir():
        if re.fullmatch(rf"\.?{newest}(\.crc)?", path.name):
            path.unlink()
    run()

    assert topic.published_records() == 900
    assert topic.values() == Counter(b"line %d" % number for number in range(900))


@pytest.mark.parametrize(
    ("options", "timed", "message"),
    [({}, False, "rows need a column 'timestamp'"), ({"jobId": "x"}, True, "is for batch writes")],
)
def test_a_stream_that_could_double_is_refused(  # noqa: PLR0917 - fixtures and a case
    spark, topic, tmp_path, options, timed, message
):
    """A stream needs rows whose timestamps stay, and takes no name but its own."""
    Path(tmp_path / "source").mkdir()
    Path(tmp_path / "source" / "0.txt").write_text("a line")
    rows = spark.readStream.format("text").load(str(tmp_path / "source"))
    rows = rows.withColumn("timestamp", F.current_timestamp()) if timed else rows
    options = {"bootstrap": topic.address, "topic": topic.name, **options}
    query = (
        rows.writeStream.format("memq")
        .options(**options)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
    )
    with pytest.raises(PySparkException, match=message):
        query.start().awaitTermination(60)
