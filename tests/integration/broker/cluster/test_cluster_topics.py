"""Topics of a cluster: what a broker makes of the nodes, and what others do to it meanwhile."""

import asyncio
import threading
from types import SimpleNamespace

import msgspec
import pytest

from memq.broker import cluster_topics
from memq.broker.cluster_topics import ClusterTopics
from memq.broker.retention import forget_expired, scan_orphans
from memq.core.clock import ClockReading, SavedTimes
from memq.core.governor.nodes import DOOMED
from memq.core.governor.topics import new_topic
from memq.core.group import GroupCoordinator
from memq.core.topic import TopicConfig
from memq.core.wire import messages as m
from memq.errors import DataLossError, MemqError, NotHostedError, UnknownTopicError
from memq.queue.kafka import queue as queue_module
from memq.storage.keys import object_key, parse_object_key
from memq.zookeeper.shared_catalog import StoredTopic
from tests.integration.broker.support import client, turns, until

FIRST, SECOND = "1" * 16, "2" * 16
SHORT = {"batch_age": "1ms", "upload_deadline": "5s", "dedup_window": "10s", "retention": "10s"}


def topic(name="t", topic_id=FIRST, **options):
    """One as the node says it."""
    config = TopicConfig.create(name, write_partitions=2)
    found = new_topic(config, (), now_ms=1, topic_id=topic_id, request_id="")
    return msgspec.structs.replace(found, config=config.altered(**options)) if options else found


@pytest.fixture
async def topics(cluster):
    """Those of a broker that has no session, and so takes over nothing."""
    (one,) = await cluster.start("one")
    return ClusterTopics(one.context, GroupCoordinator())


def served(topics, name="t"):
    """How a topic is served; None when it is refused as lost, empty when it is not there."""
    try:
        return topics.get(name).topic
    except UnknownTopicError:
        return ""
    except DataLossError:
        return None


OLD, NEW = topic(retention="1h"), topic(retention="2h")
OTHER = topic(topic_id=SECOND, retention="3h")


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ([(OLD, 3), (NEW, 4)], NEW),
        ([(OLD, 3), (OLD, 3)], OLD),
        ([(OLD, 3), (OLD, 4)], OLD),
        ([(NEW, 4), (OLD, 3)], None),
        ([(NEW, 4), (OLD, 4)], None),
        ([(NEW, 4), (NEW, 3)], None),
        ([(NEW, 4), (OLD, 3), (NEW, 5)], NEW),
        ([(NEW, 4), (OLD, 3), (OLD, 3)], None),
        ([(NEW, 4), (OTHER, 0)], OTHER),
        ([(NEW, 4), (OTHER, 4)], OTHER),
        ([(NEW, 4), (None, -1)], ""),
        ([(NEW, 4), (OLD, 3), (None, -1)], ""),
        ([(NEW, 4), (None, -1), (OLD, 0)], OLD),
    ],
)
async def test_a_topic_is_served_as_it_was_altered_last(topics, states, expected):
    """One that has gone back is refused; one that was made anew begins again."""
    for each, version in states:
        topics.topic_changed("t", each, version)
    assert served(topics) == expected


@pytest.mark.parametrize(
    ("in_queue", "expected"),
    [
        ([], OLD),
        ([f"t.{FIRST}"], OLD),
        ([f"t.{SECOND}", f"t.{FIRST}"], OLD),
        ([f"t.{FIRST}", f"t.{SECOND}"], OLD),
        ([f"t.{SECOND}"], None),
        ([f"x.{SECOND}"], OLD),
        ([f"x.t.{SECOND}"], OLD),
    ],
)
async def test_a_topic_is_refused_when_the_queue_has_another_life_of_it_alone(
    topics, in_queue, expected
):
    """Of a topic that is being removed the present life is there too; others are not touched."""
    topics.topic_changed("t", OLD, 0)
    topics.topic_changed("dotted.t", topic("dotted.t"), 0)
    topics.in_queue([f"dotted.t.{FIRST}", *in_queue])
    assert served(topics) == expected
    assert served(topics, "dotted.t") == topic("dotted.t")
    for name in {each.rpartition(".")[0] for each in in_queue} - {"t"}:
        assert served(topics, name) is None


async def test_news_of_a_topic_wakes_those_who_wait_for_it(topics):
    """And no producer of another one, of which there may be thousands; a broker's news wakes all.

    Who waits for several topics is asked at any news.
    """
    asked = []
    topics.topic_changed("t", OLD, 0)
    topics.topic_changed("u", topic("u"), 0)
    version = type(topics).version
    topics.version = lambda names: (asked.append(tuple(names)), version(topics, names))[1]

    waiting = [
        asyncio.ensure_future(topics.changed(names, topics.version(names), 30))
        for names in (["t"], ["u"], ["t", "u"])
    ]
    await turns()
    asked.clear()
    topics.brokers_changed({})
    assert {*asked} == {("t",), ("u",), ("t", "u")}
    asked.clear()
    topics.topic_changed("t", NEW, 1)
    assert ("u",) not in asked

    await asyncio.wait_for(asyncio.gather(waiting[0], waiting[2]), 30)
    assert not waiting[1].done()
    topics.topic_changed("u", None)
    await asyncio.wait_for(waiting[1], 30)


@pytest.mark.parametrize(
    ("known", "stored", "later"),
    [
        ((OLD, 3), (OLD, 3), None),
        ((NEW, 4), (OLD, 3), None),
        ((OLD, 3), (NEW, 4), (NEW, 4)),
        ((OLD, 3), (NEW, 4), (NEW, 5)),
        ((NEW, 4), (OTHER, 0), (OTHER, 0)),
        ((None, -1), (OLD, 0), (OLD, 0)),
        ((OLD, 3), UnknownTopicError("none"), (None, -1)),
        ((None, -1), UnknownTopicError("none"), None),
    ],
)
async def test_a_look_ends_when_what_is_stored_is_seen(topics, known, stored, later):
    """At once where it is seen already; else by the news of it, and of no other topic."""
    topics.topic_changed("t", *known)

    async def get(name):
        assert name == "t"
        if isinstance(stored, Exception):
            raise stored
        return StoredTopic(*stored, 0)

    topics._catalog, topics._follow = SimpleNamespace(get=get), lambda _: None
    looking = asyncio.ensure_future(topics.look("t"))
    await turns()
    assert looking.done() == (later is None)
    topics.topic_changed("u", topic("u"), 9)
    await turns()
    assert looking.done() == (later is None)
    if later is not None:
        topics.topic_changed("t", *later)
    await asyncio.wait_for(looking, 10)


async def test_what_another_broker_has_fenced_is_taken_over_again(cluster):
    """An owner that is fenced under its hands sends its clients elsewhere, and then owns it again.

    A broker whose session ended in the middle of a take-over may fence what has an owner by then.
    """
    one, c = await cluster.serve("one", batch_age="5ms")
    first = await c.write(0)
    hosted = one.topics.get("t")
    fenced = hosted.partitions[0]
    await (await cluster.queue("gone")).fence(hosted.topic.queue_topic, 0)
    with pytest.raises(NotHostedError):
        await c.write(1)
    await until(lambda: hosted.partitions.get(0) not in (None, fenced))
    assert (await c.write(1)).offset > first.offset


async def tidied(broker, hosted):
    """Keys of the objects of a topic that a broker is to delete now, orphans and others."""
    return await scan_orphans([hosted], broker.context) + await broker._tidy_topic(hosted)


@pytest.mark.parametrize("slept", ["before it looks for orphans", "meanwhile"])
async def test_an_owner_that_slept_deletes_nothing_that_another_one_keeps(
    cluster, monkeypatch, slept
):
    """Retention was made longer at the next owner; the one before does not go by what it knew."""
    monkeypatch.setattr(cluster_topics, "LOOK_S", 3600.0)  # it has not looked yet
    cluster.session_timeout_s = 0.5
    old, new, c = await cluster.serve("one", "two", **SHORT)
    admin = await cluster.connect(new)
    await c.write(0)
    (key,) = [each.key for each in cluster.storage.list("") if "/topics/" in each.key]
    orphan = parse_object_key(key)._replace(batch_id=32 * "0")
    cluster.storage.put(object_key(orphan), [b"never acked, or lost by the queue"], timeout_s=9)
    listing, awake = threading.Event(), threading.Event()

    def listed():
        listing.set()
        assert awake.wait(30), "the test left it asleep"

    old.context.check_not_stopping = listed
    now, hosted = old.context.now, old.topics.get("t")
    old.context.now = lambda: ClockReading(*(each + 3_600_000 for each in now()))
    if slept == "meanwhile":
        tidying = asyncio.ensure_future(tidied(old, hosted))
        await until(listing.is_set)
    cluster.zookeeper.freeze(old.sessions[-1])
    cluster.zookeeper.expire(old.sessions[-1])
    await until(lambda: new.topics.get("t").coordinated)
    await admin.ask(m.AlterTopic(topic="t", options={"retention": "7d"}))
    await until(lambda: not old.context.leased())
    if slept != "meanwhile":
        tidying = asyncio.ensure_future(tidied(old, hosted))
    awake.set()
    assert hosted.coordinated
    assert await tidying == []
    assert await new.context.queue.offsets(hosted.topic.queue_topic, 0) == (0, 1)
    cluster.zookeeper.thaw(old.sessions[-1])


async def test_orphans_are_looked_for_as_soon_as_a_topic_is_here(cluster):
    """A broker of a cluster has none when it starts; it does not wait for the next scan for it."""
    listing, scans = cluster.storage.list, []

    def listed(*prefixes):
        if len(prefixes) == 256:
            scans.append(one.topics.coordinated_names())
        return listing(*prefixes)

    cluster.storage.list = listed
    (one,) = await cluster.start("one", retention_interval="100ms", orphan_interval="30d")
    await until(lambda: scans)
    assert all(scans)


@pytest.mark.parametrize("forgotten", ["now", "in a life before"])
async def test_nobody_serves_a_notification_whose_object_is_deleted(cluster, forgotten):
    """Another broker may not have heard yet how far retention has gone, nor the scan of orphans."""
    at, other, c = await cluster.serve("one", "two", **SHORT)
    await c.write(0)
    hosted, now = at.topics.get("t"), at.context.now
    queue_topic = hosted.topic.queue_topic

    async def served() -> int:
        return len(await other.context.queue.fetch(queue_topic, 0, 0, max_entries=9, max_bytes=99))

    assert await served() == 1
    at.context.now = lambda: ClockReading(*(each + 3_600_000 for each in now()))
    if forgotten != "now":  # and the broker ended before it had deleted the objects
        await forget_expired(hosted, at.context)
    expired = await tidied(at, hosted)
    assert await served() == 1
    batches = [each for each in cluster.storage.list("") if "/topics/" in each.key]
    assert len(batches) == 1, "its object is there"
    if forgotten == "now":
        expired += await tidied(at, hosted)
    assert len(set(expired)) == 1
    assert at.context.forgotten_after_s > queue_module.START_S


async def test_what_a_watermark_covers_is_before_the_end_at_each_broker(cluster, monkeypatch):
    """Kafka shows late what it has committed; no watermark is told that is ahead of that."""
    monkeypatch.setattr(queue_module, "SETTLED_S", 0.05)
    at, other, c = await cluster.serve("one", "two", batch_age="1ms")
    cluster.kafka.marker_s = (1.0, 1.0)
    await c.write(0)
    hosted = at.topics.get("t")
    (told,), _ = await hosted.watermarks()
    _, end = await other.context.queue.offsets(hosted.topic.queue_topic, 0)
    assert told > 0
    assert end == 1


async def test_what_the_owner_before_tells_up_to_the_fence_stays_closed(cluster):
    """Its clock is ahead; what its last watermark covers gets no Batch from the next owner."""
    one, c = await cluster.serve("one", batch_age="1ms")
    hosted, queue = one.topics.get("t"), one.context.queue
    topic, before, fence = hosted.topic.queue_topic, hosted.partitions[0], queue.fence
    gone = await cluster.queue("gone")
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


@pytest.mark.parametrize("lost", [1, 2])
async def test_a_topic_that_could_not_be_made_leaves_nothing(cluster, lost):
    """Whatever answer of ZooKeeper is lost, a topic is there as a whole, or nothing is doomed."""
    one, c = await cluster.serve("one")
    session, create_topic = one.sessions[-1], one.context.queue.create_topic

    async def creating(*args):
        await create_topic(*args)
        if lost == 2:
            cluster.zookeeper.lose_answer(session)

    one.context.queue.create_topic = creating
    if lost == 1:
        cluster.zookeeper.lose_answer(session)
    try:
        await c.create("u")
    except MemqError:
        assert "u" not in one.topics.names()
    else:
        await cluster.all_owned("u")
    await until(lambda: not cluster.zookeeper.names(DOOMED.path))


async def test_a_trim_is_written_down_for_the_next_owner(cluster):
    """Who takes over promises nothing that was removed; other brokers are not the ones to ask."""
    at, other, c = await cluster.serve("one", "two", **SHORT)
    await c.write(0)
    hosted, now = at.topics.get("t"), at.context.now
    at.context.now = lambda: ClockReading(*(each + 3_600_000 for each in now()))
    trim = m.TrimTopic(topic="t", offsets=[m.PartitionOffset(0, 1)], execute=True)
    assert (await c.ask(trim)).offsets == [m.PartitionOffset(0, 1)]
    removed_ms = hosted.expired_before_ms
    assert removed_ms > 0
    await until(lambda: other.topics.get("t").topic.retained_since_ms >= removed_ms)
    async with client(other) as there:
        with pytest.raises(NotHostedError):
            await there.ask(trim)
