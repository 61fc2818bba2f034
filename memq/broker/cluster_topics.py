"""The topics of a broker in a cluster: what runs here is made equal to what the nodes say.

Theory of operation
-------------------
Every broker knows every topic, so any of them answers what is asked about one, and reads. A write
partition runs at one broker, its owner by the topic's assignment node, which the Governor writes.

For each topic one task compares what runs here with the topic's node and its assignment node, and
acts upon the difference; whatever comes meanwhile, it finds when it compares again. So it does not
matter how often a node changed, or which of two changes was seen first.

Rule 1. A write partition that is to run here is taken over: fenced in the queue, so that no earlier
    owner publishes any more, and rebuilt from what was published. Only then does it accept
    anything. That is safe even if others believe to own it.
Rule 2. An owner that lives is waited for, for up to `RELEASE_S`: it lets go by itself, and to be
    fenced would cost it the transactions of all that it has.
Rule 3. A write partition that is to run elsewhere is drained and closed, and then released in the
    queue; what was claimed here and does not run is released as well, for others wait for a live
    owner. What a topic that is gone had here is closed, and so is what another broker has fenced;
    if it is to be here all the same, it is taken over again.
Rule 4. When the session with the coordination service is over, everything that runs here is closed
    at once, and nothing is acked any more; others may have it by then. A new session begins as a
    new broker would, with nothing.
Rule 5. The owner of write partition 0 has the topic's groups, its retention and its orphans. It
    learns who held what before it answers for them, and forgets it all before it lets go.

What this broker has seen may be a little old. Before a client is told that a topic, a schema or an
topic id is not there, the coordination service is asked (`look`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, ClassVar, NamedTuple, NoReturn

import msgspec

from memq.broker.hosted_topic import HostedTopic, take_over
from memq.broker.stored_groups import restore_groups
from memq.broker.topics import Topics
from memq.core.checksum import crc32c
from memq.core.governor.nodes import READ_ROLE
from memq.core.governor.topics import altered_topic, unknown_topic
from memq.core.queue import GROUPS
from memq.core.topic import TOPIC_ID_DIGITS, TopicConfig
from memq.core.wire.messages import BrokerInfo
from memq.errors import (
    ClosedError,
    DataLossError,
    InvalidRequestError,
    MemqError,
    NotHostedError,
    SessionLostError,
    TopicExistsError,
    TopicRecreatedError,
    UnavailableError,
    UnknownTopicError,
    VersionConflictError,
)
from memq.queue.waiters import Waiters
from memq.runtime.retry import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from memq.broker.context import BrokerContext
    from memq.core.governor.assignment import Partition
    from memq.core.governor.nodes import BrokerNode, TopicAssignment
    from memq.core.governor.topics import Topic
    from memq.core.group import GroupCoordinator
    from memq.zookeeper.shared_catalog import SharedCatalog

log = logging.getLogger(__name__)

AGAIN = Backoff(base_s=0.1, cap_s=5.0)  # between attempts to take over or to let go
RELEASE_S = 60.0  # for which a live owner is waited for; draining takes an upload, or its deadline
LOOK_S = 1.0  # between two looks whether what is waited for is still to come, or what runs is ours
SEEN_S = 10.0  # for which a change of a topic is waited for, until this broker has seen it
DELETED_S = 5.0  # for what is under way of a topic that is deleted
_MOVES = "/moves"  # whose waiting is for what runs here; no topic has such a name
_NEWS = "/news/"  # with a topic, whose waiting is for what clients are told of it


@contextlib.contextmanager
def _asked_again() -> Iterator[None]:
    """Let a client ask again whose request the end of our session has met: it changed nothing."""
    try:
        yield
    except (SessionLostError, ClosedError) as exc:
        raise UnavailableError(
            f"this broker has lost its session with the coordination service; ask again: {exc}"
        ) from exc


class _Stored(NamedTuple):
    """What the nodes of a topic say, as far as seen.

    Attributes:
        topic: None when there is no such topic.
        version: of the topic's node.
        assignment: None when there is none.
    """

    topic: Topic | None = None
    version: int = -1
    assignment: TopicAssignment | None = None


class ClusterTopics(Topics):
    """Every topic of the cluster; see the theory of operation.

    Args:
        context: of the broker.
        coordinator: of the groups of topics whose write partition 0 is here.

    Attributes:
        moves: how often what runs here has changed, or who lives.
    """

    may_lag: ClassVar[bool] = True

    def __init__(self, context: BrokerContext, coordinator: GroupCoordinator) -> None:
        super().__init__(context)
        self._coordinator = coordinator
        self._catalog: SharedCatalog | None = None  # of the session, while there is one
        self._session = 0  # counts them; what began in an earlier one comes to nothing
        self._stored: dict[str, _Stored] = {}
        self._taken_back: dict[str, str] = {}  # topics that are not served, and why
        self._brokers: Mapping[str, BrokerNode] = {}
        self._wanted: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._gone: dict[str, list[HostedTopic]] = {}  # topic ids that are to be closed
        self._waiters = Waiters()
        self.moves = 0

    # -- what is told -----------------------------------------------------------------------

    def joined(self, catalog: SharedCatalog) -> None:
        """There is a session, and what is stored has been told; from now on it is followed."""
        self._session += 1
        self._catalog = catalog
        for name in self._stored:
            self._follow(name)

    async def left(self) -> None:
        """End the session: close all that runs here, and take over nothing more."""
        self._session += 1
        self._catalog = None
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()
        self._wanted.clear()
        gone = [hosted for of_name in self._gone.values() for hosted in of_name]
        self._gone.clear()
        for hosted in (*self.hosted(), *gone):
            await self._close(hosted, list(hosted.partitions))
        self._moved()

    def brokers_changed(self, brokers: Mapping[str, BrokerNode]) -> None:
        """Learn which brokers live."""
        self._brokers = brokers
        self._context.queue.wake_owners()
        self._waiters.wake_all()
        self._moved()

    def topic_changed(self, name: str, topic: Topic | None, version: int = -1) -> None:
        """Learn what the node of a topic says; None when there is none."""
        stored = self._stored.get(name, _Stored())
        self._taken_back.pop(name, None)
        known = stored.topic
        same = known is not None and topic is not None and known.topic_id == topic.topic_id
        if same and (version, topic) != (stored.version, known) and version <= stored.version:
            what = "is there as it was before it was altered"
            self._take_back(name, what, "restart the brokers to take it")
        else:
            self._store(name, stored._replace(topic=topic, version=version))

    def assignment_changed(self, name: str, assignment: TopicAssignment | None) -> None:
        """Learn what the assignment node of a topic says; None when there is none."""
        stored = self._stored.get(name, _Stored())
        self._store(name, stored._replace(assignment=assignment))

    def in_queue(self, queue_topics: Collection[str]) -> None:
        """Learn which topics the queue has. The nodes should name all of them."""
        for queue_topic in queue_topics:
            name = queue_topic.rpartition(".")[0]
            topic = self._stored.get(name, _Stored()).topic
            if topic is None or topic.queue_topic not in queue_topics:
                there = f"{self._context.config.cluster_id}.{queue_topic}"
                what = f"is not there, but {there} in Kafka is"
                self._take_back(name, what, "delete that to do without it")

    def _take_back(self, name: str, what: str, way_out: str) -> None:
        """Serve no more what ZooKeeper has lost something of."""
        self._taken_back[name] = (
            f"topic {name!r} {what}: ZooKeeper was restored from an older backup, so it is not "
            f"served. Restore a newer one, or {way_out}"
        )
        log.error("not served: %s", self._taken_back[name])
        self._store(name, self._stored.get(name, _Stored()))

    def known(self) -> set[str]:
        """Names of all topics of which anything was told."""
        return {*self._stored}

    def _store(self, name: str, stored: _Stored) -> None:
        """Take note of what nodes say; what is known of a topic changes at once."""
        if stored.topic is None and stored.assignment is None:
            self._stored.pop(name, None)
        else:
            self._stored[name] = stored
        try:
            self._know(name, None if name in self._taken_back else stored.topic)
        except MemqError as exc:
            log.error("invalid topic %s in ZooKeeper, serving its last valid state: %s", name, exc)  # noqa: TRY400 - expected, and told in full
        self._waiters.wake(name)
        self._waiters.wake(_NEWS + name)  # there may be thousands of producers of other topics
        self._waiters.wake(_NEWS)
        if self._catalog is not None:
            self._follow(name)

    def _know(self, name: str, topic: Topic | None) -> None:
        hosted = self._hosted.get(name)
        if hosted is not None and (topic is None or topic.topic_id != hosted.topic.topic_id):
            del self._hosted[name]
            self._forget_groups(hosted)
            self._gone.setdefault(name, []).append(hosted)
            hosted = None
        if topic is None:
            return
        if hosted is None:
            self._hosted[name] = HostedTopic(topic, self._context)
        elif hosted.topic != topic:
            hosted.set(topic)

    # -- what runs here, for others ---------------------------------------------------------

    def running(self) -> int:
        """Count the write partitions that run here."""
        return sum(len(hosted.partitions) for hosted in self.hosted())

    def received(self) -> dict[Partition, int]:
        """Bytes that came for each write partition that runs here, since it began to."""
        return {
            (hosted.topic.name, number): partition.bytes_received
            for hosted in self.hosted()
            for number, partition in hosted.partitions.items()
        }

    async def look_after(self) -> NoReturn:
        """Watch for write partitions here that others have fenced, until it is cancelled.

        A broker may fence what has an owner already: if it was told of nothing yet, or its session
        ended in the middle of a take-over.
        """
        while True:
            await asyncio.sleep(LOOK_S)
            for name, hosted in self._hosted.items():
                if self._lost(hosted):
                    self._follow(name)

    async def wait_moved(self, ready: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until what runs here, and who lives, is as wished."""
        return await self._waiters.wait(_MOVES, ready, timeout_s)

    def _moved(self) -> None:
        self.moves += 1
        self._waiters.wake(_MOVES)

    # -- what there is ----------------------------------------------------------------------

    def missing(self, name: str) -> MemqError:
        """Why a topic is not hosted."""
        if name in self._taken_back:
            return DataLossError(self._taken_back[name])
        stored = self._stored.get(name)
        if stored is not None and stored.topic is not None:
            return UnavailableError(f"topic {name!r} is being made or deleted; retry")
        return unknown_topic(name, self._hosted)

    def catalog(self) -> list[Topic]:
        """Return all topics there are, as ZooKeeper told."""
        for why in self._taken_back.values():
            raise UnavailableError(why)
        stored = [self._stored[name].topic for name in sorted(self._stored)]
        return [topic for topic in stored if topic is not None]

    def hosts(self, hosted: HostedTopic) -> list[str]:
        """Addresses of the owners; empty for one that does not live."""
        owners = self._owners(hosted.topic)
        found = [self._brokers.get(owner) for owner in owners]
        return ["" if broker is None else broker.address for broker in found]

    def brokers(self) -> list[BrokerInfo]:
        """Return all live brokers, sorted."""
        return [
            BrokerInfo(id=name, address=node.address, zone=node.zone, reads=node.role == READ_ROLE)
            for name, node in sorted(self._brokers.items())
        ]

    def addresses(self, listener: str) -> dict[str, str]:
        """Return those of all live brokers that have such a listener."""
        return {
            node.address: node.listeners[listener]
            for node in self._brokers.values()
            if node.listeners and listener in node.listeners
        }

    def version(self, names: Collection[str]) -> str:
        """Stands for what `info` says of some topics."""
        told: list[object] = []
        for name in names:
            hosted = self._hosted.get(name)
            if hosted is not None:
                told.append((hosted.topic, self.hosts(hosted)))
        return f"{crc32c(msgspec.json.encode(told)):08x}"

    async def changed(self, names: Collection[str], known: str, timeout_s: float) -> None:
        """Wait until these topics have another version than `known`."""
        place = _NEWS + (next(iter(names)) if len(names) == 1 else "")
        await self._waiters.wait(place, lambda: self.version(names) != known, timeout_s)

    def not_hosted(self, hosted: HostedTopic, write_partition: int) -> MemqError:
        """Why a write partition does not run here; one that is not known here may be new."""
        error = super().not_hosted(hosted, write_partition)
        return NotHostedError(str(error)) if isinstance(error, InvalidRequestError) else error

    async def find(self, name: str, topic_id: str = "") -> HostedTopic:
        """Return a topic as `get` does; look up an unknown one in the shared catalog."""
        try:
            return self.get(name, topic_id)
        except (UnknownTopicError, TopicRecreatedError, UnavailableError):
            await self.look(name)
        return self.get(name, topic_id)

    async def look(self, name: str) -> None:
        """See what is stored of a topic now.

        Raises:
            UnavailableError: the coordination service does not say; or this broker has not seen a
                topic that there is, for it stops, or hears of it late.
        """
        if name in self._taken_back:
            raise self.missing(name)
        with _asked_again():
            catalog = self._shared()
            try:
                topic, version, _ = await catalog.get(name)
            except UnknownTopicError:
                await self._wait(name, lambda: name not in self._hosted)
                return

            def seen() -> bool:
                hosted, stored = self._hosted.get(name), self._stored.get(name, _Stored())
                known = hosted is not None and hosted.topic.topic_id == topic.topic_id
                return known and stored.version >= version

            await self._wait(name, seen)
            if not seen():
                raise UnavailableError(f"this broker does not know topic {name!r} yet; ask again")

    # -- how they come and go ---------------------------------------------------------------

    async def start(self) -> None:
        """Make the topics that the configuration asks for, where they do not exist."""
        for config in self._wanted_topics():
            if config.name not in self._hosted:
                try:
                    await self.create(config)
                except TopicExistsError:
                    log.debug("topic %s was made by another broker meanwhile", config.name)

    async def stop(self, timeout_s: float) -> bool:
        """Drain and release everything; True when all that was accepted is stored and acked."""
        self._stopping = True
        self._waiters.wake_all()
        self._session += 1
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), *self._changes, return_exceptions=True)
        self._tasks.clear()
        for gone in [hosted for of_name in self._gone.values() for hosted in of_name]:
            await self._close(gone, list(gone.partitions))
        stopping = [self._let_go(each, list(each.partitions), timeout_s) for each in self.hosted()]
        outcomes = await asyncio.gather(*stopping, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, MemqError):
                log.warning("not released, the next owner fences: %s", outcome)
            elif isinstance(outcome, BaseException):
                raise outcome
        return all(outcome is True for outcome in outcomes)

    async def _create(self, config: TopicConfig, request_id: str) -> HostedTopic:
        with _asked_again():
            catalog, name = self._shared(), config.name
            if name in self._taken_back:
                raise self.missing(name)
            try:
                topic = await self._made_before(catalog, name, request_id)
            except UnknownTopicError:
                topic = await catalog.new(
                    config,
                    now_ms=self._context.now().wall_ms,
                    topic_id=self._context.runtime.token_hex(TOPIC_ID_DIGITS // 2),
                    request_id=request_id,
                )
                await self._make(catalog, topic)
                log.info("topic %s created, topic id %s", name, topic.topic_id)
            await self.look(name)
            await self._wait(name, lambda: all(self._owners(topic)))
            return self.get(name, topic.topic_id)

    async def _make(self, catalog: SharedCatalog, topic: Topic) -> None:
        """Make a topic as a whole, or let what there is of it be removed.

        Where that cannot be stored now, the next session of this broker does it.
        """
        try:
            await catalog.announce(topic)
            partitions = topic.config.read_partitions
            await self._context.queue.create_topic(topic.queue_topic, partitions)
            await catalog.save_new(topic)
        except MemqError:
            with contextlib.suppress(MemqError):
                await catalog.claim_removal(topic)
            raise

    async def _made_before(self, catalog: SharedCatalog, name: str, request_id: str) -> Topic:
        """Return the topic of that name, if this request has made it."""
        found = (await catalog.get(name)).topic
        if not request_id or found.request_id != request_id:
            raise TopicExistsError(f"topic {name!r} exists already")
        return found

    async def _alter(self, name: str, options: dict[str, str], schema: bytes | None) -> HostedTopic:
        with _asked_again():
            catalog = self._shared()
            while True:
                await self.look(name)
                hosted = self.coordinated(name)  # who knows how far retention has come
                stored = await catalog.get(name)
                retained_since_ms = hosted.retained_since_ms(self._context.now().wall_ms)
                altered = altered_topic(stored.topic, options, schema, retained_since_ms)
                try:
                    await catalog.alter(stored, altered)
                except VersionConflictError:
                    continue  # somebody else has altered it meanwhile
                break
            log.info("topic %s altered: %s%s", name, options, " and its schema" if schema else "")
            await self.look(name)
            await self._wait(name, lambda: all(self._owners(altered)))
            return self.get(name)

    async def _delete(self, name: str, topic_id: str) -> None:
        with _asked_again():
            deleted = await self._shared().delete(name, topic_id)
            log.info("topic %s deleted, topic id %s", name, deleted.topic_id)

            def gone() -> bool:
                hosted = self._hosted.get(name)
                return hosted is None or hosted.topic.topic_id != deleted.topic_id

            await self._wait(name, gone)

    # -- what runs here ---------------------------------------------------------------------

    def _follow(self, name: str) -> None:
        """Compare what runs of a topic with what is stored, now or after what is under way."""
        if self._stopping:
            return  # all of it is let go of already
        wanted = self._wanted.setdefault(name, asyncio.Event())
        wanted.set()
        if name not in self._tasks:
            task = self._context.fatal_errors.spawn(f"topic {name}", self._keep(name, wanted))
            self._tasks[name] = task

    async def _keep(self, name: str, wanted: asyncio.Event) -> None:
        """Make what runs here of a topic what is to run here."""
        failures = 0
        while wanted.is_set():
            wanted.clear()
            try:
                await self._converge(name)
            except MemqError as exc:
                log.warning("%s: cannot take over or release, retrying: %s", name, exc)
                wanted.set()
                await asyncio.sleep(AGAIN.full_jitter_s(failures, self._context.runtime.random))
                failures += 1
            else:
                failures = 0
        del self._tasks[name], self._wanted[name]

    async def _converge(self, name: str) -> None:
        while gone := self._gone.get(name):
            await gone[0].stop(DELETED_S)
            del gone[0]
            self._moved()
        self._gone.pop(name, None)
        hosted = self._hosted.get(name)
        if hosted is None:
            return
        topic = hosted.topic
        await self._close_lost(hosted)
        here = self._here(topic)
        leaving = [
            number
            for number, partition in hosted.partitions.items()
            if number not in here or partition.closing  # which was not released yet
        ]
        idle = [
            number
            for number in range(topic.config.write_partitions)
            if number not in here and number not in hosted.partitions
        ]
        if idle and not self._stopping:
            # Of an earlier life or session, or of a take-over that has failed: others wait for it.
            await self._context.queue.release(topic.queue_topic, *idle)
        if leaving:
            await self._let_go(hosted, leaving, self._context.config.drain_timeout_ms / 1000)
        coming = [number for number in here if number not in hosted.partitions]
        if coming:
            await self._take_over(hosted, coming)

    async def _take_over(self, hosted: HostedTopic, numbers: list[int]) -> None:
        """Take over write partitions, unless they are to be elsewhere by then."""
        context, topic, session = self._context, hosted.topic, self._session
        until_s = context.runtime.mono_s() + RELEASE_S
        while not await context.queue.wait_released(
            topic.queue_topic, numbers, self._lives, LOOK_S
        ):
            if self._wanted[topic.name].is_set():
                return  # something else is to be here, or something is to go first
            if context.runtime.mono_s() > until_s:
                log.warning(
                    "%s: %s not released within %d s, fencing",
                    topic.name,
                    numbers,
                    RELEASE_S,
                )
                break
        rebuilt = await take_over(topic, numbers, context)
        # After the fence: no earlier owner tells a watermark any more that is not known here.
        told_ms = (await context.queue.times()).wall_ms
        if GROUPS in numbers:
            self._coordinator.forget_topic(topic.name)
            await restore_groups(topic, self._coordinator, context)
        unaltered = self._hosted.get(topic.name) is hosted and hosted.topic == topic
        if session == self._session and unaltered:  # or it is taken over again, as it is now
            hosted.begin(topic, rebuilt, told_ms)
            self._moved()
        elif GROUPS in numbers:
            self._coordinator.forget_topic(topic.name)

    async def _let_go(self, hosted: HostedTopic, numbers: list[int], timeout_s: float) -> bool:
        """Drain, close and release write partitions; whether all they held is stored and acked."""
        if not numbers:
            return True
        drained = await hosted.stop(timeout_s, *numbers)
        if GROUPS in numbers:
            self._forget_groups(hosted)
        await self._context.queue.release(hosted.topic.queue_topic, *numbers)
        for number in numbers:
            hosted.partitions.pop(number, None)  # with the session, what ran here is closed as well
        self._moved()
        log.info("%s: released write partitions %s", hosted.topic.name, numbers)
        return drained

    async def _close_lost(self, hosted: HostedTopic) -> None:
        """Close what others have fenced; what is to run here all the same is then taken over."""
        lost = self._lost(hosted)
        if lost:
            log.warning("%s: %s were fenced by another broker", hosted.topic.name, lost)
            await self._close(hosted, lost)
            self._moved()

    def _lost(self, hosted: HostedTopic) -> list[int]:
        owns, name = self._context.queue.owns, hosted.topic.queue_topic
        return [number for number in hosted.partitions if not owns(name, number)]

    async def _close(self, hosted: HostedTopic, numbers: list[int]) -> None:
        """Close at once what runs here; nothing of it is acked any more.

        It stays known until it is closed, so that a caller that cancels this can still close it. A
        stop may let go of it meanwhile.
        """
        if GROUPS in numbers:
            self._forget_groups(hosted)
        await asyncio.gather(*(hosted.partitions[number].close() for number in numbers))
        for number in numbers:
            hosted.partitions.pop(number, None)

    def _forget_groups(self, hosted: HostedTopic) -> None:
        """Answer for its groups no more, and only then forget who holds what."""
        if hosted.coordinated:
            hosted.coordinated = False
            self._coordinator.forget_topic(hosted.topic.name)

    # -- what is known ----------------------------------------------------------------------

    def _owners(self, topic: Topic) -> list[str]:
        """Broker ids of the owners of a topic's write partitions; empty for none."""
        assignment = self._stored.get(topic.name, _Stored()).assignment
        count = topic.config.write_partitions
        if assignment is None or assignment.topic_id != topic.topic_id:
            return [""] * count
        return [*assignment.owners[:count], *[""] * (count - len(assignment.owners))]

    def _here(self, topic: Topic) -> list[int]:
        """Write partitions of a topic that are to run here."""
        if self._stopping or self._catalog is None:
            return []
        here = self._context.config.broker_id
        return [number for number, owner in enumerate(self._owners(topic)) if owner == here]

    def _lives(self, broker_id: str) -> bool:
        return broker_id in self._brokers

    def _shared(self) -> SharedCatalog:
        if self._catalog is None:
            raise UnavailableError(
                f"broker {self._context.config.broker_id} has no session with the coordination "
                "service; ask again"
            )
        return self._catalog

    async def _wait(self, name: str, ready: Callable[[], bool]) -> None:
        """Wait until this broker has seen a change of a topic, but not for ever."""
        await self._waiters.wait(name, lambda: self._stopping or ready(), SEEN_S)
