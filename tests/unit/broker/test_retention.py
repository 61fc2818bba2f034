"""What has expired is deleted, as far as the storage and the broker's life allow."""

import asyncio
import logging
import re
from collections.abc import Collection
from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.broker import retention
from memq.broker.context import BrokerContext
from memq.broker.retention import (
    LANDING_S,
    Deletions,
    delete_expired,
    forget_expired,
    scan_orphans,
    trim,
)
from memq.core.clock import ClockReading
from memq.core.governor.topics import new_topic
from memq.core.notification import decode_notification, encode_notification
from memq.core.queue import Publication
from memq.core.topic import TopicConfig
from memq.errors import QueueError, StorageError, UnavailableError
from memq.runtime.system import Runtime
from memq.storage import object_store
from memq.storage.keys import BatchKey, key_of_uri, object_key, parse_object_key
from memq.storage.object_store import ObjectStorage
from memq.testing import InMemoryStorage
from tests.fakes.queue import InMemoryQueue
from tests.unit.client.audit.test_stored import NOTIFICATION
from tests.unit.storage.stores import Store


class Refusing(InMemoryStorage):
    """Does not delete objects of whose keys it refuses a part."""

    refused: Collection[str] = ()

    def delete(self, *keys):
        """Delete these objects, in one request."""
        if any(part in key for part in self.refused for key in keys):
            raise StorageError("503 SlowDown")
        super().delete(*keys)


def context_of(storage, queue=None, **fields):
    """What of a broker's context retention needs."""
    found = SimpleNamespace(
        config=SimpleNamespace(cluster_id="c"),
        queue=queue,
        storage=storage,
        reads=None,
        check_not_stopping=lambda: None,
        **fields,
    )
    for name in ("entries", "objects_of"):
        setattr(found, name, partial(getattr(BrokerContext, name), found))
    return found


@pytest.mark.parametrize(
    ("refused", "left"), [("a", "a"), ("ab", "ab"), ("abc", "abcdef"), ("ace", "acef"), ("f", "f")]
)
async def test_an_object_that_is_not_deleted_stops_no_other(monkeypatch, refused, left):
    """The others are deleted all the same, until the storage has failed `MAX_FAILURES` times."""
    monkeypatch.setattr(retention, "DELETE_AT_ONCE", 1)
    storage = Refusing()
    for key in "abcdef":
        storage.put(key, [b"x"], timeout_s=1)
    storage.refused = refused
    await delete_expired(list("abcdef"), context_of(storage, forgotten_after_s=0))
    assert [info.key for info in storage.list("")] == list(left)


# -- what expires, and what is an orphan ---------------------------------------------------------

RETENTION_MS, DEADLINE_MS = 20_000, 1_000
NOW = ClockReading(mono_ms=100_000, wall_ms=1_700_000_500_000)
CUTOFF_MS = NOW.mono_ms - RETENTION_MS
PARTITIONS = 3
LIFE = "0" * 16


async def starts_of(hosted):
    """The first offset of each read partition."""
    asked = [hosted.queue.offsets(hosted.queue_topic, each) for each in range(PARTITIONS)]
    return [(await each)[0] for each in asked]


class Hosted:
    """A topic of three read partitions with a queue and a storage, its own or those of another."""

    def __init__(
        self, clocks_differ_ms=0, name="t", topic_id=LIFE, beside=None, storage=None, **options
    ):
        fixed = {"retention": "20s", "dedup_window": "10s", "upload_deadline": "1s"}
        config = TopicConfig.create(name, read_partitions=PARTITIONS, **fixed | options)
        self.queue_topic = f"{name}.{topic_id}"
        self.topic = SimpleNamespace(
            name=name, topic_id=topic_id, config=config, queue_topic=self.queue_topic
        )
        self.partitions = {}
        self.retains = True
        self.expired_before_ms = 0
        self.now = NOW
        self.queue = beside.queue if beside else InMemoryQueue()
        self.storage = beside.storage if beside else storage or InMemoryStorage()
        self.removing, self.sizes = asyncio.Lock(), {}
        self.context = context_of(
            self.storage, self.queue, now=lambda: self.now, clocks_differ_ms=clocks_differ_ms
        )
        self.batches = 0

    async def start(self):
        await self.queue.create_topic(self.queue_topic, PARTITIONS)
        await self.queue.fence(self.queue_topic, 0)
        return self

    def store(self, running_ms, cluster_id="c"):
        """Store a Batch that was sealed then, by a wall clock that goes backwards; its key."""
        self.batches += 1
        wall_ms = NOW.wall_ms - running_ms
        topic, batch_id = self.topic, f"b{self.batches}"
        key = BatchKey(cluster_id, topic.name, topic.topic_id, 0, wall_ms, batch_id, running_ms)
        self.storage.put(object_key(key), [bytes(self.batches)], timeout_s=1)
        return object_key(key)

    async def publish(self, partition, key, *, damaged=False, size_bytes=0):
        """Publish it; or what nobody can read, in its place."""
        parsed = parse_object_key(key)
        notification = msgspec.structs.replace(
            NOTIFICATION,
            batch_id=parsed.batch_id,
            uri=self.storage.uri(key),
            size_bytes=size_bytes,
        )
        payload = b"nonsense" if damaged else encode_notification(notification)
        entry = Publication(partition, payload, parsed.sealed_ms, parsed.running_ms)
        await self.queue.publish(self.queue_topic, 0, [entry])

    def when_listed(self, do):
        """Do something once the objects have been asked for, before the first is told of."""
        listing, loop = self.storage.list, asyncio.get_running_loop()

        def listed(*prefixes):
            self.storage.list = listing
            asyncio.run_coroutine_threadsafe(do(), loop).result(9)
            return listing(*prefixes)

        self.storage.list = listed


def reported(caplog):
    """Topic, objects and bytes of each report of orphans, and how many of them go."""
    found = re.compile(r"(.+): (\d+) objects? \((\d+) bytes\) that no .+ deleted: (\d+)")
    matches = [found.fullmatch(each.getMessage()) for each in caplog.records]
    return [(each[1], *map(int, each.groups()[1:])) for each in matches if each]


AGES_MS = st.sampled_from(
    (0, 1, CUTOFF_MS - 2, CUTOFF_MS - 1, CUTOFF_MS, CUTOFF_MS + 1, NOW.mono_ms - 1)
)
ENTRIES = st.lists(
    st.tuples(AGES_MS, st.integers(0, 9).map(lambda chance: chance == 0)), max_size=5
)


@given(st.lists(ENTRIES, min_size=PARTITIONS, max_size=PARTITIONS))
async def test_what_is_older_than_retention_is_forgotten_in_each_partition(partitions):
    """In every read partition, whatever is in the others; damage hides only what is behind it."""
    hosted = await Hosted().start()
    expected, starts, times_ms = [], [], [0]
    for number, entries in enumerate(partitions):
        for running_ms, damaged in sorted(entries):
            await hosted.publish(number, hosted.store(running_ms), damaged=damaged)
        found = hosted.context.entries(hosted.queue_topic, number, 0)
        old = [entry async for entry in found if entry.running_ms < CUTOFF_MS]
        starts.append(len(old))
        for entry in old:
            if entry.payload == b"nonsense":
                times_ms.append(NOW.wall_ms)
                break
            expected.append(key_of_uri(decode_notification(entry.payload).uri))
            times_ms.append(entry.timestamp_ms)
    hosted.expired_before_ms = 7
    assert await forget_expired(hosted, hosted.context) == expected
    offsets = [await hosted.queue.offsets(hosted.queue_topic, each) for each in range(PARTITIONS)]
    assert [start for start, _ in offsets] == starts
    assert hosted.expired_before_ms == (max(times_ms) + 1 if any(starts) else 7)


WINDOW_MS, DIFFER_MS, LIMIT = 10_000, 500, 20
"""Of deduplication, of clocks, and bytes."""
SETTLED_MS = NOW.mono_ms - WINDOW_MS - DIFFER_MS
SIZED = st.tuples(
    st.integers(0, PARTITIONS - 1),
    st.sampled_from((CUTOFF_MS, CUTOFF_MS + 1, SETTLED_MS - 2, SETTLED_MS - 1, SETTLED_MS)),
    st.integers(1, 12),
)
ROUND = st.tuples(st.lists(SIZED, max_size=6), st.none() | st.integers(0, PARTITIONS - 1))


@given(st.lists(ROUND, min_size=1, max_size=4))
async def test_a_topic_that_is_too_large_loses_its_oldest(rounds):
    """Over all read partitions, no more than it must, and nothing that is younger than
    `dedup_window`; also when another broker has removed some between.
    """
    hosted = await Hosted(DIFFER_MS, retention_bytes="20B").start()
    left = [[] for _ in range(PARTITIONS)]
    newest_ms = [0] * PARTITIONS
    for published, other in rounds:
        for partition, running_ms, size in published:
            newest_ms[partition] = max(newest_ms[partition], running_ms)
            key = hosted.store(newest_ms[partition])
            await hosted.publish(partition, key, size_bytes=size)
            left[partition].append((newest_ms[partition], partition, hosted.batches, size, key))
        if other is not None and left[other]:
            start, _ = await hosted.queue.offsets(hosted.queue_topic, other)
            await hosted.queue.truncate(hosted.queue_topic, other, start + 1)
            left[other].pop(0)
        removed = []
        while sum(each[3] for one in left for each in one) > LIMIT:
            old = [one[0] for one in left if one and one[0][0] < SETTLED_MS]
            if not old:
                break
            removed.append(left[min(old)[1]].pop(0)[4])
        assert sorted(await forget_expired(hosted, hosted.context)) == sorted(removed)
        for partition, one in enumerate(left):
            start, end = await hosted.queue.offsets(hosted.queue_topic, partition)
            assert end - start == len(one)


async def test_damage_does_not_stop_the_count():
    """What is behind a damaged notification is not counted; the rest is bounded all the same."""
    hosted = await Hosted(retention_bytes="20B").start()
    for size in (15, 15):
        await hosted.publish(0, hosted.store(CUTOFF_MS), size_bytes=size)
    await hosted.publish(0, hosted.store(CUTOFF_MS), damaged=True)
    await hosted.publish(0, hosted.store(CUTOFF_MS), size_bytes=15)
    assert len(await forget_expired(hosted, hosted.context)) == 1
    assert await hosted.queue.offsets(hosted.queue_topic, 0) == (1, 4)


@pytest.mark.parametrize("execute", [False, True])
async def test_a_trim_removes_what_is_asked_for_and_may_go(execute):
    """Up to an offset, but not what is younger than `dedup_window`; it is written down before."""
    hosted = await Hosted(DIFFER_MS).start()
    ages_ms = (CUTOFF_MS, SETTLED_MS - 2, SETTLED_MS - 1, SETTLED_MS)
    for partition in (0, 1, 2):
        for running_ms in ages_ms:
            await hosted.publish(partition, hosted.store(running_ms))
    recorded = []

    async def record():
        starts = [
            (await hosted.queue.offsets(hosted.queue_topic, each))[0] for each in range(PARTITIONS)
        ]
        recorded.append((starts, hosted.expired_before_ms))

    wanted = {0: 1, 1: 4}
    ends, keys = await trim(hosted, wanted, hosted.context, record if execute else None)
    assert ends == {0: 1, 1: 3}
    assert len(keys) == (4 if execute else 0)
    starts = [
        (await hosted.queue.offsets(hosted.queue_topic, each))[0] for each in range(PARTITIONS)
    ]
    assert starts == ([1, 3, 0] if execute else [0, 0, 0])
    if execute:
        newest_ms = NOW.wall_ms - CUTOFF_MS  # the wall clock of these goes backwards
        assert recorded == [([0, 0, 0], newest_ms + 1)]
    assert await trim(hosted, {0: 0}, hosted.context, record) == ({0: starts[0]}, [])
    assert await trim(hosted, {}, hosted.context, record) == ({}, [])
    assert len(recorded) == execute


@pytest.mark.parametrize("differ_ms", [0, 3_000])
async def test_what_nothing_names_is_an_orphan_once_it_is_not_on_its_way(caplog, differ_ms):
    """What was sealed so lately that it may still be notified is none, nor what is named."""
    hosted = await Hosted(differ_ms).start()
    young = range(NOW.mono_ms - 2 * DEADLINE_MS - differ_ms, NOW.mono_ms + differ_ms + 1)
    edges = (young.start - 1, young.start, young[-1], young[-1] + 1)
    keys = {running_ms: hosted.store(running_ms) for running_ms in edges}
    expired = [hosted.store(running_ms) for running_ms in (0, CUTOFF_MS - 1)]
    kept = hosted.store(CUTOFF_MS)
    for number in range(PARTITIONS):
        await hosted.publish(number, hosted.store(number))
    await hosted.queue.truncate(hosted.queue_topic, 1, 1)  # what it named is an orphan now
    forgotten = hosted.store(5)
    await hosted.publish(2, forgotten)
    open_one = hosted.store(6)
    processor = SimpleNamespace(batch_ids={parse_object_key(open_one).batch_id})
    hosted.partitions = {1: SimpleNamespace(processor=processor)}
    hosted.storage.put("00/c/topics/t/" + LIFE + "/0/other", [b"x"], timeout_s=1)

    going = await scan_orphans([hosted], hosted.context)

    truncated = next(info.key for info in hosted.storage.list("") if "-b9." in info.key)
    found = {*expired, kept, truncated, keys[young.start - 1], keys[young[-1] + 1]}
    assert sorted(going) == sorted([*expired, truncated])
    sizes = {info.key: info.size_bytes for info in hosted.storage.list("")}
    size_bytes = sum(sizes[key] for key in found)
    assert reported(caplog) == [("t", len(found), size_bytes, len(going))]


@pytest.mark.parametrize("moment", ["listed", "read"])
async def test_a_batch_that_is_notified_while_orphans_are_looked_for_is_none(caplog, moment):
    """However long it was on its way here, and whatever has been read by then."""
    hosted = await Hosted().start()
    key = hosted.store(1)
    processor = SimpleNamespace(batch_ids={parse_object_key(key).batch_id})
    hosted.partitions = {0: SimpleNamespace(processor=processor)}

    async def settle():
        await hosted.publish(0, key)
        processor.batch_ids = set()

    offsets = hosted.queue.offsets

    async def read(topic, partition):
        if partition == 1:  # the first one was gone through
            await settle()
        return await offsets(topic, partition)

    if moment == "read":
        hosted.queue.offsets = read
    else:
        hosted.when_listed(settle)
    assert await scan_orphans([hosted], hosted.context) == []
    assert reported(caplog) == []


@pytest.mark.parametrize("differ_ms", [0, 3_000])
async def test_what_another_broker_publishes_before_it_is_listed_is_no_orphan(caplog, differ_ms):
    """It was sealed up to two deadlines before the scan, or later, whosever clock it was."""
    hosted = await Hosted(differ_ms).start()
    hosted.topic.config = hosted.topic.config.altered(upload_deadline="8s")
    since_ms, scan_ms = NOW.mono_ms - 16_000 - differ_ms, 60_000
    until_ms = NOW.mono_ms + scan_ms + differ_ms

    async def publish():
        hosted.now = NOW._replace(mono_ms=NOW.mono_ms + scan_ms)
        for running_ms in (since_ms, NOW.mono_ms, NOW.mono_ms + 1, until_ms):
            await hosted.publish(0, hosted.store(running_ms))
        for running_ms in (since_ms - 1, until_ms + 1):  # two that nobody can publish any more
            hosted.store(running_ms)

    hosted.when_listed(publish)
    assert await scan_orphans([hosted], hosted.context) == []
    assert reported(caplog) == [("t", 2, 5 + 6, 0)]


@pytest.mark.parametrize("change", ["retention", "owner"])
async def test_what_changes_during_a_scan_is_heeded_in_the_end(caplog, change):
    """Retention was made longer, or is with another broker: nothing goes by what was before."""
    hosted = await Hosted().start()
    hosted.store(0)

    async def alter():
        if change == "retention":
            hosted.topic.config = hosted.topic.config.altered(retention="1d")
        else:
            hosted.retains = False

    hosted.when_listed(alter)
    assert await scan_orphans([hosted], hosted.context) == []
    assert reported(caplog) == ([("t", 1, 1, 0)] if change == "retention" else [])


async def test_a_topic_is_looked_at_under_its_own_id_in_its_own_cluster(caplog):
    """What a later topic of the name has, another topic or another cluster is not touched."""
    hosted = await Hosted().start()
    for other in (Hosted(topic_id="1" * 16, beside=hosted), Hosted(name="u", beside=hosted)):
        other.store(1)
    hosted.store(1, cluster_id="d")
    hosted.storage.put("c/topics/t/else", [b"x"], timeout_s=1)
    assert await scan_orphans([hosted], hosted.context) == []
    assert reported(caplog) == []
    key = hosted.store(2)
    assert await scan_orphans([hosted], hosted.context) == [key]


async def test_a_topic_that_cannot_be_read_keeps_no_other_from_being_looked_at(caplog):
    """It is said, and none of its objects is called an orphan."""
    damaged, sound = await Hosted().start(), None
    sound = await Hosted(name="u", beside=damaged).start()
    damaged.store(1)
    await damaged.publish(0, damaged.store(2), damaged=True)
    key = sound.store(3)
    assert await scan_orphans([damaged, sound], damaged.context) == [key]
    assert reported(caplog) == [("u", 1, 1, 1)]
    assert any("t: not looked at for orphans: " in each.message for each in caplog.records)


async def test_an_orphan_that_shares_the_hash_of_a_batch_is_kept(monkeypatch):
    """It passes for named: what is named is never taken for an orphan."""
    hosted = await Hosted().start()
    await hosted.publish(0, hosted.store(1))
    orphan = hosted.store(2)
    assert await scan_orphans([hosted], hosted.context) == [orphan]
    monkeypatch.setattr(retention, "hash", lambda _: -7, raising=False)
    assert await scan_orphans([hosted], hosted.context) == []


async def test_what_is_named_is_told_from_what_is_not_among_many(monkeypatch):
    """Each Batch by its own name, wherever its hash stands between those of others."""
    monkeypatch.setattr(retention, "NAME_PARTS", 2)
    hosted = await Hosted().start()
    keys = [hosted.store(number) for number in range(300)]
    for number, key in enumerate(keys):
        if number % 3:
            await hosted.publish(number % PARTITIONS, key)
    assert sorted(await scan_orphans([hosted], hosted.context)) == sorted(keys[::3])


async def test_a_scan_that_finds_too_much_goes_on_next_time(monkeypatch, caplog):
    """What is on its way or named does not count, and once those are deleted others are found."""
    monkeypatch.setattr(retention, "MAX_ORPHANS", 3)
    hosted = await Hosted().start()
    for number in range(9):
        await hosted.publish(0, hosted.store(number))
        hosted.store(NOW.mono_ms - number)
    keys, found = {hosted.store(number) for number in range(7)}, []
    while going := await scan_orphans([hosted], hosted.context):
        assert len(going) <= 3
        found += going
        hosted.storage.delete(*going)
    assert len(found) == len(keys)
    assert {*found} == keys
    assert [count for _, count, *_ in reported(caplog)] == [3, 3, 1]


async def test_a_scan_of_many_topics_lists_the_store_once(monkeypatch, caplog):
    """A request for each page of each prefix, however many topics there are, and no other's."""
    caplog.set_level(logging.ERROR)
    store = Store()
    store.page = 7
    monkeypatch.setattr(object_store, "open_store", store.opened)
    storage = ObjectStorage("s3://bucket", "root")
    first = await Hosted(storage=storage).start()
    topics = [first, *[await Hosted(name=f"t{n}", beside=first).start() for n in range(19)]]
    keys = [hosted.store(running_ms) for hosted in topics for running_ms in range(40)]
    for number in range(1_000):
        storage.put(f"lake/{number}", [b"of somebody else"], timeout_s=9)
    in_prefix = [sum(key.startswith(f"{n:02x}/") for key in keys) for n in range(256)]
    pages = sum(max(1, -(-count // store.page)) for count in in_prefix)
    assert pages < 20 * 256 / 10
    store.asked.clear()
    assert sorted(await scan_orphans(topics, first.context)) == sorted(keys)
    assert store.asked == ["list"] * pages


# -- deleted topics ------------------------------------------------------------------------------


class Doomed:
    """Doomed topics, each with a topic in the queue and objects; and what removes them."""

    def __init__(self, names):
        self.now_s, self.alive, self.failing = 1_000.0, set(), set()
        self.queue, self.storage = InMemoryQueue(), Refusing()
        runtime = Runtime(mono_s=lambda: self.now_s)
        self.context = context_of(self.storage, self.queue, runtime=runtime, shared=False)
        self.topics = {}
        for number, name in enumerate(names):
            config, topic_id = TopicConfig.create(name, read_partitions=2), f"{number:016x}"
            self.topics[name] = new_topic(config, (), now_ms=1, topic_id=topic_id, request_id="")
        self.deletions = Deletions(self, self.context)

    async def start(self):
        for topic in self.topics.values():
            await self.queue.create_topic(topic.queue_topic, 2)
            for number in range(3):
                self.put(topic, number)
        return self

    def put(self, topic, number):
        key = BatchKey("c", topic.name, topic.topic_id, 0, number, f"{number:028x}", number)
        self.storage.put(object_key(key), [b"x"], timeout_s=1)

    async def doomed(self):
        return list(self.topics.values())

    async def withdraw(self, topic):
        if topic.name in self.failing:
            raise UnavailableError("ask again")
        return topic.name not in self.alive

    async def forget(self, topic):
        del self.topics[topic.name]

    async def left(self):
        """Names of topics of which the queue has something, and of which there are objects."""
        objects = {parse_object_key(info.key).topic for info in self.storage.list("")}
        return sorted(each.partition(".")[0] for each in await self.queue.topics()), sorted(objects)


TROUBLES = ["uploading", "alive", "withdraw", "queue", "storage"]


@pytest.mark.parametrize("first", range(len(TROUBLES)))
async def test_what_cannot_be_removed_yet_holds_up_no_other_topic(first) -> None:
    """Whatever is in the way of one, wherever it stands, those after it are removed."""
    place = await Doomed(["free", *TROUBLES[first:], *TROUBLES[:first], "also"]).start()
    ended, upload, delete_topic = Future(), Future(), place.queue.delete_topic
    ended.set_result(None)
    for name, topic in place.topics.items():
        place.deletions.add(topic, [ended, upload] if name == "uploading" else [])

    async def delete(topic):
        if topic.startswith("queue."):
            raise QueueError("no")
        await delete_topic(topic)

    place.queue.delete_topic = delete
    place.alive, place.failing, place.storage.refused = {"alive"}, {"withdraw"}, ["/storage/"]
    assert not await place.deletions._remove_all()
    assert sorted(place.topics) == sorted(TROUBLES)
    queue, objects = await place.left()
    assert queue == ["alive", "queue", "uploading", "withdraw"]
    assert objects == sorted(TROUBLES)
    place.queue.delete_topic, place.failing, place.storage.refused = delete_topic, set(), ()
    assert not await place.deletions._remove_all(), "one is still uploading"
    assert sorted(place.topics) == ["alive", "uploading"]
    upload.set_result(None)
    assert await place.deletions._remove_all(), "what has come to exist is not waited for"
    assert await place.left() == (["alive"], ["alive"])


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("shared", [False, True])
async def test_what_may_still_be_stored_is_waited_for(remote, shared) -> None:
    """Where a put may be carried out late, a topic is removed a minute later, not before."""
    place = await Doomed("ab").start()
    place.storage.remote, place.context.shared = remote, shared
    late, topic = remote or shared, place.topics["a"]
    assert await place.deletions._remove_all() is not late
    assert await place.left() == ((["a", "b"], ["a", "b"]) if late else ([], []))
    place.now_s += LANDING_S - 0.1
    place.put(topic, 7)
    assert await place.deletions._remove_all() is not late
    place.now_s += 0.1
    assert await place.deletions._remove_all()
    assert place.topics == {}
    assert await place.left() == ([], [] if late else ["a"])
    assert not place.deletions._seen_s
    assert not place.deletions._uploads
