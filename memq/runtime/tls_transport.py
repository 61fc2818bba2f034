"""TLS between a socket's transport and a protocol, on OpenSSL's memory buffers.

asyncio has the same, and three things are why this stands here. It drops the alert of a handshake
that fails, so a client never learns that its certificate has expired. It allocates 256 KiB for each
connection, where one buffer serves all of a thread. And it fixes a listener's context when it
begins to listen, where here each connection takes the one that holds when it is accepted: so a
listener's files are replaced without touching a socket.

Theory of operation

    socket ⇄ transport ⇄ TlsLayer ⇄ protocol

`TlsLayer` is the transport's protocol, and the protocol's transport. Until the handshake is done
the protocol hears nothing; then `connection_made`. When it fails, or takes too long, the protocol
hears nothing at all. Either way `ended` is called, once: with a `TlsError` when TLS itself says
what is wrong, and with `UnavailableError` when the other side has gone, or says nothing.

Bytes that come are put into OpenSSL at once, and taken out of it while the protocol reads: what it
leaves is at most what one read of the socket gave. A protocol in the midst of large data takes more
with `read_into`, which spares turns of the event loop. Bytes to send become records at once, so the
transport holds them and says when it holds too much. Both go through OpenSSL in pieces: its buffers
never shrink. An end of the stream without TLS's own is an end like any other: frames show whether
one is cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import threading
from typing import TYPE_CHECKING, Any, cast

from memq.errors import MemqError, TlsError, UnavailableError
from memq.runtime.tls import tls_error

if TYPE_CHECKING:
    from collections.abc import Callable

    Buffer = bytes | bytearray | memoryview

HANDSHAKE_S = 5.0
PIECE_BYTES = 64 << 10  # of the socket at a time, and of what is encrypted at a time


class _Buffers(threading.local):
    """Shared by the connections of a thread; each is used within one callback only."""

    def __init__(self) -> None:
        self.scratch = memoryview(bytearray(PIECE_BYTES))  # of the socket
        self.plain = memoryview(bytearray(PIECE_BYTES))  # for protocols without buffers


_BUFFERS = _Buffers()

_AGAIN = (ssl.SSLWantReadError, ssl.SSLSyscallError)


class TlsLayer(asyncio.BufferedProtocol, asyncio.Transport):
    """One connection's TLS; it stands between the transport and the protocol.

    Args:
        context: with certificates and what is asked of the other side.
        protocol: that speaks inside of TLS.
        ended: told how the handshake has ended: with an error; or without, when it is done or
            nobody said anything.
        server_name: name that the broker's certificate must have; None for the broker's side.
        first_bytes: broker: looks at the first bytes, and may return what to answer instead of a
            handshake.

    Attributes:
        peer: address of the other side, as sockets have it.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        protocol: asyncio.BaseProtocol,
        *,
        ended: Callable[[TlsLayer, MemqError | None], None],
        server_name: str | None = None,
        first_bytes: Callable[[bytes], bytes] | None = None,
    ) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=server_name is None,
            server_hostname=server_name,
        )
        self._protocol = protocol
        self._ended = ended
        self._first_bytes = first_bytes
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.peer: object = None
        self._scratch, self._plain = _BUFFERS.scratch, _BUFFERS.plain
        self._open = self._closing = self._paused = self._heard = self._told = False
        self._dry = True  # OpenSSL needs more of the socket before it can decrypt,
        self._over = False  # or it never will again,
        self._error: MemqError | None = None  # because of this, or of the other side's end
        self._reading = False  # the protocol is being given bytes: it must not be given others

    def __repr__(self) -> str:
        state = "open" if self._open else "closing" if self._closing else "handshake"
        return f"<TlsLayer {self._ssl.version()} [{state}] {self._protocol!r}>"

    # -- the transport's protocol -----------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake when the socket is connected."""
        self._transport = cast("asyncio.Transport", transport)
        self.peer = transport.get_extra_info("peername")
        if self._closing:  # aborted before it began
            self._transport.abort()
            return
        self._timer = asyncio.get_running_loop().call_later(HANDSHAKE_S, self._too_late)
        if not self._ssl.server_side:
            self._shake_hands()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - one size serves all
        """Return where asyncio puts the next bytes of the socket."""
        return self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        """Decrypt what came, and give it to the protocol."""
        if self._closing:
            return
        self._heard = True
        if self._first_bytes is not None:
            look, self._first_bytes = self._first_bytes, None
            if instead := look(self._scratch[: min(nbytes, 8)].tobytes()):
                assert self._transport is not None  # noqa: S101 - it gave the bytes
                self._transport.write(instead)
                self._fail(TlsError("it does not speak TLS, which this listener does"))
                return
        self._put(nbytes)
        if self._open:
            self._deliver()
        else:
            self._shake_hands()

    def eof_received(self) -> bool:
        """Let the transport close."""
        self._incoming.write_eof()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """End with the socket."""
        self._transport = None
        if self._open:
            self._open, self._closing = False, True
            self._protocol.connection_lost(exc)
        elif self._ssl.server_side and not self._heard:
            self._end_handshake(None)  # somebody who looked whether anybody listens
        elif not self._closing:
            why = f": {exc}" if exc else ""
            what = f"it closed the connection in the TLS handshake{why}"
            self._fail(UnavailableError(f"{what}: it may be restarting; see its log"))

    def pause_writing(self) -> None:
        """Tell the protocol, of whose bytes the transport holds too many."""
        if self._open:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """Tell the protocol that the transport has room."""
        if self._open:
            self._protocol.resume_writing()

    # -- the handshake ----------------------------------------------------------------------

    def _shake_hands(self) -> None:
        try:
            self._ssl.do_handshake()
        except _AGAIN:
            self._flush()
        except ssl.SSLError as exc:
            self._flush()  # the alert, which tells the other side
            self._fail(tls_error(exc, of_client=self._ssl.server_side))
        else:
            self._flush()
            self._open = True
            self._end_handshake(None)
            self._protocol.connection_made(self)
            self._deliver()

    def _too_late(self) -> None:
        self._fail(UnavailableError(f"it did not end the TLS handshake within {HANDSHAKE_S:g} s"))

    def _fail(self, error: MemqError) -> None:
        self._closing = True
        if self._transport is not None:
            self._transport.close()
        self._end_handshake(error)

    def _end_handshake(self, error: MemqError | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._told:
            self._told = True
            self._ended(self, error)

    # -- bytes ------------------------------------------------------------------------------

    def _deliver(self) -> None:
        """Give the protocol all that OpenSSL can decrypt, while it reads."""
        if self._reading:
            return
        self._reading = True
        try:
            while self._open and not (self._dry or self._paused or self._closing):
                self._deliver_once()
        finally:
            self._reading = False
        self._flush()  # OpenSSL's own answers, such as to a new key

    def _deliver_once(self) -> None:
        """Fill one buffer of the protocol's."""
        protocol, buffered = self._protocol, True
        if isinstance(protocol, asyncio.BufferedProtocol):
            buffer = memoryview(protocol.get_buffer(-1))
        else:
            buffer, buffered = self._plain, False
        self._give(self._fill(buffer), buffered=buffered)
        if self._error is not None:
            self._end(self._error)
        elif self._over:
            self.close()

    def _fill(self, buffer: memoryview) -> int:
        """Decrypt until the buffer is full, or OpenSSL can no more; return how many bytes."""
        filled = 0
        while filled < len(buffer) and not (self._dry or self._over):
            into: Any = buffer[filled:]  # typeshed has only bytearray
            try:
                count = cast("int", self._ssl.read(len(into), into))
            except _AGAIN:
                self._dry = True
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                self._over = True
            except ssl.SSLError as exc:
                self._over, self._error = True, tls_error(exc, of_client=self._ssl.server_side)
            else:
                filled, self._over = filled + count, not count
        return filled

    def read_into(self, buffer: memoryview) -> int:
        """Fill a buffer with what has come, also while paused; return how many bytes.

        Of the end, and of errors, the protocol hears as ever when it reads again, not here.
        """
        filled = self._fill(buffer)
        while filled < len(buffer) and self._receive():
            more = self._fill(buffer[filled:])
            if not more:  # a client could send records without data for ever
                break
            filled += more
        return filled

    def _receive(self) -> bool:
        """Read the socket beside asyncio, whose own next read meets its end and errors again."""
        if self._transport is None:
            return False
        try:
            count = os.readv(self._transport.get_extra_info("socket").fileno(), [self._scratch])
        except OSError:
            return False
        self._put(count)
        return count > 0

    def _put(self, count: int) -> None:
        """Give OpenSSL what has been read of the socket."""
        self._incoming.write(self._scratch[:count])
        self._dry = False

    def _give(self, count: int, *, buffered: bool) -> None:
        if not count:
            return
        if buffered:
            cast("asyncio.BufferedProtocol", self._protocol).buffer_updated(count)
        else:
            cast("asyncio.Protocol", self._protocol).data_received(self._plain[:count].tobytes())

    def _flush(self) -> None:
        transport = self._transport
        # One that has broken says so only later, and warns of each write until then.
        if self._outgoing.pending and transport is not None and not transport.is_closing():
            transport.write(self._outgoing.read())

    def _end(self, error: Exception) -> None:
        """End an open connection because of an error."""
        self._flush()
        transport, self._transport = self._transport, None
        self._open, self._closing = False, True
        if transport is not None:
            transport.close()
        self._protocol.connection_lost(error)

    # -- the protocol's transport -----------------------------------------------------------

    def write(self, data: Buffer) -> None:
        """Encrypt and send."""
        if not self._open or self.is_closing():
            return
        view: Any = memoryview(data).cast("B")
        try:
            while view:
                view = view[self._ssl.write(view[:PIECE_BYTES]) :]
                self._flush()
        except ssl.SSLError:  # half a message of TLS's own has come: no honest peer sends it so
            self.abort()

    def writelines(self, list_of_data: Any) -> None:
        """Encrypt and send as few records."""
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        """Return that TLS has no half-closed connections."""
        return False

    def close(self) -> None:
        """Send all that was written, TLS's end, and close the socket."""
        if self._closing:
            return
        self._closing = True
        if self._open:
            with contextlib.suppress(ssl.SSLError):  # what the other side has not ended yet
                self._ssl.unwrap()
            self._flush()
        self._end_handshake(None)
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the socket at once."""
        self._closing = True
        self._end_handshake(None)
        if self._transport is not None:
            self._transport.abort()

    def is_closing(self) -> bool:
        """Return whether it is closed, or being closed."""
        return self._closing or self._transport is None or self._transport.is_closing()

    def pause_reading(self) -> None:
        """Give the protocol nothing until `resume_reading`."""
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Go on, first with what was decrypted before."""
        if self._paused:
            self._paused = False
            asyncio.get_running_loop().call_soon(self._read_on)

    def _read_on(self) -> None:
        if self._paused or self._transport is None:
            return
        self._deliver()
        if not self._paused and self._transport is not None and not self._closing:
            self._transport.resume_reading()

    def is_reading(self) -> bool:
        """Return whether the protocol is given bytes."""
        return not self._paused and not self.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the certificate of the other side, OpenSSL's object, or what the socket says."""
        if name == "ssl_object":
            return self._ssl
        if name == "peercert":
            return self._ssl.getpeercert()
        return default if self._transport is None else self._transport.get_extra_info(name, default)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return who speaks inside of TLS."""
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Replace who speaks inside of TLS."""
        self._protocol = protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set when `pause_writing` is called, in bytes of TLS."""
        if self._transport is not None:
            self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """Return how many bytes of TLS the transport holds."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()
