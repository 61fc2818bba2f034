"""Replacing the token of a cluster that works."""

from __future__ import annotations

import asyncio

import pytest

from memq import AsyncAdminClient, AsyncConsumer, AsyncProducer
from memq.errors import UnauthorizedError
from tests.integration.broker.support import until


class Work:
    """A producer that writes until it is ended, and a consumer that reads."""

    def __init__(self, bootstrap, token, number):
        self.acked, self.read, self.ended = [], [], False
        self.task = asyncio.gather(
            self.write(bootstrap, token, number), self.consume(bootstrap, token)
        )

    async def write(self, bootstrap, token, number):
        async with AsyncProducer(bootstrap, topic="t", token=token, linger="1ms") as producer:
            count = 0
            while not self.ended:
                value = b"%d-%d" % (number, count)
                await (await producer.write(value))
                self.acked.append(value)
                count += 1

    async def consume(self, bootstrap, token):
        async with AsyncConsumer(bootstrap, topic="t", token=token, start="earliest") as consumer:
            while not self.ended:
                batch = await consumer.poll(timeout=0.1)
                if batch is not None:
                    self.read += [record.value for record in batch]

    async def end(self):
        self.ended = True
        await self.task


async def works_on(work):
    written, read = len(work.acked), len(work.read)
    await until(lambda: len(work.acked) > written + 20 and len(work.read) > read)


async def test_a_token_is_replaced_without_an_error(cluster, tmp_path):
    """With both tokens for a while, nobody is refused: not in a restart of each broker either."""
    path = tmp_path / "tokens"
    path.write_text("old")
    names = ("one", "two", "three")

    def accept(*tokens):
        path.write_text("\n".join(tokens))
        for broker in cluster.brokers.values():
            broker.tokens.reload()

    await cluster.start(*names, token_file=str(path))
    bootstrap = ",".join(broker.address for broker in cluster.brokers.values())
    async with AsyncAdminClient(bootstrap, token="old") as admin:
        await admin.create_topic("t", write_partitions=6, batch_age="10ms")
    await cluster.all_owned("t")
    old = Work(bootstrap, "old", 1)
    await works_on(old)
    accept("old", "new")
    new = Work(bootstrap, "new", 2)
    for name in names:
        await works_on(old)
        await works_on(new)
        await cluster.stop(name)
        await cluster.start(name, token_file=str(path))
    await works_on(old)
    await old.end()
    accept("new")
    await works_on(new)
    await new.end()
    with pytest.raises(UnauthorizedError):
        await AsyncProducer(bootstrap, topic="t", token="old").start()
    late = Work(bootstrap, "new", 3)
    acked = {*old.acked, *new.acked}
    await until(lambda: acked <= {*late.read})
    await late.end()
    assert len(late.read) == len({*late.read})
