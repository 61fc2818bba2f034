"""The hook, and triggers in an event loop, against a real broker."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_memq.hooks.memq import MemqHook
from airflow_provider_memq.sensors.memq import MemqOffsetSensor
from airflow_provider_memq.triggers.memq import MemqOffsetTrigger
from memq import AdminClient, Producer
from memq.errors import (
    UnauthorizedError,
    UnavailableError,
)
from memq.testing.broker import BrokerProcess

BATCHES = 5
TOKEN = "the-right-one"  # noqa: S105 - it protects nothing
TIMEOUT_S = 30.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with BrokerProcess(tmp_path_factory.mktemp("broker"), token=TOKEN) as process:
        with AdminClient(process.address, token=TOKEN) as admin:
            admin.create_topic("clicks", read_partitions=1)
        yield process


@pytest.fixture
def topic(broker):
    """A topic of its own."""
    with AdminClient(broker.address, token=TOKEN) as admin:
        name = f"topic-{len(admin.list_topics())}"
        admin.create_topic(name, batch_age="50ms", read_partitions=1)
    return name


@pytest.fixture
def hook(broker, monkeypatch):
    monkeypatch.setenv("AIRFLOW_CONN_MEMQ_DEFAULT", f"memq://:{TOKEN}@{broker.address}")
    return MemqHook()


def publish(broker, topic, count=BATCHES):
    with Producer(broker.address, topic=topic, acks="all", token=TOKEN) as producer:
        for number in range(count):
            producer.write(b"%d" % number)
            producer.flush(timeout=TIMEOUT_S)


def test_what_a_topic_holds(broker, topic, hook):
    """Ends, watermark, offsets of a time and notifications are those of the broker."""
    before = datetime.now(UTC) - timedelta(seconds=1)
    publish(broker, topic)
    after = datetime.now(UTC) + timedelta(seconds=60)

    state = hook.state(topic)
    assert (state.starts, state.ends) == ({0: 0}, {0: BATCHES})
    assert hook.watermark_ms(topic) >= state.watermark_ms > before.timestamp() * 1000
    assert [(each.start, each.end) for each in hook.offsets(topic)] == [(0, BATCHES)]
    assert hook.offsets_for_time(topic, before) == {0: 0}
    assert hook.offsets_for_time(topic, after) == {0: BATCHES}
    found = list(hook.notifications(topic, 0, 1, 4))
    assert [each.offset for each in found] == [1, 2, 3]
    assert {each.notification.records for each in found} == {1}
    with hook.get_conn() as admin:
        assert topic in [topic.config.name for topic in admin.list_topics()]


def test_a_range_is_read_through_the_broker(broker, topic, hook, monkeypatch):
    """A worker that cannot reach the storage needs no credentials for it."""
    publish(broker, topic)
    uri = f"memq://:{TOKEN}@{broker.address}?aws_conn_id=nowhere"
    monkeypatch.setenv("AIRFLOW_CONN_STORED", uri)

    table = MemqHook("stored").read_range(topic, 0, 0, BATCHES, read_through="broker")

    assert table.num_rows == BATCHES
    assert hook.read_range(topic, 0, 0, 1).num_rows == 1


@pytest.mark.parametrize(
    ("conn", "error"),
    [
        ("memq://{address}", UnauthorizedError),
        ("memq://:wrong@{address}", UnauthorizedError),
        ("memq://127.0.0.1:1?request_timeout_s=3", UnavailableError),
    ],
)
def test_wrong_connections(broker, monkeypatch, conn, error):
    """A wrong token and an address where nobody listens are typed errors; the test says why."""
    monkeypatch.setenv("AIRFLOW_CONN_WRONG", conn.format(address=broker.address))
    hook = MemqHook("wrong")

    good, message = hook.test_connection()

    assert not good
    assert message.startswith("connection 'wrong': ")
    with pytest.raises(error):
        hook.state("clicks")


class Rescheduled:
    """A try of a task, that was first rescheduled at a time, if it was."""

    def __init__(self, first):
        self.first = first

    def get_first_reschedule_date(self, context):
        return self.first


def test_a_look_up_that_fails_is_waited_through(broker, topic, hook, monkeypatch):
    """A connection that a sensor has used once, and cannot get for a while, is an outage to it."""
    sensor = MemqOffsetSensor(task_id="wait", topic=topic, offsets={0: 1})
    assert not sensor.poke({}).is_done

    with monkeypatch.context() as outage:
        outage.delenv("AIRFLOW_CONN_MEMQ_DEFAULT")
        assert not sensor.poke({}).is_done
        again = MemqOffsetSensor(task_id="wait", topic=topic, offsets={0: 1}, mode="reschedule")
        assert not again.poke({"ti": Rescheduled(datetime.now(UTC))}).is_done
        with pytest.raises(AirflowFailException, match="isn't defined"):
            again.poke({"ti": Rescheduled(None)})
    publish(broker, topic, 1)

    assert sensor.poke({}).is_done


async def fire(trigger):
    """The first event of a trigger."""
    events = trigger.run()
    try:
        return await asyncio.wait_for(anext(events), TIMEOUT_S)
    finally:
        await events.aclose()


@pytest.mark.parametrize(
    ("trigger", "text"),
    [
        (MemqOffsetTrigger(topic="nothing", offsets={"0": 1}), "nothing"),
        (MemqOffsetTrigger(topic="clicks", offsets="{"), "offsets = '{'"),
        (MemqOffsetTrigger(topic="clicks", offsets={"7": 1}), "no read partition 7"),
    ],
)
async def test_a_trigger_says_what_is_wrong(hook, trigger, text):
    """What no waiting mends is an event that names it, not an error that restarts the trigger."""
    event = await fire(trigger)

    assert event.payload["status"] == "error"
    assert text in event.payload["message"]
