"""The queue in Kafka: what it promises where Kafka fails and tells late; on a model of Kafka."""

import asyncio
import contextlib
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.core.clock import SavedTimes
from memq.core.queue import Holding, Publication, QueueEntry, within_bytes
from memq.errors import (
    ClosedError,
    ConfigError,
    DataLossError,
    FencedError,
    MemqError,
    OffsetOutOfRangeError,
    PublishUncertainError,
    QueueError,
    UnknownTopicError,
)
from memq.queue.kafka import followed as followed_module
from memq.queue.kafka import publisher as publisher_module
from memq.queue.kafka import queue as queue_module
from memq.queue.kafka import state as state_module
from memq.queue.kafka.client import Bounds, KafkaRecord, NewRecord, Place
from memq.queue.kafka.followed import PartitionTail
from memq.queue.kafka.queue import KafkaQueue
from memq.queue.kafka.state import KafkaState, held_record, offset_records, topic_record
from memq.runtime.retry import Backoff
from tests.unit.queue.conftest import payloads, publish

STATE = Place("c.memq-state", 0)


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


@pytest.mark.parametrize("committed", [True, False])
async def test_what_kafka_hides_after_its_commit_is_not_acked(queue, kafka, committed):
    """It ends when all can read it, or in doubt when Kafka drops it; then it can be repeated."""
    kafka.hangs = 1.0
    publishing = asyncio.ensure_future(publish(queue, b"a"))
    while not (hung := queue._publisher._producer.transaction) or not hung.hangs:
        await asyncio.sleep(0)
    assert not publishing.done()
    kafka.mend()
    kafka.end(hung, committed=committed)
    if not committed:
        with pytest.raises(PublishUncertainError, match="dropped"):
            await publishing
        with pytest.raises(FencedError):
            await publish(queue, b"b")
        await queue.fence("t", 0, again=True)
        publishing = asyncio.ensure_future(publish(queue, b"a"))
    await publishing
    assert await payloads(queue) == [b"a"]


async def test_what_was_truncated_was_seen(queue):
    """An entry that retention has removed before it is looked for is not published again."""
    publications = [Publication(0, each, 1) for each in (b"a", b"b")]
    offsets = await queue.publish("t", 0, publications)
    for end in (offsets[1], offsets[1] + 1):
        await queue.truncate("t", 0, end)
        await queue._see_entries("t", publications, offsets)


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


async def test_a_fence_that_fails_anywhere_changes_no_owner(process, queue, kafka):
    """Whichever of its requests Kafka refuses, what was owned is owned, and nothing more."""
    wanted = range(2, 20)
    other = await process("other")
    client = queue._client._client
    request, left, failures = client.request, [], 0

    async def refused_once():
        if left and left.pop() == "refused":
            raise QueueError("refused")
        await request()

    client.request = refused_once
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


async def test_a_fence_sees_what_lies_behind_an_open_transaction(kafka, process, queue):
    """A transaction that somebody has left open holds a fence up, and hides nothing from it."""
    await publish(queue, b"a")
    other = kafka.client()
    left_open = await other.transactions("somebody")
    opened, _ = kafka.begin([NewRecord(Place("c.t", 0), b"never")])
    behind = asyncio.ensure_future(publish(queue, b"b"))
    successor = await process("other")
    fencing = asyncio.ensure_future(successor.fence("t", 0))
    for _ in range(100):
        await asyncio.sleep(0)
    assert not fencing.done()
    kafka.end(opened, committed=False)
    await fencing
    assert await payloads(successor) == [b"a", b"b"]
    assert len(await behind) == 1
    left_open.close()


async def test_what_is_published_is_seen_by_all(kafka, process, queue, monkeypatch):
    """Kafka marks what is committed some time after it says so; the publication waits for that."""
    monkeypatch.setattr(queue_module, "SETTLED_S", 0.01)
    other = await process("other")
    await other.fence("t", 2)
    kafka.marker_s = (0.3, 0.3)
    publishing = asyncio.ensure_future(publish(other, b"late marker", write_partition=2))
    while not kafka.partition(Place("c.t", 0)).end:
        await asyncio.sleep(0)
    assert await queue.offsets("t", 0) == (0, 0)
    await publishing
    assert (await queue.offsets("t", 0))[1] == 1


async def test_who_is_told_of_nothing_sees_what_there_is(kafka, process, queue, monkeypatch):
    """Kafka may stop to tell those who follow: whoever asks looks, and whoever waits may ask."""
    monkeypatch.setattr(queue_module, "SETTLED_S", 0.01)
    other = await process("other")
    assert await other.offsets("t", 0) == (0, 0)
    kafka.told_s = None
    (offset,) = await publish(queue, b"a")
    async with asyncio.timeout(20):
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


@pytest.mark.parametrize("who", ["the next life", "another"])
async def test_what_the_dead_left_open_holds_nobody_up(kafka, process, queue, who):
    """A next life fences itself first; who takes over looks up in vain whether they have let go."""
    await publish(queue, b"a")
    successor = await process("other")
    mine = queue._publisher._producer
    mine.transaction, _ = kafka.begin([NewRecord(STATE, b"1", b'["times","x"]')])  # and it dies
    async with asyncio.timeout(20):
        if who == "the next life":
            successor = await process("b")
        else:
            assert await successor.wait_released("t", [0], lambda _: False, 60)
        await successor.fence("t", 0)
    assert await payloads(successor) == [b"a"]


async def test_what_an_earlier_life_has_claimed_is_known_at_the_start(kafka, process, queue):
    """Though another's open transaction hides it for a while: its owner can let go of it."""
    hides, _ = kafka.begin([NewRecord(STATE, b"1", b'["times","x"]')])
    claims = queue._state.next_claim("t", 2, "c.again.0123456789abcdef")
    claim, _ = kafka.begin([NewRecord(STATE, each.value, each.key) for each in claims])
    kafka.end(claim, committed=True)
    starting = asyncio.ensure_future(process("again"))
    for _ in range(100):
        await asyncio.sleep(0)
    assert not starting.done()
    kafka.end(hides, committed=False)
    async with asyncio.timeout(20):
        await (await starting).release("t", 2)
        assert await queue.wait_released("t", [2], lambda _: True, 60)


async def test_a_search_finds_the_entry_behind_a_wide_gap(queue, kafka, monkeypatch):
    """A time is found behind the last entry before it, however many offsets were left out there."""
    monkeypatch.setattr("memq.queue.kafka.queue.SEARCH_RECORDS", 2)
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


def test_a_start_that_the_end_of_the_loop_cuts_short_is_no_error(kafka, caplog):
    """A broker that is stopped while Kafka does not answer ends without a traceback in its log."""

    async def leave():
        queue = KafkaQueue(kafka.client(), cluster_id="c", broker_id="b")
        await queue.start()
        await queue.create_topic("t", 1)
        kafka.away = "silent"
        fencing = asyncio.ensure_future(queue.fence("t", 0))
        while not queue._publisher._turns:
            await asyncio.sleep(0)
        return fencing

    assert asyncio.run(leave()).cancelled()
    assert caplog.text == ""


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


@pytest.mark.parametrize("follows", [True, False])
async def test_a_broker_ends_when_kafka_has_lost_what_brokers_said(kafka, process, follows):
    """Claims may be lost: whoever reads what is left does not know whom to fence."""
    failures = []
    queue = await process("b", on_failure=lambda *failure: failures.append(failure))
    await queue.create_topic("t", 1)
    await queue.fence("t", 0)
    await queue.commit("g", "t", {0: 1})
    if not follows:
        kafka.told_s = None
    end = queue._state_topic.reached
    await queue.commit("g", "t", {0: 2})
    assert follows or queue._state_topic.reached == end, "it is written, and not read here"
    kafka.lose(STATE, end - 2 if follows else end)
    if not follows:
        with pytest.raises(DataLossError, match=r"lost data of c\.memq-state/0"):
            await queue.committed("g", "t")
    async with asyncio.timeout(20):
        while not failures:
            await asyncio.sleep(0.01)
    for call in (publish(queue, b"late"), queue.fence("t", 0)):
        with pytest.raises(DataLossError):
            await call
    ((_, error),) = failures
    assert isinstance(error, DataLossError)


async def test_a_state_topic_of_somebody_else_is_refused(kafka):
    """A topic with several partitions cannot be the one in which brokers talk."""
    kafka.create("c.memq-state", 2)
    queue = KafkaQueue(kafka.client(), cluster_id="c", broker_id="b")
    with pytest.raises(ConfigError, match=r"c\.memq-state.*2 partitions"):
        await queue.start()
    await queue.close()


@pytest.fixture
def _impatient(monkeypatch):
    """Who waits for what is not seen does so for a moment."""
    monkeypatch.setattr(queue_module, "SETTLED_S", 0.01)
    monkeypatch.setattr(queue_module, "SEEN_S", 0.02)


async def fetch(queue, offset=0, partition=0):
    """Entries from an offset on."""
    return await queue.fetch("t", partition, offset, max_entries=99, max_bytes=1 << 20)


# -- fetch, wait, offsets ---------------------------------------------------------------------


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


# -- what brokers say --------------------------------------------------------------------------


async def test_what_brokers_say_is_followed_again_from_where_it_was_read(queue, monkeypatch):
    """Kafka may only have to come to itself; one that is over follows no more."""
    topic, followed = queue._state_topic, []
    monkeypatch.setattr(state_module, "FOLLOW_AGAIN", Backoff(0.0, 0.0))
    monkeypatch.setattr(queue._client, "follow", lambda *given: followed.append(given))
    for error in (QueueError("away"), UnknownTopicError("gone")):
        topic.failed(error)
    while len(followed) < 2:
        await asyncio.sleep(0)
    assert followed == [(STATE, topic.reached, topic)] * 2
    topic.failed(QueueError("away"))
    topic.failed(ClosedError("closed"))
    await asyncio.sleep(0.01)
    assert len(followed) == 2


def test_of_two_claims_at_a_time_the_first_in_the_log_counts():
    """Both have the same number; all who read the log find the same owner."""
    state = KafkaState()
    claims = [next(state.next_claim("t", 0, owner)) for owner in "ab"]
    for number, each in enumerate(claims):
        state.read(KafkaRecord(number, 1, each.value, each.key))
    assert state.claim("t", 0) == (1, "a")


def test_what_is_forgotten_of_a_topic_is_all_of_it_and_nothing_else():
    """As its records say it, to who has read all and to who reads them after compaction."""
    said, whole, untold, compacted = [], KafkaState(), KafkaState(), KafkaState()

    def say(records, *states):
        for each in list(records):
            said.append(each)
            for state in states:
                state.read(KafkaRecord(len(said), 1, each.value, each.key))

    for topic, states in (("t", [whole]), ("u", [whole, untold])):
        say([topic_record(topic, 2)], *states)
        for write_partition, owner in product((0, 1), "ab"):
            say(whole.next_claim(topic, write_partition, owner), *states)
        say(offset_records(topic, "g", {0: 1, 1: 2}), *states)
        say([held_record(topic, "g", {"m": Holding(1, [0])})], *states)
    say(whole.forget("t"), whole)
    assert vars(whole) == vars(untold)
    assert whole.claim("u", 1).owner == "b"
    last = {each.key: number for number, each in enumerate(said)}
    for number, each in enumerate(said):
        if last[each.key] == number and each.value is not None:
            compacted.read(KafkaRecord(number, 1, each.value, each.key))
    assert vars(compacted) == vars(untold)


# -- how far was read --------------------------------------------------------------------------


def entry(offset, size):
    """An entry of so many bytes."""
    return QueueEntry(offset, offset, b"x" * size, offset)


def told(entries):
    """Entries as the client tells of them."""
    return [KafkaRecord(e.offset, e.offset, e.payload, None, e.offset) for e in entries]


def size_of(entries):
    """How many bytes they take."""
    return sum(len(each.payload) for each in entries)


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
        patch.setattr(followed_module, "KEPT_BYTES", 20)
        there = [entry(start + 2 + 2 * n, size) for n, size in enumerate(sizes)]
        at = there[-1].offset + 2 if there else start + 1
        woken = []
        bounds = Bounds(start, at, at)
        tail = PartitionTail(None, STATE, bounds, there, lambda: woken.append(1))
        for what, given_, more in steps:
            count, before = len(woken), tail.end
            if what == "read":
                new = [entry(at + 2 * n, size) for n, size in enumerate(given_)]
                at = (new[-1].offset + 1 if new else at) + more
                there += new
                tail.read(told(new), at)
            elif what == "again":  # what was read already, and that there is a marker
                tail.read(told(there[-given_:] if given_ else []), at)
            else:
                start = max(start, min(at, start + given_))
                tail.forget_before(min(at, start + given_) if given_ < 0 else start)
            assert (len(woken) > count) is (what != "forget" and tail.end > before)
            last = there[-1].offset + 1 if there else 0
            assert (tail.start, tail.end) == (start, max(start, last))
            assert tail.reached == at
            assert tail._size_bytes == size_of(tail._entries) <= 20
            for offset in range(start, tail.end + 1):
                rest = [each for each in there if each.offset >= offset]
                if tail.fetch(offset, 99, 1 << 20) is None:  # it stood before, or is too much
                    assert size_of(rest) > 20 or offset < tail._kept_from
                else:
                    for limits in ((99, 1 << 20), (2, 1 << 20), (99, 15)):
                        expected = within_bytes(rest[: limits[0]], limits[1])
                        assert tail.fetch(offset, *limits) == expected
