"""The hook against a real broker."""

from datetime import UTC, datetime, timedelta
from urllib.parse import quote

import pytest

from airflow_provider_memq.hooks.memq import MemqHook
from memq import AdminClient, Producer
from memq.errors import UnauthorizedError, UnavailableError, UnknownTopicError
from memq.testing.broker import BrokerProcess
from tests.harness.certificates import Certificates
from tests.integration.client.bucket import PASSWORD, RECORDS, TOPIC, VALUES, bucket_of

BATCHES = 5
TOKEN = "the-right-one"  # noqa: S105 - it protects nothing
TIMEOUT_S = 30.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    """A broker that asks for a token, with some Batches of one record."""
    with BrokerProcess(tmp_path_factory.mktemp("broker"), token=TOKEN) as process:
        with AdminClient(process.address, token=TOKEN) as admin:
            admin.create_topic("clicks", batch_messages=1, read_partitions=1)
        with Producer(process.address, topic="clicks", acks="all", token=TOKEN) as producer:
            for number in range(BATCHES):
                producer.write(b"%d" % number).result(TIMEOUT_S)
        yield process


def test_what_a_topic_holds(broker, monkeypatch):
    """Ends, watermark, offsets of a time, notifications and rows are those of the broker.

    A worker that reads through the broker needs no credentials for the storage.
    """
    monkeypatch.setenv("AIRFLOW_CONN_MEMQ_DEFAULT", f"memq://:{TOKEN}@{broker.address}")
    hook = MemqHook()
    now, hour = datetime.now(UTC), timedelta(hours=1)

    state = hook.state("clicks")
    assert (state.starts, state.ends) == ({0: 0}, {0: BATCHES})
    assert hook.watermark_ms("clicks") >= state.watermark_ms > (now - hour).timestamp() * 1000
    assert [(each.start, each.end) for each in hook.offsets("clicks")] == [(0, BATCHES)]
    assert hook.offsets_for_time("clicks", now - hour) == {0: 0}
    assert hook.offsets_for_time("clicks", now + hour) == {0: BATCHES}
    found = list(hook.notifications("clicks", 0, 1, 4))
    assert [each.offset for each in found] == [1, 2, 3]
    with hook.get_conn() as admin:
        assert "clicks" in [topic.config.name for topic in admin.list_topics()]
    assert hook.read_range("clicks", 0, 0, 1).num_rows == 1

    uri = f"memq://:{TOKEN}@{broker.address}?aws_conn_id=nowhere"
    monkeypatch.setenv("AIRFLOW_CONN_STORED", uri)
    table = MemqHook("stored").read_range("clicks", 0, 0, BATCHES, read_through="broker")
    assert table.num_rows == BATCHES


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


async def test_tls(tmp_path, monkeypatch):
    """Tasks and triggers reach a broker by the CA of the extra field, and without are told so."""
    certificates = Certificates(tmp_path)
    with BrokerProcess(tmp_path / "data", **certificates.broker_options()) as process:
        monkeypatch.setenv(
            "AIRFLOW_CONN_SECURE", f"memq://{process.address}?security=ca%3D{certificates.ca}"
        )
        monkeypatch.setenv("AIRFLOW_CONN_PLAIN", f"memq://{process.address}")
        hook = MemqHook("secure")
        with hook.get_conn() as admin:
            admin.create_topic("clicks")
            with Producer(process.address, topic="clicks", security=hook.security) as producer:
                producer.write(b"x").result(TIMEOUT_S)
        assert hook.read_range("clicks", 0, 0, 1).num_rows == 1
        async with await hook.atopic("clicks") as topic:
            assert [each.end for each in await topic.offsets()] == [1]
        good, message = MemqHook("plain").test_connection()
        assert not good
        assert "the broker speaks TLS there: give `ca`" in message


def test_a_task_reads_by_credentials_of_the_brokers(tmp_path, monkeypatch):
    """With the variable in a worker's environment, a user's connection is all that a task needs."""
    with bucket_of(tmp_path) as bucket:
        options = ",".join(f"{name}={value}" for name, value in bucket.storage_options.items())
        monkeypatch.setenv("MEMQ_STORAGE_OPTIONS", options)
        login = quote(PASSWORD)
        monkeypatch.setenv("AIRFLOW_CONN_ALICE", f"memq://alice:{login}@{bucket.address}")
        monkeypatch.setenv("AIRFLOW_CONN_EVE", f"memq://eve:{login}@{bucket.address}")
        table = MemqHook("alice").read_range(TOPIC, 0, 0, RECORDS)
        assert table["value"].to_pylist() == VALUES
        assert bucket.s3.sessions == {"memq-alice": 1}
        with pytest.raises(UnknownTopicError, match="User:eve may describe"):
            MemqHook("eve").read_range(TOPIC, 0, 0, RECORDS)
