"""What messages of the Python clients advise is done, and helps."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime, timezone

import pyarrow as pa
import pytest

from memq import (
    AdminClient,
    AsyncConsumer,
    AsyncProducer,
    Consumer,
    Producer,
    read_range,
)
from memq.errors import (
    ClosedError,
    ConfigError,
    InvalidRequestError,
    MessageTooLargeError,
    TopicRecreatedError,
)
from tests.advice import follows

TIMEOUT_S = 30


@pytest.fixture
def admin(broker):
    """A client to administrate with."""
    with AdminClient(broker.address) as client:
        yield client


@pytest.fixture
def topic(admin, request):
    """A topic of the test's own, whose Batches close soon."""
    name = re.sub("[^a-z0-9]+", "-", request.node.name)
    admin.create_topic(name, batch_age="20ms", audited=False)
    return name


def values(broker, topic):
    """All that is stored."""
    with AdminClient(broker.address) as client:
        (retained,) = client.offsets(topic)
    wanted = {"partition": 0, "start": retained.start, "end": retained.end}
    return read_range(broker.address, topic=topic, **wanted).column("value").to_pylist()


@follows("; encode it first: value.encode()", "give one, such as datetime.now(timezone.utc)")
def test_a_value_is_encoded_and_a_time_has_its_zone(broker, topic):
    """Text is refused, and so is a time without a zone; what the errors show is taken."""
    value = "text"
    with Producer(broker.address, topic=topic) as producer:
        with pytest.raises(InvalidRequestError, match=re.escape("encode it first: value.encode()")):
            producer.write(value)
        with pytest.raises(InvalidRequestError, match=re.escape("datetime.now(timezone.utc)")):
            producer.write(b"x", timestamp=datetime.now())  # noqa: DTZ005 - that is what is wrong
        producer.write(value.encode(), timestamp=datetime.now(timezone.utc))  # noqa: UP017
    assert values(broker, topic) == [b"text"]


@follows(
    "give it one, such as time.replace(tzinfo=datetime.UTC)", "give a datetime with a time zone"
)
def test_a_window_has_its_zone(admin, topic):
    """A time without a zone is refused, and with the zone of the message it is taken."""
    time = datetime(2025, 6, 30)  # noqa: DTZ001 - that is what is wrong
    with pytest.raises(ConfigError, match=re.escape("time.replace(tzinfo=datetime.UTC)")):
        admin.offsets(topic, time)
    with pytest.raises(ConfigError, match="give a datetime with a time zone"):
        admin.offsets(topic, "2025-06-30")
    admin.offsets(topic, time.replace(tzinfo=UTC))


def test_options_that_do_not_exist_are_named():
    """A dict of Kafka's is no list of brokers, and a read knows its arguments."""
    with pytest.raises(ConfigError, match="is no text; write it like 'broker-1:6367,"):
        Producer({"bootstrap.servers": "h:1"}, topic="t")
    with pytest.raises(ConfigError, match="unknown option 'colums' of a read; known are columns, "):
        read_range(topic="t", colums=["key"])


@follows("the topic has a schema of its own: use write_table")
def test_rows_are_written_as_a_table(admin, broker, topic):
    """A typed topic takes tables and no values."""
    admin.create_topic(f"{topic}-typed", schema=pa.schema([("id", pa.int64())]), audited=False)
    with Producer(broker.address, topic=f"{topic}-typed") as producer:
        with pytest.raises(InvalidRequestError, match="use write_table"):
            producer.write(b"1")
        producer.write_table(pa.table({"id": [1]}))


@follows("this producer was made before a fork; make one in the child process")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_process_makes_its_own_producer(broker, topic):
    """The parent's is refused in the child, and one of the child's own writes."""
    with Producer(broker.address, topic=topic) as producer:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with pytest.raises(ClosedError, match="make one in the child process"):
                    producer.write(b"of the parent's")
                with Producer(broker.address, topic=topic) as own:
                    own.write(b"of its own")
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert values(broker, topic) == [b"of its own"]


@follows("this consumer is not started; use `async with`, or `await start()`")
async def test_an_async_consumer_is_started(broker, topic):
    """In either way that the error names."""
    consumer = AsyncConsumer(broker.address, topic=topic)
    with pytest.raises(ClosedError, match="use `async with`"):
        await consumer.poll(0.1)
    await consumer.start()
    assert await consumer.poll(0.1) is None
    await consumer.close()
    async with AsyncConsumer(broker.address, topic=topic) as another:
        assert await another.poll(0.1) is None


@follows("this producer is not started; use `async with`, or `await start()`")
async def test_an_async_producer_is_started(broker, topic):
    """In either way that the error names."""
    producer = AsyncProducer(broker.address, topic=topic)
    with pytest.raises(ClosedError, match="use `async with`"):
        await producer.write(b"x")
    await producer.start()
    await producer.write(b"x")
    await producer.close()
    async with AsyncProducer(broker.address, topic=topic) as another:
        await another.write(b"y")


@follows("commit needs a group; give the consumer one")
def test_a_consumer_gets_a_group(broker, topic):
    """Committing is for groups."""
    with pytest.raises(ConfigError, match="needs a group"):
        Consumer(broker.address, topic=topic, auto_commit=True)
    with (
        Consumer(broker.address, topic=topic) as consumer,
        pytest.raises(InvalidRequestError, match="give the consumer one"),
    ):
        consumer.commit({0: 0})
    with Consumer(broker.address, topic=topic, group="g") as consumer:
        while not consumer.assignment:
            consumer.poll(0.1)
        consumer.commit({0: 0})


@follows(
    "send less, or raise them",
    "lower the producer's message_bytes or raise the topic's",
)
def test_a_large_record_needs_large_messages(admin, broker, topic):
    """The lesser of two limits counts, and both can be raised."""
    admin.alter_topic(topic, message_bytes="1KiB")
    with Producer(broker.address, topic=topic, compression=None) as producer:
        with pytest.raises(MessageTooLargeError, match="message_bytes and the producer's buffer"):
            producer.write(b"x" * 2_000)
        producer.write(b"less")
    admin.alter_topic(topic, message_bytes="16KiB")
    with Producer(broker.address, topic=topic) as producer:
        producer.write(b"x" * 2_000)
    assert [len(value) for value in values(broker, topic)] == [4, 2_000]


@follows("lower the first or raise the second", "raise the first or lower the second")
def test_topic_options_fit_each_other(admin, topic):
    """Each way out of each message is taken."""
    with pytest.raises(ConfigError, match="lower the first or raise the second"):
        admin.alter_topic(topic, message_bytes="16MiB", batch_bytes="8MiB")
    admin.alter_topic(topic, message_bytes="8MiB", batch_bytes="8MiB")
    admin.alter_topic(topic, message_bytes="16MiB", batch_bytes="16MiB")
    with pytest.raises(ConfigError, match="raise the first or lower the second"):
        admin.alter_topic(topic, retention="1h", dedup_window="2h")
    admin.alter_topic(topic, retention="2h", dedup_window="2h")
    admin.alter_topic(topic, retention="1h", dedup_window="1h")


@follows("read_partitions of … is fixed at …; create another topic")
def test_another_topic_has_other_partitions(admin, topic):
    """What is fixed is chosen anew for another topic."""
    with pytest.raises(ConfigError, match="create another topic"):
        admin.alter_topic(topic, read_partitions=3)
    admin.create_topic(f"{topic}-3", read_partitions=3)


@follows("topic … was deleted and recreated; open the producer anew to write to it")
def test_a_producer_is_opened_anew_when_its_topic_was_recreated(admin, broker, topic):
    """That of the old topic ends; a new one writes."""
    with Producer(broker.address, topic=topic) as producer:
        admin.delete_topic(topic)
        admin.create_topic(topic, batch_age="20ms", audited=False)
        error = producer.write(b"lost").exception(TIMEOUT_S)
    assert isinstance(error, TopicRecreatedError)
    with Producer(broker.address, topic=topic) as producer:
        producer.write(b"new")
    assert values(broker, topic) == [b"new"]


@follows("is no range of offsets; write the first offset, 0 or more, and then one past the last")
def test_a_range_ends_one_past_its_last_offset(broker, topic):
    """What `range` of Python is like."""
    with Producer(broker.address, topic=topic) as producer:
        producer.write(b"x")
    table = read_range(broker.address, topic=topic, partition=0, start=0, end=1)
    assert table.column("value").to_pylist() == [b"x"]


@follows("use to_arrow(): …", "the topic has a column … of its own; read without metadata")
def test_what_python_or_metadata_cannot_show_is_read_as_arrow(admin, broker, topic):
    """A time past the year 9999 has no object in Python; a column may be called as an origin is."""
    schema = pa.schema([("at", pa.date64()), ("offset", pa.int64())])
    admin.create_topic(f"{topic}-typed", schema=schema, batch_age="20ms", audited=False)
    with Producer(broker.address, topic=f"{topic}-typed") as producer:
        producer.write_table(
            pa.table([pa.array([86_400_000 * 10**7], pa.date64()), pa.array([7])], schema=schema)
        )
    wanted = {"topic": f"{topic}-typed", "partition": 0, "start": 0, "end": 1}
    with pytest.raises(InvalidRequestError, match="read without metadata"):
        read_range(broker.address, **wanted, metadata=True)
    assert read_range(broker.address, **wanted).column("offset").to_pylist() == [7]
    with Consumer(broker.address, topic=f"{topic}-typed", start="earliest") as consumer:
        batch = consumer.poll(TIMEOUT_S)
    with pytest.raises(InvalidRequestError, match=re.escape("use to_arrow()")):
        list(batch)
    assert batch.to_arrow().num_rows == 1


@follows("… was made before a fork; make the client in the child process")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_process_makes_its_own_client(admin, broker, topic):
    """The parent's is refused in the child."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with pytest.raises(ClosedError, match="make the client in the child process"):
                admin.list_topics()
            with AdminClient(broker.address) as own:
                assert topic in [each.config.name for each in own.list_topics()]
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@follows("offsets of … are those of one partition; give it as well")
def test_offsets_are_read_with_their_partition(broker, topic):
    """Offsets mean nothing without one."""
    with pytest.raises(InvalidRequestError, match="give it as well"):
        read_range(broker.address, topic=topic, start=0)
    assert read_range(broker.address, topic=topic, partition=0, start=0).num_rows == 0
