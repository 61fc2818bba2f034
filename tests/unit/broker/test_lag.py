"""What is published after an offset is counted, whatever was asked before and whatever is gone."""

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.broker import lag as lag_module
from memq.broker.context import BrokerContext
from memq.broker.lag import Backlog, LagCounter
from memq.core.governor.topics import new_topic
from memq.core.notification import encode_notification
from memq.core.queue import QueueEntry, out_of_range
from memq.core.topic import TopicConfig
from memq.core.wire import messages as m
from memq.core.wire.messages import PartitionOffset
from memq.errors import CorruptDataError, QueueError, UnavailableError
from tests.fakes.queue import InMemoryQueue
from tests.integration.broker.support import ANYBODY, broker, failing
from tests.unit.client.audit.test_stored import NOTIFICATION

TOPIC = new_topic(
    TopicConfig.create("t", read_partitions=2), (), now_ms=0, topic_id="1" * 16, request_id=""
)


def payload(records, size_bytes, oldest_us, newest_us):
    """A Notification of a Batch."""
    return encode_notification(
        msgspec.structs.replace(
            NOTIFICATION,
            records=records,
            size_bytes=size_bytes,
            min_timestamp_us=oldest_us,
            max_timestamp_us=newest_us,
        )
    )


class GappyQueue(InMemoryQueue):
    """A queue in which only some offsets have an entry, as in Kafka, and some are damaged."""

    def __init__(self, entries, start, end, damaged=()):
        super().__init__()
        self.entries, self.start, self.end, self.damaged = entries, start, end, damaged
        self.fetched = 0

    async def offsets(self, topic, partition):
        await asyncio.sleep(0)
        return self.start, self.end

    async def fetch(self, topic, partition, offset, *, max_entries, max_bytes):
        await asyncio.sleep(0)
        if not self.start <= offset <= self.end:
            raise out_of_range(topic, partition, offset, self.start, self.end)
        found = []
        for at in sorted(each for each in self.entries if each >= offset)[:3]:
            if at in self.damaged:
                if found:
                    break
                raise CorruptDataError(f"offset {at} is damaged")
            found.append(QueueEntry(at, 7, payload(*self.entries[at])))
        self.fetched += len(found)
        return found


def counter(queue):
    """A counter over a queue."""
    context = SimpleNamespace(queue=queue)
    context.entries = BrokerContext.entries.__get__(context)
    return LagCounter(context)


def expected(queue, offset):
    """What lies from an offset on, counted one by one."""
    backlog = Backlog()
    for at, (records, size_bytes, oldest_us, _) in queue.entries.items():
        if max(offset, queue.start) <= at < queue.end:
            backlog = backlog.plus(Backlog(1, records, size_bytes, oldest_us))
    return backlog


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(0, 3), st.integers(0, 1_000)),
        st.tuples(st.just("ask"), st.integers(-2, 60), st.integers(0, 3)),
        st.tuples(st.just("remove"), st.integers(0, 4), st.just(0)),
    ),
    max_size=60,
)


@given(STEPS, st.integers(2, 5), st.integers(1, 4))
async def test_counts_are_exact(steps, max_counts, block):
    """However questions, publications, gaps and retention follow each other, each Batch that is
    retained from the offset on is counted once.
    """
    queue = GappyQueue({}, 0, 0)
    counts = counter(queue)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lag_module, "MAX_COUNTS", max_counts)
        patch.setattr(lag_module, "BLOCK", block)
        for what, number, other in steps:
            if what == "publish":
                for _ in range(number):
                    queue.end += other % 3  # a gap
                    queue.entries[queue.end] = (other % 7, other, 1_000 - other, 2_000)
                    queue.end += 1
            elif what == "remove":
                queue.start = min(queue.end, queue.start + number)
            else:
                offsets = [number, number + other]
                lags = await counts.lags(TOPIC, [PartitionOffset(0, each) for each in offsets])
                for offset, lag in zip(offsets, lags, strict=True):
                    counted = Backlog(lag.batches, lag.records, lag.size_bytes, lag.oldest_us)
                    assert counted == expected(queue, offset)
                    assert (lag.offset, lag.start, lag.end) == (offset, queue.start, queue.end)


async def test_a_backlog_is_read_once():
    """A second question far behind reads a block at most, whatever lies after it."""
    queue = GappyQueue(dict.fromkeys(range(5000), (1, 1, 1, 1)), 0, 5_000)
    counts = counter(queue)
    await counts.lags(TOPIC, [PartitionOffset(0, 0)])
    queue.fetched = 0

    [lag] = await counts.lags(TOPIC, [PartitionOffset(0, 700)])

    assert lag.batches == 4_300
    assert queue.fetched <= lag_module.BLOCK + 3


async def test_what_lies_after_damage_is_counted():
    """A damaged notification is named to those who stand before it, and to nobody else."""
    queue = GappyQueue(dict.fromkeys(range(9), (1, 1, 1, 1)), 0, 9, damaged=(4,))

    before, after = await counter(queue).lags(TOPIC, [PartitionOffset(0, 2), PartitionOffset(0, 5)])

    assert (before.batches, before.error) == (0, "offset 4 is damaged")
    assert (after.batches, after.error) == (4, "")


async def test_batches_without_timestamps_have_the_age_of_their_publication():
    """Rows without a timestamp are as old as their notification."""
    queue = GappyQueue({0: (1, 1, 0, 0)}, 0, 1)

    [lag] = await counter(queue).lags(TOPIC, [PartitionOffset(0, 0)])

    assert lag.oldest_us == 7_000
    assert lag.age_s(now_us=2_007_000) == 2.0
    assert lag.age_s(now_us=0) == 0.0  # a clock that was set back


# -- on /metrics: what fails costs itself and nothing else ---------------------------------------

GROUPS = {"t": "gh", "u": "g", "v": "k", "z": "g"}  # of z another broker keeps them
ALL = [("g", "t"), ("h", "t"), ("g", "u"), ("k", "v")]


@asynccontextmanager
async def shown(tmp_path):
    """A broker of topics with groups, and what a scrape shows of them."""
    async with broker(tmp_path) as b:
        for topic, groups in GROUPS.items():
            await b.topics.create(TopicConfig.create(topic))
            for group in groups:
                offsets = [m.PartitionOffset(0, 0)]
                commit = m.CommitOffsets(group=group, topic=topic, member_id="", offsets=offsets)
                await b.handlers.serve(commit, ANYBODY)
        b.topics.get("z").coordinated = False

        async def scrape():
            await b.admin._lags.refresh()
            return [(row.group, row.topic) for row in b.context.metrics.lag.rows]

        yield b, scrape


def of(what) -> str:
    """The name of a topic or group."""
    return getattr(what, "name", what)


@pytest.mark.parametrize(
    "case",
    [
        ("groups", "t.", QueueError("away"), {"t"}, "t: lag is not known: away"),
        ("lags", "t", UnavailableError("too fast"), {"t"}, "t: lag is not known: too fast"),
        ("committed", "h", CorruptDataError("not JSON"), {"h"}, "t: lag of h is not known: not"),
        ("committed", "g", CorruptDataError("not JSON"), {"g"}, "t: lag of g is not known: not"),
        ("groups", "u.", ZeroDivisionError("bug"), set(), "unexpected error looking up the lag"),
    ],
)
async def test_what_cannot_be_told_costs_itself(tmp_path, caplog, case):
    """It is said, and the topics and groups after it are shown; a bug keeps what was known."""
    call, about, error, missing, said = case
    async with shown(tmp_path) as (b, scrape):
        assert await scrape() == ALL
        owner = b.admin._lags._counter if call == "lags" else b.context.queue
        with failing(owner, call, error, lambda what, *_: of(what).startswith(about)):
            assert await scrape() == [each for each in ALL if not missing & {*each}]
        assert said in caplog.text
        assert await scrape() == ALL


@pytest.mark.parametrize(("most", "left_out"), [(4, 0), (3, 1), (2, 2), (1, 3)])
async def test_groups_beyond_the_bound_are_counted(tmp_path, monkeypatch, most, left_out):
    """A group is shown in full or not at all, and how many are not is told over all topics."""
    monkeypatch.setattr(lag_module, "MAX_LAG_ROWS", most)
    async with shown(tmp_path) as (b, scrape):
        assert await scrape() == ALL[:most]
        assert b.context.metrics.lag.left_out == left_out
