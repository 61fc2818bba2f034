"""Brokers that take write partitions over from each other in Kafka, dead, frozen or only slow.

No assignment tells them when: each fences what it likes, when it likes, and lets go of what it
likes; some wait for that first. So there are always some that think they own what others have taken
over, and the queue alone keeps them from harm.
"""

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import pytest

from memq.core.clock import SavedTimes
from memq.core.queue import GROUPS, Publication
from memq.errors import FencedError, MemqError, PublishUncertainError, QueueError
from memq.queue.kafka.client import Place
from memq.queue.kafka.queue import KafkaQueue
from tests.fakes.kafka import InMemoryKafka
from tests.simulation.crashes import PLANS
from tests.simulation.kafka import be_usual, client_in
from tests.simulation.world import World

SEEDS = 6 * PLANS
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


class Saved(NamedTuple):
    """Times that were saved, and the claims that were owned right after that."""

    broker_id: str
    wall_ms: int
    owned: dict[int, int]  # number of the claim, by write partition


class Claimed(NamedTuple):
    """A claim that counts, as it stands in the log of what brokers say."""

    offset: int
    write_partition: int
    number: int
    broker_id: str


@dataclass
class Story:
    """What all brokers have done."""

    fences: list[Fenced] = field(default_factory=list)
    sent: dict[str, Sent] = field(default_factory=dict)
    acked: dict[str, tuple[int, int]] = field(default_factory=dict)
    released: Counter[tuple[str, int]] = field(default_factory=Counter)  # how often: broker's id
    saved: list[Saved] = field(default_factory=list)
    commits: list[tuple[int, int, str]] = field(default_factory=list)  # number, value, life
    may_have_committed: set[int] = field(default_factory=set)
    failures: list[tuple[str, Exception]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def happened(self, what):
        self.counts[what] += 1
        return self.counts[what]


class Broker:
    """One life of a broker, which does this and that until it dies."""

    def __init__(self, story, process, queue, rng, lives):
        self.story, self.queue, self.rng = story, queue, rng
        self.broker_id, self.life = process.machine.name, process.name
        self.lives = lives  # whether a broker is alive, by its id
        self.owned = {}  # number of the claim, by write partition
        self.made = 0

    async def live(self):
        await self.queue.start()
        while True:
            await asyncio.sleep(self.rng.expovariate(4))
            acts = (self.fence, self.publish, self.commit, self.let_go, self.wait, self.save)
            (act,) = self.rng.choices(acts, (2, 8, 2, 2, 2, 2))
            try:
                await act()
            except FencedError:
                self.story.happened("fenced")
            except MemqError:
                self.story.happened("failed")

    async def fence(self):
        count = self.rng.choice((1, 1, 2, 3))
        await self.take_over(*self.rng.sample(range(WRITE_PARTITIONS), count))
        self.story.happened("took over")

    async def take_over(self, *wanted):
        for each in wanted:
            self.owned.pop(each, None)
        await self.fence_and_note(*wanted)

    async def wait(self):
        """Take over what nobody has, or what its owner lets go in time."""
        wanted = self.rng.randrange(WRITE_PARTITIONS)
        timeout_s = self.rng.choice((0.0, 2.0, 20.0))
        if await self.queue.wait_released(TOPIC, [wanted], self.lives, timeout_s):
            await self.take_over(wanted)
            self.story.happened("was handed")
        else:
            self.story.happened("waited in vain")

    async def let_go(self):
        """Release something, owned or not, while something may be on its way for it."""
        gone = self.rng.sample(range(WRITE_PARTITIONS), self.rng.choice((1, 1, 2)))
        for each in gone:
            self.story.released[self.broker_id, each] += 1
        owned = [each for each in gone if each in self.owned]
        on_its_way = [asyncio.ensure_future(self.publish_for(each)) for each in owned]
        await asyncio.sleep(0)
        releasing = self.queue.release(TOPIC, *gone)
        outcomes = await asyncio.gather(releasing, *on_its_way, return_exceptions=True)
        for each in outcomes:
            if each is not None and not isinstance(each, MemqError):
                raise each
        if outcomes[0] is not None:
            self.story.happened("may have let go")
            return
        self.story.happened("let go" if owned else "had nothing to let go")
        for each in gone:
            assert not self.queue.owns(TOPIC, each)
            self.owned.pop(each, None)
            with pytest.raises(MemqError):  # and nobody ever reads it
                await self.queue.publish(TOPIC, each, [Publication(0, b"not owned", 1)])

    async def save(self):
        """Save times, and note what is owned right then."""
        wall_ms = self.story.happened("saved")
        await self.queue.save_times(SavedTimes(0, wall_ms))
        owned = [each for each in range(WRITE_PARTITIONS) if self.queue.owns(TOPIC, each)]
        claims = {each: self.queue._state.claim(TOPIC, each).number for each in owned}
        self.story.saved.append(Saved(self.broker_id, wall_ms, claims))

    async def fence_and_note(self, *wanted, again=False):
        await self.queue.fence(TOPIC, *wanted, again=again)
        claims = {each: self.queue._state.claim(TOPIC, each) for each in wanted}
        payloads = await self.all_payloads()
        for each, (number, owner) in claims.items():
            assert owner.rpartition(".")[0] == f"c.{self.broker_id}"
            seen = frozenset(payload for payload in payloads if own(payload) == each)
            self.owned[each] = number
            self.story.fences.append(Fenced(self.life, each, number, seen))

    async def all_payloads(self):
        found = []
        for partition in range(READ_PARTITIONS):
            found += [payload for _, payload in await entries(self.queue, partition)]
        return found

    async def publish(self):
        if not self.owned:
            return
        await self.publish_for(self.rng.choice(sorted(self.owned)))

    async def publish_for(self, write_partition):
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
                await self.fence_and_note(write_partition, again=True)
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


def claims_of(kafka, said):
    """The claims that count, in their order, and where each of the times was said first."""
    claims, saved = {}, {}
    for record in kafka.partition(said).committed(0, 1 << 62):
        kind, *names = json.loads(record.key)
        if kind == "times":
            saved.setdefault((*names, json.loads(record.value)[1]), record.offset)
        elif kind == "owner" and record.value is not None:
            _, write_partition, number, owner = names
            broker_id = owner.removeprefix("c.").rpartition(".")[0]
            of_partition = claims.setdefault(write_partition, [])
            if number > len(of_partition):
                assert number == len(of_partition) + 1
                of_partition.append(Claimed(record.offset, write_partition, number, broker_id))
    return claims, saved


def tell(seed):
    """One story: what the brokers did, and what is in the log in the end."""
    story = Story()
    waking = {}  # what to call on each broker that is up when another one comes or goes
    with World(seed) as world:
        rng, timeline = world.rng("owners"), world.timeline
        kafka = InMemoryKafka(
            lambda delay_s, call: timeline.after(int(delay_s * 1e6), call), world.rng("kafka")
        )

        def queue_of(process):
            return KafkaQueue(
                client_in(kafka, process.loop),
                cluster_id="c",
                broker_id=process.machine.name,
                runtime=process.runtime,
                on_failure=lambda *failure: story.failures.append(failure),
            )

        def start(name):
            machine = world.machine(name)
            if not machine.up and timeline.now_us < SECONDS * 1e6:
                process = machine.start()
                queue = queue_of(process)
                broker = Broker(story, process, queue, world.rng(process.name), lives)
                process.loop.create_task(broker.live())
                waking[name] = process.loop, queue.wake_owners
                wake()

        def lives(broker_id):
            assert broker_id in waking
            return world.machine(broker_id).up

        def wake():
            for loop, call in waking.values():
                if loop.alive:
                    loop.call_soon(call)

        def fault():
            if timeline.now_us > SECONDS * 1e6:
                return
            kind = rng.choice(("kill", "freeze", "away", "loses", "drops", "refuses", "late"))
            machine = world.machine(f"b{rng.randrange(BROKERS)}")
            seconds = rng.choice((0.5, 3.0, 12.0, 30.0))
            if kind == "kill" and machine.up:
                machine.kill()
                timeline.after(1_000_000, wake)
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
            timeline.after(int(rng.uniform(0.2, 8.0) * 1e6), be_usual, kafka)
            timeline.after(int(rng.expovariate(0.3) * 1e6), fault)

        be_usual(kafka)
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
        be_usual(kafka)
        last = world.machine("last").start()

        async def read():
            queue = queue_of(last)
            await queue.start()
            await queue.fence(TOPIC, *range(WRITE_PARTITIONS))
            log = [await entries(queue, partition) for partition in range(READ_PARTITIONS)]
            return log, await queue.committed("g", TOPIC)

        be_usual(kafka)
        log, committed = last.loop.run(read(), timeout_s=120)
    return story, log, committed, *claims_of(kafka, Place("c.memq-state", 0))


COUNTS = Counter()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_only_the_owner_publishes_and_commits(seed):
    """Who took a write partition over has seen all that anybody before it ever publishes."""
    story, log, committed, claims, saved = tell(seed)
    payloads = [payload for partition in log for _, payload in partition]
    assert story.failures == []
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
    for write_partition, of_partition in claims.items():
        released = Counter(
            before.broker_id for before, claim in pairwise(of_partition) if not claim.broker_id
        )
        for broker_id, count in released.items():
            assert count <= story.released[broker_id, write_partition]
    for by, wall_ms, owned in story.saved:
        for write_partition, number in owned.items():
            for claim in claims[write_partition][number:]:
                assert claim.broker_id == by or claim.offset > saved[by, wall_ms]
    COUNTS.update(story.counts)


def test_everything_happened():
    """The stories before this one had all that they are for."""
    if not COUNTS:
        pytest.skip("the stories were not told in this process")
    wanted = {"took over", "published", "committed", "fenced", "uncertain", "found again", "failed"}
    handed = {"let go", "may have let go", "had nothing to let go", "was handed", "waited in vain"}
    assert wanted | handed | {"saved"} <= {*COUNTS}
