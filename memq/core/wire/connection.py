"""A connection, without I/O: frames in, events out; calls in, buffers out.

`ClientConnection` and `ServerConnection` are its two ends.

Rules

1. The client speaks first, and its first request is the handshake. It sends nothing else until that
   is answered: the answer tells it the version and the limits that hold. Where the answer names
   mechanisms, the client authenticates next, and sends nothing else until that is done.
2. Every request has a correlation id of the client's choice, not 0 and not that of a request in
   flight. Its answer has the same id and type code. Answers come in any order.
3. A request is answered exactly once: by its answer, or by an error. A `ONEWAY` request (a Write
   with acks=0) is never answered.
4. What is wrong inside a well-framed request (an unknown type, a header that does not fit, too many
   in flight) fails that request alone. What makes the framing or the pairing of answers doubtful
   ends the connection.
5. A server that ends a connection says why in a goodbye: an error answer of type 0 and correlation
   id 0. Requests in flight then count as not answered; they may or may not have been done.

Theory of operation

A connection is in one `ConnectionState`, and only goes on from one to the next. A step that the
state does not allow is an error, and an error raised by `receive` leads to CLOSED; a server then
sends `goodbye(error)`, and either side closes the socket.

In OPEN, the path of a request is one look-up of its `Route`, one decode and one entry in a table of
what is in flight. That table remembers the route of each id that awaits an answer, so an answer
always gets the right type code and is decoded as the right struct. A client that gives up on a
request calls `forget`: the id stays taken until the late answer comes, because for the server it
still is in flight.

One connection belongs to one thread. The caller owns sockets, time and the frames' limits: it gives
`FrameReader` the limits named below.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from memq.core.decoding import UNDECODABLE
from memq.core.features import MAX_LEVEL, MIN_LEVEL
from memq.core.wire.frame import ERROR, ONEWAY, RESPONSE, Buffer, Frame, encode_frame, size_bytes
from memq.core.wire.messages import (
    PROTOCOL_VERSION,
    REQUESTS,
    Authenticate,
    ErrorAnswer,
    Handshake,
    HandshakeAnswer,
    Struct,
    Write,
)
from memq.errors import (
    ClosedError,
    InvalidRequestError,
    MemqError,
    MessageTooLargeError,
    NotHostedError,
    ProtocolError,
    UnavailableError,
    UnsupportedVersionError,
    from_code,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MAX_IN_FLIGHT = 32_768
"""Unanswered requests of one connection: enough for 160,000 writes a second at 200 ms latency."""

HANDSHAKE_MAX_HEADER_BYTES = 16 << 10
"""Longest header before the client is authenticated; nothing has a body there."""

SERVER_MAX_HEADER_BYTES = 64 << 10
"""Longest header of a request, unless the broker gives another limit."""

SERVER_MAX_BODY_BYTES = 64 << 20
"""Longest body of a request, unless the broker gives another limit."""

CLIENT_MAX_HEADER_BYTES = 8 << 20
"""Longest header of an answer."""

CLIENT_MAX_BODY_BYTES = 256 << 20
"""Longest body of an answer."""

MAX_ERROR_CHARS = 2_000
"""Longest text of an error; longer ones are cut."""

HANDSHAKE_CODE = 1
"""Type code of the handshake."""

AUTHENTICATE_CODE = 6
"""Type code of Authenticate."""

WRITE_CODE = 10
"""Type code of Write, the only request with a body."""

GOODBYE = 0
"""Type code and correlation id of a goodbye."""


class ConnectionState(enum.Enum):
    """Where a connection is."""

    NEW = "new"
    OPENING = "waiting for the answer to its handshake"
    AUTHENTICATING = "not authenticated yet"
    OPEN = "open"
    CLOSED = "closed"


def check_state(state: ConnectionState, wanted: ConnectionState, step: str) -> None:
    """Refuse a step of the conversation that this state does not allow.

    Raises:
        ClosedError: the connection has ended.
        ProtocolError: the step is not allowed in this state.
    """
    if state is ConnectionState.CLOSED:
        raise ClosedError(f"{step} on a connection that has ended; open another")
    if state is not wanted:
        raise ProtocolError(f"{step} on a connection that is {state.value}")


class Route:
    """One line of `REQUESTS`, with its decoders made once."""

    __slots__ = ("answer_type", "code", "decode_answer", "decode_request", "name")

    def __init__(self, code: int, request: type[Struct], answer: type[Struct]) -> None:
        self.code = code
        self.name = request.__name__
        self.answer_type = answer
        self.decode_request: Callable[[bytes], Struct] = msgspec.msgpack.Decoder(request).decode
        self.decode_answer: Callable[[bytes], Struct] = msgspec.msgpack.Decoder(answer).decode


ROUTES = {
    code: Route(code, each.request, each.answer)
    for code, each in REQUESTS.items()
    if code != HANDSHAKE_CODE
}
"""The requests of an open connection, by type code."""

_encode = msgspec.msgpack.Encoder().encode
_decode_error = msgspec.msgpack.Decoder(ErrorAnswer).decode


def encode_header(header: Struct) -> bytes:
    """Encode a header as msgpack.

    Raises:
        InvalidRequestError: a field has a value that msgpack cannot carry: an integer of more than
            64 bits, a text with lone surrogates, another type.
    """
    try:
        return _encode(header)
    except (ValueError, OverflowError, TypeError) as exc:
        raise InvalidRequestError(f"{type(header).__name__} cannot be sent: {exc}") from exc


def encode_error(code: int, correlation_id: int, error: Exception) -> list[Buffer]:
    """Make the buffers of an error answer; what is not a `MemqError` is sent as `internal`."""
    if not isinstance(error, MemqError):
        error = MemqError(f"{type(error).__name__}: {error}")
    # A text may quote a file name or input that is no UTF-8.
    text = str(error)[:MAX_ERROR_CHARS].encode(errors="backslashreplace").decode()
    header = ErrorAnswer(
        code=error.code,
        message=text,
        retriable=error.retriable,
        address=error.address if isinstance(error, NotHostedError) else "",
    )
    return encode_frame(code, correlation_id, encode_header(header), flags=RESPONSE | ERROR)


def decode_error(header: bytes) -> MemqError:
    """Decode the error that an error answer carries.

    A code that this side does not know becomes the root, or `UnavailableError` when the peer says
    that it is retriable.

    Raises:
        one of UNDECODABLE: it is not an `ErrorAnswer`.
    """
    answer = _decode_error(header)
    error = from_code(answer.code, answer.message[:MAX_ERROR_CHARS], answer.address)
    if answer.retriable and not error.retriable:
        return UnavailableError(str(error))
    return error


def check_size(header: bytes, body: Buffer, max_header_bytes: int, max_body_bytes: int) -> None:
    """Refuse what the peer would refuse.

    Raises:
        MessageTooLargeError: header or body exceed their limit.
    """
    body_bytes = size_bytes(body) if body else 0
    if len(header) > max_header_bytes or body_bytes > max_body_bytes:
        raise MessageTooLargeError(
            f"a header of {len(header)} and a body of {body_bytes} bytes; the limits of the "
            f"connection are {max_header_bytes} and {max_body_bytes}: send or ask for less at a "
            "time"
        )


# -- events: what a connection tells its caller about the frames it received -----------------


class HandshakeReceived(msgspec.Struct):
    """Server: the client is welcome. Send the buffers; then the reader may take bodies.

    Attributes:
        buffers_to_send: the answer.
        client: how the client names itself, for logs.
        zone: where it runs; empty when it does not say.
    """

    buffers_to_send: list[Buffer]
    client: str
    zone: str


class Request(msgspec.Struct, gc=False):
    """Server: a request to carry out, then to `answer` or to `fail`, unless it is one way.

    Attributes:
        correlation_id: to answer it with.
        header: one of the structs of `REQUESTS`.
        body: raw bytes, not to be written to.
        body_crc: their CRC32C, checked.
        oneway: True when no answer may be given.
    """

    correlation_id: int
    header: Struct
    body: bytes | memoryview
    body_crc: int
    oneway: bool


class Refused(msgspec.Struct):
    """Server: a request that cannot be carried out. Send the buffers; the connection lives.

    Attributes:
        buffers_to_send: the error answer; empty when the request was one way.
        error: what was wrong, for logs.
    """

    buffers_to_send: list[Buffer]
    error: MemqError


class HandshakeDone(msgspec.Struct):
    """Client: the connection is open, with these limits."""

    answer: HandshakeAnswer


class Answer(msgspec.Struct, gc=False):
    """Client: the answer to a request; `header` is the struct that `REQUESTS` pairs with it."""

    correlation_id: int
    header: Struct
    body: bytes | memoryview
    body_crc: int


class Failure(msgspec.Struct):
    """Client: a request failed with `error`; the connection lives."""

    correlation_id: int
    error: MemqError


class LateAnswer(msgspec.Struct):
    """Client: the answer to a request that was forgotten; there is nothing to do."""

    correlation_id: int


ServerEvent: TypeAlias = HandshakeReceived | Request | Refused
ClientEvent: TypeAlias = HandshakeDone | Answer | Failure | LateAnswer


# -- the client's end ----------------------------------------------------------------------

_HANDSHAKE_ID = 1
_ANSWER_FLAGS = (RESPONSE, RESPONSE | ERROR)
_ROUTE_OF = {REQUESTS[code].request: route for code, route in ROUTES.items()}
_decode_welcome = msgspec.msgpack.Decoder(HandshakeAnswer).decode


class ClientConnection:
    """The client's end of one connection.

    Args:
        client: names the client in the broker's logs.
        token: credential; empty where the broker asks for none.
        zone: where the client runs; empty when it is not said.
        log_in: it wants to log in.
        group: of the consumer; empty for none.
        version: of this library.
    """

    def __init__(
        self,
        client: str,
        token: str = "",
        zone: str = "",
        *,
        log_in: bool = False,
        group: str = "",
        version: str = "",
    ) -> None:
        self._handshake = Handshake(
            versions=[PROTOCOL_VERSION],
            client=client,
            token=token,
            zone=zone,
            log_in=log_in,
            group=group,
            version=version,
        )
        self._max_header_bytes = 0
        self._max_body_bytes = 0
        self._pending: dict[int, Route] = {}
        self._forgotten: set[int] = set()
        self._next_id = _HANDSHAKE_ID + 1
        self._state = ConnectionState.NEW

    def __repr__(self) -> str:
        return (
            f"<ClientConnection {self._state.value}, {len(self._pending)} pending, "
            f"{len(self._forgotten)} forgotten>"
        )

    @property
    def in_flight(self) -> int:
        """Requests that the broker has not answered yet, the forgotten ones included."""
        return len(self._pending) + len(self._forgotten)

    def open(self) -> list[Buffer]:
        """Make the buffers of the handshake request, the first to be sent.

        Raises:
            ProtocolError: it has been called before.
            ClosedError: the connection has ended.
            MessageTooLargeError: the token or the name is too long for a handshake.
        """
        check_state(self._state, ConnectionState.NEW, "a handshake")
        encoded = encode_header(self._handshake)
        check_size(encoded, b"", HANDSHAKE_MAX_HEADER_BYTES, 0)
        self._state = ConnectionState.OPENING
        return encode_frame(HANDSHAKE_CODE, _HANDSHAKE_ID, encoded)

    def request(
        self,
        header: Struct,
        body: Buffer = b"",
        body_crc: int | None = None,
        *,
        oneway: bool = False,
    ) -> tuple[int, list[Buffer]]:
        """Return the correlation id of a new request and the buffers to send.

        Args:
            header: a request of `REQUESTS`, but not the handshake.
            body: raw bytes; sent as they are, not copied.
            body_crc: CRC32C of the body where it is known; computed when None.
            oneway: no answer will come; only for a Write with acks=0.

        Raises:
            ProtocolError: the handshake is not done.
            ClosedError: the connection has ended.
            InvalidRequestError: the header is not a request.
            MessageTooLargeError: the broker would not accept it.
            UnavailableError: too many requests are in flight; await answers.
        """
        state = self._state
        if state is not ConnectionState.AUTHENTICATING or type(header) is not Authenticate:
            check_state(state, ConnectionState.OPEN, "a request")
        route = _ROUTE_OF.get(type(header))
        if route is None:
            raise InvalidRequestError(f"{type(header).__name__} is not a request")
        encoded = encode_header(header)
        check_size(encoded, body, self._max_header_bytes, self._max_body_bytes)
        correlation_id = self._next_id
        flags = ONEWAY
        if not oneway:
            flags = 0
            if self.in_flight >= MAX_IN_FLIGHT:
                raise UnavailableError(f"{MAX_IN_FLIGHT} requests are in flight: await answers")
            self._pending[correlation_id] = route
        self._next_id += 1
        return correlation_id, encode_frame(
            route.code, correlation_id, encoded, body, flags=flags, body_crc=body_crc
        )

    def forget(self, correlation_id: int) -> None:
        """Give up on a request; its answer will be a `LateAnswer`. No-op when it is answered."""
        if self._pending.pop(correlation_id, None) is not None:
            self._forgotten.add(correlation_id)

    def receive(self, frame: Frame) -> ClientEvent:
        """Decode a frame from the broker.

        Raises:
            MemqError: the broker refused the handshake, or said goodbye with this error.
            ProtocolError: the broker broke a rule. After any error close the connection.
            ClosedError: the connection has ended.
        """
        try:
            opened = self._state in (ConnectionState.OPEN, ConnectionState.AUTHENTICATING)
            return self._answer(frame) if opened else self._welcome(frame)
        except MemqError:
            self._state = ConnectionState.CLOSED
            raise

    def _welcome(self, frame: Frame) -> HandshakeDone:
        check_state(self._state, ConnectionState.OPENING, "an answer to a handshake")
        if frame.flags == RESPONSE | ERROR:
            raise _told_error(frame)
        place = (frame.type, frame.flags, frame.correlation_id)
        if place != (HANDSHAKE_CODE, RESPONSE, _HANDSHAKE_ID):
            raise ProtocolError(f"type, flags and correlation id {place} do not answer a handshake")
        try:
            answer = _decode_welcome(frame.header)
        except UNDECODABLE as exc:
            raise ProtocolError(f"the answer to Handshake does not fit: {exc}") from exc
        if answer.version not in self._handshake.versions:
            raise UnsupportedVersionError(
                f"the broker chose protocol version {answer.version}; this client offered "
                f"{self._handshake.versions}"
            )
        self._max_header_bytes = answer.max_header_bytes
        self._max_body_bytes = answer.max_body_bytes
        self._state = ConnectionState.AUTHENTICATING if answer.mechanisms else ConnectionState.OPEN
        return HandshakeDone(answer)

    def authenticated(self) -> None:
        """Allow all other requests: the broker knows who this is."""
        if self._state is ConnectionState.AUTHENTICATING:
            self._state = ConnectionState.OPEN

    def _answer(self, frame: Frame) -> Answer | Failure | LateAnswer:
        correlation_id = frame.correlation_id
        if frame.flags not in _ANSWER_FLAGS:
            raise ProtocolError(f"the broker sent a frame with flags {frame.flags:#x}: no answer")
        route = self._pending.pop(correlation_id, None)
        if route is None or route.code != frame.type:
            return self._unexpected(frame)
        if frame.flags & ERROR:
            return Failure(correlation_id, _told_error(frame))
        try:
            header = route.decode_answer(frame.header)
        except UNDECODABLE as exc:
            return Failure(
                correlation_id, ProtocolError(f"the answer to {route.name} does not fit: {exc}")
            )
        return Answer(correlation_id, header, frame.body, frame.body_crc)

    def _unexpected(self, frame: Frame) -> LateAnswer:
        if frame.correlation_id in self._forgotten:
            self._forgotten.remove(frame.correlation_id)
            return LateAnswer(frame.correlation_id)
        if frame.type == frame.correlation_id == GOODBYE and frame.flags & ERROR:
            raise _told_error(frame)
        raise ProtocolError(
            f"the broker answered request {frame.correlation_id} of type {frame.type}, which is "
            "not in flight"
        )


def _told_error(frame: Frame) -> MemqError:
    try:
        return decode_error(frame.header)
    except UNDECODABLE as exc:
        raise ProtocolError(f"an error answer does not fit: {exc}") from exc


# -- the broker's end ----------------------------------------------------------------------

_decode_handshake: Callable[[bytes], Handshake] = msgspec.msgpack.Decoder(Handshake).decode


class ServerConnection:
    """The broker's end of one connection.

    Args:
        cluster_id: told in the handshake.
        broker_id: told in the handshake.
        admit: says who a client is that shakes hands, and for how many ms (0: for ever); or None,
            and it must authenticate by one of `mechanisms`. It raises `UnauthorizedError` for one
            that is not welcome.
        mechanisms: of authentication.
        max_header_bytes: longest header of a request, told in the handshake.
        max_body_bytes: longest body of a request, told in the handshake.
    """

    def __init__(
        self,
        *,
        cluster_id: str,
        broker_id: str,
        admit: Callable[[Handshake], tuple[str, int] | None],
        mechanisms: Sequence[str] = (),
        max_header_bytes: int = SERVER_MAX_HEADER_BYTES,
        max_body_bytes: int = SERVER_MAX_BODY_BYTES,
    ) -> None:
        self._admit = admit
        self._mechanisms = mechanisms
        self._welcome = HandshakeAnswer(
            version=PROTOCOL_VERSION,
            cluster_id=cluster_id,
            broker_id=broker_id,
            max_header_bytes=max_header_bytes,
            max_body_bytes=max_body_bytes,
            min_level=MIN_LEVEL,
            max_level=MAX_LEVEL,
        )
        self._in_flight: dict[int, Route] = {}
        self._client = ""
        self._state = ConnectionState.NEW

    def __repr__(self) -> str:
        return (
            f"<ServerConnection {self._state.value}, client {self._client!r}, "
            f"{len(self._in_flight)} in flight>"
        )

    @property
    def client(self) -> str:
        """How the client names itself; empty before its handshake."""
        return self._client

    @property
    def in_flight(self) -> int:
        """Requests that await their answer."""
        return len(self._in_flight)

    def receive(self, frame: Frame) -> ServerEvent:
        """Decode a frame from the client.

        Raises:
            ProtocolError: the client broke rule 1 or 2. After this or any other error, send
                `goodbye(error)` and close.
            UnsupportedVersionError: client and broker have no version in common.
            UnauthorizedError: the client is not welcome.
            ClosedError: the connection has ended.
        """
        try:
            if frame.type == HANDSHAKE_CODE:
                return self._handshake(frame)
            state = self._state
            if state is not ConnectionState.AUTHENTICATING or frame.type != AUTHENTICATE_CODE:
                check_state(state, ConnectionState.OPEN, "a request")
            return self._request(frame)
        except MemqError:
            self._state = ConnectionState.CLOSED
            raise

    @staticmethod
    def preview(frame: Frame) -> Struct:
        """Decode the header of a request whose body has not come.

        Raises:
            ProtocolError: it is none, or its header does not fit.
        """
        route = ROUTES.get(frame.type)
        if route is None:
            raise ProtocolError(f"unknown request type {frame.type} with a body")
        try:
            return route.decode_request(frame.header)
        except UNDECODABLE as exc:
            raise ProtocolError(f"header of {route.name} does not fit: {exc}") from exc

    def answer(
        self,
        correlation_id: int,
        header: Struct,
        body: Buffer = b"",
        body_crc: int | None = None,
    ) -> list[Buffer]:
        """Make the buffers that answer a request; its correlation id is free again.

        It makes none once the connection has ended, so callers need not check for that.

        Args:
            correlation_id: of the request.
            header: the struct that `REQUESTS` pairs with the request.
            body: raw bytes; sent as they are, not copied.
            body_crc: CRC32C of the body where it is known; computed when None.

        Raises:
            ProtocolError: no request of that id awaits this answer.
            MessageTooLargeError: no client would accept it; the request still awaits an answer.
        """
        if self._state is ConnectionState.CLOSED:
            return []
        route = self._in_flight.get(correlation_id)
        if route is None or type(header) is not route.answer_type:
            raise ProtocolError(
                f"{type(header).__name__} does not answer request {correlation_id}, which is "
                f"{route.name if route else 'not in flight'}"
            )
        encoded = encode_header(header)
        check_size(encoded, body, CLIENT_MAX_HEADER_BYTES, CLIENT_MAX_BODY_BYTES)
        del self._in_flight[correlation_id]
        return encode_frame(
            route.code, correlation_id, encoded, body, flags=RESPONSE, body_crc=body_crc
        )

    def fail(self, correlation_id: int, error: Exception) -> list[Buffer]:
        """Make the buffers that tell a request's failure; its correlation id is free again.

        An error that is not a `MemqError` is told as `internal`, with its type and text. No buffers
        when the connection has ended.

        Raises:
            ProtocolError: no request of that id awaits an answer.
        """
        if self._state is ConnectionState.CLOSED:
            return []
        route = self._in_flight.pop(correlation_id, None)
        if route is None:
            raise ProtocolError(f"request {correlation_id} is not in flight; it cannot fail")
        return encode_error(route.code, correlation_id, error)

    def authenticated(self) -> None:
        """Allow all other requests: the client is who it says."""
        if self._state is ConnectionState.AUTHENTICATING:
            self._state = ConnectionState.OPEN

    def goodbye(self, error: Exception) -> list[Buffer]:
        """Make the last buffers of the connection: they tell the client why it ends."""
        self._state = ConnectionState.CLOSED
        self._in_flight.clear()
        return encode_error(GOODBYE, GOODBYE, error)

    def _handshake(self, frame: Frame) -> HandshakeReceived:
        check_state(self._state, ConnectionState.NEW, "a handshake")
        if frame.flags or not frame.correlation_id:
            raise _misnumbered(frame)
        try:
            asked = _decode_handshake(frame.header)
        except UNDECODABLE as exc:
            raise ProtocolError(f"header of Handshake does not fit: {exc}") from exc
        if PROTOCOL_VERSION not in asked.versions:
            raise UnsupportedVersionError(
                f"the client speaks protocol versions {asked.versions[:20]}, the broker "
                f"{[PROTOCOL_VERSION]}: upgrade the older one"
            )
        self._client = asked.client
        admitted = self._admit(asked)
        if admitted is None:
            self._state = ConnectionState.AUTHENTICATING
            self._welcome.mechanisms = [*self._mechanisms]
        else:
            self._state = ConnectionState.OPEN
            self._welcome.principal, self._welcome.expires_ms = admitted
        encoded = encode_header(self._welcome)
        return HandshakeReceived(
            encode_frame(frame.type, frame.correlation_id, encoded, flags=RESPONSE),
            asked.client,
            asked.zone,
        )

    def _request(self, frame: Frame) -> Request | Refused:
        flags, correlation_id = frame.flags, frame.correlation_id
        if (flags and flags != ONEWAY) or not correlation_id or correlation_id in self._in_flight:
            raise _misnumbered(frame)
        route = ROUTES.get(frame.type)
        if route is None:
            return _refuse(
                frame, InvalidRequestError(f"unknown request type {frame.type}: upgrade the broker")
            )
        try:
            header = route.decode_request(frame.header)
        except UNDECODABLE as exc:
            return _refuse(
                frame, InvalidRequestError(f"header of {route.name} does not fit: {exc}")
            )
        if flags:
            if type(header) is not Write or header.acks != 0:
                raise ProtocolError(f"{route.name} is one way; only a Write with acks=0 may be")
        elif len(self._in_flight) < MAX_IN_FLIGHT:
            self._in_flight[correlation_id] = route
        else:
            return _refuse(
                frame,
                UnavailableError(
                    f"{MAX_IN_FLIGHT} requests of this connection are in flight: await answers"
                ),
            )
        return Request(correlation_id, header, frame.body, frame.body_crc, flags == ONEWAY)


def _refuse(frame: Frame, error: MemqError) -> Refused:
    if frame.flags & ONEWAY:
        return Refused([], error)
    return Refused(encode_error(frame.type, frame.correlation_id, error), error)


def _misnumbered(frame: Frame) -> ProtocolError:
    return ProtocolError(
        f"request of type {frame.type} with flags {frame.flags:#x} and correlation id "
        f"{frame.correlation_id}: only ONEWAY ({ONEWAY}) may be set, not on a handshake, and the "
        "id must be neither 0 nor in flight"
    )
