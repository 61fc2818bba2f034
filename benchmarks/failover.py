"""How long a write partition is away when its broker dies: `python -m benchmarks failover`.

Three brokers, each a process of its own, with sessions of `SESSION`, and a real ZooKeeper, Kafka
and S3-compatible server. A producer writes to all write partitions of a topic all the time. Again
and again the broker that owns one of them is killed with SIGKILL, and started again when the topic
is whole. What is measured is the time from the kill to the first ack of a Message that was written
to that write partition after it. The phases in between are seen in ZooKeeper: when the broker's
node is gone, when the Governor has assigned the write partition anew, and when its new owner says
that it has taken it over.

Kills of the broker that governs are shown beside the others. While one is away, other write
partitions go on: the longest time without any ack is shown as well.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from memq import AsyncAdminClient, AsyncProducer
from memq.core.governor.nodes import ASSIGNMENTS, BROKERS, ELECTION, LOADS
from memq.testing.broker import BrokerProcess
from memq.zookeeper import open_zookeeper
from memq.zookeeper.folders import Mirror
from memq.zookeeper.options import ZooKeeperOptions
from tests.harness.services.kafka import Kafka
from tests.harness.services.s3proxy import S3Proxy
from tests.harness.services.zookeeper import ZooKeeper

if TYPE_CHECKING:
    from collections.abc import Callable

    from memq.client.producer.delivery import Delivery
    from memq.client.producer.state_machine import NamedMessage
    from memq.core.governor.coordination import Coordination, Node
    from memq.core.governor.nodes import TopicAssignment

Row = tuple[str, str, str]

KILLS = 50
BROKERS_COUNT = 3
WRITE_PARTITIONS = 3
SESSION = "6s"
TOPIC = "t"
PAUSE_S = 0.002  # between two records
STEADY_S = 2.0  # for which all goes on between two kills
MOVED_S = 60.0  # for which a write partition is waited for
AIM_S = 10


@dataclass
class Failover:
    """One kill.

    Attributes:
        governed: the broker that was killed was the Governor.
        gone_s: until its node was gone, from the kill on.
        assigned_s: until the write partition had another owner by its node.
        taken_over_s: until that had taken it over.
        acked_s: until the first ack of what was written to it after the kill.
        gap_s: the longest time without any ack.
    """

    governed: bool
    gone_s: float
    assigned_s: float
    taken_over_s: float
    acked_s: float
    gap_s: float


@dataclass
class Watched:
    """What stands in ZooKeeper, and who waits for it."""

    brokers: dict[str, float] = field(default_factory=dict)  # since when
    assignment: TopicAssignment | None = None
    loads: dict[str, set[int]] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def broker(self, name: str, node: Node | None) -> None:
        """A broker came or went."""
        if node is None:
            self.brokers.pop(name, None)
        else:
            self.brokers.setdefault(name, now_s())
        self.changed.set()

    def assigned(self, name: str, node: Node | None) -> None:
        """A topic was assigned."""
        if name == TOPIC and node is not None:
            self.assignment = ASSIGNMENTS.decode(name, node.data)
        self.changed.set()

    def loaded(self, name: str, node: Node | None) -> None:
        """A broker says what it owns."""
        self.loads.pop(name, None)
        if node is not None:
            loads = LOADS.decode(name, node.data).by_partition()
            self.loads[name] = {number for topic, number in loads if topic == TOPIC}
        self.changed.set()

    def owners(self) -> list[str]:
        """Broker ids by write partition."""
        return [] if self.assignment is None else [*self.assignment.owners]

    def gone(self, broker: str) -> bool:
        """Whether a broker does not live."""
        return broker not in self.brokers

    def moved(self, number: int, broker: str) -> bool:
        """Whether a write partition has another owner than this one."""
        return self.owners()[number] not in ("", broker)

    def runs(self, number: int) -> bool:
        """Whether a write partition runs at its owner."""
        return number in self.loads.get(self.owners()[number], ())

    def whole(self) -> bool:
        """Whether all brokers live, and each write partition runs at its owner."""
        everybody = len(self.brokers) == BROKERS_COUNT
        return everybody and all(map(self.runs, range(len(self.owners()))))

    async def until(self, condition: Callable[[], bool]) -> float:
        """Wait until a condition holds; gives the time."""
        async with asyncio.timeout(MOVED_S):
            while not condition():
                self.changed.clear()
                await self.changed.wait()
        return now_s()


class Acks:
    """When Messages of a producer were acked, by write partition."""

    def __init__(self, producer: AsyncProducer) -> None:
        self.last_s = now_s()
        self.gap_s = 0.0
        self._waiting: dict[int, tuple[float, asyncio.Future[float]]] = {}
        core = producer._state_machine  # noqa: SLF001 - no client needs to know more than its acks
        told = core._on_submitted  # noqa: SLF001

        def submitted(message: NamedMessage) -> None:
            number, at_s = message.partition.number, now_s()
            message.sealed.delivery.add_done_callback(lambda each: self._done(each, number, at_s))
            told(message)

        core._on_submitted = submitted  # noqa: SLF001

    def first(self, number: int) -> asyncio.Future[float]:
        """When the first Message that is written from now on to a write partition is acked."""
        found = asyncio.get_running_loop().create_future()
        self._waiting[number] = (now_s(), found)
        return found

    def _done(self, delivery: Delivery, number: int, at_s: float) -> None:
        if delivery.exception() is not None:
            return
        self.gap_s = max(self.gap_s, now_s() - self.last_s)
        self.last_s = now_s()
        since_s, found = self._waiting.get(number, (0.0, None))
        if found is not None and at_s >= since_s:
            del self._waiting[number]
            found.set_result(self.last_s)


def now_s() -> float:
    """The time."""
    return asyncio.get_running_loop().time()


async def measure(kills: int) -> list[Failover]:
    """Kill brokers so often."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="memq-failover-")))
        s3 = stack.enter_context(S3Proxy(folder / "s3"))
        kafka = stack.enter_context(Kafka(folder / "kafka"))
        zookeeper = stack.enter_context(ZooKeeper(folder / "zookeeper"))
        environment = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in s3.environment.items():
            environment.setenv(name, value)
        environment.setenv("MEMQ_CONFIG", os.devnull)
        s3.make_bucket("failover")
        cluster_id = f"c-{secrets.token_hex(4)}"
        brokers: dict[str, BrokerProcess] = {}
        for number in range(BROKERS_COUNT):
            name = f"b{number}"
            brokers[name] = stack.enter_context(
                BrokerProcess(
                    folder / name,
                    broker_id=name,
                    cluster_id=cluster_id,
                    zookeeper=f"{zookeeper.address}/memq",
                    zookeeper_options=f"session_timeout={SESSION}",
                    queue=f"kafka://{kafka.address}",
                    storage="s3://failover/objects",
                    memory_bytes="64MiB",
                )
            )
        options = ZooKeeperOptions(servers=f"{zookeeper.address}/memq/{cluster_id}")
        session = await open_zookeeper(options)
        stack.push_async_callback(session.close)
        return await _kill_them(kills, brokers, session, stack)


async def _kill_them(
    kills: int,
    brokers: dict[str, BrokerProcess],
    session: Coordination,
    stack: AsyncExitStack,
) -> list[Failover]:
    bootstrap = ",".join(broker.address for broker in brokers.values())
    watched = Watched()
    async with AsyncAdminClient(bootstrap) as admin:
        await admin.create_topic(TOPIC, write_partitions=WRITE_PARTITIONS, batch_age="5ms")
    followed = (
        (BROKERS.path, watched.broker),
        (ASSIGNMENTS.path, watched.assigned),
        (LOADS.path, watched.loaded),
    )
    for path, told in followed:
        mirror = Mirror(session, path, told)
        stack.push_async_callback(mirror.stop)
        await mirror.start()
        for name, node in mirror.nodes.items():
            told(name, node)
    await watched.until(watched.whole)
    producer = AsyncProducer(bootstrap, topic=TOPIC, linger="1ms")
    await producer.start()
    acks = Acks(producer)
    stop = asyncio.Event()
    writing = asyncio.create_task(_write(producer, stop))
    found = []
    for kill in range(kills):
        await asyncio.sleep(STEADY_S)
        number = kill % WRITE_PARTITIONS
        owner = watched.owners()[number]
        governed = (await session.get(ELECTION)).data.decode() == owner
        acks.gap_s = 0.0
        killed_s = now_s()
        await asyncio.to_thread(brokers[owner].kill)
        first = acks.first(number)
        gone_s = await watched.until(partial(watched.gone, owner))
        assigned_s = await watched.until(partial(watched.moved, number, owner))
        taken_over_s = await watched.until(partial(watched.runs, number))
        async with asyncio.timeout(MOVED_S):
            acked_s = await first
        gone_s, assigned_s, taken_over_s, acked_s = (
            each - killed_s for each in (gone_s, assigned_s, taken_over_s, acked_s)
        )
        found.append(Failover(governed, gone_s, assigned_s, taken_over_s, acked_s, acks.gap_s))
        await asyncio.to_thread(brokers[owner].restart)
        await watched.until(watched.whole)
    stop.set()
    await writing
    return found


async def _write(producer: AsyncProducer, stop: asyncio.Event) -> None:
    async with producer:
        while not stop.is_set():
            await producer.write(b"x" * 100)
            await asyncio.sleep(PAUSE_S)


def run(kills: int = KILLS) -> list[Row]:
    """The figures."""
    found = asyncio.run(measure(kills))
    groups = {
        "owner killed": [each for each in found if not each.governed],
        "owner killed that governs": [each for each in found if each.governed],
    }
    rows = []
    for name, members in groups.items():
        if not members:
            continue
        times = {
            phase: sorted(getattr(each, f"{phase}_s") for each in members)
            for phase in ("gone", "assigned", "taken_over", "acked", "gap")
        }
        phases = ", ".join(
            f"{phase.replace('_', ' ')} {_at(times[phase], 0.5):.2f} / {times[phase][-1]:.2f} s"
            for phase in ("gone", "assigned", "taken_over")
        )
        rows.append(
            (
                f"{name}: kill to first ack, {len(members)} kills",
                f"p50 {_at(times['acked'], 0.5):.2f} s, p99 {_at(times['acked'], 0.99):.2f} s "
                f"(aim: less than {AIM_S} s)",
                f"p50 / most: {phases}; without any ack {_at(times['gap'], 0.5):.2f} / "
                f"{times['gap'][-1]:.2f} s; session {SESSION}",
            )
        )
    return rows


def _at(times_s: list[float], quantile: float) -> float:
    return times_s[min(len(times_s) - 1, int(len(times_s) * quantile))]


if __name__ == "__main__":
    for row in run():
        print(*row, sep="\n    ")
