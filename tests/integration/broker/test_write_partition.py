"""A write partition of a broker, without the socket: who is answered, and when it is closed."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from memq.broker.write_partition import ReceivedWrite
from memq.core.topic import TopicConfig
from memq.core.wire import messages as m
from memq.core.wire.connection import Request
from memq.core.wire.messages import WriteAnswer
from memq.errors import (
    FencedError,
    ForbiddenError,
    NotHostedError,
    PublishUncertainError,
    QueueError,
    SequenceConflictError,
    SequenceGapError,
    StorageError,
    UnavailableError,
)
from tests.fakes.queue import InMemoryQueue
from tests.integration.broker.support import (
    Client,
    GatedStorage,
    broker,
    crc,
    failing,
    turns,
    until,
)

SLOTS = {"ring_slots": 1, "batch_messages": 1, "batch_age": "10m"}


class Queue(InMemoryQueue):
    """Publishes as it is told.

    Attributes:
        how: `publish` as usual, `wait` for the gate, `fail` retriably, or leave it open after it
            has `done` it or `not done` it.
        fences: what a fence that is repeated raises.
        asked: publications for topic `t`, and fences that were repeated.
    """

    def __init__(self) -> None:
        super().__init__()
        self.how = "publish"
        self.fences: Exception | None = None
        self.gate = asyncio.Event()
        self.asked: list[str] = []

    async def publish(self, topic, write_partition, publications):
        if not topic.startswith("t."):
            return await super().publish(topic, write_partition, publications)
        self.asked.append("publish")
        how = self.how
        if how == "wait":
            await self.gate.wait()
        elif how == "fail":
            raise QueueError("down")
        if how == "not done":
            raise PublishUncertainError("who knows")
        offsets = await super().publish(topic, write_partition, publications)
        if how == "done":
            raise PublishUncertainError("who knows")
        return offsets

    async def fence(self, topic, *write_partitions, again=False):
        if again:
            self.asked.append("fence")
            if self.fences is not None:
                raise self.fences
        await super().fence(topic, *write_partitions, again=again)


class Partition:
    """Write partition 0 of topic `t`; it is its own client, and knows what it was told."""

    def __init__(self, b) -> None:
        self.broker, self.context = b, b.context
        self.topics = b.topics
        self.hosted = b.topics.get("t")
        self.it = self.hosted.partitions[0]
        self.told: dict[int, object] = {}  # by correlation id; here the number of the Write
        self.refusals: list[Exception] = []
        self.held = 0
        self.revoked: Exception | None = None
        self._messages = Client(None)
        self._messages.schema_id = self.hosted.topic.schema_id

    def answer(self, correlation_id, header):
        assert correlation_id not in self.told
        self.told[correlation_id] = header

    def fail(self, correlation_id, error, request):
        assert isinstance(request, m.Write)
        assert correlation_id not in self.told
        self.told[correlation_id] = error

    def refusal(self, write):
        return self.revoked

    def refused(self, error):
        self.refusals.append(error)

    def hold(self):
        self.held += 1

    def unhold(self):
        self.held -= 1

    def write(self, number, sequence=None, *values, oneway=False, **fields):
        sequence = number if sequence is None else sequence
        header, body = self._messages.message(sequence, *values, **fields)
        self.context.memory.admit(len(body))
        request = Request(number, header, body, crc(body), oneway)
        self.it.write(ReceivedWrite(request, self, self.context.memory))

    async def fill(self, count):
        """Have so many Messages published."""
        for number in range(count):
            self.write(number)
        await self.answers(*range(count))

    async def answers(self, *numbers):
        await until(lambda: self.told.keys() >= {*numbers})
        return [self.told[number] for number in numbers]

    async def published(self):
        """Sequences in the order in which they can be read, by read partition."""
        found = []
        for partition in range(self.hosted.topic.config.read_partitions):
            entries = self.context.notifications_since(self.hosted.topic.queue_topic, partition, 0)
            found.append(
                [
                    sequence
                    async for _, each in entries
                    for producer in each.producers
                    for sequence in range(producer.first, producer.last + 1)
                ]
            )
        return found


@asynccontextmanager
async def partition(tmp_path, storage=None, queue=None, broker_options=None, **options):
    """A write partition that runs in a broker; no memory is left charged, and nothing fatal."""
    async with broker(tmp_path, storage=storage, queue=queue, **(broker_options or {})) as b:
        await b.topics.create(TopicConfig.create("t", **options))
        p = Partition(b)
        yield p
        await until(lambda: b.context.memory.used_bytes == 0)
        assert p.held == 0
        assert not b.context.fatal_errors.failure.done()


async def test_nobody_is_acked_by_a_broker_that_may_have_been_replaced(tmp_path):
    """Whatever was asked for, an ack that comes when the lease is over is a retriable error."""
    storage = GatedStorage()
    async with partition(tmp_path, storage, batch_messages=1, ring_slots=8) as p:
        await p.fill(1)
        storage.gate.clear()
        p.write(1)
        p.write(2, 1)  # it joins the one under way
        p.context.leased = lambda: False
        p.write(3, 0)  # it was published
        p.write(4, 4, acks=1)
        p.write(5, 5, acks=0)
        storage.gate.set()
        told = await p.answers(1, 2, 3, 4, 5)
        assert [type(each) for each in told] == [UnavailableError] * 5
        await until(lambda: p.it.processor.idle)
        assert await p.published() == [[0, 1, 4, 5]]
        p.context.leased = lambda: True
        p.write(6, 1)
        assert (await p.answers(6))[0].duplicate


async def test_a_drain_refuses_what_waits_and_stores_what_was_accepted(tmp_path):
    """Also the open Batch; whoever comes meanwhile is told to go elsewhere."""
    storage = GatedStorage()
    async with partition(tmp_path, storage, ring_slots=2, batch_messages=2, batch_age="10m") as p:
        storage.gate.clear()
        for number in range(3):
            p.write(number)
        p.write(3, 3, bytes(100), min_timestamp_us=0)
        p.write(4)
        assert p.it.parked == 1
        draining = asyncio.ensure_future(p.it.drain(60))
        await turns()
        p.write(5)
        assert sorted(p.told) == [4, 5]
        assert all(isinstance(each, UnavailableError) for each in p.told.values())
        assert p.it.closing
        assert not draining.done()
        assert not p.it.closed
        storage.gate.set()
        assert await draining
        assert all(isinstance(p.told[number], WriteAnswer) for number in range(4))
        await p.it.close()
        assert p.it.closed
        assert await p.published() == [[0, 1, 2, 3]]


STAGES = ["upload", "publish", "publish again", "read back"]


async def closed_amid(p, storage, queue, stage):
    """Bring a Message to a stage of its way, where it waits for the test."""
    p.write(1)
    if stage == "open":
        return
    if stage == "upload":
        storage.gate.clear()
    queue.fences = QueueError("down")
    queue.how = {"publish again": "fail", "read back": "not done"}.get(stage, "wait")
    await p.topics.alter("t", {"batch_age": "1ms"}, None)
    if stage == "upload":
        await until(p.it.uploads)
    count = {"upload": 0, "publish": 1, "publish again": 2, "read back": 3}[stage]
    await until(lambda: len(queue.asked) >= count)


@pytest.mark.parametrize(
    ("stage", "drained"),
    [
        ("open", False),
        *((stage, False) for stage in STAGES),
        *((stage, True) for stage in STAGES),
    ],
)
async def test_nothing_is_published_after_a_close(tmp_path, stage, drained):
    """Wherever a Message is on its way, it is nacked retriably; what comes late does nothing."""
    storage, queue = GatedStorage(), Queue()
    async with partition(tmp_path, storage, queue, batch_age="10m") as p:
        await closed_amid(p, storage, queue, stage)
        if drained:
            draining = asyncio.ensure_future(p.it.drain(60))
            await turns()
        await p.it.close()
        if drained:
            assert not await draining
        (told,) = await p.answers(1)
        assert isinstance(told, UnavailableError)
        assert p.it.processor.idle
        assert p.it._timer is None or p.it._timer.cancelled()
        queue.how, queue.fences = "publish", None
        asked = len(queue.asked)
        queue.gate.set()
        storage.gate.set()
        await until(lambda: not p.it.uploads())
        await turns()
        assert len(queue.asked) == asked
        assert await p.published() == [[]]
        p.write(2)
        assert isinstance(p.told[2], UnavailableError)


@pytest.mark.parametrize("published", [True, False])
async def test_a_publish_in_doubt_is_settled_by_the_one_that_fenced_it(tmp_path, published):
    """What is in the queue is acked; the rest goes to the next owner, and is not waited for."""
    queue = Queue()
    async with partition(tmp_path, queue=queue, batch_age="1ms") as p:
        queue.how = "done" if published else "not done"
        queue.fences = FencedError("another has it")
        publish = queue.publish

        async def fenced(topic, *args):
            if topic.startswith("t.") and "fence" in queue.asked:
                raise FencedError("another has it")
            return await publish(topic, *args)

        queue.publish = fenced
        p.write(0)
        (told,) = await p.answers(0)
        assert isinstance(told, WriteAnswer if published else NotHostedError)
        assert queue.asked.count("fence") == 1
        assert await p.published() == [[0] if published else []]


@pytest.mark.parametrize("published", [True, False])
async def test_a_publish_in_doubt_is_looked_for_in_every_read_partition(tmp_path, published):
    """Batches of one publication go to several; each is acked once, where it is."""
    storage, queue = GatedStorage(), Queue()
    options = {"read_partitions": 3, "batch_messages": 1, "ring_slots": 8}
    async with partition(tmp_path, storage, queue, **options) as p:
        queue.how = "wait"
        p.write(0)
        await until(lambda: queue.asked)
        for number in range(1, 6):
            p.write(number)
        await until(lambda: not p.it.uploads())
        await turns()
        queue.how = "done" if published else "not done"
        queue.fences = QueueError("down")
        queue.gate.set()
        await until(lambda: "fence" in queue.asked)
        assert p.it.processor.load.uncertain
        queue.how, queue.fences = "publish", None
        told = await p.answers(*range(6))
        assert not p.it.processor.load.uncertain
        assert [(each.partition, each.offset) for each in told] == [
            (0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)
        ]  # fmt: skip
        assert await p.published() == [[0, 3], [1, 4], [2, 5]]


async def test_a_repeat_that_cannot_be_compared_is_not_acked(tmp_path):
    """While storage or queue do not answer, a repeat is told to come again, and then is found."""
    async with partition(tmp_path, batch_age="1ms") as p:
        await p.fill(1)
        for number, (place, call, error) in enumerate(
            [
                (p.context.storage, "get_range", StorageError("down")),
                (p.context.queue, "fetch", QueueError("down")),
            ],
            1,
        ):
            with failing(place, call, error):
                p.write(number, 0)
                assert isinstance((await p.answers(number))[0], type(error))
        p.write(3, 0)
        p.write(4, 0, b"other")
        repeat, other = await p.answers(3, 4)
        assert (repeat.duplicate, repeat.offset) == (True, 0)
        assert isinstance(other, SequenceConflictError)


async def test_what_waits_is_checked_against_its_own_producer_and_epoch_only(tmp_path):
    """In an ordered topic a Message is due after those of its producer and epoch that wait."""
    storage = GatedStorage()
    async with partition(tmp_path, storage, ordering="producer", **SLOTS) as p:
        storage.gate.clear()
        p.write(0)
        p.write(1)
        p.write(2)
        p.write(3, 3, producer_id="q")
        p.write(4, 3, epoch=1)
        p.write(5, 4)
        assert sorted(p.told) == [3, 4, 5]
        assert {type(each) for each in p.told.values()} == {SequenceGapError}
        p.write(6, 0, producer_id="q")
        p.write(7, 3)
        assert p.it.parked == 4
        storage.gate.set()
        told = await p.answers(0, 1, 2, 6, 7)
        assert [each.offset for each in told] == [0, 1, 2, 3, 4]


async def test_a_message_that_waits_is_looked_at_again(tmp_path):
    """One whose client lost its right meanwhile is refused when there is room, and not stored."""
    storage = GatedStorage()
    async with partition(
        tmp_path, storage=storage, batch_bytes="64KiB", message_bytes="64KiB"
    ) as p:
        storage.gate.clear()
        number = 0
        while not p.it.parked:
            p.write(number, None, bytes(60_000))
            number += 1
        p.revoked = ForbiddenError("gone")
        storage.gate.set()
        [last] = await p.answers(number - 1)
        assert isinstance(last, ForbiddenError)
        assert p.held == 0
