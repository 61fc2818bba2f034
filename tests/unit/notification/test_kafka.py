"""The queue in Kafka, where Kafka fails; on a model of Kafka."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest

from memq.core.clock import SavedTimes
from memq.core.notification.kafka import publisher as publisher_module
from memq.core.notification.kafka import queue as queue_module
from memq.core.notification.kafka import state_topic as state_topic_module
from memq.core.notification.kafka.client import NewRecord, Place, Record
from memq.core.notification.kafka.queue import KafkaQueue
from memq.core.notification.kafka.reached import AT_ONCE, AT_ONCE_BYTES
from memq.core.notification.kafka.state import KafkaState, held_record, offset_records, topic_record
from memq.core.notification.queue import MAX_PAYLOAD_BYTES, Holding, Publication
from memq.core.retry import Backoff
from memq.errors import (
    ClosedError,
    ConfigError,
    DataLossError,
    FencedError,
    MemqError,
    OffsetOutOfRangeError,
    PublishUncertainError,
    QueueError,
    QueueFailedError,
    UnknownTopicError,
)
from tests.fakes.kafka import InMemoryKafka


async def publish(queue, *payloads, write_partition=0, partition=0):
    """Publish payloads; gives their offsets."""
    publications = [Publication(partition, payload, 1) for payload in payloads]
    return await queue.publish("t", write_partition, publications)


async def payloads(queue, partition=0):
    """All that is in a partition."""
    start, _ = await queue.offsets("t", partition)
    found = await queue.fetch("t", partition, start, max_entries=1_000, max_bytes=1 << 20)
    return [entry.payload for entry in found]


@pytest.mark.parametrize("fault", ["loses", "drops"])
async def test_a_doubtful_write_partition_waits_for_a_fence(queue, kafka, fault):
    """After a commit without an answer it takes nothing until it is fenced; then all is known."""
    setattr(kafka, fault, 1.0)
    with pytest.raises(PublishUncertainError):
        await publish(queue, b"a")
    kafka.mend()
    with pytest.raises(FencedError):
        await publish(queue, b"b")
    await queue.fence("t", 0, again=True)
    assert await payloads(queue) == ([b"a"] if fault == "loses" else [])
    await publish(queue, b"c")
    assert (await payloads(queue))[-1] == b"c"


async def test_doubt_of_one_transaction_leaves_other_write_partitions_alone(queue, kafka):
    """Who was not part of it publishes on, by another producer."""
    kafka.loses = 1.0
    with pytest.raises(PublishUncertainError):
        await publish(queue, b"a")
    kafka.mend()
    await publish(queue, b"b", write_partition=1)
    assert await payloads(queue) == [b"a", b"b"]


@pytest.mark.parametrize("fault", ["loses", "drops"])
async def test_doubt_of_a_commit_stops_no_publication(queue, kafka, fault):
    """A group's offsets in doubt are committed again; Batches of the coordinator's are not held."""
    doubtful = [
        queue.commit("g", "t", {0: 1}),
        queue.hold("g", "t", {"m": Holding(1_000, [0])}),
        queue.save_times(SavedTimes(7, 7)),
    ]
    for number, call in enumerate(doubtful):
        setattr(kafka, fault, 1.0)
        with pytest.raises(PublishUncertainError):
            await call
        kafka.mend()
        for write_partition in (0, 1):
            assert queue.owns("t", write_partition)
            await publish(queue, b"%d" % number, write_partition=write_partition)
    await queue.commit("g", "t", {0: 2})
    assert await payloads(queue) == [b"0", b"0", b"1", b"1", b"2", b"2"]
    assert await queue.committed("g", "t") == {0: 2}


async def test_a_commit_is_made_while_a_publication_is_in_doubt(queue, kafka):
    """Doubt stops the publications of its write partition; its groups go on."""
    kafka.loses = 1.0
    with pytest.raises(PublishUncertainError):
        await publish(queue, b"a")
    kafka.mend()
    await queue.commit("g", "t", {0: 1})
    assert await queue.committed("g", "t") == {0: 1}
    with pytest.raises(FencedError):
        await publish(queue, b"b")


async def test_an_aborted_transaction_is_no_doubt(queue, kafka):
    """What was certainly not written may be published again at once, and leaves a gap at most."""
    kafka.refuses = 1.0
    with pytest.raises(QueueError) as caught:
        await publish(queue, b"a")
    assert caught.value.retriable
    assert not isinstance(caught.value, PublishUncertainError)
    kafka.mend()
    await publish(queue, b"a")
    (entry,) = await queue.fetch("t", 0, 0, max_entries=9, max_bytes=99)
    assert entry.payload == b"a"
    assert entry.running_ms < (await queue.times()).running_ms, "which went along with it"


async def test_a_hand_over_by_release_costs_the_owner_nothing(process, queue):
    """Who has let go of one write partition publishes on for the others by the same producer."""
    await publish(queue, b"a", write_partition=1)
    producer = queue._publisher._producer
    await queue.release("t", 0)
    successor = await process("other")
    await successor.fence("t", 0)
    await publish(queue, b"b", write_partition=1)
    assert queue._publisher._producer is producer
    assert not producer.over


@pytest.mark.parametrize("fault", ["loses", "drops", "refuses"])
async def test_a_release_in_doubt_can_be_repeated(kafka, process, queue, fault):
    """Whatever became of it, it may be released once more, and nobody is waited for then."""
    setattr(kafka, fault, 1.0)
    with pytest.raises(QueueError, match="a release may have taken effect, or not") as caught:
        await queue.release("t", 0)
    assert type(caught.value) is QueueError
    assert caught.value.retriable
    kafka.mend()
    await publish(queue, b"a", write_partition=1)
    assert queue.owns("t", 0) == (fault != "loses")
    await queue.release("t", 0)
    assert not queue.owns("t", 0)
    other = await process("other")
    assert await other.wait_released("t", [0], lambda _: True, 0)
    await other.fence("t", 0)
    with pytest.raises(FencedError):
        await publish(queue, b"late")
    assert await payloads(other) == [b"a"]


@pytest.mark.parametrize("fault", ["loses", "drops"])
async def test_a_release_in_doubt_holds_no_successor_up(kafka, process, queue, fault):
    """The next owner fences what may have been released, and the earlier one adds nothing to it."""
    setattr(kafka, fault, 1.0)
    with pytest.raises(QueueError):
        await queue.release("t", 0)
    kafka.mend()
    other = await process("other")
    await other.fence("t", 0)
    with pytest.raises(FencedError):
        await publish(queue, b"late")
    await publish(queue, b"mine", write_partition=1)
    await publish(other, b"theirs")
    assert await payloads(other) == [b"mine", b"theirs"]


async def test_what_was_released_is_not_published_though_the_release_is_not_seen(queue):
    """Once it is committed nobody fences the owner, who need not see it to obey it."""
    queue._client.unfollow(queue._state_topic.place)
    await queue.release("t", 0)
    assert not queue.owns("t", 0)
    with pytest.raises(FencedError):
        await publish(queue, b"late")
    await queue.fence("t", 0)
    await publish(queue, b"a")
    assert await payloads(queue) == [b"a"]


async def test_a_fence_that_failed_half_way_can_be_released(process, queue, monkeypatch):
    """Its claim stands, though nothing is owned; a release takes it back."""
    other = await process("other")

    async def unseen(_topic):
        raise QueueError("not seen")

    monkeypatch.setattr(other._publisher, "_see_topic", unseen)
    await queue.release("t", 0)
    with pytest.raises(QueueError, match="not seen"):
        await other.fence("t", 0)
    assert not other.owns("t", 0)
    assert not await queue.wait_released("t", [0], lambda _: True, 0)
    await other.release("t", 0)
    assert await queue.wait_released("t", [0], lambda _: True, 0)


async def test_a_fence_that_fails_anywhere_changes_no_owner(process, queue, kafka):
    """Whichever of its requests Kafka refuses, what was owned is owned, and nothing more."""
    wanted = range(2, 20)
    other = await process("other")
    request, left, failures = queue._client.request, [], 0

    async def refused_once():
        if left and left.pop() == "refused":
            raise QueueError("refused")
        await request()

    queue._client.request = refused_once
    for number in wanted:
        await other.fence("t", number)
        left[:] = ["refused", *["fine"] * (number - wanted.start)]
        with contextlib.suppress(QueueError):
            await queue.fence("t", 0, number)
            left.clear()
            assert queue.owns("t", number)
            continue
        failures += 1
        assert [queue.owns("t", each) for each in (0, 1, number)] == [True, True, False]
        await publish(queue, b"%d" % number)
        with pytest.raises(FencedError):
            await publish(queue, b"early", write_partition=number)
        await queue.fence("t", 0, number)
        await publish(queue, b"%d" % number, write_partition=number)
    assert 5 < failures < len(wanted)


async def test_a_claim_that_was_not_seen_can_be_released(process, queue, monkeypatch):
    """What was claimed is taken back, also when Kafka did not show the claim."""
    other = await process("other")
    other._client.unfollow(other._state_topic.place)
    see, calls = other._state_topic.see, []

    async def not_again():
        calls.append(1)
        if len(calls) > 1:
            raise QueueError("not seen")
        await see()

    with monkeypatch.context() as patch:
        patch.setattr(other._state_topic, "see", not_again)
        with pytest.raises(QueueError, match="not seen"):
            await other.fence("t", 2)
    assert not await queue.wait_released("t", [2], lambda _: True, 0)
    await other.release("t", 2)
    assert await queue.wait_released("t", [2], lambda _: True, 0)


async def test_who_waits_for_an_owner_knows_of_its_latest_claim(process, queue):
    """A claim that Kafka has not told of yet is waited for as well."""
    other = await process("other")
    other._client.unfollow(other._state_topic.place)
    await queue.fence("t", 2)
    assert not await other.wait_released("t", [2], lambda _: True, 0)


async def test_a_fence_is_nothing_when_it_was_released_meanwhile(queue, monkeypatch):
    """Who releases what it fences at the same time does not own it, whatever it has seen."""
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_topic):
        entered.set()
        await go_on.wait()

    monkeypatch.setattr(queue._publisher, "_see_topic", slow)
    queue._client.unfollow(queue._state_topic.place)
    fencing = asyncio.ensure_future(queue.fence("t", 0))
    await entered.wait()
    await queue.release("t", 0)
    go_on.set()
    with pytest.raises(QueueError, match="or released; try again"):
        await fencing
    with pytest.raises(FencedError):
        await publish(queue, b"late")


async def test_times_are_saved_by_who_knows_what_it_owns(process):
    """An owner that was fenced has learned that before its times are written."""
    owned = []

    def committed(_place, record):
        if record.key == b'["times","b"]' and b"777" in record.value:
            owned.append([queue.owns("t", each) for each in (0, 1)])

    kafka = InMemoryKafka(rng=random.Random(1), on_committed=committed)
    queue, other = (
        KafkaQueue(kafka.client(), cluster_id="c", broker_id=broker_id) for broker_id in "bo"
    )
    for each in (queue, other):
        await each.start()
    await queue.create_topic("t", 1)
    await queue.fence("t", 0, 1)
    queue._client.unfollow(queue._state_topic.place)  # it sees only what it looks for
    await other.fence("t", 0)
    assert queue.owns("t", 0)
    await queue.save_times(SavedTimes(777, 777))
    await queue.save_times(SavedTimes(777, 777))
    assert owned == [[False, True]] * 2
    for each in (queue, other):
        await each.close()


async def test_times_that_say_nothing_new_are_saved_too(process, queue):
    """Who saves the very times that it has saved before learns what it owns all the same."""
    await queue.save_times(SavedTimes(7, 7))
    queue._client.unfollow(queue._state_topic.place)
    await (await process("other")).fence("t", 0)
    assert queue.owns("t", 0)
    await queue.save_times(SavedTimes(7, 7))
    assert [queue.owns("t", each) for each in (0, 1)] == [False, True]


@pytest.mark.parametrize(("cluster_id", "broker_id"), [("c", "x.y"), ("c.d", "x"), ("c.d.", ".x.")])
async def test_brokers_are_known_by_their_ids_whatever_these_are(process, cluster_id, broker_id):
    """Who waits for an owner asks for the very id of it that it was given."""
    owner = await process(broker_id, cluster_id)
    other = await process(f"{broker_id}.z", cluster_id)
    await owner.create_topic("t", 1)
    await owner.fence("t", 0)
    asked = []
    assert await other.wait_released("t", [0], asked.append, 0)
    assert asked == [broker_id]


@pytest.mark.parametrize("published", ["before it", "until the owner is fenced"])
async def test_a_fence_sees_what_lies_behind_an_open_transaction(kafka, process, queue, published):
    """A transaction that somebody has left open holds a fence up, and hides nothing from it."""
    await publish(queue, b"a")
    other = kafka.client()
    left_open = await other.transactions("somebody")
    transactions = []

    async def publish_behind():
        transactions.append(kafka.begin([NewRecord(Place("c.t", 0), b"never")])[0])
        await publish(queue, b"b")

    successor = await process("other")
    if published == "before it":
        await publish_behind()
    else:
        make = successor._client.transactions

        async def make_later(transactional_id):
            if not transactions:
                await publish_behind()
            return await make(transactional_id)

        successor._client.transactions = make_later
    fencing = asyncio.ensure_future(successor.fence("t", 0))
    for _ in range(100):
        await asyncio.sleep(0)
    assert not fencing.done()
    kafka.end(*transactions, committed=False)
    await fencing
    assert await payloads(successor) == [b"a", b"b"]
    left_open.close()


async def test_to_fence_others_holds_no_publication_up(kafka, process, queue):
    """While Kafka is slow to end what another broker has begun, this one goes on with its own."""
    other = await process("other")
    await other.fence("t", 2)
    kafka.marker_s = (60.0, 60.0)
    await publish(other, b"late marker", write_partition=2)
    kafka.marker_s = (0.0, 0.0)
    fencing = asyncio.ensure_future(queue.fence("t", 2))
    await asyncio.sleep(0.01)
    async with asyncio.timeout(20):
        await publish(queue, b"a", partition=1)
    assert not fencing.done()
    await queue.close()
    with pytest.raises(ClosedError):
        await fencing


async def test_what_is_published_is_seen_late(kafka, process, queue, monkeypatch):
    """Kafka marks what is committed some time after it says so; ends that are asked for at another
    broker have it once `see_published` has returned.
    """
    monkeypatch.setattr(queue_module, "SETTLED_S", 0.01)
    other = await process("other")
    await other.fence("t", 2)
    kafka.marker_s = (0.3, 0.3)
    await publish(other, b"late marker", write_partition=2)
    assert await queue.offsets("t", 0) == (0, 0)
    await other.see_published("t")
    assert (await queue.offsets("t", 0))[1] == 1


async def test_what_an_earlier_life_claims_until_it_is_fenced_is_released(kafka, queue):
    """It is fenced first and its claims are read then, or others would wait for us, who live."""
    client = kafka.client()
    again = KafkaQueue(client, cluster_id="c", broker_id="b")
    make = client.transactions

    async def make_later(transactional_id):
        if transactional_id == queue._publisher._id:
            client.unfollow(again._state_topic.place)  # Kafka does not tell of it by itself
            await queue.fence("t", 2)
        return await make(transactional_id)

    client.transactions = make_later
    await again.start()
    assert again._claimed_by("t", 2) == "b"
    await again.release("t", 2)
    assert again._claimed_by("t", 2) == ""
    await again.close()


async def test_what_is_never_seen_is_an_error(kafka, process, queue, monkeypatch):
    """`see_published` does not take for seen what Kafka does not show in time."""
    monkeypatch.setattr(queue_module, "SETTLED_S", 0.01)
    monkeypatch.setattr(queue_module, "SEEN_S", 0.02)
    kafka.marker_s = (60.0, 60.0)
    await publish(queue, b"a")
    with pytest.raises(QueueError, match="a transaction open"):
        await queue.see_published("t")


async def test_fences_at_a_time_share_their_work(kafka, process, queue):
    """Who takes many write partitions over from one broker fences it once."""
    other = await process("other")
    await other.fence("t", *range(2, 9))
    kafka.latency_s = (0.001, 0.002)
    fenced = []
    transactions = queue._client.transactions

    async def counted(transactional_id):
        fenced.append(transactional_id)
        return await transactions(transactional_id)

    queue._client.transactions = counted
    await asyncio.gather(*(queue.fence("t", each) for each in range(2, 9)))
    assert fenced == [other._publisher._id]


async def test_a_truncation_by_another_broker_harms_nobody_who_follows(kafka, process, queue):
    """Who follows slowly finds what is left, and no reader is told that it has missed something."""
    other = await process("other")
    assert await other.offsets("t", 0) == (0, 0)
    waiting = asyncio.ensure_future(other.wait("t", {0: 0}, 30))
    kafka.latency_s = (0.02, 0.03)
    offsets = await publish(queue, *(b"%d" % n for n in range(10)))
    await queue.truncate("t", 0, offsets[7])
    with contextlib.suppress(QueueError):  # it is followed anew, when somebody asks again
        await waiting
    assert await other.offsets("t", 0) == (offsets[7], offsets[-1] + 1)
    assert await payloads(other) == [b"7", b"8", b"9"]


async def test_more_is_read_than_fits_a_page(process, queue):
    """A broker that comes later sees every entry of a partition, and every word of the state."""
    large = [b"%d" % n * 300_000 for n in range(30)]
    await publish(queue, *large)
    for number in range(1_200):
        await queue.commit(f"g{number}", "t", {0: 0})
    other = await process("other")
    assert len(await other.groups("t")) == 1_200
    await other.fence("t", 0)
    found = []
    start, end = await other.offsets("t", 0)
    while start < end:
        page = await other.fetch("t", 0, start, max_entries=7, max_bytes=1 << 21)
        found += [entry.payload for entry in page]
        start = page[-1].offset + 1
    assert found == large


@pytest.mark.parametrize(
    "sizes",
    [
        [MAX_PAYLOAD_BYTES, AT_ONCE_BYTES - MAX_PAYLOAD_BYTES, 1, 1],
        [AT_ONCE_BYTES - MAX_PAYLOAD_BYTES - 1, 1, MAX_PAYLOAD_BYTES, 1],
        [AT_ONCE_BYTES - MAX_PAYLOAD_BYTES, MAX_PAYLOAD_BYTES - 1, 1, 1],
        [1] * AT_ONCE,
        [1] * (AT_ONCE + 1),
        [1] * (2 * AT_ONCE),
    ],
    ids=["full to the byte", "half", "half and full", "one page", "one record more", "two pages"],
)
@pytest.mark.parametrize("cuts", [0.0, 0.3])
async def test_a_page_that_is_full_is_not_the_last(kafka, process, queue, sizes, cuts):
    """Who was told of nothing reads all there is, wherever its pages end."""
    kafka.cuts = cuts
    other = await process("other")
    assert await other.offsets("t", 0) == (0, 0)
    kafka.told_s = None
    for start in range(0, len(sizes), 500):
        await publish(queue, *(b"x" * size for size in sizes[start : start + 500]))
    _, end = await other.offsets("t", 0)
    found = []
    while (at := found[-1].offset + 1 if found else 0) < end:
        found += await other.fetch("t", 0, at, max_entries=1_000, max_bytes=1 << 21)
    assert [len(entry.payload) for entry in found] == sizes


async def test_what_a_look_has_brought_is_there_once_when_it_is_told(queue, kafka, monkeypatch):
    """Who follows may be told late of what was looked at already; a fetch gives it once."""
    monkeypatch.setattr(queue_module, "SETTLED_S", 0.01)
    assert await payloads(queue) == []
    kafka.told_s = None
    await publish(queue, b"a", b"b")
    assert await payloads(queue) == [b"a", b"b"]
    kafka.told_s = (0.0, 0.0)
    await publish(queue, b"c")
    assert await payloads(queue) == [b"a", b"b", b"c"]


async def test_what_brokers_have_said_is_done_once_when_it_is_told_late(queue, kafka, monkeypatch):
    """A topic that was deleted and made again is not forgotten a second time."""
    monkeypatch.setattr(queue_module, "SETTLED_S", 0.01)
    kafka.told_s = None
    await queue.delete_topic("t")
    await queue.create_topic("t", 2)
    await queue.fence("t", 0)
    kafka.told_s = (0.0, 0.0)
    await queue.commit("g", "t", {0: 0})
    assert queue.owns("t", 0)
    await publish(queue, b"a")
    assert await payloads(queue) == [b"a"]


async def test_who_is_told_of_nothing_sees_what_there_is(kafka, process, queue, monkeypatch):
    """Kafka may stop to tell those who follow: whoever asks looks, and whoever waits may ask."""
    monkeypatch.setattr(queue_module, "SETTLED_S", 0.01)
    other = await process("other")
    assert await other.offsets("t", 0) == (0, 0)
    kafka.told_s = None
    (offset,) = await publish(queue, b"a")
    async with asyncio.timeout(20):
        await queue.see_published("t")
        assert await payloads(queue) == [b"a"]
        assert await payloads(other) == [b"a"]
        await queue.commit("g", "t", {0: 1})
        assert await other.committed("g", "t") == {0: 1}
        await other.fence("t", 0)
        await publish(other, b"b")
        with pytest.raises(FencedError):
            await publish(queue, b"late")
        monkeypatch.setattr(queue_module, "START_S", -1.0)
        assert not await queue.wait("t", {0: offset + 1}, 0.01)
        found = await queue.fetch("t", 0, offset + 1, max_entries=9, max_bytes=1 << 20)
        assert [entry.payload for entry in found] == [b"b"]


async def test_what_an_earlier_life_left_open_holds_the_next_one_up_for_nothing(
    kafka, process, queue
):
    """A broker that is started again fences itself first, so nobody waits for its transaction."""
    await publish(queue, b"a")
    mine = queue._publisher._producer
    records = [NewRecord(Place("c.memq-state", 0), b"1", b'["times","x"]')]
    mine.transaction, _ = kafka.begin(records)  # and here it dies
    async with asyncio.timeout(20):
        again = await process("b")
        assert await again.topics() == ["t"]
    await again.fence("t", 0)
    assert await payloads(again) == [b"a"]


async def test_who_takes_over_from_the_dead_does_not_wait_for_what_they_left_open(
    kafka, process, queue
):
    """Whether they have let go is looked up in vain; the fence comes soon, and ends it."""
    successor = await process("other")
    mine = queue._publisher._producer
    records = [NewRecord(Place("c.memq-state", 0), b"1", b'["times","x"]')]
    mine.transaction, _ = kafka.begin(records)  # and here it dies
    async with asyncio.timeout(20):
        assert await successor.wait_released("t", [0], lambda _: False, 60)
        await successor.fence("t", 0)
    await publish(successor, b"a")
    assert await payloads(successor) == [b"a"]


async def test_what_an_earlier_life_has_claimed_is_released_though_it_is_seen_late(
    kafka, process, queue
):
    """A claim that another's open transaction hid at the start holds nobody up once it is seen."""
    state = Place("c.memq-state", 0)
    hides, _ = kafka.begin([NewRecord(state, b"1", b'["times","x"]')])
    claims = queue._state.next_claim("t", 2, "c.again.0123456789abcdef")
    claim, _ = kafka.begin([NewRecord(state, each.value, each.key) for each in claims])
    kafka.end(claim, committed=True)
    await process("again")
    assert queue._claimed_by("t", 2) == ""
    kafka.end(hides, committed=False)
    await queue._state_topic.see()
    async with asyncio.timeout(20):
        assert await queue.wait_released("t", [2], lambda _: True, 60)


async def test_who_is_not_waited_for_is_not_published(queue, kafka):
    """A publication whose caller gave up before it was begun does not take effect."""
    kafka.latency_s = (0.01, 0.02)
    first = asyncio.ensure_future(publish(queue, b"a"))
    second = asyncio.ensure_future(publish(queue, b"b"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    third = asyncio.ensure_future(publish(queue, b"c"))
    await asyncio.sleep(0)
    second.cancel()
    third.cancel()
    await asyncio.gather(first, second, third, return_exceptions=True)
    await publish(queue, b"d")
    assert await payloads(queue) in ([b"a", b"d"], [b"a", b"b", b"d"])  # the first two were one


async def test_a_topic_with_many_group_offsets_is_deleted(process, queue, monkeypatch):
    """All that was said about it is taken back, in as many transactions as that takes."""
    monkeypatch.setattr("memq.core.notification.kafka.queue.ROUND_RECORDS", 7)
    for number in range(20):
        await queue.commit(f"g{number}", "t", {0: 1, 1: 2})
    await queue.delete_topic("t")
    other = await process("other")
    assert await other.topics() == []
    await other.create_topic("t", 1)
    assert await other.groups("t") == []


@pytest.mark.parametrize("error", [UnknownTopicError("gone"), OffsetOutOfRangeError("not yet")])
async def test_what_brokers_say_is_followed_again_after_any_error(queue, monkeypatch, error):
    """A Kafka that has just started may say that it does not know a topic, and know it soon."""
    monkeypatch.setattr(state_topic_module, "FOLLOW_AGAIN", Backoff(0.001, 0.001))
    queue._state_topic.failed(error)
    await queue.commit("g", "t", {0: 1})
    assert await queue.committed("g", "t") == {0: 1}
    assert await queue.topics() == ["t"]


async def test_what_another_broker_truncated_is_not_served_for_long(
    kafka, process, queue, monkeypatch
):
    """The start of a partition is believed for seconds; who searches or fences knows it at once."""
    offsets = await publish(queue, *(b"%d" % n for n in range(9)))
    other = await process("other")
    assert await payloads(other)
    await queue.truncate("t", 0, offsets[5])
    assert await other.offset_since("t", 0, 0) == offsets[5]
    await queue.truncate("t", 0, offsets[6])
    monkeypatch.setattr("memq.core.notification.kafka.queue.START_S", -1.0)
    with pytest.raises(OffsetOutOfRangeError):
        await other.fetch("t", 0, offsets[5], max_entries=9, max_bytes=1 << 20)
    await queue.truncate("t", 0, offsets[7])
    await other.fence("t", 0)
    assert await other.offset_since("t", 0, 0) == offsets[7]


async def test_a_search_finds_the_entry_behind_a_wide_gap(queue, kafka, monkeypatch):
    """A time is found behind the last entry before it, however many offsets were left out there."""
    monkeypatch.setattr("memq.core.notification.kafka.queue.SEARCH_RECORDS", 2)
    early = await queue.publish(
        "t", 0, [Publication(0, b"%d" % n, 10 + n, 10 + n) for n in range(5)]
    )
    for _ in range(60):
        nothing, _ = kafka.begin([NewRecord(Place("c.t", 0), b"never")])
        kafka.end(nothing, committed=False)
    late = await queue.publish("t", 0, [Publication(0, b"x", 90 + n, 90 + n) for n in range(5)])
    assert await queue.offset_at("t", 0, 15) == early[-1] + 1 < late[0]
    assert await queue.offset_since("t", 0, 90) == early[-1] + 1
    assert await queue.offset_since("t", 0, 92) == late[1] + 1
    assert await queue.offset_since("t", 0, 95) == late[4] + 1


async def test_calls_of_a_turn_share_a_transaction(queue):
    """What is asked for while a transaction is under way goes into the next one together."""
    offsets = await asyncio.gather(*(publish(queue, b"x", write_partition=n % 2) for n in range(6)))
    assert [offset for (offset,) in offsets] == list(range(6))


async def test_a_call_that_is_to_blame_fails_alone(queue, kafka):
    """A topic that was deleted in Kafka behind our back costs no other topic anything."""
    await queue.create_topic("u", 1)
    await queue.fence("u", 0)
    kafka.delete("c.u")
    gone, fine = await asyncio.gather(
        queue.publish("u", 0, [Publication(0, b"x", 1)]),
        publish(queue, b"y"),
        return_exceptions=True,
    )
    assert isinstance(gone, UnknownTopicError)
    assert len(fine) == 1
    assert await payloads(queue) == [b"y"]


async def test_calls_that_wait_are_bounded(queue, kafka, monkeypatch):
    """With as many as may wait, one more is refused by an error that may be tried again."""
    monkeypatch.setattr(publisher_module, "MAX_WAITING", 3)
    kafka.latency_s = (0.01, 0.02)
    calls = [asyncio.ensure_future(publish(queue, b"%d" % n)) for n in range(6)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    refused = [each for each in outcomes if isinstance(each, QueueError)]
    assert refused
    assert all("3 calls wait for Kafka already" in str(each) for each in refused)
    assert len(await payloads(queue)) == len(outcomes) - len(refused)


@pytest.mark.parametrize("follows", [True, False])
async def test_what_kafka_has_lost_is_named_at_once(kafka, queue, caplog, follows):
    """Who reads what an election has lost is told which offsets, once; then all goes on."""
    offsets = await publish(queue, *(b"%d" % n for n in range(5)))
    await queue.offsets("t", 0)
    if not follows:
        queue._client.unfollow(Place("c.t", 0))
    waiting = asyncio.ensure_future(queue.wait("t", {0: offsets[-1] + 1}, 60))
    await asyncio.sleep(0)
    kafka.lose(Place("c.t", 0), offsets[3])
    lost = r"lost data of c\.t/0: .*up to offset 6, .*up to 3 only"
    async with asyncio.timeout(20):
        with pytest.raises(DataLossError, match=lost):
            await queue.offsets("t", 0)
        assert await queue.offsets("t", 0) == (0, offsets[3])
        with pytest.raises(MemqError):
            await waiting
    assert len([each for each in caplog.records if each.levelname == "CRITICAL"]) == 1
    assert await payloads(queue) == [b"0", b"1", b"2"]
    with pytest.raises(OffsetOutOfRangeError):
        await queue.fetch("t", 0, offsets[4], max_entries=9, max_bytes=1 << 20)
    await publish(queue, b"next")
    assert await payloads(queue) == [b"0", b"1", b"2", b"next"]


async def test_what_was_written_and_lost_is_not_waited_for(kafka, queue, monkeypatch):
    """Who has written something waits to see it only while Kafka has it."""
    monkeypatch.setattr("memq.core.notification.kafka.queue.SETTLED_S", 0.1)
    await queue.offsets("t", 0)
    queue._client.unfollow(Place("c.t", 0))
    await publish(queue, b"a", b"b")
    kafka.lose(Place("c.t", 0), 0)
    async with asyncio.timeout(20):
        with pytest.raises(DataLossError, match=r"up to offset 2, .*up to 0 only"):
            await queue.fetch("t", 0, 0, max_entries=9, max_bytes=1 << 20)
        assert await payloads(queue) == []


@pytest.mark.parametrize("call", ["fetch", "fence", "truncate", "offset_at"])
async def test_whoever_asks_first_learns_what_is_lost(kafka, process, queue, call):
    """What others have written, and was read here, is missed as well, by whatever is asked."""
    offsets = await publish(queue, *(b"%d" % n for n in range(5)))
    other = await process("other")
    assert len(await payloads(other)) == 5
    await other.fence("t", 7)
    kafka.lose(Place("c.t", 0), offsets[3])
    calls = {
        "fetch": lambda: other.fetch("t", 0, offsets[4], max_entries=9, max_bytes=1 << 20),
        "fence": lambda: other.fence("t", 7, again=True),
        "truncate": lambda: other.truncate("t", 0, offsets[4]),
        "offset_at": lambda: other.offset_at("t", 0, 1),
    }
    async with asyncio.timeout(20):
        with pytest.raises(DataLossError, match=r"lost data of c\.t/0"):
            await calls[call]()
    await other.fence("t", 7)


async def test_an_end_that_moves_while_it_is_asked_for_is_no_loss(queue, kafka, caplog):
    """What is written while Kafka answers is not in the answer, and nothing is lost."""
    kafka.latency_s = (0.0001, 0.003)
    for _ in range(30):
        await asyncio.gather(
            *(publish(queue, b"x", write_partition=n % 2) for n in range(5)),
            *(queue.offsets("t", n % 2) for n in range(5)),
        )
    assert "lost" not in caplog.text


@pytest.mark.parametrize("notice", ["see", "follow", "commit", "publish"])
async def test_a_broker_ends_when_kafka_has_lost_what_brokers_said(kafka, process, notice):
    """Claims may be lost: whoever reads what is left does not know whom to fence."""
    failures = []
    queue = await process("b", on_failure=lambda *failure: failures.append(failure))
    await queue.create_topic("t", 1)
    await queue.fence("t", 0)
    if notice != "follow":
        queue._client.unfollow(queue._state_topic.place)
    if notice == "commit":
        await queue.commit("g", "t", {0: 1})
    end = queue._state_topic.reached.offset
    if notice == "commit":
        await queue.commit("g", "t", {0: 2})
        kafka.lose(queue._state_topic.place, end)
    elif notice == "publish":  # how far time has come is written with it
        await queue.publish("t", 0, [Publication(0, b"x", 1, running_ms=500)])
        kafka.lose(queue._state_topic.place, end)
    else:
        kafka.lose(queue._state_topic.place, end - 2)
    if notice != "follow":
        with pytest.raises(DataLossError, match=r"lost data of c\.memq-state/0"):
            await queue.committed("g", "t")
    async with asyncio.timeout(20):
        while not failures:
            await asyncio.sleep(0.01)
    with pytest.raises(DataLossError):
        await publish(queue, b"late")
    with pytest.raises(DataLossError):
        await queue.fence("t", 0)
    ((_, error),) = failures
    assert isinstance(error, DataLossError)


async def test_a_bug_is_told_and_costs_no_silence(process, monkeypatch):
    """An error that nothing expected fails the calls that wait, and those that come; it is told."""
    failures = []
    queue = await process("b", on_failure=lambda *failure: failures.append(failure))
    await queue.create_topic("t", 1)
    await queue.fence("t", 0)

    async def broken(*_):
        raise RuntimeError("a bug")

    monkeypatch.setattr(queue._publisher, "_commit_owned", broken)
    for _ in range(2):
        with pytest.raises(QueueFailedError, match="a bug"):
            await publish(queue, b"x")
    assert [(where, str(error)) for where, error in failures] == [
        ("what publishes to Kafka", "a bug")
    ]


async def test_a_state_topic_of_somebody_else_is_refused(kafka):
    """A topic with several partitions cannot be the one in which brokers talk."""
    kafka.create("c.memq-state", 2)
    queue = KafkaQueue(kafka.client(), cluster_id="c", broker_id="b")
    with pytest.raises(ConfigError, match=r"c\.memq-state.*2 partitions"):
        await queue.start()
    await queue.close()


async def test_clusters_do_not_see_each_other(process, queue):
    """Topics of another cluster in the same Kafka are not listed, though its name begins alike."""
    other = await process("b", "c.t")
    await other.create_topic("u", 1)
    assert await queue.topics() == ["t"]
    assert await other.topics() == ["u"]


async def test_partitions_nobody_asks_about_are_followed_no_more(queue, monkeypatch):
    """What is not owned here and was not asked about for long is let go, and found again."""
    await queue.create_topic("u", 1)
    assert await queue.offsets("u", 0) == (0, 0)
    assert "3 followed" in repr(queue)
    monkeypatch.setattr("memq.core.notification.kafka.queue.IDLE_S", -1.0)
    await queue.create_topic("v", 1)
    await queue.offsets("v", 0)
    assert "2 followed" in repr(queue)
    assert await queue.offsets("u", 0) == (0, 0)


def test_state_survives_compaction():
    """Of what brokers said only the last record of each key need be left."""
    said = [topic_record("t", 3)]
    whole = KafkaState()
    whole.read(record(0, said[0]))

    def say(records):
        for each in records:
            whole.read(record(len(said), each))
            said.append(each)

    for owner in ("a", "b", "a", "c"):
        say(list(whole.next_claim("t", 0, owner)))
    say(offset_records("t", "g", {0: 1, 1: 2}))
    say(offset_records("t", "g", {0: 7}))
    say(offset_records("t", "gone", {0: 7}))
    say(offset_records("t", "gone", {0: None}))
    say([held_record("t", "g", {"m": Holding(1, [0])}), held_record("t", "g", {})])
    last = {each.key: number for number, each in enumerate(said)}
    compacted = KafkaState()
    for number, each in enumerate(said):
        if last[each.key] == number and each.value is not None:
            compacted.read(record(number, each))
    assert compacted.claim("t", 0) == whole.claim("t", 0) == (4, "c")
    assert compacted.offsets("t", "g") == whole.offsets("t", "g") == {0: 7, 1: 2}
    assert compacted.groups("t") == whole.groups("t") == ["g"]
    assert compacted.holders("t") == whole.holders("t") == []


def test_of_two_claims_of_a_number_the_first_counts():
    """Whoever reads, and however late a claim was written, agrees on one owner."""
    state = KafkaState()
    by_a, by_b = list(state.next_claim("t", 0, "a")), list(state.next_claim("t", 0, "b"))
    for number, each in enumerate((*by_a, *by_b)):
        state.read(record(number, each))
    assert state.claim("t", 0) == (1, "a")
    for each in state.next_claim("t", 0, "c"):
        state.read(record(9, each))
    late = by_b[0]
    state.read(record(10, late))
    assert state.claim("t", 0) == (2, "c")


def test_a_record_of_somebody_else_changes_nothing(caplog):
    """What is not ours is told, and the rest is read."""
    state = KafkaState()
    for key in (b"", b"nonsense", b'["news"]', b'["topic"]', b"{}"):
        state.read(Record(5, 1, b"3", key))
    state.read(record(6, topic_record("t", 3)))
    assert state.topics == {"t": 3}
    assert caplog.text.count("offset 5 of the state topic") == 5


def record(offset, said):
    """A record as it is read."""
    return Record(offset, 1, said.value, said.key)
