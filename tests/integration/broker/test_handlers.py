"""What a broker does with requests, asked without a socket where none is needed."""

import asyncio
import threading
from functools import partial

import msgspec
import pytest

from memq.broker import handlers as handlers_module
from memq.broker.fair_queuing import ClientFlows
from memq.broker.handlers import BATCH_READS
from memq.client.admin import AsyncAdminClient
from memq.core.topic import TopicConfig
from memq.core.wire import messages as m
from memq.core.wire.messages import WriteAnswer
from memq.errors import (
    InvalidRequestError,
    MemqError,
    NotHostedError,
    OffsetOutOfRangeError,
    SchemaMismatchError,
    TopicRecreatedError,
    UnavailableError,
    UnknownTopicError,
)
from memq.storage.keys import key_of_uri, parse_object_key
from memq.testing.storage import InMemoryStorage
from tests.integration.broker.support import ANYBODY, TIMEOUT_S, broker, client, turns, until
from tests.integration.broker.test_write_partition import Partition, partition

FAST = {"batch_messages": 1, "ring_slots": 16}


class Late:
    """Hides something of topic `t` until the broker has looked for it."""

    def __init__(self, p: Partition, what: type[MemqError]) -> None:
        self._p, self._what = p, what
        self._topic, self._schemas = p.hosted.topic, p.hosted.schemas
        self.looked = 0
        self.error: MemqError | None = None
        self.gate = asyncio.Event()
        p.topics.may_lag = True
        p.topics.look = self._look
        if what is UnknownTopicError:
            del p.topics._hosted["t"]
            p.topics.missing = UnknownTopicError
        elif what is TopicRecreatedError:
            p.hosted.topic = msgspec.structs.replace(self._topic, topic_id="0" * 16)
        elif what is SchemaMismatchError:
            p.hosted.schemas = {}

    async def _look(self, name: str) -> None:
        assert name == "t"
        self.looked += 1
        await self.gate.wait()
        if self.error is not None:
            raise self.error

    def seen(self) -> None:
        self._p.topics._hosted["t"] = self._p.hosted
        self._p.hosted.topic, self._p.hosted.schemas = self._topic, self._schemas


MAY_BE_LATE = [UnknownTopicError, TopicRecreatedError, SchemaMismatchError]


@pytest.mark.parametrize("what", MAY_BE_LATE)
@pytest.mark.parametrize("outcome", ["seen", "not seen", "not told", "no lease"])
async def test_a_message_that_is_ahead_of_the_news_waits_for_them(tmp_path, what, outcome):
    """A broker of a cluster looks once before it says no to what its client may know better."""
    async with partition(tmp_path, **FAST) as p:
        b = p.broker
        topic_id = p.hosted.topic.topic_id
        late = Late(p, what)
        p.it = b.handlers
        p.write(0, topic_id=topic_id)
        await turns()
        assert (p.told, late.looked) == ({}, 1)
        if outcome in ("seen", "no lease"):
            late.seen()
        if outcome == "not told":
            late.error = UnavailableError("ask again")
        if outcome == "no lease":
            b.context.leased = lambda: False
        late.gate.set()
        (told,) = await p.answers(0)
        expected = {"seen": WriteAnswer, "not seen": what}.get(outcome, UnavailableError)
        assert isinstance(told, expected)
        assert late.looked == 1
        late.seen()
        b.context.leased = lambda: True


async def fetched(b, positions, **fields):
    """Offsets of the notifications of an answer, by read partition, and its ends."""
    request = m.FetchNotifications(
        topic="t", positions=[m.PartitionOffset(*each) for each in positions], **fields
    )
    header, body = await b.handlers.serve(request, ANYBODY)
    found: dict[int, list[int]] = {partition: [] for partition, _ in positions}
    for entry in msgspec.msgpack.decode(body, type=list[m.NotificationEntry]):
        found[entry.partition].append(entry.offset)
    return list(found.values()), [(each.partition, each.offset) for each in header.ends]


@pytest.mark.parametrize(
    ("positions", "fields", "found"),
    [
        ([(0, 0), (1, 0), (2, 0)], {}, [[0, 1, 2, 3]] * 3),
        ([(0, 0), (1, 0), (2, 0)], {"max_entries": 4}, [[0], [0], [0, 1]]),
        ([(0, 0), (1, 0), (2, 0)], {"max_entries": 2}, [[0], [0], []]),
        ([(0, 0), (1, 0), (2, 0)], {"max_entries": 0}, [[0], [], []]),
        ([(0, 0), (1, 0), (2, 0)], {"max_entries": -5}, [[0], [], []]),
        ([(0, 0), (1, 0), (2, 0)], {"max_bytes": 0}, [[0], [], []]),
        ([(0, 4), (1, 2), (2, 0)], {"max_entries": 4}, [[], [2, 3], [0, 1]]),
        ([(2, 3), (0, 1)], {"max_entries": 2}, [[3], [1]]),
    ],
)
async def test_read_partitions_share_what_an_answer_may_hold(tmp_path, positions, fields, found):
    """The first takes its share, what it leaves is for those behind it, and one entry is least."""
    async with partition(tmp_path, read_partitions=3, **FAST) as p:
        await p.fill(12)
        ends = [(partition, 4) for partition, _ in positions]
        assert await fetched(p.broker, positions, **fields) == (found, ends)


async def test_only_what_is_retained_can_be_fetched(tmp_path):
    """From the start to the end, both included; each of several positions is looked at."""
    async with partition(tmp_path, read_partitions=2, **FAST) as p:
        await p.fill(8)
        b = p.broker
        await b.context.queue.truncate(p.hosted.topic.queue_topic, 1, 2)
        for offset, found in ((2, [2, 3]), (4, [])):
            assert (await fetched(b, [(0, 4), (1, offset)]))[0] == [[], found]
        for bad in ((1, 1), (1, 5), (0, -1)):
            for wait_ms in (0, 60_000):
                request = m.FetchNotifications(
                    topic="t",
                    positions=[m.PartitionOffset(1, 2), m.PartitionOffset(*bad)],
                    max_wait_ms=wait_ms,
                )
                with pytest.raises(OffsetOutOfRangeError):
                    await (
                        b.handlers.news(request) if wait_ms else b.handlers.serve(request, ANYBODY)
                    )
        for partition_number in (-1, 2):
            with pytest.raises(InvalidRequestError, match="it has 0 to 1"):
                await fetched(b, [(1, 2), (partition_number, 0)])
        with pytest.raises(InvalidRequestError, match="without a position"):
            await fetched(b, [])
        with pytest.raises(InvalidRequestError, match="3 positions; 't' has 2 read partitions"):
            await fetched(b, [(1, 2)] * 3)


READS = [m.Metadata(topics=["t"]), m.FetchOffsets(topic="t"), m.DescribeCluster()]
CHANGES = [m.Metadata(topics=["t"], create=True), m.DeleteTopic(topic="t"), m.RebalanceCluster()]


async def test_an_unexpected_error_costs_a_read_its_answer_and_a_change_the_broker(tmp_path):
    """What only reads has left nothing half-way, whichever request it is; an error is an answer."""
    async with broker(tmp_path) as b:

        async def fails(error):
            raise error

        for request in READS:
            with pytest.raises(MemqError, match="KeyError: 'planted'"):
                await b.handlers._guarded(request, fails(KeyError("planted")))
        for request in CHANGES:
            with pytest.raises(KeyError, match="planted"):
                await b.handlers._guarded(request, fails(KeyError("planted")))
        for request in READS + CHANGES:
            with pytest.raises(OffsetOutOfRangeError, match="typed"):
                await b.handlers._guarded(request, fails(OffsetOutOfRangeError("typed")))


async def test_a_range_is_read_of_a_batch_of_the_topic_only(tmp_path):
    """Not of another topic's, nor of a life of it before, nor more than an answer may hold."""
    async with partition(tmp_path, **FAST) as p:
        await p.fill(1)
        b = p.broker
        await b.topics.create(TopicConfig.create("u"))
        (key,) = [info.key for info in b.context.storage.list("")]
        uri, limit = b.context.storage.uri(key), b.context.config.max_body_bytes
        assert parse_object_key(key_of_uri(uri)).topic == "t"

        async def read(**fields):
            request = {"topic": "t", "uri": uri, "start": 0, "length": 10} | fields
            return (await b.handlers.serve(m.FetchBatch(**request), ANYBODY))[1]

        whole = await read(length=limit)
        assert await read(start=3, length=1) == whole[3:4]
        for fields in ({"length": 0}, {"length": -1}, {"length": limit + 1}, {"start": -1}):
            with pytest.raises(InvalidRequestError, match="at a time"):
                await read(**fields)
        with pytest.raises(InvalidRequestError, match="no Batch of topic"):
            await read(topic="u")
        p.hosted.topic = msgspec.structs.replace(p.hosted.topic, topic_id="0" * 16)
        with pytest.raises(InvalidRequestError, match="no Batch of topic"):
            await read()


async def test_nothing_is_promised_once_the_lease_is_over(tmp_path):
    """It may end while the answer is made: watermark and assignment are told by the next owner."""
    async with broker(tmp_path) as b:
        await b.topics.create(TopicConfig.create("t", **FAST))
        hosted, queue = b.topics.get("t"), b.context.queue
        watermarks, hold = hosted.watermarks, queue.hold

        async def outlasts(work, *args):
            outcome = await work(*args)
            b.context.leased = lambda: False
            return outcome

        hosted.watermarks = lambda: outlasts(watermarks)
        queue.hold = lambda *args: outlasts(hold, *args)
        for request in (
            m.FetchWatermark(topic="t"),
            m.GroupHeartbeat(group="g", topic="t", member_id="a", sequence=1),
        ):
            b.context.leased = lambda: True
            with pytest.raises(UnavailableError, match="others may have taken over"):
                await b.handlers.serve(request, ANYBODY)
            assert not b.context.leased()


OF_A_TOPIC = [
    m.FetchNotifications(topic="t", positions=[m.PartitionOffset(0, 0)]),
    m.FetchOffsets(topic="t"),
    m.FetchWatermark(topic="t"),
    m.FetchLag(topic="t", positions=[m.PartitionOffset(0, 0)]),
    m.FetchBatch(topic="t", uri="u", start=0, length=1),
    m.FetchCommitted(group="g", topic="t"),
    m.DeleteTopic(topic="t"),
]
OF_ITS_COORDINATOR = [
    m.CommitOffsets(group="g", topic="t", member_id="", offsets=[m.PartitionOffset(0, 0)]),
    m.GroupHeartbeat(group="g", topic="t", member_id="a", sequence=1),
    m.LeaveGroup(group="g", topic="t", member_id="a"),
    m.DeleteGroup(group="g", topic="t"),
]


@pytest.mark.parametrize(
    "request_", OF_A_TOPIC + OF_ITS_COORDINATOR, ids=lambda it: type(it).__name__
)
async def test_a_request_is_for_the_topic_that_its_client_knows(tmp_path, request_):
    """Not for one of that name that was made since; of groups, at their coordinator only."""
    async with broker(tmp_path) as b:
        await b.topics.create(TopicConfig.create("t", **FAST))
        hosted = b.topics.get("t")
        serve = partial(b.handlers.serve, access=ANYBODY)
        found = []
        find = b.topics.find

        async def note(name, topic_id=""):
            found.append(name)
            return await find(name, topic_id)

        b.topics.find = note
        for fields, error in (
            ({"topic": "nope"}, UnknownTopicError),
            ({"topic_id": "0" * 16}, TopicRecreatedError),
        ):
            with pytest.raises(error):
                await serve(msgspec.structs.replace(request_, **fields))
        if not isinstance(request_, m.DeleteTopic):
            assert found == ["nope", "t"], "what is not seen yet may be there"
        assert b.topics.get("t") is hosted
        if request_ in OF_ITS_COORDINATOR:
            hosted.coordinated = False
            b.topics.hosts = lambda _: ["10.0.0.2:6367"]
            with pytest.raises(NotHostedError) as told:
                await serve(request_)
            assert told.value.address == "10.0.0.2:6367"
            assert b.topics._hosted["t"] is hosted
            assert await b.context.queue.groups(hosted.topic.queue_topic) == []
            assert b.handlers._groups.groups(b.context.now().mono_ms) == {}
            del b.topics.hosts


async def test_lists_that_one_answer_cannot_hold_come_in_pages(tmp_path, monkeypatch) -> None:
    """All topics and groups are listed, each once and sorted, however little an answer holds."""
    monkeypatch.setattr(handlers_module, "PAGE_BYTES", 5_000)
    async with broker(tmp_path) as b, client(b) as c:
        for number in range(12):
            await c.create(f"t{number:02}")
            for group in range(number % 4 * 3):
                position = m.PartitionOffset(0, 0)
                await c.ask(
                    m.CommitOffsets(
                        group=f"g{group}", topic=f"t{number:02}", member_id="", offsets=[position]
                    )
                )
        assert (await c.ask(m.Metadata())).more
        assert (await c.ask(m.ListGroups())).from_topic
        async with AsyncAdminClient(b.address) as admin:
            topics = [info.config.name for info in await admin.list_topics()]
            assert topics == ["_memq_audit", *(f"t{number:02}" for number in range(12))]
            listed = [(info.topic, info.group) for info in await admin.groups()]
            assert listed == [
                (f"t{number:02}", f"g{group}")
                for number in range(12)
                for group in range(number % 4 * 3)
            ]
            assert [info.group for info in await admin.groups("t03")] == [f"g{n}" for n in range(9)]
            assert await admin.groups("t04") == []


async def test_requests_pass_those_that_wait(tmp_path) -> None:
    """Long polls and large answers of a connection hold up none of its small requests."""
    async with broker(tmp_path, memory_bytes="8MiB") as b, client(b) as c:
        await c.create()
        scheduler, line = b.context.scheduler, ClientFlows()
        scheduler.charge(line, scheduler.limit_bytes)  # another connection's, which does not read
        news = m.FetchNotifications(
            topic="t", positions=[m.PartitionOffset(0, 0)], max_wait_ms=60_000
        )
        polls = [asyncio.ensure_future(c.ask(news)) for _ in range(20)]
        await until(lambda: "[20 waiting]" in repr(b.context.queue._waiters))
        assert scheduler.used_bytes == scheduler.limit_bytes, "a long poll holds nothing"
        large = asyncio.ensure_future(c.ask(m.ListGroups()))
        await until(lambda: scheduler.full)
        await c.ask(m.GroupHeartbeat(group="g", topic="t", member_id="a", sequence=1))
        await c.ask(m.CommitOffsets(group="g", topic="t", member_id="a", offsets=[]))
        assert not large.done()
        scheduler.charge(line, -scheduler.limit_bytes)
        assert [group.group for group in (await large).groups] == ["g"]
        await c.write(0)
        assert all(
            answer.ends == [m.PartitionOffset(0, 1)] for answer in await asyncio.gather(*polls)
        )
        await until(lambda: not scheduler.used_bytes)


class SilentReads(InMemoryStorage):
    """A storage whose reads wait until they are let go on."""

    def __init__(self) -> None:
        super().__init__()
        self.reads, self.gate = 0, threading.Event()

    def get_range(self, key, start, length):
        self.reads += 1
        assert self.gate.wait(TIMEOUT_S), "the test left it waiting"
        return super().get_range(key, start, length)


async def test_reads_that_hang_take_no_thread_of_uploads(tmp_path) -> None:
    """More reads than there may be uploads hang, and Messages are stored beside them."""
    storage = SilentReads()
    async with broker(tmp_path, storage=storage, upload_threads=1) as b, client(b) as c:
        await c.create(batch_messages=1)
        await c.write(0)
        (key,) = [info.key for info in storage.list("") if "/t/" in info.key]
        ask = m.FetchBatch(topic="t", uri=storage.uri(key), start=0, length=8)
        reads = [asyncio.ensure_future(c.ask(ask)) for _ in range(BATCH_READS)]
        await until(lambda: storage.reads >= 2)  # as many threads as one upload and its hedge have
        header, body = c.message(1)
        assert (await c.ask(header, body, timeout_s=5)).offset == 1
        storage.gate.set()
        await asyncio.gather(*reads)
