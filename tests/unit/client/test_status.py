"""What is wrong with a cluster, in words, from what its brokers say."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from memq.client.status import BROKER_S, GOVERNOR_S, LATE_MS, ClusterStatus, cluster_status
from memq.core.wire.messages import (
    BrokerStatus,
    ClusterBroker,
    DescribeClusterAnswer,
    ServiceState,
)
from memq.errors import RequestTimeoutError, UnavailableError
from tests.unit.governor.conftest import virtual_time  # noqa: F401 - a fixture


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


def test_each_broker_is_looked_at():
    """One that is not ready, or late, hides no other; the Governor tells of partitions as well."""
    described = DescribeClusterAnswer(
        cluster_id="c", governor="b1", brokers=[], homeless={"t": [0], "u": [1]}
    )
    found = status(
        broker("b1", not_ready=["draining", "no disk"]),
        broker("b2", late_topic="t", late_ms=LATE_MS + 1, watermark_age_ms=45_000),
        broker("b3", late_topic="u", late_ms=LATE_MS + 1, not_ready=["starting"]),
        cluster=described,
    ).problems()
    assert [each.partition(":")[0] for each in found] == [
        "broker b1 is not ready",
        "broker b1 is not ready",
        "the watermark of t at broker b2 is 45 s old",
        "broker b3 is not ready",
        "the watermark of u at broker b3 is 0 s old",
        "write partitions of t, u have no owner",
    ]


def test_each_service_that_refuses_is_a_problem():
    """Of one broker or of several."""
    found = status(
        broker("b1", services=[refusing("storage", 1), refusing("disk", 2)]),
        broker("b2", services=[ServiceState(name="storage"), refusing("kafka", 3)]),
    ).problems()
    assert [each.partition(" ")[0] for each in found] == ["storage", "disk", "kafka"]
    assert ["(at b1)" in each for each in found] == [True, True, False]


class Brokers:
    """A cluster: what each address answers, or the error; None where it never does.

    Attributes:
        asked: when each address was asked, and for how long.
        governor: what the Governor answers, or its error.
        called: for how long it was asked.
    """

    def __init__(self, *seeds, **answers):
        loop = asyncio.get_running_loop()
        self.runtime = SimpleNamespace(mono_s=loop.time)
        self.seeds, self.answers, self.began_s = list(seeds), answers, loop.time()
        self.asked, self.called = [], []
        self.governor = UnavailableError("nobody governs")

    async def status(self, address, *, timeout_s):
        self.asked.append((address, timeout_s))
        answer = self.answers[address]
        if isinstance(answer, list):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        if answer is None:
            await asyncio.sleep(timeout_s)
            raise RequestTimeoutError("no answer")
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def call(self, address, request, *, timeout_s):
        self.called.append((address, timeout_s))
        if self.governor is None:
            await asyncio.sleep(timeout_s)
            raise RequestTimeoutError("no answer")
        if isinstance(self.governor, Exception):
            raise self.governor
        return self.governor, b""


def tells(name, *others, **fields):
    """What a broker answers: of itself, and of the others that it sees."""
    seen = [
        ClusterBroker(id=each, address=each, zone="", rack="", capacity=1.0, accepting=True)
        for each in (name, *others)
    ]
    return DescribeClusterAnswer(
        cluster_id="c", governor="", brokers=seen, status=broker(name, **fields)
    )


def zookeeper(**fields):
    """The service of a cluster, which does not refuse."""
    return ServiceState(name="zookeeper", **fields)


@pytest.mark.usefixtures("virtual_time")
async def test_brokers_are_found_from_those_that_are_known():
    """Each is asked once, also one that only the second knows; sorted by id, whoever is silent."""
    brokers = Brokers("b", "x", b=tells("b", "c"), c=tells("c", "a", "d"), a=tells("a"))
    brokers.answers |= {"d": UnavailableError("frozen"), "x": UnavailableError("no such host")}
    found = await cluster_status(brokers, 10)
    assert [each.id for each in found.brokers] == ["a", "b", "c"]
    assert found.silent == {"d": "frozen", "x": "no such host"}
    assert sorted(address for address, _ in brokers.asked) == ["a", "b", "c", "d", "x"]
    assert (found.cluster, found.problem, brokers.called) == (None, "", [])


@pytest.mark.usefixtures("virtual_time")
async def test_a_seed_by_another_name_is_not_silent():
    """A broker that answers at one of its addresses answers."""
    brokers = Brokers("a", "z", a=tells("a"), z=UnavailableError("refused"))
    brokers.answers["a"].brokers.append(
        ClusterBroker(id="a", address="z", zone="", rack="", capacity=1.0, accepting=True)
    )
    assert (await cluster_status(brokers, 10)).silent == {}


@pytest.mark.usefixtures("virtual_time")
async def test_when_nobody_answers_the_reason_is_raised():
    """Of the first."""
    brokers = Brokers("a", a=UnavailableError("refused"))
    with pytest.raises(UnavailableError, match="refused"):
        await cluster_status(brokers, 10)


@pytest.mark.usefixtures("virtual_time")
@pytest.mark.parametrize("timeout_s", [0.5, 3.0, 30.0])
async def test_the_silent_hold_nobody_up(timeout_s):
    """All of it ends in time, and each wait has its bound."""
    brokers = Brokers("a", "s", a=tells("a", "q", services=[zookeeper()]), s=None, q=None)
    brokers.governor = None
    found = await cluster_status(brokers, timeout_s)
    assert set(found.silent) == {"s", "q"}
    assert found.problem == "no answer"
    took_s = asyncio.get_running_loop().time() - brokers.began_s
    assert took_s <= min(timeout_s, 2 * BROKER_S + GOVERNOR_S) + 0.001
    assert all(limit_s <= min(BROKER_S, timeout_s / 2) for _, limit_s in brokers.asked[:3])
    [(address, limit_s)] = brokers.called
    assert address == "a"
    assert 0 < limit_s <= GOVERNOR_S


@pytest.mark.usefixtures("virtual_time")
@pytest.mark.parametrize(
    ("services", "asked"),
    [
        ([], False),
        ([ServiceState(name="storage")], False),
        ([zookeeper()], True),
        ([zookeeper(since_ms=1, error="gone")], False),
        ([refusing("storage", 1), zookeeper()], True),
    ],
)
async def test_the_governor_is_asked_where_it_can_answer(services, asked):
    """Without ZooKeeper there is none; while that refuses it cannot."""
    described = DescribeClusterAnswer(cluster_id="c", governor="a", brokers=[])
    brokers = Brokers("a", a=tells("a", services=services))
    brokers.governor = described
    found = await cluster_status(brokers, 10)
    assert (found.cluster is described) is asked
    assert (found.problem, len(brokers.asked)) == ("", 1)


@pytest.mark.usefixtures("virtual_time")
async def test_one_broker_whose_zookeeper_refuses_is_enough():
    """Then the Governor may wait for it as well."""
    brokers = Brokers(
        "a",
        a=tells("a", "b", services=[zookeeper()]),
        b=tells("b", services=[zookeeper(since_ms=1, error="gone")]),
    )
    await cluster_status(brokers, 10)
    assert brokers.called == []


@pytest.mark.usefixtures("virtual_time")
async def test_a_broker_that_has_learned_why_the_governor_is_silent_tells():
    """It is asked once more; where it does not answer then, what it said before is shown."""
    later = tells("a", services=[zookeeper(since_ms=1, error="gone")])
    for second in (later, UnavailableError("away")):
        brokers = Brokers("a", a=[tells("a", services=[zookeeper()]), second])
        found = await cluster_status(brokers, 10)
        assert found.problem == "nobody governs"
        (state,) = found.brokers[0].services
        assert bool(state.words()) is (second is later)
        assert found.silent == {}
