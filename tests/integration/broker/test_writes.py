"""What a broker does with Messages, over a real connection."""

import asyncio

import msgspec
import polars as pl
import pyarrow as pa
import pytest

from memq.core.format.reader import BatchReader
from memq.core.format.verify import verify
from memq.core.notification import decode_notification
from memq.core.wire import messages as m
from memq.errors import (
    InvalidRequestError,
    QueueError,
    SchemaMismatchError,
    SequenceConflictError,
    UnknownTopicError,
)
from memq.storage.keys import key_of_uri
from memq.testing.storage import InMemoryStorage
from tests.fakes.queue import InMemoryQueue
from tests.integration.broker.support import broker, client, until
from tests.integration.broker.test_clocks import Machine


async def notifications(c, topic="t", partition=0, offset=0):
    """Notifications of a partition, decoded."""
    request = m.FetchNotifications(topic=topic, positions=[m.PartitionOffset(partition, offset)])
    _, body = await c.connection.request(request, timeout_s=10)
    entries = msgspec.msgpack.decode(body, type=list[m.NotificationEntry])
    return [decode_notification(entry.payload) for entry in entries]


async def test_acked_message_is_in_storage_and_in_the_queue(tmp_path) -> None:
    """`acks=all` means: the object is stored, its notification published, and both agree."""
    storage = InMemoryStorage()
    async with broker(tmp_path, storage=storage) as b, client(b) as c:
        await c.create()
        answer = await c.write(0, b"one", b"two")
        (notification,) = await notifications(c)
        data = storage.get(key_of_uri(notification.uri))
    assert (answer.partition, answer.offset, answer.duplicate) == (0, 0, False)
    assert notification.batch_id == answer.batch_id
    assert verify(data).ok
    assert BatchReader(data).read_all()["value"].to_pylist() == [b"one", b"two"]
    assert pl.read_ipc_stream(bytes(data))["value"].to_list() == [b"one", b"two"]
    assert pa.ipc.open_stream(data).read_all()["value"].to_pylist() == [b"one", b"two"]


@pytest.mark.parametrize("ordering", ["none", "producer"])
async def test_every_message_of_the_window_is_known_after_a_restart(tmp_path, ordering) -> None:
    """Whichever read partition it is in, and however long ago within the window, it is a repeat."""
    machine, queue, storage = Machine(), InMemoryQueue(), InMemoryStorage()
    seams = {"storage": storage, "runtime": machine.runtime}
    options = {"dedup_window": "1h", "batch_messages": 1, "read_partitions": 4}
    async with broker(tmp_path, queue=queue, **seams) as b, client(b) as c:
        await c.create(**options, ordering=ordering)
        schema_id, first = c.schema_id, {}
        for producer in "abcdefgh":
            first[producer] = await c.write(0, producer_id=producer)
            machine.pass_time(440)
        successor = queue.another_process()
    async with broker(tmp_path, queue=successor, **seams) as b, client(b) as c:
        c.schema_id = schema_id
        for producer in "abcdefgh":
            again = await c.write(0, producer_id=producer)
            assert (again.duplicate, again.offset) == (True, first[producer].offset)
        with pytest.raises(SequenceConflictError, match="published with other content"):
            await c.write(0, b"other content", producer_id="h")


async def test_a_queue_that_forgets_a_topic_for_a_moment_ends_no_producer(tmp_path) -> None:
    """Kafka, as it starts, knows no partition: a Message waits, and a repeat is told to come again.

    Whoever is told that there is no such topic gives up.
    """
    async with broker(tmp_path) as b, client(b) as c:
        await c.create(batch_age="1ms")
        first = await c.write(0)
        queue, forgot = b.context.queue, []
        publish, fetch = queue.publish, queue.fetch

        async def forgets(*_, **__):
            forgot.append(1)
            raise UnknownTopicError("Unknown partition")

        queue.publish = queue.fetch = forgets
        with pytest.raises(
            QueueError, match="the queue knows no topic of t/0 now: Unknown"
        ) as told:
            await c.write(0)
        assert told.value.retriable
        writing = asyncio.ensure_future(c.write(1))
        await until(lambda: len(forgot) > 2)
        queue.publish, queue.fetch = publish, fetch
        assert (await writing).offset == first.offset + 1
        assert (await c.write(0)).duplicate


@pytest.mark.parametrize(
    ("fields", "error", "text"),
    [
        ({"topic": "nope"}, UnknownTopicError, "no topic 'nope'"),
        ({"write_partition": 7}, InvalidRequestError, "no write partition 7; it has 0 to 0"),
        ({"write_partition": -1}, InvalidRequestError, "no write partition -1"),
        ({"schema_id": "0" * 16}, SchemaMismatchError, "has no schema '0000000000000000'"),
        ({"producer_id": ""}, InvalidRequestError, "1 to 200 printable"),
        ({"epoch": -1}, InvalidRequestError, "epoch -1"),
        ({"min_timestamp_us": 2**63}, InvalidRequestError, "out of range"),
        ({"first_unsettled": 9}, InvalidRequestError, "below first_unsettled 9"),
    ],
)
async def test_bad_write_is_refused_by_name_and_the_connection_lives(
    tmp_path, fields, error, text
) -> None:
    """Each bad field gives a typed error that names it; the next good Message is served."""
    async with broker(tmp_path) as b, client(b) as c:
        await c.create()
        with pytest.raises(error, match=text):
            await c.write(0, **fields)
        assert (await c.write(0)).offset == 0
        assert b.context.memory.used_bytes == 0
