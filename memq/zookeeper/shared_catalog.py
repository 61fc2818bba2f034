"""The topics of a cluster, kept in the coordination service, which all its brokers change.

Theory of operation
-------------------
A topic exists while there is `/topics/NAME`. What else belongs to it, notifications and objects, is
made before and removed after, in several steps that any failure may part. So there is a second
node, `/doomed/NAME.ID`, for a topic id that does not exist and of which something may be left:
one that is being made, which is *announced*, or one that is to be removed.

Rule 1. A topic id is in `/topics` or in `/doomed`, and never in both, for each step from one
    to the other is one transaction.
Rule 2. To create: `announce`, make what belongs to the topic, `save_new`. A maker that gives up
    in between removes it; so does anybody else who finds it when its maker is gone.
Rule 3. To delete: `delete`, remove what belongs to the topic, `forget`.
Rule 4. Before anything is removed, it is *claimed*. An announcement has version 0, and `save_new`
    asks for that; a claim changes it, and a deletion makes its node with a larger one. So when a
    creation is under way, or nobody knows what became of it, either it has succeeded and there is
    nothing to claim, or it never will.
Rule 5. A topic that was deleted and made again may have the version that it had before. So
    `/topics` has a version too, which grows with each deletion. It is read before a topic is, and
    checked when that is changed: what changes is the topic id that was read, or nothing.
Rule 6. A change without an answer is looked up. When that is not possible either, the error is
    `ChangeUncertainError`, and what is stored is as good as after a crash at this point.

A topic id never comes back, so removing it late, or again, harms no later topic of its name.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from memq.core.governor.coordination import Check, Create, Delete, Set
from memq.core.governor.nodes import DOOMED, TOPICS, DoomedNode
from memq.core.governor.topics import new_topic, unknown_topic
from memq.core.units import counted
from memq.errors import (
    ChangeUncertainError,
    CorruptDataError,
    InvalidRequestError,
    LimitReachedError,
    MemqError,
    NodeExistsError,
    NoNodeError,
    TopicExistsError,
    TopicRecreatedError,
    UnavailableError,
    UnknownTopicError,
    VersionConflictError,
)
from memq.runtime.retry import Backoff
from memq.zookeeper.folders import read_children

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from memq.core.governor.coordination import Change, Coordination
    from memq.core.governor.topics import Topic
    from memq.core.topic import TopicConfig
    from memq.runtime.system import Runtime

log = logging.getLogger(__name__)

ANNOUNCED = 0  # the version of an announcement
MAX_TOPIC_BYTES = 990_000  # the rest of MAX_TRANSACTION_BYTES is for what happens with it
ATTEMPTS = 20  # of one change; others come first, or answers get lost
BACKOFF = Backoff(0.02, 1.0)  # between them; a deletion by another broker takes some milliseconds


_NOT_DONE = (VersionConflictError, NoNodeError, ChangeUncertainError)


class StoredTopic(NamedTuple):
    """A topic as it was read, for a caller that changes it.

    Attributes:
        topic: the topic.
        version: of its node.
        deletions: the version of `/topics` before it was read.
    """

    topic: Topic
    version: int
    deletions: int


class SharedCatalog:
    """See the theory of operation.

    Every method may raise `UnavailableError` (retriable), `SessionLostError`, `ClosedError` and
    `UnauthorizedError`, and those that change something `ChangeUncertainError`.

    Args:
        session: of this broker.
        broker_id: this broker.
        runtime: randomness, for pauses.
    """

    def __init__(self, session: Coordination, broker_id: str, runtime: Runtime) -> None:
        self._session = session
        self._broker_id = broker_id
        self._runtime = runtime

    def __repr__(self) -> str:
        return f"<SharedCatalog of {self._broker_id}>"

    async def get(self, name: str) -> StoredTopic:
        """Read one topic, as it is now.

        Raises:
            UnknownTopicError: there is none of that name.
            CorruptDataError: its node is damaged.
        """
        deletions = (await self._session.get(TOPICS.path)).version
        try:
            node = await self._session.get(TOPICS.child(name))
        except NoNodeError:
            raise unknown_topic(name, await self._session.children(TOPICS.path)) from None
        return StoredTopic(TOPICS.decode(name, node.data), node.version, deletions)

    # -- topics come, change and go -----------------------------------------------------------

    async def new(
        self, config: TopicConfig, *, now_ms: int, topic_id: str, request_id: str
    ) -> Topic:
        """Make a topic that could be added; nothing is stored yet.

        Raises:
            TopicExistsError: the name is taken.
            ConfigError: a value is out of its limits, or there are too many topics; as many more
                as brokers create at the same moment are let through.
            SchemaMismatchError: the schema cannot be stored.
        """
        others = await self._session.children(TOPICS.path)
        return new_topic(config, others, now_ms=now_ms, topic_id=topic_id, request_id=request_id)

    async def announce(self, topic: Topic) -> None:
        """Note that what there is of a topic is to be removed unless it comes to exist.

        Again changes nothing.

        Raises:
            LimitReachedError: the topic is too large to be stored.
        """
        _encoded(topic)
        path, data = _doomed(topic, by=self._broker_id)
        failures = itertools.count()
        while True:
            try:
                return await self._session.create(path, data)
            except NodeExistsError:  # its name is random, so it is this one
                return None
            except ChangeUncertainError as exc:
                await self._pause(next(failures), exc)

    async def save_new(self, topic: Topic) -> None:
        """Let an announced topic exist.

        Raises:
            TopicExistsError: another one of the name does.
            UnavailableError: what was made of it is being removed; create it again.
        """
        changes: list[Change] = [
            Create(TOPICS.child(topic.name), _encoded(topic)),
            Delete(DOOMED.child(topic.queue_topic), ANNOUNCED),
        ]
        failures = itertools.count()
        while True:
            try:
                return await self._session.transact(changes)
            except NodeExistsError:
                raise TopicExistsError(f"topic {topic.name!r} exists already") from None
            except (NoNodeError, VersionConflictError):
                raise UnavailableError(
                    f"topic {topic.name!r} was not created, for another broker has begun to remove "
                    "what was made of it; retry"
                ) from None
            except ChangeUncertainError as exc:
                if await self._look_up(topic, exc):
                    return None
                await self._pause(next(failures), exc)

    async def alter(self, stored: StoredTopic, altered: Topic) -> StoredTopic:
        """Replace a topic by an altered one of the same topic id. Returns it as it is stored.

        Raises:
            VersionConflictError: it was altered or deleted meanwhile; nothing has changed.
            LimitReachedError: it is too large to be stored.
        """
        path, data = TOPICS.child(altered.name), _encoded(altered)
        failures = itertools.count()
        while True:
            wanted = stored._replace(topic=altered, version=stored.version + 1)
            try:
                await self._session.transact(
                    [Check(TOPICS.path, stored.deletions), Set(path, data, stored.version)]
                )
            except _NOT_DONE as exc:
                present = await self._look_up(altered, exc)
                if present is None:
                    raise VersionConflictError(f"topic {altered.name!r} was deleted") from exc
                if (present.topic, present.version) == wanted[:2]:
                    return present
                if present.version != stored.version:
                    raise VersionConflictError(f"topic {altered.name!r} was altered") from exc
                stored = present  # it was another topic that was deleted
                await self._pause(next(failures), exc)
            else:
                return wanted

    async def delete(self, name: str, topic_id: str = "") -> Topic:
        """End a topic; what belongs to it is to be removed. Returns it as it was.

        Args:
            name: of the topic.
            topic_id: that is to go; empty for whichever there is.

        Raises:
            UnknownTopicError: there is none of that name.
            TopicRecreatedError: it is another topic id.
            CorruptDataError: its node is damaged.
        """
        failures = itertools.count()
        while True:
            topic, version, deletions = await self.get(name)
            topic_id = topic_id or topic.topic_id
            if topic.topic_id != topic_id:
                raise TopicRecreatedError(
                    f"topic {name!r} is topic id {topic.topic_id}, not {topic_id}"
                )
            path, data = _doomed(topic, by="")
            changes: list[Change] = [
                Set(TOPICS.path, b"", deletions),
                Delete(TOPICS.child(name), version),
                Create(path, data),
                Set(path, data, ANNOUNCED),
            ]
            try:
                await self._session.transact(changes)
            except _NOT_DONE as exc:
                if isinstance(exc, ChangeUncertainError) and not await self._look_up(topic, exc):
                    return topic
                await self._pause(next(failures), exc)
            else:
                return topic

    # -- what is to be removed ----------------------------------------------------------------

    async def doomed(self) -> list[DoomedNode]:
        """TopicIds of which something may be left, by name.

        Those that a broker is making, or was, name it. A node that cannot be understood removes
        nothing.
        """
        found = []
        for name, node in (await read_children(self._session, DOOMED.path)).items():
            try:
                found.append(DOOMED.decode(name, node.data))
            except CorruptDataError as exc:
                log.warning("nothing is removed for a damaged node: %s", exc)
        return found

    async def claim_removal(self, topic: Topic) -> bool:
        """See to it that a doomed topic will not come to exist; to be called before removing it.

        A creation that is under way fails then. So this is for topics of brokers that are gone, or
        of this one, when it has given up or is another life of it.

        Returns:
            Whether it is to be removed. If not, it exists, or nothing is left of it.

        Raises:
            CorruptDataError: its node is damaged; nothing may be removed.
        """

        async def claim(found: DoomedNode, version: int) -> None:
            if found.by:
                data = DOOMED.encode(msgspec.structs.replace(found, by=""))
                await self._session.set(DOOMED.child(topic.queue_topic), data, version)

        return await self._change_doomed(topic, claim)

    async def forget(self, topic: Topic) -> None:
        """Note that nothing is left of a topic that was claimed. Again changes nothing.

        Raises:
            InvalidRequestError: it was not claimed.
            CorruptDataError: its node is damaged.
        """

        async def remove(found: DoomedNode, version: int) -> None:
            if found.by:
                raise InvalidRequestError(
                    f"topic {topic.queue_topic!r} is announced, and its removal is not claimed"
                )
            await self._session.delete(DOOMED.child(topic.queue_topic), version)

        await self._change_doomed(topic, remove)

    # -- how ----------------------------------------------------------------------------------

    async def _change_doomed(
        self, topic: Topic, change: Callable[[DoomedNode, int], Awaitable[None]]
    ) -> bool:
        """Change the node of a doomed topic as it is now. Returns whether there is one."""
        failures = itertools.count()
        while True:
            try:
                node = await self._session.get(DOOMED.child(topic.queue_topic))
                await change(DOOMED.decode(topic.queue_topic, node.data), node.version)
            except NoNodeError:
                return False
            except (VersionConflictError, ChangeUncertainError) as exc:
                await self._pause(next(failures), exc)
            else:
                return True

    async def _look_up(self, topic: Topic, after: MemqError) -> StoredTopic | None:
        """Look up what is stored of this topic id after a failed change; None if nothing is."""
        try:
            present = await self.get(topic.name)
        except UnknownTopicError:
            return None
        except MemqError as exc:
            raise (after if isinstance(after, ChangeUncertainError) else exc) from exc
        return present if present.topic.topic_id == topic.topic_id else None

    async def _pause(self, failures: int, error: MemqError) -> None:
        """Wait before another attempt; raise when there were enough."""
        if failures + 1 == ATTEMPTS:
            if isinstance(error, ChangeUncertainError):
                raise error
            raise UnavailableError(
                f"{ATTEMPTS} attempts to change a topic met other changes; retry"
            ) from error
        await asyncio.sleep(BACKOFF.full_jitter_s(failures, self._runtime.random))


def _encoded(topic: Topic) -> bytes:
    """Encode a topic's node.

    Raises:
        LimitReachedError: there are too many.
    """
    data = TOPICS.encode(topic)
    if len(data) > MAX_TOPIC_BYTES:
        raise LimitReachedError(
            f"topic {topic.name!r} takes {len(data)} bytes in ZooKeeper with its "
            f"{counted(len(topic.schemas), 'schema')}, more than {MAX_TOPIC_BYTES}; create another "
            "topic with the new schema"
        )
    return data


def _doomed(topic: Topic, *, by: str) -> tuple[str, bytes]:
    """Path and bytes of the node of a doomed topic. It takes no schema to remove one."""
    config = msgspec.structs.replace(topic.config, schema=None)
    bare = msgspec.structs.replace(topic, config=config, schemas={})
    return DOOMED.child(topic.queue_topic), DOOMED.encode(DoomedNode(topic=bare, by=by))
