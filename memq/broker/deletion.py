"""Removing what is left of deleted topics: their notifications, then their objects.

It goes by the list of doomed topics that is kept beside the topics, so it goes on after a crash and
after an error of queue or storage, again and again until nothing is left. Everything it removes is
named by topic and incarnation; so it never meets what belongs to a later topic of the same name.

An object store may carry out a put that its client has given up, some time later, and so may
another broker that has not seen yet that the topic is gone. So where that may be, nothing is
removed before `LANDING_S`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from typing import TYPE_CHECKING, Protocol

from memq.core.units import counted
from memq.errors import MemqError, UnknownTopicError
from memq.runtime.retry import Backoff

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from memq.broker.context import BrokerContext
    from memq.core.governor.topics import Topic
    from memq.core.queue import NotificationQueue

log = logging.getLogger(__name__)

BACKOFF = Backoff(base_s=2.0, cap_s=60.0)  # nobody waits for it
LANDING_S = 60.0  # after which no put lands any more that was given up
DELETE_AT_ONCE = 1_000  # objects; as many as S3 removes by one request


async def was_published(topic: Topic, queue: NotificationQueue) -> bool:
    """Whether a topic that was only announced has come to exist all the same.

    A restore of ZooKeeper from a backup of the moment when it was made takes it back to that.
    """
    for partition in range(topic.config.read_partitions):
        with contextlib.suppress(UnknownTopicError):
            if any(await queue.offsets(topic.queue_topic, partition)):
                log.error(
                    "topic %s is not removed: it is announced only, and has notifications",
                    topic.queue_topic,
                )
                return True
    return False


class DoomedTopics(Protocol):
    """Which topics are to be removed; kept durably."""

    async def doomed(self) -> list[Topic]:
        """Topics of which something may be left that this broker is to remove."""

    async def withdraw(self, topic: Topic) -> bool:
        """See to it, durably, that it cannot come to exist any more, before more is removed.

        Returns:
            False when it has come to exist, or nothing is left of it: nothing may be removed.
        """

    async def forget(self, topic: Topic) -> None:
        """Note that nothing is left of it."""


class Deletions:
    """Removes doomed topics in a background task.

    Args:
        topics: that are to be removed.
        context: of the broker.
    """

    def __init__(self, topics: DoomedTopics, context: BrokerContext) -> None:
        self._topics = topics
        self._context = context
        self._uploads: dict[str, Sequence[Future[None]]] = {}  # by incarnation, as is the next
        self._seen_s: dict[str, float] = {}  # when it was first to be removed
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Deletions [{counted(len(self._seen_s), 'topic')} left]>"

    def start(self) -> None:
        """Begin with what an earlier life of the broker has left."""
        self._wanted.set()
        self._task = self._context.fatal_errors.spawn("deletion", self._run())

    async def stop(self) -> None:
        """Stop; what is left is removed after the next start."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def wanted(self) -> None:
        """There are more doomed topics."""
        self._wanted.set()

    def add(self, topic: Topic, uploads: Sequence[Future[None]] = ()) -> None:
        """A topic is doomed; it is removed once these uploads have ended: they may store more."""
        self._uploads[topic.incarnation] = uploads
        self.wanted()

    async def _run(self) -> None:
        failures = 0
        while True:
            self._wanted.clear()
            if await self._remove_all():
                failures = 0
                await self._wanted.wait()
            else:
                await asyncio.sleep(BACKOFF.full_jitter_s(failures, self._context.runtime.random))
                failures += 1

    async def _remove_all(self) -> bool:
        """Remove every doomed topic; False when something is left."""
        done = True
        try:
            doomed = await self._topics.doomed()
        except MemqError as exc:
            log.warning("what is to be removed of deleted topics is not known yet: %s", exc)
            return False
        for topic in doomed:
            if self._may_be_stored(topic):
                done = False
                continue
            try:
                if not await self._topics.withdraw(topic):
                    continue
                await self._context.queue.delete_topic(topic.queue_topic)
                count = await asyncio.get_running_loop().run_in_executor(
                    self._context.reads, self._delete_objects, topic
                )
                await self._topics.forget(topic)
                self._uploads.pop(topic.incarnation, None)
                self._seen_s.pop(topic.incarnation, None)
            except MemqError as exc:
                done = False
                log.warning("deleted topic %s is not removed yet: %s", topic.queue_topic, exc)
            else:
                removed = counted(count, "object")
                log.info("deleted topic %s is removed, %s", topic.queue_topic, removed)
        return done

    def _may_be_stored(self, topic: Topic) -> bool:
        """Tell whether an object of a topic may still be stored, by this broker or another."""
        now_s = self._context.runtime.mono_s()
        seen_s = self._seen_s.setdefault(topic.incarnation, now_s)
        if not all(upload.done() for upload in self._uploads.get(topic.incarnation, ())):
            return True
        lands_later = self._context.storage.remote or self._context.shared
        return lands_later and now_s < seen_s + LANDING_S

    def _delete_objects(self, topic: Topic) -> int:
        objects = self._context.objects_of(topic)
        count = 0
        while keys := [info.key for info in itertools.islice(objects, DELETE_AT_ONCE)]:
            self._context.storage.delete(*keys)
            count += len(keys)
        return count
