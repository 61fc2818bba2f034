"""The hook, and triggers in an event loop, against a real broker."""

from __future__ import annotations

import asyncio
import json
import os
from datetime import UTC, datetime, timedelta

import pytest
from airflow.sdk.exceptions import AirflowFailException
from airflow.triggers.base import TaskSuccessEvent

from airflow_provider_memq.hooks.memq import MemqHook
from airflow_provider_memq.sensors.memq import MemqOffsetSensor
from airflow_provider_memq.triggers.memq import MemqNewDataTrigger, MemqOffsetTrigger
from airflow_provider_memq.triggers.watch import MemqWatchTrigger
from memq import AdminClient, Consumer, Producer
from memq.errors import (
    InvalidRequestError,
    OffsetOutOfRangeError,
    UnauthorizedError,
    UnavailableError,
    UnknownTopicError,
)
from memq.testing.broker import BrokerProcess
from tests.harness.services.s3proxy import REGION

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


def test_what_a_group_committed(broker, topic, hook):
    """Stored offsets of a group, and nothing for one that is not known."""
    publish(broker, topic)
    assert hook.committed("g", topic) == {}

    with Consumer(
        broker.address, topic=topic, group="g", start="earliest", token=TOKEN
    ) as consumer:
        while consumer.poll(timeout=TIMEOUT_S).offset < 2:
            pass
        consumer.commit()

    assert hook.committed("g", topic) == {0: 3}


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        ((0, 0, BATCHES + 1), OffsetOutOfRangeError),
        ((1, 0, 1), InvalidRequestError),
        ((0, 2, 1), InvalidRequestError),
        ((0, -1, 1), InvalidRequestError),
    ],
)
def test_ranges_that_are_none(broker, topic, hook, wanted, error):
    """A range that is not retained in full is refused before anything of it is given."""
    publish(broker, topic)

    with pytest.raises(error):
        next(hook.notifications(topic, *wanted))


@pytest.fixture
def stored(s3_server, tmp_path, monkeypatch):
    """A broker that stores in S3, of which only the connection `lake` says how it is reached."""
    s3_server.make_bucket("airflow")
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    place = {"endpoint_url": s3_server.endpoint, "region_name": REGION}
    keys = {"login": s3_server.access_key, "password": s3_server.secret_key}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "aws", "extra": place} | keys))
    options = {
        "endpoint": s3_server.endpoint,
        "region": REGION,
        "access_key_id": s3_server.access_key,
        "secret_access_key": s3_server.secret_key,
    }
    text = ",".join(f"{name}={value}" for name, value in options.items())
    with BrokerProcess(
        tmp_path, token=TOKEN, storage="s3://airflow", storage_options=text
    ) as running:
        with AdminClient(running.address, token=TOKEN) as admin:
            admin.create_topic("stored", batch_age="20ms", read_partitions=1)
        publish(running, "stored")
        yield running


def test_a_range_is_read_by_an_aws_connection(stored, monkeypatch):
    """A task reads Batches in S3 with the credentials that the connection names, and no others."""
    uri = f"memq://:{TOKEN}@{stored.address}?aws_conn_id=lake"
    monkeypatch.setenv("AIRFLOW_CONN_STORED", uri)
    hook = MemqHook("stored")

    table = hook.read_range("stored", 0, 1, 4, columns=["value"])

    assert table.to_pydict() == {"value": [b"1", b"2", b"3"]}
    assert json.loads(os.environ["AIRFLOW_CONN_LAKE"])["password"] not in repr(hook.storage_options)


def test_a_range_is_read_through_the_broker(broker, topic, hook, monkeypatch):
    """A worker that cannot reach the storage needs no credentials for it."""
    publish(broker, topic)
    uri = f"memq://:{TOKEN}@{broker.address}?aws_conn_id=nowhere"
    monkeypatch.setenv("AIRFLOW_CONN_STORED", uri)

    table = MemqHook("stored").read_range(topic, 0, 0, BATCHES, read_through="broker")

    assert table.num_rows == BATCHES
    assert hook.read_range(topic, 0, 0, 1).num_rows == 1


def test_a_generator_that_is_left_closes(broker, topic, hook):
    """Leaving the notifications half-way leaves no thread behind."""
    import threading

    publish(broker, topic)
    before = threading.enumerate()  # of other tests: a store that was read from keeps its own
    found = hook.notifications(topic, 0, 0, BATCHES)
    next(found)

    found.close()

    assert {*threading.enumerate()} <= {*before}


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


def test_a_topic_that_is_not_there(hook):
    """An unknown topic is an error at once."""
    with pytest.raises(UnknownTopicError):
        hook.state("nothing")


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


async def test_a_trigger_ends_the_task(broker, topic, hook):
    """With `end_from_trigger` the value is the task's XCom."""
    await asyncio.to_thread(publish, broker, topic)

    event = await fire(
        MemqOffsetTrigger(topic=topic, offsets={"0": BATCHES}, end_from_trigger=True)
    )

    assert isinstance(event, TaskSuccessEvent)
    assert event.xcoms["return_value"]["offsets"] == {"0": BATCHES}


async def test_a_trigger_counts_what_is_new(broker, topic, hook):
    """Bytes are those of the objects, from notifications alone."""
    await asyncio.to_thread(publish, broker, topic)
    (size,) = [
        each.notification.size_bytes
        for each in await asyncio.to_thread(lambda: list(hook.notifications(topic, 0, 4, 5)))
    ]

    event = await fire(MemqNewDataTrigger(topic=topic, since={"0": 4}, min_bytes=size))

    assert event.payload["status"] == "success"
    assert event.payload["value"]["new"] == {"notifications": 1, "bytes": size, "records": 1}


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


class Store:
    """An asset's state store, kept in memory."""

    def __init__(self, **values):
        self.values = values

    async def aget(self, key, default=None):
        return self.values.get(key, default)

    async def aset(self, key, value):
        self.values[key] = value


def watcher(topic, store):
    trigger = MemqWatchTrigger(topic=topic, poll_interval=0.05, linger=0.1, max_linger=1.0)
    trigger.asset_state_store = store
    return trigger


async def test_a_watcher_goes_on_where_another_was(broker, topic, hook):
    """What an earlier one announced is no event again; what came after it is."""
    await asyncio.to_thread(publish, broker, topic)
    incarnation = (await asyncio.to_thread(hook.state, topic)).incarnation
    store = Store(position={"0": BATCHES}, incarnation=incarnation)
    events = watcher(topic, store).run()
    first = asyncio.ensure_future(anext(events))
    while "head" not in store.values:
        await asyncio.sleep(0.01)
    assert not first.done()

    await asyncio.to_thread(publish, broker, topic, 1)
    event = await asyncio.wait_for(first, TIMEOUT_S)
    await events.aclose()

    payload = {"topic": topic, "incarnation": incarnation, "offsets": {"0": BATCHES + 1}, "new": 1}
    assert event.payload == payload


async def test_a_watcher_outlives_an_outage(broker, topic, monkeypatch):
    """While the broker is away it says so in the state store, raises nothing, and goes on."""
    uri = f"memq://:{TOKEN}@{broker.address}?request_timeout_s=1"
    monkeypatch.setenv("AIRFLOW_CONN_MEMQ_DEFAULT", uri)
    store = Store()
    await asyncio.to_thread(broker.kill)
    events = watcher(topic, store).run()
    first = asyncio.ensure_future(anext(events))
    while not store.values.get("last_error"):
        await asyncio.sleep(0.01)
    assert "check its host and port" in store.values["last_error"]

    await asyncio.to_thread(broker.restart)
    await asyncio.to_thread(publish, broker, topic)
    event = await asyncio.wait_for(first, TIMEOUT_S)

    assert event.payload["offsets"]["0"] >= 1
    following = asyncio.ensure_future(anext(events))
    while store.values["last_error"]:
        await asyncio.sleep(0.01)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
