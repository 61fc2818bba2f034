"""Clients' connections: bytes in, requests to handlers, answers out.

Reading stops (and TCP makes the client wait) while any of these holds: a Message of this connection
waits for room in its write partition; the broker's memory is full, the client is a producer and no
body of its is half received; the client does not read its answers; many of its requests wait to be
served; for a moment, when the client has just had a whole turn. Answers leave together where that
costs no latency.

A connection has an identity before anything is served (`authentication`), and each request is
checked against the rules (`authorization`): when it comes, and again when it has waited for news.

Requests other than Writes are served in turns (`fair_queuing`). The transport says so as soon as a
byte of an answer cannot leave: then no further request is begun, and an answer counts in the bound
until its last byte has left.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import resource
import socket
import struct
import termios
from collections import Counter, deque
from contextlib import AbstractAsyncContextManager, nullcontext
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

import msgspec

from memq.broker.access_log import CHANGES, said
from memq.broker.authentication import Session, mechanisms
from memq.broker.authorization import concealed, refusal
from memq.broker.config import DEFAULT_LISTENER
from memq.broker.fair_queuing import ClientFlows, ScheduledRequest
from memq.broker.listeners import translate, translate_error
from memq.broker.throttling import REQUESTS_A_PAUSE, Throttle
from memq.broker.write_partition import ReceivedWrite
from memq.core.access.quotas import BYTES_IN, BYTES_OUT, REPLAY, REPLAY_AGE_MS, REQUESTS
from memq.core.wire.connection import (
    HANDSHAKE_MAX_HEADER_BYTES,
    SERVER_MAX_HEADER_BYTES,
    WRITE_CODE,
    HandshakeReceived,
    Refused,
    Request,
    ServerConnection,
)
from memq.core.wire.frame import HEAD_BYTES, SCRATCH_BYTES, Buffer, Frame, FrameReader, size_bytes
from memq.core.wire.messages import (
    Authenticate,
    ConnectionInfo,
    FetchBatch,
    FetchBatchAnswer,
    FetchCredentials,
    FetchNotifications,
    FetchNotificationsAnswer,
    Struct,
    Write,
)
from memq.errors import (
    ForbiddenError,
    MemqError,
    NotHostedError,
    ProtocolError,
    RequestTimeoutError,
    UnauthorizedError,
    UnavailableError,
)
from memq.runtime.tls_transport import TlsLayer
from memq.storage.keys import key_of_uri, parse_object_key

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from memq.broker.access_control import AccessControl
    from memq.broker.access_log import AccessLog
    from memq.broker.context import BrokerContext
    from memq.broker.handlers import Handlers
    from memq.broker.throttling import Throttling

log = logging.getLogger(__name__)

FILES_BESIDE_CONNECTIONS = 2_000  # page files, objects being written, logs
OTHER_FILES = 200  # of these, all but those of the queue
FILES_OF_PARTITION = 4  # an idle read partition has 2 open, one that is written and read 4 to 6
SHORT_OF_MEMORY = 10  # the stall timeout is divided by this while memory is full
MIN_RATE_BYTES_S = 64 << 10  # a frame that comes slower than this, for long, is a stalled one
SEND_SLICE_BYTES = 256 << 10  # what a large answer adds to the transport's buffer at a time

MAX_REQUESTS = 128  # of a connection that are served or wait; it is not read until half are left

ACK_DELAY_S = 0.001  # answers wait this long for others, while the client goes on sending
ACKS_AT_ONCE = 64  # or until there are so many

MAX_NOBODIES = 500  # connections of a host that have not said who they are; the oldest makes room
REFUSAL_S = 0.5  # until a failed login is told, so that guessing takes time

TLS_BYTES = 128 << 10  # what OpenSSL and its buffers take of a busy connection, at most
TLS_SHARE = 0.5  # of memory_bytes, for all of them

MAX_SHOWN = 200  # characters of what a client says of itself

TURN_BYTES = 6 << 20  # of large bodies read in one turn of the event loop, one connection's share
REST_ROUNDS = 2  # turns of the event loop from a whole one to when the connection is read again

LATER: dict[type[Struct], Struct] = {
    FetchBatch: FetchBatchAnswer(later=True),
    FetchNotifications: FetchNotificationsAnswer(ends=[], later=True),
}
"""What is answered where quotas let nothing be sent now."""

Sending = AbstractAsyncContextManager["Callable[[int], None] | None"]
_UNLIMITED: Sending = nullcontext(lambda _: None)
_SCRATCH = memoryview(bytearray(SCRATCH_BYTES))  # shared: used within one callback only


class Connections:
    """The connections of one broker: which are accepted, and which are closed again.

    Args:
        context: of the broker.
        handlers: serve the requests.
        control: says who clients are and what they may do.
        throttling: says how much of that.
        access_log: where that is noted.

    Attributes:
        tls_bytes: what connections with TLS are charged for, in the bound of the memory.
        opened: how many there were since the broker began.
    """

    def __init__(
        self,
        context: BrokerContext,
        handlers: Handlers,
        control: AccessControl,
        throttling: Throttling,
        access_log: AccessLog,
    ) -> None:
        self.context = context
        self.handlers = handlers
        self.control = control
        self.throttling = throttling
        throttling.quotas = control.document.quotas
        self.access_log = access_log
        control.on_change = self._follow_rules
        self.tls_bytes = 0
        self._tls_limit_bytes = int(context.config.memory_bytes * TLS_SHARE)
        self._open: dict[ServedConnection, None] = {}  # in the order of their numbers
        self.opened = 0
        self._unauthenticated: dict[ServedConnection, None] = {}  # nobody yet, oldest first
        self._nobodies: Counter[str] = Counter()  # how many of these there are, by host
        context.memory.on_change = self._throttle

    def __repr__(self) -> str:
        return f"<Connections [{len(self._open)} open | {len(self._unauthenticated)} new]>"

    def __len__(self) -> int:
        """Clients that are connected."""
        return len(self._open)

    def accept(self, listener: str = DEFAULT_LISTENER) -> ServedConnection:
        """Make the protocol of a new connection that came by a listener."""
        return ServedConnection(self, listener)

    def foreign(self, protocol: object) -> bool:
        """Return whether a protocol of this event loop is not one of these connections."""
        inner = protocol.get_protocol() if isinstance(protocol, TlsLayer) else protocol
        own = isinstance(inner, ServedConnection) and inner.connections is self
        return protocol is not None and not own

    def connected(self, connection: ServedConnection) -> None:
        """Count a client that has connected."""
        self.opened += 1
        connection.number = self.opened
        self._open[connection] = None
        self._unauthenticated[connection] = None
        self.tls_bytes += connection.tls_bytes
        self.context.memory.admit(connection.tls_bytes)
        host = connection.session.host
        self._nobodies[host] += 1
        if error := self._too_many(connection):
            self._make_room(error)
        if self._nobodies[host] > MAX_NOBODIES:
            error = UnavailableError(f"{MAX_NOBODIES} clients of {host} do not say who they are")
            self._make_room(error, host)

    def _too_many(self, newcomer: ServedConnection) -> MemqError | None:
        """Return why there is no room for another connection; None when there is."""
        limit = self.context.config.max_connections
        if len(self._open) > limit:
            return UnavailableError(f"the broker has its most of {limit} clients")
        if newcomer.tls_bytes and self.tls_bytes > self._tls_limit_bytes:
            return UnavailableError(
                f"the broker's connections with TLS take {self.tls_bytes} bytes, and may take half "
                "of its memory_bytes: raise that"
            )
        return None

    def _make_room(self, error: MemqError, host: str = "") -> None:
        """End the connection that has been silent for longest, of a host; it may be the newest."""
        for connection in self._unauthenticated:
            if connection.session.host == host or not host:
                self.authenticated(connection)
                connection.end("too_many", error)
                return

    def authenticated(self, connection: ServedConnection) -> None:
        """Record that a client has said who it is, or is asked no more."""
        if connection in self._unauthenticated:
            del self._unauthenticated[connection]
            self._nobodies -= Counter([connection.session.host])  # and forget a host that has none

    def disconnected(self, connection: ServedConnection) -> None:
        """Forget a connection that is gone."""
        self._open.pop(connection, None)
        self.tls_bytes -= connection.tls_bytes
        self.context.memory.release(connection.tls_bytes)
        self.authenticated(connection)

    def describe(self, after: int, most: int) -> list[ConnectionInfo]:
        """Describe those with a greater number, in their order, up to so many."""
        later = (each for each in self._open if each.number > after)
        return [each.describe() for each in islice(later, most)]

    def close(self) -> None:
        """Close all of them."""
        for connection in list(self._open):
            connection.end("shutdown", UnavailableError("the broker is shutting down; reconnect"))

    def sweep(self, now_s: float) -> None:
        """Close those that take too long; called now and then, cheaper than a timer for each."""
        config = self.context.config
        for connection in list(self._unauthenticated):
            if connection.opened_s > now_s - config.handshake_timeout_ms / 1000:
                break
            error = RequestTimeoutError(f"not known within {config.handshake_timeout_ms} ms")
            self.authenticated(connection)
            connection.end("handshake_timeout", error)
        stall_ms = unread_ms = config.stall_timeout_ms
        if self.context.scheduler.full:
            unread_ms //= SHORT_OF_MEMORY
        if self.context.memory.full:
            stall_ms //= SHORT_OF_MEMORY
        wall_s = self.context.runtime.wall_ms() / 1000
        for connection in list(self._open):
            if connection.session.until_s <= wall_s:
                connection.end(
                    "expired", UnavailableError("the client's certificate or token has expired")
                )
            elif connection.stalled_s(now_s) * 1000 > stall_ms:
                error = RequestTimeoutError(f"a frame stopped half-way for over {stall_ms} ms")
                connection.end("stalled", error)
            elif connection.unread_s(now_s) * 1000 > unread_ms:
                error = RequestTimeoutError(f"answers were not read for over {unread_ms} ms")
                connection.end("unread", error)

    def _throttle(self) -> None:
        for connection in self._open:
            connection.throttle()

    def _follow_rules(self) -> None:
        self.throttling.quotas = self.control.document.quotas
        for connection in list(self._open):
            if error := connection.session.follow():
                connection.end("revoked", error)
            connection.follow_quotas()


class ServedConnection(asyncio.BufferedProtocol):
    """One client's connection.

    Args:
        connections: of the broker.
        listener: name of the listener by which it came.

    Attributes:
        connections: as given.
        number: counts the connections of the broker.
        received_bytes, sent_bytes: what came, and what was sent.
        opened_s: when it began, by the event loop's clock.
        tls_bytes: what TLS takes of it; 0 without.
        session: who the client is.
    """

    def __init__(self, connections: Connections, listener: str) -> None:
        self.connections = connections
        self.number = self.received_bytes = self.sent_bytes = 0
        self._listener = listener
        self._context = context = connections.context
        self._handlers = connections.handlers
        self._memory = context.memory
        self._scheduler = context.scheduler
        self._loop = asyncio.get_running_loop()
        self.session = Session(connections.control, connections.access_log, listener, self._known)
        self._reader = FrameReader(
            max_header_bytes=HANDSHAKE_MAX_HEADER_BYTES,
            max_body_bytes=0,
            allocate=self._allocate,
            scratch=_SCRATCH,
        )
        self._wire = ServerConnection(
            cluster_id=context.config.cluster_id,
            broker_id=context.config.broker_id,
            admit=self.session.admit,
            mechanisms=mechanisms(connections.control),
            max_body_bytes=context.config.max_body_bytes,
        )
        self._transport: asyncio.Transport | None = None
        self._fd = -1
        self._peer = "?"
        self._deaf = False  # a login is being answered, or has failed and that is not told yet
        self._traffic = [context.metrics.traffic]
        self._incomplete_bytes = 0  # charged for bodies that are not complete, or not served
        self._uncounted_bytes = 0  # that came, and do not count for quotas yet
        self._kept: deque[Frame] = deque()  # that quotas do not let be served yet,
        self._kept_bytes = 0  # and what is charged for them
        self._welcomed = False
        self._produces = False  # has sent a Write: it is one of those that wait when memory is full
        self._holds = 0
        self._rest = 0  # turns to go until this connection is read again
        self._paused = False
        self._out: list[Buffer] = []
        self._flush_timer: asyncio.Handle | None = None
        self._large_send = asyncio.Lock()
        self._writable = asyncio.Event()  # all that was sent has left for the kernel
        self._writable.set()
        self._unread_bytes = 0  # what had not reached the client when we last looked,
        self._taken_bytes = 0  # what has since sending began to wait,
        self._unread_since_s = self._taken_s = 0.0  # and when that was, and the last of it
        self._flows = ClientFlows()
        self._throttle = Throttle(
            connections.throttling, stop_reading=self.hold, read_on=self._pause_over
        )
        self._crowded = False
        self._tasks: dict[asyncio.Task[None], None] = {}
        self.tls_bytes = 0
        self.opened_s = self._loop.time()
        self._frame_since_s = self.opened_s  # when the frame in progress began
        self._progress_s = self.opened_s  # when bytes last came

    def __repr__(self) -> str:
        state = "closed" if self._transport is None else "paused" if self._paused else "reading"
        return f"<ServedConnection {self._peer} [{state} | holds {self._holds}] {self._wire!r}>"

    def describe(self) -> ConnectionInfo:
        """Describe the client, as it says and as is known."""
        session, age_s = self.session, self._loop.time() - self.opened_s
        return ConnectionInfo(
            number=self.number,
            broker=self._context.config.broker_id,
            principal=session.identity.principal if session.identity else "",
            address=self._peer,
            client=session.asked.client[:MAX_SHOWN],
            version=session.asked.version[:MAX_SHOWN],
            connected_ms=self._context.runtime.wall_ms() - int(age_s * 1000),
            bytes_in=self.received_bytes,
            bytes_out=self.sent_bytes,
            throttled_ms=int(self._throttle.waited_s * 1000),
        )

    # -- asyncio calls these ----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin when the socket is connected."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=0)
        peer = transport.get_extra_info("peername")
        if peer:
            self.session.host, self._peer = peer[0], f"{peer[0]}:{peer[1]}"
        self.session.certificate = transport.get_extra_info("peercert") or {}
        sock = transport.get_extra_info("socket")
        self._fd = sock.fileno()
        self.tls_bytes = TLS_BYTES if isinstance(transport, TlsLayer) else 0
        self.connections.connected(self)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        except OSError as exc:  # some systems say so here when the client has reset it by now
            self.end("reset", UnavailableError(f"the connection is gone: {exc}"))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - nothing to add
        """End when the socket is gone; what was accepted is still stored, but nobody is told."""
        self._transport = None
        self._memory.release(self._incomplete_bytes + self._kept_bytes)
        self._incomplete_bytes = self._kept_bytes = 0
        self._kept.clear()
        self._throttle.take(BYTES_IN, self._uncounted_bytes)  # also of a frame that has no end
        for task in self._tasks:
            task.cancel()
        self._writable.set()
        self._throttle.close()
        self.connections.disconnected(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the reader knows better
        """Return where asyncio puts the next bytes."""
        return self._reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes came; serve every frame they complete."""
        self._count_received(nbytes)
        try:
            frames = self._reader.buffer_updated(nbytes)
            self._read_on(frames)
        except MemqError as exc:
            self.end("protocol", exc)
        else:
            self._receive_all(frames)

    def _receive_all(self, frames: list[Frame]) -> None:
        self._progress_s = self._loop.time()
        if frames or self._reader.at_boundary:
            self._frame_since_s = self._progress_s
        if not self._welcomed and (len(frames) > 1 or (frames and not self._reader.at_boundary)):
            error = ProtocolError("a client sends nothing until its handshake is answered")
            self.end(error.code, error)
            return
        if self._throttle or self._kept:
            self._keep(frames)
            self._serve_kept()
        else:
            self._uncounted_bytes = 0
            self._serve_all(frames)

    def _keep(self, frames: list[Frame]) -> None:
        """Let frames wait for quotas. What they take beside large bodies is charged meanwhile."""
        self._kept += frames
        kept_bytes = sum(map(_small_bytes, frames))
        self._memory.admit(kept_bytes)
        self._kept_bytes += kept_bytes

    def _serve_kept(self) -> None:
        """Serve what has come, as far as quotas let it be read now."""
        if self._kept:
            self._throttle.take(BYTES_IN, self._uncounted_bytes)
            self._uncounted_bytes = 0
        while self._kept:
            count = REQUESTS_A_PAUSE if self._throttle else len(self._kept)
            frames = [self._kept.popleft() for _ in range(min(count, len(self._kept)))]
            served_bytes = sum(map(_small_bytes, frames))
            self._memory.release(served_bytes)
            self._kept_bytes -= served_bytes
            self._throttle.take(REQUESTS, len(frames))
            self._serve_all(frames)
            if self._throttle.pausing:
                break

    def _serve_all(self, frames: list[Frame]) -> None:
        for frame in frames:
            size = len(frame.body)
            if isinstance(frame.body, memoryview):  # from `_allocate`, which has charged it
                self._incomplete_bytes -= size
            else:
                self._memory.admit(size)
            if not self._receive(frame):
                self._memory.release(size)
        if self._memory.full:
            self.throttle()

    def _count_received(self, size_bytes: int) -> None:
        self._uncounted_bytes += size_bytes
        self.received_bytes += size_bytes
        for traffic in self._traffic:
            traffic.received += size_bytes

    def _read_on(self, frames: list[Frame]) -> None:
        """Read what else has come of large bodies, before any Message is looked at.

        Each large body drives the interpreter out of the processor's caches, so Messages that are
        served one after the other cost half of what they cost one at a time. After a turn that had
        some, or was a whole one, the connection rests. The end of the stream and errors of the
        socket are left for asyncio's next read, which meets them again.
        """
        before = len(frames)
        left = TURN_BYTES
        if self._throttle:
            return  # what is in one buffer has come anyhow, and more has to wait
        while left > 0 and self._reader.expects_body and not self._memory.full:
            count = self._read_now(self._reader.get_buffer())
            if not count:
                break
            left -= count
            self._count_received(count)
            frames += self._reader.buffer_updated(count)
        if (len(frames) > before or left <= 0) and not self._rest:
            self._rest = REST_ROUNDS
            self._update_reading()
            self._loop.call_soon(self._rest_on)

    def _read_now(self, buffer: memoryview) -> int:
        """Fill a buffer with what has come; 0 when that is nothing."""
        if isinstance(self._transport, TlsLayer):
            return self._transport.read_into(buffer)
        try:
            return os.readv(self._fd, [buffer])
        except OSError:
            return 0

    def _rest_on(self) -> None:
        """Leave one more turn of the event loop to others, then go on reading.

        What the threads of storage and queue report takes several turns to become an ack. If each
        of them first had to read a turn of bodies, an ack would take four times as long, and more
        Batches would wait in memory than the processor's caches hold.

        A client that has sent more meanwhile is read at once, which spares having asyncio watch the
        socket again only to learn that it has.
        """
        self._rest -= 1
        if self._rest:
            self._loop.call_soon(self._rest_on)
            return
        transport = self._transport
        if transport is None or transport.is_closing():
            return  # the descriptor may be another connection's by now
        frames: list[Frame] = []
        if self._readable:
            try:
                self._read_on(frames)
            except MemqError as exc:
                self.end("protocol", exc)
                return
        if frames:
            self._receive_all(frames)
        else:
            self._update_reading()

    def pause_writing(self) -> None:
        """Pause answers: the client does not read them as fast as they come."""
        self._writable.clear()
        self._unread_since_s = self._taken_s = self._loop.time()
        self._taken_bytes = self._unread_bytes = 0
        self._scheduler.reads(self._flows, reads=False)
        self._update_reading()

    def resume_writing(self) -> None:
        """Resume answers: all of them have left."""
        self._writable.set()
        self._scheduler.reads(self._flows, reads=True)
        self._update_reading()

    # -- pressure ---------------------------------------------------------------------------

    def hold(self) -> None:
        """Stop reading: a Message of this connection waits for room."""
        self._holds += 1
        self._update_reading()

    def unhold(self) -> None:
        """End a hold: its Message found room or was refused."""
        self._holds -= 1
        self._update_reading()

    def _pause_over(self) -> None:
        """Go on after a pause for quotas; what has come may cause another one."""
        self._serve_kept()
        self.unhold()

    def throttle(self) -> None:
        """Pause or resume reading: the broker's memory became full, or has room again."""
        self._reader.read_ahead = not self._memory.full
        self._update_reading()

    def stalled_s(self, now_s: float) -> float:
        """Return how long the frame in progress has made no progress, in seconds; 0 between frames.

        A frame that drips in is stalled from when it is slower than `MIN_RATE_BYTES_S`.
        """
        if self._reader.at_boundary or self._paused:
            return 0.0
        allowed_s = self._reader.buffered_bytes / MIN_RATE_BYTES_S
        return max(now_s - self._progress_s, now_s - self._frame_since_s - allowed_s)

    def unread_s(self, now_s: float) -> float:
        """Return how long the client has read no answers, in seconds; 0 while it does. Call it
        often.

        As with a frame that drips in, it must take `MIN_RATE_BYTES_S`.
        """
        if self._transport is None or self._writable.is_set():
            return 0.0
        left = self._transport.get_write_buffer_size() + _unacked_bytes(self._fd)
        if left < self._unread_bytes:
            self._taken_bytes += self._unread_bytes - left
            self._taken_s = now_s
        self._unread_bytes = left
        allowed_s = self._taken_bytes / MIN_RATE_BYTES_S
        return max(now_s - self._taken_s, now_s - self._unread_since_s - allowed_s)

    @property
    def _readable(self) -> bool:
        return (
            not self._rest
            and not self._holds
            and not self._crowded
            and self._writable.is_set()
            and not (self._produces and self._memory.full and not self._incomplete_bytes)
        )

    def _update_reading(self) -> None:
        transport = self._transport
        if transport is None:
            return
        stop = not self._readable
        if stop != self._paused:
            self._paused = stop
            if stop:
                transport.pause_reading()
            else:
                self._progress_s = self._frame_since_s = self._loop.time()
                transport.resume_reading()

    def _allocate(self, size: int) -> memoryview:
        self._check_body()
        if self._memory.full and not self._produces:
            raise self._memory.full_error()
        memory = self._memory.lend(size + HEAD_BYTES)  # before it counts: idle memory counts too
        self._memory.admit(size)
        self._incomplete_bytes += size
        self._produces = True
        return memory

    def _check_body(self) -> None:
        """Refuse a body whose request has no use for it, before it takes memory.

        Raises:
            ForbiddenError: the client may not write it.
            ProtocolError: only a Write has a body.
        """
        frame = self._reader.incoming
        if frame is None or frame.type != WRITE_CODE:
            raise ProtocolError("only a Write has a body")
        access = self.session.access
        if not access.unrestricted and (error := self.refusal(self._wire.preview(frame))):
            raise ForbiddenError(str(error))  # to end the connection, whatever else it is

    # -- requests ---------------------------------------------------------------------------

    def _receive(self, frame: Frame) -> bool:
        """Handle a frame; True when it is a Write, which has taken over the charge of its body."""
        if self._transport is None or self._transport.is_closing() or self._deaf:
            return False
        try:
            event = self._wire.receive(frame)
        except MemqError as exc:
            if isinstance(exc, UnauthorizedError):
                self.session.note("login", exc)
            self.end(exc.code, exc)
            return False
        match event:
            case Request(header=Write()):
                self._receive_write(ReceivedWrite(event, self, self._memory))
                return True
            case Request(header=Authenticate()):
                self._spawn(self._authenticate(event))
            case Request():
                self._spawn(self._answer(event.correlation_id, event.header))
            case Refused(buffers, error):
                self.refused(error)
                self.send(buffers)
            case HandshakeReceived():
                self._welcome(event)
        return False

    def _receive_write(self, write: ReceivedWrite) -> None:
        if self._memory.full and not self._produces:
            write.refuse(self._memory.full_error())
        elif error := self.refusal(write.header):
            write.refuse(error)
        else:
            self._produces = True
            self._handlers.write(write)

    def _welcome(self, event: HandshakeReceived) -> None:
        self._welcomed = True
        if self._crosses(event.zone):
            self._traffic.append(self._context.metrics.traffic_across_zones)
        self.send(event.buffers_to_send)

    # -- who it is --------------------------------------------------------------------------

    def _known(self) -> None:
        """Take large requests: it is known whose they are."""
        self._wire.authenticated()
        self._reader.max_header_bytes = SERVER_MAX_HEADER_BYTES
        self._reader.max_body_bytes = self._context.config.max_body_bytes
        self.connections.authenticated(self)
        self.follow_quotas()
        try:
            self._throttle.count(self.session.access, self.session.asked.client)
        except UnavailableError as exc:
            self._loop.call_soon(self.end, "too_many", exc)

    def follow_quotas(self) -> None:
        """Hold to the quotas of now."""
        if self.session.identity is not None:
            asked = self.session.asked
            self._throttle.follow(self.session.access, asked.client, asked.group)

    async def _authenticate(self, request: Request) -> None:
        """Answer a step of a login; a client has one attempt, and waits meanwhile."""
        if self._deaf:
            return
        self._deaf = self.session.identity is None
        try:
            answer = await self.session.step(cast("Authenticate", request.header))
        except MemqError as exc:
            if isinstance(exc, UnavailableError) and self.session.identity is not None:
                self.send(self._wire.fail(request.correlation_id, exc))
                return
            self.session.note("login", exc)
            self._deaf = True
            self.hold()
            self._loop.call_later(REFUSAL_S, self.end, exc.code, exc)
            return
        self._deaf = False
        self.send(self._wire.answer(request.correlation_id, answer))

    # -- serving ----------------------------------------------------------------------------

    def _crosses(self, zone: str) -> bool:
        """Return whether traffic with a client there crosses zones; not where nobody knows."""
        own = self._context.config.zone
        return bool(zone and own) and zone != own

    def _spawn(self, answer: Coroutine[Any, Any, None]) -> None:
        task = self._context.fatal_errors.spawn(self, answer)
        self._tasks[task] = None
        task.add_done_callback(self._answered)
        if len(self._tasks) >= MAX_REQUESTS:
            self._crowded = True
            self._update_reading()

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if self._crowded and len(self._tasks) <= MAX_REQUESTS // 2:
            self._crowded = False
            self._update_reading()

    async def _answer(self, correlation_id: int, request: Struct) -> None:
        change = type(request) in CHANGES
        before = self._handlers.before(request) if change else {}
        outcome: MemqError | None = None
        try:
            self._check(request)
            if change:
                await self._throttle.may_change()
                before = self._handlers.before(request)
            await self._serve(correlation_id, request)
        except MemqError as exc:
            outcome = exc
            self.fail(correlation_id, exc, request)
        except asyncio.CancelledError:
            outcome = UnavailableError("the client has gone; it was done or not")
            raise
        except Exception as exc:
            outcome = MemqError(f"{type(exc).__name__}: {exc}")
            self.fail(correlation_id, outcome, request)
            raise  # it may have left something half-way: the broker stops
        finally:
            if change:
                self.session.note(type(request).__name__, outcome, request=said(request), **before)
            elif isinstance(outcome, ForbiddenError):
                self.session.note("denied", outcome, request=type(request).__name__)

    async def _serve(self, correlation_id: int, request: Struct) -> None:
        """Serve a request when it is its turn, and send the answer."""
        handlers = self._handlers
        await handlers.news(request)
        limit_bytes = handlers.answer_bytes(request)
        async with (
            self._sending(request, limit_bytes) as sent,
            ScheduledRequest(self._scheduler, self._flows, limit_bytes) as scheduled,
        ):
            self._check(request)  # it may have waited for a minute
            if sent is None:
                self._throttle.untold_ms = self._throttle.later_ms
                header, body = LATER[type(request)], b""
            else:
                header, body = await handlers.serve(request, self.session.access)
                sent(size_bytes(body))
            if isinstance(request, FetchBatch | FetchCredentials):
                self._check(request)  # storage or STS may have taken its time
            if self._listener != DEFAULT_LISTENER:
                header = translate(header, handlers.addresses(self._listener))
            buffers = self._wire.answer(correlation_id, self._told(header), body)
            if scheduled.size_bytes:
                scheduled.resize(sum(map(size_bytes, buffers)))
                await self._send_large(buffers)
            else:
                self.send(buffers)

    def _sending(self, request: Struct, limit_bytes: int) -> Sending:
        """Wait until quotas let an answer be sent; see `Throttle.sending`."""
        if not self._throttle or not isinstance(request, FetchBatch | FetchNotifications):
            return _UNLIMITED
        limits, reserved = [BYTES_OUT], 0
        if isinstance(request, FetchBatch):
            reserved = limit_bytes
            batch = parse_object_key(key_of_uri(request.uri))
            oldest_ms = self._context.runtime.wall_ms() - REPLAY_AGE_MS
            if batch is not None and batch.sealed_ms < oldest_ms:
                limits.append(REPLAY)
        return self._throttle.sending(limits, reserved)

    def refusal(self, write: Struct) -> MemqError | None:
        """Return why a Write may not be stored now; None when it may."""
        error = refusal(self.session.access, write)
        if error is not None:
            self.session.note("denied", error, request="Write")
        return error

    def _check(self, request: Struct) -> None:
        if error := refusal(self.session.access, request):
            raise error

    # -- answers ----------------------------------------------------------------------------

    def answer(self, correlation_id: int, header: Struct) -> None:
        """Answer a request, unless the connection is gone."""
        if self._transport is not None:
            self.send(self._wire.answer(correlation_id, self._told(header)))

    def _told(self, header: Struct) -> Struct:
        """Add to an answer for how long the client has to wait."""
        if untold_ms := self._throttle.untold_ms:
            self._throttle.untold_ms = 0
            return msgspec.structs.replace(header, throttle_ms=untold_ms)
        return header

    def fail(self, correlation_id: int, error: MemqError, request: Struct) -> None:
        """Answer a request with an error, unless the connection is gone."""
        error = self._context.services.explained(concealed(self.session.access, request, error))
        if isinstance(error, NotHostedError) and self._listener != DEFAULT_LISTENER:
            error = translate_error(error, self._handlers.addresses(self._listener))
        self.refused(error)
        if self._transport is not None:
            self.send(self._wire.fail(correlation_id, error))

    def refused(self, error: MemqError) -> None:
        """Count and log the refusal of a request."""
        self._context.metrics.refused.labels(error.code).inc()
        self._context.warn(error.code, f"refused a request of {self._peer}: {error}")

    def send(self, buffers: list[Buffer]) -> None:
        """Send small buffers together with others.

        A send costs as much as receiving half a megabyte. So while the client is in the middle of
        sending the next frame, answers wait for each other, for a millisecond at most.
        """
        self._out += buffers
        if len(self._out) >= ACKS_AT_ONCE:
            self._flush()
        elif self._flush_timer is None:
            self._flush_timer = self._loop.call_soon(self._flush_unless_busy)

    def _flush_unless_busy(self) -> None:
        """Called a turn after the first answer, when the client's next bytes have been read."""
        if self._reader.at_boundary:
            self._flush()
        else:
            self._flush_timer = self._loop.call_later(ACK_DELAY_S, self._flush)

    def _flush(self) -> None:
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        if self._transport is not None and self._out and not self._large_send.locked():
            out, self._out = self._out, []
            self._write(b"".join(out))

    def _write(self, data: Buffer) -> None:
        assert self._transport is not None  # noqa: S101 - callers have looked
        self.sent_bytes += len(data)
        for traffic in self._traffic:
            traffic.sent += len(data)
        self._transport.write(data)

    async def _send_large(self, buffers: list[Buffer]) -> None:
        """Send an answer slice by slice, as fast as the client takes it; until all has left."""
        async with self._large_send:
            for piece in _pieces(buffers):
                await self._writable.wait()
                if self._transport is None:
                    return
                self._write(piece)
            await self._writable.wait()
        self._flush()

    # -- the end ----------------------------------------------------------------------------

    def end(self, reason: str, error: MemqError) -> None:
        """Close the connection, telling the client why; `reason` is for the counter and the log."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._context.metrics.connections_closed.labels(reason).inc()
        self._context.warn(reason, f"closing {self._peer}: {error}")
        goodbye = self._wire.goodbye(error)
        if not self._large_send.locked():
            self._write(b"".join([*self._out, *goodbye]))
        self._out = []
        if transport.get_write_buffer_size():
            self._loop.call_later(1.0, transport.abort)  # a client that reads nothing
        transport.close()


def _small_bytes(frame: Frame) -> int:
    """Return what a frame takes beside a large body, which is charged from its beginning."""
    large = isinstance(frame.body, memoryview)
    return HEAD_BYTES + len(frame.header) + (0 if large else len(frame.body))


def _pieces(buffers: list[Buffer]) -> Iterator[Buffer]:
    """Yield the buffers, in one piece when they are small, else in slices."""
    if sum(map(size_bytes, buffers)) <= SEND_SLICE_BYTES:
        yield b"".join(buffers)
        return
    for buffer in buffers:
        view = memoryview(buffer).cast("B")
        for start in range(0, len(view), SEND_SLICE_BYTES):
            yield view[start : start + SEND_SLICE_BYTES]


def _unacked_bytes(fd: int) -> int:
    """Return how many bytes the kernel holds for a socket because the other side has not taken
    them.
    """
    if fd < 0:
        return 0  # no socket of the kernel
    try:
        answer: bytes = fcntl.ioctl(fd, termios.TIOCOUTQ, bytes(4))
    except OSError:
        return 0  # it has just been closed
    return int(struct.unpack("i", answer)[0])


def raise_file_limit(connections: int) -> int:
    """Raise the soft limit of open files to the hard one.

    Returns:
        How many read partitions of the embedded queue there may be: the files that they may open
        are those that connections and all else leave.
    """
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)  # which Linux bounds
    wanted = connections + FILES_BESIDE_CONNECTIONS
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    if limit < wanted:
        log.warning(
            "the limit of open files is %d; %d connections want %d: raise `ulimit -Hn`",
            limit,
            connections,
            wanted,
        )
        connections = min(connections, limit // 2)
    return max(1, (limit - connections - OTHER_FILES) // FILES_OF_PARTITION)
