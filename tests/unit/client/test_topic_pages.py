"""What a client reads of a topic's queue: all of it, once, in order, whatever the pages are."""

from __future__ import annotations

import math
from types import SimpleNamespace

import msgspec
import pytest

from memq.client import topic as topic_module
from memq.client.lag import Lag
from memq.client.topic import Page, RetainedSince, TopicClient, pages_of_groups
from memq.core.notification.notification import encode_notification
from memq.core.ranges import OffsetRange
from memq.core.wire.messages import (
    FetchLag,
    FetchLagAnswer,
    FetchNotifications,
    FetchNotificationsAnswer,
    FetchOffsets,
    FetchOffsetsAnswer,
    GroupInfo,
    ListGroupsAnswer,
    NotificationEntry,
    PartitionLag,
    PartitionOffset,
    PartitionOffsets,
    WatermarkAnswer,
)
from memq.errors import CorruptDataError, InvalidRequestError, OffsetOutOfRangeError, ProtocolError
from tests.unit.core.audit.test_consumed import notification


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
        self.asked, self.at, self.lags_told, self.retained_since_ms = [], {}, [], 0

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

    def FetchLag(self, request):  # noqa: N802 - the request
        lags = [
            PartitionLag(each.partition, each.offset, 0, 9, batches=1, oldest_us=4_000_000)
            for each in request.positions
        ]
        return FetchLagAnswer(lags=self.lags_told or lags, now_us=5_000_000), b""

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


@pytest.mark.parametrize(("partitions", "size"), [(1, 7), (2, 3), (7, 1), (9, 1)])
async def test_what_is_merged_shares_a_page(monkeypatch, partitions, size):
    """However many partitions there are, about a page of notifications is in memory."""
    monkeypatch.setattr(topic_module, "PAGE_ENTRIES", 7)
    queue = Queue(*[dense(10)] * partitions)
    ranges = [OffsetRange(p, 0, 10, "i") for p in range(partitions)]
    assert len([b async for b in queue.batches_by_time(ranges)]) == 10 * partitions
    assert max(each.max_entries for each, *_ in queue.asked) == size


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


async def test_lag_of_many_positions_is_asked_for_in_parts(monkeypatch):
    """Each position once, in order."""
    monkeypatch.setattr(topic_module, "LAG_POSITIONS", 3)
    queue = Queue({})
    for count in (0, 3, 4, 7):
        queue.asked.clear()
        positions = [PartitionOffset(p, p) for p in range(count)]
        answer = await queue.lags(positions)
        assert [(each.partition, each.offset) for each in answer.lags] == [
            (p, p) for p in range(count)
        ]
        sizes = [len(each.positions) for each, *_ in queue.asked]
        assert sizes == [3] * (count // 3) + [count % 3] * (count % 3 > 0)
        assert answer.now_us == (5_000_000 if count else 0)


async def test_lag_that_cannot_be_counted_is_an_error():
    """Of whichever partition it is."""
    queue = Queue({})
    assert await queue.lag({1: 2, 0: 3}) == {p: Lag(1, 0, 0, 1.0) for p in (0, 1)}
    queue.lags_told = [PartitionLag(0, 0, 0, 9), PartitionLag(1, 0, 0, 9, error="t/1 is damaged")]
    with pytest.raises(CorruptDataError, match="t/1 is damaged"):
        await queue.lag({0: 0, 1: 0})


async def test_each_question_passes_on_its_timeout():
    """And how long the broker may wait on purpose."""
    queue = Queue(dense(3))
    page = await queue.page({0: 1}, max_entries=9, max_wait_ms=1_500, timeout_s=7)
    assert isinstance(page, Page)
    assert page.ends == {0: 3}
    await queue.offsets(timeout_s=8)
    (first, *waits), second = queue.asked
    assert isinstance(first, FetchNotifications)
    assert (first.max_wait_ms, waits) == (1_500, [7, 1.5])
    assert isinstance(second[0], FetchOffsets)
    assert second[1:] == (8, 0.0)
    assert not any(isinstance(each, FetchLag) for each, *_ in queue.asked)


async def test_what_is_not_retained_is_checked_against_the_offsets_of_now():
    """By partition."""
    queue = Queue(dense(9), dense(4), starts=[2, 0])
    await queue.check_retained(OffsetRange(0, 2, 9, "i"))
    assert await queue.starts() == {0: 2, 1: 0}
    with pytest.raises(OffsetOutOfRangeError):
        await queue.check_retained(OffsetRange(1, 0, 9, "i"))
    with pytest.raises(InvalidRequestError):
        await queue.check_retained(OffsetRange(2, 0, 0, "i"))


async def test_groups_come_in_pages_that_go_on():
    """Until the broker has no more; one that goes back, or stays, is refused."""
    asked, answers = [], []

    def group(name):
        return GroupInfo(group=name, topic="t", members=[], offsets=[])

    async def ask(request):
        asked.append((request.topic, request.from_topic, request.after_group))
        return answers.pop(0), b""

    answers[:] = [
        ListGroupsAnswer(groups=[group("a")], from_topic="t", after_group="a"),
        ListGroupsAnswer(groups=[group("b")], from_topic="u", after_group=""),
        ListGroupsAnswer(groups=[group("c")], from_topic="", after_group=""),
    ]
    assert [each.group for each in await pages_of_groups(ask, "t")] == ["a", "b", "c"]
    assert asked == [("t", "", ""), ("t", "t", "a"), ("t", "u", "")]
    for back in ("a", "A"):
        answers[:] = [
            ListGroupsAnswer(groups=[group("a")], from_topic="t", after_group="a"),
            ListGroupsAnswer(groups=[], from_topic="t", after_group=back),
        ]
        with pytest.raises(ProtocolError, match="the broker goes back"):
            await pages_of_groups(ask, None)
