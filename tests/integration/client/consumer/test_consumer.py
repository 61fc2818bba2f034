"""Consumers without a group, over real sockets and files."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from memq.client.consumer.consumer import AsyncConsumer
from memq.core.wire.messages import FetchOffsets, FetchOffsetsAnswer
from memq.errors import (
    ClosedError,
    ConfigError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    UnknownTopicError,
)
from tests.fakes.tiny_broker import TinyBroker
from tests.integration.broker.support import until
from tests.topics.reading import TIMEOUT_S, take, values, world


@pytest.fixture
async def w(tmp_path):
    """A broker with a topic of one read partition."""
    async with world(tmp_path) as found:
        yield found


async def test_assign(tmp_path):
    """Assigned partitions are read, from given offsets if there are any, and no others."""
    async with world(tmp_path, read_partitions=3) as w:
        for n in range(9):
            await w.write(b"%d" % n)
        async with w.consumer(start={2: 1}) as consumer:
            assert [consumer.position(p) for p in range(3)] == [0, 0, 1]
            await consumer.assign({1: 2})
            assert [(b.partition, b.offset) for b in await take(consumer, 1)] == [(1, 2)]
            await consumer.assign([0])
            assert [(b.partition, b.offset) for b in await take(consumer, 3)] == [
                (0, 0),
                (0, 1),
                (0, 2),
            ]
            assert consumer.assignment == [0]
            with pytest.raises(InvalidRequestError, match="no partition 3; it has 0 to 2"):
                await consumer.assign([3])
            with pytest.raises(InvalidRequestError, match="offset -1 of partition 0"):
                await consumer.assign({0: -1})


async def test_a_seek_is_committed_wherever_it_leads(w):
    """Also to where the partition stood already, of which the group knows nothing."""
    await w.write(b"v")
    async with w.consumer(group="g") as consumer:
        await consumer.assign({0: 1})
        await consumer.commit()
        assert await consumer.committed() == {}
        await consumer.seek(0, 1)
        await consumer.commit()
        assert await consumer.committed() == {0: 1}


async def test_a_consumer_begins_and_goes_on_at_a_time(w):
    """`start` and `seek_to_time` lead to the first Batch published at a time or later."""
    times = []
    while len(set(times)) < 3:  # the last of the second millisecond, and one after it
        await w.write(b"%d" % len(times))
        entries = await w.queue.fetch(w.queue_topic, 0, 0, max_entries=1_000, max_bytes=1 << 20)
        times = [entry.timestamp_ms for entry in entries]
    wanted = times.index(sorted(set(times))[1])
    at = datetime.fromtimestamp(times[wanted] / 1_000, UTC)

    async with w.consumer(start=at) as consumer:
        assert consumer.position(0) == wanted
        await consumer.seek_to_end()
        await consumer.seek_to_time(at)
        assert [batch.offset for batch in await take(consumer, 1)] == [wanted]
        await consumer.seek_to_time(at + timedelta(days=1))
        assert consumer.position(0) == len(times)


async def test_calls_that_make_no_sense(w):
    """Wrong calls get an error that names what was wrong and what is right."""
    consumer = w.consumer()
    with pytest.raises(ClosedError, match="not started"):
        await consumer.poll()
    await consumer.start()
    assert await consumer.start() is consumer
    with pytest.raises(InvalidRequestError, match=r"partition 5 .* it reads \[0\]"):
        await consumer.seek(5, 0)
    with pytest.raises(InvalidRequestError, match="needs a group"):
        await consumer.commit()
    with pytest.raises(InvalidRequestError, match="without a group"):
        await consumer.committed()
    with pytest.raises(ConfigError, match="no time zone"):
        await consumer.seek_to_time(datetime(2020, 1, 1))  # noqa: DTZ001 - that is the point
    waiting = asyncio.create_task(consumer.poll(TIMEOUT_S))
    await asyncio.sleep(0)
    with pytest.raises(InvalidRequestError, match="another poll"):
        await consumer.poll()
    await consumer.close()
    with pytest.raises(ClosedError):
        await waiting
    await consumer.close()
    with pytest.raises(ClosedError):
        await consumer.poll()
    with pytest.raises(ClosedError):
        await consumer.lag()


@pytest.mark.parametrize(
    ("topic", "error"), [("nope", UnknownTopicError), ("events", InvalidRequestError)]
)
async def test_a_start_that_fails_leaves_no_connection(topic, error):
    """Whether there is no such topic, or no such partition of it."""
    async with TinyBroker().serve() as broker:
        broker.answers[FetchOffsets] = FetchOffsetsAnswer(partitions=[])
        with pytest.raises(error):
            await AsyncConsumer(broker.address, topic=topic, start={7: 0}).start()
        await until(lambda: not broker.connections)


async def expire(w, end):
    """What retention does: forget notifications, then delete their objects."""
    paths = [await w.path(0, offset) for offset in range(end)]
    await w.queue.truncate(w.queue_topic, 0, end)
    for path in paths:
        path.unlink()


async def test_retention_overtakes_is_an_error(w):
    """Without a policy the error says what is retained, over and over, until it seeks."""
    for n in range(5):
        await w.write(b"%d" % n)
    await expire(w, 3)
    async with w.consumer(start={0: 1}) as consumer:
        for _ in range(2):
            with pytest.raises(
                OffsetOutOfRangeError, match=r"offset 1 of t/0 .* retained are offsets 3 to 4"
            ):
                await consumer.poll(TIMEOUT_S)
        await consumer.seek_to_beginning()
        assert values(await take(consumer, 1)) == [b"3"]
        await consumer.seek(0, 77)
        with pytest.raises(OffsetOutOfRangeError, match="offset 77"):
            await consumer.poll(TIMEOUT_S)
