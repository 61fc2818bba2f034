"""What other brokers, ZooKeeper and Kafka do to a broker in the middle of something."""

from __future__ import annotations

import asyncio
import threading

import pytest

from memq.broker import cluster_topics
from memq.broker.retention import forget_expired
from memq.core.clock import ClockReading, SavedTimes
from memq.core.governor.nodes import DOOMED
from memq.core.notification.kafka import queue as queue_module
from memq.core.notification.kafka.queue import KafkaQueue
from memq.core.storage.keys import object_key, parse_object_key
from memq.core.wire import messages as m
from memq.errors import (
    MemqError,
    NotHostedError,
)
from tests.integration.broker.support import GatedStorage, until
from tests.integration.broker.test_clocks import tidy


async def another_queue(cluster, broker_id: str) -> KafkaQueue:
    """The queue of a broker that is not there, to the end of the test."""
    queue = KafkaQueue(cluster.kafka.client(), cluster_id="memq", broker_id=broker_id)
    await queue.start()
    cluster.stack.push_async_callback(queue.close)
    return queue


async def test_what_another_broker_has_fenced_is_taken_over_again(cluster):
    """An owner that is fenced under its hands sends its clients elsewhere, and then owns it again.

    A broker whose session ended in the middle of a take-over may fence what has an owner by then.
    """
    (one,) = await cluster.start("one")
    c = await cluster.connect(one)
    await c.create("t", batch_age="5ms")
    await cluster.all_owned("t")
    first = await c.write(0)
    hosted = one.topics.get("t")
    fenced = hosted.partitions[0]
    queue = await another_queue(cluster, "gone")
    await queue.fence(hosted.topic.queue_topic, 0)
    with pytest.raises(NotHostedError):
        await c.write(1)
    await until(lambda: hosted.partitions.get(0) not in (None, fenced))
    assert (await c.write(1)).offset > first.offset


async def test_what_waits_for_room_is_refused_when_the_session_is_over(cluster):
    """A Message that was parked is written by the next owner alone, though room is made for it."""
    cluster.storage = storage = GatedStorage()
    (one,) = await cluster.start("one")
    c = await cluster.connect(one)
    await c.create("t", ring_slots=1, batch_messages=1)
    await cluster.all_owned("t")
    hosted = one.topics.get("t")
    closed = hosted.partitions[0]
    storage.gate.clear()
    writes = [asyncio.ensure_future(c.write(sequence)) for sequence in range(2)]
    await until(lambda: closed.parked)
    cluster.zookeeper.expire(one.sessions[-1])
    refused = await asyncio.gather(*writes, return_exceptions=True)
    assert all(isinstance(each, MemqError) and each.retriable for each in refused)
    storage.gate.set()
    await until(lambda: hosted.partitions.get(0) not in (None, closed) and not closed.uploads())
    again = [await c.write(sequence) for sequence in range(2)]
    entries = await one.context.queue.fetch(
        hosted.topic.queue_topic, 0, 0, max_entries=100, max_bytes=1 << 20
    )
    assert [entry.offset for entry in entries] == [each.offset for each in again]
    assert not any(each.duplicate for each in again)


@pytest.mark.parametrize("slept", ["before it looks for orphans", "meanwhile"])
async def test_an_owner_that_slept_deletes_nothing_that_another_one_keeps(
    cluster, monkeypatch, slept
):
    """Retention was made longer at the next owner; the one before does not go by what it knew."""
    monkeypatch.setattr(cluster_topics, "LOOK_S", 3600.0)  # it has not looked yet
    cluster.session_timeout_s = 0.5
    one, two = await cluster.start("one", "two")
    c = await cluster.connect(one)
    await c.create("t", batch_age="1ms", upload_deadline="5s", dedup_window="10s", retention="10s")
    (owner,) = await cluster.all_owned("t")
    old, new = (one, two) if owner == "one" else (two, one)
    writer, admin = await cluster.connect(old), await cluster.connect(new)
    writer.schema_id = c.schema_id
    await writer.write(0)
    (key,) = [each.key for each in cluster.storage.list("") if "/topics/" in each.key]
    orphan = parse_object_key(key)._replace(batch_id=32 * "0")
    cluster.storage.put(object_key(orphan), [b"never acked, or lost by the queue"], timeout_s=9)
    listing, awake = threading.Event(), threading.Event()
    objects_of = old.context.objects_of

    def listed(topic):
        listing.set()
        assert awake.wait(30), "the test left it asleep"
        return objects_of(topic)

    old.context.objects_of = listed
    now, hosted = old.context.now, old.topics.get("t")
    old.context.now = lambda: ClockReading(*(each + 3_600_000 for each in now()))
    if slept == "meanwhile":
        tidying = asyncio.ensure_future(old._tidy_topic(hosted, scan=True))
        await until(listing.is_set)
    cluster.zookeeper.freeze(old.sessions[-1])
    cluster.zookeeper.expire(old.sessions[-1])
    await until(lambda: new.topics.get("t").coordinated)
    await admin.ask(m.AlterTopic(topic="t", options={"retention": "7d"}))
    await until(lambda: not old.context.leased())
    if slept != "meanwhile":
        tidying = asyncio.ensure_future(old._tidy_topic(hosted, scan=True))
    awake.set()
    assert hosted.coordinated
    assert await tidying == []
    assert await new.context.queue.offsets(hosted.topic.queue_topic, 0) == (0, 1)
    cluster.zookeeper.thaw(old.sessions[-1])


@pytest.mark.parametrize("forgotten", ["now", "in a life before"])
async def test_nobody_serves_a_notification_whose_object_is_deleted(cluster, forgotten):
    """Another broker may not have heard yet how far retention has gone, nor the scan of orphans."""
    one, two = await cluster.start("one", "two")
    c = await cluster.connect(one)
    await c.create("t", batch_age="1ms", upload_deadline="1s", dedup_window="10s", retention="10s")
    (owner,) = await cluster.all_owned("t")
    at, other = (one, two) if owner == "one" else (two, one)
    writer = await cluster.connect(at)
    writer.schema_id = c.schema_id
    await writer.write(0)
    hosted, now = at.topics.get("t"), at.context.now
    queue_topic = hosted.topic.queue_topic

    async def served() -> int:
        return len(await other.context.queue.fetch(queue_topic, 0, 0, max_entries=9, max_bytes=99))

    assert await served() == 1
    at.context.now = lambda: ClockReading(*(each + 3_600_000 for each in now()))
    if forgotten != "now":  # and the broker ended before it had deleted the objects
        await forget_expired(hosted, at.context)
    expired = await at._tidy_topic(hosted, scan=True)
    assert await served() == 1
    batches = [each for each in cluster.storage.list("") if "/topics/" in each.key]
    assert len(batches) == 1, "its object is there"
    if forgotten == "now":
        expired += await at._tidy_topic(hosted, scan=True)
    assert len(set(expired)) == 1
    assert at.context.forgotten_after_s > queue_module.START_S


async def test_what_a_watermark_covers_is_before_the_end_at_each_broker(cluster, monkeypatch):
    """Kafka shows late what it has committed; no watermark is told that is ahead of that."""
    monkeypatch.setattr(queue_module, "SETTLED_S", 0.05)
    one, two = await cluster.start("one", "two")
    c = await cluster.connect(one)
    await c.create("t", batch_age="1ms")
    (owner,) = await cluster.all_owned("t")
    at, other = (one, two) if owner == "one" else (two, one)
    writer = await cluster.connect(at)
    writer.schema_id = c.schema_id
    cluster.kafka.marker_s = (1.0, 1.0)
    await writer.write(0)
    hosted = at.topics.get("t")
    (told,), _ = await hosted.watermarks()
    _, end = await other.context.queue.offsets(hosted.topic.queue_topic, 0)
    assert told > 0
    assert end == 1


async def test_what_the_owner_before_tells_up_to_the_fence_stays_closed(cluster):
    """Its clock is ahead; what its last watermark covers gets no Batch from the next owner."""
    (one,) = await cluster.start("one")
    c = await cluster.connect(one)
    await c.create("t", batch_age="1ms")
    await cluster.all_owned("t")
    hosted, queue = one.topics.get("t"), one.context.queue
    topic, before, fence = hosted.topic.queue_topic, hosted.partitions[0], queue.fence
    gone = await another_queue(cluster, "gone")
    told_ms = one.context.now().wall_ms + 3_600_000

    async def fence_late(*args, **options):
        await gone.save_times(SavedTimes(0, told_ms))
        assert gone.owns(topic, 0)
        await fence(*args, **options)

    queue.fence = fence_late
    await gone.fence(topic, 0)
    await until(lambda: hosted.partitions.get(0) not in (None, before))
    queue.fence = fence
    await c.write(0)
    (entry,) = await queue.fetch(topic, 0, 0, max_entries=9, max_bytes=1 << 20)
    assert entry.timestamp_ms >= told_ms


async def test_an_owner_whose_clock_is_ahead_knows_the_duplicates_of_the_window(cluster):
    """Running times of brokers differ; whoever takes over forgets nothing before its time."""
    brokers = await cluster.start("one", "two", retention_interval="100ms")
    clients = [await cluster.connect(each) for each in brokers]
    made = await clients[0].create("t", dedup_window="30s", upload_deadline="20s")
    before = ["one", "two"].index((await cluster.all_owned("t"))[0])
    clients[before].schema_id = clients[1 - before].schema_id = made.schema_id
    for producer in ("alone", "goes_on"):
        await clients[before].write(0, producer_id=producer)
    ahead = brokers[1 - before]
    clock = ahead.context.times.clock
    clock.catch_up(clock().mono_ms + 50_000)
    await cluster.stop(["one", "two"][before])
    await cluster.all_owned("t")
    c = clients[1 - before]
    await c.write(1, producer_id="goes_on")
    await tidy(ahead)
    for producer in ("alone", "goes_on"):
        assert (await c.write(0, producer_id=producer)).duplicate


@pytest.mark.parametrize("turns", range(6))
async def test_a_session_may_end_in_the_middle_of_a_stop(cluster, turns):
    """What is closed for the one is not there any more for the other."""
    (one,) = await cluster.start("one")
    c = await cluster.connect(one)
    await c.create("t", write_partitions=2)
    await cluster.all_owned("t")
    partition = one.topics.get("t").partitions[1]
    close, closing, go_on = partition.close, asyncio.Event(), asyncio.Event()

    async def close_later():
        partition.close = close
        closing.set()
        await go_on.wait()

    partition.close = close_later
    cluster.zookeeper.expire(one.sessions[-1])
    await closing.wait()
    if turns == 0:  # the stop comes to its end first
        await one.topics.stop(5.0)
    go_on.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    await one.topics.stop(5.0)
    await until(lambda: len(one.sessions) > 1 or one.context.fatal_errors.failure.done())
    assert not one.context.fatal_errors.failure.done()


@pytest.mark.parametrize("lost", [1, 2])
async def test_a_topic_that_could_not_be_made_leaves_nothing(cluster, lost):
    """Whatever answer of ZooKeeper is lost, a topic is there as a whole, or nothing is doomed."""
    (one,) = await cluster.start("one")
    c = await cluster.connect(one)
    await c.create("before")
    await cluster.all_owned("before")
    session = one.sessions[-1]
    create_topic = one.context.queue.create_topic

    async def creating(*args):
        await create_topic(*args)
        if lost == 2:
            cluster.zookeeper.lose_answer(session)

    one.context.queue.create_topic = creating
    if lost == 1:
        cluster.zookeeper.lose_answer(session)
    try:
        await c.create("t")
    except MemqError:
        assert "t" not in one.topics.names()
    else:
        await cluster.all_owned("t")
    await until(lambda: not cluster.zookeeper.names(DOOMED.path))
