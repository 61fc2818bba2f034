"""A topic that is deleted and recreated is another topic: nothing of the old one goes on in it."""

from __future__ import annotations

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from memq import AdminClient, Producer
from memq.errors import ConfigError, TopicRecreatedError
from tests.integration.spark.here import Stream, read, reader, table


@pytest.fixture
def topic(broker):
    """The topic `t` with three Batches of one record each."""
    return Life(broker.address)


class Life:
    """The topic `t` of one read partition, made anew each time."""

    def __init__(self, address):
        self.address = address
        self.begin(b"old")

    def begin(self, value):
        """Delete the topic, and make it again with three Batches."""
        with AdminClient(self.address) as admin:
            if "t" in [each.config.name for each in admin.list_topics()]:
                admin.delete_topic("t")
            admin.create_topic("t", read_partitions=1, batch_age="1ms")
        for number in range(3):
            self.write(b"%s-%d" % (value, number))

    def write(self, value):
        with Producer(self.address, topic="t") as producer:
            producer.write(value).result(30)

    def incarnation(self):
        with AdminClient(self.address) as admin:
            return admin.describe_topic("t").incarnation


def values(rows):
    return sorted(rows.column("value").to_pylist())


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("more", [0, 2])
def test_a_stream_does_not_go_on_in_a_topic_made_again(topic, restarted, more):
    """A checkpoint of the topic before is an error that says how to go on, and the first data of
    the new one is not skipped: whether the new one is as long as the checkpoint, or longer.
    """
    stream = Stream(topic.address)
    assert values(stream.run()[0]) == [b"old-0", b"old-1", b"old-2"]
    topic.begin(b"new")
    for number in range(more):
        topic.write(b"more-%d" % number)

    if restarted:
        stream.restart()
    with pytest.raises(TopicRecreatedError, match="begin with a new checkpoint"):
        stream.run()
    fresh = Stream(topic.address)
    assert values(fresh.run()[0])[-3:] == [b"new-0", b"new-1", b"new-2"]
    fresh.stop()
    stream.stop()


def test_every_call_of_a_stream_minds_the_incarnation(topic):
    """Neither the end of AvailableNow nor a micro-batch that was planned before is taken over."""
    stream = Stream(topic.address)
    began = stream._reader.initialOffset()
    end = stream._reader.latestOffset(began, ReadAllAvailable())
    topic.begin(b"new")
    stream.offset = began
    stream.restart()
    stream._reader.prepareForTriggerAvailableNow()

    with pytest.raises(TopicRecreatedError):
        stream._reader.partitions(began, end)
    with pytest.raises(TopicRecreatedError):
        stream._reader.latestOffset(began, ReadAllAvailable())
    stream.stop()


def test_a_range_is_read_in_the_topic_that_it_was_planned_for(topic):
    """With the option `incarnation`, another topic of that name is an error; the topic of a
    DataFrame is the one that its first plan met.
    """
    planned = topic.incarnation()
    assert values(read(topic.address, incarnation=planned)) == [b"old-0", b"old-1", b"old-2"]
    made, schema = reader(topic.address)
    topic.begin(b"new")

    with pytest.raises(TopicRecreatedError, match="recreated"):
        read(topic.address, incarnation=planned)
    with pytest.raises(TopicRecreatedError, match="recreated"):
        table(made, made.partitions(), schema)
    with pytest.raises(ConfigError, match="option 'incarnation' = 'x'"):
        read(topic.address, incarnation="x")
