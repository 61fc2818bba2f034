"""Topics of a cluster on a real ZooKeeper."""

import msgspec

from memq.core.governor.nodes import TOPICS
from memq.runtime.system import SYSTEM
from memq.zookeeper.folders import make_persistent
from memq.zookeeper.shared_catalog import MAX_TOPIC_BYTES, SharedCatalog
from tests.unit.zookeeper.brokers import topic_of


async def test_the_largest_topic_lives_and_goes(service):
    """Every transaction with it is one that the server takes."""
    session = await service.open()
    await make_persistent(session)
    catalog = SharedCatalog(session, "a", SYSTEM)
    other = SharedCatalog(await service.open(), "b", SYSTEM)
    topic = topic_of("t" * 200)
    filled = topic.schemas | {"0" * 16: b"x" * (MAX_TOPIC_BYTES * 3 // 4 - 1_000)}
    topic = msgspec.structs.replace(topic, schemas=filled)
    missing = MAX_TOPIC_BYTES - len(TOPICS.encode(topic))
    topic = msgspec.structs.replace(topic, request_id="x" * missing)
    await catalog.announce(topic)
    await catalog.save_new(topic)
    stored = await other.get(topic.name)
    assert len(TOPICS.encode(stored.topic)) == MAX_TOPIC_BYTES
    await other.alter(stored, topic)
    assert await catalog.delete(topic.name) == topic
    assert await other.claim_removal(topic)
    await other.forget(topic)
    assert await other.doomed() == []
