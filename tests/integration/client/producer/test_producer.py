"""AsyncProducer over real sockets, against a broker that misbehaves on demand."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memq.client.producer.producer import AsyncProducer
from memq.errors import (
    BufferFullError,
    ClosedError,
    ConfigError,
    CorruptDataError,
    DeliveryTimeoutError,
    NotHostedError,
    ProducerFencedError,
    RequestTimeoutError,
    StorageError,
    UnauthorizedError,
    UnavailableError,
    UnknownTopicError,
)
from tests.fakes.tiny_broker import TinyBroker


@pytest.fixture
async def broker():
    async with TinyBroker().serve() as tiny:
        yield tiny


def producer(broker, **options):
    return AsyncProducer(broker.address, topic="events", **options)


def values(broker):
    """Values of all records, in the order in which the broker took them."""
    return [row["value"] for batch in broker.tables() for row in batch.to_pylist()]


async def test_write_returns_the_delivery_of_the_message(broker):
    """Records written together share a Message and its delivery, which tells where it is."""
    async with producer(broker, linger="50ms") as p:
        first = await p.write(b"a", b"k", {"h": b"1"}, 5)
        second = await p.write(b"b")
        assert first is second
        stored = await first
        assert (stored.topic, stored.partition, stored.offset) == ("events", 0, 0)
        assert (stored.batch_id, stored.sequence, stored.duplicate) == ("batch-0", 0, False)
    (batch,) = broker.tables()
    row = batch.to_pylist()[0]
    assert (row["key"], row["value"], row["headers"]) == (b"k", b"a", [("h", b"1")])
    (entry,) = broker.published.values()
    assert (entry.request.records, entry.request.acks) == (2, -1)
    assert entry.request.min_timestamp_us == 5


async def test_linger_sends_without_flush(broker):
    """Nobody has to flush: the linger time ends a Message."""
    async with producer(broker, linger="1ms") as p:
        await (await p.write(b"a"))
        assert values(broker) == [b"a"]


async def test_a_message_that_two_interrupts_have_kept_back_is_sent(broker):
    """Where the loop was never told of a sealed Message, it finds it when it looks at the time."""
    p = producer(broker, linger="20ms", message_bytes="1KiB")
    interrupts = 0

    def interrupted(callback):
        nonlocal interrupts
        if callback == p._submit and interrupts < 2:
            interrupts += 1
            raise KeyboardInterrupt
        return asyncio.get_running_loop().call_soon(callback)

    p._hand_over = interrupted
    async with p:
        delivery = await p.write(b"a")
        with pytest.raises(KeyboardInterrupt):
            await p.write(bytes(1000))  # for which the Message with the first record is sealed
        async with asyncio.timeout(60):
            await delivery
    assert interrupts == 2
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


async def test_unseen_failure_is_raised_by_close(broker):
    """A failed Message whose delivery nobody looked at does not go unnoticed."""
    broker.faults.append(CorruptDataError("bits fell over"))
    with pytest.raises(CorruptDataError) as caught:
        async with producer(broker) as p:
            await p.write(b"a")
    assert "1 Message failed" in caught.value.__notes__[0]


async def test_failed_close_does_not_hide_the_callers_error(broker):
    """The caller's own error comes out of the block; what close had to say is noted on it."""
    broker.faults.append(CorruptDataError("bits fell over"))

    async def fail():
        async with producer(broker) as p:
            await p.write(b"a")
            raise KeyError("mine")

    with pytest.raises(KeyError) as caught:
        await fail()
    assert "bits fell over" in caught.value.__notes__[0]


async def test_fenced_producer_is_over(broker):
    """Once a newer epoch has taken over, everything fails with that error."""
    broker.faults.append(ProducerFencedError("epoch 1 is fenced by epoch 2"))
    p = await producer(broker, producer_id="job", epoch=1).start()
    with pytest.raises(ProducerFencedError):
        await (await p.write(b"a"))
    with pytest.raises(ProducerFencedError):
        await p.write(b"b")
    with pytest.raises(ProducerFencedError):
        await p.write_table(pa.table({"value": [b"c"]}))
    await p.close()


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


async def test_linger_gathers_while_the_broker_is_busy(broker):
    """With max_in_flight reached records gather in fewer, larger Messages."""
    broker.hold = True
    async with producer(broker, max_in_flight=1, linger="1ms") as p:
        await p.write(b"first")
        await broker.until(lambda: broker.held)
        assert p.stats.in_flight == 1
        for _ in range(20):
            await p.write(b"x")
            await asyncio.sleep(0.002)  # longer than the linger time
        broker.release()
    assert broker.writes < 5
    assert len(values(broker)) == 21


async def test_awaiting_a_delivery_without_linger_seals_it(broker):
    """With a stable id nothing but size ends a Message, so waiting for it must."""
    async with producer(broker, producer_id="job") as p:
        await asyncio.wait_for(await p.write(b"a"), 20)


async def test_close_gives_up_after_its_timeout(broker):
    """What is not acked when close runs out of time fails; the next close does nothing."""
    broker.faults.append("ignore")
    p = await producer(broker).start()
    delivery = await p.write(b"a")
    with pytest.raises(RequestTimeoutError):
        await p.close(0.1)
    assert isinstance(delivery.exception(0), ClosedError)
    await p.close()
    with pytest.raises(ClosedError):
        await p.write(b"b")
    with pytest.raises(ClosedError):
        await p.flush()


async def test_wrong_topic_token_or_options_show_at_the_start(broker):
    """What can be known at the start is raised there."""
    with pytest.raises(UnknownTopicError):
        await AsyncProducer(broker.address, topic="nope").start()
    with pytest.raises(ConfigError, match="dedup_window"):
        await producer(broker, delivery_timeout="2h").start()
    broker.token = "secret"  # noqa: S105 - not one
    with pytest.raises(UnauthorizedError):
        await producer(broker).start()


async def test_nobody_there_shows_at_the_start(broker):
    """Without a broker the start fails after max_block."""
    await broker.stop()
    with pytest.raises(UnavailableError, match=broker.address):
        await producer(broker, max_block="100ms").start()


async def test_stats_and_repr_tell_what_happened(broker):
    """Acked and failed Messages are counted, and the repr shows the live state."""
    broker.faults.append(CorruptDataError("no"))
    async with producer(broker) as p:
        with pytest.raises(CorruptDataError):
            await (await p.write(b"a"))
        await (await p.write(b"b"))
        stats = p.stats
        assert (stats.acked_messages, stats.acked_records, stats.failed_records) == (1, 1, 1)
        assert (stats.in_flight, stats.unsettled, stats.buffer_bytes) == (0, 0, 0)
        assert "0 unsettled | 0 in flight" in repr(p)
