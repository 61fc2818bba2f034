"""Brokers that take write partitions over from each other in Kafka, dead, frozen or only slow.

No assignment tells them when: each fences what it likes, when it likes. So there are always some
that think they own what others have taken over, and the queue alone keeps them from harm.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest

from memq.core.notification.kafka.queue import KafkaQueue
from memq.core.notification.queue import GROUPS, Publication
from memq.errors import FencedError, MemqError, PublishUncertainError, QueueError
from memq.testing import InMemoryKafka
from tests.simulation.kafka import OF_KAFKA_USUALLY
from tests.simulation.world import World

SEEDS = 60
TOPIC = "t"
READ_PARTITIONS = 2
WRITE_PARTITIONS = 3
BROKERS = 3
SECONDS = 60.0


class Fenced(NamedTuple):
    """A fence that has returned, and the payloads of its write partition that were there."""

    life: str
    write_partition: int
    number: int
    seen: frozenset[str]


class Sent(NamedTuple):
    """A payload, and the number of the claim under which it was sent, at the least."""

    life: str
    write_partition: int
    number: int


@dataclass
class Story:
    """What all brokers have done."""

    fences: list[Fenced] = field(default_factory=list)
    sent: dict[str, Sent] = field(default_factory=dict)
    acked: dict[str, tuple[int, int]] = field(default_factory=dict)
    given_up: set[str] = field(default_factory=set)
    commits: list[tuple[int, int, str]] = field(default_factory=list)  # number, value, life
    may_have_committed: set[int] = field(default_factory=set)
    counts: dict[str, int] = field(default_factory=dict)

    def happened(self, what):
        self.counts[what] = self.counts.get(what, 0) + 1


class Broker:
    """One life of a broker, which does this and that until it dies."""

    def __init__(self, story, process, queue, rng):
        self.story, self.queue, self.rng = story, queue, rng
        self.life = process.name
        self.owned = {}  # number of the claim, by write partition
        self.made = 0

    async def live(self):
        await self.queue.start()
        while True:
            await asyncio.sleep(self.rng.expovariate(4))
            act = self.rng.choice(
                (self.fence, self.publish, self.publish, self.publish, self.commit)
            )
            try:
                await act()
            except FencedError:
                self.story.happened("fenced")
            except MemqError:
                self.story.happened("failed")

    async def fence(self):
        count = self.rng.choice((1, 1, 2, 3))
        wanted = self.rng.sample(range(WRITE_PARTITIONS), count)
        for each in wanted:
            self.owned.pop(each, None)
        await self.queue.fence(TOPIC, *wanted)
        for each in wanted:
            await self.note_fence(each)
        self.story.happened("took over")

    async def note_fence(self, write_partition):
        number = self.queue._state.claim(TOPIC, write_partition).number
        seen = {each: None for each in await self.all_payloads() if own(each) == write_partition}
        self.owned[write_partition] = number
        self.story.fences.append(Fenced(self.life, write_partition, number, frozenset(seen)))

    async def all_payloads(self):
        found = []
        for partition in range(READ_PARTITIONS):
            found += [payload for _, payload in await entries(self.queue, partition)]
        return found

    async def publish(self):
        if not self.owned:
            return
        write_partition = self.rng.choice(sorted(self.owned))
        partition = self.rng.randrange(READ_PARTITIONS)
        self.made += 1
        payload = f"{write_partition}:{self.life}:{self.made}"
        number = self.owned[write_partition]
        self.story.sent[payload] = Sent(self.life, write_partition, number)
        await self.publish_until_known(write_partition, partition, payload)

    async def publish_until_known(self, write_partition, partition, payload):
        publications = [Publication(partition, payload.encode(), 1)]
        for _ in range(5):
            try:
                (offset,) = await self.queue.publish(TOPIC, write_partition, publications)
            except PublishUncertainError:
                self.story.happened("uncertain")
                found = await self.read_back(write_partition, payload)
                if found is None:
                    continue
                self.story.happened("found again")
                partition, offset = found
            except FencedError:
                self.owned.pop(write_partition, None)
                raise
            except QueueError:  # nothing happened: so the very same may be published
                await asyncio.sleep(0.1)
                continue
            self.story.acked[payload] = partition, offset
            self.story.happened("published")
            return

    async def read_back(self, write_partition, payload):
        """Where it is; None when it was not published, and nobody else owns the partition."""
        while True:
            try:
                await self.queue.fence(TOPIC, write_partition, again=True)
                await self.note_fence(write_partition)
                for partition in range(READ_PARTITIONS):
                    for offset, each in await entries(self.queue, partition):
                        if each == payload:
                            return partition, offset
            except FencedError:
                self.owned.pop(write_partition, None)
                raise
            except MemqError:
                await asyncio.sleep(0.5)
            else:
                return None

    async def commit(self):
        if GROUPS not in self.owned:
            return
        number = self.owned[GROUPS]
        self.made += 1
        value = number * 1_000_000 + self.made
        self.story.may_have_committed.add(value)
        await self.queue.commit("g", TOPIC, {0: value})
        self.story.commits.append((number, value, self.life))
        self.story.happened("committed")


def own(payload):
    """The write partition of a payload."""
    return int(payload.partition(":")[0])


async def entries(queue, partition):
    """Offsets and payloads of a read partition."""
    start, end = await queue.offsets(TOPIC, partition)
    found = []
    while start < end:
        page = await queue.fetch(TOPIC, partition, start, max_entries=50, max_bytes=1 << 20)
        found += [(entry.offset, entry.payload.decode()) for entry in page]
        if not page:
            break
        start = page[-1].offset + 1
    return found


def tell(seed):
    """One story: what the brokers did, and what is in the log in the end."""
    story = Story()
    with World(seed) as world:
        rng, timeline = world.rng("owners"), world.timeline
        kafka = InMemoryKafka(
            lambda delay_s, call: timeline.after(int(delay_s * 1e6), call), world.rng("kafka")
        )

        def usual():
            for name, value in OF_KAFKA_USUALLY.items():
                setattr(kafka, name, value)

        def client(loop):
            def schedule(delay_s, call):
                timeline.after(int(delay_s * 1e6), lambda: loop.alive and loop.call_soon(call))

            return kafka.client(schedule)

        def queue_of(process):
            return KafkaQueue(
                client(process.loop),
                cluster_id="c",
                broker_id=process.machine.name,
                runtime=process.runtime,
            )

        def start(name):
            machine = world.machine(name)
            if not machine.up:
                process = machine.start()
                broker = Broker(story, process, queue_of(process), world.rng(process.name))
                process.loop.create_task(broker.live())

        def fault():
            if timeline.now_us > SECONDS * 1e6:
                return
            kind = rng.choice(("kill", "freeze", "away", "loses", "drops", "refuses", "late"))
            machine = world.machine(f"b{rng.randrange(BROKERS)}")
            seconds = rng.choice((0.5, 3.0, 12.0, 30.0))
            if kind == "kill" and machine.up:
                machine.kill()
                timeline.after(int(seconds * 1e6), start, machine.name)
            elif kind == "freeze" and machine.up:
                machine.process.loop.freeze()
                timeline.after(int(seconds * 1e6), machine.process.loop.thaw)
            elif kind == "away":
                kafka.away = rng.choice(("silent", "refuse"))
            elif kind == "late":
                kafka.marker_s = (0.0, 3.0)
            elif kind in ("loses", "drops", "refuses"):
                setattr(kafka, kind, 0.3)
            timeline.after(int(rng.uniform(0.2, 8.0) * 1e6), usual)
            timeline.after(int(rng.expovariate(0.3) * 1e6), fault)

        usual()
        first = world.machine("first").start()

        async def make():
            queue = queue_of(first)
            await queue.start()
            await queue.create_topic(TOPIC, READ_PARTITIONS)
            await queue.close()

        first.loop.run(make(), timeout_s=30)
        for number in range(BROKERS):
            start(f"b{number}")
        timeline.after(1_000_000, fault)
        timeline.sleep(SECONDS)
        for number in range(BROKERS):
            if world.machine(f"b{number}").up:
                world.machine(f"b{number}").kill()
        usual()
        last = world.machine("last").start()

        async def read():
            queue = queue_of(last)
            await queue.start()
            await queue.fence(TOPIC, *range(WRITE_PARTITIONS))
            log = [await entries(queue, partition) for partition in range(READ_PARTITIONS)]
            return log, await queue.committed("g", TOPIC)

        usual()
        log, committed = last.loop.run(read(), timeout_s=120)
    return story, log, committed


COUNTS = {}


@pytest.mark.parametrize("seed", range(SEEDS))
def test_only_the_owner_publishes_and_commits(seed):
    """Who took a write partition over has seen all that anybody before it ever publishes."""
    story, log, committed = tell(seed)
    payloads = [payload for partition in log for _, payload in partition]
    assert len(payloads) == len({*payloads})
    assert {*payloads} <= {*story.sent}
    places = {
        payload: (partition, offset)
        for partition, found in enumerate(log)
        for offset, payload in found
    }
    assert {each: places.get(each) for each in story.acked} == story.acked
    for fence in story.fences:
        for payload in payloads:
            sent = story.sent[payload]
            if (
                sent.write_partition == fence.write_partition
                and sent.life != fence.life
                and sent.number < fence.number
            ):
                assert payload in fence.seen, f"{payload} came after {fence[:3]}"
    value = committed.get(0, 0)
    assert value >= max((value for _, value, _ in story.commits), default=0)
    assert not value or value in story.may_have_committed
    for what, count in story.counts.items():
        COUNTS[what] = COUNTS.get(what, 0) + count


def test_everything_happened():
    """The stories before this one had all that they are for."""
    if not COUNTS:
        pytest.skip("the stories were not told in this process")
    wanted = {"took over", "published", "committed", "fenced", "uncertain", "found again", "failed"}
    assert wanted <= {*COUNTS}
