"""The I/O around the Governor: it stands for election, and governs while it is elected.

Theory of operation
-------------------
It belongs to one session, and ends with it. `memq.zookeeper.election` says who governs and
`memq.core.governor.governor` decides; this tells the Governor what happens, and carries out what it
wants.

Rule 1. What the Governor begins with is read after its election, and so includes all that any other
    one has done before. Brokers, topics, drains and loads are followed from then on; assignments
    are not, for nobody else changes them.
Rule 2. `written` is told only of a transaction that was answered. After any other end of one, the
    election is read, and then what is stored.
Rule 3. It is deposed when that election is another one than its own, or when `/governor` is not its
    own any more. Then it stands again.
Rule 4. A node that cannot be understood is passed over, and logged. Its broker is then as good as
    not there. A topic stays as it was known; and when nothing was known, its assignment is left
    alone.
Rule 5. How much longer than this broker another one has been there, the service says, by its clock:
    it has made the nodes of both.
Rule 6. What a broker has reported is told again when the Governor may have passed it over, because
    it knew the broker or its assignments later than that.

What happens together is decided together: after an event it waits for others, for `GATHER_S`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, NoReturn

from memq.core.governor.coordination import Create, Delete, Set
from memq.core.governor.governor import (
    AssignmentTransaction,
    ClusterSnapshot,
    ReadAgain,
    StoredNode,
    TopicPartitions,
)
from memq.core.governor.nodes import (
    ASSIGNMENTS,
    BROKERS,
    DRAINING,
    ELECTION,
    GOVERNOR,
    LOADS,
    REBALANCE,
    TOPICS,
)
from memq.errors import (
    ChangeUncertainError,
    CorruptDataError,
    InvalidRequestError,
    MemqError,
    NodeExistsError,
    NoNodeError,
    UnavailableError,
    VersionConflictError,
)
from memq.runtime.retry import Backoff
from memq.zookeeper.election import stand
from memq.zookeeper.folders import Mirror, read_children

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from memq.core.governor import coordination
    from memq.core.governor.assignment import BrokerResources
    from memq.core.governor.coordination import Check, Coordination, Node
    from memq.core.governor.governor import Change, Governor
    from memq.core.wire.messages import DescribeClusterAnswer
    from memq.runtime.system import Runtime

log = logging.getLogger(__name__)

TICK_S = 1.0  # what is due at some time is noticed so late
GATHER_S = 0.05  # a rack that fails takes its brokers along within moments
BACKOFF = Backoff(0.05, 5.0)  # a service that is away is asked now and then
NOT_DONE = (
    ChangeUncertainError,
    NodeExistsError,
    NoNodeError,
    UnavailableError,
    VersionConflictError,
)


class GovernorRunner:
    """Runs the Governor, as the theory of operation says.

    Args:
        session: of this broker; nobody else stands for election in it.
        broker_id: this broker.
        governor: what decides.
        registered_s: when this broker registered, by the runtime's monotonic clock.
        runtime: clock and randomness.
        on_change: told whether this broker governs, whenever that has changed.
    """

    def __init__(
        self,
        session: Coordination,
        broker_id: str,
        governor: Governor,
        *,
        registered_s: float,
        runtime: Runtime,
        on_change: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self.elected = False
        self._session = session
        self._broker_id = broker_id
        self._governor = governor
        self._registered_ms = int(registered_s * 1000)
        self._runtime = runtime
        self._on_change = on_change

    def __repr__(self) -> str:
        state = repr(self._governor) if self.elected else "stands for election"
        return f"<GovernorRunner {self._broker_id} [{state}]>"

    def describe(self) -> DescribeClusterAnswer:
        """Describe the cluster, as `Governor.describe`, while this broker is elected."""
        return self._governor.describe()

    async def run(self) -> NoReturn:
        """Stand for election and govern, until the session ends.

        Raises:
            SessionLostError, ClosedError, UnauthorizedError: the session does not serve any more.
        """
        failures = 0
        while True:
            try:
                election = await stand(self._session, self._broker_id)
                failures = 0
                await self._govern(election)
            except _DeposedError as exc:
                log.warning("Governor: broker %s is deposed: %s", self._broker_id, exc)
            except UnavailableError:
                await asyncio.sleep(BACKOFF.equal_jitter_s(failures, self._runtime.random))
                failures += 1

    async def _govern(self, election: Check) -> NoReturn:
        log.info("Governor: broker %s is elected, election %d", self._broker_id, election.version)
        term = _Term(self._session, self._broker_id, self._governor, election, self._runtime)
        try:
            await term.begin(self._registered_ms)
            self._tell(elected=True)
            await term.govern()
        finally:
            self._governor.deposed()
            self._tell(elected=False)
            await term.end()

    def _tell(self, *, elected: bool) -> None:
        if elected != self.elected:
            self.elected = elected
            self._on_change(elected)


class _DeposedError(Exception):
    """Another broker governs, or may."""


class _Term:
    """One election of this broker, from its beginning to its end."""

    def __init__(
        self,
        session: Coordination,
        broker_id: str,
        governor: Governor,
        election: Check,
        runtime: Runtime,
    ) -> None:
        self._session = session
        self._broker_id = broker_id
        self._governor = governor
        self._election = election
        self._runtime = runtime
        self._topics_known: dict[str, TopicPartitions] = {}
        self._happened = asyncio.Event()
        self._failures = 0  # in a row
        self._brokers = Mirror(session, BROKERS.path, self._broker_changed)
        self._topics = Mirror(session, TOPICS.path, self._topic_changed)
        self._draining = Mirror(session, DRAINING, self._draining_changed)
        self._loads = Mirror(session, LOADS.path, self._loads_changed)
        self._mirrors = (self._brokers, self._topics, self._draining, self._loads)

    async def begin(self, registered_ms: int) -> None:
        """Read what there is, and tell the Governor that it is elected."""
        await asyncio.gather(*(mirror.start() for mirror in self._mirrors))
        stored = await self._read_stored()
        # From here on nothing waits, so what was followed meanwhile is all in the mirrors.
        found = [self._broker(*each) for each in sorted(self._brokers.nodes.items())]
        brokers = [broker for broker in found if broker is not None]
        topics = [self._topic(*each) for each in sorted(self._topics.nodes.items())]
        self._topics_known = {topic.name: topic for topic in topics if topic is not None}
        snapshot = ClusterSnapshot(
            brokers=brokers,
            topics=[*self._topics_known.values()],
            assignments=self._of_known_topics(stored),
            draining=sorted(self._draining.nodes),
        )
        first_ms = self._first_ms(registered_ms, brokers)
        self._governor.elected(snapshot, self._election, self._now_ms(), registered_ms=first_ms)
        self._tell_all_loads()

    async def govern(self) -> NoReturn:
        """Tell the Governor what happens, and carry out what it wants.

        Raises:
            _DeposedError: it governs no more.
            MemqError: the session does not serve any more.
        """
        await until_one_fails(
            self._decide(),
            self._follow_governor(),
            self._follow_rebalance(),
            *(mirror.wait_ended() for mirror in self._mirrors),
        )

    async def end(self) -> None:
        """Follow nothing any more."""
        for mirror in self._mirrors:
            await mirror.stop()

    # -- what it wants ------------------------------------------------------------------------

    async def _decide(self) -> NoReturn:
        while True:
            found = self._governor.tick(self._now_ms())
            if isinstance(found, AssignmentTransaction):
                await self._carry_out(found)
            elif isinstance(found, ReadAgain):
                await self._read_again()
            else:
                await self._wait()

    async def _carry_out(self, transaction: AssignmentTransaction) -> None:
        changes = [_change(each) for each in transaction.changes]
        try:
            await self._session.transact([transaction.check, *changes])
        except NOT_DONE as exc:
            log.info("Governor: reads what is stored, for a transaction has failed: %s", exc)
            self._governor.refused(transaction.number)
            await self._pause()
        else:
            self._failures = 0
            self._governor.written(transaction.number, self._now_ms())

    async def _read_again(self) -> None:
        while True:
            try:
                stored = await self._read_stored()
            except UnavailableError:
                await self._pause()
            else:
                self._governor.read(self._of_known_topics(stored))
                self._tell_all_loads()
                return

    async def _read_stored(self) -> dict[str, StoredNode]:
        """Read every assignment node, after a check that this election is still the last one."""
        election = await self._session.get(ELECTION)
        if election.version != self._election.version:
            raise _DeposedError(f"broker {election.data.decode(errors='replace')!r} was elected")
        nodes = await read_children(self._session, ASSIGNMENTS.path)
        return {name: StoredNode(node.data, node.version) for name, node in nodes.items()}

    def _of_known_topics(self, stored: dict[str, StoredNode]) -> dict[str, StoredNode]:
        """Without those of topics that are there and were never understood; see rule 4."""
        return {
            name: node
            for name, node in stored.items()
            if name in self._topics_known or name not in self._topics.nodes
        }

    async def _wait(self) -> None:
        """Wait until something happens, and for what happens together with it; or for a tick."""
        try:
            async with asyncio.timeout(TICK_S):
                await self._happened.wait()
        except TimeoutError:
            return
        await asyncio.sleep(GATHER_S)
        self._happened.clear()

    async def _pause(self) -> None:
        await asyncio.sleep(BACKOFF.equal_jitter_s(self._failures, self._runtime.random))
        self._failures += 1

    def _now_ms(self) -> int:
        return int(self._runtime.mono_s() * 1000)

    # -- what happens -------------------------------------------------------------------------

    async def _follow_governor(self) -> None:
        async for node in self._session.watch(GOVERNOR):
            if node is None or node.owner != self._session.session_id:
                raise _DeposedError(f"{GOVERNOR} is not its own any more")

    async def _follow_rebalance(self) -> None:
        watch = self._session.watch(REBALANCE)
        await anext(watch)  # what was asked before
        async for _ in watch:
            self._governor.rebalance_requested()
            self._happened.set()

    def _broker_changed(self, name: str, node: Node | None) -> None:
        broker = None if node is None else self._broker(name, node)
        if broker is None:
            self._governor.broker_gone(name)
        else:
            self._governor.broker_registered(broker)
            self._tell_loads(name)
        self._happened.set()

    def _topic_changed(self, name: str, node: Node | None) -> None:
        if node is None:
            self._topics_known.pop(name, None)
            self._governor.topic_deleted(name)
        elif (topic := self._topic(name, node)) is not None:
            self._topics_known[name] = topic
            self._governor.topic_changed(topic)
        self._happened.set()

    def _draining_changed(self, name: str, node: Node | None) -> None:
        if node is None:
            self._governor.drain_withdrawn(name)
        else:
            self._governor.drain_requested(name)
        self._happened.set()

    def _loads_changed(self, name: str, _: Node | None) -> None:
        self._tell_loads(name)
        self._happened.set()

    # -- what nodes hold ----------------------------------------------------------------------

    def _first_ms(self, registered_ms: int, brokers: list[BrokerResources]) -> int:
        """Return when the first broker that takes write partitions registered; else now."""
        nodes = self._brokers.nodes
        first_ms = [nodes[broker.id].created_ms for broker in brokers if broker.accepting]
        if not first_ms or self._broker_id not in nodes:
            return self._now_ms()
        return registered_ms + min(first_ms) - nodes[self._broker_id].created_ms

    def _broker(self, name: str, node: Node) -> BrokerResources | None:
        try:
            return BROKERS.decode(name, node.data).resources()
        except CorruptDataError as exc:
            log.error("Governor: takes broker %s for gone: %s", name, exc)  # noqa: TRY400 - expected, and told in full
            return None

    def _topic(self, name: str, node: Node) -> TopicPartitions | None:
        try:
            topic = TOPICS.decode(name, node.data)
        except CorruptDataError as exc:
            log.error("Governor: assigns nothing of topic %s: %s", name, exc)  # noqa: TRY400 - expected, and told in full
            return None
        return TopicPartitions(name, topic.topic_id, topic.config.write_partitions)

    def _tell_all_loads(self) -> None:
        for name in sorted(self._loads.nodes):
            self._tell_loads(name)

    def _tell_loads(self, name: str) -> None:
        node = self._loads.nodes.get(name)
        if node is None:
            return
        try:
            self._governor.loads_reported(name, LOADS.decode(name, node.data).by_partition())
        except (CorruptDataError, InvalidRequestError) as exc:
            log.warning("Governor: passes over the loads of broker %s: %s", name, exc)


def _change(change: Change) -> coordination.Change:
    """Translate what the Governor wants to the coordination service."""
    path = ASSIGNMENTS.child(change.topic)
    if change.data is None:
        return Delete(path, change.version)
    return (
        Create(path, change.data) if change.version < 0 else Set(path, change.data, change.version)
    )


async def until_one_fails(*coroutines: Coroutine[Any, Any, None]) -> NoReturn:
    """Run them until one fails, which is how they end; then none is left, and its error raised."""
    tasks = [asyncio.ensure_future(each) for each in coroutines]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    # The end of a session comes from all of them. What is more than that, is told.
    raise min(
        (end for end in ends if isinstance(end, Exception)),
        key=lambda end: isinstance(end, MemqError),
    )
