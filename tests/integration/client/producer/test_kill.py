"""Producers, and a broker that is killed or cut off: nothing acked is lost, nothing doubled."""

import asyncio
import subprocess
import sys
import threading
from collections import Counter

import pyarrow as pa
import pytest

from memq.client.admin import AdminClient
from memq.client.producer.producer import AsyncProducer, Producer
from memq.client.read_range import read_range
from memq.testing.broker import BrokerProcess
from tests.integration.broker.support import broker as broker_inside
from tests.integration.broker.support import client, until


@pytest.fixture
def broker(tmp_path):
    with BrokerProcess(tmp_path) as process:
        yield process


def create(broker, **options):
    with AdminClient(broker.address) as admin:
        admin.create_topic("events", **options)


def stored(broker):
    """Values of all records of read partition 0, in the order of the notifications."""
    with AdminClient(broker.address) as admin:
        (offsets,) = admin.offsets("events")
    table = read_range(
        broker.address, topic="events", partition=0, start=offsets.start, end=offsets.end
    )
    return table.column("value").to_pylist()


def test_kill_while_writing_neither_loses_nor_doubles(broker):
    """Through kills with SIGKILL every record is delivered once."""
    create(broker, batch_age="20ms", batch_bytes="64KiB", message_bytes="8KiB")
    written = []
    reached = [threading.Event() for _ in range(3)]
    with Producer(broker.address, topic="events", message_bytes="4KiB") as p:

        def work():
            for number in range(3_000):
                value = b"%06d" % number + b"x" * 94
                written.append((value, p.write(value)))
                if number % 100 == 99:
                    written[-50][1].exception(60)  # so that some are in flight at any time
                if number % 900 == 899:
                    reached[number // 900].set()

        thread = threading.Thread(target=work)
        thread.start()
        for event in reached:
            assert event.wait(60)
            broker.kill()
            broker.restart()
        thread.join(60)
        p.flush(60)
        assert all(delivery.exception(0) is None for _, delivery in written)
    counts = Counter(stored(broker))
    assert counts == Counter(value for value, _ in written)


CRASHING_JOB = """
import os, sys
from memq import Producer
p = Producer(sys.argv[1], topic="events", producer_id="job", message_bytes="64KiB")
deliveries = [p.write(b"%d" % n + b"x" * 1_000, timestamp=n) for n in range(2_000)]
deliveries[1_000].result(30)
os._exit(7)
"""


def test_job_that_is_run_again_after_a_crash_is_idempotent(broker):
    """A second run under the same producer id completes the first, with nothing doubled."""
    create(broker)
    command = [sys.executable, "-c", CRASHING_JOB, broker.address]
    assert subprocess.run(command, check=False).returncode == 7
    broker.restart()
    records = [b"%d" % number + b"x" * 1_000 for number in range(3_000)]
    with Producer(broker.address, topic="events", producer_id="job", message_bytes="64KiB") as p:
        deliveries = [p.write(value, timestamp=n) for n, value in enumerate(records)]
        p.flush(30)
    assert deliveries[1_000].result(0).duplicate
    assert not deliveries[-1].result(0).duplicate
    assert Counter(stored(broker)) == Counter(records)


async def test_many_messages_after_an_idle_connection_was_lost_are_delivered(tmp_path) -> None:
    """Messages that are sent in one turn over a connection that is gone are all sent again."""
    async with broker_inside(tmp_path) as b, client(b) as c:
        await c.create()
        async with AsyncProducer(b.address, topic="t", max_in_flight=8) as producer:
            await (await producer.write(b"first"))
            (connection,) = producer._connections.values()
            connection._transport.abort()
            await until(lambda: connection.closed)
            tables = [pa.table({"value": [b"%d" % number]}) for number in range(5)]
            deliveries = [(await producer.write_table(table))[0] for table in tables]
            stored = await asyncio.gather(*deliveries)
        assert [each.sequence for each in stored] == [1, 2, 3, 4, 5]
