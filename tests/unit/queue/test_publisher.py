"""What a broker writes to Kafka, where calls, faults and other brokers cross; on a model of it."""

import asyncio
import gc

import pytest

from memq.core.clock import SavedTimes
from memq.errors import (
    ClosedError,
    FencedError,
    PublishUncertainError,
    QueueError,
    QueueFailedError,
    UnknownTopicError,
)
from memq.queue.kafka import publisher as publisher_module
from memq.queue.kafka.client import Place
from tests.fakes.kafka import InMemoryTransactions
from tests.unit.queue.conftest import payloads, publish

STATE = Place("c.memq-state", 0)


async def is_refused(queue, write_partition):
    """Whether nothing may be published for it."""
    try:
        await publish(queue, b"mine", write_partition=write_partition)
    except FencedError:
        return True
    return False


async def lose_the_producer(queue, kafka, fault="loses"):
    """Let a commit's outcome be unknown, which stops no publication but costs the producer."""
    setattr(kafka, fault, 1.0)
    with pytest.raises(PublishUncertainError):
        await queue.commit("g", "t", {0: 1})
    kafka.mend()
    assert queue._publisher._producer is None


# -- transactions ----------------------------------------------------------------------------


async def test_calls_gather_while_a_transaction_is_under_way(queue):
    """Each transaction carries all that was published during the one before it."""
    commit, sizes, waited = queue._publisher._producer.commit, [], []
    left = [5] * 10

    async def watched(records):
        sizes.append(len([each for each in records if each.place != STATE]))
        while len(queue._publisher._waiting) < sum(map(bool, left)) - sizes[-1]:
            await asyncio.sleep(0)  # until all the others wait
        waited.append(len(queue._publisher._waiting))
        return await commit(records)

    queue._publisher._producer.commit = watched

    async def write(number):
        while left[number]:
            await publish(queue, b"%d" % number)
            left[number] -= 1

    await asyncio.gather(*map(write, range(10)))
    assert sum(sizes) == 50
    assert all(size >= before for size, before in zip(sizes[1:], waited, strict=False))
    assert max(sizes) == 10


@pytest.mark.parametrize("error", [UnknownTopicError("gone"), QueueFailedError("refused")])
async def test_one_call_that_kafka_refuses_for_good_fails_alone(queue, error):
    """Each of the others is written by itself, and what is in doubt of one is so of it alone."""
    await queue.create_topic("u", 1)
    await queue.fence("u", 0)
    commit = queue._publisher._producer.commit

    async def refused(records):
        if any(each.place.topic == "c.u" for each in records):
            raise error
        if any(each.value == b"doubt" for each in records) and len(records) < 3:
            raise PublishUncertainError("doubt")
        return await commit(records)

    queue._publisher._producer.commit = refused
    outcomes = await asyncio.gather(
        publish(queue, b"a"),
        publish(queue, b"x", topic="u"),
        publish(queue, b"doubt", write_partition=1),
        publish(queue, b"b"),
        return_exceptions=True,
    )
    assert [type(each) for each in outcomes] == [list, type(error), PublishUncertainError, list]
    assert await payloads(queue) == [b"a", b"b"]
    assert [await is_refused(queue, each) for each in (0, 1)] == [False, True]


async def test_who_waits_when_the_queue_is_closed_is_told(queue, kafka, unheard):
    """What is under way, what waits, and turns; nothing goes on after that."""
    kafka.latency_s = (60.0, 60.0)
    calls = [publish(queue, b"a"), queue.save_times(SavedTimes(1, 1)), queue.release("t", 1)]
    waiting = [*map(asyncio.ensure_future, calls)]
    for _ in range(10):
        await asyncio.sleep(0)
    producer = queue._publisher._producer
    await queue.close()
    async with asyncio.timeout(20):
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(each) for each in outcomes] == [ClosedError] * 3
    assert producer.over
    assert not queue._publisher._turns
    kafka.latency_s = (0.0, 0.0)
    gc.collect()
    assert not unheard


async def test_a_bug_ends_all_that_waits_behind_it(process, monkeypatch, kafka):
    """Calls and turns are told alike, and none is left waiting."""
    failures = []
    queue = await process("b", on_failure=lambda *failure: failures.append(failure))
    await queue.create_topic("t", 1)
    await queue.fence("t", 0)

    async def broken(*_):
        raise RuntimeError("a bug")

    monkeypatch.setattr(queue._publisher, "_commit_owned", broken)
    calls = [publish(queue, b"a"), queue.release("t", 0), publish(queue, b"b"), queue.fence("t", 1)]
    async with asyncio.timeout(20):
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(each) for each in outcomes] == [QueueFailedError] * 4
    with pytest.raises(QueueFailedError):
        await queue.release("t", 0)
    assert len(failures) == 1


# -- producers that are given up -------------------------------------------------------------


async def test_who_asks_for_groups_decides_first_what_became_of_a_commit(queue, kafka):
    """A transaction that was left open hides nothing from it, and Kafka need not end it."""
    await lose_the_producer(queue, kafka, "drops")
    async with asyncio.timeout(5):
        assert await queue.committed("g", "t") == {}
    await lose_the_producer(queue, kafka, "drops")
    async with asyncio.timeout(5):
        assert await queue.times() == SavedTimes(0, 0)
    assert not queue._publisher._loose


async def test_another_producer_claims_nothing_that_others_have_taken_over(process, queue, kafka):
    """Whoever has it fenced our earlier id, and keeps it; the rest is ours by the next id."""
    other = await process("other")
    await lose_the_producer(queue, kafka)
    await other.fence("t", 0)
    assert [queue.owns("t", each) for each in (0, 1)] == [False, True], "as it was told"
    await publish(queue, b"ours", write_partition=1)
    assert await is_refused(queue, 0)
    await publish(other, b"theirs")
    assert [queue.owns("t", each) for each in (0, 1)] == [False, True]
    assert other.owns("t", 0)
    assert await payloads(other) == [b"ours", b"theirs"]


@pytest.mark.parametrize("fault", ["loses", "drops"])
async def test_a_claim_in_doubt_is_made_by_another_producer(queue, kafka, fault):
    """The fence goes on: whatever became of the first claim, the second one is known."""
    transactions = queue._client.transactions
    setattr(kafka, fault, 1.0)

    async def mended(transactional_id):
        kafka.mend()
        return await transactions(transactional_id)

    queue._client.transactions = mended
    await queue.fence("t", 5)
    assert queue.owns("t", 5)
    await publish(queue, b"a", write_partition=5)
    assert await payloads(queue) == [b"a"]


@pytest.mark.parametrize("call", ["publish", "release", "fence"])
@pytest.mark.parametrize("times", [1, 99])
async def test_a_producer_that_is_taken_over_is_followed_by_another(queue, kafka, call, times):
    """So often as may be; then it is an error that says so, and nothing was written."""
    transactions, left = queue._client.transactions, [None] * times

    def take_over(producer):
        commit = producer.commit

        async def late(records):
            if left:
                left.pop()
                kafka.become(producer._id, InMemoryTransactions(kafka, None, producer._id))
            return await commit(records)

        producer.commit = late
        return producer

    async def watched(transactional_id):
        return take_over(await transactions(transactional_id))

    take_over(queue._publisher._producer)
    queue._client.transactions = watched
    calls = {
        "publish": lambda: publish(queue, b"a"),
        "release": lambda: queue.release("t", 0),
        "fence": lambda: queue.fence("t", 5),
    }
    if times == 1:
        await calls[call]()
        assert [queue.owns("t", each) for each in (0, 5)] == [call != "release", call == "fence"]
        return
    with pytest.raises(QueueError) as caught:
        await calls[call]()
    assert type(caught.value) is QueueError
    assert caught.value.retriable
    left.clear()
    assert await payloads(queue) == []


# -- fences ----------------------------------------------------------------------------------


@pytest.mark.parametrize("taken", [0, 1])
async def test_who_fences_again_has_lost_what_another_has_fenced(process, queue, taken):
    """It is told so, fences nobody, and keeps the other ones; what it released it does not own."""
    other = await process("other")
    await other.fence("t", taken)
    with pytest.raises(FencedError, match=r"taken over by 'c\.other"):
        await queue.fence("t", 0, 1, again=True)
    await publish(other, b"theirs", write_partition=taken)
    assert await is_refused(queue, taken)
    await publish(queue, b"ours", write_partition=1 - taken)
    await queue.release("t", 1 - taken)
    with pytest.raises(FencedError, match="not owned here"):
        await queue.fence("t", 1 - taken, again=True)
    assert await payloads(other) == [b"theirs", b"ours"]


async def test_claims_that_others_make_meanwhile_are_fenced_too(process, queue, monkeypatch):
    """A fence begins anew with whoever was quicker, so often as may be, and then gives up."""
    others = [await process(f"o{number}") for number in range(publisher_module.ATTEMPTS)]
    fence_others, quicker = queue._publisher._fence_others, []

    async def slow(wanted):
        await fence_others(wanted)
        if quicker:
            await quicker.pop().fence("t", 5)

    monkeypatch.setattr(queue._publisher, "_fence_others", slow)
    quicker[:] = others[1:]
    await queue.fence("t", 5)
    assert queue.owns("t", 5)
    assert not quicker
    for other in others[1:]:
        with pytest.raises(FencedError):
            await publish(other, b"late", write_partition=5)
    await queue.release("t", 5)
    quicker[:] = others
    with pytest.raises(QueueError, match=r"others claim .* as well, again and again"):
        await queue.fence("t", 5)
    await publish(others[0], b"theirs", write_partition=5)
    assert not queue.owns("t", 5)


# -- earlier lives ---------------------------------------------------------------------------


async def test_an_earlier_life_is_one_of_this_very_broker(kafka, process, queue):
    """Another one whose name begins alike, or goes on, is left alone."""
    others = [await process(name) for name in ("b.c", "b2", "a.b")]
    for number, each in enumerate(others):
        await each.fence("t", 10 + number)
    lives = [each._publisher._producer for each in (*others, queue)]
    await process("b")
    assert [kafka.is_current(each._id, each) for each in lives] == [True, True, True, False]


async def test_what_an_earlier_life_had_is_released_and_not_owned(process, queue):
    """It is known as claimed, so that it can be let go; to publish for it takes a fence."""
    again = await process("b")
    other = await process("other")
    assert not again.owns("t", 0)
    with pytest.raises(FencedError):
        await publish(again, b"early")
    await again.fence("t", 1, again=True)
    await publish(again, b"a", write_partition=1)
    await again.release("t", 0, 1)
    assert await other.wait_released("t", [0, 1], lambda _: True, 0)
    await again.fence("t", 0)
    assert again.owns("t", 0)
