"""`memq cluster`, against a broker that tells of a cluster."""

import json

import pytest

from memq.cli import cluster
from memq.cli.main import main
from memq.core.version import __version__
from memq.core.wire import messages as m
from memq.testing.broker import BrokerProcess
from tests.fakes.tiny_broker import TinyBroker
from tests.integration.cli.processes import in_thread


def described(*, owned=(), moving=(), **fields):
    """A cluster in which broker-2 owns these write partitions of clicks."""
    one = m.ClusterBroker(id="broker-1", address="one:1", zone="a", bytes_per_s=3 << 20)
    two = m.ClusterBroker(id="broker-2", address="two:1", accepting=False, draining=bool(owned))
    two.write_partitions = {"clicks": list(owned)}
    three = m.ClusterBroker(id="broker-3", address="three:1", role="read", accepting=False)
    return m.DescribeClusterAnswer(
        cluster_id="memq",
        governor="broker-1",
        brokers=[one, two, three],
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
            m.DescribeCluster: described(),
            m.DrainBroker: m.Done(),
            m.RebalanceCluster: m.Done(),
        }
        yield tiny


def test_describe(memq, broker):
    """A row for each broker; what has no row stands below."""
    broker.answers[m.DescribeCluster] = described(
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
        ["broker-1", "one:1", "a", "all", "accepting", "0", "3.0", "MiB/s", "*"],
        ["broker-2", "two:1", "-", "all", "draining", "2", "0", "B/s", "-"],
        ["broker-3", "three:1", "-", "read", "not", "accepting", "0", "0", "B/s", "-"],
        ["broker-4", *"---", "lost", "since", "1970-01-01T00:00:01.000Z", *"---"],
    ]
    assert rows[4:] == [
        "",
        f"homeless: {', '.join(f'clicks/{number}' for number in range(10, 18))} and 2 more",
        "moving: clicks/3 to broker-1",
        "waiting for: broker-9",
        "the assignor is not followed: it failed",
    ]


def test_a_drain_of_a_broker_that_does_not_live(memq, broker):
    """Nobody waits for it, as its name may be mistyped; a drain of it is taken back."""
    said = memq("cluster", "drain", "broker-22", code=1)
    withdrawn = json.loads(memq("cluster", "drain", "gone", "--withdraw", "-o", "json"))

    assert "no broker 'broker-22' lives; these do: broker-1, broker-2, broker-3" in said
    assert withdrawn == {"broker": "gone", "drain": "withdrawn", "write_partitions": []}
    asked = [request for request in broker.asked if isinstance(request, m.DrainBroker)]
    assert asked == [m.DrainBroker(broker_id="gone", withdraw=True)]


def test_an_upgrade_is_shown_and_made_final(tmp_path, capfd, monkeypatch):
    """Status says what finalize would do; finalize asks first, raises the level, and is done."""
    with BrokerProcess(tmp_path):
        pass
    (tmp_path / "features.json").unlink()  # as an older version left it
    with BrokerProcess(tmp_path) as process:
        monkeypatch.setenv("MEMQ_BOOTSTRAP", process.address)

        def run(*arguments, code=0):
            assert main(["cluster", "upgrade", *arguments]) == code
            return capfd.readouterr()

        shown = run("status")
        assert shown.out.split()[5:] == ["broker-1", __version__, "1", "2", "1"]
        assert "finalize would raise the level from 1 to 2, with no way back" in shown.err
        assert "There is no way back. There is no terminal to ask at" in run("finalize", code=2).err
        assert json.loads(run("status", "-o", "json").out)[0]["active"] == 1
        assert json.loads(run("finalize", "--yes", "-o", "json").out) == {"level": 2, "before": 1}
        assert "level 2 is active; there is nothing to finalize" in run("status").err
        assert json.loads(run("finalize", "-o", "json").out) == {"level": 2, "before": 2}
