"""What a queue in Kafka sees of its partitions and of what brokers say; on a model of Kafka."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.core.notification import queue as queues
from memq.core.notification.kafka import queue as queue_module
from memq.core.notification.kafka import state_topic as state_topic_module
from memq.core.notification.kafka import tail as tail_module
from memq.core.notification.kafka.client import Bounds, NewRecord, Place, Record
from memq.core.notification.kafka.reached import Reached, see
from memq.core.notification.kafka.state import KafkaState, held_record, offset_records, topic_record
from memq.core.notification.kafka.tail import Tail
from memq.core.notification.queue import Holding, Publication, QueueEntry
from memq.core.runtime import SYSTEM
from memq.errors import (
    ClosedError,
    DataLossError,
    FencedError,
    LimitReachedError,
    MemqError,
    OffsetOutOfRangeError,
    QueueError,
    UnknownTopicError,
)

STATE = Place("c.memq-state", 0)


@pytest.fixture
def _impatient(monkeypatch):
    """Who waits for what is not seen does so for a moment."""
    monkeypatch.setattr(queue_module, "SETTLED_S", 0.01)
    monkeypatch.setattr(queue_module, "SEEN_S", 0.02)


async def publish(queue, *payloads, partition=0, topic="t"):
    """Publish payloads; gives their offsets."""
    publications = [Publication(partition, payload, 1) for payload in payloads]
    return await queue.publish(topic, 0, publications)


async def fetch(queue, offset=0, partition=0):
    """Entries from an offset on."""
    return await queue.fetch("t", partition, offset, max_entries=99, max_bytes=1 << 20)


async def payloads(queue, partition=0):
    """All that is in a partition."""
    start, _ = await queue.offsets("t", partition)
    return [entry.payload for entry in await fetch(queue, start, partition)]


def watch(client, name, monkeypatch):
    """What a method of a client is called with."""
    method, calls = getattr(client, name), []

    async def watched(*given, **how):
        calls.append(given)
        return await method(*given, **how)

    monkeypatch.setattr(client, name, watched)
    return calls


# -- fetch, wait, offsets ---------------------------------------------------------------------


async def test_the_start_is_asked_for_once_in_a_while(process, kafka, monkeypatch):
    """What is known of it serves for so long, whoever fetches; then Kafka is asked, once."""
    clock = SimpleNamespace(now_s=100.0)
    queue = await process(runtime=replace(SYSTEM, mono_s=lambda: clock.now_s))
    await queue.create_topic("t", 1)
    await queue.fence("t", 0)
    offsets = await publish(queue, *(b"%d" % n for n in range(9)))
    assert len(await fetch(queue)) == 9
    asked = watch(queue._client, "bounds", monkeypatch)
    kafka.truncate(Place("c.t", 0), offsets[3])
    clock.now_s += queue_module.START_S
    assert len(await fetch(queue)) == 9
    assert asked == []
    clock.now_s += 0.1
    with pytest.raises(OffsetOutOfRangeError, match="offset 0 of 't'/0"):
        await fetch(queue)
    count = len(asked)
    assert count >= 1
    assert len(await fetch(queue, offsets[3])) == 6
    clock.now_s += queue_module.START_S
    assert len(await fetch(queue, offsets[3])) == 6
    assert len(asked) == count


async def test_an_offset_past_the_end_that_is_known_is_looked_up(queue, process, kafka):
    """Another broker may have published it, and Kafka need not have told of it yet."""
    other = await process("other")
    assert await other.offsets("t", 0) == (0, 0)
    kafka.told_s = None
    offsets = await publish(queue, b"a", b"b", b"c")
    assert [each.payload for each in await fetch(other, offsets[1])] == [b"b", b"c"]
    with pytest.raises(OffsetOutOfRangeError):
        await fetch(other, offsets[2] + 2)


async def test_an_entry_that_goes_while_it_is_read_was_removed(queue, kafka, monkeypatch):
    """Who reads what is truncated meanwhile learns where the partition begins now."""
    monkeypatch.setattr(tail_module, "KEPT_BYTES", 0)
    offsets = await publish(queue, *(b"%d" % n for n in range(9)))
    await queue.offsets("t", 0)
    read = queue._client.read

    async def late(place, *given, **how):
        kafka.truncate(place, offsets[5])
        return await read(place, *given, **how)

    monkeypatch.setattr(queue._client, "read", late)
    with pytest.raises(OffsetOutOfRangeError, match=r"offset 2 of 't'/0 .*\b5\b"):
        await fetch(queue, offsets[2])
    kafka.truncate(Place("c.t", 0), offsets[5])
    with pytest.raises(QueueError, match="truncated while it was searched; try again"):
        monkeypatch.setattr(queue_module, "SEARCH_RECORDS", 1)
        kafka_truncated = offsets[7]

        async def later(place, *given, **how):
            kafka.truncate(place, kafka_truncated)
            return await read(place, *given, **how)

        monkeypatch.setattr(queue._client, "read", later)
        await queue.offset_at("t", 0, 0)


async def test_nothing_read_is_no_end(queue, monkeypatch):
    """Where there are entries, a page without any is an error that may be tried again."""
    monkeypatch.setattr(tail_module, "KEPT_BYTES", 0)
    await publish(queue, b"a")
    await queue.offsets("t", 0)

    async def nothing(*_, **__):
        return []

    monkeypatch.setattr(queue._client, "read", nothing)
    with pytest.raises(QueueError, match="was not read from 0 to 1; try again"):
        await fetch(queue)
    assert await fetch(queue, 1) == []


@pytest.mark.parametrize("lost", [0, 1])
async def test_a_wait_ends_when_one_of_its_partitions_is_gone(queue, kafka, lost):
    """Whichever it is: nothing of it would ever come."""
    for partition in range(2):
        await publish(queue, b"a", b"b", partition=partition)
        await queue.offsets("t", partition)
    waiting = asyncio.ensure_future(queue.wait("t", {0: 99, 1: 99}, 60))
    await asyncio.sleep(0)
    kafka.lose(Place("c.t", lost), 1)
    with pytest.raises(DataLossError):
        await queue.offsets("t", lost)
    async with asyncio.timeout(20):
        with pytest.raises(MemqError):
            await waiting


@pytest.mark.usefixtures("_impatient")
async def test_an_end_is_not_told_before_it_is_seen(queue, kafka, monkeypatch):
    """What another broker has published is before it, or there is an error."""
    await queue.offsets("t", 0)
    kafka.told_s = None
    opened, _ = kafka.begin([NewRecord(Place("c.t", 0), b"x")])
    kafka.end(opened, committed=True)

    async def truncated(*_, **__):
        raise OffsetOutOfRangeError("not there")

    with monkeypatch.context() as patch:
        patch.setattr(queue._client, "read", truncated)
        with pytest.raises(QueueError, match="was read up to offset 0 and not to 2"):
            await queue.offsets("t", 0)
    assert await queue.offsets("t", 0) == (0, 1)


async def test_a_truncation_asks_only_for_what_it_changes(queue, kafka, monkeypatch):
    """At or before the start there is nothing to do; what is forgotten is so here at once."""
    offsets = await publish(queue, *(b"%d" % n for n in range(5)))
    asked = watch(queue._client, "delete_records", monkeypatch)
    for offset in (-1, 0):
        await queue.truncate("t", 0, offset)
    assert asked == []
    await queue.truncate("t", 0, offsets[2])
    await queue.truncate("t", 0, offsets[2])
    assert asked == [(Place("c.t", 0), offsets[2])]
    with pytest.raises(OffsetOutOfRangeError):
        await fetch(queue, offsets[1])
    with pytest.raises(OffsetOutOfRangeError):
        await queue.truncate("t", 0, offsets[4] + 2)
    await queue.truncate("t", 0, offsets[4] + 1)
    assert await queue.offsets("t", 0) == (offsets[4] + 1, offsets[4] + 1)


@pytest.mark.usefixtures("_impatient")
async def test_times_are_not_before_those_of_the_entries_that_are_known(queue, process, kafka):
    """Of another broker's, read here, and of one's own that was not read yet."""
    other = await process("other")
    await other.fence("t", 5)
    await other.publish("t", 5, [Publication(0, b"x", 100, 200)])
    await queue.offsets("t", 0)
    kafka.told_s = None
    times = [(5, 5), (150, 3), (7, 250), (8, 8)]
    for each in times:
        await queue.publish("t", 0, [Publication(0, b"x", *each)])
    found = [(each.timestamp_ms, each.running_ms) for each in await fetch(queue)]
    assert found == [(100, 200), (100, 200), (150, 200), (150, 250), (150, 250)]


@pytest.mark.parametrize("by", ["here", "another broker"])
async def test_a_topic_that_is_made_again_has_nothing_of_the_one_before(queue, process, by):
    """Neither its times, nor its end, nor its groups, nor its owners."""
    await queue.publish("t", 0, [Publication(0, b"x", 100, 100)] * 5)
    await queue.offsets("t", 0)
    await queue.commit("g", "t", {0: 3})
    await queue.hold("g", "t", {"m": Holding(1_000, [0])})
    other = await process("other")
    followed = {*queue._client._following}
    await (queue if by == "here" else other).delete_topic("t")
    assert {*queue._client._following} < followed
    assert not queue.owns("t", 0)
    with pytest.raises(UnknownTopicError):
        await publish(queue, b"late")
    await queue.create_topic("t", 1)
    assert not queue.owns("t", 0)
    with pytest.raises(FencedError):
        await publish(queue, b"early")
    assert await queue.groups("t") == await queue.holders("t") == []
    assert await queue.wait_released("t", [0], lambda _: True, 0)
    await queue.fence("t", 0)
    assert await queue.publish("t", 0, [Publication(0, b"new", 5, 6)]) == [0]
    assert await fetch(queue) == [QueueEntry(0, 5, b"new", 6)]


async def test_what_waits_for_a_topic_that_goes_is_not_published(queue, kafka, monkeypatch):
    """Its publications are refused before Kafka is asked to delete it."""
    order = []
    delete = queue._client.delete_topic

    async def slow(name):
        with pytest.raises(FencedError):
            await publish(queue, b"late")
        order.append(name)
        await delete(name)

    monkeypatch.setattr(queue._client, "delete_topic", slow)
    await queue.delete_topic("t")
    assert order == ["c.t"]


async def test_who_deletes_a_topic_of_another_broker_takes_back_all_of_it(queue, process, kafka):
    """Also what it has not been told of yet; the topic can be made again with other partitions."""
    other = await process("other")
    kafka.told_s = None
    await other.create_topic("u", 3)
    await other.fence("u", 0)
    await other.commit("g", "u", {0: 1})
    await queue.delete_topic("u")
    await queue.create_topic("u", 1)
    assert await queue.groups("u") == []
    assert await queue.offsets("u", 0) == (0, 0)
    with pytest.raises(MemqError, match="no read partition 1"):
        await queue.offsets("u", 1)


async def test_topics_are_those_that_kafka_has(queue, process, kafka):
    """One that another has made is listed at once; one that has vanished there is not."""
    other = await process("other")
    kafka.told_s = None
    await other.create_topic("u", 1)
    assert await queue.topics() == ["t", "u"]
    assert await queue.offsets("u", 0) == (0, 0)
    kafka.delete("c.t")
    assert await queue.topics() == ["u"]


# -- groups that others see late ---------------------------------------------------------------


async def test_groups_are_counted_as_they_are(queue, kafka, monkeypatch):
    """Each new one counts for the next, and one that was deleted makes room at once."""
    monkeypatch.setattr(queues, "MAX_STORED_GROUPS", 2)
    kafka.told_s = None
    await queue.commit("a", "t", {0: 1})
    await queue.commit("b", "t", {0: 1})
    with pytest.raises(LimitReachedError):
        await queue.commit("c", "t", {0: 1})
    await queue.commit("b", "t", {1: 1})
    await queue.delete_group("a", "t")
    await queue.commit("c", "t", {0: 1})
    assert await queue.groups("t") == ["b", "c"]


@pytest.mark.parametrize("call", ["committed", "groups", "holdings", "holders", "delete_group"])
async def test_groups_of_a_topic_that_another_has_deleted_are_not_none(queue, process, kafka, call):
    """Its deletion may be learned while they are looked up: the topic is unknown then."""
    await queue.commit("g", "t", {0: 1})
    other = await process("other")
    kafka.told_s = None
    await other.delete_topic("t")
    assert "t" in queue._state.topics
    arguments = ("t",) if call in ("groups", "holders") else ("g", "t")
    with pytest.raises(UnknownTopicError):
        await getattr(queue, call)(*arguments)


async def test_owners_of_a_topic_that_another_has_deleted_are_not_waited_for(queue, process, kafka):
    """The topic is unknown then, when that is learned at the start or while it waits."""
    other = await process("other")
    kafka.told_s = None
    await queue.delete_topic("t")
    with pytest.raises(UnknownTopicError):
        await other.wait_released("t", [0], lambda _: True, 60)
    kafka.told_s = (0.0, 0.0)
    await queue.create_topic("u", 1)
    await queue.fence("u", 0)
    waiting = asyncio.ensure_future(other.wait_released("u", [0], lambda _: True, 60))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    await queue.delete_topic("u")
    async with asyncio.timeout(20):
        with pytest.raises(UnknownTopicError):
            await waiting


# -- what is lost, and what is followed --------------------------------------------------------


async def test_each_partition_that_has_lost_something_is_told(queue, kafka, caplog):
    """One question finds all of them; the next one finds nothing more."""
    for partition in range(2):
        await publish(queue, b"a", b"b", b"c", partition=partition)
        await queue.offsets("t", partition)
        queue._client.unfollow(Place("c.t", partition))
        kafka.lose(Place("c.t", partition), 1)
    with pytest.raises(DataLossError, match=r"c\.t/0"):
        await queue.fence("t", 5)
    said = [each.getMessage() for each in caplog.records if each.levelname == "CRITICAL"]
    assert [each.split(":")[0] for each in said] == [
        "Kafka has lost data of c.t/0",
        "Kafka has lost data of c.t/1",
    ]
    await queue.fence("t", 5)
    assert [await payloads(queue, each) for each in range(2)] == [[b"a"]] * 2


@pytest.mark.usefixtures("_impatient")
async def test_what_is_open_when_something_is_lost_is_not_waited_for(queue, kafka):
    """It may never end, and what is left is read as far as it goes."""
    await publish(queue, b"a")
    place = Place("c.t", 0)
    _, (opened,) = kafka.begin([NewRecord(place, b"open")])
    await publish(queue, b"lost")
    kafka.lose(place, opened + 1)
    with pytest.raises(DataLossError):
        await queue.offsets("t", 0)
    assert await queue.offsets("t", 0) == (0, 1)
    assert await payloads(queue) == [b"a"]


async def test_how_far_was_read_is_known_when_following_ends(queue, process, kafka):
    """What another broker has written, and was read here, is missed whatever came in between."""
    other = await process("other")
    await publish(queue, b"a", b"b")
    assert await payloads(other) == [b"a", b"b"]
    other._tails[Place("c.t", 0)].failed(QueueError("it cannot be followed"))
    kafka.lose(Place("c.t", 0), 1)
    with pytest.raises(DataLossError, match="up to offset 3"):
        await other.offsets("t", 0)
    assert await payloads(other) == [b"a"]


async def test_what_was_asked_about_longest_ago_is_let_go(process, kafka, monkeypatch):
    """With more than may be followed; what is owned here does not count."""
    monkeypatch.setattr(queue_module, "MAX_TAILS", 2)
    queue = await process()
    for topic in "tuvw":
        await queue.create_topic(topic, 1)
    await queue.fence("t", 0)
    for topic in "uvuw":
        await queue.offsets(topic, 0)
    assert [place.topic for place in queue._tails] == ["c.t", "c.u", "c.w"]
    following = {place.topic for place in queue._client._following}
    assert following == {"c.memq-state", "c.t", "c.u", "c.w"}
    await queue.offsets("v", 0)
    assert [place.topic for place in queue._tails] == ["c.t", "c.w", "c.v"]


async def test_what_nobody_has_asked_about_for_long_is_let_go(process, monkeypatch):
    """And what somebody has asked about meanwhile is not."""
    clock = SimpleNamespace(now_s=100.0)
    queue = await process(runtime=replace(SYSTEM, mono_s=lambda: clock.now_s))
    for topic in "uvw":
        await queue.create_topic(topic, 1)
    for topic in "uv":
        await queue.offsets(topic, 0)
    clock.now_s += queue_module.IDLE_S - 1
    await queue.offsets("v", 0)
    await queue.offsets("w", 0)
    assert [place.topic for place in queue._tails] == ["c.u", "c.v", "c.w"]
    clock.now_s += 2
    await queue.create_topic("x", 1)
    await queue.offsets("x", 0)
    assert [place.topic for place in queue._tails] == ["c.v", "c.w", "c.x"]


async def test_an_opening_that_fails_is_tried_anew(queue, monkeypatch, unheard):
    """All who wait are told, it is nobody's error when they have gone; the next one works."""
    bounds, entered, go_on = queue._client.bounds, asyncio.Event(), asyncio.Event()

    async def refused(places):
        entered.set()
        await go_on.wait()
        raise QueueError("refused")

    queue._tails.clear()
    with monkeypatch.context() as patch:
        patch.setattr(queue._client, "bounds", refused)
        both = [asyncio.ensure_future(queue.offsets("t", 0)) for _ in range(2)]
        await entered.wait()
        go_on.set()
        outcomes = await asyncio.gather(*both, return_exceptions=True)
        assert [type(each) for each in outcomes] == [QueueError] * 2
        entered.clear()
        go_on.clear()
        alone = asyncio.ensure_future(queue.offsets("t", 0))
        await entered.wait()
        alone.cancel()
        go_on.set()
        while queue._opening:
            await asyncio.sleep(0)
        del both, outcomes, alone
    gc.collect()
    assert not unheard
    assert queue._client.bounds is not refused
    assert await queue.offsets("t", 0) == (0, 0)
    assert bounds


async def test_whoever_waits_when_the_queue_is_closed_is_told(queue, process, kafka):
    """For entries, for owners, for a partition to be opened, and for what brokers say."""
    other = await process("other")
    await queue.offsets("t", 0)
    waiting = [
        queue.wait("t", {0: 0}, 60),
        other.wait_released("t", [0], lambda _: True, 60),
    ]
    waiting = [asyncio.ensure_future(each) for each in waiting]
    await asyncio.sleep(0.01)
    tails = [*queue._tails.values()]
    for each in (queue, other):
        await each.close()
        await each.close()
    async with asyncio.timeout(20):
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(each) for each in outcomes] == [ClosedError] * 2
    assert [type(each.reached.error) for each in tails] == [ClosedError] * 2
    last = await process("last")
    kafka.latency_s = (60.0, 60.0)
    opening = [asyncio.ensure_future(last.offsets("t", each % 2)) for each in range(3)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    reached = [last._state_topic.reached, *(each.reached for each in last._tails.values())]
    opened = [*last._opening.values()]
    assert len(opened) == 2
    await last.close()
    outcomes = await asyncio.gather(*opening, return_exceptions=True)
    assert all(isinstance(each, ClosedError | asyncio.CancelledError) for each in outcomes)
    assert all(each.cancelled() for each in opened)
    assert [type(each.error) for each in reached] == [ClosedError] * len(reached)


# -- what brokers say --------------------------------------------------------------------------


async def test_what_brokers_say_is_followed_again_later_and_later(queue, monkeypatch):
    """Each failure in a row waits longer, news begins anew; one that is over follows no more."""
    topic = queue._state_topic
    waits, followed = [], []

    def again_s(failures, _random):
        waits.append(failures)
        return 0.0

    monkeypatch.setattr(state_topic_module, "FOLLOW_AGAIN", SimpleNamespace(equal_jitter_s=again_s))
    monkeypatch.setattr(queue._client, "follow", lambda *given: followed.append(given))
    for _ in range(3):
        topic.failed(QueueError("away"))
    topic.read((), topic.reached.offset)
    topic.failed(UnknownTopicError("gone"))
    assert waits == [0, 1, 2, 0]
    while len(followed) < 4:
        await asyncio.sleep(0)
    assert followed == [(STATE, topic.reached.offset, topic)] * 4
    topic.failed(QueueError("away"))
    topic.reached.fail(ClosedError("closed"))
    await asyncio.sleep(0.01)
    assert len(followed) == 4


async def test_one_look_at_a_time_learns_whether_there_is_nothing_to_follow(
    queue, monkeypatch, unheard
):
    """Another one comes after it; what it meets is told, and ends nothing; a close ends it."""
    topic, looks = queue._state_topic, []
    go_on = asyncio.Event()

    async def slow():
        looks.append(1)
        await go_on.wait()
        raise QueueError("away")

    monkeypatch.setattr(topic, "see", slow)
    topic._follow_again()
    topic._follow_again()
    await asyncio.sleep(0)
    assert len(looks) == 1
    go_on.set()
    while not topic._looking.done():
        await asyncio.sleep(0)
    go_on.clear()
    topic._follow_again()
    await asyncio.sleep(0)
    assert len(looks) == 2
    last = topic._looking
    await queue.close()
    await asyncio.sleep(0)
    assert last.cancelled()
    del last
    topic._looking = None
    gc.collect()
    assert not unheard


async def test_what_is_told_late_is_passed_over_and_the_rest_is_taken(queue):
    """Records that were read already stand before new ones in what Kafka tells."""
    topic = queue._state_topic
    at = topic.reached.offset
    old, new = topic_record("t", 9), topic_record("u", 3)
    read = [0]
    topic._on_read = lambda: read.append(len(queue._state.topics))
    records = [Record(at - 1, 1, old.value, old.key), Record(at, 1, new.value, new.key)]
    topic.read(records, at + 1)
    assert queue._state.topics == {"t": 2, "u": 3}
    assert topic.reached.offset == at + 1
    assert read == [0, 2]


def test_what_is_forgotten_of_a_topic_is_all_of_it_and_nothing_else():
    """As its records say it, to who has read all and to who reads them after compaction."""
    said = []
    whole = KafkaState()

    def say(records):
        for each in list(records):
            whole.read(Record(len(said), 1, each.value, each.key))
            said.append(each)

    def all_of(state, topic):
        claims = [state.claim(topic, each).owner for each in (0, 1)]
        groups = [state.offsets(topic, "g"), state.held(topic, "g")]
        return [topic in state.topics, claims, groups, state.groups(topic), state.holders(topic)]

    for topic in ("t", "u"):
        say([topic_record(topic, 2)])
        for each in (0, 1):
            say(whole.next_claim(topic, each, "a"))
            say(whole.next_claim(topic, each, "b"))
        say(offset_records(topic, "g", {0: 1, 1: 2}))
        say([held_record(topic, "g", {"m": Holding(1, [0])})])
    kept = all_of(whole, "u")
    assert kept == all_of(whole, "t")
    forgotten = list(whole.forget("t"))
    say(forgotten)
    none = [False, ["", ""], [{}, {}], [], []]
    assert all_of(whole, "t") == none
    assert all_of(whole, "u") == kept
    assert [*whole.owners()] == ["b"]
    last = {each.key: number for number, each in enumerate(said)}
    compacted = KafkaState()
    for number, each in enumerate(said):
        if last[each.key] == number and each.value is not None:
            compacted.read(Record(number, 1, each.value, each.key))
    assert all_of(compacted, "t") == none
    assert all_of(compacted, "u") == kept


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"1"),
        (b"[]", b"1"),
        (b"[[]]", b"1"),
        (b'["news"]', b"1"),
        (b'["topic"]', b"1"),
        (b'["topic","t"]', b'"x"'),
        (b'["topic","t","u"]', None),
        (b'["owner","t",0,"x","o"]', b"true"),
        (b'["offset","t","g",0]', b"{}"),
        (b'["held","t","g"]', b"[1]"),
        (b'["times","b"]', b"[]"),
        (b'["times","b"]', b"\xff"),
        (b"\xff", None),
    ],
)
def test_a_record_that_makes_no_sense_stops_none_after_it(caplog, key, value):
    """Whatever is wrong with it; it is told by its offset, and is no topic that is gone."""
    state = KafkaState()
    said = topic_record("t", 3)
    assert state.read(Record(1, 1, said.value, said.key)) is None
    assert state.read(Record(5, 1, value, key)) is None
    said = topic_record("u", 4)
    assert state.read(Record(6, 1, said.value, said.key)) is None
    assert state.topics == {"t": 3, "u": 4}
    assert "offset 5 of the state topic" in caplog.text
    assert state.read(Record(7, 1, None, topic_record("u", 1).key)) == "u"
    assert state.read(Record(8, 1, None, b'["times","b"]')) is None
    assert state.times == {}


# -- how far was read --------------------------------------------------------------------------


async def test_who_waits_for_an_offset_is_woken_by_it():
    """By the very offset or a later one; one that is earlier changes nothing."""
    reached = Reached(3)
    await reached.wait_for(3, 0.0, "p")
    waits = {each: asyncio.ensure_future(reached.wait_for(each, 60, "p")) for each in (4, 5, 6)}
    gone = asyncio.ensure_future(reached.wait_for(5, 60, "p"))
    await asyncio.sleep(0)
    gone.cancel()
    reached.advance(2)
    assert reached.offset == 3
    reached.advance(5)
    await asyncio.gather(waits[4], waits[5])
    assert not waits[6].done()
    gone = asyncio.ensure_future(reached.wait_for(9, 60, "p"))
    await asyncio.sleep(0)
    gone.cancel()
    reached.fail(QueueError("over"))
    with pytest.raises(QueueError, match="over"):
        await waits[6]
    with pytest.raises(QueueError, match="over"):
        await reached.wait_for(1, 60, "p")
    assert not reached._waiting


async def test_who_waits_in_vain_is_told_how_far_it_was_read():
    """With the name of what it was, and waits no more."""
    reached = Reached(3)
    with pytest.raises(QueueError, match="p was read up to offset 3 and not to 7 within 0 s"):
        await reached.wait_for(7, 0.0, "p")
    assert not reached._waiting


async def test_what_is_read_no_further_is_not_asked_for():
    """Its error is told, and Kafka is left alone."""
    tail = Tail(0, 0, [], lambda: None)
    tail.failed(UnknownTopicError("gone"))
    with pytest.raises(UnknownTopicError):
        await see(None, Place("c.t", 0), tail, Bounds(0, 5, 5))


def entry(offset, size):
    """An entry of so many bytes."""
    return QueueEntry(offset, offset, b"x" * size, offset)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.lists(st.integers(0, 9), max_size=4), st.integers(0, 3)),
        st.tuples(st.just("again"), st.integers(0, 6), st.integers(0, 3)),
        st.tuples(st.just("forget"), st.integers(-3, 3), st.integers(0, 3)),
    ),
    max_size=12,
)


@given(st.integers(0, 5), st.lists(st.integers(0, 9), max_size=3), STEPS)
def test_a_tail_gives_what_is_there_or_nothing(start, sizes, steps):
    """Whatever comes, comes again or is forgotten: the very entries, or that they are not kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tail_module, "KEPT_BYTES", 20)
        there = [entry(start + 2 + 2 * n, size) for n, size in enumerate(sizes)]
        at = there[-1].offset + 2 if there else start + 1
        woken = []
        tail = Tail(start, at, there, lambda: woken.append(1))
        for what, given_, more in steps:
            count, before = len(woken), tail.end
            if what == "read":
                new = [entry(at + 2 * n, size) for n, size in enumerate(given_)]
                at = (new[-1].offset + 1 if new else at) + more
                there += new
                tail.read([Record(e.offset, e.offset, e.payload, None, e.offset) for e in new], at)
            elif what == "again":  # what was read already, and that there is a marker
                old = there[-given_:] if given_ else []
                tail.read([Record(e.offset, e.offset, e.payload, None, e.offset) for e in old], at)
            else:
                start = max(start, min(at, start + given_))
                tail.forget_before(min(at, start + given_) if given_ < 0 else start)
            assert (len(woken) > count) is (what != "forget" and tail.end > before)
            last = there[-1].offset + 1 if there else 0
            assert (tail.start, tail.end) == (start, max(start, last))
            assert tail.reached.offset == at
            assert sum(len(each.payload) for each in tail._entries) <= 20
            assert tail._size_bytes == sum(len(each.payload) for each in tail._entries)
            for offset in range(start, tail.end + 1):
                rest = [each for each in there if each.offset >= offset]
                found = tail.fetch(offset, 99, 1 << 20)
                assert found in (None, rest)
                if found is None:  # it is not kept: it stood before, or more stands after it
                    more_than_kept = sum(len(each.payload) for each in rest) > 20
                    assert more_than_kept or offset < tail._kept_from
                    continue
                assert tail.fetch(offset, 2, 1 << 20) == rest[:2]
                fits = 1
                while fits < len(rest) and sum(len(e.payload) for e in rest[: fits + 1]) <= 15:
                    fits += 1
                assert tail.fetch(offset, 99, 15) == rest[:fits]


def test_the_end_of_a_tail_is_told_to_who_waits():
    """An offset that is gone is nobody's who asks: it may be asked again."""
    for error, kind in ((OffsetOutOfRangeError("x"), QueueError), (ClosedError("x"), ClosedError)):
        woken = []
        tail = Tail(0, 0, [], lambda woken=woken: woken.append(1))
        tail.failed(error)
        assert type(tail.reached.error) is kind
        assert woken == [1]
