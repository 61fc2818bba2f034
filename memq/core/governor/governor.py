"""The Governor: the one of all brokers that decides which broker owns which write partition.

Theory of operation
-------------------
Brokers elect one of them. It is told what is stored, and from then on what happens; it answers
with transactions on the *assignment nodes*, one for each topic. Brokers watch these nodes and own
what they say. Nothing else goes from the Governor to a broker, so a broker that was away reads
what holds now and has missed nothing.

It does no I/O and knows no clock. The caller passes events and the time in milliseconds of a clock
that never goes back, and calls `tick` after each event and every second or so. What `tick` returns
is carried out, and answered: an `AssignmentTransaction` by `written`, or by `refused` when it
failed or nobody knows; a `ReadAgain` by `read`. A caller that is refused and finds its election
over calls `deposed`.

Who may write:

Rule 1. Each transaction checks the node of the Governor's own election, with the version that it
    had, and each change the version of the node that it changes; all of it happens or nothing. So a
    Governor that was replaced changes nothing, whatever it still sends and however late it comes.
Rule 2. One transaction is under way at a time. Until it is answered, events are noted and nothing
    is decided.
Rule 3. What was refused, or may have happened, is not sent again: what is stored is read, and the
    decision made again. Should the old one happen even later, the versions have changed for one of
    both, and the other is refused.
Rule 4. The epoch of a node grows by one with each change, so a broker that sees two states of it
    knows the newer. It begins at 1 with a topic's first node. A node that cannot be understood is
    replaced, with an epoch above any that it can have had: one more than there were changes.

What moves, and when:

Rule 5. A cluster whose first broker registered less than `SETTLE_MS` ago is starting: its Governor
    waits until every broker that a node names is back, or so much time has passed; before that it
    changes nothing. So a cluster that starts as a whole finds everything where it was, and not on
    the broker that was first. Of the brokers that live now, one that takes write partitions and has
    been there for longer is enough to wait for nobody: those that came with it are registered by
    now, and those that are not there have died, such as the broker of the Governor before.
Rule 6. After that a broker that is gone is gone: its session is over, and it has stopped by itself
    before. What it owned moves at once, in as few transactions as hold it.
Rule 7. Nothing else moves at once. A broker that drains, or does not accept for another reason,
    keeps what it has until that moves, a few write partitions at a time, and so it is with what
    moves for balance. The next few follow when the owners of these have reported their loads, which
    they do when they have taken over; or after `MOVE_TIMEOUT_MS`, so that one that cannot take
    over does not hold up all.
Rule 8. A run of moves for balance begins every `REBALANCE_INTERVAL_MS` at most, or when a person
    asks for it, and ends when nothing pays any more. It is by measured traffic: it waits until that
    of every write partition is known, for up to another interval, or for `MOVE_TIMEOUT_MS` when a
    person asked. What is unknown then counts as the mean.
Rule 9. No moves begin while storage or queue refuse: traffic is not what it was, and what is under
    way cannot be let go of.
Rule 10. When no broker accepts, what is homeless has the owner "". It is placed when one does.

The owner of write partition 0 of a topic has its consumer groups as well (the queue keeps both
together), so that they need no decision of their own.

An assignor of the user's that fails does not stop the Governor: it says why, ours places what is
homeless and empties who drains, and nothing moves for balance.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from memq.core.governor.assignment import MAX_LOAD_BYTES_PER_S, BrokerResources, PartitionLoad
from memq.core.governor.assignor import load_assignor
from memq.core.governor.nodes import ASSIGNMENTS, TopicAssignment
from memq.core.log_events import event
from memq.core.units import KIB, MINUTE_MS, SECOND_MS, counted
from memq.core.wire.messages import ClusterBroker, DescribeClusterAnswer, MovingPartition
from memq.errors import ConfigError, CorruptDataError, InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from memq.core.governor.assignment import Partition
    from memq.core.governor.assignor import Assignor
    from memq.core.governor.coordination import Check

log = logging.getLogger(__name__)

SETTLE_MS = 10 * SECOND_MS  # processes that are started together are registered by then
REBALANCE_INTERVAL_MS = 5 * MINUTE_MS  # traffic that changes sooner is not worth following
MOVE_TIMEOUT_MS = MINUTE_MS  # a take-over reads the notifications of the deduplication window
MAX_MOVING = 20  # write partitions under way to another owner; their producers wait meanwhile
TOLERANCE = 0.1  # of a share; traffic that is measured differs by as much from minute to minute
MAX_CHANGES = 500  # of one transaction; ZooKeeper takes 60 ms for so many
MAX_TRANSACTION_BYTES = 512 * KIB  # ZooKeeper closes the connection above 1 MiB
CHANGE_BYTES = 256  # what a change takes in a transaction besides the topic's name and its data


# -- what is stored -------------------------------------------------------------------------


class StoredNode(NamedTuple):
    """An assignment node as it is stored.

    Attributes:
        data: its bytes.
        version: how often it was changed since it was made, as ZooKeeper counts.
    """

    data: bytes
    version: int


class TopicPartitions(NamedTuple):
    """A topic, as far as the Governor is concerned.

    Attributes:
        name: of the topic.
        topic_id: of its present life.
        write_partitions: how many there are.
    """

    name: str
    topic_id: str
    write_partitions: int


class ClusterSnapshot(NamedTuple):
    """What is stored at an election.

    Attributes:
        brokers: those that are registered.
        topics: those that exist.
        assignments: every assignment node, by topic, also of topics that exist no more.
        draining: brokers for which a drain was requested and not withdrawn.
    """

    brokers: Sequence[BrokerResources] = ()
    topics: Sequence[TopicPartitions] = ()
    assignments: Mapping[str, StoredNode] = {}
    draining: Sequence[str] = ()


# -- what is to be done ---------------------------------------------------------------------


class Change(NamedTuple):
    """The change of one assignment node.

    Attributes:
        topic: whose node it is.
        version: that it must have; -1 when there must be none, for it is made.
        data: its new bytes; None to delete it.
    """

    topic: str
    version: int
    data: bytes | None


class AssignmentTransaction(NamedTuple):
    """Changes that happen all or not at all.

    Attributes:
        number: to be named in the answer.
        check: of the Governor's election.
        changes: of different topics; at most `MAX_CHANGES`.
    """

    number: int
    check: Check
    changes: tuple[Change, ...]


class ReadAgain(NamedTuple):
    """Every assignment node is to be read again, and told by `read`."""


# -- the state machine ----------------------------------------------------------------------


class _AssignmentNode(NamedTuple):
    """An assignment node: what it says, None when that cannot be understood, and its version."""

    value: TopicAssignment | None
    version: int


class _Move(NamedTuple):
    """A write partition on its way: to whom, and since when."""

    owner: str
    since_ms: int


class Governor:
    """See the theory of operation.

    Args:
        assignor: decides which broker owns what; ours when it is left out.
        tolerance: part of its share by which the load of a broker may differ.
        services_refuse: whether storage or queue do now.
    """

    def __init__(
        self,
        assignor: Assignor | None = None,
        *,
        tolerance: float = TOLERANCE,
        services_refuse: Callable[[], object] = bool,
    ) -> None:
        self._services_refuse = services_refuse
        self._ours = load_assignor()
        self._assignor = self._ours if assignor is None else assignor
        self._tolerance = tolerance
        self._numbers = 0
        self._forget()

    def _forget(self) -> None:
        self._check: Check | None = None
        self._brokers: dict[str, BrokerResources] = {}
        self._draining: dict[str, None] = {}
        self._topics: dict[str, TopicPartitions] = {}
        self._nodes: dict[str, _AssignmentNode] = {}
        self._loads: dict[Partition, float] = {}
        self._awaited: dict[str, None] = {}  # brokers that nodes name and that are not there
        self._settled_ms = 0
        self._changed = False  # since the last plan
        self._planned: dict[str, TopicAssignment | None] = {}
        self._planned_moves: dict[Partition, str] = {}
        self._in_flight: AssignmentTransaction | None = None
        self._reading = False
        self._read_asked = False
        self._moving: dict[Partition, _Move] = {}
        self._balance_ms = 0  # when the next run for balance may begin
        self._balancing = False
        self._requested = False
        self._problem = ""
        self._nobody_accepts = False

    def __repr__(self) -> str:
        if self._check is None:
            return "<Governor [not elected]>"
        state = f"waits for {len(self._awaited)}" if self._awaited else "waits for none"
        under_way = "1" if self._in_flight else "0"
        return (
            f"<Governor [{len(self._brokers)} brokers, {len(self._topics)} topics | {state} | "
            f"{len(self._planned)} changes planned, {under_way} transactions under way | "
            f"{len(self._moving)} moving]>"
        )

    # -- events: the election ---------------------------------------------------------------

    def elected(
        self, snapshot: ClusterSnapshot, check: Check, now_ms: int, *, registered_ms: int
    ) -> None:
        """Begin: this broker is the Governor from now on.

        Args:
            snapshot: what is stored, read after the election; events that are told later are newer.
            check: the node of this election, which is gone or changed when another one follows.
            now_ms: the clock.
            registered_ms: when the first broker registered of those that live and take write
                partitions, by the same clock.
        """
        self._forget()
        self._check = check
        self._brokers = {broker.id: broker for broker in snapshot.brokers}
        self._draining = dict.fromkeys(snapshot.draining)
        self._topics = {topic.name: topic for topic in snapshot.topics}
        self._nodes = _decoded(snapshot.assignments)
        self._settled_ms = registered_ms + SETTLE_MS
        self._balance_ms = now_ms + REBALANCE_INTERVAL_MS
        self._changed = True
        away = {name: None for name in self._named() if name not in self._brokers}
        if away and now_ms < self._settled_ms:
            self._awaited = away
            left_s = (self._settled_ms - now_ms) / SECOND_MS
            log.info("Governor: waits for %s, at most %.1f s", ", ".join(away), left_s)

    def deposed(self) -> None:
        """End: this broker is the Governor no more."""
        self._forget()

    # -- events: brokers and topics ---------------------------------------------------------

    def broker_registered(self, broker: BrokerResources) -> None:
        """Learn that a broker is there, or has registered again with other resources."""
        self._brokers[broker.id] = broker
        self._awaited.pop(broker.id, None)
        self._changed = True

    def broker_gone(self, broker_id: str) -> None:
        """Learn that the session of a broker is over; it owns nothing any more."""
        self._brokers.pop(broker_id, None)
        self._changed = True

    def drain_requested(self, broker_id: str) -> None:
        """Learn that a broker is to be emptied; it need not be there."""
        self._draining[broker_id] = None
        self._changed = True

    def drain_withdrawn(self, broker_id: str) -> None:
        """Learn that a broker may be given something again."""
        self._draining.pop(broker_id, None)
        self._changed = True

    def topic_changed(self, topic: TopicPartitions) -> None:
        """Learn that a topic was created, recreated, or given more write partitions."""
        self._topics[topic.name] = topic
        self._changed = True

    def topic_deleted(self, name: str) -> None:
        """Learn that a topic exists no more."""
        self._topics.pop(name, None)
        self._changed = True

    def loads_reported(self, broker_id: str, loads: Mapping[Partition, float | None]) -> None:
        """Learn what a broker writes, of which write partitions: all that it has taken over.

        To be told every few seconds, and when it has taken over another one. What it does not own
        is passed over.

        Args:
            broker_id: the broker.
            loads: bytes per second, over the last minute or so; None where it is not known.

        Raises:
            InvalidRequestError: a load makes no sense; none of them counts.
        """
        for (topic, number), load in loads.items():
            if load is not None and not 0 <= load <= MAX_LOAD_BYTES_PER_S:
                raise InvalidRequestError(
                    f"a load of {load} bytes/s for {topic!r}/{number}, from broker {broker_id!r}: "
                    f"must be between 0 and {MAX_LOAD_BYTES_PER_S:.0e}"
                )
        if broker_id not in self._brokers:
            return
        for key, load in loads.items():
            if self._owner(key) == broker_id:
                if load is not None:  # what an owner before has measured is better than nothing
                    self._loads[key] = load
                if key in self._moving and self._moving[key].owner == broker_id:
                    del self._moving[key]

    def rebalance_requested(self) -> None:
        """Learn that a person wants loads evened out, as soon as they are known."""
        self._requested = True

    # -- events: answers --------------------------------------------------------------------

    def written(self, number: int, now_ms: int) -> None:
        """Learn that a transaction has happened; one that is not under way any more changes nothing
        here.
        """
        transaction = self._in_flight
        if transaction is None or transaction.number != number:
            return
        self._in_flight = None
        for topic, version, data in transaction.changes:
            if data is None:
                del self._nodes[topic]
            else:
                self._nodes[topic] = _AssignmentNode(ASSIGNMENTS.decode(topic, data), version + 1)
        for key, owner in self._planned_moves.items():
            if self._owner(key) == owner:
                self._moving[key] = _Move(owner, now_ms)
        self._planned_moves = {
            key: owner for key, owner in self._planned_moves.items() if key not in self._moving
        }

    def refused(self, number: int) -> None:
        """Learn that a transaction has not happened, or may have: what is stored must be read."""
        if self._in_flight is not None and self._in_flight.number == number:
            self._in_flight = None
            self._planned, self._planned_moves = {}, {}
            self._reading, self._read_asked = True, False

    def read(self, assignments: Mapping[str, StoredNode]) -> None:
        """Learn what `ReadAgain` has asked for."""
        if self._reading:
            self._reading = False
            self._nodes = _decoded(assignments)
            self._changed = True

    # -- decisions --------------------------------------------------------------------------

    def tick(self, now_ms: int) -> AssignmentTransaction | ReadAgain | None:
        """Return what is to be done now; nothing while something is under way."""
        if self._check is None or self._in_flight is not None:
            return None
        if self._reading:
            asked, self._read_asked = self._read_asked, True
            return None if asked else ReadAgain()
        if self._awaited and now_ms < self._settled_ms:
            return None
        if self._awaited:
            log.warning("Governor: %s did not come back", ", ".join(self._awaited))
            self._awaited = {}
        if self._changed:
            self._changed = False
            self._planned, self._planned_moves = self._plan(), {}
        if not self._planned:
            self._planned_moves = self._plan_moves(now_ms)
            if self._planned_moves:
                self._planned = self._changes(self._present() | self._planned_moves)
        return self._transaction(self._check) if self._planned else None

    def _plan(self) -> dict[str, TopicAssignment | None]:
        """Plan what must change at once: new owners, and the nodes of deleted topics."""
        present = self._present()
        self._loads = {key: load for key, load in self._loads.items() if key in present}
        found = self._assign(present)
        owners = {
            key: owner if owner in self._brokers else found[key] for key, owner in present.items()
        }
        self._say_whether_all_have_owners(owners)
        return self._changes(owners)

    def _assign(self, present: Mapping[Partition, str]) -> dict[Partition, str]:
        brokers, partitions = self._all_brokers(), self._partitions(present)
        try:
            return self._assignor.assign(brokers, partitions, present)
        except ConfigError as exc:
            self._blame_assignor(exc)
        return self._ours.assign(brokers, partitions, present)

    def _plan_moves(self, now_ms: int) -> dict[Partition, str]:
        """Plan what may move now, of what need not."""
        self._end_moves(now_ms)
        brokers = self._all_brokers()
        refusing = [broker for broker in brokers if not broker.accepting]
        if self._moving or len(refusing) == len(brokers):
            return {}
        if not (refusing or self._requested or self._balancing or now_ms >= self._balance_ms):
            return {}
        present = self._present()
        leaving = [key for key, owner in present.items() if owner and not self._accepts(owner)]
        balancing = self._may_balance(present, now_ms)
        if not (leaving or balancing) or self._services_refuse():
            return {}
        moves = self._moves(brokers, present)
        if leaving:
            moves = {key: moves[key] for key in leaving if key in moves}
        else:
            self._balancing = bool(moves)
            if not moves:
                self._balance_ms = now_ms + REBALANCE_INTERVAL_MS
        if moves:
            log.info("Governor: begins %s", counted(len(moves), "move"))
        for (topic, number), to in moves.items():
            before = present[topic, number]
            names = {"topic": topic, "write_partition": number, "broker": to, "from_broker": before}
            moved = event("write_partition_moved", **names)
            log.info("Governor: moves %s/%d to broker %s", topic, number, to, extra=moved)
        return moves

    def _moves(
        self, brokers: list[BrokerResources], present: Mapping[Partition, str]
    ) -> dict[Partition, str]:
        partitions = self._partitions(present)
        try:
            moves = self._assignor.rebalance(
                brokers, partitions, present, max_moves=MAX_MOVING, tolerance=self._tolerance
            )
        except ConfigError as exc:
            self._blame_assignor(exc)
        else:
            self._problem = ""
            return moves
        moves = self._ours.rebalance(
            brokers, partitions, present, max_moves=MAX_MOVING, tolerance=self._tolerance
        )
        return {key: owner for key, owner in moves.items() if not self._accepts(present[key])}

    def _may_balance(self, present: Mapping[Partition, str], now_ms: int) -> bool:
        if self._requested:  # it begins at once when all is known, else in MOVE_TIMEOUT_MS
            self._requested = False
            sooner_ms = now_ms + MOVE_TIMEOUT_MS - REBALANCE_INTERVAL_MS
            self._balance_ms = min(self._balance_ms, sooner_ms)
        known = all(key in self._loads for key, owner in present.items() if owner)
        due_ms = self._balance_ms + (0 if known else REBALANCE_INTERVAL_MS)
        return self._balancing or now_ms >= due_ms

    def _end_moves(self, now_ms: int) -> None:
        """Wait no more for moves that are over, one way or another."""
        for key, move in list(self._moving.items()):
            overdue = now_ms - move.since_ms >= MOVE_TIMEOUT_MS
            if overdue:
                log.warning(
                    "Governor: broker %s has not taken over %s/%d in %d s",
                    move.owner, *key, MOVE_TIMEOUT_MS // 1000,
                )  # fmt: skip
            if overdue or self._owner(key) != move.owner:
                del self._moving[key]

    def _changes(self, owners: Mapping[Partition, str]) -> dict[str, TopicAssignment | None]:
        """Return how nodes must change for these to be the owners."""
        changes: dict[str, TopicAssignment | None] = {
            name: None for name in sorted(self._nodes) if name not in self._topics
        }
        for name, topic in sorted(self._topics.items()):
            wanted = tuple(owners[name, number] for number in range(topic.write_partitions))
            if self._owners(topic) != wanted:
                changes[name] = TopicAssignment(
                    topic_id=topic.topic_id,
                    epoch=_epoch(self._nodes.get(name)) + 1,
                    owners=wanted,
                )
        return changes

    def _transaction(self, check: Check) -> AssignmentTransaction:
        """Make a transaction of as much of the plan as one may hold."""
        changes: list[Change] = []
        size = 0
        for name, value in self._planned.items():
            data = None if value is None else ASSIGNMENTS.encode(value)
            size += CHANGE_BYTES + len(name) + len(data or b"")
            if changes and (len(changes) >= MAX_CHANGES or size > MAX_TRANSACTION_BYTES):
                break
            node = self._nodes.get(name)
            changes.append(Change(name, -1 if node is None else node.version, data))
        for change in changes:
            del self._planned[change.topic]
        self._numbers += 1
        self._in_flight = AssignmentTransaction(self._numbers, check, tuple(changes))
        return self._in_flight

    # -- what is known ----------------------------------------------------------------------

    def _all_brokers(self) -> list[BrokerResources]:
        return [
            msgspec.structs.replace(broker, accepting=self._accepts(broker.id))
            for broker in self._brokers.values()
        ]

    def _accepts(self, broker_id: str) -> bool:
        broker = self._brokers.get(broker_id)
        return broker is not None and broker.accepting and broker_id not in self._draining

    def _present(self) -> dict[Partition, str]:
        """Return the owner of every write partition, as stored; empty for those without."""
        present = {}
        for name, topic in self._topics.items():
            owners = self._owners(topic)
            for number in range(topic.write_partitions):
                present[name, number] = owners[number] if number < len(owners) else ""
        return present

    def _named(self) -> list[str]:
        """Brokers that own something, as stored."""
        return sorted({*self._present().values()} - {""})

    def _owners(self, topic: TopicPartitions) -> tuple[str, ...]:
        node = self._nodes.get(topic.name)
        if node is None or node.value is None or node.value.topic_id != topic.topic_id:
            return ()
        return node.value.owners

    def _owner(self, key: Partition) -> str:
        topic = self._topics.get(key[0])
        owners = () if topic is None else self._owners(topic)
        return owners[key[1]] if 0 <= key[1] < len(owners) else ""

    def _partitions(self, present: Mapping[Partition, str]) -> list[PartitionLoad]:
        return [PartitionLoad(*key, self._loads.get(key)) for key in present]

    def _say_whether_all_have_owners(self, owners: Mapping[Partition, str]) -> None:
        homeless = sum(not owner for owner in owners.values())
        if homeless and not self._nobody_accepts:
            log.warning(
                "Governor: no broker accepts write partitions, and %s without an owner",
                counted(homeless, "is", f"of {len(owners)} are"),
            )
        self._nobody_accepts = bool(homeless)

    def _blame_assignor(self, exc: ConfigError) -> None:
        if str(exc) != self._problem:
            log.error("Governor: the assignor is not followed: %s", exc)
        self._problem = str(exc)

    def describe(self) -> DescribeClusterAnswer:
        """Describe the cluster, for people; without its name, and where its brokers are."""
        owned: dict[str, dict[str, list[int]]] = {name: {} for name in self._brokers}
        homeless: dict[str, list[int]] = {}
        loads: dict[str, float] = {}
        for (topic, number), owner in sorted(self._present().items()):
            owned.get(owner, homeless).setdefault(topic, []).append(number)
            loads[owner] = loads.get(owner, 0) + self._loads.get((topic, number), 0)
        return DescribeClusterAnswer(
            cluster_id="",
            governor="",
            brokers=[
                ClusterBroker(
                    address="",
                    draining=name in self._draining,
                    bytes_per_s=loads.get(name, 0),
                    write_partitions=owned[name],
                    **msgspec.structs.asdict(broker) | {"accepting": self._accepts(name)},
                )
                for name, broker in sorted(self._brokers.items())
            ],
            homeless=homeless,
            moving=[
                MovingPartition(topic=topic, write_partition=number, to=move.owner)
                for (topic, number), move in sorted(self._moving.items())
            ],
            waiting_for=list(self._awaited),
            problem=self._problem,
        )


def _decoded(nodes: Mapping[str, StoredNode]) -> dict[str, _AssignmentNode]:
    found = {}
    for topic, node in nodes.items():
        value = None
        try:
            value = ASSIGNMENTS.decode(topic, node.data)
        except CorruptDataError as exc:
            log.error("Governor: this assignment is made again: %s", exc)  # noqa: TRY400 - expected, and told in full
        found[topic] = _AssignmentNode(value, node.version)
    return found


def _epoch(node: _AssignmentNode | None) -> int:
    """Return the epoch of a node; for an unreadable one the highest it can have been."""
    if node is None:
        return 0
    return node.version + 1 if node.value is None else max(node.value.epoch, node.version + 1)
