"""Whom a call about a topic asks and for how long, and what its queue tells."""

import asyncio
import math
from types import SimpleNamespace

import msgspec
import pytest

from memq.client import topic as topic_module
from memq.client.topic import ATTEMPT_S, MAX_PAGE_BYTES, TopicClient, merge_watermarks
from memq.core.notification import encode_notification
from memq.core.ranges import OffsetRange
from memq.core.topic import TopicConfig
from memq.core.wire.messages import (
    Done,
    FetchNotificationsAnswer,
    FetchOffsets,
    FetchOffsetsAnswer,
    GroupInfo,
    ListGroupsAnswer,
    NotificationEntry,
    PartitionOffset,
    PartitionOffsets,
    TopicInfo,
    WatermarkAnswer,
    Write,
)
from memq.errors import (
    CorruptDataError,
    NotHostedError,
    OffsetOutOfRangeError,
    ProtocolError,
    RequestTimeoutError,
    TopicRecreatedError,
    UnavailableError,
    UnknownTopicError,
)
from memq.reading.log import RetainedSince
from memq.runtime.retry import Retry
from memq.runtime.system import SYSTEM, Runtime
from tests.unit.core.audit.test_consumed import notification
from tests.unit.zookeeper.conftest import virtual_time  # noqa: F401 - a fixture


class Brokers:
    """Stands for a `Cluster`: the broker of the topic is the last address of a list.

    Attributes:
        addresses: where the topic was and is; the last one is only told to who looks again.
        topic_ids: of the topic, likewise; none when it does not exist any more.
        outcomes: what the next calls give: an answer with its body, or an error.
        asked: addresses that were asked.
        topic_ids_asked: with which topic id.
        requests: that were sent.
        bodies: of these, each with its CRC.
    """

    request_timeout_s = 5.0
    runtime = SYSTEM

    def __init__(self, *outcomes, addresses=("a:1",), topic_ids=("1",)):
        self.addresses, self.outcomes, self.asked = list(addresses), list(outcomes), []
        self.topic_ids, self.topic_ids_asked = list(topic_ids), []
        self.requests, self.bodies = [], []

    async def topic(self, name, *, timeout_s=None):
        """The topic as it is known."""
        if self.topic_ids[0] is None:
            raise UnknownTopicError("gone")
        return TopicInfo(
            config=TopicConfig.create(name),
            schemas={},
            schema_id="",
            hosts=self.addresses[0].split(" "),
            named_partitions=1,
            queue_address=self.addresses[0],
            topic_id=self.topic_ids[0],
        )

    def forget(self, name):
        """Look again."""
        for known in (self.addresses, self.topic_ids):
            if len(known) > 1:
                known.pop(0)

    def reader(self, topic):
        """The broker of the topic."""
        return topic.queue_address

    def retry(self, timeout_s):
        """The attempts of a call."""
        return Retry(timeout_s, SYSTEM)

    async def attempt(self, address, request, body=b"", *, body_crc=None, timeout_s):
        """The next outcome."""
        self.topic_ids_asked.append(getattr(request, "topic_id", None))
        self.asked.append(address)
        self.requests.append(request)
        self.bodies.append((bytes(body), body_crc))
        outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


@pytest.mark.parametrize(
    ("error", "then"),
    [
        (NotHostedError("moved"), "b:2"),
        (UnavailableError("moved"), "b:2"),
        (RequestTimeoutError("moved"), "b:2"),
        (NotHostedError("no", "c:3"), "c:3"),  # which is believed before the topic is looked up
        (UnknownTopicError("no"), "b:2"),  # which may be the last to hear of it
        (TopicRecreatedError("no"), "b:2"),
    ],
)
async def test_follows_the_queue(error, then):
    """When the queue has moved to another broker the call goes there."""
    brokers = Brokers(error, (Done(), b""), addresses=["a:1", "b:2"])
    await TopicClient(brokers, "t", "1").ask(Done())
    assert brokers.asked == ["a:1", then]


async def test_a_topic_that_is_gone():
    """When no broker knows it any more, or another topic id, that is raised."""
    brokers = Brokers(UnknownTopicError("no"), topic_ids=["1", None])
    with pytest.raises(UnknownTopicError, match="gone"):
        await TopicClient(brokers, "t", "1").ask(Done())
    brokers = Brokers(TopicRecreatedError("other"), topic_ids=["1", "2"])
    with pytest.raises(TopicRecreatedError, match="other"):
        await TopicClient(brokers, "t", "1").ask(FetchOffsets(topic="t"))
    assert brokers.topic_ids_asked == ["1"]


async def test_what_is_remembered_may_be_over():
    """Who has not relied on a topic id yet takes the one that there is."""
    brokers = Brokers(TopicRecreatedError("other"), (Done(), b""), topic_ids=["1", "2"])
    client = TopicClient(brokers, "t")
    await client.ask(FetchOffsets(topic="t"))
    assert brokers.topic_ids_asked == ["1", "2"]
    assert client.topic_id == "2"


@pytest.mark.parametrize(
    "question", [lambda t: t.committed("g", timeout_s=0.1), lambda t: t.offsets(timeout_s=0.1)]
)
async def test_nobody_to_ask(question):
    """While a topic has no broker nobody is asked, and the deadline ends it with a typed error."""
    brokers = Brokers((Done(), b""), addresses=[""])
    with pytest.raises(UnavailableError, match=r"no broker .* of topic 't' now"):
        await question(TopicClient(brokers, "t"))
    assert brokers.asked == []


# -- watermarks -----------------------------------------------------------------------------


def told(by_write, by_read, retained_since_ms=0):
    """What one owner tells."""
    owned = [each for each in by_write if each >= 0]
    return WatermarkAnswer(
        stored_through_ms=min(owned, default=-1),
        write_partitions=by_write,
        read_partitions=by_read,
        retained_since_ms=retained_since_ms,
    )


def test_watermarks_of_owners():
    """Each write partition is told by its owner; all else is the least, or the latest removal."""
    merged = merge_watermarks(
        "t", 3, [told([30, -1, 50], [30, 90], 7), told([-1, 40, -1], [90, 40], 9)]
    )
    assert merged == WatermarkAnswer(
        stored_through_ms=30,
        write_partitions=[30, 40, 50],
        read_partitions=[30, 40],
        retained_since_ms=9,
    )


@pytest.mark.parametrize(
    ("count", "answers"),
    [
        (2, [told([30, -1], [30])]),
        (2, [told([30], [30])]),  # it does not know the second one yet
        (1, [told([30, -1], [30])]),  # the client does not know the second one yet
    ],
)
def test_a_write_partition_that_nobody_tells(count, answers):
    """No watermark is better than a wrong one."""
    with pytest.raises(UnavailableError, match="write partition 1 of topic 't'"):
        merge_watermarks("t", count, answers)


async def test_watermark_waits_for_owners():
    """While a write partition has no owner the topic is looked up again; then all are asked."""
    brokers = Brokers(
        (told([30, -1], [30]), b""), (told([-1, 20], [20]), b""), addresses=["", "a:1 b:2"]
    )
    assert (await TopicClient(brokers, "t").watermark()).stored_through_ms == 20
    assert brokers.asked == ["a:1", "b:2"]


# -- time -----------------------------------------------------------------------------------


class Slow(Brokers):
    """Brokers that let each attempt wait until its time is up.

    Attributes:
        attempts: when each began, and its timeout.
    """

    request_timeout_s = 12.0

    def __init__(self, *outcomes, **options):
        super().__init__(*outcomes, **options)
        self.attempts = []

    def retry(self, timeout_s):
        return Retry(timeout_s, Runtime(mono_s=now_s, random=lambda: 0.5))

    async def attempt(self, *asked, timeout_s, **options):
        self.attempts.append((now_s(), timeout_s))
        await asyncio.sleep(timeout_s)
        return await super().attempt(*asked, timeout_s=timeout_s, **options)


def now_s():
    """The time of the loop."""
    return asyncio.get_running_loop().time()


def message(write_partition):
    """A Message of no content."""
    return Write(
        topic="t",
        write_partition=write_partition,
        producer_id="p",
        epoch=0,
        sequence=0,
        first_unsettled=0,
        acks=-1,
        schema_id="s",
        records=0,
        min_timestamp_us=0,
        max_timestamp_us=0,
    )


@pytest.mark.usefixtures("virtual_time")
@pytest.mark.parametrize(
    ("ask", "budget_s", "attempt_s"),
    [
        (lambda t: t.ask(Done()), 12, ATTEMPT_S),
        (lambda t: t.ask(Done(), timeout_s=7), 7, ATTEMPT_S),
        (lambda t: t.read(FetchOffsets(topic="t"), timeout_s=7, wait_s=2), 9, ATTEMPT_S + 2),
        (lambda t: t.watermark(), 12, ATTEMPT_S),
        (lambda t: t.write(message(0), b"x", 1, timeout_s=8), 8, 4),
    ],
)
async def test_all_attempts_share_the_time_of_the_call(ask, budget_s, attempt_s):
    """Each has its own bound, and no more than what is left."""
    brokers, began_s = Slow(RequestTimeoutError("no answer")), now_s()
    with pytest.raises(RequestTimeoutError):
        await ask(TopicClient(brokers, "t"))
    assert len(brokers.attempts) >= budget_s / attempt_s
    for at_s, timeout_s in brokers.attempts:
        assert timeout_s == pytest.approx(min(attempt_s, budget_s - (at_s - began_s)))
    assert now_s() - began_s <= budget_s + 0.001


async def test_a_message_goes_to_the_owner_of_its_write_partition():
    """With its bytes and their CRC, as often as it takes; nobody is asked while it has no owner."""
    brokers = Brokers(UnavailableError("down"), (Done(), b""), addresses=["a:1 b:2"])
    await TopicClient(brokers, "t").write(message(1), b"x", 7)
    assert brokers.asked == ["b:2", "b:2"]
    assert brokers.bodies == [(b"x", 7)] * 2
    brokers = Brokers((Done(), b""), addresses=["a:1 "])
    with pytest.raises(UnavailableError, match="owns write partition 1 of topic 't'"):
        await TopicClient(brokers, "t").write(message(1), b"x", 7, timeout_s=0.1)
    assert brokers.asked == []


async def test_a_call_is_about_the_topic_id_that_was_met_first():
    """Whatever the topic is by now: a broker that has the new one must be able to refuse."""
    brokers = Brokers((Done(), b""), topic_ids=["1", "2"])
    client = TopicClient(brokers, "t")
    await client.ask(FetchOffsets(topic="t"))
    brokers.forget("t")
    await client.ask(FetchOffsets(topic="t"))
    assert brokers.topic_ids_asked == ["1", "1"]
    assert client.topic_id == "1"


# -- what a client reads of a topic's queue -----------------------------------------------------


class Queue(TopicClient):
    """A topic whose notifications stand at some offsets: their times, by offset, by partition.

    Attributes:
        asked: each request, with its timeout.
        at: what is told of a time: first offset, by partition and time.
        retained_since_ms: as the broker says.
    """

    def __init__(self, *partitions, starts=(), damaged=()):
        super().__init__(SimpleNamespace(), "t", "i")
        self.partitions, self.damaged = partitions, damaged
        self.starts_at = starts or [0] * len(partitions)
        self.asked, self.at, self.retained_since_ms = [], {}, 0

    def end(self, partition):
        return max(self.partitions[partition], default=-1) + 1

    async def read(self, request, *, timeout_s=None, wait_s=0.0):
        self.asked.append((request, timeout_s, wait_s))
        return getattr(self, type(request).__name__)(request)

    def FetchNotifications(self, request):  # noqa: N802 - the request
        found = []
        for partition, offset in ((each.partition, each.offset) for each in request.positions):
            if not self.starts_at[partition] <= offset <= self.end(partition):
                raise OffsetOutOfRangeError(f"offset {offset} is not there")
            for at, time_ms in sorted(self.partitions[partition].items()):
                if at >= offset:
                    bad = (partition, at) in self.damaged
                    payload = b"{" if bad else encode_notification(notification(at))
                    found.append(NotificationEntry(partition, at, time_ms, payload))
        ends = [PartitionOffset(p, self.end(p)) for p in range(len(self.partitions))]
        body = msgspec.msgpack.encode(found[: request.max_entries])
        return FetchNotificationsAnswer(ends=ends), body

    def FetchOffsets(self, request):  # noqa: N802 - the request
        answer = [
            PartitionOffsets(p, self.starts_at[p], self.end(p), self.at.get((p, request.at_ms)))
            for p in range(len(self.partitions))
        ]
        return FetchOffsetsAnswer(partitions=answer), b""

    async def watermark(self):
        self.asked.append(("watermark", None, 0.0))
        return WatermarkAnswer(
            stored_through_ms=0,
            write_partitions=[0],
            read_partitions=[0],
            retained_since_ms=self.retained_since_ms,
        )


def dense(count, step=1):
    """Notifications without gaps, and their times."""
    return {at: at * step for at in range(count)}


async def offsets_of(pages):
    """Offsets of the entries of each page."""
    return [[entry.offset for entry in page] async for page in pages]


@pytest.mark.parametrize("page_entries", [1, 3, 4, 100, None])
async def test_a_range_is_read_whole_and_no_further(page_entries):
    """From its first offset up to, not including, its end, however many are asked for at a time."""
    queue = Queue(dense(10), dense(5))
    ranges = [OffsetRange(0, 2, 9, "i"), OffsetRange(1, 3, 3, "i"), OffsetRange(1, 0, 5, "i")]
    found = [e async for e in queue.entries(ranges, page_entries=page_entries)]
    assert [(e.partition, e.offset) for e in found] == [
        *((0, at) for at in range(2, 9)),
        *((1, at) for at in range(5)),
    ]
    size = page_entries or topic_module.PAGE_ENTRIES
    asked = [
        (each.positions[0].partition, each.positions[0].offset, each.max_entries)
        for each, *_ in queue.asked
    ]
    assert asked == [
        *((0, at, min(size, 9 - at)) for at in range(2, 9, size)),
        *((1, at, min(size, 5 - at)) for at in range(0, 5, size)),
    ]


async def test_gaps_end_a_range_and_nothing_else():
    """A page may reach beyond the end, and there may be nothing up to it: other ranges are read."""
    queue = Queue({0: 0, 1: 0, 5: 0, 8: 0}, {}, {4: 0})
    queue.partitions[1][99] = 0
    ranges = [OffsetRange(0, 0, 5, "i"), OffsetRange(2, 0, 5, "i")]
    assert await offsets_of(queue.pages(ranges, page_entries=4)) == [[0, 1], [4]]
    queue = Queue({0: 0}, {0: 0})
    queue.end = lambda _: 9  # offsets that Kafka has used for markers
    ranges = [OffsetRange(0, 0, 9, "i"), OffsetRange(1, 0, 9, "i")]
    assert await offsets_of(queue.pages(ranges)) == [[0], [0]]


async def test_batches_are_merged_by_their_times():
    """Of each partition in order; where times are equal, as the partitions are; to the last."""
    queue = Queue({0: 5, 1: 6, 2: 9}, {}, {0: 1, 1: 6, 2: 7, 3: 7}, {0: 100})
    ranges = [OffsetRange(p, 0, queue.end(p), "i") for p in range(4)]
    found = [(b.partition, b.offset) async for b in queue.batches_by_time(ranges)]
    assert found == [(2, 0), (0, 0), (0, 1), (2, 1), (2, 2), (2, 3), (0, 2), (3, 0)]
    sizes = {each.max_entries for each, *_ in queue.asked}
    assert max(sizes) <= topic_module.PAGE_ENTRIES // 4
    assert [b async for b in queue.batches_by_time([])] == []


async def test_damage_is_an_error_unless_somebody_wants_to_be_told():
    """Then all others are given, also those after it in its partition."""
    queue = Queue(dense(3, 2), dense(3, 3), damaged={(0, 1)})
    ranges = [OffsetRange(p, 0, 3, "i") for p in range(2)]
    told = []
    found = [(b.partition, b.offset) async for b in queue.batches_by_time(ranges, told.append)]
    assert found == [(0, 0), (1, 0), (1, 1), (0, 2), (1, 2)]
    assert ["t/0 offset 1" in each for each in told] == [True]
    for reading in (queue.batches_by_time(ranges), queue.batches(ranges)):
        with pytest.raises(CorruptDataError, match="t/0 offset 1"):
            _ = [each async for each in reading]


async def test_what_was_published_between_two_times():
    """Where nothing was published later, up to the end; with no time, all that is retained."""
    queue = Queue(dense(9), dense(7), starts=[2, 0])
    queue.at = {(0, 10): 4, (0, 20): 6, (1, 10): None, (1, 20): None}
    assert await queue.ranges_between(10, 20) == [
        OffsetRange(0, 4, 6, "i"),
        OffsetRange(1, 0, 7, "i"),
    ]
    assert await queue.ranges_between(None, 20) == [
        OffsetRange(0, 2, 6, "i"),
        OffsetRange(1, 0, 7, "i"),
    ]
    assert await queue.ranges_between(10, None) == [
        OffsetRange(0, 4, 9, "i"),
        OffsetRange(1, 0, 7, "i"),
    ]


@pytest.mark.parametrize("broker_ms", [-math.inf, 40, 1_000])
async def test_since_when_all_is_retained(broker_ms):
    """The time of the first Batch that is left, or what the broker says if that is earlier; always
    where nothing was removed. The broker is asked last.
    """
    queue = Queue({3: 30, 4: 40}, {0: 7}, {5: 50}, starts=[3, 0, 5])
    del queue.partitions[2][5]
    queue.end = lambda partition: [5, 1, 6][partition]
    queue.retained_since_ms = broker_ms
    assert await queue.retained_since() == [
        RetainedSince(0, min(30, broker_ms)),
        RetainedSince(1, -math.inf),
        RetainedSince(2, broker_ms),
    ]
    assert queue.asked[-1][0] == "watermark"


async def test_groups_come_in_pages_that_go_on():
    """Until the broker has no more; one that goes back, or stays, is refused."""

    def page(*groups, after=""):
        infos = [GroupInfo(group=each, topic="t", members=[], offsets=[]) for each in groups]
        return ListGroupsAnswer(groups=infos, from_topic=after and "t", after_group=after), b""

    brokers = Brokers(page("a", after="a"), page("b"))
    found = await TopicClient(brokers, "t").groups()
    assert [each.group for each in found] == ["a", "b"]
    assert [(each.from_topic, each.after_group) for each in brokers.requests] == [
        ("", ""),
        ("t", "a"),
    ]
    for back in ("b", "a"):
        brokers = Brokers(page("b", after="b"), page(after=back))
        with pytest.raises(ProtocolError, match="the broker goes back"):
            await TopicClient(brokers, "t").groups()


async def test_a_page_that_is_too_long_is_not_decoded():
    """Decoded it would take twelve times as much; a broker answers little more than was asked."""
    brokers = Brokers((FetchNotificationsAnswer(ends=[]), bytes(MAX_PAGE_BYTES + 1)))
    with pytest.raises(ProtocolError, match=f"{MAX_PAGE_BYTES + 1} bytes of notifications"):
        await TopicClient(brokers, "t").page({0: 0}, max_entries=1)
