"""The driver of a stream over brokers that fail, topics that come and go, and drivers that die."""

import heapq
from collections import Counter
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable

from memq.client.lag import Lag
from memq.core.format.schema import DEFAULT_SCHEMA, serialize_schema
from memq.core.manifest import Totals
from memq.core.named_values import NO_VALUES
from memq.core.notification import PublishedBatch
from memq.core.wire.messages import PartitionOffsets
from memq.errors import (
    ConfigError,
    DataLossError,
    OffsetOutOfRangeError,
    TopicRecreatedError,
    UnavailableError,
    UnknownTopicError,
)
from memq.spark import stream_reports, stream_topics
from memq.spark.options import parse_read_options
from memq.spark.stream import MemqStreamReader
from tests.unit.reading.batches import Sent, notify, records, seal

BASE = notify(seal(Sent("p", 0, records(b"v"))))
SCHEMA = serialize_schema(DEFAULT_SCHEMA)
MAX_OFFSETS = 3


class Brokers:
    """Topics by name; the call of a number may fail.

    Attributes:
        topics: topic id, starts and Batches of each topic.
        fails: kind of the calls that fail, "" for any; with after how many.
        asked: how often, by kind.
        hidden: topics that a broker does not tell of, though it has them.
    """

    def __init__(self):
        self.topics = {}
        self.fails = None
        self.asked = Counter()
        self.hidden = set()
        self.closed = 0
        self.clock_ms = 0
        self.lives = 0

    def create(self, name, partitions=1, schema=SCHEMA):
        self.lives += 1
        self.topics[name] = SimpleNamespace(
            topic_id=f"{self.lives:016x}",
            schema=schema,
            starts=[0] * partitions,
            batches=[[] for _ in range(partitions)],
        )

    def grow(self, name):
        self.topics[name].starts.append(0)
        self.topics[name].batches.append([])

    def publish(self, name, partition=0, count=1):
        held = self.topics[name].batches[partition]
        for _ in range(count):
            self.clock_ms += 1
            said = msgspec.structs.replace(BASE, topic=name, size_bytes=10, records=1 + len(held))
            held.append(PublishedBatch(partition, len(held), self.clock_ms, said))

    def call(self, what):
        self.asked[what] += 1
        if self.fails is None or self.fails[0] not in ("", what):
            return
        self.fails = (self.fails[0], self.fails[1] - 1)
        if self.fails[1] < 0:
            self.fails = None
            raise UnavailableError(f"no answer: {what}")

    def names(self):
        """Every Batch there is, by name."""
        return {
            (name, topic.topic_id, partition, batch.offset)
            for name, topic in self.topics.items()
            for partition, held in enumerate(topic.batches)
            for batch in held
        }


class Topics:
    """As `SparkTopics`."""

    def __init__(self, brokers, options):
        self.brokers, self.options = brokers, options

    def look_up(self):
        self.brokers.call("look up")
        return {
            name: SimpleNamespace(topic_id=it.topic_id, schemas={1: it.schema}, schema_id=1)
            for name, it in sorted(self.brokers.topics.items())
            if self.options.covers(name) and name not in self.brokers.hidden
        }

    def topic(self, options):
        return Topic(self.brokers, options)

    def close(self):
        self.brokers.closed += 1


class Topic:
    """As `SparkTopic`."""

    def __init__(self, brokers, options):
        self.brokers, self.name, self.topic_id = brokers, options.topic, options.topic_id

    def _there(self, what):
        self.brokers.call(what)
        found = self.brokers.topics.get(self.name)
        if found is None:
            raise UnknownTopicError(self.name)
        if found.topic_id != self.topic_id:
            raise TopicRecreatedError(self.name)
        return found

    def offsets(self, at_ms=None):
        topic = self._there("offsets")
        return [
            PartitionOffsets(partition=partition, start=topic.starts[partition], end=len(held))
            for partition, held in enumerate(topic.batches)
        ]

    def lasting(self, ends):
        return ends

    def batches(self, ranges):
        topic = self._there("batches")
        for partition, start, end, _ in ranges:
            assert topic.starts[partition] <= start <= end <= len(topic.batches[partition])
            yield from topic.batches[partition][start:end]

    def batches_by_time(self, ranges):
        parts = [self.batches([each]) for each in ranges]
        return heapq.merge(*parts, key=lambda each: each.timestamp_ms)

    def lag(self, positions):
        topic = self._there("lag")
        return {
            partition: Lag(n := len(topic.batches[partition]) - at, n, 10 * n, float(n))
            for partition, at in positions.items()
        }


class Query:
    """What Spark does with a stream: it plans micro-batches, and again those that it had begun.

    Attributes:
        taken: how often each Batch is in a micro-batch that ended.
        told: reports that the audit has taken.
        tried_s: when the audit was told, or was tried to be.
    """

    def __init__(self, brokers, **options):
        self.brokers = brokers
        given = {"bootstrap": "b:1", "subscribePattern": "t.*", "startingOffsets": "earliest"}
        given |= {"token": "hush"}
        given = {name: each for name, each in (given | options).items() if each is not None}
        self.options = parse_read_options(given)
        self.now_s = 0.0
        self.at = self.end = None
        self.taken, self.told, self.tried_s = Counter(), [], []
        self.begin()

    def begin(self):
        """A new process of the driver."""
        shape = SimpleNamespace(spark=SimpleNamespace(names=["value"]))
        clocks = SimpleNamespace(
            mono_s=lambda: self.now_s, wall_ms=lambda: round(self.now_s * 1000)
        )
        reads = SimpleNamespace(options=self.options, shape=shape)
        self.reader = MemqStreamReader(reads, ("ta", SCHEMA), clocks)

    def step(self, limit=None):
        """One micro-batch, or what is left of one; returns the Batches of it."""
        if self.at is None:
            self.at = self.end = self.reader.initialOffset()
        if self.end == self.at:
            limit = limit or self.reader.getDefaultReadLimit()
            self.end = self.reader.latestOffset(self.at, limit)
        if self.end == self.at:
            return []
        found = [part.batch for each in self.planned() for part in each.ranges]
        names = [self.name_of(each) for each in found]
        self.taken.update(names)
        self.at = self.end
        return names

    def planned(self):
        return self.reader.partitions(self.at, self.end)

    def name_of(self, batch):
        name = batch.notification.topic
        return name, self.brokers.topics[name].topic_id, batch.partition, batch.offset

    def run(self):
        """Micro-batches until there is nothing more; the Batches of all of them."""
        found, before = [], None
        while before != self.at or self.at is None:
            before = self.at
            found += self.step()
        return found


@pytest.fixture(autouse=True)
def _seams():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            stream_topics, "SparkTopics", lambda options: Topics(QUERY[0].brokers, options)
        )
        patch.setattr(stream_reports, "report_consumed", take_reports)
        yield


QUERY: list[Query] = []


def query(brokers, **options):
    made = Query(brokers, **options)
    QUERY[:] = [made]
    return made


def take_reports(bootstrap, reports, *, token, security, timeout_s):
    stream = QUERY[0]
    stream.tried_s.append(stream.now_s)
    stream.brokers.call("report")
    assert (bootstrap, token, security) == ("b:1", "hush", NO_VALUES)
    assert timeout_s <= 10
    at = stream.reader._topics.decode(stream.at)
    for each in reports:
        assert each.final
        assert each.end <= at[each.topic][each.partition].next, "told before it was committed"
    stream.told += reports


def some_brokers(*names):
    brokers = Brokers()
    for name in names:
        brokers.create(name)
        brokers.publish(name, count=2)
    return brokers


NAMES = st.sampled_from(["ta", "tb", "tc"])
EVENTS = st.one_of(
    st.tuples(st.just("publish"), NAMES, st.integers(1, 4)),
    st.tuples(st.just("step"), st.integers(0, 3)),
    st.tuples(st.just("fail"), st.integers(0, 12)),
    st.tuples(st.sampled_from(["create", "grow"]), NAMES),
    st.tuples(st.sampled_from(["kill", "wait"])),
)


@given(st.lists(EVENTS, max_size=30), st.booleans(), st.booleans())
def test_each_batch_is_in_one_micro_batch(events, limited, reports):
    """Whatever is published, created, fails or dies, in all topics; the audit is told of all."""
    options = {"maxOffsetsPerTrigger": str(MAX_OFFSETS)} if limited else {}
    options |= {"consumer": "job"} if reports else {}
    brokers = Brokers()
    brokers.create("ta", 2)
    stream = query(brokers, **options)
    killed = any(event[0] == "kill" or event == ("step", 0) for event in events)
    for what, *given_ in events:
        name = given_[0] if given_ else None
        if what == "publish" and name in brokers.topics:
            brokers.publish(name, given_[1] % len(brokers.topics[name].batches), given_[1])
        elif what == "create" and name not in brokers.topics:
            brokers.create(name)
        elif what == "grow" and name in brokers.topics:
            brokers.grow(name)
        elif what == "fail":
            brokers.fails = ("", given_[0])
        elif what == "kill":
            stream.begin()
        elif what == "wait":
            stream.now_s += 6
        elif what == "step":
            try:
                names = stream.step()
                assert not limited or len(names) <= MAX_OFFSETS
                stream.reader.reportLatestOffset()
            except UnavailableError:
                if given_[0] == 0:
                    stream.begin()
    brokers.fails = None
    stream.run()

    assert stream.taken == dict.fromkeys(brokers.names(), 1)
    told = Counter()
    for each in stream.told:
        offsets = range(each.start, each.end)
        told.update((each.topic, each.topic_id, each.partition, n) for n in offsets)
        counts = Totals()
        for n in offsets:
            counts = counts.plus(brokers.topics[each.topic].batches[each.partition][n].notification)
        names = ("batches", "messages", "records", "crc_sum")
        assert [getattr(each, name) for name in names] == [getattr(counts, name) for name in names]
    if not killed:  # only then a report may come twice
        assert set(told.values()) <= {1}
    assert set(told) == (brokers.names() if reports else set())


@pytest.mark.parametrize("goes_on", [False, True])
def test_what_retention_removed_is_an_error_or_left_out(goes_on):
    """In one topic or in another; who goes on reads all the rest of all topics, each once."""
    for lost in ("ta", "tb"):
        brokers = some_brokers("ta", "tb")
        stream = query(brokers, failOnDataLoss=str(not goes_on).lower(), maxOffsetsPerTrigger="9")
        assert len(stream.run()) == 4
        for name in ("ta", "tb"):
            brokers.publish(name, count=5)
        brokers.topics[lost].starts[0] = 4
        if not goes_on:
            with pytest.raises(OffsetOutOfRangeError, match=f"{lost}/0: removed by retention"):
                stream.step()
            continue
        left = {each for each in brokers.names() if each[0] != lost or each[3] >= 4}
        assert {*stream.run()} == {each for each in left if each[3] >= 2}
        assert set(stream.taken.values()) == {1}


def test_a_topic_that_is_gone_is_an_error_or_left_out():
    """The others are read on; one that is made again under its name is an error all the same, and
    one that the options do not name any more is as good as gone.
    """
    brokers = some_brokers("ta", "tb", "tc")
    stream = query(brokers)
    assert len(stream.run()) == 6
    del brokers.topics["tb"]
    for name in ("ta", "tc"):
        brokers.publish(name)
    with pytest.raises(DataLossError, match="'tb'"):
        stream.step()

    at, stream = stream.at, query(brokers, failOnDataLoss="false")
    stream.at = stream.end = at
    brokers.create("tb")
    brokers.publish("tb", count=9)
    with pytest.raises(TopicRecreatedError, match="'tb' was deleted and recreated"):
        stream.step()
    del brokers.topics["tb"]
    assert [each[0] for each in stream.run()] == ["ta", "tc"]
    assert stream.run() == []

    at, stream = stream.at, query(brokers, subscribePattern="ta")
    stream.at = stream.end = at
    with pytest.raises(DataLossError, match="'tc'"):
        stream.step()


def test_what_is_there_at_the_start_is_all_of_such_a_run():
    """Of `Trigger.AvailableNow`: neither what comes later nor a smallest size holds it up, as it
    does a run that goes on.
    """
    brokers = some_brokers("ta", "tb")
    stream = query(brokers, maxOffsetsPerTrigger="3", minOffsetsPerTrigger="3")
    stream.at = stream.end = stream.reader.initialOffset()
    stream.reader.prepareForTriggerAvailableNow()
    wanted = brokers.names()
    brokers.publish("ta", count=2)
    brokers.create("tc")
    brokers.publish("tc")
    brokers.grow("tb")
    brokers.publish("tb", 1)

    assert {*stream.run()} == wanted
    assert [*stream.at["topics"]] == ["ta", "tb"]
    stream.begin()
    stream.run()
    assert len(brokers.names()) == len(stream.taken) + 1
    stream.now_s += 10_000
    stream.run()
    assert stream.taken == dict.fromkeys(brokers.names(), 1)


def test_a_time_to_come_is_no_start():
    """It is refused before anything is asked of the brokers; when it is over it is one."""
    brokers = Brokers()
    brokers.create("ta", 2)
    stream = query(brokers, startingOffsets=None, startingTimestamp="1970-01-01T00:01:00Z")
    brokers.fails = ("look up", 0)
    with pytest.raises(ConfigError, match="is to start 60 s in the future"):
        stream.step()

    stream.now_s, brokers.fails = 60.0, None
    stream.run()


def test_spark_is_told_that_there_is_a_limit():
    """Without one it may take all at once, and it may ask for all where there is one."""
    unlimited = query(some_brokers("ta")).reader.getDefaultReadLimit()
    assert isinstance(unlimited, ReadAllAvailable)
    stream = query(some_brokers("ta", "tb", "tc"), maxBytesPerTrigger="25")
    assert not isinstance(stream.reader.getDefaultReadLimit(), ReadAllAvailable)
    assert len(stream.step()) == 2
    stream.brokers.publish("ta", count=9)
    stream.step(ReadAllAvailable())
    assert set(stream.taken) == stream.brokers.names()


ONE = {"subscribePattern": None, "topic": "ta"}


@pytest.mark.parametrize(
    ("starting", "ending", "first", "more"),
    [
        ('{"0": 1, "1": -2}', '{"0": 3, "1": 2}', [(0, 1), (1, 0), (1, 1)], [(0, 2)]),
        ('{"0": 1}', None, [(0, 1)], [(0, 2), (0, 3)]),
        (None, '{"1": 3}', [(1, 0), (1, 1)], [(1, 2)]),
    ],
)
def test_a_stream_of_some_offsets_of_one_topic(starting, ending, first, more):
    """It reads the read partitions that are named, on either side, from the first to the last of
    their offsets; one that is added later is none of them.
    """
    brokers = Brokers()
    brokers.create("ta", 2)
    stream = query(brokers, **ONE, startingOffsets=starting or "earliest", endingOffsets=ending)
    for partition in (0, 1):
        brokers.publish("ta", partition, 2)
    assert [each[2:] for each in stream.run()] == first
    brokers.grow("ta")
    for partition in (0, 1, 2):
        brokers.publish("ta", partition, 2)

    assert [each[2:] for each in stream.run()] == more
    assert {int(each) for each in stream.at["partitions"]} == {each for each, _ in first}
    assert brokers.asked["look up"] == 1


@pytest.mark.parametrize("lost", ["offsets", "partition"])
def test_a_queue_that_went_back_stops_the_stream(lost):
    """Its next offsets would be other data, whether some are left of a read partition or it is
    gone; to stand at the very end is no loss.
    """
    brokers = Brokers()
    brokers.create("ta", 2)
    for partition in (0, 1):
        brokers.publish("ta", partition, 2)
    stream = query(brokers, failOnDataLoss="false")
    assert len(stream.run()) == 4
    if lost == "offsets":
        del brokers.topics["ta"].batches[1][1:]
    else:
        brokers.topics["ta"].batches.pop()

    end = 1 if lost == "offsets" else 0
    with pytest.raises(OffsetOutOfRangeError, match=f"offset 2 of ta/1, which ends at {end}: its"):
        stream.step()


def test_a_checkpoint_of_one_topic_of_another_life():
    """A stream of several does not know which of them it was."""
    brokers = some_brokers("ta")
    stream = query(brokers, **ONE)
    stream.run()
    at = stream.at
    del brokers.topics["ta"]
    brokers.create("ta")
    stream = query(brokers)
    stream.at = stream.end = at

    with pytest.raises(TopicRecreatedError, match="the checkpoint is of one topic"):
        stream.step()
