"""Assignment and the Governor at 1,000 brokers: `python -m benchmarks.governor`.

Brokers are in three zones of ten racks each. The 10,000 write partitions belong to 1,000 topics;
their traffic differs by tenfold (log-normal). First stand the pure functions. Then a whole Governor
in simulated time: an event reaches it after `WATCH_MS`, a transaction takes `WRITE_MS` and
`CHANGE_MS` for each node, as was measured of ZooKeeper, and a new owner reports `TAKE_OVER_MS`
after its node was written. Settled is when every write partition has a live owner; even, when
nothing is moving any more and the Governor wants nothing. The Governor's own CPU time is shown
beside it, and is part of no simulated time.
"""

from __future__ import annotations

import gc
import random
import time
from collections import Counter
from typing import TYPE_CHECKING

from memq.core.governor.assignment import BrokerResources, PartitionLoad, assign, rebalance
from memq.core.governor.coordination import Check
from memq.core.governor.governor import (
    REBALANCE_INTERVAL_MS,
    TOLERANCE,
    AssignmentTransaction,
    ClusterSnapshot,
    Governor,
    StoredNode,
    TopicPartitions,
)
from memq.core.governor.nodes import ASSIGNMENTS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Row = tuple[str, str, str]

BROKERS, TOPICS, WRITE_PARTITIONS = 1_000, 1_000, 10
ZONES, RACKS = 3, 10
SPREAD = 1.0  # of the logarithm of the traffic
AIM_S = 2
ROUNDS = 3
WATCH_MS, WRITE_MS, CHANGE_MS, TAKE_OVER_MS = 20, 5, 0.12, 2_000
TICK_MS = 1_000


def brokers_of(count: int) -> list[BrokerResources]:
    """Brokers that are all alike, over zones and racks."""
    return [
        BrokerResources(f"broker-{n:04}", 1.0, f"zone-{n % ZONES}", f"rack-{n // ZONES % RACKS}")
        for n in range(count)
    ]


def partitions_of(seed: int) -> list[PartitionLoad]:
    """All write partitions with their traffic."""
    rng = random.Random(seed)
    return [
        PartitionLoad(f"topic-{topic:04}", number, rng.lognormvariate(13.0, SPREAD))
        for topic in range(TOPICS)
        for number in range(WRITE_PARTITIONS)
    ]


def best_s(work: Callable[[], object]) -> float:
    """Seconds of the quickest round."""
    found = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return min(found)


# -- the pure functions ---------------------------------------------------------------------


def evenness(
    brokers: list[BrokerResources],
    partitions: list[PartitionLoad],
    owners: Mapping[tuple[str, int], str],
) -> str:
    """How far the least and the most loaded broker are from the mean."""
    loads = Counter({broker.id: 0.0 for broker in brokers})
    for each in partitions:
        loads[owners[each.partition]] += each.bytes_per_s
    mean = sum(loads.values()) / len(loads)
    within = sum(abs(load / mean - 1) <= 0.05 for load in loads.values()) / len(loads)
    low, high = min(loads.values()) / mean, max(loads.values()) / mean
    return f"loads {low:.2f} to {high:.2f} of the mean, {within:.1%} of brokers within 5 %"


def functions() -> list[Row]:
    """What one call takes."""
    brokers, partitions = brokers_of(BROKERS), partitions_of(7)
    largest = max(each.bytes_per_s for each in partitions)
    mean = sum(each.bytes_per_s for each in partitions) / BROKERS
    present = assign(brokers, partitions, {})
    without = assign(brokers[:-1], partitions, present)
    zone = [broker for broker in brokers if broker.zone != "zone-0"]
    two_zones = assign(zone, partitions, present)

    def moves(owners: Mapping[tuple[str, int], str], limit: int) -> dict[tuple[str, int], str]:
        return rebalance(brokers, partitions, owners, max_moves=limit, tolerance=TOLERANCE)

    after = two_zones | moves(two_zones, BROKERS * WRITE_PARTITIONS)
    size = f"{BROKERS:,} brokers, {len(partitions):,} write partitions"
    aim = f"aim: less than {AIM_S} s"
    return [
        (
            f"assign from nothing; {size}",
            f"{best_s(lambda: assign(brokers, partitions, {})):.3f} s ({aim})",
            f"{evenness(brokers, partitions, present)}; the largest write partition is "
            f"{largest / mean:.2f} of a broker's mean",
        ),
        (
            "assign after the loss of one broker",
            f"{best_s(lambda: assign(brokers[:-1], partitions, present)):.3f} s ({aim})",
            f"{sum(present[key] != without[key] for key in present)} write partitions move; "
            f"{evenness(brokers[:-1], partitions, without)}",
        ),
        (
            "rebalance when it is back, all moves that pay",
            f"{best_s(lambda: moves(without, len(partitions))):.3f} s ({aim})",
            f"{len(moves(without, len(partitions)))} write partitions move",
        ),
        (
            "rebalance when a zone of a third is back, all moves that pay",
            f"{best_s(lambda: moves(two_zones, len(partitions))):.3f} s ({aim})",
            f"{sum(two_zones[key] != after[key] for key in after):,} write partitions move; "
            f"{evenness(brokers, partitions, after)}",
        ),
    ]


# -- the Governor in simulated time ---------------------------------------------------------


class Simulation:
    """A Governor, the store that it writes to, and brokers that report when they take over."""

    def __init__(self, brokers: list[BrokerResources], partitions: list[PartitionLoad]) -> None:
        self.loads = {each.partition: each.bytes_per_s for each in partitions}
        self.live = {broker.id: broker for broker in brokers}
        self.nodes: dict[str, StoredNode] = {}
        self.owners: dict[tuple[str, int], str] = {}
        self.now_ms = 0.0
        self.transactions = self.writes = self.moved = 0
        self.cpu_s = self.longest_s = 0.0
        self.governor = Governor()
        topics = [TopicPartitions(f"topic-{n:04}", "1", WRITE_PARTITIONS) for n in range(TOPICS)]
        snapshot = ClusterSnapshot(brokers, topics)
        self.governor.elected(snapshot, Check("/election", 1), 0, registered_ms=0)

    def lose(self, names: list[str]) -> None:
        """Sessions of brokers are over."""
        for name in names:
            del self.live[name]
            self.governor.broker_gone(name)

    def gain(self, brokers: list[BrokerResources]) -> None:
        """Brokers register."""
        for broker in brokers:
            self.live[broker.id] = broker
            self.governor.broker_registered(broker)

    def report(self, owners: list[str]) -> None:
        """Brokers say what they own."""
        owned: dict[str, dict[tuple[str, int], float]] = {name: {} for name in owners}
        for key, owner in self.owners.items():
            if owner in owned:
                owned[owner][key] = self.loads[key]
        for name, loads in owned.items():
            self.governor.loads_reported(name, loads)

    def step(self) -> AssignmentTransaction | None:
        """Let the Governor decide, and carry that out."""
        start = time.perf_counter()
        found = self.governor.tick(int(self.now_ms))
        took_s = time.perf_counter() - start
        self.cpu_s += took_s
        self.longest_s = max(self.longest_s, took_s)
        if not isinstance(found, AssignmentTransaction):
            return None
        self.now_ms += WRITE_MS + CHANGE_MS * len(found.changes)
        self.transactions += 1
        self.writes += len(found.changes)
        for topic, version, data in found.changes:
            self.nodes[topic] = StoredNode(data, version + 1)
            for number, owner in enumerate(ASSIGNMENTS.decode(topic, data).owners):
                self.moved += self.owners.get((topic, number)) != owner
                self.owners[topic, number] = owner
        self.governor.written(found.number, int(self.now_ms))
        return found

    def all_owned(self) -> bool:
        """Whether every write partition has a live owner."""
        return len(self.owners) == len(self.loads) and all(
            owner in self.live for owner in self.owners.values()
        )

    def until_settled(self) -> float:
        """Go on until all have a live owner; when that was."""
        self.now_ms += WATCH_MS
        while not self.all_owned():
            assert self.step() is not None
        return self.now_ms

    def until_even(self) -> float:
        """Go on until nothing has been wanted for two intervals; since when."""
        quiet_since_ms = self.now_ms
        while self.now_ms - quiet_since_ms < 2 * REBALANCE_INTERVAL_MS:
            if self.step() is None:
                self.now_ms += TICK_MS
            else:
                self.now_ms += TAKE_OVER_MS
                self.report(list(self.live))
                quiet_since_ms = self.now_ms
        return quiet_since_ms


def simulated(what: str, simulation: Simulation, event: Callable[[], None], *, even: bool) -> Row:
    """What comes of an event, as a row."""
    before = simulation.transactions, simulation.writes, simulation.moved
    simulation.cpu_s = simulation.longest_s = 0.0
    start_ms = simulation.now_ms
    event()
    end_ms = simulation.until_even() if even else simulation.until_settled()
    passed_s = (end_ms - start_ms) / 1_000
    after = simulation.transactions, simulation.writes, simulation.moved
    transactions, writes, moved = (new - old for new, old in zip(after, before, strict=True))
    return (
        f"Governor: {what}",
        f"{'even' if even else 'settled'} after {passed_s:.2f} s, simulated",
        f"{moved:,} owners changed, {writes:,} node writes in {transactions} transactions; CPU "
        f"{simulation.cpu_s:.2f} s in all, the longest decision {simulation.longest_s:.3f} s",
    )


def simulation() -> list[Row]:
    """A cluster that begins, loses brokers and gets them back."""
    brokers, partitions = brokers_of(BROKERS), partitions_of(7)
    cluster = Simulation(brokers, partitions)
    zone = [broker for broker in brokers if broker.zone == "zone-0"]
    return [
        simulated("a new cluster, traffic unknown", cluster, lambda: None, even=False),
        simulated(
            "traffic is measured; evened out",
            cluster,
            lambda: cluster.report(list(cluster.live)),
            even=True,
        ),
        simulated("one broker lost", cluster, lambda: cluster.lose([brokers[1].id]), even=False),
        simulated("it is back; evened out", cluster, lambda: cluster.gain([brokers[1]]), even=True),
        simulated(
            "a zone of a third lost",
            cluster,
            lambda: cluster.lose([broker.id for broker in zone]),
            even=False,
        ),
        simulated("it is back; evened out", cluster, lambda: cluster.gain(zone), even=True),
    ]


def run() -> list[Row]:
    """Measure both."""
    gc.collect()
    return functions() + simulation()


if __name__ == "__main__":
    for row in run():
        print(*row, sep="\n    ")
