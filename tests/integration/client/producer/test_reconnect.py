"""A producer whose connection ends while nothing is in flight on it."""

from __future__ import annotations

import asyncio

import pyarrow as pa

from memq.client.producer.producer import AsyncProducer
from memq.testing.broker import BrokerProcess
from tests.integration.broker.support import broker, client, until


async def test_many_messages_after_an_idle_connection_was_lost_are_delivered(tmp_path) -> None:
    """Messages that are sent in one turn over a connection that is gone are all sent again."""
    async with broker(tmp_path) as b, client(b) as c:
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


async def test_nothing_is_written_to_a_connection_that_has_broken(tmp_path, caplog) -> None:
    """Messages sent in the turn in which the broker dies do not fill the log with send errors."""
    with BrokerProcess(tmp_path, auto_create_topics=True) as process:
        async with AsyncProducer(process.address, topic="t") as producer:
            await (await producer.write(b"first"))
            process.kill()
            tables = [pa.table({"value": [b"%d" % number]}) for number in range(30)]
            deliveries = [(await producer.write_table(table))[0] for table in tables]
            process.restart()
            stored = await asyncio.gather(*deliveries)
    assert [each.sequence for each in stored] == list(range(1, 31))
    assert "socket.send()" not in caplog.text
