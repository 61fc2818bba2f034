"""Assignment: which broker owns which write partition. Pure functions of what is known.

Theory of operation
-------------------
A broker's *share* is the part of the whole load that its capacity is of all capacity. Loads are
measured, in bytes per second. One that is not known counts as the mean of those that are; one that
is idle as a tenth of it, for a write partition costs something even when nobody writes. A
write partition that is larger than the share of the largest broker fills a broker, whatever it
measures: it is cut to that size, and the shares of the others are those of the rest.

`assign` moves nothing that has a live, accepting owner. It places what is homeless, the largest
first, each on a broker that is below its share. Among these it goes down the tree of zones, racks
and brokers, and takes at each level the one with the fewest write partitions of the topic for its
capacity, and of several such the least filled. So every zone has one of each topic's as soon as
there are enough; then the topic is spread in proportion to capacity.

What follows, with sizes cut as above:

Promise 1. A broker that is below its share by more than the largest of what is homeless is *short*.
    When what is homeless is enough to lift the short ones to their shares, as it is in a new
    cluster and when a balanced one loses a broker, none is short in the end: once no more is left
    than they lack, only they get anything.
Promise 2. Otherwise, as when an empty broker has joined, spreading goes first and `rebalance` evens
    out: a topic that is all on the new broker would be lost with it. The others then count as full
    when they have what would be their share if there were no short ones.
Promise 3. A broker that is given something was below its share, so counted, before the last it got.

Together: in a new cluster everyone is within one write partition, the largest, of its share. That
is within 5 % where a share is of twenty equal ones or more; where it is not, 5 % may be impossible.

`rebalance` works on measured traffic. First it empties brokers that do not accept any more. Then,
while some broker is out of tolerance, the one that is furthest out gives or gets one write
partition. A move *pays* when the fuller of both gains at least half of what is moved: the
difference of two brokers that have equal sizes must be more than one of them, so noise in
measurements moves nothing back and forth. Each such move makes the sum of load² / capacity less,
so they end; and at the end every broker is within tolerance or no move to it or from it pays.

Both give the same for the same input in any order. Ties go by name.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec

from memq.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Partition: TypeAlias = tuple[str, int]
"""Topic and write partition."""

MAX_LOAD_BYTES_PER_S = 1e15  # a mistake if ever there was one; sums stay finite
MIN_LOAD_BYTES_PER_S = 1e-3  # less is nothing; quotients stay finite
IDLE_SHARE = 0.1  # of the mean load; what a write partition costs to which nobody writes
PAYS_SHARE = 0.5  # of what is moved; what the fuller of two brokers must gain at least
UNSPREAD_WORTH = 0.5  # of a move that puts a topic's write partitions closer together
ROUNDING = 1e-9  # of a share; sums of floats differ by less


class BrokerResources(msgspec.Struct, frozen=True):
    """A broker, as far as assignment is concerned.

    Attributes:
        id: its broker id.
        capacity: what it can carry, in relation to other brokers; above 0.
        zone: availability zone; empty when it is not known.
        rack: within the zone; empty when it is not known.
        accepting: whether it may own write partitions: not while it drains, nor when it only reads.

    Raises:
        InvalidRequestError: the id is empty, or the capacity is not a number above 0.
    """

    id: str
    capacity: float = 1.0
    zone: str = ""
    rack: str = ""
    accepting: bool = True

    def __post_init__(self) -> None:
        if not self.id:
            raise InvalidRequestError("a broker has no id")
        if not 0 < self.capacity <= MAX_LOAD_BYTES_PER_S:
            raise InvalidRequestError(
                f"capacity {self.capacity} of broker {self.id!r}: must be above 0 and at most "
                f"{MAX_LOAD_BYTES_PER_S:.0e}"
            )


class PartitionLoad(NamedTuple):
    """A write partition with its traffic.

    Attributes:
        topic: its topic.
        write_partition: its number.
        bytes_per_s: as measured; None when it is not known.
    """

    topic: str
    write_partition: int
    bytes_per_s: float | None = None

    @property
    def partition(self) -> Partition:
        """What names it."""
        return self.topic, self.write_partition


def assign(
    brokers: Iterable[BrokerResources],
    partitions: Iterable[PartitionLoad],
    present: Mapping[Partition, str],
) -> dict[Partition, str]:
    """Give an owner to each write partition that has no live, accepting one.

    Args:
        brokers: all that live.
        partitions: all write partitions.
        present: owners now; brokers that do not live or accept do not count.

    Returns:
        The owner of each write partition; empty for the homeless when no broker accepts.
    """
    accepting = _accepting(brokers)
    weights = _weights(partitions)
    assignment = {
        key: owner if (owner := present.get(key, "")) in accepting else "" for key in weights
    }
    homeless = [key for key, owner in assignment.items() if not owner]
    if homeless and accepting:
        level = _cut(weights, accepting)
        placing = _Placing(accepting, weights, level, assignment)
        for key in sorted(homeless, key=lambda key: -weights[key]):
            assignment[key] = placing.place(key)
    return assignment


def rebalance(
    brokers: Iterable[BrokerResources],
    partitions: Iterable[PartitionLoad],
    present: Mapping[Partition, str],
    *,
    max_moves: int,
    tolerance: float,
) -> dict[Partition, str]:
    """Plan the moves that empty brokers which do not accept, and then even out the others.

    What is homeless is left to `assign`, and does not count.

    Args:
        brokers: all that live.
        partitions: all write partitions.
        present: owners now.
        max_moves: most write partitions to move.
        tolerance: part of its share by which a broker's load may differ.

    Returns:
        The new owner of each write partition that moves.
    """
    every = {broker.id: broker for broker in brokers}
    owned = [each for each in partitions if present.get(each.partition, "") in every]
    accepting = _accepting(every.values())
    if not owned or not accepting:
        return {}
    target = assign(every.values(), owned, present)
    weights = _weights(owned)
    leaving = [key for key in weights if present[key] not in accepting]
    leaving.sort(key=lambda key: -weights[key])
    moves = {key: target[key] for key in leaving[:max_moves]}
    if len(leaving) < max_moves:
        level = _cut(weights, accepting)
        balance = _Balance(accepting, weights, level, target)
        balance.run(max_moves - len(leaving), tolerance)
        moves |= balance.moves
    return moves


def _accepting(brokers: Iterable[BrokerResources]) -> dict[str, BrokerResources]:
    return {
        broker.id: broker
        for broker in sorted(brokers, key=lambda each: each.id)
        if broker.accepting
    }


# -- loads and shares -----------------------------------------------------------------------


def _weights(partitions: Iterable[PartitionLoad]) -> dict[Partition, float]:
    """Return what each write partition counts, sorted by name."""
    loads = {each.partition: each.bytes_per_s for each in partitions}
    known = [load for load in loads.values() if load is not None]
    mean = math.fsum(known) / len(known) if known else 0.0
    mean = mean or 1.0
    idle = max(mean * IDLE_SHARE, MIN_LOAD_BYTES_PER_S)
    return {key: max(mean if load is None else load, idle) for key, load in sorted(loads.items())}


def _cut(weights: dict[Partition, float], brokers: Mapping[str, BrokerResources]) -> float:
    """Cut what is larger than the share of the largest broker to that share.

    Returns:
        The share of a broker of capacity 1, all of them cut.
    """
    capacities = [broker.capacity for broker in brokers.values()]
    most, room, rest = max(capacities), math.fsum(capacities), math.fsum(weights.values())
    least_room, least_rest = room * ROUNDING, rest * ROUNDING
    for weight in sorted(weights.values(), reverse=True):
        if weight <= most * rest / room:
            break
        if room - most <= least_room or rest - weight <= least_rest:
            break
        room -= most
        rest -= weight
    level = rest / room
    for key, weight in weights.items():
        weights[key] = min(weight, most * level)
    return level


# -- placing what is homeless ---------------------------------------------------------------


class _Node:
    """The cluster, a zone, a rack or a broker.

    Attributes:
        name: among its siblings.
        capacity: of the brokers below it.
        load: of these.
        counts: their write partitions, by topic.
        children: by name; none below a broker.
        open: how many of these brokers are below their share; of a broker 1 if it is.
        short: how many of them are short.
    """

    __slots__ = ("capacity", "children", "counts", "load", "name", "open", "short")

    def __init__(self, name: str) -> None:
        self.name = name
        self.capacity = 0.0
        self.load = 0.0
        self.counts: dict[str, int] = {}
        self.children: dict[str, _Node] = {}
        self.open = self.short = 0


class _Placing:
    """The tree of brokers, and how much is left to place."""

    def __init__(
        self,
        brokers: Mapping[str, BrokerResources],
        weights: Mapping[Partition, float],
        level: float,
        assignment: Mapping[Partition, str],
    ) -> None:
        self._weights, self._level = weights, level
        # By this much every broker counts as fuller, so that of two empty ones the larger is first.
        self._unit = math.fsum(weights.values()) / len(weights)
        homeless = [weights[key] for key, owner in assignment.items() if not owner]
        self._left = math.fsum(homeless)
        self._largest = max(homeless)
        self._root = _Node("")
        self._paths = {broker.id: self._path(broker) for broker in brokers.values()}
        for (topic, number), owner in assignment.items():
            if owner:
                _count(self._paths[owner], topic, weights[topic, number])
        self._unlimited = False
        self._settle_all()
        self._lacking = math.fsum(self._lack(path[-1]) for path in self._paths.values())
        self._promised = self._left >= self._lacking * (1 - ROUNDING)
        if not self._promised:
            self._level = self._level_without_short()
            self._settle_all()

    def place(self, key: Partition) -> str:
        """Choose the broker of a write partition; it counts there from now on."""
        topic, weight = key[0], self._weights[key]
        if not self._root.open:  # what sums of floats have lost
            self._unlimited = True
            self._settle_all()
        short_only = self._promised and self._root.short > 0 and self._left - weight < self._lacking
        path = [self._root]
        while path[-1].children:
            path.append(self._best(path[-1], topic, short_only=short_only))
        broker = path[-1]
        self._lacking -= self._lack(broker)
        _count(path, topic, weight)
        self._left -= weight
        self._settle(path)
        self._lacking += self._lack(broker)
        return broker.name

    def _best(self, node: _Node, topic: str, *, short_only: bool) -> _Node:
        """Choose the child to which a write partition of a topic goes."""
        children = node.children.values()
        return min(
            (each for each in children if (each.short if short_only else each.open)),
            key=lambda each: (
                each.counts.get(topic, 0) / each.capacity,
                (each.load + self._unit) / each.capacity,
                each.name,
            ),
        )

    def _path(self, broker: BrokerResources) -> list[_Node]:
        path = [self._root]
        for name in (broker.zone, broker.rack, broker.id):
            path.append(path[-1].children.setdefault(name, _Node(name)))
        for node in path:
            node.capacity += broker.capacity
        return path

    def _level_without_short(self) -> float:
        others = [path[-1] for path in self._paths.values() if not path[-1].short]
        load = self._left + math.fsum(broker.load for broker in others)
        return load / math.fsum(broker.capacity for broker in others)

    def _lack(self, broker: _Node) -> float:
        """Return how much a broker that is short lacks to its share."""
        return self._level * broker.capacity - broker.load if broker.short else 0.0

    def _settle_all(self) -> None:
        for path in self._paths.values():
            self._settle(path)

    def _settle(self, path: list[_Node]) -> None:
        """Note whether the broker at the end of a path is open, and whether it is short."""
        broker = path[-1]
        limit = self._level * broker.capacity * (1 - ROUNDING)
        opened = int(self._unlimited or broker.load < limit) - broker.open
        shortened = int(broker.load + self._largest < limit) - broker.short
        for node in path:
            node.open += opened
            node.short += shortened


def _count(path: Iterable[_Node], topic: str, weight: float) -> None:
    for node in path:
        node.load += weight
        node.counts[topic] = node.counts.get(topic, 0) + 1


# -- evening out ----------------------------------------------------------------------------


class _Held:
    """An accepting broker with what it owns."""

    __slots__ = ("broker", "load", "owned", "places", "smallest")

    def __init__(self, broker: BrokerResources) -> None:
        self.broker = broker
        self.places = (
            (broker.zone,), (broker.zone, broker.rack), (broker.zone, broker.rack, broker.id)
        )  # fmt: skip
        self.owned: dict[Partition, float] = {}
        self.load = 0.0
        self.smallest = math.inf

    @property
    def fill(self) -> float:
        return self.load / self.broker.capacity

    def change(self, key: Partition, weight: float | None) -> None:
        """Own a write partition, or with None do not own it any more."""
        if weight is None:
            del self.owned[key]
        else:
            self.owned[key] = weight
        self.sum_up()

    def sum_up(self) -> None:
        self.load = math.fsum(self.owned.values())
        self.smallest = min(self.owned.values(), default=math.inf)


class _Balance:
    """Moves, one by one, that each pay.

    Attributes:
        moves: the new owner of each write partition that has moved.
    """

    def __init__(
        self,
        brokers: Mapping[str, BrokerResources],
        weights: Mapping[Partition, float],
        level: float,
        assignment: Mapping[Partition, str],
    ) -> None:
        self.moves: dict[Partition, str] = {}
        self._weights, self._level, self._first = weights, level, assignment
        self._brokers = {name: _Held(broker) for name, broker in brokers.items()}
        self._counts: dict[tuple[str, tuple[str, ...]], int] = {}
        for key, name in assignment.items():
            held = self._brokers[name]
            held.owned[key] = weights[key]
            self._count(key[0], held, 1)
        for held in self._brokers.values():
            held.sum_up()

    def run(self, max_moves: int, tolerance: float) -> None:
        """Move until nothing pays any more, or so many have moved."""
        moved = True
        while moved:  # who could do nothing may be able to, once others have moved
            moved = False
            worst = [(-out, name) for name in self._brokers if (out := self._out(name)) > tolerance]
            heapq.heapify(worst)
            while worst and len(self.moves) < max_moves:
                out, name = heapq.heappop(worst)
                if -out != self._out(name) or (found := self._best_move(name)) is None:
                    continue
                moved = True
                for each in self._move(*found):
                    if (new := self._out(each)) > tolerance:
                        heapq.heappush(worst, (-new, each))

    def _out(self, name: str) -> float:
        """Return the part of its share by which a broker's load differs from it."""
        return abs(self._brokers[name].fill / self._level - 1)

    def _move(self, key: Partition, source: _Held, target: _Held) -> tuple[str, str]:
        source.change(key, None)
        target.change(key, self._weights[key])
        self._count(key[0], source, -1)
        self._count(key[0], target, 1)
        self.moves[key] = target.broker.id
        if self._first[key] == target.broker.id:
            del self.moves[key]
        return source.broker.id, target.broker.id

    def _count(self, topic: str, held: _Held, change: int) -> None:
        for place in held.places:
            self._counts[topic, place] = self._counts.get((topic, place), 0) + change

    def _best_move(self, name: str) -> tuple[Partition, _Held, _Held] | None:
        """Find what a broker gives when it is above its share, or gets when it is below."""
        held = self._brokers[name]
        gives = held.fill > self._level
        best, most = None, 0.0
        for partner in self._partners(held, gives=gives):
            source, target = (held, partner) if gives else (partner, held)
            worth, key = max(
                (self._worth(key, source, target), key)
                for key, weight in source.owned.items()
                if weight <= _most(source, target)
            )
            if worth > most:
                best, most = (key, source, target), worth
        return best

    def _partners(self, held: _Held, *, gives: bool) -> list[_Held]:
        """List the brokers with which most is gained, one of its zone and one of the others."""
        best: list[_Held | None] = [None, None]
        most = [0.0, 0.0]
        for other in self._brokers.values():
            source, target = (held, other) if gives else (other, held)
            if source.smallest <= _most(source, target):
                elsewhere = held.broker.zone != other.broker.zone
                gain = _ideal(source, target) * (source.fill - target.fill)
                if gain > most[elsewhere]:
                    best[elsewhere], most[elsewhere] = other, gain
        return [each for each in best if each is not None]

    def _worth(self, key: Partition, source: _Held, target: _Held) -> float:
        """Return how much a move lowers the sum of load² / capacity; spreading counts as well."""
        weight = self._weights[key]
        gain = weight * (2 * _ideal(source, target) - weight)
        gain *= 1 / source.broker.capacity + 1 / target.broker.capacity
        for here, there in zip(source.places, target.places, strict=True):
            if here != there:
                after = self._counts.get((key[0], there), 0) + 1
                return gain * UNSPREAD_WORTH if after > self._counts[key[0], here] else gain
        return gain


def _ideal(source: _Held, target: _Held) -> float:
    """Return the load to move so that both brokers are equally full."""
    return (source.fill - target.fill) / (1 / source.broker.capacity + 1 / target.broker.capacity)


def _most(source: _Held, target: _Held) -> float:
    """Return the largest load whose move pays."""
    kept = PAYS_SHARE / source.broker.capacity
    return (source.fill - target.fill) / (1 / target.broker.capacity + kept)
