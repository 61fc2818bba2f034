"""Restores a cluster: its queue in Kafka, and its catalog in the coordination service."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, cast

from memq.broker.restore import Readable
from memq.core.clock import SavedTimes
from memq.core.features import ActiveLevel
from memq.core.governor.nodes import ACTIVE, BROKERS, DOOMED, FEATURES, TOPICS
from memq.core.queue import GROUPS
from memq.errors import LockedError, NodeExistsError
from memq.queue import open_kafka
from memq.zookeeper import open_zookeeper
from memq.zookeeper.folders import make_persistent
from memq.zookeeper.options import ZooKeeperOptions
from memq.zookeeper.shared_access import change_document

if TYPE_CHECKING:
    from collections.abc import Callable

    from memq.broker.config import BrokerConfig
    from memq.broker.restore import TopicPlan
    from memq.core.access.document import AccessDocument
    from memq.core.governor.coordination import Coordination
    from memq.core.governor.topics import Topic
    from memq.core.queue import QueueEntry
    from memq.queue.kafka.queue import KafkaQueue
    from memq.runtime.system import Runtime

AT_ONCE = 2_000  # entries that are read together
AT_ONCE_BYTES = 8 << 20


async def open_shared_queue(config: BrokerConfig, runtime: Runtime) -> SharedQueue:
    """Open the queue in Kafka.

    Raises:
        MemqError: Kafka does not answer, or does not let us in.
    """
    queue = await open_kafka(
        config.queue,
        config.queue_options,
        cluster_id=config.cluster_id,
        broker_id=config.broker_id,
        runtime=runtime,
    )
    return SharedQueue(cast("KafkaQueue", queue))


async def open_shared_catalog(config: BrokerConfig, runtime: Runtime) -> SharedTopics:
    """Open the catalog in ZooKeeper.

    Raises:
        LockedError: a broker of the cluster lives.
        MemqError: ZooKeeper does not answer, or does not let us in.
    """
    servers = f"{config.zookeeper.rstrip('/')}/{config.cluster_id}"
    options = ZooKeeperOptions.read(servers, config.zookeeper_options)
    session = await open_zookeeper(options, runtime)
    try:
        await make_persistent(session)
        living = await session.children(BROKERS.path)
    except BaseException:
        await session.close()
        raise
    if living:
        await session.close()
        raise LockedError(f"broker {living[0]} of {config.cluster_id} runs: stop all brokers")
    return SharedTopics(session)


class SharedTopics:
    """Topics, users and rules in the coordination service of a cluster whose brokers are stopped.

    Args:
        session: with it.
    """

    def __init__(self, session: Coordination) -> None:
        self._session = session

    async def close(self) -> None:
        """End the session."""
        await self._session.close()

    async def topics(self) -> list[Topic]:
        """Topics that ZooKeeper has."""
        names = await self._session.children(TOPICS.path)
        return [
            TOPICS.decode(name, (await self._session.get(TOPICS.child(name))).data)
            for name in sorted(names)
        ]

    async def deleted(self) -> set[str]:
        """Ids of topics that are to be removed."""
        return {name.rpartition(".")[2] for name in await self._session.children(DOOMED.path)}

    async def save_topic(self, topic: Topic) -> None:
        """Put a topic into ZooKeeper."""
        with contextlib.suppress(NodeExistsError):  # made by an attempt that had no answer
            await self._session.create(TOPICS.child(topic.name), TOPICS.encode(topic))

    async def save_access(self, document: AccessDocument) -> None:
        """Put users and rules back, if there are none."""

        def edit(now: AccessDocument) -> AccessDocument:
            return document if not now.users and not now.rules else now

        await change_document(self._session, edit, lambda: document)

    async def save_level(self, level: int) -> None:
        """Store the active feature level, if there is none."""
        with contextlib.suppress(NodeExistsError):
            await self._session.create(FEATURES.child(ACTIVE), FEATURES.encode(ActiveLevel(level)))


class SharedQueue:
    """The queue in Kafka of brokers that are stopped.

    Args:
        queue: in Kafka.
    """

    def __init__(self, queue: KafkaQueue) -> None:
        self._queue = queue

    async def close(self) -> None:
        """Close it."""
        await self._queue.close()

    async def readable(self, topic: Topic) -> Readable | str:
        """Read what Kafka has of a topic."""
        name, found = topic.queue_topic, Readable([], [], [], [], {})
        if name not in await self._queue.topics():
            return f"Kafka has no {name}"
        for partition in range(topic.config.read_partitions):
            start, end = await self._queue.offsets(name, partition)
            entries: list[QueueEntry] = []
            at = start
            while at < end:
                entries += await self._queue.fetch(
                    name, partition, at, max_entries=AT_ONCE, max_bytes=AT_ONCE_BYTES
                )
                at = entries[-1].offset + 1
            found.entries.append(entries)
            found.starts.append(start)
            found.lost.append([])
            found.ends.append(end)
        for group in await self._queue.groups(name):
            found.groups[group] = await self._queue.committed(group, name)
        return found

    async def restore(self, plan: TopicPlan, progress: Callable[[str, int], None]) -> None:
        """Make the topic hold what is planned; Kafka must not have it."""
        name = plan.topic.queue_topic
        progress(f"notifications of {name}", 0)
        await self._queue.restore_topic(name, plan.entries, plan.starts, plan.ends)
        await self._queue.fence(name, GROUPS)
        for group, offsets in plan.groups.items():
            await self._queue.commit(group, name, offsets)
        await self._queue.release(name, GROUPS)

    async def save_times(self, times: SavedTimes) -> None:
        """See to it that time goes on from there, if it is not further already."""
        now = await self._queue.times()
        await self._queue.save_times(SavedTimes(*map(max, zip(now, times, strict=True))))
