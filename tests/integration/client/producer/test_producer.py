"""AsyncProducer over real sockets: news, errors, its end, and brokers that misbehave."""

import asyncio
import dataclasses
from itertools import pairwise
from types import SimpleNamespace

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memq.client.audit.reporter import CLOSE_TIMEOUT_S
from memq.client.cluster import Cluster
from memq.client.producer import producer as producer_module
from memq.client.producer.producer import AsyncProducer
from memq.core.format.schema import schema_id, serialize_schema
from memq.core.wire.messages import (
    BrokerStatus,
    DescribeCluster,
    DescribeClusterAnswer,
    ServiceState,
    Write,
)
from memq.errors import (
    BufferFullError,
    ClosedError,
    ConfigError,
    CorruptDataError,
    DeliveryTimeoutError,
    InvalidRequestError,
    MemqError,
    NotHostedError,
    ProducerFencedError,
    RequestTimeoutError,
    StorageError,
    TopicRecreatedError,
    UnauthorizedError,
    UnavailableError,
    UnknownTopicError,
)
from memq.runtime.system import SYSTEM
from tests.fakes.tiny_broker import TinyBroker
from tests.integration.broker.support import until


@pytest.fixture
async def broker():
    async with TinyBroker().serve() as tiny:
        yield tiny


def producer(broker, topic="events", **options):
    return AsyncProducer(broker.address, topic=topic, **options)


def values(broker):
    """Values of all records, in the order in which the broker took them."""
    return [row["value"] for batch in broker.tables() for row in batch.to_pylist()]


async def test_write_returns_the_delivery_of_the_message(broker):
    """Records written together share a Message and its delivery, which tells what became of it."""
    broker.faults.append(CorruptDataError("no"))
    async with producer(broker, linger="50ms") as p:
        with pytest.raises(CorruptDataError):
            await (await p.write(b"refused"))
        first = await p.write(b"a", b"k", {"h": b"1"}, 5)
        second = await p.write(b"b")
        assert first is second
        stored = await first
        assert (stored.topic, stored.partition, stored.offset) == ("events", 0, 0)
        assert (stored.batch_id, stored.sequence, stored.duplicate) == ("batch-0", 1, False)
        stats = p.stats
        assert (stats.acked_messages, stats.acked_records, stats.failed_records) == (1, 2, 1)
        assert (stats.in_flight, stats.unsettled, stats.buffer_bytes) == (0, 0, 0)
    (batch,) = broker.tables()
    row = batch.to_pylist()[0]
    assert (row["key"], row["value"], row["headers"]) == (b"k", b"a", [("h", b"1")])
    (entry,) = broker.published.values()
    assert (entry.request.records, entry.request.acks) == (2, -1)
    assert entry.request.min_timestamp_us == 5


async def test_a_message_that_interrupts_have_kept_back_is_sent(broker):
    """Where the loop was never told of a sealed Message, it finds it when it looks at the time."""
    p = producer(broker, linger="20ms")
    p._hand_over = lambda callback: (
        callback == p._submit or asyncio.get_running_loop().call_soon(callback)
    )
    async with p:
        async with asyncio.timeout(60):
            await (await p.write(b"a"))
    assert values(broker) == [b"a"]


@pytest.mark.parametrize("acks", [1, 0])
async def test_lower_acks_tell_no_place(broker, acks):
    """With acks 1 and 0 the delivery ends sooner, and does not say where."""
    async with producer(broker, acks=acks) as p:
        stored = await (await p.write(b"a"))
        assert (stored.offset, stored.batch_id, stored.sequence) == (-1, "", 0)
        await p.flush()
    if acks:
        assert values(broker) == [b"a"]


FAULTS = st.lists(
    st.sampled_from(
        [
            None,
            None,
            "drop",
            "drop after",
            UnavailableError("draining"),
            StorageError("slow down"),
            NotHostedError("not here"),
        ]
    ),
    max_size=12,
)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(faults=FAULTS, ordering=st.sampled_from(["none", "producer"]))
def test_faults_neither_lose_nor_double(faults, ordering):
    """Whatever fails on the way: each Message is published once, and in order where promised."""

    async def run():
        async with TinyBroker(ordering=ordering, write_partitions=2).serve() as broker:
            broker.faults.extend(faults)
            async with producer(broker, message_bytes="1KiB", linger="1ms") as p:
                deliveries = [await p.write(b"%03d" % n + b"x" * 97) for n in range(20)]
                await p.flush(30)
                assert all(delivery.exception() is None for delivery in deliveries)
            found = [value[:3] for value in values(broker)]
            assert sorted(found) == [b"%03d" % number for number in range(20)]
            if ordering == "producer":
                assert found == sorted(found)

    asyncio.run(run())


async def test_deadline_ends_every_delivery(broker):
    """A Message that cannot be delivered fails in time, and flush raises what nobody has seen."""
    async with producer(broker, delivery_timeout="200ms") as p:
        await broker.stop()
        delivery = await p.write(b"a")
        with pytest.raises(DeliveryTimeoutError, match=r"within 0\.2 s; last error"):
            await p.flush()
        assert isinstance(delivery.exception(), DeliveryTimeoutError)
        seen = await p.write(b"b")
        with pytest.raises(DeliveryTimeoutError):
            await seen
        await p.flush()


@pytest.mark.parametrize("error", [CorruptDataError, KeyError])
async def test_unseen_failure_is_raised_by_close(broker, error):
    """A failed Message does not go unnoticed; the caller's own error has it as a note."""
    broker.faults.append(CorruptDataError("bits fell over"))
    with pytest.raises(error) as caught:
        async with producer(broker) as p:
            await p.write(b"a")
            if error is KeyError:
                raise KeyError
    assert ("bits fell over" if error is KeyError else "1 Message f") in caught.value.__notes__[0]


async def test_memory_is_bounded_and_full_is_an_error(broker):
    """At buffer_bytes a write waits for max_block, then fails; nothing is lost by that."""
    broker.hold = True
    options = {"message_bytes": "2KiB", "buffer_bytes": "8KiB", "max_block": "50ms"}
    async with producer(broker, **options) as p:
        deliveries = []

        async def fill():
            while True:
                deliveries.append(await p.write(b"x" * 100))
                assert p.stats.buffer_bytes <= 8_192

        with pytest.raises(BufferFullError, match="8192"):
            await fill()
        with pytest.raises(BufferFullError):
            await p.write_table(pa.table({"value": [b"x"]}))
        assert "0 waiting" in repr(p)
        broker.release()
        await p.flush()
        await p.write(b"again")
        assert p.stats.buffer_bytes <= 8_192
    assert len(values(broker)) == len(deliveries) + 1


async def test_awaiting_a_delivery_without_linger_seals_it(broker):
    """With a stable id nothing but size ends a Message, so waiting for it must."""
    async with producer(broker, producer_id="job") as p:
        await asyncio.wait_for(await p.write(b"a"), 20)


OLD = pa.schema([("id", pa.int64())])
NEW = pa.schema([("id", pa.int64()), ("name", pa.utf8())])


def grow(broker):
    """Give the typed topic another column; return the id of its schema."""
    config, _ = broker.topics["typed"]
    broker.topics["typed"] = (config, serialize_schema(NEW))
    return schema_id(serialize_schema(NEW))


# -- the start ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"topic": "nope"}, UnknownTopicError),
        ({"token": "guessed"}, UnauthorizedError),
        ({"delivery_timeout": "2h"}, ConfigError),
        ({"topic": "nope", "max_block": "60s"}, asyncio.CancelledError),
    ],
)
async def test_a_start_that_fails_leaves_no_connection(broker, options, error):
    """What can be known then is raised, and whatever ends it, nobody is left to close anything."""
    asked = asyncio.Event()
    broker.token = "secret"  # noqa: S105 - not one
    starting = asyncio.ensure_future(producer(broker, **{"token": "secret"} | options).start())
    if error is asyncio.CancelledError:
        broker.metadata = lambda _: asked.set()
        await asked.wait()
        starting.cancel()
    with pytest.raises(error):
        await starting
    await until(lambda: not broker.connections)


async def test_one_that_is_not_started_says_so(broker):
    """Whatever is called."""
    p = producer(broker)
    for call in (lambda: p.write(b"a"), lambda: p.write_rows([]), p.flush):
        with pytest.raises(ClosedError, match="not started"):
            await call()


async def test_nobody_there_shows_at_the_start(broker):
    """Without a broker the start fails after max_block."""
    await broker.stop()
    with pytest.raises((UnavailableError, RequestTimeoutError), match=broker.address):
        await producer(broker, max_block="100ms").start()


@pytest.mark.parametrize(
    ("options", "at_first", "later"),
    [
        ({}, 3, 4),
        ({"producer_id": "job"}, 2, 2),
        ({"partition_by": "key"}, 3, 3),
        ({"producer_id": "job", "partition_by": "key"}, 2, 2),
    ],
)
async def test_write_partitions_that_are_used(options, at_first, later):
    """Names and keys stay with the write partitions of their start, names with those of the topic.

    Others use what is added.
    """
    async with TinyBroker(write_partitions=2).serve() as broker:
        broker.hosts = [broker.address] * 3
        async with producer(broker, **options) as p:
            assert p.write_partitions == at_first
            broker.hosts.append(broker.address)
            broker.faults.append(NotHostedError("moved"))
            await p.write(b"a", b"k")
            await p.flush()
            assert p.write_partitions == later


# -- news -----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["asked for", "told"])
async def test_a_schema_that_has_grown_is_used(broker, how):
    """Rows have the columns that the topic has by then, and name their schema."""
    broker.add_topic("typed", OLD)
    broker.version = "1" if how == "told" else ""
    async with producer(broker, "typed") as p:
        (delivery,) = await p.write_table(pa.table({"id": [1]}))
        await delivery
        grown = grow(broker)
        if how == "told":
            await broker.until(lambda: broker.waiting)
            broker.change("2")
        else:
            p._state_machine.refresh_failed(UnavailableError("down"), 0.0)
            p._poll_soon()
        await until(lambda: p.schema == NEW)
        (delivery,) = await p.write_rows([{"id": 3, "name": "x"}])
        await delivery
    last = list(broker.published.values())[-1]
    assert last.request.schema_id == grown


@pytest.mark.parametrize("how", ["asked for", "told"])
async def test_a_topic_that_was_recreated_is_another_one(broker, how):
    """Asking for hosts ends the producer; news of the other topic are not news of this one."""
    broker.version = "1"
    async with TinyBroker().serve() as other:
        p = await producer(broker).start()
        await (await p.write(b"a"))
        await broker.until(lambda: broker.waiting)
        broker.topic_id = "1" * 16
        broker.hosts = [other.address]
        if how == "told":
            broker.change("2")
            await broker.until(lambda: broker.waiting)
            await (await p.write(b"b"))
            assert values(broker) == [b"a", b"b"]
        else:
            broker.faults.append(NotHostedError("gone"))
            for value in (b"b", b"c"):
                with pytest.raises(TopicRecreatedError):
                    await (await p.write(value))
        await p.close()
        assert other.writes == 0


async def test_news_are_waited_for_whatever_fails(broker, monkeypatch):
    """No error ends the waiting, and no broker is asked again at once."""
    asked_s = []
    script = [UnavailableError("down"), UnknownTopicError("late to hear of it"), MemqError("bug")]

    async def next_topic(*_):
        asked_s.append(asyncio.get_running_loop().time())
        if script:
            raise script.pop(0)
        await asyncio.Event().wait()

    monkeypatch.setattr(producer_module, "REFRESH_INTERVAL_S", 0.05)
    monkeypatch.setattr(Cluster, "next_topic", next_topic)
    broker.version = "1"
    async with producer(broker) as p:
        await until(lambda: len(asked_s) == 4)
        await (await p.write(b"a"))
    assert all(later - before > 0.045 for before, later in pairwise(asked_s))


# -- why acks do not come -------------------------------------------------------------------


REFUSES = ServiceState(name="storage", since_ms=0, error="403")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ([REFUSES, ServiceState(name="kafka")], "broker {}: storage refuses since"),
        ([ServiceState(name="storage")], "the last error"),
        (None, "the last error"),
        (InvalidRequestError("no such request"), "the last error"),
        (StorageError("busy"), "busy"),
    ],
    ids=["refuses", "all well", "says nothing", "old broker", "no answer"],
)
async def test_why_a_message_waits(broker, answer, said):
    """The broker that keeps it is asked; where that tells nothing, the last error does."""
    if not isinstance(answer, MemqError):
        own = answer and BrokerStatus(id="b", address="b:1", version="1", services=answer)
        answer = DescribeClusterAnswer(cluster_id="tiny", governor="", brokers=[], status=own)
    broker.answers[DescribeCluster] = answer
    async with producer(broker) as p:
        p._state_machine.overdue = lambda *_: (broker.address, "the last error")
        assert (await p._trouble()).startswith(said.format(broker.address))
        p._state_machine.overdue = lambda *_: ("", "nobody")
        assert await p._trouble() == "nobody"
        assert broker.count(DescribeCluster) == 1


async def test_trouble_is_told_while_it_lasts(broker, monkeypatch):
    """Whoever waits is told the reason of now."""
    monkeypatch.setattr(producer_module, "HEED_S", 0.0)
    troubles, told = asyncio.Queue(), []
    broker.hold = True
    async with producer(broker) as p:
        p._trouble = troubles.get
        delivery = await p.write(b"a")
        await broker.until(lambda: broker.held)
        for trouble in ("", "one", "two", "", ""):
            troubles.put_nowait(trouble)
            await until(lambda: troubles.empty() and troubles._getters)
            told.append((p._state_machine.trouble, p._budget.trouble, delivery.trouble))
        broker.release()
        await delivery
    assert told == [("",) * 3, ("one",) * 3, ("two",) * 3, ("",) * 3, ("",) * 3]


# -- connections ----------------------------------------------------------------------------


async def test_what_wants_no_ack_is_sent_again_when_its_connection_breaks(broker):
    """A Message that has not left by then has not been sent."""
    async with producer(broker, acks=0) as p:
        await (await p.write(b"first"))
        (connection,) = p._connections.values()
        connection.pause_writing()
        delivery = await p.write(b"second")
        await until(lambda: connection.unsent_bytes)
        connection.drop("as if it broke")
        await delivery
        await broker.until(lambda: values(broker)[-1:] == [b"second"])
        assert p._connections[broker.address] is not connection


@pytest.mark.parametrize("acks", [0, 1])
async def test_a_message_that_the_connection_refuses_is_settled(broker, acks):
    """What the limits of a broker do not allow fails alone, with its error."""
    async with producer(broker, acks=acks) as p:
        await (await p.write(b"a"))
        (connection,) = p._connections.values()
        connection._wire._max_body_bytes = 2_000
        with pytest.raises(MemqError, match="limits"):
            await (await p.write(bytes(4_000)))
        await (await p.write(b"b"))
        assert p.stats.in_flight == 0


# -- the end --------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["connect", "refresh", "follow", "heed", "poll"])
async def test_a_bug_in_any_task_ends_the_producer(broker, monkeypatch, task):
    """What waits fails, and so does all that is written later."""

    async def bug(*_, **__):
        raise ZeroDivisionError("bug")

    def bug_at_once(*_):
        raise ZeroDivisionError("bug")

    broker.version = "1"
    monkeypatch.setattr(producer_module, "HEED_S", 0.0)
    if task == "follow":
        monkeypatch.setattr(Cluster, "next_topic", bug)
    p = await producer(broker).start()
    if task == "connect":
        p._cluster.connection = bug
    elif task == "refresh":
        p._cluster.topic = bug
        broker.faults.append(NotHostedError("moved"))
    elif task == "heed":
        p._trouble = bug
    elif task == "poll":
        p._state_machine.poll = bug_at_once
    else:
        broker.faults.append("ignore")
    with pytest.raises(MemqError, match="internal error of the producer: ZeroDivisionError"):
        await (await p.write(b"a"))
    with pytest.raises(MemqError, match="internal error"):
        await p.write(b"b")
    await p.close()


@pytest.mark.parametrize("linger", ["10ms", "60s"])
@pytest.mark.parametrize("end", ["an error", "a close"])
async def test_an_end_reaches_whoever_waits(broker, linger, end):
    """A write that waits for memory fails, and so does a Message that is open after an error."""
    options = {"message_bytes": "2KiB", "buffer_bytes": "4KiB", "linger": linger}
    broker.hold = True
    p = await producer(broker, **options).start()
    sent = await p.write(bytes(1_300))
    p._accumulator.seal()
    await broker.until(lambda: broker.held)
    opened = await p.write(b"a")
    waiting = asyncio.ensure_future(p.write(bytes(1_900)))
    await until(lambda: p._budget._waiting)
    if end == "a close":
        closing = asyncio.ensure_future(p.close())
        with pytest.raises(ClosedError):
            await waiting
        broker.release()
        await closing
        assert (await opened).sequence == 1
        return
    fenced = ProducerFencedError("by another epoch")
    p._answered(p._state_machine.unsettled()[0], SimpleNamespace(closed=False), fenced, None)
    for failed in (sent, opened, waiting):
        with pytest.raises(ProducerFencedError):
            await failed
    await p.close()


@pytest.mark.parametrize("acked", [0, 1])
async def test_a_flush_waits_for_all_that_came_before_it(broker, acked):
    """Whichever is acked first, whatever comes afterwards, and whoever else gives up waiting."""
    broker.hold = True
    async with producer(broker, max_in_flight=2) as p:
        sent = [(await p.write_table(pa.table({"value": [each]})))[0] for each in "ab"]
        flushing = [asyncio.ensure_future(p.flush()) for _ in range(2)]
        await broker.until(lambda: len(broker.held) == 2)
        with pytest.raises(RequestTimeoutError, match="2 Messages are not acknowledged"):
            await p.flush(0.01)
        flushing[0].cancel()
        connection, correlation_id, answer = broker.held.pop(acked)
        connection.reply(correlation_id, answer)
        await sent[acked]
        with pytest.raises(RequestTimeoutError, match="1 Message is not acknowledged"):
            await p.flush(0.01)
        assert not flushing[1].done()
        broker.release()
        await flushing[1]
        assert all(delivery.done() for delivery in sent)


async def test_what_is_not_sent_is_counted(broker):
    """Open, sealed or sent and not acked: all of it is lost when the program ends."""
    broker.hold = True
    p = await producer(broker, max_in_flight=1, linger="60s").start()
    assert p in producer_module._unclosed
    for count, written in ((1, 1), (2, 3), (3, 6)):
        await p.write_table(pa.table({"value": [b"x"] * count}))
        assert p._unsent_records() == written
    await broker.until(lambda: broker.held)
    for _ in range(4):
        await p.write(b"x")
    assert p._unsent_records() == 10
    with pytest.raises(RequestTimeoutError):
        await p.close(0.01)
    assert p not in producer_module._unclosed
    assert p._unsent_records() == 0


@pytest.mark.parametrize("works", [True, False])
async def test_nothing_runs_after_a_close(broker, works):
    """Connections and tasks end with it, whether all was sent or not."""
    broker.version = "1"
    if not works:
        broker.faults.append("ignore")
    p = await producer(broker).start()
    delivery = await p.write(b"a")
    await until(lambda: broker.writes)
    if works:
        await p.close()
        await delivery
    else:
        with pytest.raises(RequestTimeoutError):
            await p.close(0.01)
        assert isinstance(delivery.exception(), ClosedError)
    await until(lambda: not broker.connections and not p._tasks)


@pytest.mark.parametrize(
    ("timeout_s", "left_s"),
    [(None, CLOSE_TIMEOUT_S), (100, CLOSE_TIMEOUT_S), (4, 1), (3, 0), (2, 0)],
)
async def test_the_audit_has_what_is_left_of_a_close(broker, timeout_s, left_s):
    """Its last reports go before the connections do, and never hold a close up for long."""
    now_s, given = [50.0], []
    p = await producer(broker).start()
    p._runtime = dataclasses.replace(SYSTEM, mono_s=lambda: now_s[0])

    async def drain(within_s):
        assert within_s == timeout_s
        now_s[0] += 3

    async def report(within_s):
        assert not p._cluster._closed
        given.append(within_s)

    p._drain, p._reporter.close = drain, report
    await p.close(timeout_s)
    assert given == [left_s]
    assert p._cluster._closed


async def test_a_write_that_does_not_end_is_told_by_the_close(broker):
    """Records that another thread keeps are not sent: whoever closes learns of it."""
    p = await producer(broker, linger="60s").start()
    await p.write(b"a")
    p._accumulator.end = lambda _: None
    with pytest.raises(RequestTimeoutError, match="1 record cannot be sent"):
        await p.close()


@pytest.mark.parametrize("options", [{}, {"producer_id": "job"}])
async def test_a_block_that_fails(broker, options):
    """Half of a Message is not sent under a name that another run fills; all else is."""
    p = producer(broker, linger="60s", **options)
    deliveries = []

    async def fail():
        async with p:
            deliveries.append(await p.write(b"a"))
            raise KeyError("mine")

    with pytest.raises(KeyError):
        await fail()
    (delivery,) = deliveries
    assert isinstance(delivery.exception(0), ClosedError) == bool(options)
    assert values(broker) == ([] if options else [b"a"])
    async with producer(broker, linger="60s", **options) as another:
        await another.write(b"whole")
    assert values(broker)[-1] == b"whole"
    with pytest.raises(KeyError):
        async with producer(broker, **options):
            raise KeyError("before anything was written")
    assert broker.count(Write) == 0
