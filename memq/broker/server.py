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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memq.broker.admin import AdminServer
from memq.broker.clock import system_now
from memq.broker.connection import BrokerConnection
from memq.broker.handlers import Handlers
from memq.broker.limits import RateLimitedLog, raise_file_limit
from memq.broker.memory import MemoryBudget
from memq.broker.pool import BodyPool
from memq.broker.retention import expire, scan_orphans
from memq.broker.services import Services
from memq.broker.topics import Topics
from memq.core.format.message import check_message
from memq.core.governor.catalog import Catalog
from memq.core.group import RESTART_GRACE_MS, GroupCoordinator
from memq.core.notification.embedded import EmbeddedQueue
from memq.core.storage.local import LocalStorage
from memq.core.wire.messages import BrokerInfo, Struct, Write
from memq.errors import (
    InvalidRequestError,
    MemqError,
    MessageTooLargeError,
    RequestTimeoutError,
    SchemaMismatchError,
    UnavailableError,
)

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from contextlib import AbstractAsyncContextManager

    import pyarrow as pa

    from memq.broker.config import BrokerConfig
    from memq.broker.handlers import Outcome
    from memq.broker.partition import Reply
    from memq.core.notification.queue import NotificationQueue
    from memq.core.storage.handler import StorageHandler
    from memq.core.wire.events import Request

log = logging.getLogger(__name__)

SWEEP_S = 0.25  # how often timeouts of connections and held Messages are looked at
TIDY_MS = 2_000  # memory that no body needed for so long, or twice as long, is freed
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
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        storage: StorageHandler | None = None,
        queue: NotificationQueue | None = None,
    ) -> None:
        self.config = config
        self._directory = Path(config.data_dir).absolute()
        self._given = (storage, queue)
        self._server: asyncio.Server | None = None
        self._listens_at = ""  # also while it drains, when it listens no more
        self._admin = AdminServer(self)
        self._connections: set[BrokerConnection] = set()
        self._strangers: dict[BrokerConnection, None] = {}  # no handshake yet, oldest first
        self._background: list[asyncio.Task[None]] = []
        self._warn = RateLimitedLog(log)
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
            MemqError: something stored is damaged or cannot be read; the message names it.
            UnavailableError: the port is taken.
        """
        raise_file_limit(self.config.max_connections)
        storage, queue = self._given
        self._directory.mkdir(parents=True, exist_ok=True)
        queue = queue or await self._open_queue()
        memory = MemoryBudget(self.config.memory_bytes)
        self.services = Services(
            cluster_id=self.config.cluster_id,
            storage=storage or self._open_storage(),
            queue=queue,
            memory=memory,
            bodies=BodyPool(memory),
            executor=ThreadPoolExecutor(self.config.upload_threads, "memq-storage"),
            failure=asyncio.get_running_loop().create_future(),
        )
        self.services.memory.on_change(self._memory_changed)
        catalog = Catalog(self._directory / "topics")
        restarted = bool(catalog.names())
        now_ms = self.services.now().mono_ms
        self.groups = GroupCoordinator(grants_from_ms=now_ms + restarted * RESTART_GRACE_MS)
        self.topics = Topics(catalog, self.config, self.services, lambda: self.address)
        self._handlers = Handlers(self)
        await self._listen()
        await self.topics.start()
        await self._admin.start()
        assert self._server is not None  # noqa: S101 - made by _listen
        await self._server.start_serving()
        self._background = [self._spawn(self._sweep()), self._spawn(self._housekeep())]
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
        await self.services.queue.close()
        self.services.executor.shutdown(wait=drained, cancel_futures=True)
        log.info("broker %s stopped%s", self.config.broker_id, "" if drained else ", not drained")
        return drained

    async def failed(self) -> BaseException:
        """Wait for an error that nothing expected."""
        assert self.services.failure is not None  # noqa: S101 - made by start
        return await asyncio.shield(self.services.failure)

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
            None, EmbeddedQueue, self._directory / "queue"
        )

    def _open_storage(self) -> StorageHandler:
        storage = LocalStorage(self._directory / "objects")
        now_ms = system_now().wall_ms
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

    # -- what connections call --------------------------------------------------------------

    def authorize(self, token: str) -> bool:
        """Whether a client with this token is welcome."""
        return hmac.compare_digest(token.encode(), self.config.token.encode())

    def connected(self, connection: BrokerConnection) -> None:
        """A client has connected."""
        self._connections.add(connection)
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
        self._connections.discard(connection)
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

    def serve(self, request: Struct) -> AbstractAsyncContextManager[Outcome]:
        """Answer any request but a Write."""
        return self._handlers.serve(request)

    def write(self, event: Request, reply: Reply) -> None:
        """Check a Message and hand it to its write partition; its body is charged to memory."""
        request, body = event.header, event.body
        assert isinstance(request, Write)  # noqa: S101 - the connection matched it
        try:
            hosted = self.topics.get(request.topic)
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
        if not task.cancelled() and task.exception() is not None:
            self.services.on_bug("background", task.exception())

    async def _sweep(self) -> None:
        """Look at timeouts now and then; cheaper than a timer for each connection."""
        next_tidy_ms = 0
        while True:
            await asyncio.sleep(SWEEP_S)
            self._sweep_connections(asyncio.get_running_loop().time())
            now = self.services.now()
            if now.mono_ms >= next_tidy_ms:
                next_tidy_ms = now.mono_ms + TIDY_MS
                self.services.bodies.tidy()
            for hosted in self.topics.hosted():
                for partition in hosted.partitions:
                    partition.expire_parked(now)
            self.groups.tick(now.mono_ms)

    def _sweep_connections(self, now_s: float) -> None:
        oldest_s = now_s - self.config.handshake_timeout_ms / 1000
        for connection in list(self._strangers):
            if connection.opened_s > oldest_s:
                break
            limit_ms = self.config.handshake_timeout_ms
            error = RequestTimeoutError(f"no handshake within {limit_ms} ms")
            self._strangers.pop(connection)
            connection.end("handshake_timeout", error)
        stall_ms = self.config.stall_timeout_ms
        if self.services.memory.full:
            stall_ms //= SHORT_OF_MEMORY
        for connection in list(self._connections):
            if connection.stalled_s(now_s) * 1000 > stall_ms:
                error = RequestTimeoutError(f"a frame stopped half-way for over {stall_ms} ms")
                connection.end("stalled", error)

    async def _housekeep(self) -> None:
        """Orphans at start and then hourly with retention; an error is logged and tried again."""
        next_scan_ms = 0
        while True:
            for hosted in self.topics.hosted():
                try:
                    await expire(hosted, self.services)
                    if self.services.now().mono_ms >= next_scan_ms:
                        await scan_orphans(hosted, self.services)
                    for partition in hosted.partitions:
                        partition.processor.window.expire(self.services.now().wall_ms)
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
