"""The data source over exact ranges, call by call: rows, columns, topics, and what is refused."""

import tracemalloc

import msgspec
import pyarrow as pa
import pytest

from memq import read_range
from memq.core.format.batch import ProducerRun
from memq.core.format.schema import RANGE_COLUMNS
from memq.core.ranges import OffsetRange
from memq.errors import SchemaMismatchError, TopicRecreatedError, UnknownTopicError
from memq.spark.compaction import Compaction, check_topic
from memq.spark.outputs import RangeJob, settled
from memq.tables.fitting import NAMING_COLUMNS
from tests.integration.spark.conftest import values
from tests.integration.spark.here import inputs, read, reader, table
from tests.integration.spark.stored import Stored
from tests.unit.reading.batches import Sent, records

PLANNED = 20_000
MAX_PLAN_BYTES = 2_048  # of memory for a notification with ten producers

TYPED = pa.schema(
    [
        ("name", pa.large_utf8()),
        ("count", pa.uint32()),
        ("big", pa.uint64()),
        ("at", pa.timestamp("ns", "UTC")),
        ("tags", pa.list_(pa.utf8())),
        ("spot", pa.struct([("x", pa.float64()), ("y", pa.float16())])),
    ]
)


def test_typed_topics_have_their_own_columns(topics):
    """With types that hold all of their values; one that was added later is null in rows from
    before, and origins of rows are beside them.
    """
    row = {"name": "é", "count": (1 << 32) - 1, "big": (1 << 64) - 1, "at": 1_000_000}
    row |= {"tags": ["a", None], "spot": {"x": 0.5, "y": 1.5}}
    topics.make("a", schema=TYPED)
    topics.write_rows("a", pa.Table.from_pylist([row, {}], TYPED))
    grown = TYPED.append(pa.field("late", pa.int64()))
    topics.admin.alter_topic(topics.name("a"), schema=grown)
    topics.write_rows("a", pa.Table.from_pylist([row | {"late": 7}], grown))
    expected = read_range(topics.address, topic=topics.name("a"), metadata=True)

    found = read(topics.address, topic=topics.name("a"))

    assert found.column_names[: len(grown)] == grown.names
    assert found.select(expected.column_names).equals(
        expected.cast(found.select(expected.column_names).schema)
    )
    assert set(found["topic"].to_pylist()) == {topics.name("a")}


FILES, TABLE = RANGE_COLUMNS, NAMING_COLUMNS
REFUSED = {
    "empty": ("c", pa.struct([]), {}, [FILES, TABLE]),
    "empty inside": ("c", pa.list_(pa.struct([("x", pa.struct([]))])), [], [FILES, TABLE]),
    "null inside": ("c", pa.map_(pa.utf8(), pa.null()), [], [TABLE]),
    "duration": ("c", pa.duration("s"), 1, [TABLE]),
    "case": ("N", pa.int64(), 1, [FILES, TABLE]),
    "folder": ("MEMQ_range", pa.utf8(), "mine", [FILES]),
    "naming": ("offset", pa.int64(), 7, [TABLE]),
}


@pytest.mark.parametrize("column", REFUSED.values(), ids=REFUSED)
def test_columns_that_outputs_cannot_hold(topics, column):
    """They are refused with the column's name, before Spark writes anything; others are read."""
    name, kind, value, refuse = column
    schema = pa.schema([("n", pa.int64()), (name, kind)])
    topics.make("a", schema=schema)
    topics.write_rows("a", pa.Table.from_pylist([{"n": 1, name: value}], schema))
    where = {"bootstrap": topics.address, "topic": topics.name("a")}
    job = RangeJob(name="j", output="o", manifest="m", range=OffsetRange(0, 0, 1), **where)

    for reserved in (FILES, TABLE):
        if reserved in refuse:
            with pytest.raises(SchemaMismatchError, match=f"'{name}") as refused:
                settled(job, reserved)
            assert not refused.value.retriable
        else:
            assert settled(job, reserved)[1][:2] == ["n", name]
    if FILES in refuse:
        with pytest.raises(SchemaMismatchError):
            check_topic(Compaction(name="j", output="o", **where))
    assert read(topics.address, topic=topics.name("a"), columns="n")["n"].to_pylist() == [1]


def test_a_range_is_read_in_the_topic_that_it_was_planned_for(topics):
    """With the option `topicId`, another topic of that name is an error; the topic of a
    DataFrame is the one that its first plan met.
    """
    topics.make("a", "old")
    where = {"topic": topics.name("a")}
    planned = where | {"topicId": topics.topic_id("a")}
    assert values(read(topics.address, **planned)) == [("a", "old")]
    made, schema = reader(topics.address, **where)
    topics.make_again("a", "new")

    with pytest.raises(TopicRecreatedError, match="recreated"):
        read(topics.address, **planned)
    with pytest.raises(TopicRecreatedError, match="load\\(\\) the DataFrame again"):
        table(made, made.partitions(), schema)
    assert values(read(topics.address, **where)) == [("a", "new")]


def test_a_plan_needs_little_memory_for_each_notification(tmp_path):
    """A plan covers all of 20,000 notifications, and takes at most two kilobytes for each."""
    with Stored(tmp_path, partitions=4) as found:
        like = found.batch(Sent("p", 0, records(b"v")), batch_id="b")
        found.publish(*((number % 4, numbered(like, number)) for number in range(PLANNED)))
        tracemalloc.start()
        planned = inputs(found.address)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()

    assert sum(len(each.ranges) for each in planned) == PLANNED
    assert peak < PLANNED * MAX_PLAN_BYTES


def numbered(like, number):
    """A notification as busy topics have them: ten producers with a run each."""
    runs = [ProducerRun(f"producer-{n}", 0, number, number, 100, number) for n in range(10)]
    return msgspec.structs.replace(
        like, batch_id=f"{number:026d}", size_bytes=8 << 20, producers=runs
    )


# -- several topics -------------------------------------------------------------------------


@pytest.mark.parametrize("through", ["storage", "broker"])
def test_several_topics_in_one_read(topics, through):
    """Names and a pattern give the rows of all topics, each with its topic; few tasks read many."""
    topics.make("a", "1", "2")
    topics.make("b", "1", read_partitions=2)
    topics.make("other-topic", "9")

    for names in (topics.subscribe("b", "a"), topics.pattern):
        options = names | {"readThrough": through}
        assert values(read(topics.address, **options)) == [("a", "1"), ("a", "2"), ("b", "1")]
        assert len(inputs(topics.address, **options)) == 1


def test_topics_must_agree_in_their_columns(topics):
    """Topics with other columns are refused by name; columns that all share can be read."""
    for short, last in (("a", pa.int64()), ("b", pa.utf8())):
        topics.make(short, schema=pa.schema([("n", pa.int64()), ("x", last)]))
        topics.write_rows(short, pa.table({"n": [1], "x": pa.array([1]).cast(last)}))

    with pytest.raises(SchemaMismatchError, match="column 'x' is int64 and string; read each"):
        read(topics.address, **topics.pattern)
    assert read(topics.address, **topics.pattern, columns="n")["n"].to_pylist() == [1, 1]
    assert read(topics.address, **topics.pattern, view="messages")["records"].to_pylist() == [1, 1]


def test_a_pattern_that_matches_nothing(topics):
    """There are no columns without a topic, so it is an error; topics of MemQ never match."""
    for pattern in (topics.pattern["subscribePattern"], "_memq_.*"):
        with pytest.raises(UnknownTopicError, match="there are no topics"):
            read(topics.address, topic=None, subscribePattern=pattern)
