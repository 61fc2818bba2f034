"""What a broker does as the one that governs its cluster, and what people ask of that one.

Every broker stands for election (`memq.zookeeper.governor_runner`). The one that is elected decides
who owns what, and removes what is left of deleted topics; so that is done once, and by somebody.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, TypeVar

import msgspec

from memq.broker.retention import Deletions
from memq.core.governor.assignor import load_assignor
from memq.core.governor.governor import Governor
from memq.core.governor.nodes import BROKERS, DOOMED, DRAINING, GOVERNOR, MEMBERS, REBALANCE
from memq.core.topic import check_topic_name
from memq.core.units import DAY_MS
from memq.errors import (
    ChangeUncertainError,
    NodeExistsError,
    NoNodeError,
    NotHostedError,
    SessionLostError,
    UnavailableError,
    UnknownTopicError,
    VersionConflictError,
)
from memq.zookeeper.folders import Mirror
from memq.zookeeper.governor_runner import GovernorRunner

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memq.broker.context import BrokerContext
    from memq.core.governor.coordination import Coordination
    from memq.core.governor.nodes import BrokerNode
    from memq.core.governor.topics import Topic
    from memq.core.queue import NotificationQueue
    from memq.core.wire.messages import DescribeClusterAnswer
    from memq.zookeeper.shared_catalog import SharedCatalog


T = TypeVar("T")

log = logging.getLogger(__name__)

FORGET_MS = 7 * DAY_MS  # after which a lost broker is expected no more


class Governing:
    """Stands for election, and governs while elected.

    Args:
        context: of the broker.
        brokers: live brokers by id, kept up to date by the caller.
        members: expected brokers by id, kept up to date by the caller.

    Raises:
        ConfigError: the configured assignor cannot be loaded.
    """

    def __init__(
        self,
        context: BrokerContext,
        brokers: Mapping[str, BrokerNode],
        members: Mapping[str, BrokerNode],
    ) -> None:
        self._context = context
        self._brokers = brokers
        self._members = members
        self._assignor = load_assignor(context.config.assignor)
        self._deletions = Deletions(self, context)
        self._session: Coordination | None = None
        self._catalog: SharedCatalog | None = None
        self._runner: GovernorRunner | None = None

    def __repr__(self) -> str:
        return f"<Governing {self._runner!r}>"

    # -- life -------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to remove deleted topics, whenever this broker governs."""
        self._deletions.start()

    async def stop(self) -> None:
        """Remove nothing more."""
        await self._deletions.stop()

    async def run(self, session: Coordination, catalog: SharedCatalog, registered_s: float) -> None:
        """Stand for election, and govern while elected; until the session ends.

        Args:
            session: with the coordination service.
            catalog: of the topics, in that session.
            registered_s: when this broker registered in it.

        Raises:
            MemqError: the session does not serve any more.
        """
        self._session, self._catalog = session, catalog
        runner = self._runner = GovernorRunner(
            session,
            self._context.config.broker_id,
            Governor(self._assignor, services_refuse=self._context.services.refusing),
            registered_s=registered_s,
            runtime=self._context.runtime,
            on_change=lambda _: self._deletions.wanted(),
        )
        try:
            await runner.run()
        finally:
            self._session = self._catalog = self._runner = None

    def brokers_changed(self) -> None:
        """Learn that a broker has come or gone, which may have been making a topic."""
        self._deletions.wanted()

    async def follow_doomed(self, session: Coordination) -> None:
        """See what is doomed, until the session ends.

        Raises:
            MemqError: the session does not serve any more.
        """
        # Names alone would not say that one is made no more, and so to be removed.
        mirror = Mirror(session, DOOMED.path, lambda _name, _node: self._deletions.wanted())
        try:
            await mirror.start()
            self._deletions.wanted()
            await mirror.wait_ended()
        finally:
            await mirror.stop()

    # -- what is left of deleted topics -----------------------------------------------------

    async def doomed(self) -> list[Topic]:
        """Topics that this broker is to remove: none unless it governs."""
        if self._catalog is None or self._runner is None or not self._runner.elected:
            return []
        nodes = await self._catalog.doomed()
        return [
            node.topic
            for node in nodes
            if node.by not in self._brokers
            and not (node.by and await was_published(node.topic, self._context.queue))
        ]

    async def withdraw(self, topic: Topic) -> bool:
        """See to it that its maker cannot come to an end any more."""
        return await _alive(self._catalog).claim_removal(topic)

    async def forget(self, topic: Topic) -> None:
        """Nothing is left of it."""
        await _alive(self._catalog).forget(topic)

    # -- what people ask for ----------------------------------------------------------------

    async def describe(self) -> DescribeClusterAnswer:
        """Return the cluster as its Governor knows it.

        Raises:
            NotHostedError: another broker governs; the error has its address.
            UnavailableError: nobody does.
        """
        if self._runner is None or not self._runner.elected:
            raise await self._who_governs()
        found = self._runner.describe()
        return msgspec.structs.replace(
            found,
            cluster_id=self._context.config.cluster_id,
            governor=self._context.config.broker_id,
            brokers=[
                msgspec.structs.replace(broker, address=node.address, role=node.role)
                for broker in found.brokers
                if (node := self._brokers.get(broker.id)) is not None
            ],
            lost={name: self._members[name].lost_ms for name in self._lost()},
        )

    def _lost(self) -> list[str]:
        """Ids of the members that do not live."""
        return sorted(self._members.keys() - self._brokers.keys())

    async def note_lost(self) -> None:
        """As Governor, store which brokers are gone and since when; forget them in the end."""
        session, now_ms = self._session, self._context.now().wall_ms
        if session is None or self._runner is None or not self._runner.elected:
            return
        for name in self._lost():
            with contextlib.suppress(NoNodeError, VersionConflictError, ChangeUncertainError):
                node = await session.get(MEMBERS.child(name))
                member = MEMBERS.decode(name, node.data)
                if name in await session.children(BROKERS.path):
                    continue  # it has registered, which is seen soon
                if not member.lost_ms:
                    lost = MEMBERS.encode(msgspec.structs.replace(member, lost_ms=now_ms))
                    await session.set(MEMBERS.child(name), lost, node.version)
                elif now_ms - member.lost_ms > FORGET_MS:
                    await session.delete(MEMBERS.child(name), node.version)

    async def _who_governs(self) -> NotHostedError | UnavailableError:
        try:
            governor = (await _alive(self._session).get(GOVERNOR)).data.decode(errors="replace")
        except (NoNodeError, SessionLostError):  # of ours; the next one knows more
            governor = ""
        broker = self._brokers.get(governor)
        if broker is None or governor == self._context.config.broker_id:
            return UnavailableError("no broker governs the cluster now; ask again")
        return NotHostedError(f"broker {governor!r} governs the cluster", broker.address)

    async def drain(self, broker_id: str, *, withdraw: bool) -> None:
        """Have a broker emptied, or no more; one that is lost is forgotten.

        Raises:
            InvalidRequestError: no broker can have this id.
            UnavailableError: the coordination service does not answer.
        """
        check_topic_name(broker_id)  # which broker ids must be like
        session, path = _alive(self._session), f"{DRAINING}/{broker_id}"
        with contextlib.suppress(NodeExistsError, NoNodeError):
            if broker_id in self._lost() and not withdraw:
                path = MEMBERS.child(broker_id)
                await session.delete(path, (await session.get(path)).version)
            elif withdraw:
                await session.delete(path, 0)
            else:
                await session.create(path)

    async def rebalance(self) -> None:
        """Have loads evened out now.

        Raises:
            UnavailableError: the coordination service does not answer.
        """
        session = _alive(self._session)
        node = await session.get(REBALANCE)
        with contextlib.suppress(VersionConflictError):  # somebody else has asked meanwhile
            await session.set(REBALANCE, b"", node.version)


def _alive(of_session: T | None) -> T:
    """Return what a session has, or refuse while there is none."""
    if of_session is None:
        raise UnavailableError("there is no session with the coordination service now; ask again")
    return of_session


async def was_published(topic: Topic, queue: NotificationQueue) -> bool:
    """Return whether a topic that was only announced has come to exist all the same.

    A restore of ZooKeeper from a backup of the moment when it was made takes it back to that.
    """
    for partition in range(topic.config.read_partitions):
        with contextlib.suppress(UnknownTopicError):
            if any(await queue.offsets(topic.queue_topic, partition)):
                log.error(
                    "topic %s is not removed: its creation did not end, but it has notifications",
                    topic.queue_topic,
                )
                return True
    return False
