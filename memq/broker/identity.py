"""What the brokers of a cluster must have in common, compared by what is there when one joins.

Theory of operation
-------------------
A broker with another storage, or whose share is not mounted, or with another Kafka would ack
everything and hide its part from the others. Names do not tell: one bucket has many spellings, and
a folder has the right one without its mount. So the cluster has an object in its storage, under a
random key, and the node `/cluster` names it.

Rule 1. A broker that finds no such node puts an object into its own storage, and then makes the
    node that names it. Of several that do, ZooKeeper takes one; all are compared with that.
Rule 2. A broker that joins must find that very object below its own root, and have the cluster id
    and the Kafka that the node names. A storage that does not say is asked again before anything is
    served, unless this process has found the object there before.
Rule 3. A mount may go later: a storage that is no service is looked at again and again.
Rule 4. A ZooKeeper without the node may have lost it, and all topics with it. So the node is made
    neither by a broker that has seen one, nor where Kafka has topics of the cluster and ZooKeeper
    has none.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from memq.broker.backup import check_not_lost
from memq.core.features import MAX_LEVEL, MIN_LEVEL, ActiveLevel
from memq.core.governor.nodes import ACTIVE, CLUSTER, FEATURES, TOPICS, ClusterNode
from memq.core.units import counted
from memq.errors import (
    ChangeUncertainError,
    ConfigError,
    DataLossError,
    NodeExistsError,
    NoNodeError,
    StorageError,
)

if TYPE_CHECKING:
    from memq.broker.context import BrokerContext
    from memq.core.governor.coordination import Coordination

PUT_S = 10.0  # to store a few bytes
LOOK_S = 5.0  # between two looks at a mount


class ClusterIdentity:
    """What a broker has found to be its cluster; see the theory of operation.

    Args:
        context: of the broker.
    """

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._found: ClusterNode | None = None  # when this process joined before

    def __repr__(self) -> str:
        return f"<ClusterIdentity {self._found}>"

    async def check(self, session: Coordination) -> None:
        """Refuse to join a cluster that this broker has not everything in common with.

        Raises:
            ConfigError: its storage, Kafka or cluster id is another one.
            DataLossError: ZooKeeper has lost what it knew of the cluster.
            StorageError: the storage does not say.
            MemqError: as any call.
        """
        while True:
            try:
                node = await session.get(CLUSTER.child("cluster"))
            except NoNodeError:
                await self._make(session)
            else:
                return await self._compare(CLUSTER.decode("cluster", node.data))

    async def watch(self) -> NoReturn:
        """Look whether a mount is still there.

        Raises:
            ConfigError: it is not.
        """
        while True:
            await asyncio.sleep(LOOK_S)
            if self._found is not None and not self._context.storage.remote:
                await self._look(self._found)

    async def _make(self, session: Coordination) -> None:
        context, config = self._context, self._context.config
        topics = await context.queue.topics()
        if self._found is not None or (topics and not await session.children(TOPICS.path)):
            raise self._lost(
                f"does not know it, of which Kafka has {counted(len(topics), 'topic')}"
            )
        there = await session.children(TOPICS.path)
        if not there:
            await check_not_lost(context, config.zookeeper)
        made = ClusterNode(
            cluster_id=config.cluster_id,
            queue=await context.queue.service_id(),
            storage=context.root.uri,
            object=f"clusters/{config.cluster_id}/{context.runtime.token_hex(8)}",
            broker=config.broker_id,
        )
        data = CLUSTER.encode(made)
        put = partial(context.storage.put, made.object, [data], timeout_s=PUT_S)
        await asyncio.get_running_loop().run_in_executor(context.reads, put)
        level = FEATURES.encode(ActiveLevel(MIN_LEVEL if there else MAX_LEVEL))
        for path, content in ((FEATURES.child(ACTIVE), level), (CLUSTER.child("cluster"), data)):
            with contextlib.suppress(NodeExistsError, ChangeUncertainError):
                await session.create(path, content)

    async def _compare(self, made: ClusterNode) -> None:
        config, queue = self._context.config, await self._context.queue.service_id()
        if self._found is not None and self._found.object != made.object:
            raise self._lost(f"knows one that broker {made.broker!r} has made since")
        if made.cluster_id != config.cluster_id:
            raise self._differs(made, "cluster_id", made.cluster_id, config.cluster_id)
        if made.queue and queue and made.queue != queue:
            raise self._differs(made, "queue", f"Kafka {made.queue}", f"Kafka {queue}")
        await self._look(made)
        self._found = made

    async def _look(self, made: ClusterNode) -> None:
        root, loop = self._context.root, asyncio.get_running_loop()
        there = await loop.run_in_executor(self._context.reads, root.are_there, [made.object])
        if there == [False]:
            theirs = f"{made.storage}, where {made.object} lies"
            raise self._differs(made, "storage", theirs, f"{root.uri}, where it does not")
        if not there and self._found is None:
            raise StorageError(f"{root.uri} does not say whether {made.object} is there")

    def _differs(self, made: ClusterNode, option: str, theirs: str, ours: str) -> ConfigError:
        config = self._context.config
        return ConfigError(
            f"{option}: broker {made.broker!r} has made cluster {made.cluster_id!r} with {theirs}; "
            f"broker {config.broker_id!r} has {ours}, and so does not join. Correct the option, or "
            "mount what is not mounted. If all of it was moved, stop all brokers and delete the "
            f"node {config.cluster_id}/cluster in {config.zookeeper}: the next to start makes it"
        )

    def _lost(self, what: str) -> DataLossError:
        config = self._context.config
        return DataLossError(
            f"{config.zookeeper} has lost cluster {config.cluster_id!r}: it {what}. Nothing is "
            "served. Restore it from a backup, or correct the option zookeeper"
        )
