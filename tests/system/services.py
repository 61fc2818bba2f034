"""The services that the clusters of a campaign share, and how they fail.

Runs take place in *rounds*. All runs of a round begin together and have the same *weather*: none,
or one or two services that fail for some seconds while brokers die as planned.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from memq.core.governor.nodes import ELECTION
from memq.core.queue import NotificationQueue
from memq.errors import ClosedError, MemqError
from memq.queue import open_kafka
from memq.storage.object_store import ObjectStorage
from memq.testing import BrokerProcess
from memq.zookeeper import open_zookeeper
from memq.zookeeper.options import ZooKeeperOptions
from tests.fakes.refusing_store import proxied_store, rules
from tests.harness.services.http_faults import HttpFaultProxy
from tests.harness.services.jars import Jars
from tests.harness.services.kafka import Kafka
from tests.harness.services.process import JavaService
from tests.harness.services.tcp_faults import TcpFaultProxy
from tests.harness.services.zookeeper import ZooKeeper

STORE, KAFKA, ZOOKEEPER, LINK = "store", "kafka", "zookeeper", "link"
WEATHERS = (STORE, KAFKA, ZOOKEEPER, LINK)
BUCKET = "clusters"  # of no other store in this process: who opens it remembers where it is
FREEZES_S = (0.5, 2.0, 5.0)  # less than a session, and longer than one
DOWN_S = (0.0, 1.0, 4.0)  # from a kill to the start
KILLED = 0.4  # of the faults of a server; the others freeze it
FAULTS = 2  # of a service in a round
PAUSE_S = (1.0, 5.0)  # before each of them
STORE_S = 12.0  # for which the store fails now and then
ASK_S = 2.0  # for ZooKeeper to say who governs


@dataclass
class Services:
    """The services of a campaign.

    Attributes:
        s3: options of brokers for the store, through the proxy.
        store: the proxy before it.
        kafka: the server.
        zookeeper: the server.
    """

    s3: dict[str, str]
    store: HttpFaultProxy
    kafka: Kafka
    zookeeper: ZooKeeper

    def storage(self, cluster_id: str) -> Callable[[Path], ObjectStorage]:
        """Makes the storage of a broker of a cluster."""
        return partial(_storage_of, self.s3, cluster_id)

    def queue(
        self, cluster_id: str, broker_id: str
    ) -> Callable[[Path], Awaitable[NotificationQueue]]:
        """Makes the queue of a broker of a cluster."""
        return partial(_queue_of, self.kafka.address, cluster_id, broker_id)

    def brokers(
        self, stack: ExitStack, folder: Path, name: str, count: int, **options: str
    ) -> list[BrokerProcess]:
        """Start the brokers of the cluster with this name, whose bucket has it too."""
        options |= {
            "cluster_id": name,
            "zookeeper": f"{self.zookeeper.address}/{name}",
            "queue": f"kafka://{self.kafka.address}",
            "storage": f"s3://{name}/{name}",
            "storage_options": ",".join(f"{key}={value}" for key, value in self.s3.items()),
        }
        ids = [f"b{number}" for number in range(count)]
        return [
            stack.enter_context(BrokerProcess(folder / each, broker_id=each, **options))
            for each in ids
        ]

    def link(self) -> TcpFaultProxy:
        """A way of its own to ZooKeeper for one broker."""
        return TcpFaultProxy(("127.0.0.1", self.zookeeper.port))

    async def governor(self, root: str) -> str:
        """The broker of a cluster that was elected last; empty when ZooKeeper does not say."""
        options = ZooKeeperOptions(
            servers=f"{self.zookeeper.address}/{root}", request_timeout_ms=int(ASK_S * 1000)
        )
        try:
            session = await open_zookeeper(options)
        except MemqError:
            return ""
        try:
            return (await session.get(ELECTION)).data.decode()
        except MemqError:
            return ""
        finally:
            await session.close()


@contextmanager
def services(folder: Path, jars: Jars | None = None, *, bucket: str = BUCKET) -> Iterator[Services]:
    """All services; this process, which checks, has the store itself in its environment."""
    with (
        proxied_store(folder, bucket, jars) as (options, store),
        Kafka(folder / "kafka", jars=jars) as kafka,
        ZooKeeper(folder / "zookeeper", jars=jars) as zookeeper,
    ):
        yield Services(options, store, kafka, zookeeper)


def _storage_of(options: dict[str, str], cluster_id: str, _: Path) -> ObjectStorage:
    return ObjectStorage(f"s3://{BUCKET}", cluster_id, options)


async def _queue_of(address: str, cluster_id: str, broker_id: str, _: Path) -> NotificationQueue:
    return await open_kafka(address, frozenset(), cluster_id=cluster_id, broker_id=broker_id)


# -- weather --------------------------------------------------------------------------------


def draw_weather(seed: str) -> tuple[str, ...]:
    """What fails in a round: nothing, one or two of `WEATHERS`."""
    rng = random.Random(seed)
    return tuple(sorted(rng.sample(WEATHERS, rng.choice((0, 1, 1, 1, 2, 2)))))


async def pass_over(
    weather: Sequence[str], found: Services, links: Callable[[], Sequence[TcpFaultProxy]], seed: str
) -> None:
    """Let services fail, and work again in the end.

    Args:
        weather: which of them.
        found: the services.
        links: gives those of all brokers to ZooKeeper, of which some are cut.
        seed: of the times and kinds of faults.
    """
    failing = {
        STORE: lambda rng: _fail_store(found.store, rng),
        KAFKA: lambda rng: _fail_server(found.kafka, rng),
        ZOOKEEPER: lambda rng: _fail_server(found.zookeeper, rng),
        LINK: lambda rng: _fail_links(links, rng),
    }
    async with asyncio.TaskGroup() as tasks:
        for each in weather:
            tasks.create_task(failing[each](random.Random(f"{seed}/{each}")))


async def _fail_store(store: HttpFaultProxy, rng: random.Random) -> None:
    await asyncio.sleep(rng.uniform(*PAUSE_S))
    added = [store.add(rule) for rule in rules()]
    try:
        await asyncio.sleep(STORE_S)
    finally:
        for rule in added:
            store.remove(rule)


async def _fail_server(server: JavaService, rng: random.Random) -> None:
    for _ in range(FAULTS):
        await asyncio.sleep(rng.uniform(*PAUSE_S))
        if rng.random() < KILLED:
            server.kill()
            try:
                await asyncio.sleep(rng.choice(DOWN_S))
            finally:
                await asyncio.shield(asyncio.to_thread(server.start))
        else:
            server.freeze()
            try:
                await asyncio.sleep(rng.choice(FREEZES_S))
            finally:
                server.thaw()


async def _fail_links(links: Callable[[], Sequence[TcpFaultProxy]], rng: random.Random) -> None:
    for _ in range(FAULTS):
        await asyncio.sleep(rng.uniform(*PAUSE_S))
        cut = [link for link in links() if rng.random() < 1 / 3]
        how = rng.choice(("refuse", "freeze", "to_upstream", "to_client"))
        for link in cut:
            if how == "refuse":
                await asyncio.to_thread(link.refuse)
            else:
                await asyncio.to_thread(link.freeze, None if how == "freeze" else how)
        await asyncio.sleep(rng.choice(FREEZES_S))
        for link in cut:
            with suppress(ClosedError):  # its run has ended
                await asyncio.to_thread(link.restore)
