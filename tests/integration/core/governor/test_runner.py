"""Governors on a real ZooKeeper: elections, and what arrives late of one that was replaced."""

from __future__ import annotations

import asyncio

import pytest

from memq.core.governor.coordination import Check
from memq.core.governor.election import stand
from memq.core.governor.nodes import ELECTION, GOVERNOR
from memq.core.runtime import SYSTEM
from memq.errors import SessionLostError
from tests.contracts.coordination import SHORT_S
from tests.unit.core.governor.brokers import (
    Broker,
    assignments,
    create_topic,
    delete,
    topic_of,
    until,
    until_elected,
    until_owned,
)


@pytest.fixture
async def person(service):
    """A session of somebody who looks, and changes things by hand."""
    return await service.open()


async def two(service, **options):
    """Two brokers, of which the first governs; with options of its session."""
    first = await Broker.start(await service.open(**options), "a", SYSTEM)
    await until_elected([first])
    return first, await Broker.start(await service.open(), "b", SYSTEM)


async def stopped(*brokers):
    """Let them stand no more."""
    for each in brokers:
        await each.stop_running()


async def test_one_governs_until_its_session_ends(service, person):
    """Then the other one does, and everything is its own; the first one learns of it."""
    first, second = await two(service, session_timeout_s=SHORT_S)
    await create_topic(person, topic_of())
    await until_owned(person, 6, by="ab")
    service.refuse(first.session)
    await until_owned(person, 6, by="b")
    assert (await person.get(GOVERNOR))[:3] == (b"b", 0, second.session.session_id)
    assert (await person.get(ELECTION))[:2] == (b"b", 2)
    service.restore(first.session)
    with pytest.raises(SessionLostError):
        await first.task
    assert (first.elected, second.elected) == ([True, False], [True])
    await stopped(second)


async def test_what_arrives_late_of_one_that_was_replaced_is_refused(service, person):
    """Its session lives, and its transaction was sent before the election of the other one."""
    first = await Broker.start(await service.open(), "a", SYSTEM)
    await create_topic(person, topic_of("t"))
    await until_owned(person, 6, by="a")
    governor = first.runner._governor
    await create_topic(person, topic_of("u"))
    while "u" not in governor._topics:
        await asyncio.sleep(0)
    service.proxies[first.session].freeze("to_upstream")  # while it gathers what happens
    while governor._in_flight is None:
        await asyncio.sleep(0)
    assert [change.topic for change in governor._in_flight.changes] == ["u"]
    await delete(person, GOVERNOR)
    election = await stand(await service.open(), "b")  # and decides nothing yet
    assert election == Check(ELECTION, 2)
    service.thaw(first.session)

    async def deposed():
        return None if first.runner.elected else True

    await until(deposed)
    assert list(await assignments(person)) == ["t"]
    await stopped(first)


async def test_brokers_that_start_together_elect_one(service, person):
    """And make what every cluster has."""
    sessions = [await service.open() for _ in range(5)]
    brokers = await asyncio.gather(
        *(Broker.start(each, f"b{n}", SYSTEM) for n, each in enumerate(sessions))
    )
    await create_topic(person, topic_of(write_partitions=20))
    await until_owned(person, 20, by=[each.name for each in brokers])
    assert (await person.get(ELECTION)).version == 1
    assert [each.elected for each in brokers].count([True]) == 1
    await stopped(*brokers)
