from collections import Counter

import pytest

from memq.core.governor.assignment import BrokerResources
from memq.core.governor.assignor import CheckedAssignor
from memq.core.governor.governor import (
    MAX_CHANGES,
    MAX_MOVING,
    MAX_TRANSACTION_BYTES,
    MOVE_TIMEOUT_MS,
    REBALANCE_INTERVAL_MS,
    SETTLE_MS,
    Governor,
    ReadAgain,
    StoredNode,
    TopicPartitions,
)
from memq.core.governor.nodes import ASSIGNMENTS, TopicAssignment
from memq.core.wire.messages import ClusterBroker, MovingPartition
from memq.errors import InvalidRequestError
from tests.unit.core.governor.store import Cluster, Store


def brokers(*names, **more):
    return [BrokerResources(name, **more) for name in names]


def topic(name="t", write_partitions=6, topic_id="i1"):
    return TopicPartitions(name, topic_id, write_partitions)


def counts(cluster):
    """How many write partitions each broker owns."""
    return dict(sorted(Counter(cluster.store.owners().values()).items()))


# -- a cluster as it begins -----------------------------------------------------------------


def test_without_a_broker_that_accepts_there_is_no_owner(caplog):
    """The node and the log say so, once; what is homeless is placed when one accepts."""
    cluster = Cluster(Governor(), brokers("reader", accepting=False), [topic(write_partitions=2)])
    cluster.settle()
    assert cluster.store.assignments()["t"].owners == ("", "")
    assert cluster.governor.describe().homeless == {"t": [0, 1]}
    cluster.governor.broker_registered(BrokerResources("a"))
    cluster.settle()
    cluster.governor.topic_changed(topic("u", 1))
    cluster.settle()
    assert counts(cluster) == {"a": 3}
    assert [each.getMessage() for each in caplog.records if "no broker" in each.msg] == [
        "Governor: no broker accepts write partitions, and 2 of 2 are without an owner"
    ]


def test_an_answer_that_comes_after_its_end_changes_nothing():
    """A transaction may be said to have happened, or not, when another broker governs."""
    governor = Governor()
    Cluster(governor, brokers("a"), [topic()])
    number = governor.tick(0).number
    governor.deposed()
    governor.written(number, 0)
    governor.refused(number)
    assert repr(governor) == "<Governor [not elected]>"


# -- after an election ----------------------------------------------------------------------


def restarted(*names):
    """A cluster of three brokers with six write partitions, of which some are back."""
    cluster = Cluster(Governor(), brokers("a", "b", "c"), [topic()])
    cluster.settle()
    cluster.governor.deposed()
    cluster.elect(brokers(*names), [topic()])
    return cluster


def test_a_cluster_that_starts_finds_everything_where_it_was():
    """Nothing moves to the broker that is first while the others come back."""
    cluster = restarted("a")
    assert cluster.governor.describe().waiting_for == ["b", "c"]
    assert "waits for 2" in repr(cluster.governor)
    for name in "cb":
        assert cluster.settle(SETTLE_MS // 3) == []
        cluster.governor.broker_registered(BrokerResources(name))
    assert cluster.governor.describe().waiting_for == []
    cluster.governor.topic_changed(topic("u", 3))
    assert len(cluster.settle()) == 1, "nobody is waited for any more"
    assert cluster.settle(SETTLE_MS) == []
    assert counts(cluster) == {"a": 3, "b": 3, "c": 3}


@pytest.mark.parametrize("wait_ms", [SETTLE_MS, 1_500, 0])
def test_who_does_not_come_back_is_waited_for_so_long(wait_ms):
    """It counts from the registration of the Governor's broker; then what it had moves at once.

    One that has been there for longer waits for nobody: who is not there has died.
    """
    cluster = restarted("a", "b", "c")
    before = cluster.store.owners()
    cluster.now_ms += SETTLE_MS - wait_ms
    cluster.elect(brokers("a", "c"), [topic()], registered_ms=0)
    if wait_ms:
        assert cluster.settle(wait_ms - 1) == []
    assert len(cluster.settle(min(wait_ms, 1))) == 1
    assert counts(cluster) == {"a": 3, "c": 3}
    moved = [key for key, owner in cluster.store.owners().items() if before[key] != owner]
    assert all(before[key] == "b" for key in moved)


def test_a_node_that_cannot_be_understood_is_made_anew(caplog):
    """Its epoch is above any that it can have had; others are not touched."""
    store = Store()
    store.nodes = {
        "t": StoredNode(b"?", 6),
        "u": StoredNode(b'{"topic_id":"i1","epoch":1,"owners":["a"]}', 0),
    }
    cluster = Cluster(Governor(), brokers("a"), [topic("t", 1), topic("u", 1)], store=store)
    (transaction,) = cluster.settle()
    assert [change.topic for change in transaction.changes] == ["t"]
    assert cluster.store.assignments()["t"].epoch == 8
    assert "this assignment is made again: node '/assignments/t'" in caplog.text


# -- transactions ---------------------------------------------------------------------------


def test_a_transaction_has_so_many_changes_and_bytes():
    """More go into the next one, and all arrive."""
    topics = [topic(f"t{n:04}", 1) for n in range(MAX_CHANGES + 1)]
    cluster = Cluster(Governor(), brokers("a"), topics)
    assert [len(each.changes) for each in cluster.settle()] == [MAX_CHANGES, 1]
    topics = [topic(f"t{n:04}", 256) for n in range(40)]
    cluster = Cluster(Governor(), brokers("a" * 200), topics)
    transactions = cluster.settle()
    sizes = [sum(len(change.data) for change in each.changes) for each in transactions]
    assert len(sizes) > 1
    assert max(sizes) <= MAX_TRANSACTION_BYTES
    assert len(cluster.store.nodes) == 40


def test_what_is_refused_is_read_again():
    """It asks once, changes nothing until it knows, and then goes on from what is there."""
    cluster = Cluster(Governor(), brokers("a"), [topic("t", 1)])
    governor = cluster.governor
    transaction = governor.tick(0)
    cluster.store.nodes["t"] = StoredNode(
        ASSIGNMENTS.encode(TopicAssignment(topic_id="i1", epoch=5, owners=("gone",))), 4
    )
    assert not cluster.store.apply(transaction)
    governor.refused(transaction.number)
    governor.topic_changed(topic("u", 1))
    assert governor.tick(0) == ReadAgain()
    assert governor.tick(0) is None
    governor.read(dict(cluster.store.nodes))
    cluster.settle()
    assert cluster.store.assignments()["t"].epoch == 6
    assert counts(cluster) == {"a": 2}


# -- moves that need not be at once ---------------------------------------------------------


def test_a_drain_moves_a_few_at_a_time():
    """The next go when the owners of these report them; at the end it owns nothing."""
    cluster = Cluster(Governor(), brokers("a", "b"), [topic("t", 100)])
    cluster.settle()
    cluster.governor.drain_requested("a")
    left = 50
    while left:
        cluster.settle(1_000)
        assert counts(cluster).get("a", 0) == max(0, left - MAX_MOVING)
        assert len(cluster.governor.describe().moving) == min(left, MAX_MOVING)
        left = counts(cluster).get("a", 0)
        assert cluster.settle(1_000) == []
        cluster.report()
    assert cluster.governor.describe().moving == []
    (drained, _) = cluster.governor.describe().brokers
    assert (drained.draining, drained.accepting) == (True, False)


def test_one_that_cannot_take_over_does_not_hold_up_all():
    """After a while the others move."""
    cluster = Cluster(Governor(), brokers("a", "b", "c"), [topic("t", 100)])
    cluster.settle()
    cluster.governor.drain_requested("a")
    cluster.settle(1_000)
    cluster.report(without=["b"])
    assert cluster.settle(MOVE_TIMEOUT_MS - 1) == []
    assert len(cluster.settle(1)) == 1


def joined():
    """Two brokers that have all, and have reported, and one that has just come."""
    cluster = Cluster(Governor(), brokers("a", "b"), [topic("t", 90)])
    cluster.settle()
    cluster.report()
    cluster.governor.broker_registered(BrokerResources("c"))
    return cluster


def test_loads_are_evened_out_every_so_often():
    """Not before; then a few at a time, in rounds that follow each other, and then not again."""
    cluster = joined()
    assert cluster.settle(REBALANCE_INTERVAL_MS - 1) == []
    cluster.settle(1)
    assert counts(cluster) == {"a": 35, "b": 35, "c": 20}
    cluster.report()
    cluster.settle(1_000)
    assert counts(cluster) == {"a": 31, "b": 32, "c": 27}
    cluster.report()
    assert cluster.settle(1_000) == []
    assert cluster.settle(REBALANCE_INTERVAL_MS) == []


def test_a_person_who_asks_does_not_wait_for_the_interval():
    """It begins at once where all loads are known."""
    cluster = Cluster(Governor(), brokers("a"), [topic("t", 20)])
    cluster.settle()
    cluster.report()
    cluster.governor.broker_registered(BrokerResources("b"))
    cluster.governor.rebalance_requested()
    cluster.settle(1_000)
    assert counts(cluster) == {"a": 10, "b": 10}
    cluster.report()
    assert cluster.settle(1_000) == []


def test_nothing_moves_while_a_service_refuses():
    """Neither for balance nor from who drains; what is homeless is placed all the same."""
    refusing = []
    governor = Governor(services_refuse=lambda: refusing)
    cluster = Cluster(governor, brokers("a", "b", "c"), [topic("t", 9)])
    cluster.settle()
    cluster.report()
    refusing.append("s3://b refuses")
    cluster.governor.drain_requested("a")
    cluster.governor.rebalance_requested()
    assert cluster.settle(2 * REBALANCE_INTERVAL_MS) == []
    cluster.governor.broker_gone("b")
    cluster.settle()
    assert counts(cluster)["a"] == 3
    assert sum(counts(cluster).values()) == 9
    refusing.clear()
    cluster.settle(1_000)
    assert counts(cluster) == {"c": 9}


def test_what_a_broker_says_of_others_does_not_count():
    """Reports are of what it owns; a broker that is not there reports nothing."""
    cluster = Cluster(Governor(), brokers("a", "b"), [topic("t", 2)])
    cluster.settle()
    (key,) = [key for key, owner in cluster.store.owners().items() if owner == "a"]
    cluster.governor.loads_reported("b", {key: 5.0, ("t", 9): 5.0, ("u", 0): 5.0, ("t", -1): 5.0})
    cluster.governor.loads_reported("z", {key: 5.0})
    assert sum(each.bytes_per_s for each in cluster.governor.describe().brokers) == 0


@pytest.mark.parametrize("load", [-1.0, float("nan"), 1e16])
def test_a_report_that_makes_no_sense_is_refused(load):
    """It names the broker, and none of it counts."""
    cluster = Cluster(Governor(), brokers("a"), [topic("t", 2)])
    cluster.settle()
    with pytest.raises(InvalidRequestError, match="'t'/1, from broker 'a': must be"):
        cluster.governor.loads_reported("a", {("t", 0): 1.0, ("t", 1): load})
    assert cluster.governor.describe().brokers[0].bytes_per_s == 0


# -- an assignor of the user's --------------------------------------------------------------


def test_an_assignor_that_fails_stops_nothing():
    """Ours places the homeless and empties who drains; it is said why, and nothing else moves."""
    own = CheckedAssignor("own", lambda *_: {})
    cluster = Cluster(Governor(own), brokers("a"), [topic("t", 20)])
    cluster.settle()
    cluster.governor.broker_registered(BrokerResources("b"))
    cluster.report()
    assert cluster.settle(REBALANCE_INTERVAL_MS) == []
    assert counts(cluster) == {"a": 20}
    assert "'own' gives ('t', 0) the owner None" in cluster.governor.describe().problem
    cluster.governor.drain_requested("a")
    cluster.settle()
    assert counts(cluster) == {"b": 20}


# -- for people -----------------------------------------------------------------------------


def test_the_cluster_can_be_described():
    """Brokers with what they own and carry; what is homeless, moving and waited for."""
    cluster = Cluster(
        Governor(),
        [BrokerResources("b", 2.0, "z1", "r1"), BrokerResources("a", zone="z2", accepting=False)],
        [topic("t", 2)],
    )
    cluster.settle()
    cluster.report({("t", 0): 5.0, ("t", 1): 7.0})
    assert cluster.governor.describe().brokers == [
        ClusterBroker(id="a", address="", zone="z2", accepting=False),
        ClusterBroker(
            id="b", address="", zone="z1", rack="r1", capacity=2.0, bytes_per_s=12.0,
            write_partitions={"t": [0, 1]},
        ),
    ]  # fmt: skip
    cluster.governor.drain_requested("b")
    cluster.governor.broker_registered(BrokerResources("a"))
    cluster.settle()
    (first, _) = cluster.governor.describe().moving
    assert first == MovingPartition(topic="t", write_partition=0, to="a")
