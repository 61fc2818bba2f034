"""What a task of a write does: nothing of it is public before all of its rows are good."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from memq import AdminClient, read_range
from memq.errors import MemqError, SchemaMismatchError, TopicRecreatedError
from memq.spark.options import parse_write_options
from memq.spark.write_plan import plan_write
from memq.spark.write_rows import Identity, write_rows

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
        write_rows(plan, Identity("task"), batches(("a", 1), ("b", 2), last))

    assert stored(plan) == []


def test_the_next_attempt_writes_all_rows_once(plan):
    """What a task that failed checked is no part of what the next attempt writes, nor a repeat."""
    with pytest.raises(SchemaMismatchError, match="not null, but 100 rows are null"):
        write_rows(plan, Identity("task"), batches(("a", 1), ("b", None)))

    for repeated in (False, True):
        written = write_rows(plan, Identity("task"), batches(("a", 1), ("b", 2)))
        assert written.records == 200
        assert written.repeated == (written.messages if repeated else 0)
    assert stored(plan) == [b"a"] * 100 + [b"b"] * 100


def test_a_topic_made_again_gets_nothing_of_the_plan(plan):
    """A task whose topic is another one than at planning ends with an error."""
    with AdminClient(plan.bootstrap) as admin:
        admin.delete_topic(plan.topic)
        admin.create_topic(plan.topic, read_partitions=1)

    with pytest.raises(TopicRecreatedError, match="write the DataFrame, or start the query, again"):
        write_rows(plan, Identity("task"), batches(("a", 1)))
    assert stored(plan) == []
