"""Broker: one process, one event loop; everything it runs is made and unmade here.

Start: lock the data directory, take over the topics (fence, rebuild), clean what a crash left,
and only then listen. Stop: stop listening, refuse new Messages, store and ack what was accepted,
close. An error that nothing expected stops the broker: its state machines are rebuilt from the
queue at the next start, which is safer than going on from a state that nobody has thought of.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memq.broker.admin import AdminServer
from memq.broker.bugs import Bugs
from memq.broker.connection import BrokerConnection
from memq.broker.disk import DiskRoom
from memq.broker.handlers import Handlers
from memq.broker.limits import RateLimitedLog, raise_file_limit
from memq.broker.memory import MemoryBudget
from memq.broker.missing import check_nothing_missing
from memq.broker.pool import BodyPool
from memq.broker.retention import expire, scan_orphans
from memq.broker.services import Services
from memq.broker.timekeeper import Timekeeper
from memq.broker.topics import Topics
from memq.broker.turns import ANSWERS_SHARE, Turns
from memq.core.clock import BrokerClock
from memq.core.files import explain, make_folders
from memq.core.format.message import check_message
from memq.core.governor.catalog import Catalog
from memq.core.group import GroupCoordinator
from memq.core.notification.embedded import EmbeddedQueue
from memq.core.notification.read_partition import PAGE_BYTES
from memq.core.runtime import SYSTEM, Runtime
from memq.core.storage.local import LocalStorage
from memq.core.wire.messages import BrokerInfo, Write
from memq.errors import (
    InvalidRequestError,
    MemqError,
    MessageTooLargeError,
    RequestTimeoutError,
    SchemaMismatchError,
    StorageError,
    UnavailableError,
)

if TYPE_CHECKING:
    from collections.abc import Coroutine

    import pyarrow as pa

    from memq.broker.config import BrokerConfig
    from memq.broker.topics import HostedTopic
    from memq.broker.write_partition import Reply
    from memq.core.notification.queue import NotificationQueue
    from memq.core.storage.handler import StorageHandler
    from memq.core.wire.connection import Request

log = logging.getLogger(__name__)

SWEEP_S = 0.25  # how often timeouts of connections and held Messages are looked at
DISK_S = 2.0  # how often the room on the disks is looked at
QUEUE_BYTES = PAGE_BYTES + (1 << 20)  # a data page of the queue, an index page, and small files
TIDY_MS = 2_000  # memory that no body needed for so long, or twice as long, is freed
TIDY_GROUPS_S = 1.0  # a group that has ended is stored as ended so much later
SHORT_OF_MEMORY = 10  # the stall timeout is divided by this while memory is full
LISTEN_BACKLOG = 4_096
CLEAN_TEMPORARY_MS = 3_600_000  # unfinished writes this old are nobody's
MAX_PRODUCER_ID = 200  # characters, which are bytes; it stands in every notification
MAX_EPOCH = (1 << 31) - 1
MAX_SEQUENCE = (1 << 62) - 1


class Broker:
    """One broker.

    Args:
        config: its configuration.
        storage: where Batches go; None for the local file system under `data_dir`.
        queue: where notifications go; None for the embedded queue under `data_dir`.
        runtime: clocks, chance and threads.
        admin_http: whether to serve the admin HTTP.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        storage: StorageHandler | None = None,
        queue: NotificationQueue | None = None,
        runtime: Runtime = SYSTEM,
        admin_http: bool = True,
    ) -> None:
        self.config = config
        self._runtime = runtime
        self._directory = Path(config.data_dir).absolute()
        self._given = (storage, queue)
        self._server: asyncio.Server | None = None
        self._listens_at = ""  # also while it drains, when it listens no more
        self._admin = AdminServer(self)
        self._admin_http = admin_http
        self._connections: dict[BrokerConnection, None] = {}
        self._strangers: dict[BrokerConnection, None] = {}  # no handshake yet, oldest first
        self._background: list[asyncio.Task[None]] = []
        self._warn = RateLimitedLog(log, clock_s=runtime.mono_s)
        self.ready = False

    def __repr__(self) -> str:
        state = "ready" if self.ready else "not ready"
        return (
            f"<Broker {self.config.broker_id} [{state} | {len(self._connections)} connections] "
            f"{self.services.memory!r}>"
        )

    # -- life -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take over, clean up, listen.

        Raises:
            LockedError: another broker uses the data directory.
            DataLossError: a part of the data directory is missing that others know of.
            MemqError: something stored is damaged or cannot be read; the message names it.
            UnavailableError: the port is taken.
        """
        raise_file_limit(self.config.max_connections)
        storage, queue = self._given
        try:
            make_folders(self._directory)
        except OSError as exc:
            raise StorageError(f"cannot make {self._directory}: {explain(exc)}") from exc
        if queue is None:
            check_nothing_missing(self._directory)
            queue = await self._open_queue()
        saved = await queue.times()
        clock = BrokerClock(self._runtime.mono_s, self._runtime.wall_ms, saved)
        memory = MemoryBudget(self.config.memory_bytes)
        bugs = Bugs(foreign=self._foreign)
        self.services = Services(
            cluster_id=self.config.cluster_id,
            storage=storage or self._open_storage(),
            queue=queue,
            memory=memory,
            bodies=BodyPool(memory, guard=bugs.guarded),
            turns=Turns(int(self.config.memory_bytes * ANSWERS_SHARE)),
            executor=self._runtime.threads(self.config.upload_threads, "memq-storage"),
            runtime=self._runtime,
            bugs=bugs,
            disk=DiskRoom(self._written_folders()),
            times=Timekeeper(clock, saved, queue.save_times),
        )
        self.services.memory.on_change(self._memory_changed)
        catalog = Catalog(self._directory / "topics")
        self.groups = GroupCoordinator()
        self.topics = Topics(
            catalog, self.config, self.services, lambda: self.address, self.groups.forget_topic
        )
        self.handlers = Handlers(self)
        await self._listen()
        await self.topics.start()
        await self.handlers.restore_groups()
        if self._admin_http:
            await self._admin.start()
        assert self._server is not None  # noqa: S101 - made by _listen
        bugs.watch()
        await self._server.start_serving()
        background = (self._sweep(), self._tidy_groups(), self._housekeep(), self._watch_disk())
        self._background = [self._spawn(coroutine) for coroutine in background]
        self.ready = True
        log.info("broker %s is ready on %s", self.config.broker_id, self.address)

    async def stop(self) -> bool:
        """Drain and close.

        Returns:
            True when everything that was accepted is stored and acked.
        """
        self.ready = False
        if self._server is not None:
            self._server.close()
        drained = await self.topics.stop(self.config.drain_timeout_ms / 1000)
        await asyncio.sleep(0)  # the last acks leave in the turn after they were made
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        for connection in list(self._connections):
            connection.end("shutdown", UnavailableError("the broker is shutting down; reconnect"))
        await self._admin.stop()
        try:
            await self.services.times.close(self.services.now())
        except MemqError as exc:
            log.warning("the time was not saved, the next start goes on from before: %s", exc)
        await self.services.queue.close()
        self.services.executor.shutdown(wait=drained, cancel_futures=True)
        self.services.bugs.unwatch()
        log.info("broker %s stopped%s", self.config.broker_id, "" if drained else ", not drained")
        return drained

    def not_ready(self) -> list[str]:
        """Why it should be given nothing to do now; none when it is ready."""
        if not self.ready:
            return ["it starts or stops"]
        return self.services.disk.reasons(self.services.now().mono_ms)

    async def failed(self) -> BaseException:
        """Wait for an error that nothing expected."""
        return await asyncio.shield(self.services.bugs.failure)

    @property
    def address(self) -> str:
        """The `host:port` that clients reach this broker under."""
        return self.config.advertised or self._listens_at

    @property
    def connections(self) -> int:
        """Clients that are connected."""
        return len(self._connections)

    @property
    def admin_port(self) -> int:
        """The port of the admin HTTP."""
        return self._admin.port

    async def _open_queue(self) -> NotificationQueue:
        return await asyncio.get_running_loop().run_in_executor(
            None, partial(EmbeddedQueue, self._directory / "queue", runtime=self._runtime)
        )

    def _written_folders(self) -> list[Path]:
        """Folders on the disks that storage and queue write to, as far as these are local."""
        names = ("objects", "queue")
        pairs = zip(self._given, names, strict=True)
        return [self._directory / name for given, name in pairs if given is None]

    def _open_storage(self) -> StorageHandler:
        storage = LocalStorage(self._directory / "objects", runtime=self._runtime)
        now_ms = self._runtime.wall_ms()
        storage.clean_temporary(older_than_ms=CLEAN_TEMPORARY_MS, now_ms=now_ms)
        return storage

    async def _listen(self) -> None:
        try:
            self._server = await asyncio.get_running_loop().create_server(
                lambda: BrokerConnection(self),
                self.config.host,
                self.config.port,
                backlog=LISTEN_BACKLOG,
                start_serving=False,
            )
        except OSError as exc:
            raise UnavailableError(
                f"cannot listen on {self.config.host}:{self.config.port}: {exc}; set another port"
            ) from exc
        host, port = self._server.sockets[0].getsockname()[:2]
        self._listens_at = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def _foreign(self, protocol: object) -> bool:
        """Whether a protocol on this event loop is not one of this broker's connections."""
        return protocol is not None and not (
            isinstance(protocol, BrokerConnection) and protocol.serves(self)
        )

    # -- what connections call --------------------------------------------------------------

    def authorize(self, token: str) -> bool:
        """Whether a client with this token is welcome."""
        return hmac.compare_digest(token.encode(), self.config.token.encode())

    def connected(self, connection: BrokerConnection) -> None:
        """A client has connected."""
        self._connections[connection] = None
        self._strangers[connection] = None
        if len(self._connections) > self.config.max_connections:
            connection.end(
                "too_many",
                UnavailableError(
                    f"the broker has its most of {self.config.max_connections} clients"
                ),
            )

    def welcomed(self, connection: BrokerConnection) -> None:
        """A client has said who it is."""
        self._strangers.pop(connection, None)

    def disconnected(self, connection: BrokerConnection) -> None:
        """A connection is gone."""
        self._connections.pop(connection, None)
        self._strangers.pop(connection, None)

    def closing(self, peer: str, reason: str, error: MemqError) -> None:
        """The broker closes a connection."""
        self.services.metrics.connections_closed.labels(reason).inc()
        self._warn(reason, f"closing {peer}: {error}")

    def refused(self, peer: str, error: MemqError) -> None:
        """A request was answered with an error."""
        self.services.metrics.refused.labels(error.code).inc()
        self._warn(error.code, f"refused a request of {peer}: {error}")

    def brokers(self) -> list[BrokerInfo]:
        """This broker and its peers."""
        this = BrokerInfo(id=self.config.broker_id, address=self.address)
        return [this, *(BrokerInfo(id=p.id, address=p.address) for p in self.config.peers)]

    async def watermarks(self, hosted: HostedTopic) -> tuple[list[int], list[int]]:
        """How far a topic is stored, by write and by read partition.

        What is told holds in later lives too; while that cannot be made sure, on a full disk, it
        stands still.
        """
        times = self.services.times
        try:
            await times.promise(self.services.now())
        except MemqError as exc:
            self._warn("time", f"the watermark stands still, for the time was not saved: {exc}")
        latest_ms = times.saved.wall_ms
        by_write = [min(latest_ms, each.stored_through_ms()) for each in hosted.partitions]
        told = [each.stored_through_by_read_ms() for each in hosted.partitions]
        by_read = [min(latest_ms, *of_one) for of_one in zip(*told, strict=True)]
        times.told(max(*by_write, *by_read))
        return by_write, by_read

    def write(self, event: Request, reply: Reply) -> None:
        """Check a Message and hand it to its write partition; its body is charged to memory."""
        request, body = event.header, event.body
        assert isinstance(request, Write)  # noqa: S101 - the connection matched it
        try:
            hosted = self.topics.get(request.topic, request.incarnation)
            if not 0 <= request.write_partition < len(hosted.partitions):
                raise InvalidRequestError(
                    f"topic {request.topic!r} has no write partition {request.write_partition}; "
                    f"it has 0 to {len(hosted.partitions) - 1}"
                )
            schema = hosted.schemas.get(request.schema_id)
            if schema is None:
                raise SchemaMismatchError(
                    f"topic {request.topic!r} has no schema {request.schema_id!r}; it has "
                    f"{', '.join(hosted.schemas)}: fetch its metadata again"
                )
            _check_write(request, body, hosted.topic.config.message_bytes, schema)
        except MemqError as exc:
            self.services.memory.release(len(body))
            reply.fail(exc)
            return
        hosted.messages_received += 1
        hosted.bytes_received += len(body)
        hosted.partitions[request.write_partition].write(request, body, event.body_crc, reply)

    # -- background -------------------------------------------------------------------------

    def _memory_changed(self, _full: bool) -> None:
        for connection in self._connections:
            connection.throttle()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        task.add_done_callback(self._background_done)
        return task

    def _background_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.services.bugs.report("background", error)

    async def _sweep(self) -> None:
        """Look at timeouts now and then; cheaper than a timer for each connection."""
        next_tidy_ms = 0
        while True:
            await asyncio.sleep(SWEEP_S)
            self._sweep_connections(asyncio.get_running_loop().time())
            self.services.times.clock.look()
            now = self.services.now()
            if now.mono_ms >= next_tidy_ms:
                next_tidy_ms = now.mono_ms + TIDY_MS
                self.services.bodies.tidy()
            for hosted in self.topics.hosted():
                for partition in hosted.partitions:
                    partition.expire_parked(now)
            self.groups.tick(now.mono_ms)

    async def _watch_disk(self) -> None:
        """Look at the room on the disks, in a thread: a file system that hangs holds nothing up."""
        loop, disk = asyncio.get_running_loop(), self.services.disk
        while True:
            configs = [hosted.topic.config for hosted in self.topics.hosted()]
            needed_bytes = QUEUE_BYTES + max((each.batch_bytes for each in configs), default=0)
            disk.seen(await loop.run_in_executor(None, disk.look, needed_bytes))
            await asyncio.sleep(DISK_S)

    def _sweep_connections(self, now_s: float) -> None:
        oldest_s = now_s - self.config.handshake_timeout_ms / 1000
        for connection in list(self._strangers):
            if connection.opened_s > oldest_s:
                break
            limit_ms = self.config.handshake_timeout_ms
            error = RequestTimeoutError(f"no handshake within {limit_ms} ms")
            self._strangers.pop(connection)
            connection.end("handshake_timeout", error)
        stall_ms = unread_ms = self.config.stall_timeout_ms
        if self.services.turns.full:
            unread_ms //= SHORT_OF_MEMORY
        if self.services.memory.full:
            stall_ms //= SHORT_OF_MEMORY
        for connection in list(self._connections):
            if connection.stalled_s(now_s) * 1000 > stall_ms:
                error = RequestTimeoutError(f"a frame stopped half-way for over {stall_ms} ms")
                connection.end("stalled", error)
            elif connection.unread_s(now_s) * 1000 > unread_ms:
                error = RequestTimeoutError(f"answers were not read for over {unread_ms} ms")
                connection.end("unread", error)

    async def _tidy_groups(self) -> None:
        while True:
            await asyncio.sleep(TIDY_GROUPS_S)
            try:
                await self.handlers.tidy_groups()
            except MemqError as exc:
                self._warn("groups", f"a group's end is not stored, later again: {exc}")

    async def _housekeep(self) -> None:
        """Orphans at start and then hourly with retention; an error is logged and tried again."""
        next_scan_ms = 0
        while True:
            try:
                await self.services.times.keep(self.services.now())
            except MemqError as exc:
                log.warning("the time was not saved, later again: %s", exc)
            for hosted in self.topics.hosted():
                try:
                    await expire(hosted, self.services)
                    if self.services.now().mono_ms >= next_scan_ms:
                        await scan_orphans(hosted, self.services)
                    for partition in hosted.partitions:
                        partition.processor.window.expire(self.services.now().mono_ms)
                except MemqError as exc:
                    log.warning("%s: retention failed, later again: %s", hosted.topic.name, exc)
            if self.services.now().mono_ms >= next_scan_ms:
                next_scan_ms = self.services.now().mono_ms + self.config.orphan_interval_ms
            await asyncio.sleep(self.config.retention_interval_ms / 1000)


def _check_write(request: Write, body: Any, message_bytes: int, schema: pa.Schema) -> None:
    if len(body) > message_bytes:
        raise MessageTooLargeError(
            f"Message of {len(body)} bytes; topic {request.topic!r} takes up to {message_bytes}: "
            "send smaller Messages or raise message_bytes"
        )
    if not (
        0 < len(request.producer_id) <= MAX_PRODUCER_ID
        and request.producer_id.isascii()
        and request.producer_id.isprintable()
        and 0 <= request.epoch <= MAX_EPOCH
        and 0 <= request.sequence <= MAX_SEQUENCE
        and request.acks in (-1, 0, 1)
    ):
        raise InvalidRequestError(
            f"producer id of {len(request.producer_id)} characters, epoch {request.epoch}, "
            f"sequence {request.sequence}, acks {request.acks}: the id has 1 to "
            f"{MAX_PRODUCER_ID} printable ASCII characters, epoch and sequence are not negative, "
            "acks is -1, 0 or 1"
        )
    records = check_message(body, schema, max_decoded_bytes=message_bytes)
    if records != request.records:
        raise InvalidRequestError(
            f"the header says {request.records} records, the body has {records}"
        )
