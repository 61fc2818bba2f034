"""A real broker on a simulated machine, with its storage and queue watched and made to fail."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from memq.broker import server
from memq.broker.config import BrokerConfig
from memq.broker.data_dir import check_nothing_missing
from memq.broker.server import Broker
from memq.core.notification import decode_notification
from memq.queue.embedded.queue import EmbeddedQueue
from memq.runtime import hedging
from tests.fakes.faults import Fault
from tests.fakes.faulty_queue import FaultyQueue
from tests.fakes.faulty_storage import FaultyStorage
from tests.fakes.object_store import ROOT
from tests.simulation.history import Durable, Removal, split
from tests.simulation.kafka import open_kafka

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memq.core.queue import Publication
    from tests.simulation.run import Run
    from tests.simulation.world import Process

PORT = 6367
PAGE_BYTES = 64 << 10  # small, so that pages are filled, exchanged and deleted
INDEX_PAGE_ITEMS = 128

LOOKS_S = {name: getattr(server, name) for name in ("SWEEP_S", "DISK_S", "TIDY_GROUPS_S")}

HEDGING = (3, 0.5)
"""Puts before the first hedge, and hedges for each put. A run has tens of Batches: what a store
does in thousands is to be met in these."""

STORAGE_FAULTS = (
    Fault("put", "fail", times=None, probability=0.1),
    Fault("put", "lose_answer", times=None, probability=0.1),
    Fault("get_range", "fail", times=None, probability=0.05),
    Fault("delete", "fail", times=None, probability=0.1),
    Fault("list", "partial", times=None, probability=0.1),
)
QUEUE_FAULTS = (
    Fault("publish", "fail", times=None, probability=0.05),
    Fault("publish", "uncertain", times=None, probability=0.05),
    Fault("publish", "partial", times=None, probability=0.05),
    Fault("publish", "lose_answer", times=None, probability=0.05),
    Fault("fence", "lose_answer", first=20, times=None, probability=0.1),
    Fault("commit", "fail", times=None, probability=0.05),
    Fault("commit", "lose_answer", times=None, probability=0.05),
    Fault("fetch", "fail", times=None, probability=0.02),
)


ASKING = {
    "authentication": "required",
    "superusers": ["User:friend"],
    "token": ["friend known", "intruder unwelcome"],
}
"""Options of brokers that ask who their clients are; one of those may do nothing."""


class SimBroker(Broker):
    """A broker whose storage and queue say what they do."""

    def __init__(self, run: Run, process: Process) -> None:
        self._run = run
        self._process = process
        config = BrokerConfig.create(
            data_dir=str(process.machine.folder),
            host=process.machine.name,
            port=PORT,
            retention_interval=f"{int(run.plan.retention_s * 1000)}ms",
            orphan_interval="20s",
            park_timeout=run.plan.park,
            auto_create_topics=False,
            insecure=True,
            drain_timeout="10s",
            storage=ROOT if run.plan.store else "",
            queue="kafka://k:9092" if run.plan.kafka else "",
            **(_of_cluster(process) if run.plan.clustered else {}),
            **(ASKING if run.plan.asks else {}),
        )
        super().__init__(config, runtime=process.runtime, admin_http=False)
        for name, usual_s in LOOKS_S.items():
            setattr(server, name, max(usual_s, run.plan.idle_s))
        hedging.MIN_KNOWN, hedging.EXTRA_SHARE = HEDGING

    async def start(self):
        await super().start()
        self.context.hedging = WatchedHedging(self._run)
        if self._run.cluster is not None:
            self._run.cluster.watch(self, self._process)

    async def _open_coordination(self):
        return await self._run.cluster.open_session(self._process)

    async def _open_queue(self, folder):
        run, runtime = self._run, self._process.runtime
        if run.kafka is not None:
            return self._made_faulty(await open_kafka(run, self._process, self.config))
        check_nothing_missing(self._directory)
        queue = await asyncio.get_running_loop().run_in_executor(
            None,
            partial(
                WatchedQueue,
                run,
                folder,
                runtime=runtime,
                page_bytes=PAGE_BYTES,
                index_page_items=INDEX_PAGE_ITEMS,
            ),
        )
        return self._made_faulty(queue)

    def _made_faulty(self, queue):
        run = self._run
        if not run.faulty_queue:
            return queue
        seed = int(self._process.runtime.random() * 1e9)
        faulty = FaultyQueue(queue, QUEUE_FAULTS, seed=seed)
        run.faulty(faulty.faults, "queue_faults")
        return faulty

    def _open_storage(self):
        run = self._run
        storage = WatchedStorage(run, super()._open_storage())
        if not run.faulty_storage:
            return storage
        seed = int(self._process.runtime.random() * 1e9)
        faulty = FaultyStorage(storage, STORAGE_FAULTS, seed=seed)
        run.faulty(faulty.faults, "storage_faults")
        return faulty


def _of_cluster(process: Process) -> dict[str, str]:
    return {"broker_id": process.machine.name, "zookeeper": "zk:2181"}


class WatchedQueue(EmbeddedQueue):
    """The embedded queue; it says what became durable, and what was removed."""

    def __init__(self, run: Run, *args, **options) -> None:
        self._run_of = run
        self._looked_at: set[tuple[str, int]] = set()
        super().__init__(*args, **options)

    def _open_topic(self, name, file):
        topic = super()._open_topic(name, file)
        for number, partition in enumerate(topic.partitions):
            partition.append = partial(self._append, name, number, partition.append)
            partition.truncate = partial(
                self._truncate, name, number, partition, partition.truncate
            )
        return topic

    def _append(self, topic: str, number: int, append, publications: Sequence[Publication]) -> int:
        """In the thread, at the moment when it is durable: a crash may come before the answer."""
        try:
            first = append(publications)
        except BaseException:
            self._looked_at.discard((topic, number))  # it may have taken effect: look again
            raise
        for offset, publication in enumerate(publications, first):
            self._durable(topic, number, offset, publication.payload)
        return first

    async def _partition(self, topic, number):
        partition = await super()._partition(topic, number)
        if (topic, number) not in self._looked_at:
            self._looked_at.add((topic, number))
            self._look_at(topic, number, partition)
        return partition

    def _look_at(self, topic: str, number: int, partition) -> None:
        """What a crash has left, though nobody was told that it is durable or gone, is so now."""
        offset = partition.start
        self._removed(topic, number, 0, offset)
        while entries := partition.read(offset, max_entries=1_000, max_bytes=1 << 30):
            for entry in entries:
                self._durable(topic, number, entry.offset, entry.payload)
            offset = entries[-1].offset + 1

    def _durable(self, topic: str, number: int, offset: int, payload: bytes) -> None:
        run, at = self._run_of, (*split(topic), number, offset)
        if at not in run.publications:
            run.published(Durable(run.now_us, *at), decode_notification(payload))

    def _truncate(self, topic: str, number: int, partition, truncate, offset: int) -> None:
        start = partition.start
        try:
            truncate(offset)
        finally:
            self._removed(topic, number, start, partition.start)

    def _removed(self, topic: str, number: int, start: int, end: int) -> None:
        run = self._run_of
        for offset in range(start, end):
            at = (*split(topic), number, offset)
            found = run.publications.get(at)
            if found is not None and at not in run.forgotten:
                run.forgotten.add(at)
                run.history.add(Removal(run.now_us, "notification", *at, found.time_us))


class WatchedHedging(hedging.Hedging):
    """The rule; it says when a put is made a second time."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run

    def overdue(self, request):
        hedge = super().overdue(request)
        if hedge:
            self._run.world.happened("hedge")
        return hedge


class WatchedStorage:
    """A storage that says what was put and deleted."""

    def __init__(self, run: Run, inner) -> None:
        self._run = run
        self._inner = inner
        self.get, self.get_range, self.list = inner.get, inner.get_range, inner.list
        self.uri, self.remote, self.close = inner.uri, inner.remote, inner.close
        self.requests = inner.requests

    def put(self, key, buffers, *, timeout_s):
        self._run.begun.setdefault(key, self._run.now_us)
        self._inner.put(key, buffers, timeout_s=timeout_s)
        if self._run.store is None:  # which says so itself, at the moment when it is true
            self._run.written.setdefault(key, self._run.now_us)

    def delete(self, *keys):
        self._inner.delete(*keys)
        for key in keys:
            self._run.deleted(key)


async def serve(run: Run, process: Process) -> None:
    """Start a broker, and say what ends it by itself."""
    broker = SimBroker(run, process)
    try:
        await broker.start()
    except Exception as exc:  # noqa: BLE001 - whether it may fail is for the run to judge
        if not process.alive:
            return  # what is left of the dead is taken down
        run.broker_failed_to_start(process, exc)
        return
    run.brokers[process.machine.name] = broker
    run.broker_is_up(process)
    error = await broker.failed()
    run.broker_failed(process, error)
