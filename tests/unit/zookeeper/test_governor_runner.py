import asyncio
import random
from collections import Counter

import pytest

from memq.core.governor.governor import MOVE_TIMEOUT_MS, SETTLE_MS
from memq.core.governor.nodes import BROKERS, DRAINING, ELECTION, GOVERNOR, REBALANCE, TOPICS
from memq.errors import (
    ChangeUncertainError,
    NodeExistsError,
    SessionLostError,
    UnavailableError,
    VersionConflictError,
)
from memq.runtime.system import Runtime
from memq.zookeeper.folders import make_persistent
from memq.zookeeper.governor_runner import NOT_DONE
from tests.unit.zookeeper.brokers import (
    Broker,
    assignments,
    create_topic,
    delete,
    owners,
    topic_of,
    until_elected,
    until_owned,
)
from tests.unit.zookeeper.servers import Watched


@pytest.fixture
async def service(virtual_time):
    """Servers, and what every cluster has."""
    service = Watched()
    await make_persistent(await service.open())
    yield service
    assert service.wrong == []


@pytest.fixture
async def person(service):
    """A session of somebody who looks, and changes things by hand."""
    session = await service.open()
    service.people.append(session)
    return session


async def started(service, *names, **more):
    """Brokers that stand for election, one after the other."""
    runtime = Runtime(mono_s=asyncio.get_running_loop().time, random=random.Random(1).random)
    return [await Broker.start(await service.open(), name, runtime, **more) for name in names]


async def quiet(seconds=3.0):
    """Let everything that is under way arrive."""
    await asyncio.sleep(seconds)


async def governed(service, person, *names, write_partitions=6):
    """Brokers of which the first governs, and that own the write partitions of a topic."""
    brokers = await started(service, *names)
    await create_topic(person, topic_of(write_partitions=write_partitions))
    await until_owned(person, write_partitions, by=names)
    await quiet()
    assert brokers[0].runner.elected
    return brokers


def share(found):
    """How many write partitions each has."""
    return dict(sorted(Counter(found.values()).items()))


# -- elections ------------------------------------------------------------------------------


async def test_another_one_is_elected_when_its_session_is_over(service, person):
    """What it had moves at once, for the others were there before."""
    first, *others = await governed(service, person, "a", "b", "c")
    await quiet(SETTLE_MS / 1000)
    began_s = asyncio.get_running_loop().time()
    service.expire(first.session)
    await until_owned(person, 6, by="bc")
    assert asyncio.get_running_loop().time() - began_s < 1
    assert (await person.get(ELECTION)).version == 2
    with pytest.raises(SessionLostError):
        await first.task
    assert first.elected == [True, False]
    assert sorted(each.elected for each in others) == [[], [True]]


async def test_who_takes_no_write_partitions_does_not_tell_a_start(service, person):
    """Brokers of the role `read` go on while all others are started anew."""
    brokers = await governed(service, person, "a", "b")
    (reader,) = await started(service, "r", role="read")
    await reader.stop_running()
    await quiet(SETTLE_MS / 1000)
    for each in brokers:
        await each.session.close()
    await asyncio.gather(*(each.task for each in brokers), return_exceptions=True)
    (first,) = await started(service, "b")
    await quiet(SETTLE_MS / 2000)
    assert first.runner.describe().waiting_for == ["a"]
    reader.stand()
    await first.session.close()
    await asyncio.gather(first.task, return_exceptions=True)
    await until_elected([reader])
    assert reader.runner.describe().waiting_for == ["a", "b"]


async def test_its_end_leaves_nothing_running(service, person):
    """No task is left, and nothing of the cluster is known: after a stop, and with its session."""
    (broker,) = await governed(service, person, "a")
    await broker.stop_running()
    assert repr(broker.runner._governor) == "<Governor [not elected]>"
    before = asyncio.all_tasks()
    broker.stand()
    await until_elected([broker])
    await broker.stop_running()
    assert asyncio.all_tasks() == before
    broker.stand()
    await until_elected([broker])
    await broker.session.close()
    await asyncio.gather(broker.task, return_exceptions=True)
    assert not broker.runner.elected
    assert asyncio.all_tasks() < before


# -- transactions ---------------------------------------------------------------------------


@pytest.mark.parametrize("error", NOT_DONE)
@pytest.mark.parametrize("happened", [False, True])
async def test_whatever_a_transaction_is_refused_for_it_governs_on(
    service, person, error, happened
):
    """What is stored is read, and read again where that fails; nothing is done twice."""
    (broker,) = await governed(service, person, "a")
    session, calls = broker.session, []
    transact, get = session.transact, session.get

    async def refused(changes):
        session.transact, session.get = transact, away
        if happened:
            await transact(changes)
        raise error("refused")

    async def away(path):
        calls.append(path)
        if len(calls) == 3:
            session.get = get
        raise UnavailableError("away")

    session.transact = refused
    await create_topic(person, topic_of("u"))
    await until_owned(person, 12, by="a")
    await quiet()
    assert broker.elected == [True]
    assert (len(calls), (await assignments(person))["u"].epoch) == (3, 1)
    await create_topic(person, topic_of("v"))
    await until_owned(person, 18, by="a")


@pytest.mark.parametrize(
    ("step", "error"),
    [
        ("transact", NodeExistsError),
        ("transact", VersionConflictError),
        ("transact", ChangeUncertainError),
        ("transact", UnavailableError),
        ("get", UnavailableError),
    ],
)
async def test_an_election_that_nobody_else_wins_is_held_again(service, person, step, error):
    """Whoever is refused looks, and stands again; until it is elected, once."""
    session, calls = await service.open(), []
    call = getattr(session, step)

    async def refused(what):
        if what == ELECTION or what[0].path == GOVERNOR:
            calls.append(what)
            if len(calls) < 3:
                raise error("refused")
        return await call(what)

    setattr(session, step, refused)
    runtime = Runtime(mono_s=asyncio.get_running_loop().time, random=random.Random(1).random)
    broker = await Broker.start(session, "a", runtime)
    await until_elected([broker])
    assert len(calls) >= 3
    assert (await person.get(ELECTION)).version == 1


# -- what happens ---------------------------------------------------------------------------


async def test_topics_that_come_change_and_go_are_followed(service, person):
    """Owners come with them; a topic created anew has those of its topic id."""
    await governed(service, person, "a", "b")
    await person.set(TOPICS.child("t"), TOPICS.encode(topic_of(write_partitions=8)), 0)
    await until_owned(person, 8, by=["a", "b"])
    await delete(person, TOPICS.child("t"))
    await create_topic(person, topic_of(write_partitions=3, topic_id="02" * 8))
    await until_owned(person, 3, by=["a", "b"])
    assert (await assignments(person))["t"].topic_id == "02" * 8
    await delete(person, TOPICS.child("t"))
    await until_owned(person, 0, by=[])


async def test_loads_are_followed(service, person):
    """They end moves, and show in the description."""
    first, second = await governed(service, person, "a", "b", write_partitions=60)
    await person.create(f"{DRAINING}/a")
    await quiet(MOVE_TIMEOUT_MS / 2000)
    assert share(await owners(person)) == {"a": 10, "b": 50}
    await second.report(10.0)
    await until_owned(person, 60, by="b")
    await quiet()
    assert first.runner.describe().brokers[1].bytes_per_s == 500


async def test_a_person_who_asks_for_it_has_loads_evened_out(service, person):
    """Each time that `/rebalance` is set, and not because it was set before."""
    first, *_ = await governed(service, person, "a", write_partitions=10)
    await person.set(REBALANCE, b"", 0)
    await quiet()
    await started(service, "b")
    await quiet()
    await first.report()
    assert share(await owners(person)) == {"a": 10}
    await first.stop_running()
    first.stand()
    await quiet()
    assert share(await owners(person)) == {"a": 10}
    await person.set(REBALANCE, b"", 1)
    await quiet()
    assert share(await owners(person)) == {"a": 5, "b": 5}


# -- what cannot be understood --------------------------------------------------------------


async def test_a_broker_that_cannot_be_understood_is_as_good_as_gone(service, person, caplog):
    """At the election and later; it is back when it can be."""
    await person.create(BROKERS.child("z"), b"?", ephemeral=True)
    _, second = await governed(service, person, "a", "b")
    assert "takes broker z for gone" in caplog.text
    await second.session.set(BROKERS.child("b"), b"?", 0)
    await until_owned(person, 6, by="a")
    await second.session.set(BROKERS.child("b"), BROKERS.encode(second._node), 1)
    await person.create(f"{DRAINING}/a")
    await until_owned(person, 6, by="b")


async def test_a_topic_that_cannot_be_understood_stays_as_it_was(service, person, caplog):
    """Whether it was known or not, its assignment is left alone; also when all is read again."""
    (first,) = await governed(service, person, "a")
    await person.set(TOPICS.child("t"), b"?", 0)
    await person.create(TOPICS.child("new"), b"?")
    await quiet()
    before = await assignments(person)
    assert "assigns nothing of topic new" in caplog.text
    for name in ("u", "v"):
        service.lose_answer(first.session)
        await create_topic(person, topic_of(name))
        await until_owned(person, 12 if name == "u" else 18, by="a")
        await quiet()
        await first.stop_running()  # the next one has never known it
        first.stand()
        await until_elected([first])
    after = await assignments(person)
    assert after["t"] == before["t"]
    await person.set(TOPICS.child("t"), TOPICS.encode(topic_of(write_partitions=7)), 1)
    await until_owned(person, 19, by="a")
    assert (await assignments(person))["t"].epoch == before["t"].epoch + 1
