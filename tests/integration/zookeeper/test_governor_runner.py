"""Governors on a real ZooKeeper: one is elected, and replaced when its session ends."""

from __future__ import annotations

import pytest

from memq.core.governor.nodes import ELECTION, GOVERNOR
from memq.errors import SessionLostError
from memq.runtime.system import SYSTEM
from tests.contracts.coordination import SHORT_S
from tests.unit.zookeeper.brokers import (
    Broker,
    create_topic,
    topic_of,
    until_elected,
    until_owned,
)


async def test_one_governs_until_its_session_ends(service):
    """Then the other one does, and everything is its own; the first one learns of it."""
    person = await service.open()
    first = await Broker.start(await service.open(session_timeout_s=SHORT_S), "a", SYSTEM)
    await until_elected([first])
    second = await Broker.start(await service.open(), "b", SYSTEM)
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
    await second.stop_running()
