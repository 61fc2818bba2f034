"""One TCP connection to one broker, shared by many requests at a time.

Theory of operation
-------------------
`ClientConnection` (sans-I/O) turns headers into frames and frames into answers; this module moves
the bytes. Every request that was sent is *pending* until its answer comes, its caller gives up, or
the connection ends; then its callback is called, exactly once. When the connection ends, for
whatever reason, every pending request fails at once with `UnavailableError` (retriable).

Writing. Frames wait in `_unsent` and are handed to the transport in slices of at most
`SLICE_BYTES`, only while the transport is not paused. The transport thus never copies more than one
slice, however large the bodies and however slow the broker; bodies themselves are never copied, so
a caller must leave them alone until it has its answer.

Everything here runs on one event loop; nothing is thread safe.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from typing import TYPE_CHECKING, Any, cast

from memq.client.security import PLAIN
from memq.core.version import __version__
from memq.core.wire.connection import (
    CLIENT_MAX_BODY_BYTES,
    CLIENT_MAX_HEADER_BYTES,
    Answer,
    ClientConnection,
    Failure,
    HandshakeDone,
)
from memq.core.wire.frame import FrameReader
from memq.core.wire.messages import (
    Authenticate,
    AuthenticateAnswer,
    FetchBatch,
    FetchNotifications,
)
from memq.errors import (
    ClosedError,
    ConfigError,
    ForbiddenError,
    MemqError,
    RequestTimeoutError,
    UnauthorizedError,
    UnavailableError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from memq.client.security import Security
    from memq.core.wire.connection import ClientEvent
    from memq.core.wire.messages import FetchAnswer, HandshakeAnswer, Struct
    from memq.runtime.tls_transport import TlsLayer

    Body = bytes | bytearray | memoryview | Any
    """Anything with the buffer protocol, `pyarrow.Buffer` among them."""
    OnAnswer = Callable[[Struct | MemqError, bytes | memoryview], None]
    """Called once with the answer and its body, or with the error and an empty body."""
    OnSent = Callable[[MemqError | None], None]
    """Called once: with None when the last byte went to the transport, or with the error."""

log = logging.getLogger(__name__)

SLICE_BYTES = 256 * 1024  # most that the transport copies; a few slices fill a socket buffer
JOIN_BYTES = 16 * 1024  # below this a copy is cheaper than a second system call
RENEW_AT = 0.7  # of the time for which a token is good
MAX_PUT_OFF = 100  # times that quotas may put off one request, for up to 30 s each
MAX_UNSENT = 4_096  # buffers that wait for a broker that does not read; producers stay far below
KEEPALIVE_IDLE_S = 15  # first probe of a silent connection; cloud NATs forget after minutes
KEEPALIVE_INTERVAL_S = 5
KEEPALIVE_PROBES = 3
UNACKED_TIMEOUT_MS = 30_000  # sent bytes that the peer's kernel does not ack break the connection


def parse_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port`; an IPv6 host stands in brackets.

    Raises:
        ConfigError: the text is not an address.
    """
    host, colon, port = address.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    try:
        host.encode("idna")  # as the event loop does, whose error is no OSError
    except UnicodeError:
        host = ""
    is_port = port.isdecimal() and len(port) < 6 and 0 < int(port) < 1 << 16
    if not colon or not host or "\0" in host or not is_port:
        raise ConfigError(f"{address!r} is not an address; write it like 'broker-1:6367'")
    return host, int(port)


class BrokerConnection(asyncio.BufferedProtocol):
    """An open connection to a broker; make one with `await BrokerConnection.open(…)`.

    Attributes:
        address: `host:port` of the broker.
        limits: what the broker said in its handshake answer, limits among them.
        principal: who this client is for the broker.
    """

    limits: HandshakeAnswer
    principal: str = ""

    def __init__(
        self,
        address: str,
        *,
        client: str = "",
        token: str = "",
        zone: str = "",
        log_in: bool = False,
        group: str = "",
        on_throttled: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.address = address
        self._on_throttled = on_throttled
        self._fetch_at_s = 0.0  # until when quotas let this client wait
        self._loop = asyncio.get_running_loop()
        self._wire = ClientConnection(
            client, token, zone, log_in=log_in, group=group, version=__version__
        )
        self._reader = FrameReader(
            max_header_bytes=CLIENT_MAX_HEADER_BYTES, max_body_bytes=CLIENT_MAX_BODY_BYTES
        )
        self._handshake: asyncio.Future[HandshakeAnswer] = self._loop.create_future()
        self._lost: asyncio.Future[None] = self._loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._layer: TlsLayer | None = None
        self._pending: dict[int, OnAnswer] = {}
        self._unsent: deque[tuple[memoryview, OnSent | None]] = deque()
        self._paused = False
        self._end: MemqError | None = None  # why the connection is over
        self._renewal: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        address: str,
        *,
        client: str = "",
        token: str = "",
        zone: str = "",
        group: str = "",
        security: Security = PLAIN,
        connect_timeout_s: float,
        on_throttled: Callable[[int], None] = lambda _: None,
    ) -> BrokerConnection:
        """Connect and shake hands.

        Args:
            address: of the broker.
            client: names the client.
            token: credential; empty for none.
            zone: where the client runs; empty when it is not said.
            group: of the consumer; empty for none.
            security: how to connect, and as whom.
            connect_timeout_s: for all of it.
            on_throttled: called when the broker says for how many milliseconds it lets this client
                wait.

        Raises:
            ConfigError: the address is malformed, or a file of `security` cannot be used.
            UnavailableError: nobody answers there, or not in time.
            TlsError: one side does not accept the other's certificate, or does not speak TLS.
            UnauthorizedError: the broker refuses the token, the user or the password.
            ProtocolError: what answers is not a broker that this client can talk to.
        """
        host, port = parse_address(address)
        loop = asyncio.get_running_loop()
        log_in = bool(security.user or security.aws_iam)
        token = security.token() or token
        connection = cls(
            address,
            client=client,
            token=token,
            zone=zone,
            log_in=log_in,
            group=group,
            on_throttled=on_throttled,
        )
        protocol: asyncio.BaseProtocol = connection
        if (context := security.context()) is not None:
            from memq.runtime.tls_transport import TlsLayer  # noqa: PLC0415 - loads OpenSSL

            name = security.server_name or host
            try:
                protocol = connection._layer = TlsLayer(
                    context, connection, ended=connection._shaken, server_name=name
                )
            except ValueError as exc:
                raise ConfigError(f"{name!r} can be no name in a certificate: {exc}") from exc
        try:
            async with asyncio.timeout(connect_timeout_s):
                await loop.create_connection(lambda: protocol, host, port)
                connection.limits = await connection._handshake
                if connection.limits.mechanisms or log_in:
                    await connection._log_in(security, connect_timeout_s)
                connection.principal = connection.limits.principal
                if security.token_file or security.aws_iam:
                    connection._renewal = loop.create_task(connection._renew(security))
        except TimeoutError as exc:
            await connection.close()
            raise UnavailableError(
                f"broker {address} did not answer within {connect_timeout_s:g} s"
            ) from exc
        except OSError as exc:
            raise UnavailableError(f"cannot connect to broker {address}: {exc}") from exc
        except BaseException:
            await connection.close()
            raise
        return connection

    def __repr__(self) -> str:
        state = "closed" if self.closed else "paused" if self._paused else "open"
        return (
            f"<BrokerConnection {self.address} [{state} | {len(self._pending)} pending | "
            f"{self.unsent_bytes} bytes unsent]>"
        )

    @property
    def closed(self) -> bool:
        """True when the connection is over and another must be opened."""
        return self._end is not None

    @property
    def unsent_bytes(self) -> int:
        """Bytes that wait because the broker does not read fast enough."""
        return sum(len(view) for view, _ in self._unsent)

    async def _log_in(self, security: Security, timeout_s: float) -> None:
        """Say who this is, to a broker that asks."""
        from memq.client.authentication import authenticate  # noqa: PLC0415 - only for brokers that ask

        async def ask(step: Authenticate) -> AuthenticateAnswer:
            answer, _ = await self.request(step, timeout_s=timeout_s)
            assert isinstance(answer, AuthenticateAnswer)  # noqa: S101 - the wire checked the type
            return answer

        try:
            answer = await authenticate(security, self.limits.mechanisms, ask)
        except UnavailableError as exc:
            if isinstance(exc.__cause__, UnauthorizedError):
                raise exc.__cause__ from None  # the goodbye, in which it refuses
            raise
        except UnauthorizedError as exc:
            raise UnauthorizedError(f"broker {self.address}: {exc}") from exc
        self.limits.principal, self.limits.expires_ms = answer.principal, answer.expires_ms
        self._wire.authenticated()

    async def _renew(self, security: Security) -> None:
        """Show who this is by then, before the broker forgets it, until the connection ends."""
        from memq.client.authentication import proof  # noqa: PLC0415 - only for brokers that ask

        expires_ms = self.limits.expires_ms
        while expires_ms and not self.closed:
            await asyncio.sleep(expires_ms / 1000 * RENEW_AT)
            try:
                step, timeout_s = await proof(security), expires_ms / 1000
                answer, _ = await self.request(step, timeout_s=timeout_s)
                assert isinstance(answer, AuthenticateAnswer)  # noqa: S101 - the wire checked the type
                expires_ms = answer.expires_ms
            except MemqError as exc:
                log.warning("login not renewed at broker %s, retrying: %s", self.address, exc)
                expires_ms //= 4

    # -- sending ----------------------------------------------------------------------------

    async def request(
        self,
        header: Struct,
        body: Body = b"",
        *,
        body_crc: int | None = None,
        timeout_s: float,
    ) -> tuple[Struct, memoryview]:
        """Send a request and wait for its answer: header and body.

        Notifications and Batches are asked for when quotas let this client, and again where the
        broker puts it off; that wait is no part of the time limit.

        Raises:
            MemqError: the typed error that the broker named.
            RequestTimeoutError: no answer within `timeout_s`, or quotas put it off again and again.
            UnavailableError: the connection broke, or is broken.
            MessageTooLargeError: the body exceeds what the broker accepts.
        """
        if not isinstance(header, FetchBatch | FetchNotifications):
            return await self._request(header, body, body_crc, timeout_s)
        for _ in range(MAX_PUT_OFF):
            await asyncio.sleep(self._fetch_at_s - self._loop.time())
            answer, answer_body = await self._request(header, body, body_crc, timeout_s)
            if not cast("FetchAnswer", answer).later:
                return answer, answer_body
        raise RequestTimeoutError(
            f"broker {self.address} has put off {type(header).__name__} {MAX_PUT_OFF} times: the "
            "quotas of this client are too small for all that use them; see `memq quota list`"
        )

    async def _request(
        self, header: Struct, body: Body, body_crc: int | None, timeout_s: float
    ) -> tuple[Struct, memoryview]:
        answered: asyncio.Future[tuple[Struct, memoryview]] = self._loop.create_future()

        def settle(answer: Struct | MemqError, answer_body: bytes | memoryview) -> None:
            if answered.done():
                return
            if isinstance(answer, MemqError):
                answered.set_exception(answer)
            else:
                answered.set_result((answer, memoryview(answer_body)))

        correlation_id = self.send(header, body, body_crc, settle)
        try:
            async with asyncio.timeout(timeout_s):
                return await answered
        except TimeoutError as exc:
            raise RequestTimeoutError(
                f"broker {self.address} did not answer {type(header).__name__} "
                f"within {timeout_s:g} s"
            ) from exc
        finally:
            self.forget(correlation_id)

    def send(self, header: Struct, body: Body, body_crc: int | None, on_answer: OnAnswer) -> int:
        """Send a request whose answer goes to a callback; returns its correlation id.

        Raises:
            UnavailableError: the connection is over, or has too many requests pending.
            MessageTooLargeError: header or body exceed what the broker accepts.
        """
        self._check_usable()
        correlation_id, buffers = self._wire.request(header, body, body_crc)
        self._pending[correlation_id] = on_answer
        self._write(buffers, None)
        return correlation_id

    def post(
        self, header: Struct, body: Body, body_crc: int | None, on_sent: OnSent | None = None
    ) -> None:
        """Send a request that wants no answer.

        Raises:
            UnavailableError: the connection is over, or the broker does not read.
            MessageTooLargeError: header or body exceed what the broker accepts.
        """
        self._check_usable()
        _, buffers = self._wire.request(header, body, body_crc, oneway=True)
        self._write(buffers, on_sent)

    def forget(self, correlation_id: int) -> None:
        """Give up on a request: its callback is not called any more, a late answer is dropped."""
        if self._pending.pop(correlation_id, None) is not None:
            self._wire.forget(correlation_id)

    def _check_usable(self) -> None:
        if self._end is not None:
            raise UnavailableError(f"connection to broker {self.address} is over: {self._end}")
        if len(self._unsent) >= MAX_UNSENT:
            raise UnavailableError(f"broker {self.address} does not read what is sent to it")

    def _write(self, buffers: list[Any], on_sent: OnSent | None) -> None:
        if len(buffers) > 1 and memoryview(buffers[1]).nbytes <= JOIN_BYTES:
            buffers = [b"".join(buffers)]
        for buffer in buffers[:-1]:
            self._unsent.append((memoryview(buffer).cast("B"), None))
        self._unsent.append((memoryview(buffers[-1]).cast("B"), on_sent))
        self._pump()

    def _pump(self) -> None:
        """Hand slices to the transport until it says stop; it says so inside `write`."""
        transport, unsent = self._transport, self._unsent
        assert transport is not None  # noqa: S101 - set before anything is written
        # A transport that has broken says so only later, and warns of each write until then.
        while unsent and not (self._paused or self._end is not None or transport.is_closing()):
            view, on_sent = unsent.popleft()
            if len(view) > SLICE_BYTES:
                unsent.appendleft((view[SLICE_BYTES:], on_sent))
                view, on_sent = view[:SLICE_BYTES], None
            transport.write(view)
            if on_sent is not None:
                self._loop.call_soon(on_sent, None)

    # -- the protocol that asyncio calls ----------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set the socket up and start the handshake."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - TCP has both directions
        self._transport = transport
        _configure(transport.get_extra_info("socket"))
        self._write(self._wire.open(), None)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Return where the next bytes go."""
        return self._reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Act on the frames that these bytes complete."""
        try:
            for frame in self._reader.buffer_updated(nbytes):
                self._dispatch(self._wire.receive(frame))
        except MemqError as exc:
            self._finish(type(exc)(f"broker {self.address}: {exc}"))

    def pause_writing(self) -> None:
        """Stop handing over slices: the transport holds enough."""
        self._paused = True

    def resume_writing(self) -> None:
        """Hand over more slices."""
        self._paused = False
        self._pump()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell everybody who waits."""
        told = exc if isinstance(exc, MemqError) else None
        self._finish(told or UnavailableError(f"{exc or 'the broker closed it'}"))
        if not self._lost.done():
            self._lost.set_result(None)

    def _shaken(self, _: TlsLayer, error: MemqError | None) -> None:
        """End before the connection was one, if TLS has failed."""
        if error is not None:
            self._finish(type(error)(f"broker {self.address}: {error}"))

    def _dispatch(self, event: ClientEvent) -> None:
        if isinstance(event, Answer):
            if throttle_ms := getattr(event.header, "throttle_ms", 0):
                self._wait_until(self._loop.time() + throttle_ms / 1000)
            on_answer = self._pending.pop(event.correlation_id, None)
            if on_answer is not None:
                on_answer(event.header, event.body)
        elif isinstance(event, Failure):
            on_answer = self._pending.pop(event.correlation_id, None)
            if on_answer is not None:
                on_answer(event.error, b"")
        elif isinstance(event, HandshakeDone) and not self._handshake.done():
            self._handshake.set_result(event.answer)

    def _wait_until(self, until_s: float) -> None:
        """Ask for nothing more until then; of several waits at a time, the longest counts."""
        more_s = until_s - max(self._fetch_at_s, self._loop.time())
        if more_s > 0:
            self._on_throttled(round(more_s * 1000))
            self._fetch_at_s = until_s

    # -- the end ----------------------------------------------------------------------------

    async def close(self) -> None:
        """End the connection; pending requests fail with `ClosedError`. May be called again."""
        self._finish(ClosedError(f"the connection to broker {self.address} was closed"))
        if self._transport is not None:
            await self._lost

    def drop(self, why: str) -> None:
        """End the connection as if it had broken: pending requests fail with `UnavailableError`."""
        self._finish(UnavailableError(why))

    def _finish(self, why: MemqError) -> None:
        if self._end is not None:
            return
        self._end = why
        if self._renewal is not None:
            self._renewal.cancel()
        if self._transport is not None:
            # Closing would first wait, without limit, for what the transport still holds.
            self._transport.abort()
        elif self._layer is not None:
            self._layer.abort()  # its handshake would go on
        if not self._handshake.done():
            self._handshake.set_exception(why)
            self._handshake.exception()  # the opener may have stopped waiting
        waiting = list(self._pending.values())
        unsent = [on_sent for _, on_sent in self._unsent if on_sent is not None]
        self._pending.clear()
        self._unsent.clear()
        for on_answer in waiting:
            self._loop.call_soon(on_answer, self._error(why), b"")
        for on_sent in unsent:
            self._loop.call_soon(on_sent, self._error(why))

    def _error(self, why: MemqError) -> MemqError:
        """Make a new error for each waiter, since each adds its own traceback."""
        if isinstance(why, ClosedError | ForbiddenError):
            return type(why)(str(why))
        error = UnavailableError(f"connection to broker {self.address} broke: {why}")
        error.__cause__ = why
        return error


def _configure(sock: socket.socket) -> None:
    """Answer at once, and notice a peer that is gone. The send buffer is left to the kernel, which
    grows it to `tcp_wmem[2]` as needed; a fixed size would switch that off.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_S),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
        ("TCP_USER_TIMEOUT", UNACKED_TIMEOUT_MS),
    ):
        if hasattr(socket, name):  # Linux has them all; others keep their defaults
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
