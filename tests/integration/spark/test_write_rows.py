"""What a task of a write does: nothing of it is public before all of its rows are good."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from memq import AdminClient, read_range
from memq.core.keys import partition_of
from memq.errors import ConfigError, MemqError, SchemaMismatchError, TopicRecreatedError
from memq.spark.options import parse_write_options
from memq.spark.write_plan import plan_write
from memq.spark.writer import write_rows

ROWS = StructType([StructField("value", StringType()), StructField("timestamp", TimestampType())])
ARROW = pa.schema([("value", pa.utf8()), ("timestamp", pa.timestamp("us", "UTC"))])
_names = (f"rows-{number}" for number in itertools.count())


@pytest.fixture
def plan(broker):
    """The plan of a write to a topic of its own."""
    name = next(_names)
    with AdminClient(broker.address) as admin:
        admin.create_topic(name, batch_age="1ms", write_partitions=1, read_partitions=1)
    where = {"bootstrap": broker.address, "topic": name, "messageBytes": "1KiB"}
    return plan_write(parse_write_options(where), ROWS, overwrite=False, now_us=None)


def batches(*values):
    """An Arrow batch for each value, as Spark hands them over."""
    for value, time in values:
        yield pa.record_batch([[value] * 100, [time] * 100], schema=ARROW)


def stored(plan):
    """The values of all rows that can be read, in order."""
    with AdminClient(plan.bootstrap) as admin:
        end = admin.offsets(plan.topic)[0].end
    found = read_range(plan.bootstrap, topic=plan.topic, partition=0, start=0, end=end)
    return found["value"].to_pylist()


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
    """What a failed task only checked is neither written by the next attempt nor a duplicate."""
    with pytest.raises(SchemaMismatchError, match="not null, but row 100 is null"):
        write_rows(plan, batches(("a", 1), ("b", None)), "task")

    for again in (False, True):
        written = write_rows(plan, batches(("a", 1), ("b", 2)), "task")
        assert written.records == 200
        assert written.duplicates == (written.messages if again else 0)
    assert stored(plan) == [b"a"] * 100 + [b"b"] * 100


def test_a_topic_made_again_gets_nothing_of_the_plan(plan):
    """A task whose topic is another one than at planning ends with an error."""
    with AdminClient(plan.bootstrap) as admin:
        admin.delete_topic(plan.topic)
        admin.create_topic(plan.topic, read_partitions=1)

    with pytest.raises(TopicRecreatedError, match="write the DataFrame, or start the query, again"):
        write_rows(plan, batches(("a", 1)), "task")
    assert stored(plan) == []


def test_rows_are_placed_by_their_key(broker):
    """With `partitionBy` the rows of a key go to one write partition, in every attempt again."""
    name = next(_names)
    with AdminClient(broker.address) as admin:
        admin.create_topic(
            name, batch_age="1ms", ordering="producer", write_partitions=3, read_partitions=3
        )
    where = {"bootstrap": broker.address, "topic": name, "partitionBy": "key"}
    schema = StructType([StructField("key", StringType()), *ROWS.fields])
    plan = plan_write(parse_write_options(where), schema, overwrite=False, now_us=None)
    keys = [f"k{number % 7}" for number in range(100)]
    rows = pa.record_batch(
        [keys, [str(number) for number in range(100)], [1] * 100],
        schema=pa.schema([("key", pa.utf8()), *ARROW]),
    )

    for again in (False, True):
        written = write_rows(plan, iter([rows]), "task")
        assert (written.records, written.duplicates) == (100, written.messages * again)

    for partition in range(3):
        with AdminClient(broker.address) as admin:
            end = admin.offsets(name)[partition].end
        found = read_range(broker.address, topic=name, partition=partition, start=0, end=end)
        assert found["value"].to_pylist() == [
            b"%d" % number
            for number, key in enumerate(keys)
            if partition_of(key.encode(), 3) == partition
        ]


@pytest.mark.parametrize(
    ("column", "problem"),
    [("value", "choose none or one of key"), ("key", "no such column; they have value, timestamp")],
)
def test_rows_that_cannot_be_placed_are_refused(broker, column, problem):
    """A write by what is no key, or is not in the rows, is refused before any task begins."""
    where = {"bootstrap": broker.address, "topic": next(_names), "partitionBy": column}
    with AdminClient(broker.address) as admin:
        admin.create_topic(where["topic"])

    with pytest.raises(ConfigError, match=problem):
        plan_write(parse_write_options(where), ROWS, overwrite=False, now_us=None)
