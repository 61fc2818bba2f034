"""Topics of a cluster on a real ZooKeeper."""

from __future__ import annotations

import msgspec
import pytest

from memq.core.governor.nodes import TOPICS, make_persistent
from memq.core.governor.shared_catalog import MAX_TOPIC_BYTES, SharedCatalog
from memq.core.runtime import SYSTEM
from tests.unit.core.governor.brokers import topic_of


@pytest.fixture
async def session(service):
    """That of the first broker."""
    session = await service.open()
    await make_persistent(session)
    return session


@pytest.fixture
async def catalog(session):
    """As the first broker has it."""
    return SharedCatalog(session, "a", SYSTEM)


@pytest.fixture
async def other(service, catalog):
    """As another broker has it."""
    return SharedCatalog(await service.open(), "b", SYSTEM)


async def created(catalog, topic):
    """The topic, when it exists."""
    await catalog.announce(topic)
    await catalog.save_new(topic)
    return topic


async def test_the_largest_topic_lives_and_goes(catalog, other):
    """Every transaction with it is one that the server takes."""
    topic = topic_of("t" * 200)
    filled = topic.schemas | {"0" * 16: b"x" * (MAX_TOPIC_BYTES * 3 // 4 - 1_000)}
    topic = msgspec.structs.replace(topic, schemas=filled)
    missing = MAX_TOPIC_BYTES - len(TOPICS.encode(topic))
    topic = await created(catalog, msgspec.structs.replace(topic, request_id="x" * missing))
    stored = await other.get(topic.name)
    assert len(TOPICS.encode(stored.topic)) == MAX_TOPIC_BYTES
    await other.alter(stored, topic)
    assert await catalog.delete(topic.name) == topic
    assert await other.claim_removal(topic)
    await other.forget(topic)
    assert await other.doomed() == []
