"""Rows from Spark to a topic: what arrives, what is refused, and that retries double nothing."""

import re
from collections import Counter
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's documentation has it

from memq import AdminClient, read_range
from memq.client.topic import SyncTopicClient
from memq.testing.broker import BrokerProcess
from tests.harness.certificates import Certificates
from tests.system.spark.faulty import FaultySource

MOMENT = datetime(2025, 6, 30, 12, tzinfo=UTC)


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
        return read_range(self.address, topic=self.name)

    def values(self):
        return Counter(self.table()["value"].to_pylist())

    def published_records(self):
        """How many all notifications have."""
        with SyncTopicClient(self.address, self.name) as client:
            found = client.batches(client.ranges_between(None, None))
            return sum(batch.notification.records for batch in found)


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


def test_rows_arrive_as_they_are(spark, make_topic, broker, topic):
    """Key, value, headers and timestamp of each row are those of its LogMessage; columns of a typed
    topic are cast where that loses nothing, and missing ones become nulls.
    """
    rows = spark.createDataFrame(
        [("k", bytearray(b"v"), {"h": bytearray(b"x")}, MOMENT), (None, None, None, MOMENT)],
        "key string, value binary, headers map<string, binary>, timestamp timestamp",
    )
    schema = pa.schema([("user", pa.utf8()), ("clicks", pa.int32()), ("note", pa.utf8())])
    typed = Topic(make_topic(schema=schema), broker.address)

    topic.save(rows)
    typed.save(spark.createDataFrame([("a", 1)], "user string, clicks long"))

    found = sorted(topic.table().to_pylist(), key=lambda row: row["key"] or b"")
    assert found == [
        {"key": None, "value": None, "headers": None, "timestamp": MOMENT},
        {"key": b"k", "value": b"v", "headers": [("h", b"x")], "timestamp": MOMENT},
    ]
    assert typed.table().to_pylist() == [{"user": "a", "clicks": 1, "note": None}]


# -- retries --------------------------------------------------------------------------------


def test_a_writer_that_is_killed_in_the_middle_doubles_nothing(spark, topic):
    """Every task is killed twice after it has published rows; each row is published once."""
    topic.save(numbered(spark, 4_000), "memq_faulty", messageBytes="2KiB")

    assert topic.published_records() == 4_000
    assert topic.values() == expected(4_000)


def test_a_write_that_is_run_again_by_its_name_doubles_nothing(spark, topic):
    """With `jobId` a second run adds what the first one did not write, and a third adds nothing."""
    rows = numbered(spark, 900).withColumn("timestamp", F.lit(MOMENT))
    broken = F.when(F.col("value").endswith("899"), F.raise_error(F.lit("broken")).cast("string"))
    with pytest.raises(PySparkException, match="broken"):
        topic.save(rows.withColumn("value", F.coalesce(broken, "value")), jobId="day 1")
    for _ in range(2):
        topic.save(rows, jobId="day 1")
        assert topic.published_records() == 900
    topic.save(rows, jobId="day 2")
    assert topic.published_records() == 1_800


# -- time zones -----------------------------------------------------------------------------


@pytest.fixture
def zone(spark, request):
    """The time zone of the session, for one test."""
    spark.conf.set("spark.sql.session.timeZone", request.param)
    yield request.param
    spark.conf.set("spark.sql.session.timeZone", "UTC")


TIMES = pa.schema([("instant", pa.timestamp("us", "UTC")), ("local", pa.timestamp("us"))])
NOON = datetime(2025, 6, 30, 12)  # noqa: DTZ001 - a time without a zone


@pytest.mark.parametrize("zone", ["America/New_York"], indirect=True)
def test_times_are_the_same_in_every_zone(spark, make_topic, broker, zone):
    """Instants and local times go to a topic and come back as they are, whatever the session. One
    is refused for the other; Spark's own cast, which the error asks for, stores what is meant.
    """
    topic = Topic(make_topic(schema=TIMES), broker.address)
    rows = spark.sql(
        "SELECT timestamp'2025-06-30 12:00:00' AS instant, "
        "timestamp_ntz'2025-06-30 12:00:00' AS local"
    )
    other = rows.select(rows.local.alias("instant"), rows.instant.alias("local"))
    with pytest.raises(AnalysisException, match=r"an instant, but got .* cast it first"):
        topic.save(other.select("instant"))

    topic.save(rows)
    topic.save(other.select(other.instant.cast("timestamp"), other.local.cast("timestamp_ntz")))

    stored = topic.table().to_pylist()
    assert stored == [{"instant": NOON.replace(tzinfo=ZoneInfo(zone)), "local": NOON}] * 2
    back = spark.read.format("memq").options(bootstrap=topic.address, topic=topic.name)
    texts = back.load().selectExpr("string(instant)", "string(local)").distinct().collect()
    assert texts == [("2025-06-30 12:00:00", "2025-06-30 12:00:00")]


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


def test_tls(spark, tmp_path):
    """Driver and workers write and read over TLS; without, the error says what to give."""
    certificates = Certificates(tmp_path)
    with BrokerProcess(tmp_path / "data", **certificates.broker_options()) as process:
        security = {"ca": certificates.ca}
        with AdminClient(process.address, security=security) as admin:
            admin.create_topic("t", write_partitions=2)
        place = {"bootstrap": process.address, "topic": "t"}
        secured = place | {"security": f"ca={certificates.ca}", "readThrough": "broker"}
        written = numbered(spark, 500).write.format("memq").mode("append")
        written.options(**place, security=secured["security"]).save()
        assert spark.read.format("memq").options(**secured).load().count() == 500
        with pytest.raises(PySparkException, match="the broker speaks TLS there: give `ca`"):
            spark.read.format("memq").options(**place).load().count()
