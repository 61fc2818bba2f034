"""Removing what is left of deleted topics: their notifications, then their objects.

It goes by the catalog's list of doomed topics, so it goes on after a crash and after an error of
queue or storage, again and again until nothing is left. Everything it removes is named by topic and
incarnation; so it never meets what belongs to a later topic of the same name.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from memq.core.storage.keys import topic_objects
from memq.errors import MemqError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from memq.broker.services import Services
    from memq.core.governor.catalog import Catalog, Topic

log = logging.getLogger(__name__)

RETRY_BASE_S = 1.0  # first back-off after an error; doubled per attempt, with full jitter
RETRY_CAP_S = 60.0


class Deletions:
    """Removes doomed topics in a background task.

    Args:
        catalog: knows which topics are doomed.
        services: the broker's seams.
    """

    def __init__(self, catalog: Catalog, services: Services) -> None:
        self._catalog = catalog
        self._services = services
        self._uploads: dict[str, Sequence[Future[None]]] = {}  # by incarnation
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Deletions [{len(self._catalog.doomed())} doomed]>"

    def start(self) -> None:
        """Begin with what an earlier life of the broker has left."""
        self._wanted.set()
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._ended)

    async def stop(self) -> None:
        """Stop; what is left is removed after the next start."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def add(self, topic: Topic, uploads: Sequence[Future[None]] = ()) -> None:
        """Remove what there is of a topic, once these uploads have ended: they may store more."""
        self._catalog.doom(topic)
        self._uploads[topic.incarnation] = uploads
        self._wanted.set()

    def spare(self, topic: Topic) -> None:
        """The topic has come to exist: it is not doomed any more."""
        try:
            self._catalog.forget(topic)
        except MemqError as exc:  # it means nothing beside the topic's own file
            log.warning("topic %s exists, and is still announced: %s", topic.queue_topic, exc)

    async def _run(self) -> None:
        attempt = 0
        while True:
            self._wanted.clear()
            if await self._remove_all():
                attempt = 0
                await self._wanted.wait()
            else:
                attempt += 1
                await asyncio.sleep(self._services.backoff_s(RETRY_BASE_S, RETRY_CAP_S, attempt))

    async def _remove_all(self) -> bool:
        """Remove every doomed topic; False when something is left."""
        done = True
        for topic in self._catalog.doomed():
            uploads = self._uploads.get(topic.incarnation, ())
            if not all(upload.done() for upload in uploads):
                done = False
                continue
            try:
                self._catalog.withdraw(topic)
                await self._services.queue.delete_topic(topic.queue_topic)
                count = await asyncio.get_running_loop().run_in_executor(
                    self._services.executor, self._delete_objects, topic
                )
                self._catalog.forget(topic)
            except MemqError as exc:
                done = False
                log.warning("deleted topic %s is not removed yet: %s", topic.queue_topic, exc)
            else:
                self._uploads.pop(topic.incarnation, None)
                log.info("deleted topic %s is removed, %d objects", topic.queue_topic, count)
        return done

    def _delete_objects(self, topic: Topic) -> int:
        storage, cluster_id = self._services.storage, self._services.cluster_id
        count = 0
        for info in topic_objects(storage, cluster_id, topic.name, topic.incarnation):
            storage.delete(info.key)
            count += 1
        return count

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._services.bugs.report("deletion", error)
