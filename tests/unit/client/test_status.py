"""What is wrong with a cluster, in words, from what its brokers say."""

from __future__ import annotations

from memq.client.status import LATE_MS, ClusterStatus
from memq.core.wire.messages import BrokerStatus, DescribeClusterAnswer, ServiceState


def broker(name, **fields):
    """What a broker says."""
    return BrokerStatus(id=name, address=f"{name}:6367", version="1", **fields)


def status(*brokers, silent=(), cluster=None, problem=""):
    """The state of a cluster."""
    return ClusterStatus("c", list(brokers), dict(silent), cluster, problem)


def refusing(name, since_ms):
    """A service that refuses."""
    return ServiceState(name=name, where="x", since_ms=since_ms, error="503")


def test_nothing_is_wrong_with_what_is_as_it_should_be():
    """Late is what `batch_age` does not explain, and only beyond the upload deadline."""
    fine = broker("b1", services=[ServiceState(name="storage")], late_ms=LATE_MS)
    assert status(fine).problems() == []


def test_a_service_is_one_problem_whoever_it_refuses():
    """It is named once, since it began, with all brokers that say so; and its reasons not again."""
    first, later = refusing("storage", 1_000), refusing("storage", 9_000)
    found = status(
        broker("b1", services=[later], not_ready=[later.words()]),
        broker("b2", services=[first], not_ready=[first.words()]),
    )
    (problem,) = found.problems()
    assert problem.startswith("storage (x) refuses since 1970-01-01T00:00:01.000Z: 503 (at b1, b2)")
    assert problem.endswith("; mend storage, or the way to it")


def test_those_who_are_not_heard_are_named():
    """A silent broker, a lost one, and a Governor that does not answer are problems each."""

    class Described(DescribeClusterAnswer, kw_only=True):
        lost: dict[str, int]

    described = Described(cluster_id="c", governor="b1", brokers=[], lost={"b2": 1, "b3": 1})
    found = status(
        broker("b1"), silent={"b2": "frozen"}, cluster=described, problem="no answer"
    ).problems()
    assert [each.partition(";")[0] for each in found] == [
        "broker b2 does not answer: frozen",
        "broker b3 is lost since 1970-01-01T00:00:00.001Z",
        "the Governor does not answer: no answer",
    ]
