"""What a broker makes of what the nodes say, in whatever order it hears of it."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from memq.broker import cluster_topics
from memq.broker.cluster_topics import ClusterTopics
from memq.core.governor.nodes import READ_ROLE, BrokerNode, TopicAssignment
from memq.core.governor.shared_catalog import StoredTopic
from memq.core.governor.topics import new_topic
from memq.core.group import GroupCoordinator
from memq.core.topic import TopicConfig
from memq.errors import (
    ClosedError,
    CorruptDataError,
    DataLossError,
    NotHostedError,
    SessionLostError,
    TopicRecreatedError,
    UnavailableError,
    UnknownTopicError,
)

FIRST, SECOND = "1" * 16, "2" * 16


def topic(name="t", incarnation=FIRST, **options):
    """One as the node says it."""
    config = TopicConfig.create(name, write_partitions=2)
    found = new_topic(config, (), now_ms=1, incarnation=incarnation, request_id="")
    return msgspec.structs.replace(found, config=config.altered(**options)) if options else found


@pytest.fixture
async def topics(cluster):
    """Those of a broker that has no session, and so takes over nothing."""
    (one,) = await cluster.start("one")
    return ClusterTopics(one.context, GroupCoordinator())


def served(topics, name="t"):
    """How a topic is served; None when it is refused as lost, empty when it is not there."""
    try:
        return topics.get(name).topic
    except UnknownTopicError:
        return ""
    except DataLossError:
        return None


OLD, NEW = topic(retention="1h"), topic(retention="2h")
OTHER = topic(incarnation=SECOND, retention="3h")


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ([(OLD, 3), (NEW, 4)], NEW),
        ([(OLD, 3), (OLD, 3)], OLD),
        ([(OLD, 3), (OLD, 4)], OLD),
        ([(NEW, 4), (OLD, 3)], None),
        ([(NEW, 4), (OLD, 4)], None),
        ([(NEW, 4), (NEW, 3)], None),
        ([(NEW, 4), (OLD, 3), (NEW, 5)], NEW),
        ([(NEW, 4), (OLD, 3), (OLD, 3)], None),
        ([(NEW, 4), (OTHER, 0)], OTHER),
        ([(NEW, 4), (OTHER, 4)], OTHER),
        ([(NEW, 4), (None, -1)], ""),
        ([(NEW, 4), (OLD, 3), (None, -1)], ""),
        ([(NEW, 4), (None, -1), (OLD, 0)], OLD),
    ],
)
async def test_a_topic_is_served_as_it_was_altered_last(topics, states, expected):
    """One that has gone back is refused; one that was made anew begins again."""
    for each, version in states:
        topics.topic_changed("t", each, version)
    assert served(topics) == expected


@pytest.mark.parametrize(
    ("in_queue", "expected"),
    [
        ([], OLD),
        ([f"t.{FIRST}"], OLD),
        ([f"t.{SECOND}", f"t.{FIRST}"], OLD),
        ([f"t.{FIRST}", f"t.{SECOND}"], OLD),
        ([f"t.{SECOND}"], None),
        ([f"x.{SECOND}"], OLD),
        ([f"x.t.{SECOND}"], OLD),
    ],
)
async def test_a_topic_is_refused_when_the_queue_has_another_life_of_it_alone(
    topics, in_queue, expected
):
    """Of a topic that is being removed the present life is there too; others are not touched."""
    topics.topic_changed("t", OLD, 0)
    topics.topic_changed("dotted.t", topic("dotted.t"), 0)
    topics.in_queue([f"dotted.t.{FIRST}", *in_queue])
    assert served(topics) == expected
    assert served(topics, "dotted.t") == topic("dotted.t")
    for name in {each.rpartition(".")[0] for each in in_queue} - {"t"}:
        assert served(topics, name) is None


def broker(name, **fields):
    """A broker that lives."""
    return BrokerNode(id=name, address=f"{name}:1", **fields)


@pytest.mark.parametrize(
    ("assignment", "owners"),
    [
        (None, ["", ""]),
        ((FIRST, ("a", "b")), ["a:1", "b:1"]),
        ((SECOND, ("a", "b")), ["", ""]),
        ((FIRST, ("a",)), ["a:1", ""]),
        ((FIRST, ()), ["", ""]),
        ((FIRST, ("", "b", "a")), ["", "b:1"]),
        ((FIRST, ("gone", "b")), ["", "b:1"]),
    ],
)
async def test_owners_are_those_of_this_life_that_live(topics, assignment, owners):
    """Whatever the assignment node says too much, too little, or of another life."""
    told = assignment and TopicAssignment(incarnation=assignment[0], epoch=1, owners=assignment[1])
    topics.assignment_changed("t", told)
    topics.topic_changed("t", OLD, 0)
    topics.brokers_changed({"b": broker("b"), "a": broker("a", zone="z", role=READ_ROLE)})
    hosted = topics.get("t")
    assert topics.hosts(hosted) == owners
    assert [(each.id, each.zone, each.reads) for each in topics.brokers()] == [
        ("a", "z", True),
        ("b", "", False),
    ]
    for number in (-1, 0, 1, 2):
        error = topics.not_hosted(hosted, number)
        assert isinstance(error, NotHostedError)
        assert error.address == (owners[number] if number in (0, 1) else "")


async def test_clients_hear_of_whatever_they_are_told_of_a_topic(topics):
    """Another owner, one that dies, and an alteration give it another version; others do not."""
    topics.topic_changed("t", OLD, 0)
    versions = [topics.version(["t", "unknown"])]

    async def changes(change, *args):
        waiting = asyncio.ensure_future(topics.changed(["t"], versions[-1], 60.0))
        await asyncio.sleep(0)
        assert not waiting.done()
        change(*args)
        await asyncio.wait_for(waiting, 10)
        versions.append(topics.version(["t"]))

    topics.brokers_changed({"a": broker("a")})
    assert topics.version(["t"]) == versions[-1]
    owned = TopicAssignment(incarnation=FIRST, epoch=1, owners=("a", "b"))
    await changes(topics.assignment_changed, "t", owned)
    await changes(topics.brokers_changed, {"a": broker("a"), "b": broker("b")})
    await changes(topics.topic_changed, "t", NEW, 1)
    await changes(topics.brokers_changed, {"b": broker("b")})
    await changes(topics.topic_changed, "t", None)
    assert len({*versions}) == len(versions)
    topics.topic_changed("u", topic("u"), 0)
    assert topics.version(["t"]) == versions[-1] != topics.version(["u"])


async def test_why_a_topic_is_not_here(topics):
    """It is unknown, or there and cannot be served yet, or lost; what nobody tells is forgotten."""
    assert isinstance(topics.missing("t"), UnknownTopicError)
    topics.topic_changed("t", OLD, 0)
    topics.assignment_changed("t", TopicAssignment(incarnation=FIRST, epoch=1, owners=()))
    del topics._hosted["t"]
    assert isinstance(topics.missing("t"), UnavailableError)
    topics.topic_changed("t", None)
    assert isinstance(topics.missing("t"), UnknownTopicError)
    assert topics.known() == {"t"}
    topics.assignment_changed("t", None)
    assert topics.known() == set()
    with pytest.raises(UnavailableError, match="no session"):
        await topics.find("t")


@pytest.mark.parametrize("then", [None, OTHER])
async def test_what_was_granted_in_a_life_of_a_topic_ends_with_it(topics, then):
    """The groups of a topic that is gone are forgotten, and what ran of it is to be closed."""
    forgotten = []
    topics._coordinator.forget_topic = forgotten.append
    topics.topic_changed("t", OLD, 0)
    before = topics.get("t")
    topics.topic_changed("t", NEW, 1)
    assert topics.get("t") is before
    assert (before.topic, forgotten) == (NEW, [])
    before.coordinated = True
    topics.topic_changed("t", then)
    assert (forgotten, before.coordinated) == (["t"], False)
    assert topics._gone == {"t": [before]}
    assert then is None or not topics.get("t").coordinated


class Catalog:
    """What is stored, as the coordination service says it, or its error.

    Attributes:
        asked: names that it was asked for.
    """

    def __init__(self, answer):
        self.answer, self.asked = answer, []

    async def get(self, name):
        self.asked.append(name)
        if isinstance(self.answer, Exception):
            raise self.answer
        return StoredTopic(*self.answer, 0)


def catalog_of(topics, answer):
    """Let a broker have a session, in which it follows nothing."""
    topics._catalog, topics._follow = Catalog(answer), lambda _: None
    return topics._catalog


@pytest.mark.parametrize(
    ("known", "stored", "later"),
    [
        ((OLD, 3), (OLD, 3), None),
        ((NEW, 4), (OLD, 3), None),
        ((OLD, 3), (NEW, 4), (NEW, 4)),
        ((OLD, 3), (NEW, 4), (NEW, 5)),
        ((NEW, 4), (OTHER, 0), (OTHER, 0)),
        ((None, -1), (OLD, 0), (OLD, 0)),
        ((OLD, 3), UnknownTopicError("none"), (None, -1)),
        ((None, -1), UnknownTopicError("none"), None),
    ],
)
async def test_a_look_ends_when_what_is_stored_is_seen(topics, known, stored, later):
    """At once where it is seen already; else by the news of it, and of no other topic."""
    topics.topic_changed("t", *known)
    catalog = catalog_of(topics, stored)
    looking = asyncio.ensure_future(topics.look("t"))
    for _ in range(20):
        await asyncio.sleep(0)
    assert looking.done() == (later is None)
    topics.topic_changed("u", topic("u"), 9)
    for _ in range(20):
        await asyncio.sleep(0)
    assert looking.done() == (later is None)
    if later is not None:
        topics.topic_changed("t", *later)
    await asyncio.wait_for(looking, 10)
    assert catalog.asked == ["t"]


async def test_a_look_that_sees_nothing_of_what_there_is_says_so(topics, monkeypatch):
    """A client asks again, and is not told that there is no such topic."""
    monkeypatch.setattr(cluster_topics, "SEEN_S", 0.01)
    catalog_of(topics, (OLD, 3))
    with pytest.raises(UnavailableError, match="does not know topic 't' yet"):
        await topics.find("t")
    topics.topic_changed("t", OTHER, 3)
    with pytest.raises(UnavailableError, match="does not know topic 't' yet"):
        await topics.find("t", FIRST)
    topics.topic_changed("t", OLD, 2)
    with pytest.raises(UnavailableError, match="does not know topic 't' yet"):
        await topics.look("t")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (SessionLostError, UnavailableError),
        (ClosedError, UnavailableError),
        (UnavailableError, UnavailableError),
        (CorruptDataError, CorruptDataError),
    ],
)
async def test_what_cannot_be_looked_up_is_not_taken_for_missing(topics, error, told):
    """The end of the session is no news for a client; what is damaged is said as it is."""
    catalog_of(topics, error("why"))
    with pytest.raises(told, match="why") as found:
        await topics.find("t")
    assert type(found.value) is told


async def test_what_is_here_is_looked_for_nowhere_else(topics):
    """Nor is what is lost; what is another life, or being made, is."""
    topics.topic_changed("t", OLD, 3)
    catalog = catalog_of(topics, (OLD, 3))
    assert (await topics.find("t")).topic == (await topics.find("t", FIRST)).topic == OLD
    assert catalog.asked == []
    with pytest.raises(TopicRecreatedError):
        await topics.find("t", SECOND)
    assert catalog.asked == ["t"]
    hosted = topics._hosted.pop("t")
    finding = asyncio.ensure_future(topics.find("t"))
    await asyncio.sleep(0)
    topics._hosted["t"] = hosted
    topics._waiters.wake("t")
    assert await finding is hosted
    assert catalog.asked == ["t", "t"]
    topics.topic_changed("t", NEW, 3)
    for ask in (topics.find, topics.look):
        with pytest.raises(DataLossError):
            await ask("t")
    assert catalog.asked == ["t", "t"]
