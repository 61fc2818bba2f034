"""Topics as assets, as a message queue and as links."""

from urllib.parse import urlsplit

import pytest
from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger

from airflow_provider_memq.assets import asset_uri, create_asset, sanitize_uri
from airflow_provider_memq.links import MemqTopicLink
from airflow_provider_memq.sensors.memq import MemqOffsetSensor
from airflow_provider_memq.triggers.watch import MemqWatchTrigger


@pytest.mark.parametrize(
    ("cluster", "topic", "uri"),
    [
        ("127.0.0.1:6367", "clicks", "memq://127.0.0.1:6367/clicks"),
        ("Prod.EU", "Clicks_v1.2-x", "memq://prod.eu/Clicks_v1.2-x"),
        ("[::1]:6367", "_memq_audit", "memq://[::1]:6367/_memq_audit"),
    ],
)
def test_uri(cluster, topic, uri):
    """The cluster in lower case, and the topic as it is; Airflow keeps it so."""
    assert asset_uri(cluster, topic) == uri
    assert create_asset(cluster=cluster, topic=topic).uri == uri
    assert sanitize_uri(urlsplit(uri)) == urlsplit(uri)


@pytest.mark.parametrize(
    "uri",
    [
        "memq:///clicks",
        "memq://a:1",
        "memq://a:1/",
        "memq://a:1/b/c",
        "memq://a:1/-b",
        "memq://a b/c",
        "memq://a:123456/c",
        "memq://a:1/b?start=5",
        "memq://:secret@a:1/b",
    ],
)
def test_uris_that_are_none(uri):
    """What is no topic's URI is refused, with the form it should have and without secrets."""
    with pytest.raises(ValueError, match="<host:port or cluster>/<topic>") as refused:
        sanitize_uri(urlsplit(uri))

    assert "secret" not in str(refused.value)


def test_the_queue_scheme():
    """`MessageQueueTrigger` becomes ours, with its arguments."""
    trigger = MessageQueueTrigger(scheme="memq", topic="clicks", watch_name="w")

    assert trigger.serialize() == MemqWatchTrigger(topic="clicks", watch_name="w").serialize()


def test_the_link_to_a_topic(monkeypatch):
    """It leads to the admin HTTP of the connection; a wrong connection has none."""
    monkeypatch.setenv("AIRFLOW_CONN_RIGHT", "memq://a:1?admin_url=http%3A%2F%2Fb:2")
    monkeypatch.setenv("AIRFLOW_CONN_WRONG", "memq://")

    def link(conn_id):
        task = MemqOffsetSensor(task_id="w", topic="clicks", offsets={0: 1}, memq_conn_id=conn_id)
        return MemqTopicLink().get_link(task, ti_key=None)

    assert link("right") == "http://b:2/topics/clicks"
    assert link("wrong") == ""
