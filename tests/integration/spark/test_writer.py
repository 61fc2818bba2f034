"""What a task of a write does: nothing of it is public before all of its rows are good, and what
is tried again is there once.
"""

import itertools
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from memq import AdminClient, read_range
from memq.client.topic import SyncTopicClient
from memq.errors import (
    ConfigError,
    InvalidRequestError,
    MemqError,
    SchemaMismatchError,
    SequenceConflictError,
    TopicRecreatedError,
    UnknownTopicError,
)
from memq.spark import MemqDataSource
from memq.spark.options import parse_write_options
from memq.spark.writer import plan_write, write_rows

ROWS = StructType([StructField("value", StringType()), StructField("timestamp", TimestampType())])
ARROW = pa.schema([("value", pa.utf8()), ("timestamp", pa.timestamp("us", "UTC"))])
_names = (f"rows-{number}" for number in itertools.count())


@pytest.fixture
def plan(broker):
    """The plan of a write to a topic of its own."""
    where = {"bootstrap": broker.address, "topic": next(_names), "messageBytes": "1KiB"}
    with AdminClient(broker.address) as admin:
        admin.create_topic(where["topic"], batch_age="1ms", write_partitions=1, read_partitions=1)
    return plan_write(parse_write_options(where), ROWS, overwrite=False, now_us=7)


def batches(*values):
    """An Arrow batch for each value, as Spark hands them over."""
    for value, time in values:
        yield pa.record_batch([[value] * 100, [time] * 100], schema=ARROW)


def stored(plan):
    """The values of all rows that can be read, in order."""
    return read_range(plan.bootstrap, topic=plan.topic)["value"].to_pylist()


def published_records(plan):
    """How many records the notifications have."""
    with SyncTopicClient(plan.bootstrap, plan.topic) as client:
        found = client.batches(client.ranges_between(None, None))
        return sum(each.notification.records for each in found)


@pytest.mark.parametrize("last", [("late", None), ("x" * (2 << 20), 9)], ids=["null", "large"])
def test_a_bad_row_at_the_end_leaves_nothing(plan, last):
    """A null or a row that is too large in the last Arrow batch is found before the first Message
    is sent.
    """
    with AdminClient(plan.bootstrap) as admin:
        admin.alter_topic(plan.topic, message_bytes="1MiB")

    with pytest.raises(MemqError):
        write_rows(plan, batches(("a", 1), ("b", 2), last), "task")

    assert stored(plan) == []


def test_the_next_attempt_writes_all_rows_once(plan):
    """What a failed task only checked is neither written by the next attempt nor a duplicate; nor
    is what was written before the topic grew.
    """
    with pytest.raises(SchemaMismatchError, match="not null, but row 100 is null"):
        write_rows(plan, batches(("a", 1), ("b", None)), "task")

    for again in (False, True):
        written = write_rows(plan, batches(("a", 1), ("b", 2)), "task")
        assert written.records == 200
        assert written.duplicates == (written.messages if again else 0)
        with AdminClient(plan.bootstrap) as admin:
            admin.alter_topic(plan.topic, write_partitions=5)
    assert stored(plan) == [b"a"] * 100 + [b"b"] * 100


def test_attempts_at_the_same_time_double_nothing(plan):
    """Attempts of a task that write at the same time publish each row once."""
    rows = list(batches(*((str(number), number) for number in range(20))))

    with ThreadPoolExecutor(3) as executor:
        attempts = [executor.submit(write_rows, plan, rows, "twins") for _ in range(3)]
        written = [attempt.result() for attempt in attempts]

    assert {(each.records, each.messages) for each in written} == {(2_000, written[0].messages)}
    assert published_records(plan) == 2_000
    assert Counter(stored(plan)) == {b"%d" % number: 100 for number in range(20)}


def test_other_rows_under_the_name_of_a_task_are_refused(plan):
    """The error has a type of its own and says what to do; nothing is mixed or there twice."""
    write_rows(plan, batches(("a", 1), ("b", 2)), "task")

    with pytest.raises(SequenceConflictError, match="sortWithinPartitions"):
        write_rows(plan, batches(("b", 2), ("a", 1)), "task")
    assert stored(plan) == [b"a"] * 100 + [b"b"] * 100


def test_a_topic_made_again_gets_nothing_of_the_plan(plan):
    """A task whose topic is another one than at planning ends with an error."""
    with AdminClient(plan.bootstrap) as admin:
        admin.delete_topic(plan.topic)
        admin.create_topic(plan.topic, read_partitions=1)

    with pytest.raises(TopicRecreatedError, match="write the DataFrame, or start the query, again"):
        write_rows(plan, batches(("a", 1)), "task")
    assert stored(plan) == []


@pytest.mark.parametrize(
    ("columns", "options", "error", "message"),
    [
        ("value", {"overwrite": True}, InvalidRequestError, "a topic cannot be overwritten"),
        ("value", {"jobId": "x"}, ConfigError, "rows need a column 'timestamp'"),
        ("value wrong", {}, SchemaMismatchError, "column 'wrong' is not in the schema"),
        ("key", {}, SchemaMismatchError, "takes a column 'value' .string or binary., and may"),
        ("value timestamp", {}, SchemaMismatchError, "expects column 'timestamp' as timestamp"),
        ("value", {"topic": "no-such-topic"}, UnknownTopicError, "no-such-topic"),
        ("value", {"partitionBy": "value"}, ConfigError, "choose none or one of key"),
        ("value", {"partitionBy": "key"}, ConfigError, "no such column; they have value"),
        ("value", {"stream": True}, ConfigError, "rows need a column 'timestamp'"),
        ("value", {"stream": True, "jobId": "x"}, ConfigError, "is for batch writes"),
    ],
)
def test_what_cannot_be_written_is_refused_at_once(plan, columns, options, error, message):
    """A wrong option or column is named before any task has started; of a stream also what could
    double rows: those whose timestamps do not stay, and a name but its own.
    """
    kinds = {"timestamp": LongType()}
    schema = StructType([StructField(n, kinds.get(n, StringType())) for n in columns.split()])
    given = {"bootstrap": plan.bootstrap, "topic": plan.topic} | options
    overwrite, stream = given.pop("overwrite", False), given.pop("stream", False)
    source = MemqDataSource(given)

    with pytest.raises(error, match=message):
        (source.streamWriter if stream else source.writer)(schema, overwrite)
