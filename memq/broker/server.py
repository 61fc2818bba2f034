"""Broker: one process, one event loop; everything it runs is made, run and unmade here.

Start: lock the data directory, take over the topics (fence, rebuild), clean what a crash left,
and only then listen. Stop: stop listening, refuse new Messages, store and ack what was accepted,
close. An error that nothing expected stops the broker: its state machines are rebuilt from the
queue at the next start, which is safer than going on from a state that nobody has thought of.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from memq.broker.access_control import AccessControl, FileStore
from memq.broker.access_handlers import AccessHandlers
from memq.broker.access_log import AccessLog
from memq.broker.admin import AdminServer
from memq.broker.backup import Backups, check_not_lost
from memq.broker.catalog import Catalog
from memq.broker.cluster_topics import ClusterTopics
from memq.broker.connection import Connections, raise_file_limit
from memq.broker.context import BrokerContext
from memq.broker.data_dir import DiskSpace, check_nothing_missing, lock_objects
from memq.broker.effective import changed_options
from memq.broker.fair_queuing import ANSWERS_SHARE, FairScheduler
from memq.broker.fatal_errors import FatalErrors
from memq.broker.figures import FiguresKeeper
from memq.broker.handlers import Handlers
from memq.broker.lag import GroupLags, LagCounter
from memq.broker.level_file import read_level, write_level
from memq.broker.listeners import LOOK_S, Listener
from memq.broker.membership import ClusterMembership
from memq.broker.memory import BodyMemory
from memq.broker.object_root import look_for_objects
from memq.broker.operators import OperatorHandlers
from memq.broker.own_topics import OwnTopics
from memq.broker.retention import delete_expired, forget_expired, scan_orphans
from memq.broker.stored_groups import restore_groups
from memq.broker.throttling import Throttling
from memq.broker.timekeeper import Timekeeper
from memq.broker.tokens import Tokens
from memq.core.clock import BrokerClock
from memq.core.features import MIN_LEVEL
from memq.core.group import GroupCoordinator
from memq.core.log_events import event
from memq.core.topic import AUDIT_TOPIC
from memq.core.units import counted
from memq.errors import ConfigError, MemqError, ObjectNotFoundError, StorageError
from memq.queue import is_embedded, open_kafka
from memq.queue.embedded.queue import EmbeddedQueue
from memq.queue.embedded.read_partition import PAGE_BYTES
from memq.runtime.files import explain, make_folders
from memq.runtime.log_format import configure
from memq.runtime.system import SYSTEM, Runtime
from memq.storage.open import local_folder, open_storage
from memq.zookeeper import open_zookeeper
from memq.zookeeper.options import ZooKeeperOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from memq.broker.admin import Pages
    from memq.broker.config import BrokerConfig
    from memq.broker.hosted_topic import HostedTopic
    from memq.broker.topics import Topics
    from memq.core.governor.coordination import Coordination
    from memq.core.queue import NotificationQueue
    from memq.storage.handler import StorageHandler

log = logging.getLogger(__name__)

SWEEP_S = 0.25  # how often timeouts of connections and waiting Messages are looked at
DISK_S = 2.0  # how often the room on the disks is looked at
QUEUE_BYTES = PAGE_BYTES + (1 << 20)  # a data page of the queue, an index page, and small files
TIDY_GROUPS_S = 1.0  # a group that has ended is stored as ended so much later
ASK_THREADS = 8  # a question that is given up holds one for some seconds longer
NOT_THERE = "00/nothing"  # a key that no object has
READ_THREADS = 8  # what clients read through the broker, and retention; none takes one of uploads


class Broker:
    """One broker.

    Args:
        config: its configuration.
        storage: where Batches go; None for what the configuration says.
        queue: where notifications go; None for the embedded queue under `data_dir`.
        runtime: clocks, chance and threads.
        admin_http: whether to serve the admin HTTP.
        pages: adds pages to it; None for none.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        storage: StorageHandler | None = None,
        queue: NotificationQueue | None = None,
        runtime: Runtime = SYSTEM,
        admin_http: bool = True,
        pages: Pages | None = None,
    ) -> None:
        self.config = config
        self.control = AccessControl(config, Tokens(config.token, config.token_file), runtime)
        self._runtime = runtime
        self._directory = Path(config.data_dir).absolute()
        self._storage_uri = config.storage or (self._directory / "objects").as_uri()
        self._given = (storage, queue)
        self._storage = storage
        self._queue: NotificationQueue | None = None
        self._catalog: Catalog | None = None
        self.membership: ClusterMembership | None = None
        self._abandoned = False
        self._admin_http = admin_http
        self._pages = pages
        self.listeners: dict[str, Listener] = {}
        self._asks = runtime.threads(ASK_THREADS, "memq-ask")
        self._background: list[asyncio.Task[None]] = []
        self._locks = contextlib.ExitStack()

    def __repr__(self) -> str:
        state = "ready" if self.context.ready else "not ready"
        return (
            f"<Broker {self.config.broker_id} [{state}] {self.connections!r} "
            f"{self.context.memory!r}>"
        )

    # -- life -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take over, clean up, listen.

        Raises:
            ConfigError: the data directory, or that of the storage, is a file.
            LockedError: another broker uses the data directory, or with a copy of it the objects.
            DataLossError: a part of the data directory is missing that others know of.
            MemqError: something stored is damaged or cannot be read; the message names it.
            UnavailableError: the port is taken.
        """
        self._max_partitions = raise_file_limit(self.config.max_connections)
        fatal_errors = self._fatal_errors = FatalErrors()
        storage, queue = self._given
        objects = local_folder(self._storage_uri) if storage is None else None
        folders = [objects] if objects else []
        for option, folder in (("data_dir", self._directory), ("storage", objects)):
            if folder is not None and folder.exists() and not folder.is_dir():
                raise ConfigError(
                    f"{option} = {folder} is a file; give a folder, which is made where there is "
                    "none"
                )
        try:
            make_folders(self._directory)
        except OSError as exc:
            raise StorageError(f"cannot make {self._directory}: {explain(exc)}") from exc
        level = MIN_LEVEL if self.config.zookeeper else read_level(self._directory)
        if queue is None:
            folder = self._directory / "queue"
            folders.append(folder if is_embedded(self.config.queue) else self._directory)
            queue = self._queue = await self._open_queue(folder)
        if storage is None:
            loop = asyncio.get_running_loop()
            storage = await loop.run_in_executor(None, self._open_storage)
        saved = await queue.times()
        clock = BrokerClock(self._runtime.mono_s, self._runtime.wall_ms, saved)
        self.context = BrokerContext(
            config=self.config,
            storage=storage,
            queue=queue,
            memory=BodyMemory(self.config.memory_bytes, guard=fatal_errors.guarded),
            scheduler=FairScheduler(int(self.config.memory_bytes * ANSWERS_SHARE)),
            uploads=self._runtime.threads(2 * self.config.upload_threads, "memq-upload"),
            upload_slots=asyncio.Semaphore(self.config.upload_threads),
            reads=self._runtime.threads(READ_THREADS, "memq-read"),
            fatal_errors=fatal_errors,
            times=Timekeeper(clock, saved, queue.save_times),
            runtime=self._runtime,
            disk=DiskSpace(folders),
            listeners=self.listeners,
            level=level,
        )
        self.groups = GroupCoordinator()
        self.topics = self._make_topics()
        lag = LagCounter(self.context)
        self.access_log = AccessLog(
            self.config.access_log,
            self.config.broker_id,
            self._runtime,
            self.context.metrics.access_lost,
        )
        store = self.membership or self._open_users()
        throttling = Throttling(self.context.metrics.throttled)
        self.backups = Backups(self.context, self.topics, self.control)
        self.figures = FiguresKeeper(self.context, self.topics, self.groups, lag)
        self.handlers = self._make_handlers(
            lag, AccessHandlers(self.control, store, throttling.waited_s)
        )
        self.connections = Connections(
            self.context, self.handlers, self.control, throttling, self.access_log
        )
        group_lags = GroupLags(self.context, self.topics, lag)
        self.admin = AdminServer(
            self.context, self.topics, self.connections, group_lags, self._pages
        )
        self.handlers.status = self.admin.describe
        await self._listen()
        if self.membership is None:
            await self._begin_alone(objects)
        else:
            await self.membership.start()
        await self.control.begin(store)
        if self._admin_http:
            await self.admin.start()
        fatal_errors.watch(self.connections.foreign)
        for listener in self.listeners.values():
            await listener.serve()
        background = self._work()
        self._background = [fatal_errors.spawn("background", each) for each in background]
        self.context.ready = True
        log.info("broker %s is ready on %s", self.config.broker_id, self.address)

    async def stop(self) -> bool:
        """Drain and close.

        Returns:
            True when everything that was accepted is stored and acked.
        """
        context = self.context
        context.ready = False
        if self.membership is not None:
            await self.membership.hand_over(self.config.drain_timeout_ms / 1000)
        self.backups.stopping()
        context.stopping = True
        for listener in self.listeners.values():
            listener.close()
        drained = await self.topics.stop(self.config.drain_timeout_ms / 1000)
        for task in self._background:
            task.cancel()
        # The last acks leave in the turn after they were made, which is over by then.
        await asyncio.gather(*self._background, return_exceptions=True)
        self.connections.close()
        await self.admin.stop()
        await self.backups.close()
        try:
            await context.times.close(context.now())
        except MemqError as exc:
            log.warning("cannot save the time, the next start begins earlier: %s", exc)
        if self.membership is not None:
            await self.membership.close()
        await context.queue.close()
        context.storage.close()
        self._asks.shutdown(wait=False, cancel_futures=True)
        for threads in (context.uploads, context.reads):
            threads.shutdown(wait=drained, cancel_futures=True)
        self._locks.close()
        self.access_log.close()
        context.fatal_errors.unwatch()
        left = event("broker_left", broker=self.config.broker_id, drained=drained)
        said = "" if drained else ", not drained"
        log.info("broker %s stopped%s", self.config.broker_id, said, extra=left)
        return drained

    async def abandon(self) -> None:
        """Give up a start that did not end: nobody waits for what it asks of the storage."""
        self._abandoned = True
        for listener in self.listeners.values():
            listener.close()
        if self.membership is not None:
            await self.membership.close()
        if self._storage is not None:
            self._storage.close()
        if self._queue is not None:
            await self._queue.close()

    async def failed(self) -> BaseException:
        """Wait for an error that nothing expected."""
        return await asyncio.shield(self.context.fatal_errors.failure)

    @property
    def address(self) -> str:
        """The `host:port` that clients reach this broker under."""
        return self.context.address

    @property
    def admin_port(self) -> int:
        """The port of the admin HTTP."""
        return self.admin.port

    async def _open_queue(self, folder: Path) -> NotificationQueue:
        config = self.config
        if is_embedded(config.queue):
            check_nothing_missing(self._directory)
            opening = partial(
                EmbeddedQueue,
                folder,
                runtime=self._runtime,
                doomed=self._doomed,
                max_partitions=self._max_partitions,
            )
            return await asyncio.get_running_loop().run_in_executor(None, opening)
        return await open_kafka(
            config.queue,
            config.queue_options,
            cluster_id=config.cluster_id,
            broker_id=config.broker_id,
            runtime=self._runtime,
            on_failure=self._fatal_errors.report,
        )

    def _doomed(self) -> list[str]:
        """Topics of the queue that are only there to be deleted; it is locked by now."""
        self._catalog = Catalog(self._directory / "topics")
        return [topic.queue_topic for topic in self._catalog.doomed()]

    async def _begin_alone(self, objects: Path | None) -> None:
        """Take over all topics of the data directory."""
        if isinstance(self.topics, OwnTopics) and self.topics.is_empty():
            await check_not_lost(self.context, f"{self._directory / 'topics'}")
        write_level(self._directory, self.context.level)
        await self.topics.start()
        if objects is not None and AUDIT_TOPIC in self.topics.names():
            lineage = self.topics.get(AUDIT_TOPIC).topic.topic_id  # made with the directory
            self._locks.callback(os.close, lock_objects(objects, lineage))
        for hosted in self.topics.hosted():
            await restore_groups(hosted.topic, self.groups, self.context)
        await self._look_for_objects()

    def _make_handlers(self, lag: LagCounter, access: AccessHandlers) -> Handlers:
        operators = OperatorHandlers(
            self.config,
            self.figures,
            self.access_log,
            lambda after, most: self.connections.describe(after, most),  # noqa: PLW0108 - made later
        )
        return Handlers(
            self.context,
            self.topics,
            self.groups,
            lag,
            self.membership,
            access=access,
            backups=self.backups,
            operators=operators,
        )

    def _make_topics(self) -> Topics:
        if not self.config.zookeeper:
            catalog = self._catalog or Catalog(self._directory / "topics")
            return OwnTopics(catalog, self.context, on_deleted=self.groups.forget_topic)
        topics = ClusterTopics(self.context, self.groups)
        self.membership = ClusterMembership(
            self.context, topics, self._open_coordination, self.control
        )
        self.context.shared = True
        return topics

    def _open_users(self) -> FileStore:
        """Read the users and rules of a broker that governs itself."""
        store = FileStore(self._directory, self.control)
        store.load()
        return store

    async def _open_coordination(self) -> Coordination:
        config = self.config
        servers = f"{config.zookeeper.rstrip('/')}/{config.cluster_id}"
        return await open_zookeeper(
            ZooKeeperOptions.read(servers, config.zookeeper_options), self._runtime
        )

    def _open_storage(self) -> StorageHandler:
        return open_storage(
            self._storage_uri, self.config.storage_options, self._runtime, opened=self._opened
        )

    def _opened(self, storage: StorageHandler) -> None:
        self._storage = storage
        if self._abandoned:
            storage.close()

    async def _listen(self) -> None:
        """Claim the ports, without accepting."""
        for name, config in self.config.all_listeners().items():
            listener = self.listeners[name] = Listener(
                name,
                config,
                metrics=self.context.metrics,
                warn=self.context.warn,
                wall_ms=self._runtime.wall_ms,
            )
            await listener.listen(self.connections.accept)

    def reload(self, read: Callable[[], BrokerConfig] | None = None) -> None:
        """Read the files of tokens and TLS again, and tell which changed options wait for a start.

        Args:
            read: reads the configuration again; None for one that cannot change.
        """
        self.control.reload_tokens()
        for listener in self.listeners.values():
            listener.look(now=True)
        try:
            changed = changed_options(self.config, read()) if read else []
        except ConfigError as exc:
            log.warning("the configuration would stop a start: %s", exc)
            return
        waiting = f"restart the broker for {', '.join(changed)}" if changed else "no option changed"
        log.info("SIGHUP: files of tokens and TLS read again; %s", waiting)

    async def _look_for_objects(self) -> None:
        """Say so when objects are not where the storage is, and when they are there again."""
        context, before = self.context, self.context.presence
        topics = [hosted.topic for hosted in self.topics.hosted()]
        topics.sort(key=lambda topic: topic.name == AUDIT_TOPIC)  # no example that users know
        found = await look_for_objects(context.root, topics, context.queue, context.reads)
        if found.unknown and not found.missing:
            log.warning("the storage did not answer about %s", counted(found.unknown, "object"))
            return
        context.presence = found
        if found.missing and not before.missing:
            log.error("objects are missing: %s", found.warning())
        elif before.missing and not found.missing:
            log.warning("all objects are found again")

    # -- background -------------------------------------------------------------------------

    def _work(self) -> list[Coroutine[Any, Any, None]]:
        """List what runs in the background until the broker stops."""
        context, services = self.context, self.context.services
        work = [
            self._sweep(),
            self._tidy_groups(),
            self._housekeep(),
            self._watch_disk(),
            self._watch_tls(),
            self.backups.run(),
            self.figures.run(),
        ]
        if self.control.issuers is not None:
            work += [issuer.run() for issuer in self.control.issuers.all]
        if self.control.aws_iam is not None:
            work.append(self.control.aws_iam.run())
        if context.storage.remote:
            work.append(services.storage.watch(self._ask_storage))
        if not is_embedded(self.config.queue):
            work.append(services.queue.watch(context.queue.check))
        if self.membership is not None:
            work.append(self.membership.run())
        return work

    async def _sweep(self) -> None:
        """Look at timeouts now and then; cheaper than a timer for each connection."""
        while True:
            await asyncio.sleep(SWEEP_S)
            self.connections.sweep(asyncio.get_running_loop().time())
            self.context.times.clock.look()
            now = self.context.now()
            self.context.memory.tidy()
            for hosted in self.topics.hosted():
                for partition in hosted.partitions.values():
                    partition.expire_parked(now)
            self.groups.tick(now.mono_ms)
            self._look_at_services()

    async def _watch_disk(self) -> None:
        """Look at the room on the disks, in a thread: a file system that hangs holds nothing up."""
        loop, context = asyncio.get_running_loop(), self.context
        while True:
            configs = [hosted.topic.config for hosted in self.topics.hosted()]
            needed_bytes = QUEUE_BYTES + max((each.batch_bytes for each in configs), default=0)
            with contextlib.suppress(StorageError), context.services.disk.call(probe=True):
                await loop.run_in_executor(None, context.disk.look, needed_bytes)
            await asyncio.sleep(DISK_S)

    async def _watch_tls(self) -> None:
        """Look whether files of TLS were replaced, and whether certificates expire."""
        while True:
            for listener in self.listeners.values():
                listener.look()
            await asyncio.sleep(LOOK_S)

    def _look_at_services(self) -> None:
        """See whether ZooKeeper serves this broker, and say which services refuse."""
        services = self.context.services
        if self.membership is not None and (why := self.membership.trouble()):
            services.zookeeper.failed(why, certain=True)
        else:
            services.zookeeper.worked()
        services.tell()

    async def _ask_storage(self) -> None:
        """Read what is not there; that the storage says so, or does not tell us, is an answer."""
        asked = asyncio.get_running_loop().run_in_executor(
            self._asks, self.context.storage.get_range, NOT_THERE, 0, 1
        )
        try:
            await asked
        except ObjectNotFoundError:
            return
        except StorageError as exc:
            if not exc.refused:
                raise

    async def _tidy_groups(self) -> None:
        while True:
            await asyncio.sleep(TIDY_GROUPS_S)
            try:
                await self.handlers.stored_groups.tidy()
            except MemqError as exc:
                self.context.warn("groups", f"cannot store that a group has ended, retrying: {exc}")

    async def _housekeep(self) -> None:
        """Orphans at start and then daily with retention; an error is logged and tried again."""
        next_scan_ms = 0
        while True:
            try:
                await self.context.times.keep(self.context.now())
            except MemqError as exc:
                log.warning("cannot save the time, retrying: %s", exc)
            expired: list[str] = []
            owned = [each for each in self.topics.hosted() if each.retains]
            if owned and self.context.now().mono_ms >= next_scan_ms:
                try:
                    expired = await scan_orphans(owned, self.context)
                    next_scan_ms = self.context.now().mono_ms + self.config.orphan_interval_ms
                except MemqError as exc:
                    log.warning("orphans were not looked for, retrying: %s", exc)
            for hosted in self.topics.hosted():
                try:
                    expired += await self._tidy_topic(hosted)
                except MemqError as exc:
                    log.warning("%s: retention failed, retrying: %s", hosted.topic.name, exc)
            await delete_expired(expired, self.context)
            self.context.metrics.keep(self.topics.running_names())
            if self.context.presence.missing:
                await self._look_for_objects()
            await asyncio.sleep(self.config.retention_interval_ms / 1000)

    async def _tidy_topic(self, hosted: HostedTopic) -> list[str]:
        """Forget what has expired of a topic; returns the objects to delete."""
        expired = await forget_expired(hosted, self.context) if hosted.retains else []
        # An owner before may have been behind: what it published a moment ago is old here.
        now_ms = self.context.now().mono_ms - self.context.clocks_differ_ms
        for partition in hosted.partitions.values():
            partition.processor.window.expire(now_ms)
        return expired


def run(
    config: BrokerConfig,
    on_ready: Callable[[Broker], None] | None = None,
    read: Callable[[], BrokerConfig] | None = None,
    pages: Pages | None = None,
) -> int:
    """Run a broker in this process until SIGTERM or SIGINT.

    Args:
        config: of the broker.
        on_ready: called once, when the broker serves.
        read: reads the configuration again; None for one that cannot change.
        pages: adds pages to the admin HTTP; None for none.

    Returns:
        Exit code: 0 when it drained whole, 1 when it did not or failed.

    Raises:
        MemqError: it could not start.
    """
    configure(config.log_format, config.log_level)
    return asyncio.run(serve(Broker(config, pages=pages), on_ready, read))


async def serve(
    broker: Broker,
    on_ready: Callable[[Broker], None] | None,
    read: Callable[[], BrokerConfig] | None = None,
) -> int:
    """Start a broker, serve until SIGTERM, SIGINT or an unexpected error, and stop it.

    Returns and raises as `run` does.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, broker.reload, read)
    stopping = loop.create_task(stop.wait())
    starting = loop.create_task(broker.start())
    await asyncio.wait([stopping, starting], return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():  # nothing was accepted, and a start may be parted anywhere
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await broker.abandon()
        log.info("broker %s stopped before it was ready", broker.config.broker_id)
        return 0
    try:
        await starting
    except BaseException:
        await broker.abandon()
        raise
    if on_ready is not None:
        on_ready(broker)
    failing = loop.create_task(broker.failed())
    await asyncio.wait([stopping, failing], return_when=asyncio.FIRST_COMPLETED)
    if not failing.done() and broker.config.drain_delay_ms:
        broker.context.ready = False  # load balancers see that first
        log.info("broker %s stops in %d ms", broker.config.broker_id, broker.config.drain_delay_ms)
        await asyncio.wait([failing], timeout=broker.config.drain_delay_ms / 1000)
    failed = failing.done()
    stopping.cancel()
    failing.cancel()
    drained = await broker.stop()
    return 0 if drained and not failed else 1
