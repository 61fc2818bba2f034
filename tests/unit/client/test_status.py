"""What is wrong with a cluster, in words, from what its brokers say."""

import asyncio

from memq.client.status import ClusterStatus, cluster_status
from memq.core.wire.messages import BrokerStatus, ClusterBroker, DescribeClusterAnswer, ServiceState
from memq.errors import UnavailableError
from memq.runtime.system import Runtime


def broker(name, **fields):
    """What a broker says."""
    return BrokerStatus(id=name, address=f"{name}:6367", version="1", **fields)


def status(*brokers, silent=(), cluster=None, problem=""):
    """The state of a cluster."""
    return ClusterStatus("c", list(brokers), dict(silent), cluster, problem)


def refusing(name, since_ms):
    """A service that refuses."""
    return ServiceState(name=name, where="x", since_ms=since_ms, error="503")


def test_each_of_several_services_is_a_problem_with_its_own_brokers():
    """One that refuses only here is told beside one that refuses everywhere, and before brokers."""
    storage, kafka = refusing("storage", 1_000), refusing("kafka", 2_000)
    well = ServiceState(name="disk", where="/data")
    found = status(
        broker("b1", services=[well, storage, kafka], not_ready=[kafka.words(), "it starts"]),
        broker("b2", services=[storage, well], not_ready=["it stops", storage.words(), "no lease"]),
        silent={"b3": "frozen"},
    ).problems()
    assert [each.partition(" refuses")[0] for each in found[:2]] == ["storage (x)", "kafka (x)"]
    assert "(at b1, b2); mend storage" in found[0]
    assert "(at b1); mend kafka" in found[1]
    assert found[2].startswith("broker b3 does not answer: frozen; start it, or look at its log")
    assert found[3:] == [
        "broker b1 is not ready: it starts",
        "broker b2 is not ready: it stops",
        "broker b2 is not ready: no lease",
    ]


# -- who is asked ---------------------------------------------------------------------------


class Asked:
    """A cluster of which each broker answers as it is told, and takes a second for it."""

    def __init__(self, seeds, **answers):
        self.seeds = [f"{seed}:1" for seed in seeds]
        self.answers = {f"{name}:1": answer for name, answer in answers.items()}
        self.now_s = 500.0
        self.runtime = Runtime(mono_s=lambda: self.now_s)
        self.limits, self.described = {}, []
        self.governor = UnavailableError("nobody governs")

    async def status(self, address, *, timeout_s):
        assert timeout_s >= 0
        self.limits.setdefault(address, []).append(timeout_s)
        await asyncio.sleep(0)
        self.now_s += 1
        answer = self.answers.get(address, UnavailableError(f"{address} is away"))
        if isinstance(answer, list):
            answer = answer.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def call(self, _request, *, timeout_s):
        assert timeout_s >= 0
        self.described.append(timeout_s)
        if isinstance(self.governor, Exception):
            raise self.governor
        return self.governor, b""


ZOOKEEPER = ServiceState(name="zookeeper", where="zk:2181")


def says(name, *others, at=None, tells=True, services=(), cluster_id="c"):
    """What a broker says of itself, and whom it sees."""
    seen = [ClusterBroker(id=each, address=f"{each}:1") for each in (name, *others)]
    own = BrokerStatus(id=name, address=at or f"{name}:1", version="1", services=list(services))
    return DescribeClusterAnswer(
        cluster_id=cluster_id, governor="", brokers=seen, status=own if tells else None
    )


async def test_every_broker_is_asked_from_the_seeds_on():
    """Those that only others know as well, each once; and they are told in the order of ids."""
    cluster = Asked("b", b=says("b", "d"), d=says("d", "a", "b"), a=says("a", "d", "b"))
    found = await cluster_status(cluster, 60)
    assert [each.id for each in found.brokers] == ["a", "b", "d"]
    assert {address: len(limits) for address, limits in cluster.limits.items()} == dict.fromkeys(
        ("a:1", "b:1", "d:1"), 1
    )
    assert (found.silent, found.problems(), found.cluster_id) == ({}, [], "c")
    assert (found.cluster, cluster.described) == (None, [])


async def test_who_is_silent_is_named_by_its_id_where_anybody_knows_it():
    """Else by its address; and not at all if it answers under another one."""
    cluster = Asked(["x", "b", "alias"], b=says("b", "c"), alias=says("b", "c"))
    found = await cluster_status(cluster, 60)
    assert found.silent == {"c": "c:1 is away", "x:1": "x:1 is away"}
    assert [each.id for each in found.brokers] == ["b"]


async def test_the_governor_is_asked_where_there_is_one_that_can_answer():
    """Not while any broker says that ZooKeeper refuses it, nor where there is none."""
    gone = ServiceState(name="zookeeper", since_ms=5, error="no answer")
    away = ServiceState(name="storage", since_ms=5, error="503")
    for services, asked in (
        ([[ZOOKEEPER], [ZOOKEEPER]], True),
        ([[ZOOKEEPER, away], [away]], True),
        ([[ZOOKEEPER], [gone]], False),
        ([[gone], [ZOOKEEPER]], False),
        ([[away], []], False),
    ):
        cluster = Asked("ab", a=says("a", services=services[0]), b=says("b", services=services[1]))
        cluster.governor = described = says("a")
        found = await cluster_status(cluster, 60)
        assert bool(cluster.described) == asked
        assert found.cluster is (described if asked else None)
        assert found.problem == ""
