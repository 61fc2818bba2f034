"""`memq cluster`, against a broker that tells of a cluster."""

from __future__ import annotations

import json

import pytest

from memq.cli import cluster
from memq.core.wire import messages as m
from tests.fakes.tiny_broker import TinyBroker
from tests.integration.cli.processes import in_thread


def described(*, draining=False, owned=(), moving=(), **fields):
    """A cluster in which broker-2 owns these write partitions of clicks."""
    return m.DescribeClusterAnswer(
        cluster_id="memq",
        governor="broker-1",
        brokers=[
            m.ClusterBroker(
                id="broker-1",
                address="one:6367",
                zone="a",
                bytes_per_s=3 << 20,
                write_partitions={"clicks": [0]},
            ),
            m.ClusterBroker(
                id="broker-2",
                address="two:6367",
                accepting=not draining,
                draining=draining,
                write_partitions={"clicks": list(owned)} if owned else {},
            ),
            m.ClusterBroker(id="broker-3", address="three:6367", role="read", accepting=False),
        ],
        moving=[
            m.MovingPartition(topic="clicks", write_partition=n, to="broker-1") for n in moving
        ],
        **fields,
    )


@pytest.fixture
def broker(monkeypatch):
    """A broker in a thread; a look while a drain is waited for follows the one before at once."""
    monkeypatch.setattr(cluster, "LOOK_S", 0.01)
    with in_thread(TinyBroker()) as tiny:
        tiny.answers |= {
            m.DescribeCluster: described(owned=[1, 2]),
            m.DrainBroker: m.Done(),
            m.RebalanceCluster: m.Done(),
        }
        yield tiny


def test_describe(memq, broker):
    """A row for each broker; what has no row stands below."""
    broker.answers[m.DescribeCluster] = described(
        draining=True,
        owned=[1, 2],
        moving=[3],
        homeless={"clicks": list(range(10, 20))},
        waiting_for=["broker-9"],
        problem="it failed",
        lost={"broker-4": 1_000},
    )

    titles, *rows = memq("cluster", "describe").decode().splitlines()

    assert titles.split() == [
        "BROKER", "ADDRESS", "ZONE", "ROLE", "STATE", "WRITE-PARTITIONS", "TRAFFIC", "GOVERNS"
    ]  # fmt: skip
    assert [row.split() for row in rows[:4]] == [
        ["broker-1", "one:6367", "a", "all", "accepting", "1", "3.0", "MiB/s", "*"],
        ["broker-2", "two:6367", "-", "all", "draining", "2", "0", "B/s", "-"],
        ["broker-3", "three:6367", "-", "read", "not", "accepting", "0", "0", "B/s", "-"],
        ["broker-4", *"---", "lost", "since", "1970-01-01T00:00:01.000Z", *"---"],
    ]
    assert rows[4:] == [
        "",
        f"homeless: {', '.join(f'clicks/{number}' for number in range(10, 18))} and 2 more",
        "moving: clicks/3 to broker-1",
        "waiting for: broker-9",
        "the assignor is not followed: it failed",
    ]


def asked(broker, kind):
    """Requests of one type that came."""
    return [request for request in broker.asked if isinstance(request, kind)]


def test_withdraw(memq, broker):
    """A drain is taken back, also that of a broker that does not live."""
    [line] = json.loads(
        f"[{memq('cluster', 'drain', 'gone', '--withdraw', '-o', 'json').decode()}]"
    )

    assert line == {"broker": "gone", "drain": "withdrawn", "write_partitions": []}
    assert asked(broker, m.DrainBroker) == [m.DrainBroker(broker_id="gone", withdraw=True)]


def test_a_name_that_is_mistyped(memq, broker):
    """Nobody waits for a broker that there is not."""
    said = memq("cluster", "drain", "broker-22", code=1)

    assert "no broker 'broker-22' lives; these do: broker-1, broker-2, broker-3" in said
    assert asked(broker, m.DrainBroker) == []
