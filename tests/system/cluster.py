"""One chaos run of a cluster: several brokers that share services, and die and come back.

Each broker has its lives, and beside them the one that governs is killed now and then, whichever it
is. At the end all brokers live, and each write partition must have one owner, which accepts.
"""

import asyncio
import random
import secrets
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from memq.client.cluster import Cluster
from memq.client.producer.producer import AsyncProducer
from memq.core.wire import messages as m
from memq.errors import MemqError
from memq.runtime.retry import Backoff
from tests.fakes.crashing import MOMENTS, CrashPoint
from tests.harness.services.tcp_faults import TcpFaultProxy
from tests.simulation.checkers.violation import Violation
from tests.system.ledger import Ledger, Name, Written, row_of
from tests.system.lives import BrokerEndedError, Life, Lives, Seams
from tests.system.plan import Plan, draw, over_a_network
from tests.system.runs import Report, carry_out, signs
from tests.system.secured import ANYBODY, Secured
from tests.system.services import Services

SESSION = "3s"  # six ticks of the tests' ZooKeeper
STEPS = ("put", "publish", "publish", "create_topic", "fence", "release", "commit")
CALM = 0.15  # of the runs: nobody dies
CALM_S = 4.0  # for which such a run goes on
STOPPED_S = (1.0, 5.0, 7.0)  # less than a session, and longer than one
LONGER = 6  # times what producers do in a run with one broker
RUN_TIMEOUT_S = 240.0
OWNED_S = 60.0  # for each write partition to be owned, when all brokers live and nothing fails
ASK_S = 10.0
CLOCKS_DIFFER_MS = 10_000  # a publication has its time from before it waited for Kafka
PROBE = "probe"
GOVERNOR = "governor"
AGAIN = Backoff(base_s=0.1, cap_s=1.0)


@dataclass(frozen=True)
class ClusterPlan:
    """One run.

    Attributes:
        plan: topics, producers, and options of each broker.
        lives: of each broker, before the one that lives to the end.
        governor_dies_s: when the broker that governs is killed, from the start on.
    """

    plan: Plan
    lives: tuple[tuple[Life, ...], ...]
    governor_dies_s: tuple[float, ...]


def draw_cluster(seed: str, brokers: int) -> ClusterPlan:
    """The plan of a run of some ten seconds."""
    rng = random.Random(f"{seed}/{brokers} brokers")
    plan = over_a_network(draw(seed))
    options = plan.options | {
        "retention_interval": "1s",
        "drain_timeout": "8s",
        "log_level": "info",
    }
    producers = tuple(
        replace(
            producer,
            steps=LONGER * producer.steps,
            abandoned_after=tuple(LONGER * each for each in producer.abandoned_after),
        )
        for producer in plan.producers
    )
    plan = replace(plan, producers=producers, options=options, lives=(), cuts_s=0.0)
    if rng.random() < CALM:
        return ClusterPlan(replace(plan, quiet_s=CALM_S), ((),) * brokers, ())
    lives = tuple(
        tuple(_life(rng) for _ in range(rng.choice((0, 1, 1, 2)))) for _ in range(brokers)
    )
    dies_s = tuple(rng.uniform(3.0, 12.0) for _ in range(rng.choice((0, 0, 1, 2))))
    return ClusterPlan(replace(plan, quiet_s=rng.choice((0.0, 2.0))), lives, dies_s)


def _life(rng: random.Random) -> Life:
    down_s = rng.choice((0.0, 1.0, 5.0))
    if rng.random() < 0.5:
        step = rng.choice(STEPS)
        most = {"create_topic": 2, "fence": 3, "release": 2, "commit": 30}.get(step, 60)
        point = CrashPoint(step, rng.choice(MOMENTS), rng.randint(1, most))
        return Life(point, rng.uniform(4.0, 8.0), down_s=down_s)
    by = rng.choice(("kill", "kill", "term", "term+kill", "stop", "stop"))
    return Life(None, rng.uniform(1.5, 8.0), by, stopped_s=rng.choice(STOPPED_S), down_s=down_s)


class Brokers:
    """The brokers of a run, and their ways to ZooKeeper.

    Args:
        plan: of the run.
        directory: for their logs.
        services: that they share with the brokers of other runs.
        report: of the run.

    Attributes:
        secured: who their clients are; None where nobody asks.
    """

    def __init__(
        self, plan: ClusterPlan, directory: Path, services: Services, report: Report
    ) -> None:
        self.secured = Secured(directory, plan.plan.seed) if plan.plan.secure else None
        self._clients = ANYBODY if self.secured is None else self.secured.clients
        self._plan = plan
        self._services = services
        self._report = report
        # A run may be repeated, and what an earlier one left in the services is not its own.
        self._id = f"{directory.name}-{secrets.token_hex(3)}"
        self._rng = random.Random(plan.plan.seed)
        self.links: list[TcpFaultProxy] = [services.link() for _ in plan.lives]
        self._directory = directory
        self._lives: dict[str, Lives] = {}
        self._dying: set[str] = set()  # those in a life that is to end
        self._steady: dict[str, str] = {}  # admin URLs of those in their last life

    async def open(self, stack: AsyncExitStack) -> None:
        """Open the links, and make the brokers, which do not run yet."""
        for number, link in enumerate(self.links):
            stack.enter_context(link)
            name = f"b{number}"
            folder = self._directory / name
            folder.mkdir()
            seams = Seams(
                self._services.storage(self._id),
                self._services.queue(self._id, name),
                supervised=True,
                may_not_drain=True,
            )
            options = self._plan.plan.options | {
                "broker_id": name,
                "cluster_id": self._id,
                "zookeeper": f"{link.address}/{self._id}",
                "zookeeper_options": {"session_timeout": SESSION},
                "queue": f"kafka://{self._services.kafka.address}",
                "storage": "s3://given",
            }
            self._lives[name] = Lives(folder, options, seams)
            if self.secured is not None:
                self.secured.guard(name, self._lives[name])

    @property
    def address(self) -> str:
        """Addresses of all brokers."""
        return ",".join(lives.address for lives in self._lives.values())

    @property
    def log(self) -> str:
        """What all have logged."""
        return "".join(lives.log for lives in self._lives.values())

    async def die(self, over: asyncio.Event) -> list[str]:
        """Have all of them live and die as planned; gives the admin URLs of those that live on.

        Args:
            over: set when no service fails any more.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._kill_governors())
            for name, planned in zip(self._lives, self._plan.lives, strict=True):
                tasks.create_task(self._live(name, planned))
            await over.wait()
        return [*self._steady.values()]

    async def _live(self, name: str, planned: tuple[Life, ...]) -> None:
        lives = self._lives[name]
        for life in planned:
            self._dying.add(name)
            end = await lives.live(life)
            self._dying.discard(name)
            self._report.ends[end] += 1
            await asyncio.sleep(life.down_s)
        self._steady[name] = await lives.start()

    async def _kill_governors(self) -> None:
        clock = asyncio.get_running_loop().time
        begun_s = clock()
        for at_s in sorted(self._plan.governor_dies_s):
            await asyncio.sleep(max(0.0, begun_s + at_s - clock()))
            name = await self._services.governor(f"{self._id}/{self._id}")
            if name in self._dying:
                self._lives[name].kill_now()
            elif name in self._steady:
                self._report.ends[GOVERNOR] += 1
                self._lives[name].kill()
                self._steady[name] = await self._lives[name].start()

    async def terminate(self) -> None:
        """End all of them, one after the other."""
        for lives in self._lives.values():
            await lives.terminate()

    def kill(self) -> None:
        """End all of them at once."""
        for lives in self._lives.values():
            lives.kill()

    # -- at the end -------------------------------------------------------------------------

    async def look(self, ledger: Ledger) -> None:
        """See that each write partition has one owner for all brokers, and that it accepts."""
        ledger.history.clocks_differ_ms = CLOCKS_DIFFER_MS
        for topic in self._plan.plan.topics:
            try:
                async with asyncio.timeout(OWNED_S):
                    owners = await self._agreed(topic)
                    await self._probe(ledger, topic, len(owners))
            except TimeoutError:
                told = await self._told(topic)
                text = f"{topic}: not owned, or not accepted, within {OWNED_S:g} s: {told}"
                self._report.violations.append(Violation("unowned", text))

    async def _agreed(self, topic: str) -> list[str]:
        """Who owns which write partition, as soon as all brokers say the same."""
        failures = 0
        while True:
            told = await self._told(topic)
            first = told[0]
            if isinstance(first, list) and all(first) and told == [first] * len(told):
                return first
            await asyncio.sleep(AGAIN.full_jitter_s(failures, self._rng.random))
            failures += 1

    async def _told(self, topic: str) -> list[list[str] | str]:
        """Who owns what of a topic, as each broker says, or why it does not say."""
        told: list[list[str] | str] = []
        for lives in self._lives.values():
            try:
                asked = Cluster(lives.address, client="chaos", **self._clients.reader)
                try:
                    answer, _ = await asked.attempt(
                        lives.address, m.Metadata(topics=[topic]), timeout_s=ASK_S
                    )
                finally:
                    await asked.close()
                told.append(answer.topics[0].hosts)
            except MemqError as exc:
                told.append(f"{lives.address}: {exc}")
        return told

    async def _probe(self, ledger: Ledger, topic: str, write_partitions: int) -> None:
        """Write to each write partition, at its owner, with keys that lead to all of them."""
        label = f"{PROBE}-{topic}"
        written = ledger.written[label] = Written(topic, (10,))
        async with AsyncProducer(
            self.address, topic=topic, partition_by="key", **self._clients.writer
        ) as producer:
            ledger.watch(producer, PROBE, ordered=False)
            reached: set[int] = set()
            while len(reached) < write_partitions:
                row = row_of(Name(label, written.count), (10,))
                written.count += 1
                await producer.write(row.value, row.key, row.headers, row.timestamp_us)
                await producer.flush()
                reached = {
                    name.write_partition
                    for _, name in ledger.sent
                    if name.producer_id == producer.producer_id
                }


async def run_cluster(
    plan: ClusterPlan,
    directory: Path,
    services: Services,
    over: asyncio.Event,
    links: list[TcpFaultProxy],
) -> Report:
    """Carry out a plan; everything that went wrong is in the report.

    Args:
        plan: of the run.
        directory: for logs; its name is that of the cluster.
        services: that it shares with other runs.
        over: set when nothing of these fails any more.
        links: gets the ways of its brokers to ZooKeeper.
    """
    report = Report()
    brokers = Brokers(plan, directory, services, report)
    try:
        async with asyncio.timeout(RUN_TIMEOUT_S), AsyncExitStack() as stack:
            await brokers.open(stack)
            links += brokers.links
            await carry_out(
                plan.plan,
                brokers.address,
                lambda: brokers.die(over),
                report,
                secured=brokers.secured,
                look=brokers.look,
            )
            await brokers.terminate()
    except TimeoutError:
        report.violations.append(
            Violation("stuck", f"the run has not ended after {RUN_TIMEOUT_S:g} s")
        )
    except (MemqError, BrokerEndedError) as exc:
        report.violations.append(Violation("refused", f"{type(exc).__name__}: {exc}"))
    finally:
        brokers.kill()
    report.violations += signs(brokers.log)
    return report
