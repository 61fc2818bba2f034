"""One client's connection: bytes in, requests to handlers, answers out.

Reading stops (and TCP makes the client wait) while any of these holds: a Message of this connection
waits for room in its write partition; the broker's memory is full, the client is a producer and no
body of its is half received; the client does not read its answers; many of its requests wait to be
served; for a moment, when the client has just had a whole turn. Answers leave together where that
costs no latency.

Requests other than Writes are served in turns (`turns`). The transport says so as soon as a byte of
an answer cannot leave: then no further request is begun, and an answer counts in the bound until
its last byte has left.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import struct
import termios
from collections import deque
from typing import TYPE_CHECKING, cast

from memq.broker.turns import Line, Turn
from memq.core.wire.connection import (
    HANDSHAKE_MAX_HEADER_BYTES,
    SERVER_MAX_HEADER_BYTES,
    HandshakeReceived,
    Refused,
    Request,
)
from memq.core.wire.frame import (
    HEAD_BYTES,
    SCRATCH_BYTES,
    Buffer,
    Frame,
    FrameReader,
    size_bytes,
)
from memq.core.wire.messages import Struct, Write, WriteAnswer
from memq.core.wire.server_connection import ServerConnection
from memq.errors import MemqError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memq.broker.server import Broker

MIN_RATE_BYTES_S = 64 << 10  # a frame that comes slower than this, for long, is a stalled one
SEND_SLICE_BYTES = 256 << 10  # what a large answer adds to the transport's buffer at a time

MAX_BEGUN = 64  # requests of a connection that are served, or wait for their turn or for news
MAX_QUEUED = 64  # requests behind those; the client is not read until half of them are begun

ACK_DELAY_S = 0.001  # answers wait this long for others, while the client goes on sending
ACKS_AT_ONCE = 64  # or until there are so many

TURN_BYTES = 6 << 20  # of large bodies read in one turn of the event loop, one connection's share
REST_ROUNDS = 2  # turns of the event loop from a whole one to when the connection is read again

_SCRATCH = memoryview(bytearray(SCRATCH_BYTES))  # shared: used within one callback only


class BrokerConnection(asyncio.BufferedProtocol):
    """One client's connection.

    Args:
        broker: whose handlers serve the requests.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._memory = broker.services.memory
        self._bodies = broker.services.bodies
        self._loop = asyncio.get_running_loop()
        config = broker.config
        self._reader = FrameReader(
            max_header_bytes=HANDSHAKE_MAX_HEADER_BYTES,
            max_body_bytes=0,
            allocate=self._allocate,
            scratch=_SCRATCH,
        )
        self._wire = ServerConnection(
            cluster_id=config.cluster_id,
            broker_id=config.broker_id,
            authorize=broker.authorize,
            max_body_bytes=config.max_body_bytes,
        )
        self._transport: asyncio.Transport | None = None
        self._fd = -1
        self._peer = "?"
        self._admitted = 0  # bytes charged for bodies that are not complete
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
        self._turns = broker.services.turns
        self._line = Line()
        self._queued: deque[Request] = deque()
        self._crowded = False
        self._tasks: dict[asyncio.Task[None], None] = {}
        self.handshaken = False
        self.opened_s = self._loop.time()
        self._frame_since_s = self.opened_s  # when the frame in progress began
        self._progress_s = self.opened_s  # when bytes last came

    def serves(self, broker: Broker) -> bool:
        """Whether this is a connection of that broker."""
        return self._broker is broker

    def __repr__(self) -> str:
        state = "closed" if self._transport is None else "paused" if self._paused else "reading"
        return f"<BrokerConnection {self._peer} [{state} | holds {self._holds}] {self._wire!r}>"

    # -- asyncio calls these ----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is connected."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=0)
        peer = transport.get_extra_info("peername")
        self._peer = f"{peer[0]}:{peer[1]}" if peer else "?"
        sock = transport.get_extra_info("socket")
        self._fd = sock.fileno()
        self._broker.connected(self)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        except OSError as exc:  # some systems say so here when the client has reset it by now
            self._end(UnavailableError(f"the connection is gone: {exc}"), "reset")

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - nothing to add
        """The socket is gone; what was accepted is still stored, but nobody is told."""
        self._transport = None
        if self._admitted:
            self._memory.release(self._admitted)
            self._admitted = 0
        self._queued.clear()
        for task in self._tasks:
            task.cancel()
        self._writable.set()
        self._broker.disconnected(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the reader knows better
        """Where asyncio puts the next bytes."""
        return self._reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes came; serve every frame they complete."""
        try:
            frames = self._reader.buffer_updated(nbytes)
            self._read_on(frames)
        except MemqError as exc:
            self._end(exc, "protocol")
        else:
            self._receive_all(frames)

    def _receive_all(self, frames: list[Frame]) -> None:
        self._progress_s = self._loop.time()
        if frames or self._reader.at_boundary:
            self._frame_since_s = self._progress_s
        for frame in frames:
            size = len(frame.body)
            if isinstance(frame.body, memoryview):  # from `_allocate`, which has charged it
                self._admitted -= size
            else:
                self._memory.admit(size)
            self._receive(frame, size)
        if self._memory.full:
            self.throttle()

    def _read_on(self, frames: list[Frame]) -> None:
        """Read what else has come of large bodies, before any Message is looked at.

        Each large body drives the interpreter out of the processor's caches, so Messages that are
        served one after the other cost half of what they cost one at a time. After a turn that had
        some the connection rests. The end of the stream and errors of the socket are left for
        asyncio's next read, which meets them again.
        """
        before = len(frames)
        left = TURN_BYTES
        while left > 0 and self._reader.expects_body and not self._memory.full:
            try:
                count = os.readv(self._fd, [self._reader.get_buffer()])
            except OSError:
                break
            if not count:
                break
            left -= count
            frames += self._reader.buffer_updated(count)
        if len(frames) > before and not self._rest:
            self._rest = REST_ROUNDS
            self._update_reading()
            self._loop.call_soon(self._rest_on)

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
                self._end(exc, "protocol")
                return
        if frames:
            self._receive_all(frames)
        else:
            self._update_reading()

    def eof_received(self) -> bool:
        """The client sends no more; close once its answers are sent."""
        return False

    def pause_writing(self) -> None:
        """The client does not read its answers as fast as they come."""
        self._writable.clear()
        self._unread_since_s = self._taken_s = self._loop.time()
        self._taken_bytes = self._unread_bytes = 0
        self._turns.reads(self._line, reads=False)
        self._update_reading()

    def resume_writing(self) -> None:
        """All of them have left."""
        self._writable.set()
        self._turns.reads(self._line, reads=True)
        self._update_reading()

    # -- pressure ---------------------------------------------------------------------------

    def hold(self) -> None:
        """A Message of this connection waits for room: stop reading."""
        self._holds += 1
        self._update_reading()

    def unhold(self) -> None:
        """It found room or was refused."""
        self._holds -= 1
        self._update_reading()

    def throttle(self) -> None:
        """The broker's memory became full, or has room again."""
        self._reader.read_ahead = not self._memory.full
        self._update_reading()

    def stalled_s(self, now_s: float) -> float:
        """For how long the frame in progress has not come on; 0 between frames.

        A frame that drips in is stalled from when it falls behind `MIN_RATE_BYTES_S`.
        """
        if self._reader.at_boundary or self._paused:
            return 0.0
        allowed_s = self._reader.buffered_bytes / MIN_RATE_BYTES_S
        return max(now_s - self._progress_s, now_s - self._frame_since_s - allowed_s)

    def unread_s(self, now_s: float) -> float:
        """For how long the client has not read its answers; 0 while it does. Called now and then.

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
            and not (self._produces and self._memory.full and not self._admitted)
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
        if self._memory.full and not self._produces:
            raise self._memory.full_error()
        memory = self._bodies.lend(size + HEAD_BYTES)  # before it counts: idle memory counts too
        self._memory.admit(size)
        self._admitted += size
        self._produces = True  # only a Write has a body
        return memory

    # -- requests ---------------------------------------------------------------------------

    def _receive(self, frame: Frame, charged: int) -> None:
        if self._transport is None or self._transport.is_closing():
            self._memory.release(charged)
            return
        try:
            event = self._wire.receive(frame)
        except MemqError as exc:
            self._memory.release(charged)
            self._end(exc, exc.code)
            return
        match event:
            case Request(header=Write()):
                self._write(event, charged)
            case Request():
                self._memory.release(charged)  # only a Write has a body that is kept
                self._serve(event)
            case Refused(buffers, error):
                self._memory.release(charged)
                self._broker.refused(self._peer, error)
                self.send(buffers)
            case HandshakeReceived(buffers):
                self._memory.release(charged)
                self.handshaken = True
                self._reader.max_header_bytes = SERVER_MAX_HEADER_BYTES
                self._reader.max_body_bytes = self._broker.config.max_body_bytes
                self._broker.welcomed(self)
                self.send(buffers)

    def _write(self, request: Request, charged: int) -> None:
        reply = _Reply(self, request.correlation_id, request.oneway)
        if self._memory.full and not self._produces:
            self._memory.release(charged)
            reply.fail(self._memory.full_error())
        else:
            self._produces = True
            self._broker.write(request, reply)

    def _serve(self, request: Request) -> None:
        if len(self._tasks) < MAX_BEGUN:
            self._begin(request)
            return
        self._queued.append(request)
        if len(self._queued) >= MAX_QUEUED and not self._crowded:
            self._crowded = True
            self._update_reading()

    def _begin(self, request: Request) -> None:
        task = self._loop.create_task(self._answer(request.correlation_id, request.header))
        self._tasks[task] = None
        task.add_done_callback(self._answered)

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._broker.services.bugs.report(repr(self), error)
        if self._queued:
            self._begin(self._queued.popleft())
            if self._crowded and len(self._queued) <= MAX_QUEUED // 2:
                self._crowded = False
                self._update_reading()

    async def _answer(self, correlation_id: int, request: Struct) -> None:
        handlers = self._broker.handlers
        try:
            await handlers.news(request)
            async with Turn(self._turns, self._line, handlers.answer_bytes(request)) as turn:
                header, body = await handlers.serve(request)
                buffers = self._wire.answer(correlation_id, header, body)
                if turn.size_bytes:
                    turn.resize(sum(map(size_bytes, buffers)))
                    await self._send_large(buffers)
                else:
                    self.send(buffers)
        except MemqError as exc:
            self.fail(correlation_id, exc)
        except Exception as exc:
            self.fail(correlation_id, MemqError(f"{type(exc).__name__}: {exc}"))
            raise  # it may have left something half-way: the broker stops

    # -- answers ----------------------------------------------------------------------------

    def answer(self, correlation_id: int, header: Struct) -> None:
        """Answer a request, unless the connection is gone."""
        if self._transport is not None:
            self.send(self._wire.answer(correlation_id, header))

    def fail(self, correlation_id: int, error: MemqError) -> None:
        """Answer a request with an error, unless the connection is gone."""
        self._broker.refused(self._peer, error)
        if self._transport is not None:
            self.send(self._wire.fail(correlation_id, error))

    def fail_oneway(self, error: MemqError) -> None:
        """Count the refusal of a request that nobody wants answered."""
        self._broker.refused(self._peer, error)

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
            self._transport.write(b"".join(out))

    async def _send_large(self, buffers: list[Buffer]) -> None:
        """Send an answer slice by slice, as fast as the client takes it; until all has left."""
        async with self._large_send:
            for piece in _pieces(buffers):
                await self._writable.wait()
                if self._transport is None:
                    return
                self._transport.write(piece)
            await self._writable.wait()
        self._flush()

    # -- the end ----------------------------------------------------------------------------

    def end(self, reason: str, error: MemqError) -> None:
        """Close the connection, telling the client why."""
        self._end(error, reason)

    def _end(self, error: MemqError, reason: str) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._broker.closing(self._peer, reason, error)
        goodbye = self._wire.goodbye(error)
        if not self._large_send.locked():
            transport.write(b"".join([*self._out, *goodbye]))
        self._out = []
        if transport.get_write_buffer_size():
            self._loop.call_later(1.0, transport.abort)  # a client that reads nothing
        transport.close()


def _pieces(buffers: list[Buffer]) -> Iterator[Buffer]:
    """The buffers, in one piece when they are small, else in slices."""
    if sum(map(size_bytes, buffers)) <= SEND_SLICE_BYTES:
        yield b"".join(buffers)
        return
    for buffer in buffers:
        view = memoryview(buffer).cast("B")
        for start in range(0, len(view), SEND_SLICE_BYTES):
            yield view[start : start + SEND_SLICE_BYTES]


def _unacked_bytes(fd: int) -> int:
    """What the kernel holds for a socket because the other side has not taken it."""
    if fd < 0:
        return 0  # no socket of the kernel
    try:
        answer: bytes = fcntl.ioctl(fd, termios.TIOCOUTQ, bytes(4))
    except OSError:
        return 0  # it has just been closed
    return int(struct.unpack("i", answer)[0])


class _Reply:
    """How a Write is answered; see `memq.broker.write_partition.Reply`."""

    __slots__ = ("_connection", "_correlation_id", "_oneway")

    def __init__(self, connection: BrokerConnection, correlation_id: int, oneway: bool) -> None:
        self._connection = connection
        self._correlation_id = correlation_id
        self._oneway = oneway

    def answer(self, answer: WriteAnswer) -> None:
        if not self._oneway:
            self._connection.answer(self._correlation_id, answer)

    def fail(self, error: MemqError) -> None:
        if self._oneway:
            self._connection.fail_oneway(error)
        else:
            self._connection.fail(self._correlation_id, error)

    def hold(self) -> None:
        self._connection.hold()

    def unhold(self) -> None:
        self._connection.unhold()
