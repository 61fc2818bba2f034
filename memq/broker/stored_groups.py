"""What is stored of consumer groups: offsets, and who may hold what, in the notification queue.

`memq.core.group` decides, and has the theory. Whatever is stored of one group is stored one after
the other, from when it was found good; so what a later request finds is what holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from memq.errors import FencedError, NotHostedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from memq.broker.context import BrokerContext
    from memq.broker.hosted_topic import HostedTopic
    from memq.broker.topics import Topics
    from memq.core.governor.topics import Topic
    from memq.core.group import GroupCoordinator
    from memq.core.wire.messages import CommitOffsets

log = logging.getLogger(__name__)


async def restore_groups(
    topic: Topic, coordinator: GroupCoordinator, context: BrokerContext
) -> None:
    """Learn who held what of a topic at its last coordinator, before anybody is served.

    Raises:
        QueueError: it cannot be read.
    """
    queue, name = context.queue, topic.queue_topic
    for group, holdings in (await queue.holdings(name)).items():
        if holdings is None:
            problem = "what is stored of its members is damaged"
            log.warning(
                "group %s of %s waits for its longest session: %s", group, topic.name, problem
            )
        partitions, now_ms = topic.config.read_partitions, context.now().mono_ms
        coordinator.restore(group, topic.name, partitions, holdings, now_ms)


class StoredGroups:
    """Stores what the coordinator has decided.

    Args:
        context: of the broker.
        topics: that it hosts.
        coordinator: who holds which partition.
    """

    def __init__(
        self, context: BrokerContext, topics: Topics, coordinator: GroupCoordinator
    ) -> None:
        self._context = context
        self._topics = topics
        self._coordinator = coordinator
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    def __repr__(self) -> str:
        return f"<StoredGroups {self._coordinator!r}>"

    @contextlib.asynccontextmanager
    async def _storing(self, group: str, topic: Topic) -> AsyncIterator[HostedTopic]:
        """Hold the lock of a group; what is checked within is checked after all waiting.

        Raises:
            NotHostedError: another broker has the groups by now.
        """
        async with self._locks.setdefault((group, topic.queue_topic), asyncio.Lock()):
            hosted = self._topics.coordinated(topic.name, topic.topic_id)
            try:
                yield hosted
            except FencedError as exc:
                raise NotHostedError(
                    f"the groups of {topic.name!r} have gone to another broker; ask again ({exc})"
                ) from exc

    async def commit(self, request: CommitOffsets, topic: Topic) -> None:
        """Store next offsets of a group, which are not past the ends.

        Raises:
            NotHostedError: another broker has the groups by now.
            NotOwnerError, InvalidRequestError: they are not to be stored.
            QueueError: they may not be stored.
        """
        offsets = {position.partition: position.offset for position in request.offsets}
        async with self._storing(request.group, topic) as hosted:
            now_ms = self._context.now().mono_ms
            if self._coordinator.check_commit(request, now_ms):
                await self._context.queue.commit(request.group, topic.queue_topic, offsets)
                hosted.group_changes += 1
                self._coordinator.committed(request, now_ms)

    async def save_holdings(self, group: str, topic: Topic) -> None:
        """Store who holds what, before anybody who is told of it can work on it."""
        coordinator = self._coordinator
        if coordinator.unsaved(group, topic.name) is None:
            return
        async with self._storing(group, topic):
            holdings = coordinator.unsaved(group, topic.name)
            if holdings is not None:
                coordinator.storing(group, topic.name)
                await self._context.queue.hold(group, topic.queue_topic, holdings)
                # It may be the group of a later topic by now, for which nothing is stored.
                self._topics.coordinated(topic.name, topic.topic_id)
                coordinator.saved(group, topic.name, holdings)

    async def tidy(self) -> None:
        """Store of groups that have ended that nobody holds anything: no start waits for them.

        Raises:
            MemqError: it could not be stored; it is tried again with the next call.
        """
        coordinator = self._coordinator
        mine = dict.fromkeys(self._topics.coordinated_names())
        for group, name in [each for each in coordinator.left_over() if each[1] in mine]:
            topic = self._topics.coordinated(name).topic
            async with self._storing(group, topic):
                if (group, name) in coordinator.left_over():  # it may have come to life again
                    await self._context.queue.hold(group, topic.queue_topic, {})
                    self._topics.coordinated(name, topic.topic_id)
                    coordinator.saved(group, name, {})

    async def delete(self, group: str, topic: Topic) -> None:
        """Forget a group without live members.

        Raises:
            NotHostedError: another broker has the groups by now.
            InvalidRequestError: it has some.
            QueueError: it may not be forgotten.
        """
        async with self._storing(group, topic) as hosted:
            self._coordinator.check_idle(group, topic.name, self._context.now().mono_ms)
            await self._context.queue.delete_group(group, topic.queue_topic)
            hosted.group_changes += 1
