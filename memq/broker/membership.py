"""A broker's part in its cluster: its session, its registration, and what it sees of the others.

Theory of operation
-------------------
A broker is part of the cluster as long as one session with the coordination service lasts. While
its ephemeral node `/brokers/ID` is there, others believe that it lives.

Rule 1. It registers when it has seen what is stored, and when it serves. It takes over nothing
    before that.
Rule 2. It acks, and tells members of groups what they hold, while its lease is valid
    (`memq.core.governor.lease`). So it stops before its node can be gone, whatever it is told.
Rule 3. When the session is lost, all that runs here is closed, and another session is opened. With
    that it joins as a broker would that was just started: it catches up with the running time of
    the others while it has nothing that is measured by it.
Rule 4. Of two processes with one broker id the second waits until the node of the first is gone.
Rule 5. A broker that stops says first that it accepts nothing more, and lets the Governor give what
    it has to others, as long as there are any that accept.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from memq.broker.governing import Governing, was_published
from memq.broker.identity import ClusterIdentity
from memq.core.access.document import decode_document
from memq.core.features import MAX_LEVEL, MIN_LEVEL, ActiveLevel, check_final, check_level
from memq.core.governor.nodes import (
    ACCESS,
    ACCESS_DOCUMENT,
    ACTIVE,
    ASSIGNMENTS,
    BROKERS,
    DOOMED,
    FEATURES,
    LOADS,
    MEMBERS,
    TOPICS,
    BrokerNode,
    Folder,
    LoadsNode,
)
from memq.core.log_events import event
from memq.errors import (
    ChangeUncertainError,
    CorruptDataError,
    MemqError,
    NodeExistsError,
    NoNodeError,
    QueueError,
    SessionLostError,
    StorageError,
    UnavailableError,
    VersionConflictError,
)
from memq.runtime.retry import Backoff
from memq.zookeeper.folders import Mirror, make_persistent
from memq.zookeeper.governor_runner import until_one_fails
from memq.zookeeper.shared_access import change_document
from memq.zookeeper.shared_catalog import SharedCatalog

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from memq.broker.access_control import AccessControl
    from memq.broker.cluster_topics import ClusterTopics
    from memq.broker.context import BrokerContext
    from memq.core.access.document import AccessDocument
    from memq.core.governor.assignment import Partition
    from memq.core.governor.coordination import Coordination, Node

T = TypeVar("T")

log = logging.getLogger(__name__)

AGAIN = Backoff(base_s=0.2, cap_s=5.0)  # between attempts to join
REPORT_S = 10.0  # how often traffic is reported, and running time saved
OVER_S = 60.0  # about which traffic is averaged
KNOWN_S = 20.0  # from when on it is told: until then producers may not have found this broker
SILENT_S = 1.5  # beyond when the leader was to be asked again; it answers within milliseconds
SAME_LOAD = 0.1  # traffic that has changed by less is not reported


class ClusterMembership:
    """See the theory of operation.

    Args:
        context: of the broker.
        topics: of the broker.
        open_session: opens a session with the coordination service.
        control: to which users and rules are told.

    Attributes:
        governing: what it does as the broker that governs, if it is.
    """

    def __init__(
        self,
        context: BrokerContext,
        topics: ClusterTopics,
        open_session: Callable[[], Awaitable[Coordination]],
        control: AccessControl,
    ) -> None:
        self._context = context
        self._control = control
        self._topics = topics
        self._open_session = open_session
        self._session: Coordination | None = None
        self._registered = False
        self._mirrors: list[Mirror] = []
        self._stopping = False
        self._brokers: dict[str, BrokerNode] = {}
        self._members: dict[str, BrokerNode] = {}
        self._registered_s = 0.0
        self._problem = ""  # of the last session, or attempt at one
        self._identity = ClusterIdentity(context)
        self.governing = Governing(context, self._brokers, self._members)
        context.leased = self._leased

    def __repr__(self) -> str:
        if self._session is None:
            return "<ClusterMembership [no session]>"
        state = "registered" if self._registered else "joining"
        return f"<ClusterMembership [{state} | {self._session.lease!r}]>"

    def _leased(self) -> bool:
        session = self._session
        if session is None or not self._registered:
            return False
        return session.lease.valid(self._context.runtime.boot_s())

    def trouble(self) -> str:
        """Why ZooKeeper does not serve this broker now; empty when it does."""
        if self._session is None:
            return self._problem
        silent_s = self._session.lease.silent_s(self._context.runtime.boot_s())
        return f"no answer for {silent_s:.0f} s" if silent_s > SILENT_S else ""

    # -- life -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open a session, and see what is stored; nothing runs here yet.

        A storage that is away is waited for.

        Raises:
            MemqError: the coordination service does not serve us, or we do not belong there.
        """
        for failures in itertools.count():
            try:
                await self._join()
            except StorageError as exc:
                log.warning("broker %s is not part of the cluster: %s", self._id, exc)
            else:
                return
            await self._end_session()
            await asyncio.sleep(AGAIN.equal_jitter_s(failures, self._context.runtime.random))

    async def run(self) -> None:
        """Be part of the cluster, from one session to the next; until it is cancelled."""
        failures = 0
        self.governing.start()
        while True:
            try:
                if self._session is None:
                    await self._join()
                await self._register()
                failures = 0
                await self._serve()
            except MemqError as exc:
                of_session = isinstance(exc, SessionLostError | UnavailableError)
                self._problem, self._context.apart = (
                    (str(exc), "") if of_session else ("", str(exc))
                )
                left = event("broker_left", broker=self._id, reason=str(exc))
                log.warning("broker %s is not part of the cluster: %s", self._id, exc, extra=left)
            await self._leave()
            await asyncio.sleep(AGAIN.equal_jitter_s(failures, self._context.runtime.random))
            failures += 1

    async def hand_over(self, timeout_s: float) -> None:
        """Accept nothing more, and wait until others have what runs here, if there are others."""
        self._stopping = True
        if self._session is None or not self._registered:
            return
        try:
            await self._session.set(BROKERS.child(self._id), self._node(), 0)
            await self._topics.wait_moved(
                lambda: not self._topics.running() or not self._others_accept(), timeout_s
            )
        except MemqError as exc:
            log.warning("cannot hand over write partitions: %s", exc)

    async def close(self) -> None:
        """End the session; others may take over at once."""
        await self.governing.stop()
        session, path = self._session, MEMBERS.child(self._id)
        if session is not None and self._registered and self._stopping:
            try:
                await session.delete(path, (await session.get(path)).version)
            except NoNodeError:
                log.debug("nobody expects this broker")
            except MemqError as exc:
                log.warning("cannot deregister, so others report this broker as lost: %s", exc)
        await self._end_session()

    # -- a session --------------------------------------------------------------------------

    async def _join(self) -> None:
        context = self._context
        session = self._session = await self._open_session()
        await make_persistent(session)
        await self._identity.check(session)
        in_queue = await context.queue.topics()  # first: whatever comes to be is doomed before
        doomed = await session.children(DOOMED.path)
        self._mirrors = [
            Mirror(session, BROKERS.path, self._broker_changed),
            Mirror(session, TOPICS.path, self._topic_changed),
            Mirror(session, ASSIGNMENTS.path, self._assignment_changed),
            Mirror(session, MEMBERS.path, self._member_changed),
            Mirror(session, ACCESS, self._access_changed),
            Mirror(session, FEATURES.path, self._level_changed),
        ]
        for mirror in self._mirrors:
            await mirror.start()
        brokers, topics, assignments, members, access, features = (
            each.nodes for each in self._mirrors
        )
        self._level_changed(ACTIVE, features.get(ACTIVE))
        self._access_changed(ACCESS_DOCUMENT, access.get(ACCESS_DOCUMENT))
        self._brokers.clear()
        for name, node in brokers.items():
            self._broker_changed(name, node)
        for name in self._members.keys() | members.keys():
            self._member_changed(name, members.get(name))
        for name in self._topics.known() | topics.keys() | assignments.keys():
            self._topic_changed(name, topics.get(name))
            self._assignment_changed(name, assignments.get(name))
        doomed += await session.children(DOOMED.path)  # or was deleted meanwhile
        self._topics.in_queue([name for name in in_queue if name not in doomed])
        context.times.clock.catch_up((await context.queue.times()).running_ms)

    async def _register(self) -> None:
        """Say that this broker lives; a node that is there is waited for until it is gone."""
        session = self._session
        assert session is not None  # noqa: S101 - it was joined
        path = BROKERS.child(self._id)
        while True:
            with contextlib.suppress(NodeExistsError, ChangeUncertainError):
                await session.create(path, self._node(), ephemeral=True)
                break
            try:
                found = await session.get(path)
            except NoNodeError:
                continue
            if found.owner == session.session_id:
                break
            log.warning(
                "broker %s is registered already, by its previous process or another one with this "
                "broker_id; waiting for that session to end",
                self._id,
            )
            async for node in session.watch(path):
                if node is None or node.created != found.created:
                    break
        self._registered_s = self._context.runtime.mono_s()
        self._registered = True
        self._context.apart = ""

    async def _serve(self) -> None:
        """Take over what is assigned to this broker, until the session does not serve any more."""
        session = self._session
        assert session is not None  # noqa: S101 - it was joined
        catalog = SharedCatalog(session, self._id, self._context.runtime)
        for left in await catalog.doomed():
            # Of a life before this one, which did not come to its end.
            if left.by == self._id and not await was_published(left.topic, self._context.queue):
                await catalog.claim_removal(left.topic)
        self._topics.joined(catalog)
        joined = event("broker_joined", broker=self._id)
        log.info("broker %s is part of the cluster", self._id, extra=joined)
        await until_one_fails(
            *(mirror.wait_ended() for mirror in self._mirrors),
            self._report(session),
            self.governing.run(session, catalog, self._registered_s),
            self.governing.follow_doomed(session),
            self._watch_registration(session),
            self._make_wanted(),
            self._topics.look_after(),
            self._identity.watch(),
        )

    async def _watch_registration(self, session: Coordination) -> None:
        """End with an error when this broker's node is gone though its session lives.

        Somebody has deleted it: others believe that this broker is dead, and act upon it.
        """
        async for node in session.watch(BROKERS.child(self._id)):
            if node is None or node.owner != session.session_id:
                raise UnavailableError("its node in the coordination service was deleted")

    async def _make_wanted(self) -> None:
        """Make the topics that the configuration asks for, however long that takes; never ends."""
        for failures in itertools.count():
            try:
                await self._topics.start()
                break
            except MemqError as exc:
                log.warning("cannot create the topics of the configuration, retrying: %s", exc)
            await asyncio.sleep(AGAIN.equal_jitter_s(failures, self._context.runtime.random))
        await asyncio.Event().wait()

    async def _leave(self) -> None:
        self._registered = False
        await self._topics.left()
        await self._end_session()

    async def _end_session(self) -> None:
        self._registered = False
        for mirror in self._mirrors:
            await mirror.stop()
        self._mirrors = []
        if self._session is not None:
            await self._session.close()
        self._session = None  # only now: a caller that cancels this ends it

    # -- what is seen -----------------------------------------------------------------------

    def _broker_changed(self, name: str, node: Node | None) -> None:
        found = self._decoded(BROKERS, name, node)
        if found is not None:
            self._brokers[name] = found
        elif node is None:
            self._brokers.pop(name, None)
        self._topics.brokers_changed(self._brokers)
        self.governing.brokers_changed()
        self._count()

    def _member_changed(self, name: str, node: Node | None) -> None:
        before, found = self._members.pop(name, None), self._decoded(MEMBERS, name, node)
        if found is not None:
            self._members[name] = found
            if found.lost_ms and not (before and before.lost_ms):
                log.warning(
                    "broker %s at %s is lost, it did not stop in order",
                    name,
                    found.address,
                    extra=event("broker_lost", broker=name, address=found.address),
                )
        self._count()

    def _count(self) -> None:
        count = self._context.metrics.brokers
        count.labels("present").set(len(self._brokers))
        count.labels("expected").set(len(self._brokers.keys() | self._members.keys()))

    def _topic_changed(self, name: str, node: Node | None) -> None:
        found = self._decoded(TOPICS, name, node)
        if found is not None or node is None:
            self._topics.topic_changed(name, found, -1 if node is None else node.version)

    def _assignment_changed(self, name: str, node: Node | None) -> None:
        found = self._decoded(ASSIGNMENTS, name, node)
        if found is not None or node is None:
            self._topics.assignment_changed(name, found)

    def _access_changed(self, name: str, node: Node | None) -> None:
        """Let other users and rules hold; those before stay when the node is gone or damaged."""
        if name != ACCESS_DOCUMENT or node is None:
            return
        try:
            self._control.adopt(decode_document(node.data))
        except CorruptDataError as exc:
            log.error("invalid node in ZooKeeper ignored: %s", exc)  # noqa: TRY400 - expected, and told in full

    def _level_changed(self, name: str, node: Node | None) -> None:
        """Go on at another level. One that is not known ends the session; none is not lower."""
        if name == ACTIVE and node is not None:
            found = FEATURES.decode(name, node.data).level
            cluster = f"cluster {self._context.config.cluster_id!r}"
            self._context.level = check_level(found, cluster)

    async def finalize(self, level: int) -> None:
        """Raise the active feature level of the cluster.

        Raises:
            InvalidRequestError: a broker does not know it, or the active one is higher.
            UnavailableError: ZooKeeper is away.
        """
        known = (self._members | self._brokers).items()
        ranges = {name: each.levels or (1, 1) for name, each in known}
        check_final(level, self._context.level, ranges)
        if self._session is None:
            raise UnavailableError(f"the level is in ZooKeeper, which is away: {self._problem}")
        stored = FEATURES.encode(ActiveLevel(level))
        await self._say(self._session, FEATURES.child(ACTIVE), stored)

    async def change(self, edit: Callable[[AccessDocument], AccessDocument]) -> AccessDocument:
        """Store users and rules for the whole cluster; see `AccessStore`."""
        if self._session is None:
            raise UnavailableError(
                f"users and rules are in ZooKeeper, which is away: {self._problem}"
            )
        document = await change_document(self._session, edit, lambda: self._control.document)
        self._control.adopt(document)  # the mirror brings it as well, a little later
        return document

    def _decoded(self, folder: Folder[T], name: str, node: Node | None) -> T | None:
        """Decode a node; log one that cannot be understood, which changes nothing."""
        if node is None:
            return None
        try:
            return folder.decode(name, node.data)
        except CorruptDataError as exc:
            log.error("invalid node in ZooKeeper ignored: %s", exc)  # noqa: TRY400 - expected, and told in full
            return None

    # -- what is said -----------------------------------------------------------------------

    @property
    def _id(self) -> str:
        return self._context.config.broker_id

    def _node(self) -> bytes:
        config = self._context.config
        return BROKERS.encode(
            BrokerNode(
                id=config.broker_id,
                address=self._context.address,
                zone=config.zone,
                rack=config.rack,
                capacity=config.capacity,
                role=config.role,
                accepting=not self._stopping,
                listeners=self._context.other_addresses() or msgspec.UNSET,
                levels=(MIN_LEVEL, MAX_LEVEL),
            )
        )

    def _others_accept(self) -> bool:
        """Return whether any other broker takes write partitions."""
        return any(
            broker.resources().accepting
            for name, broker in self._brokers.items()
            if name != self._id
        )

    async def _report(self, session: Coordination) -> None:
        """Say what runs here and how much is written to it; keep how far time has come."""
        context, meter = self._context, TrafficMeter()
        said: dict[Partition, float | None] | None = None
        while True:
            seen = self._topics.moves
            loads = meter.measure(self._topics.received(), context.runtime.mono_s())
            try:
                if said is None:  # not before it has registered: a mere member is lost
                    await self._say(session, MEMBERS.child(self._id), self._node())
                if said is None or _differ(said, loads):
                    said = None
                    node = LOADS.encode(LoadsNode.create(loads))
                    await self._say(session, LOADS.child(self._id), node, ephemeral=True)
                    said = loads
                await self.governing.note_lost()
                await context.times.keep(context.now())
            except (
                UnavailableError, ChangeUncertainError, QueueError, VersionConflictError
            ) as exc:  # fmt: skip
                log.warning("cannot report traffic or save the time, retrying: %s", exc)
            await self._topics.wait_moved(partial(self._has_moved, seen), REPORT_S)

    def _has_moved(self, seen: int) -> bool:
        return self._topics.moves != seen

    async def _say(
        self, session: Coordination, path: str, data: bytes, *, ephemeral: bool = False
    ) -> None:
        try:
            found = await session.get(path)
        except NoNodeError:
            await session.create(path, data, ephemeral=ephemeral)
        else:
            await session.set(path, data, found.version)


def _differ(
    said: Mapping[Partition, float | None], loads: Mapping[Partition, float | None]
) -> bool:
    """Return whether a status differs enough to be published again."""
    if said.keys() != loads.keys():
        return True
    return any(
        old is None or new is None or abs(new - old) > SAME_LOAD * max(new, old)
        for key, new in loads.items()
        if (old := said[key]) != new
    )


class _Measured(NamedTuple):
    """What was counted of a write partition, when, the rate as of then, and since when."""

    total_bytes: int
    at_s: float
    bytes_per_s: float
    since_s: float


class TrafficMeter:
    """Rates from counters. It knows no clock: times are given, in seconds."""

    def __init__(self) -> None:
        self._measured: dict[Partition, _Measured] = {}

    def __repr__(self) -> str:
        return f"<TrafficMeter [{len(self._measured)} write partitions]>"

    def measure(
        self, totals: Mapping[Partition, int], now_s: float
    ) -> dict[Partition, float | None]:
        """Bytes per second of each of these write partitions; None where it is not known yet.

        Args:
            totals: bytes received since each began to run here. What is not named is forgotten.
            now_s: the clock.
        """
        measured: dict[Partition, _Measured] = {}
        for key, total in totals.items():
            last = self._measured.get(key)
            if last is None or total < last.total_bytes:  # it has started over
                measured[key] = _Measured(total, now_s, 0.0, now_s)
            elif now_s <= last.at_s:
                measured[key] = last
            else:
                passed_s = now_s - last.at_s
                rate = (total - last.total_bytes) / passed_s
                # What was before the first of it does not count: unknown is not zero.
                all_s = now_s - last.since_s
                weight = math.expm1(-passed_s / OVER_S) / math.expm1(-all_s / OVER_S)
                smooth = last.bytes_per_s + weight * (rate - last.bytes_per_s)
                measured[key] = _Measured(total, now_s, smooth, last.since_s)
        self._measured = measured
        return {
            key: each.bytes_per_s if now_s - each.since_s >= KNOWN_S else None
            for key, each in measured.items()
        }
