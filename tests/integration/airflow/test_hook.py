"""The hook against a real broker."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from airflow_provider_memq.hooks.memq import MemqHook
from memq import AdminClient, Producer
from memq.errors import UnauthorizedError, UnavailableError
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
