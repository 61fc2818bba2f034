"""Several topics in one read: by name or by pattern, as a batch and as a stream."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from itertools import chain

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from memq import AdminClient, Producer
from memq.errors import (
    ConfigError,
    DataLossError,
    SchemaMismatchError,
    TopicRecreatedError,
    UnknownTopicError,
)
from tests.advice import follows
from tests.integration.spark.here import Stream, inputs, read, table


@pytest.fixture
def topics(broker, request):
    """Makes topics whose names begin with one that no other test has."""
    made = Topics(broker.address, f"{request.node.name.partition('[')[0]}.")
    yield made
    made.close()


class Topics:
    """Topics of one record a Batch."""

    def __init__(self, address, prefix):
        self.address = address
        self.prefix = prefix
        self.names = set()
        self.admin = AdminClient(address)

    def name(self, short):
        return f"{self.prefix}{short}"

    def make(self, short, *values, **options):
        self.admin.create_topic(self.name(short), **{"batch_age": "1ms"} | options)
        self.names.add(short)
        self.write(short, *values)

    def write(self, short, *values):
        with Producer(self.address, topic=self.name(short)) as producer:
            for value in values:
                producer.write(value.encode()).result(30)

    def delete(self, short):
        self.admin.delete_topic(self.name(short))
        self.names.discard(short)

    def close(self):
        for short in list(self.names):
            self.delete(short)
        self.admin.close()

    @property
    def pattern(self):
        return {"topic": None, "subscribePattern": self.prefix.replace(".", "[.]") + "[a-z]+"}

    def subscribe(self, *shorts):
        return {"topic": None, "subscribe": ", ".join(map(self.name, shorts))}

    def json(self, **offsets):
        return json.dumps({self.name(short): each for short, each in offsets.items()})

    def stream(self, **options):
        return Stream(self.address, **options)


def rows(tables):
    """Rows of each micro-batch as (last part of the topic's name, value)."""
    return [
        sorted(
            (row["topic"].rpartition(".")[2], row["value"].decode())
            for row in table.select(["topic", "value"]).to_pylist()
        )
        for table in tables
    ]


@pytest.mark.parametrize("through", ["storage", "broker"])
def test_several_topics_in_one_batch_read(topics, through):
    """Names and a pattern give the rows of all topics, each with its topic; few tasks read many."""
    topics.make("a", "1", "2")
    topics.make("b", "1", read_partitions=2)
    topics.make("other-topic", "9")
    expected = [("a", "1"), ("a", "2"), ("b", "1")]

    for names in (topics.subscribe("b", "a"), topics.pattern):
        options = names | {"readThrough": through}
        assert rows([read(topics.address, **options)]) == [expected]
        assert len(inputs(topics.address, **options)) == 1


def test_offsets_by_topic(topics):
    """JSON by topic limits a read to the topics and read partitions it names; so it may for one."""
    topics.make("a", "1", "2", "3")
    topics.make("b", "1", "2")
    bounds = {
        "startingOffsets": topics.json(a={"0": 1}, b={"0": -2}),
        "endingOffsets": topics.json(a={"0": 2}, b={"0": -1}),
    }
    alone = {"startingOffsets": topics.json(a={"0": 2})}

    found = read(topics.address, **topics.subscribe("a", "b"), **bounds)
    assert rows([found]) == [[("a", "2"), ("b", "1"), ("b", "2")]]
    assert rows([read(topics.address, **topics.pattern, **alone)]) == [[("a", "3")]]
    assert rows([read(topics.address, topic=topics.name("a"), **alone)]) == [[("a", "3")]]
    missing = {"startingOffsets": topics.json(a={"0": 0}, zz={"0": 2})}
    with pytest.raises(ConfigError, match="zz': there is none"):
        read(topics.address, **topics.pattern, **missing)
    with pytest.raises(ConfigError, match="zz': there is none"):
        topics.stream(**topics.pattern, **missing).run()


@follows("or choose columns that they share by the option")
def test_topics_must_agree_in_their_columns(topics):
    """Topics with other columns are refused by name; columns that all share can be read."""
    for short, last in (("a", pa.int64()), ("b", pa.utf8())):
        schema = pa.schema([("n", pa.int64()), ("x", last)])
        topics.admin.create_topic(topics.name(short), schema=schema, batch_age="1ms")
        topics.names.add(short)
        with Producer(topics.address, topic=topics.name(short)) as producer:
            producer.write_table(pa.table({"n": [1], "x": pa.array([1]).cast(last)}))

    with pytest.raises(SchemaMismatchError, match="column 'x' is int64 and string; read each"):
        read(topics.address, **topics.pattern)
    assert read(topics.address, **topics.pattern, columns="n")["n"].to_pylist() == [1, 1]
    assert read(topics.address, **topics.pattern, view="messages")["records"].to_pylist() == [1, 1]


def test_a_pattern_that_matches_nothing(topics):
    """There are no columns without a topic, so it is an error; topics of MemQ never match."""
    with pytest.raises(UnknownTopicError, match="there are no topics"):
        read(topics.address, **topics.pattern)
    with pytest.raises(UnknownTopicError, match="there are no topics"):
        read(topics.address, topic=None, subscribePattern="_memq_.*")


@pytest.mark.parametrize("restarted", [False, True])
def test_a_stream_finds_new_topics(topics, restarted):
    """A topic made while the stream runs is read from its first Batch, though the stream began at
    the latest; a topic with other columns stops it.
    """
    topics.make("a", "before")
    stream = topics.stream(**topics.pattern, startingOffsets="latest")
    assert stream.run() == []
    topics.make("b", "1", "2")
    topics.write("a", "after")

    if restarted:
        stream.restart()
    assert rows(stream.run()) == [[("a", "after"), ("b", "1"), ("b", "2")]]
    topics.write("b", "3")
    assert rows(stream.run()) == [[("b", "3")]]
    topics.make("c", schema=pa.schema([("n", pa.int64())]))
    with pytest.raises(SchemaMismatchError, match="cannot be read together"):
        stream.run()
    stream.stop()


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("by", ["names", "pattern"])
def test_a_topic_made_again_is_not_gone_on_with(topics, restarted, by):
    """One of several topics that was deleted and recreated stops the stream, also a longer one."""
    topics.make("a", "1")
    topics.make("b", "1")
    stream = topics.stream(**topics.pattern if by == "pattern" else topics.subscribe("a", "b"))
    assert rows(stream.run()) == [[("a", "1"), ("b", "1")]]
    topics.delete("b")
    topics.make("b", "new 1", "new 2")

    for options in ({}, {"failOnDataLoss": "false"}):
        if restarted or options:
            stream.restart(**options)
        with pytest.raises(TopicRecreatedError, match="begin with a new checkpoint"):
            stream.run()
    stream.stop()


@follows("or set failOnDataLoss to false to read on without it")
@pytest.mark.parametrize("restarted", [False, True])
def test_a_topic_that_is_gone_stops_a_stream_unless_told_otherwise(topics, caplog, restarted):
    """A deleted topic of a pattern is an error, and failOnDataLoss=false reads on without it."""
    topics.make("a", "1")
    topics.make("b", "1")
    stream = topics.stream(**topics.pattern)
    stream.run()
    before = stream.offset
    topics.write("a", "2")
    topics.delete("b")

    if restarted:
        stream.restart()
    with pytest.raises(DataLossError, match=r"b' .* is not among the topics"):
        stream.run()
    stream.restart(failOnDataLoss="false")
    assert rows(stream.run()) == [[("a", "2")]]
    assert list(stream.offset["topics"]) == [topics.name("a")]
    assert "reading on without it" in caplog.text
    assert list(before["topics"]) == [topics.name("a"), topics.name("b")]
    stream.stop()


def test_a_checkpoint_of_one_topic_goes_on_with_several(topics):
    """What a stream of one topic left is read by a stream of several, and the other way round."""
    topics.make("a", "1")
    topics.make("b", "1")
    stream = topics.stream(topic=topics.name("b"))
    stream.run()
    assert set(stream.offset) == {"incarnation", "partitions"}
    topics.write("b", "2")

    stream.restart(**topics.subscribe("a", "b"))
    assert rows(stream.run()) == [[("a", "1"), ("b", "2")]]
    topics.write("b", "3")
    stream.restart(topic=topics.name("b"), failOnDataLoss="false")
    assert rows(stream.run()) == [[("b", "3")]]
    topics.delete("b")
    topics.make("b")
    stream.restart(**topics.subscribe("a", "b"))
    with pytest.raises(TopicRecreatedError, match=r"topics .* has that now"):
        stream.run()
    stream.stop()


def test_limits_are_shared_among_topics(topics):
    """A topic with a long backlog leaves another its share of each micro-batch, and takes the rest;
    even where a micro-batch has fewer Batches than there are topics, none waits for ever.
    """
    topics.make("a", *"12345678")
    topics.make("b", *"123")

    stream = topics.stream(**topics.pattern, maxOffsetsPerTrigger="4")
    shares = [Counter(topic for topic, _ in batch) for batch in rows(stream.run())]
    stream.stop()
    least = topics.stream(**topics.pattern, maxOffsetsPerTrigger="1")
    least.take()
    topics.write("a", "9")
    order = [topic for batch in rows(least.run()) for topic, _ in batch]
    least.stop()

    assert shares == [{"a": 2, "b": 2}, {"a": 3, "b": 1}, {"a": 3}]
    assert order == ["a"] * 7 + ["b"] * 3 + ["a"]


def test_available_now_ends_though_topics_grow(topics):
    """What is published after the start, and topics made after it, are left to the next run."""
    topics.make("a", "1", "2")
    topics.make("b", "1")
    stream = topics.stream(**topics.pattern, maxOffsetsPerTrigger="1")
    stream._reader.prepareForTriggerAvailableNow()
    found = []
    stream.offset = stream._reader.initialOffset()
    while (end := stream._reader.latestOffset(stream.offset, stream._limit())) != stream.offset:
        found += rows([stream.rows(stream.offset, end)])
        stream.offset = end
        topics.write("a", "more")
        if "c" not in topics.names:
            topics.make("c", "new")

    assert sorted(chain.from_iterable(found)) == [("a", "1"), ("a", "2"), ("b", "1")]
    stream.restart(maxOffsetsPerTrigger=None)
    assert rows(stream.run()) == [[("a", "more")] * 3 + [("c", "new")]]
    stream.stop()


def test_a_micro_batch_of_several_topics_is_planned_again(topics):
    """Planned again, by this process or another one, it has the same rows; a limit is forgotten
    when all that there is was asked for.
    """
    topics.make("a", "1", "2")
    topics.make("b", "1")
    stream = topics.stream(**topics.pattern, maxOffsetsPerTrigger="1")
    start = stream._reader.initialOffset()
    end = stream._reader.latestOffset(start, ReadAllAvailable())
    first = rows([stream.rows(start, end)])
    topics.write("b", "later")
    worker = pickle.loads(pickle.dumps(stream._reader))  # noqa: S301 - it is our own
    planned = stream._reader.partitions(start, end)
    assert rows([table(worker, planned, stream._schema)]) == first
    stream.offset = start
    stream.restart()

    assert first == rows([stream.rows(start, end)]) == [[("a", "1"), ("a", "2"), ("b", "1")]]
    assert stream._reader.reportLatestOffset()["lag"]["batches"] == 0
    stream.stop()


def test_progress_has_the_lag_of_each_topic(topics):
    """Lag is told for all topics together, and for each."""
    topics.make("a", "1", "2", "3")
    topics.make("b", "1")
    stream = topics.stream(**topics.pattern, maxOffsetsPerTrigger="2")
    stream.take()
    report = stream._reader.reportLatestOffset()
    stream.stop()

    lags = {name: each["lag"]["batches"] for name, each in report["topics"].items()}
    assert lags == {topics.name("a"): 2, topics.name("b"): 0}
    assert report["lag"]["batches"] == 2
