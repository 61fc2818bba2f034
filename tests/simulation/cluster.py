"""The cluster of a run: the ZooKeeper that its brokers share, and what must hold of them together.

What can be told at once is checked at once, from what ZooKeeper and Kafka know themselves:

- Nothing is acked by a broker whose registration is gone, or not its own.
- The epoch of an assignment node only grows.
- What is published for a write partition is published by the broker with its latest claim.

The servers of ZooKeeper live on a machine of their own. A session is opened over a link that takes
some time; a broker that is cut off keeps its link, and nothing comes through.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from memq.core.governor.coordination import Create, Delete, Set
from memq.core.governor.nodes import (
    ASSIGNMENTS,
    BROKERS,
    DOOMED,
    DRAINING,
    ELECTION,
    GOVERNOR,
    REBALANCE,
    TOPICS,
)
from memq.core.wire.messages import GroupHeartbeat
from memq.errors import MemqError, UnavailableError
from memq.queue.kafka.client import Place
from memq.queue.kafka.state import KafkaState
from tests.fakes.zookeeper import InMemoryZooKeeper
from tests.simulation.history import STOPPED
from tests.simulation.kafka import STATE

if TYPE_CHECKING:
    from collections.abc import Callable

    from memq.broker.write_partition import Client, ReceivedWrite
    from memq.core.governor.coordination import Change, Node
    from memq.core.notification import Notification
    from memq.core.wire.messages import WriteAnswer
    from memq.zookeeper.session import Session
    from tests.fakes.kafka import InMemoryClient
    from tests.simulation.broker import SimBroker
    from tests.simulation.plan import Deed
    from tests.simulation.run import Run
    from tests.simulation.world import Process

SESSION_S = 3.0
REQUEST_S = 5.0
DELAY_S = (0.0002, 0.003)  # of a session's link, each way
MOST_DELAY_S = 0.4
STATE_LOG = Place(STATE, 0)  # in which brokers say what they claim
LOOK_S = 0.1  # whether a broker that is cut off may connect


class SimCluster:
    """What brokers share beside storage and queue, and what is noted of them.

    Attributes:
        zookeeper: the servers.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._rng = run.world.rng("zookeeper")
        servers = run.world.machine("zk").start()
        self.zookeeper = InMemoryZooKeeper(servers.loop, self._changed)
        self._slowness = 1.0
        self._cut: dict[str, int] = {}  # brokers without ZooKeeper, until when
        self._sessions: dict[str, Session] = {}  # the latest of each broker
        self._clients: dict[str, InMemoryClient] = {}  # of Kafka, likewise
        self._expired: dict[Session, None] = {}  # by order, before their leases were over
        self._epochs: dict[str, int] = {}
        self._claims = KafkaState()
        self._operators = 0
        self._said = 0  # how far these were read

    # -- brokers ----------------------------------------------------------------------------

    async def open_session(self, process: Process) -> Session:
        """A session for one life of a broker.

        Raises:
            UnavailableError: the broker is cut off, or the servers are away.
        """
        name = process.machine.name
        loop = asyncio.get_running_loop()
        gives_up_s = loop.time() + REQUEST_S
        while self._is_cut(name):
            if loop.time() > gives_up_s:
                raise UnavailableError("ZooKeeper is out of reach")
            await asyncio.sleep(LOOK_S)
        session = await self.zookeeper.open(
            session_timeout_s=SESSION_S,
            request_timeout_s=REQUEST_S,
            clock_s=process.runtime.boot_s,
        )
        self._sessions[name] = session
        self._delay(session)
        if self._is_cut(name):
            self.zookeeper.freeze(session)
        return session

    def has_client(self, process: Process, client: InMemoryClient) -> None:
        """A broker has this client of Kafka."""
        self._clients[process.machine.name] = client

    def watch(self, broker: SimBroker, process: Process) -> None:
        """See to it that what a broker promises is checked at that moment."""
        handlers = broker.handlers
        write, kind = handlers.write, handlers._table[GroupHeartbeat]

        def watched_write(received: ReceivedWrite) -> None:
            received.client = WatchedClient(
                received.client, lambda: self._promises(broker, process, "acked a Message")
            )
            write(received)

        async def watched_heartbeat(request, access):
            answer = await kind.serve(request, access)
            self._promises(broker, process, "answered a heartbeat")
            return answer

        handlers.write = watched_write
        handlers._table[GroupHeartbeat] = kind._replace(serve=watched_heartbeat)

    def _promises(self, broker: SimBroker, process: Process, what: str) -> None:
        node = self.zookeeper.node(BROKERS.child(process.machine.name))
        session = broker.membership._session
        if session in self._expired:
            return  # against its lease, and it has not been told yet; the fence alone holds
        if node is None:
            self._run.wrong(f"{process.name} {what} and is not registered any more")
        elif session is None or node.owner != session.session_id:
            self._run.wrong(f"{process.name} {what}, and another session is registered")

    def governs(self, name: str) -> bool:
        """Whether this broker governs."""
        node = self.zookeeper.node(GOVERNOR)
        return node is not None and node.data.decode() == name

    # -- what is checked --------------------------------------------------------------------

    def _changed(self, path: str, node: Node | None) -> None:
        if path == ELECTION and node is not None and node.version:
            self._run.world.trace.add(f"{self._run.now_us} elected {node.data.decode()}")
        folder, _, name = path.rpartition("/")
        if folder != ASSIGNMENTS.path:
            return
        if node is None:
            self._epochs.pop(name, None)
            return
        epoch, before = ASSIGNMENTS.decode(name, node.data).epoch, self._epochs.get(name, 0)
        if epoch <= before:
            self._run.wrong(f"assignment of {name} went from epoch {before} to {epoch}")
        self._epochs[name] = epoch

    def published(self, place: Place, queue_topic: str, notification: Notification) -> None:
        """A notification was committed."""
        log = self._run.kafka.partition(STATE_LOG)
        for record in log.committed(self._said, log.stable):
            self._claims.read(record)
        self._said = log.stable
        claim = self._claims.claim(queue_topic, notification.write_partition)
        owner = claim.owner.partition(".")[2].rpartition(".")[0]
        if owner != notification.broker_id:
            self._run.wrong(
                f"{notification.broker_id} published to {place} for write partition "
                f"{notification.write_partition} of {queue_topic}, claimed by {claim}"
            )

    def unsettled(self) -> list[str]:
        """What is not yet as it is to be in the end: owners, and what is left of topics."""
        found = [f"{name} is doomed" for name in self.zookeeper.names(DOOMED.path)]
        brokers = [
            broker
            for broker in self._run.brokers.values()
            if broker is not None and self._run.world.machine(broker.config.broker_id).up
        ]
        for name in self.zookeeper.names(TOPICS.path):
            node = self.zookeeper.node(TOPICS.child(name))
            topic = TOPICS.decode(name, node.data)
            assigned = self.zookeeper.node(ASSIGNMENTS.child(name))
            owners = () if assigned is None else ASSIGNMENTS.decode(name, assigned.data).owners
            for number in range(topic.config.write_partitions):
                runs = [
                    broker.config.broker_id
                    for broker in brokers
                    if number in _running(broker, name, topic.topic_id)
                ]
                if len(owners) <= number or runs != [owners[number]]:
                    found.append(f"{name}/{number} of {owners} runs at {runs}")
        return found

    # -- faults -----------------------------------------------------------------------------

    def zookeeper_away(self, deed: Deed) -> None:
        """All servers stop, for a while."""
        self._happened(deed)
        self.zookeeper.stop()
        self._after(deed.amount, self.zookeeper.start)

    def zookeeper_slow(self, deed: Deed) -> None:
        """Everything on its way to or from the servers takes so many times longer."""
        self._happened(deed)
        self._slowness = deed.amount
        for session in self._live():
            self._delay(session)

    def zookeeper_loses(self, deed: Deed) -> None:
        """The answers to some of the next changes are lost."""
        for number in range(int(deed.amount)):
            self._after(number * 0.5, self._lose_an_answer, deed)

    def _lose_an_answer(self, deed: Deed) -> None:
        if not self._run.quiet:
            self._happened(deed)
            for session in self._live():
                self.zookeeper.lose_answer(session)

    def zookeeper_resets(self, deed: Deed) -> None:
        """The connection of a broker breaks."""
        for session in self._live(deed.who):
            self._happened(deed)
            self.zookeeper.reset(session)

    def zookeeper_expires(self, deed: Deed) -> None:
        """The servers end the session of a broker."""
        for session in self._live(deed.who):
            self._happened(deed)
            self._expired[session] = None
            self.zookeeper.expire(session)

    def cut_zookeeper(self, deed: Deed) -> None:
        """Nothing comes through between a broker and ZooKeeper; in some runs connections break."""
        self._happened(deed)
        until_us = self._run.now_us + int(deed.amount * 1e6)
        self._cut[deed.who] = max(until_us, self._cut.get(deed.who, 0))
        breaks = int(deed.amount * 10) % 2
        for session in self._live(deed.who):
            (self.zookeeper.refuse if breaks else self.zookeeper.freeze)(session)
        self._after(deed.amount + 1e-6, self._join_again, deed.who)

    def _join_again(self, name: str) -> None:
        if not self._is_cut(name):
            for session in self._live(name):
                self._restore(session)

    def cut_kafka(self, deed: Deed) -> None:
        """Nothing comes through between a broker and Kafka."""
        client = self._clients.get(deed.who)
        if client is not None:
            self._happened(deed)
            client.cut_off = True
            self._after(deed.amount, setattr, client, "cut_off", False)

    def drain(self, deed: Deed) -> None:
        """An operator asks for a broker to be emptied, and takes that back later."""
        self._happened(deed)
        self._operate([Create(f"{DRAINING}/{deed.who}")])
        self._after(deed.amount, self.withdraw, deed.who)

    def withdraw(self, name: str) -> None:
        """A broker is to be drained no more."""
        node = self.zookeeper.node(f"{DRAINING}/{name}")
        if node is not None:
            self._operate([Delete(f"{DRAINING}/{name}", node.version)])

    def rebalance(self, deed: Deed) -> None:
        """An operator asks for the loads to be evened out."""
        node = self.zookeeper.node(REBALANCE)
        if node is not None:
            self._happened(deed)
            self._operate([Set(REBALANCE, b"", node.version)])

    def _operate(self, changes: list[Change]) -> None:
        """Change something, as an operator does."""
        self._operators += 1
        process = self._run.world.machine(f"operator{self._operators}").start()

        async def change() -> None:
            try:
                session = await self.zookeeper.open(request_timeout_s=REQUEST_S)
                await session.transact(changes)
                await session.close()
            except MemqError as exc:
                self._run.noted(process, "operator", exc)
            process.loop.call_soon(process.machine.stopped, STOPPED)

        process.loop.create_task(change())

    def mend(self) -> None:
        """The end of all faults."""
        if self.zookeeper.stopped:
            self.zookeeper.start()
        self._cut.clear()
        self._slowness = 1.0
        for session in self._live():
            self._restore(session)
        for client in self._clients.values():
            client.cut_off = False
        for name in self.zookeeper.names(DRAINING):
            self.withdraw(name)

    def _happened(self, deed: Deed) -> None:
        self._run.world.happened(deed.what)

    def _after(self, seconds: float, what, *args) -> None:
        self._run.world.timeline.after(int(seconds * 1e6), what, *args)

    def _is_cut(self, name: str) -> bool:
        return self._cut.get(name, 0) > self._run.now_us

    def _live(self, *names: str) -> list[Session]:
        """The sessions of brokers that are up, of all or of some."""
        return [
            session
            for name, session in self._sessions.items()
            if (not names or name in names) and self.zookeeper.knows(session)
        ]

    def _delay(self, session: Session) -> None:
        delay_s = self._rng.uniform(*DELAY_S) * self._slowness
        self.zookeeper.delay(session, min(delay_s, MOST_DELAY_S))

    def _restore(self, session: Session) -> None:
        self.zookeeper.restore(session)
        self._delay(session)


class WatchedClient:
    """Who has sent a Message; it says when it is acked."""

    def __init__(self, inner: Client, on_ack: Callable[[], None]) -> None:
        self._inner = inner
        self._on_ack = on_ack
        self.fail, self.refused, self.refusal = inner.fail, inner.refused, inner.refusal
        self.hold, self.unhold = inner.hold, inner.unhold

    def answer(self, correlation_id: int, header: WriteAnswer) -> None:
        """The Message is acked."""
        self._on_ack()
        self._inner.answer(correlation_id, header)


def _running(broker: SimBroker, name: str, topic_id: str) -> dict[int, Any]:
    """The write partitions of a topic that run at a broker."""
    found = [each for each in broker.topics.hosted() if each.topic.name == name]
    return found[0].partitions if found and found[0].topic.topic_id == topic_id else {}
